"""Statements that run or ask for jobs which survive their driver (FLIP-383)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from sqlext.commands.answers import Answer, DeferredCommand, Table, whole_command
from sqlext.commands.option_levels import resolve_levels, session_levels
from sqlext.execution.jobs.events import CoordinatorSnapshot, ExecutionJobVertexInitialized, JobEvent
from sqlext.execution.jobs.fingerprints import fingerprint
from sqlext.execution.jobs.manager import JobManager, JobView
from sqlext.execution.jobs.submission import JobRequest
from sqlext.functions.keyed import KEYED_FUNCTIONS
from sqlext.functions.partition import PARTITION_FUNCTIONS
from sqlext.functions.scalar import FUNCTIONS
from sqlext.options import SORTED_SHUFFLES, Options
from sqlext.plan.job_graph import BoundedPlan
from sqlext.redaction import SqlText
from sqlext.sql.statements import BoundedStatement, JobCommand

_JOB_COLUMNS = {
    "id": "STRING",
    "status": "STRING",
    "target": "STRING",
    "submitted": "TIMESTAMP",
    "ended": "TIMESTAMP",
    "parts": "INT",
    "skipped": "INT",
    "running": "STRING",
    "event_bytes": "BIGINT",
    "error": "STRING",
    "statement": "STRING",
}
_EVENT_COLUMNS = {"type": "STRING", "vertex": "INT", "part": "INT", "epoch": "INT", "seconds": "DOUBLE", "detail": "STRING"}


def submit(
    spark: SparkSession, statement: BoundedStatement, plan: BoundedPlan, text: str, jobs: JobManager, options: Options
) -> list[str]:
    """Run a statement as a job, to its end."""
    called = {*plan.references.functions, *(literal.lower() for literal in plan.texts)}
    request = JobRequest(
        text=text,
        head=statement.head,
        query=plan.plain_sql,
        target=statement.target,
        is_sorted=options[SORTED_SHUFFLES],
        references=plan.references,
        functions=fingerprints(called),
    )
    return [jobs.submit(spark, request, options)]


def answer(spark: SparkSession, statement: JobCommand, jobs: JobManager) -> Answer:
    """SHOW JOBS, SHOW JOB EVENTS id, RESUME JOB id, CANCEL JOB id."""
    job = ".".join(statement.name)
    match statement.verb:
        case "SHOW JOBS":
            return Table(_JOB_COLUMNS, [_job_row(view) for view in jobs.views()])
        case "SHOW JOB EVENTS":
            return Table(_EVENT_COLUMNS, [_event_row(event) for event in jobs.events(job)])
        case "RESUME JOB":
            options = resolve_levels(spark, session_levels(spark))
            return DeferredCommand("RESUME JOB", lambda: [jobs.resume(job, fingerprints, options)])
        case _:
            return whole_command(spark, "CANCEL JOB", lambda _: jobs.cancel(job))


def fingerprints(names: Iterable[str]) -> dict[str, str]:
    """Those of the names that are registered Python functions of ours, with a fingerprint of each."""
    registries = (FUNCTIONS, PARTITION_FUNCTIONS, KEYED_FUNCTIONS)
    found = {name: [each for registry in registries if (each := registry.find(name)) is not None] for name in names}
    return {name: " ".join(fingerprint(each.function) for each in functions) for name, functions in found.items() if functions}


def _job_row(view: JobView) -> Mapping[str, Any]:
    record, progress = view.record, view.progress
    counted = json.loads(record.detail) if str(record.state) == "FINISHED" and record.detail else {}
    row = {
        "id": record.spec.id,
        "status": view.status,
        "target": ".".join(record.spec.target),
        "submitted": _time(record.submitted),
        "ended": _time(record.ended),
        "error": record.detail if str(record.state) == "FAILED" else None,
        "statement": SqlText(record.spec.text),
        "parts": counted["parts"] + counted["skipped"] if counted else None,  # all that have finished, as while it runs
        "skipped": counted.get("skipped"),
        "event_bytes": counted.get("event_bytes"),
    }
    if progress is not None:
        row |= {"parts": len(progress.finished), "skipped": len(progress.skipped), "running": progress.summary()}
    return row


def _event_row(event: JobEvent) -> Mapping[str, Any]:
    row: dict[str, Any] = {"type": type(event).__name__, "epoch": event.epoch}
    if isinstance(event, CoordinatorSnapshot):
        return row | {"detail": json.dumps({"finished": dict(event.finished), "at": event.at})}
    row["vertex"] = event.vertex
    if isinstance(event, ExecutionJobVertexInitialized):
        return row | {"detail": f"{event.parts} parts into {event.table}"}
    counted: Sequence[str] = [f"{key}={value}" for key, value in {**event.metrics, **event.accumulators}.items()]
    return row | {"part": event.part, "seconds": event.seconds, "detail": " ".join(counted)}


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
