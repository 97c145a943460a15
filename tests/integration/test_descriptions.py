"""Spark's UI says of each job which flow or job of sqlext's it is for, and what it does there."""

from __future__ import annotations

from typing import Any

from sqlext.spark.java import items_of
from tests.integration.workshop import BUFFERED, COUNTS, DEADLINE, Workshop
from tests.support import eventually


def described(sql: Workshop) -> list[tuple[str, str]]:
    """Group and description of the newest Spark jobs."""
    context = sql.spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = items_of(context.statusStore().jobsList(None))
    return [(_text(job.jobGroup()), _text(job.description())) for job in jobs]


def _text(option: Any) -> str:
    return str(option.get()) if option.isDefined() else ""


def test_flush_and_micro_batch_are_named(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql.take_in("t")
    flow, name = sql.flow("t").spec.id, sql.flow("t").spec.name
    streaming = [text for _, text in described(sql) if f"sqlext-{name}-{flow}" in text]
    assert any("batch = 0" in text for text in streaming)
    sql("FLUSH FLOW t")
    assert (flow, "flow t: flush of micro-batches 0 to 0 (command)") in described(sql)


def test_prerequisite_and_job_are_named(sql: Workshop) -> None:
    sql.source()
    averages = "SELECT k, avg(v) AS a FROM STREAM ev GROUP BY k GLOBAL WINDOW END OF STREAM"
    sql(f"CREATE STREAMING TABLE u AS SELECT e.k, h.a FROM STREAM ev AS e JOIN ({averages}) AS h ON e.k = h.k")
    name = sql.flow("u").spec.prerequisites[0].name
    eventually(lambda: _has(sql, f"flow u: bounded stage {name}"), DEADLINE)
    sql("DROP FLOW u")
    job = sql(f"CREATE TABLE done USING delta AS {averages}")[0][0].split()[1]
    assert _has(sql, f"sqlext job {job} into done")


def _has(sql: Workshop, text: str) -> bool:
    """Delta says behind a description what it does itself."""
    return any(each.startswith(text) for _, each in described(sql))
