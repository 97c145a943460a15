"""The way from a statement to a job that can run: its definition, and its query cut into pieces over pinned inputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField

from sqlext.errors import JobError, UnsupportedError
from sqlext.execution.jobs.fragments import FragmentedPlan, cut
from sqlext.execution.jobs.pins import pinned, pins_of
from sqlext.execution.jobs.registry import JobSpec
from sqlext.execution.jobs.repetition import seeds_of, with_seeds
from sqlext.execution.jobs.run import prepare
from sqlext.execution.jobs.sink import TargetState
from sqlext.plan.job_graph import References
from sqlext.spark import sessions, settings
from sqlext.spark.to_its_end import read_to_its_end
from sqlext.spark.varying import with_moments_of

_PARTITIONS = "spark.sql.shuffle.partitions"  # changes what a stream's state is, and no row of a job


@dataclass(frozen=True)
class JobRequest:
    """A statement to run as a job; see `JobSpec`."""

    text: str
    head: str
    query: str
    target: tuple[str, ...]
    is_sorted: bool
    references: References
    functions: Mapping[str, str]


@dataclass(frozen=True)
class PlannedJob:
    """A job that can run.

    Attributes:
        spec: its definition.
        session: its own session.
        pieces: the fragments of its query, over the pinned inputs.
        columns: the query's columns.
    """

    spec: JobSpec
    session: SparkSession
    pieces: FragmentedPlan
    columns: tuple[StructField, ...]


def check_references(session: SparkSession, references: References) -> None:
    """Raise UnsupportedError if the query uses a temporary view or function, which ends with its session."""
    if bound := sessions.bound_to(session, references):
        raise UnsupportedError(
            f"A job that is to survive its driver cannot use {', '.join(bound)}: temporary views and functions end with this "
            "session. Create them in a catalog instead, or set execution.batch.job-recovery.enabled to false."
        )


def is_same(session: SparkSession, spec: JobSpec, request: JobRequest) -> bool:
    """Return whether a statement is the one of a job: its names and variables mean the same, too."""
    context = (session.catalog.currentCatalog(), session.catalog.currentDatabase())
    if (spec.text, spec.catalog, spec.database) != (request.text, *context):
        return False
    return dict(spec.variables) == sessions.variables_of(session, request.references)


def difference(session: SparkSession, spec: JobSpec, request: JobRequest) -> str | None:
    """Return what a job does instead of what a statement means in this session, as a phrase; None: they mean the same."""
    if not is_same(session, spec, request):
        return "another statement"
    now = settings.recorded(session)
    for key, value in sorted(settings.meaning_of(spec.settings)):
        if key != _PARTITIONS and now.get(key, value) != value:
            return f"the same statement with the setting {key} = {value}, which is {now[key]} here"
    return None


def planned(own: SparkSession, request: JobRequest, name: tuple[str, ...], found: TargetState) -> PlannedJob:
    """Plan a new job, and pin its inputs as they are now.

    Args:
        own: the job's own session.
        request: the statement.
        name: the qualified name of its target.
        found: the state of its target.
    """
    kept = settings.recorded(own)
    buckets = _buckets(own)
    prepare(own, buckets)
    now = int(time.time() * 1000)
    plan, columns = _analysed(own, request.query, now)
    seeds = seeds_of(own, plan)
    plan = with_seeds(own, plan, seeds)
    pins = pins_of(own, plan)
    pieces = cut(own, pinned(own, plan, pins), request.is_sorted)
    spec = JobSpec(
        id=f"j{uuid.uuid4().hex}",  # begins with a letter, so that SQL accepts it as a name
        text=request.text,
        head=request.head,
        query=request.query,
        target=name,
        target_version=found.version,
        target_location=found.location or "",
        target_id=found.table_id,
        is_sorted=request.is_sorted,
        buckets=buckets,
        pins=pins,
        fingerprint=pieces.fingerprint,
        functions=request.functions,
        catalog=own.catalog.currentCatalog(),
        database=own.catalog.currentDatabase(),
        settings=kept,
        variables=sessions.variables_of(own, request.references),
        time=now,
        seeds=seeds,
    )
    return PlannedJob(spec, own, pieces, columns)


def planned_again(spark: SparkSession, spec: JobSpec) -> PlannedJob:
    """Plan a job again as it was, in a session like its first.

    Raises:
        JobError: an input is gone or was changed, or Spark now plans the query differently.
    """
    own = sessions.restored_session(spark, spec)
    prepare(own, spec.buckets)
    plan, columns = _analysed(own, spec.query, spec.time)
    pieces = cut(own, pinned(own, with_seeds(own, plan, spec.seeds), spec.pins), spec.is_sorted)
    if pieces.fingerprint != spec.fingerprint:
        raise JobError(
            f"Job {spec.id} cannot be resumed: Spark now plans its query differently than when it was submitted. Run CANCEL JOB "
            f"{spec.id} and then the statement again."
        )
    return PlannedJob(spec, own, pieces, columns)


def _analysed(own: SparkSession, text: str, at: int) -> tuple[Any, tuple[StructField, ...]]:
    """Return Catalyst's plan of a query, in which streams end at their current rows, and its columns.

    Args:
        at: the current time, as `JobSpec.time`.
    """
    frame = own.sql(text)
    plan = read_to_its_end(own, frame._jdf.queryExecution().analyzed())
    return with_moments_of(own, plan, at) if at else plan, tuple(frame.schema.fields)


def _buckets(own: SparkSession) -> int:
    """Return the number of buckets: four per slot, enough to use every slot twice, but at most spark.sql.shuffle.partitions."""
    asked = int(own.conf.get(_PARTITIONS) or 1)
    return max(1, min(asked, 4 * int(own.sparkContext.defaultParallelism)))
