"""What becomes of flows whose trouble may pass, whose trouble stays, and whose flushes take long."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import sqlext
from sqlext.errors import SchemaError
from sqlext.execution.flows import flow as flow_module
from sqlext.execution.flows import source_changes, work
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.flush import FlushReason
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.plan.flow_spec import FlowSpec
from sqlext.testing import HandClock
from tests.integration.workshop import BUFFERED, COUNTS, DEADLINE, Workshop
from tests.support import eventually

NAME = ("spark_catalog", "default", "t")


def by_hand(sql: Workshop) -> HandClock:
    """Let the test say when the next try is due."""
    clock = HandClock()
    sql.host.flows._retries._clock = clock
    return clock


def status(sql: Workshop, name: str = "t") -> str:
    return str(sql.shown(name).status)


# Trouble that may pass.


def test_a_start_that_may_succeed_later_is_tried_again(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first two tries the source is not there."""
    sql.source()
    sql("CREATE TABLE hidden (k STRING, v INT) USING delta")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.crash()
    sql("ALTER TABLE ev RENAME TO elsewhere")
    clock = by_hand(sql)
    assert sql.resume() == []
    shown = sql.shown("t")
    assert shown.status == "RETRYING"
    assert "`ev` cannot be found" in shown.error
    assert shown.next_try is not None
    with pytest.raises(PySparkException, match=r"Flow `t` does not run: it is retrying .* It is tried again at \d\d:\d\d:\d\d"):
        sql("WAIT FLOW t")

    clock.advance(5)
    eventually(lambda: (retry := sql.host.flows._retries.planned().get(shown.id)) and retry.attempt == 2, DEADLINE)
    assert status(sql) == "RETRYING"
    sql("ALTER TABLE elsewhere RENAME TO ev")
    clock.advance(10)
    eventually(lambda: status(sql) == "RUNNING", DEADLINE, lambda: str(sql.shown("t")))
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    assert sql.shown("t").next_try is None


def test_a_running_flow_comes_back_by_itself_and_the_next_process_tries_too(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    clock = by_hand(sql)

    def no_storage(*_: Any) -> None:
        raise ConnectionResetError("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "_merge", no_storage)
        sql("INSERT INTO ev VALUES ('a', 10)")
        with pytest.raises(PySparkException, match="the storage does not answer"):
            sql("WAIT FLOW t")
        eventually(lambda: status(sql) == "RETRYING", DEADLINE, lambda: str(sql.shown("t")))
    clock.advance(5)
    eventually(lambda: status(sql) == "RUNNING", DEADLINE, lambda: str(sql.shown("t")))
    sql("WAIT FLOW t")
    assert sql.equals_batch()

    with monkeypatch.context() as patch:
        patch.setattr(Flow, "_start_queries", no_storage)
        sql("STOP FLOW t")
        with pytest.raises(PySparkException, match="the storage does not answer"):
            sql("START FLOW t")
    assert status(sql) == "RETRYING"
    sql.crash()
    assert sql.resume() == ["t"]
    sql("INSERT INTO ev VALUES ('b', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_a_start_that_fails_while_it_takes_in_new_columns_has_failed(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t TBLPROPERTIES ('schema-evolution' = 'add columns') AS SELECT * FROM STREAM ev")
    sql("WAIT FLOW t")
    clock = by_hand(sql)
    sql("STOP FLOW t")
    sql("ALTER TABLE ev RENAME TO elsewhere")
    with pytest.raises(PySparkException, match="`ev` cannot be found"):
        sql("START FLOW t")
    assert status(sql) == sql.host.flows.view(NAME).record.state == "RETRYING"
    sql("ALTER TABLE elsewhere RENAME TO ev")
    clock.advance(5)
    eventually(lambda: status(sql) == "RUNNING", DEADLINE, lambda: str(sql.shown("t")))

    def refuse(*_: Any) -> None:
        raise SchemaError("A column has no name.")

    sql("STOP FLOW t")
    with monkeypatch.context() as patch:
        patch.setattr(source_changes, "evolved", refuse)
        with pytest.raises(PySparkException, match=r"A column has no name\."):
            sql("START FLOW t")
    assert (status(sql), sql.shown("t").error) == ("FAILED", "A column has no name.")
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT * FROM ev")


def test_stop_ends_the_tries(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    by_hand(sql)
    with monkeypatch.context() as patch:
        patch.setattr(Flow, "_start_queries", lambda _: (_ for _ in ()).throw(OSError("no route to host")))
        with pytest.raises(PySparkException, match="no route to host"):
            sql("START FLOW t")
    assert status(sql) == "RETRYING"
    sql("STOP FLOW t")
    assert (status(sql), sql.shown("t").next_try) == ("STOPPED", None)
    assert sql.host.flows._retries.planned() == {}
    sql.crash()
    assert sql.resume() == []


def test_trouble_that_stays_fails_at_once(sql: Workshop) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k, 10 DIV v AS share FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 0)")
    eventually(lambda: status(sql) == "FAILED", DEADLINE, lambda: str(sql.shown("t")))
    assert "Division by zero" in sql.shown("t").error
    assert sql.shown("t").error.endswith("The expression is: 10 DIV v")
    assert sql.host.flows._retries.planned() == {}


def test_start_and_refresh_try_at_once_what_waits_for_its_next_try(sql: Workshop) -> None:
    """Its resume has failed, so this process has no such flow yet, but is the one to try it."""
    sql.source()
    create = f"CREATE OR REFRESH STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}"
    sql(create)
    sql("WAIT FLOW t")
    for statement in ("START FLOW t", "REFRESH STREAMING TABLE t"):
        sql.crash()
        sql("ALTER TABLE ev RENAME TO elsewhere")
        by_hand(sql)
        assert sql.resume() == []
        assert status(sql) == "RETRYING"
        with pytest.raises(PySparkException, match="`ev` cannot be found"):
            sql(statement)
        sql("ALTER TABLE elsewhere RENAME TO ev")
        sql(statement)
        assert status(sql) == "RUNNING"
        assert sql.host.flows._retries.planned() == {}
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_a_bug_in_one_flow_does_not_stop_the_others(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    for name in ("s", "t", "u"):
        sql(f"CREATE STREAMING TABLE {name} AS SELECT k, v FROM STREAM ev")
    sql.crash()
    run, bugs = FlowManager.run, {"s": KeyError("_groupingmapsort"), "t": AssertionError("never"), "u": OSError("no route")}

    def run_or_fail(flows: FlowManager, spec: FlowSpec, *arguments: Any) -> None:
        if spec.name in bugs:
            raise bugs[spec.name]
        run(flows, spec, *arguments)

    monkeypatch.setattr(FlowManager, "run", run_or_fail)
    clock = by_hand(sql)
    assert sql.resume() == []
    shown = {row.name: (row.status, row.error) for row in sql("SHOW FLOWS")}
    assert shown == {
        "s": ("FAILED", "KeyError: '_groupingmapsort'"),
        "t": ("FAILED", "AssertionError: never"),
        "u": ("RETRYING", "no route"),
    }
    bugs["u"] = KeyError("a bug at the next try")
    clock.advance(5)
    eventually(lambda: status(sql, "u") == "FAILED", DEADLINE, lambda: str(sql.shown("u")))
    bugs.clear()
    for name in shown:
        sql(f"START FLOW {name}")
        sql(f"WAIT FLOW {name}")
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch("SELECT * FROM ev")


# Flushes that take long.


def work_gate(mark: str, gate: str) -> int:
    """Leaves a mark, and waits until the gate is there."""
    Path(mark).touch()
    deadline = time.monotonic() + DEADLINE
    while not Path(gate).exists():
        assert time.monotonic() < deadline, "the gate was never opened"
        time.sleep(0.02)
    return 0


@pytest.fixture
def gate(sql: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A flow `t`, each of whose flushes runs a job that does not end before the gate is there."""
    sqlext.register_function("work_gate", work_gate, "INT")
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    found, merge = tmp_path / "gate", TableWriter._merge

    def merge_behind_the_gate(writer: TableWriter, *arguments: Any) -> None:
        with writer._described("a flush behind a gate"):
            writer.session.sql(f"SELECT work_gate('{found}.reached', '{found}')").collect()
        merge(writer, *arguments)

    monkeypatch.setattr(TableWriter, "_merge", merge_behind_the_gate)
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql.take_in("t")
    return found


def test_a_flush_is_waited_for_while_its_tasks_run(sql: Workshop, gate: Path) -> None:
    clock = HandClock()
    flow = sql.flow("t")
    flow.work._clock = clock
    ended: list[object] = []
    waiting = threading.Thread(target=lambda: ended.append(sql("FLUSH FLOW t")), name="test-flush")
    waiting.start()
    eventually(Path(f"{gate}.reached").exists, DEADLINE)
    for _ in range(3):
        eventually(lambda: flow.work.look()[1] == 1, DEADLINE)  # Spark's listeners count the task some time after it runs
        clock.advance(work.STALLED_AFTER)
        waiting.join(1)
        assert waiting.is_alive()
    gate.touch()
    waiting.join(DEADLINE)
    assert len(ended) == 1
    assert sql.equals_batch()


def test_stop_interrupts_a_flush_that_takes_too_long(sql: Workshop, gate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "STOP_PATIENCE", 0.2)
    sql.flow("t")._flusher.ask(FlushReason.COMMAND)
    eventually(Path(f"{gate}.reached").exists, DEADLINE)
    (said,) = sql("STOP FLOW t")
    assert said[0] == "flow t stopped; its last flush was interrupted, and what it held comes with the next start"
    assert status(sql) == "STOPPED"
    assert not sql.equals_batch()
    gate.touch()
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_a_second_stop_interrupts_a_start(sql: Workshop, gate: Path) -> None:
    """What an earlier process left behind is flushed first, and that may take long."""
    sql.crash()
    starting = threading.Thread(target=sql.host.flows.resume, name="test-start")
    starting.start()
    eventually(Path(f"{gate}.reached").exists, DEADLINE)
    sql("STOP FLOW t")
    starting.join(DEADLINE)
    assert not starting.is_alive()
    assert status(sql) == "STOPPED"
    gate.touch()
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
