"""Statements about different tables do not wait for one another; those about one table take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from sqlext.execution.flows.alteration import Alteration
from sqlext.execution.flows.flow import Flow
from tests.integration.workshop import COUNTS, DEADLINE, Workshop

pytestmark = pytest.mark.usefixtures("lean")

MADE = "CREATE STREAMING TABLE {} AS {}"


@dataclass
class Gate:
    """Where a flow hangs until it is opened."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def hang(self) -> None:
        self.reached.set()
        assert self.opened.wait(DEADLINE)


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.opened.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found


def in_time(futures: list[Future[Any]]) -> list[Any]:
    return [future.result(DEADLINE) for future in futures]


def test_a_start_that_hangs_holds_up_no_other_flow(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    start = Flow.start

    def hang(flow: Flow) -> None:
        if flow.spec.target[-1] == "slow":
            gate.hang()
        start(flow)

    monkeypatch.setattr(Flow, "start", hang)
    sql.source()
    slow = pool.submit(sql, MADE.format("slow", COUNTS.format("STREAM ev")))
    assert gate.reached.wait(DEADLINE)

    def others() -> None:
        sql(MADE.format("t", COUNTS.format("STREAM ev")))
        sql("INSERT INTO ev VALUES ('c', 4)")
        sql("WAIT FLOW t")
        sql("ALTER FLOW t SET ('execution.flush.max-interval' = '2 seconds')")
        sql("STOP FLOW t")
        sql("START FLOW t")
        sql("CREATE OR REPLACE STREAMING TABLE t AS " + COUNTS.format("STREAM ev"))
        sql("SAVEPOINT FLOW t AS one")
        assert {row.name for row in sql("SHOW FLOWS")} == {"slow", "t"}
        sql("DROP FLOW t")

    pool.submit(others).result(DEADLINE)
    assert not slow.done()
    gate.opened.set()
    slow.result(DEADLINE)
    sql("WAIT FLOW slow")
    assert sql.equals_batch("slow")


def test_a_change_that_reads_its_history_holds_up_no_other_flow(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    run = Alteration.run

    def hang(change: Alteration, *given: Any) -> Any:
        gate.hang()
        return run(change, *given)

    monkeypatch.setattr(Alteration, "run", hang)
    sql.source()
    for name in ("slow", "t"):
        sql(MADE.format(name, "SELECT k, count(*) AS n FROM STREAM ev GROUP BY k"))
    altered = pool.submit(sql, "ALTER FLOW slow AS SELECT k, count(*) AS n, max(v) AS most FROM STREAM ev GROUP BY k")
    assert gate.reached.wait(DEADLINE)
    in_time([pool.submit(sql, "STOP FLOW t")])
    in_time([pool.submit(sql, "START FLOW t")])
    waits = pool.submit(sql, "STOP FLOW slow")
    assert not altered.done()
    gate.opened.set()
    in_time([altered, waits])
    assert {row.name: row.status for row in sql("SHOW FLOWS")} == {"slow": "STOPPED", "t": "RUNNING"}
    assert sql.batch("SELECT k, n, most FROM slow") == sql.batch("SELECT k, count(*), max(v) FROM ev GROUP BY k")


def test_statements_about_one_table_take_turns(sql: Workshop, pool: ThreadPoolExecutor) -> None:
    sql.source()
    statement = MADE.format("t", COUNTS.format("STREAM ev"))
    made = [pool.submit(sql, statement) for _ in range(3)]
    failures = [future.exception(DEADLINE) for future in made]
    said = [str(error) for error in failures if error is not None]
    assert len(said) == 2
    assert all("There is a flow `t` already" in each for each in said), said
    in_time([pool.submit(sql, statement.replace("CREATE", "CREATE OR REPLACE")) for _ in range(3)])
    (flow,) = sql("SHOW FLOWS")
    assert flow.status == "RUNNING"
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_flows_are_made_side_by_side(sql: Workshop, pool: ThreadPoolExecutor) -> None:
    sql.source()
    names = [f"t{number}" for number in range(6)]
    in_time([pool.submit(sql, MADE.format(name, COUNTS.format("STREAM ev"))) for name in names])
    sql("INSERT INTO ev VALUES ('c', 4)")
    for name in names:
        sql(f"WAIT FLOW {name}")
        assert sql.equals_batch(name)
    assert {row.name for row in sql("SHOW FLOWS")} == {*names}
    in_time([pool.submit(sql, f"DROP FLOW {name}") for name in names])
    assert sql("SHOW FLOWS") == []
