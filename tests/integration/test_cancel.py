"""A statement that is canceled ends soon, with what it started; flows and the session go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sqlext.app import statement_run
from sqlext.app.interrupts import Interrupts
from sqlext.app.local_session import LocalSession
from sqlext.app.statement_run import StatementRunner
from sqlext.execution.jobs import parts
from sqlext.execution.jobs.run import JobRun
from tests.integration.workshop import Workshop
from tests.support import eventually

SLEEPS = "java_method('java.lang.Thread', 'sleep', 600000L)"
SLOW = f"(SELECT k, {SLEEPS} AS m FROM ev)"
ENDS_WITHIN = 30.0


@pytest.fixture
def interrupts() -> Interrupts:
    return Interrupts()


@pytest.fixture
def runner(spark: SparkSession, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> StatementRunner:
    monkeypatch.setattr(statement_run, "_CANCELLED_WITHIN", 180.0)  # a busy machine takes its time
    return StatementRunner(LocalSession(spark), interrupts)


@pytest.fixture
def canceled(runner: StatementRunner, interrupts: Interrupts) -> Iterator[Callable[..., str]]:
    """Runs a statement, cancels it once a condition holds, and gives what the user is told."""

    def cancel(text: str, when: Callable[[], bool]) -> str:
        asked = 0.0

        def watch(is_over: Callable[[], bool]) -> None:
            nonlocal asked
            eventually(lambda: when() or is_over(), ENDS_WITHIN)
            asked = time.monotonic()
            interrupts.asked.set()

        with pytest.raises(KeyboardInterrupt) as raised:
            runner.run(text, watch)
        assert time.monotonic() - asked < ENDS_WITHIN
        interrupts.asked.clear()
        return str(raised.value)

    yield cancel
    assert runner.run("SELECT 1 + 1 AS two", lambda _: None).rows == [("2",)]


def test_a_query_ends_in_mid_task(runner: StatementRunner, canceled: Callable[..., str]) -> None:
    told = canceled(f"SELECT {SLEEPS} FROM range(2)", lambda: runner.tasks().all > 0)
    assert told == "The statement was canceled."


def test_a_wait_ends_and_the_flow_goes_on(sql: Workshop, runner: StatementRunner, canceled: Callable[..., str]) -> None:
    sql.source()
    slow = f"CREATE STREAMING TABLE t AS SELECT k, v, {SLEEPS} AS nothing FROM STREAM ev"
    assert "flow t" in str(runner.run(slow, lambda _: None).rows)
    told = canceled("WAIT FLOW t", lambda: True)
    assert told == "The statement was canceled."
    told = canceled(f"SELECT {SLEEPS} FROM range(2)", lambda: runner.tasks().all > 0)
    assert told == "The statement was canceled."
    assert sql.shown("t").status == "RUNNING"


def test_a_job_that_survives_its_driver_can_be_gone_on_with(
    sql: Workshop, runner: StatementRunner, canceled: Callable[..., str]
) -> None:
    sql.source()
    sql("SET execution.batch.job-recovery.enabled = true")
    told = canceled(
        f"CREATE TABLE made USING delta AS SELECT k, max(m) AS m FROM {SLOW} GROUP BY k GLOBAL WINDOW END OF STREAM",
        lambda: any(progress.graph for _, progress in sql.host.jobs.running()),
    )
    (job,) = sql("SHOW JOBS")
    assert told == (f"The statement was canceled. RESUME JOB {job.id} resumes its job, CANCEL JOB {job.id} discards it.")
    assert job.status == "FAILED"
    assert not sql.spark.catalog.tableExists("made")
    sql(f"CANCEL JOB {job.id}")


def test_a_part_that_is_planned_while_its_job_is_canceled_ends_too(
    sql: Workshop, canceled: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    was_planning, was_canceled, plan, cancel = threading.Event(), threading.Event(), parts.rows_of_part, JobRun.cancel

    def plan_slowly(*given: Any) -> DataFrame:
        was_planning.set()
        was_canceled.wait(ENDS_WITHIN)
        return plan(*given)

    def cancel_and_say_so(run: JobRun) -> None:
        cancel(run)
        was_canceled.set()

    monkeypatch.setattr(parts, "rows_of_part", plan_slowly)
    monkeypatch.setattr(JobRun, "cancel", cancel_and_say_so)
    sql.source()
    sql("SET execution.batch.job-recovery.enabled = true")
    aggregate = f"SELECT k, max(m) AS m FROM {SLOW} GROUP BY k GLOBAL WINDOW END OF STREAM"
    told = canceled(f"CREATE TABLE made USING delta AS {aggregate}", was_planning.is_set)
    assert told.startswith("The statement was canceled. RESUME JOB")
    (job,) = sql("SHOW JOBS")
    sql(f"CANCEL JOB {job.id}")


def test_a_job_in_one_piece_writes_nothing(sql: Workshop, runner: StatementRunner, canceled: Callable[..., str]) -> None:
    sql.source()
    sql("CREATE TABLE sums (k STRING, nothing STRING) USING delta")
    told = canceled(
        f"INSERT INTO sums SELECT k, max(m) FROM {SLOW} GROUP BY k GLOBAL WINDOW END OF STREAM",
        lambda: runner.tasks().all > 0,
    )
    assert told == "The statement was canceled."
    assert sql("SELECT * FROM sums") == []
