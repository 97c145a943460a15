"""Flows with prerequisites, bounded stages: what runs when, what is kept, and what a restart reads again."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

import sqlext
from tests.integration.workshop import DEADLINE, Workshop
from tests.support import eventually

END = "GLOBAL WINDOW END OF STREAM"
JOB = (
    "SELECT s.k, count(*) AS n, max(h.total) AS total FROM STREAM ev AS s LEFT JOIN (SELECT k, {} AS total FROM STREAM hist "
    f"GROUP BY k {END}) AS h ON s.k <=> h.k GROUP BY s.k"
)


FAILS = "bigint(raise_error(concat('sum ', sum(v))))"


def at_gate(value: Any, mark: str, gate: str) -> Any:
    """Leaves a mark, and waits until the gate is there."""
    Path(mark).touch()
    deadline = time.monotonic() + DEADLINE
    while not Path(gate).exists():
        assert time.monotonic() < deadline, "the gate was never opened"
        time.sleep(0.02)
    return value


@pytest.fixture
def tables(sql: Workshop) -> Workshop:
    sqlext.register_function("at_gate", at_gate, "BIGINT")
    for name in ("ev", "hist"):
        sql.source(name)
    return sql


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def gated(gate: Path) -> str:
    return f"at_gate(sum(v), '{gate}.reached', '{gate}')"


def reached(gate: Path) -> None:
    eventually(Path(f"{gate}.reached").exists, DEADLINE)


def described(sql: Workshop, flow: str, number: int = 1) -> str:
    """What DESCRIBE FLOW tells of a prerequisite."""
    rows = {row.property: row.value for row in sql(f"DESCRIBE FLOW {flow}")}
    return str(rows[f"stage __sqlext_stage_{number}"])


def first_commit(sql: Workshop, flow: str) -> dict[str, Any]:
    """The one commit of a prerequisite's table."""
    logs = list((sql.home(flow) / "stages" / "__sqlext_stage_1" / "_delta_log").glob("*.json"))
    assert [log.name for log in logs] == [f"{0:020d}.json"]
    actions = (json.loads(line) for line in logs[0].read_text().splitlines())
    return next(action["commitInfo"] for action in actions if "commitInfo" in action)


def test_a_stream_is_joined_with_an_aggregated_history(tables: Workshop) -> None:
    tables(f"CREATE STREAMING TABLE t AS {JOB.format('sum(v)')}")
    tables("WAIT FLOW t")
    assert tables.batch("SELECT * FROM t") == [("a", 1, 1), ("b", 1, 2), (None, 1, 3)]
    assert re.fullmatch(r"FINISHED, 3 rows, started \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, \d+\.\d s", described(tables, "t"))
    assert json.loads(first_commit(tables, "t")["userMetadata"])["sqlext"]["stage"] == "__sqlext_stage_1"


def test_the_stream_starts_when_the_prerequisite_has_finished(tables: Workshop, gate: Path) -> None:
    tables(f"CREATE STREAMING TABLE t AS {JOB.format(gated(gate))}")
    reached(gate)
    assert tables.shown("t").status == "BOUNDED STAGES"
    assert tables.flow("t").session.streams.active == []
    assert described(tables, "t").startswith("RUNNING, started ")
    with pytest.raises(Exception, match="has not caught up after 0 s"):
        tables("WAIT FLOW t TIMEOUT 10 milliseconds")
    gate.touch()
    tables("WAIT FLOW t")
    assert tables.shown("t").status == "RUNNING"
    assert len(tables.flow("t").session.streams.active) == 1
    assert tables.batch("SELECT * FROM t") == [("a", 1, 1), ("b", 1, 2), (None, 1, 3)]


def test_a_restart_reads_the_result_again_and_replace_computes_it(tables: Workshop) -> None:
    create = f"CREATE OR REPLACE STREAMING TABLE t AS {JOB.format('sum(v)')}"
    tables(create)
    tables("WAIT FLOW t")
    before = first_commit(tables, "t")
    for is_crash in (False, True):
        if is_crash:
            tables.crash()
            assert tables.resume() == ["t"]
        else:
            tables("STOP FLOW t")
            tables("START FLOW t")
        tables("INSERT INTO hist VALUES ('a', 100)")
        tables("INSERT INTO ev VALUES ('a', 7)")
        tables("WAIT FLOW t")
        assert first_commit(tables, "t") == before
    assert tables.batch("SELECT * FROM t WHERE k = 'a'") == [("a", 3, 1)]
    tables("STOP FLOW t")
    assert described(tables, "t").startswith("FINISHED, 3 rows")
    tables(create)
    tables("WAIT FLOW t")
    assert tables.batch("SELECT * FROM t WHERE k = 'a'") == [("a", 3, 201)]


def test_a_flow_is_stopped_in_its_prerequisite(tables: Workshop, gate: Path) -> None:
    tables(f"CREATE STREAMING TABLE t AS {JOB.format(gated(gate))}")
    reached(gate)
    tables("STOP FLOW t")
    assert tables.shown("t").status == "STOPPED"
    assert described(tables, "t").startswith("CANCELED")
    assert tables.flow("t").session.streams.active == []
    gate.touch()
    tables("START FLOW t")
    tables("WAIT FLOW t")
    assert tables.batch("SELECT * FROM t") == [("a", 1, 1), ("b", 1, 2), (None, 1, 3)]


def test_a_prerequisite_that_fails_fails_its_flow(tables: Workshop) -> None:
    tables(f"CREATE STREAMING TABLE t AS {JOB.format(FAILS)}")
    eventually(lambda: tables.shown("t").status == "FAILED", DEADLINE)
    assert re.fullmatch(r"The bounded stage __sqlext_stage_1 failed: sum [123]", tables.shown("t").error)
    assert described(tables, "t").startswith("FAILED")
    with pytest.raises(Exception, match="has failed"):
        tables("WAIT FLOW t")
    assert tables.flow("t").session.streams.active == []


def test_prerequisites_run_in_their_order_and_side_by_side(tables: Workshop, tmp_path: Path) -> None:
    """Prerequisites 1 and 3 wait for each other, so they must run at the same time; 2 reads 1."""
    one, two = tmp_path / "one", tmp_path / "two"
    tables(
        f"CREATE STREAMING TABLE t AS WITH a AS (SELECT at_gate(count(*), '{one}', '{two}') AS n FROM hist {END}), "
        f"b AS (SELECT max(n) + 10 AS m FROM a {END}), c AS (SELECT at_gate(count(*), '{two}', '{one}') AS l FROM ev {END}) "
        "SELECT k, n, m, l FROM STREAM ev CROSS JOIN a CROSS JOIN b CROSS JOIN c"
    )
    tables("WAIT FLOW t")
    assert tables.batch("SELECT * FROM t") == [("a", 3, 13, 3), ("b", 3, 13, 3), (None, 3, 13, 3)]
    found = tables.flow("t").status()[1].prerequisites
    assert [(each.name[-1], each.state.value, each.rows) for each in found] == [
        ("1", "FINISHED", 1),
        ("2", "FINISHED", 1),
        ("3", "FINISHED", 1),
    ]
    assert found[1].started is not None
    assert found[0].started is not None
    assert found[0].duration is not None
    assert found[1].started >= found[0].started + found[0].duration


def test_the_query_above_an_aggregate_reads_a_prerequisite(tables: Workshop) -> None:
    tables(
        "CREATE STREAMING TABLE t AS SELECT a.k, n, m FROM (SELECT k, count(*) AS n FROM STREAM ev GROUP BY k) AS a "
        f"JOIN (SELECT k, max(v) AS m FROM hist GROUP BY k {END}) AS h ON a.k = h.k"
    )
    tables("WAIT FLOW t")
    assert tables.batch("SELECT * FROM t") == [("a", 1, 1), ("b", 1, 2)]


def test_what_is_wrong_with_a_prerequisite_is_told_before_anything_exists(tables: Workshop) -> None:
    for query, message in (
        (f"SELECT s.k FROM STREAM ev s JOIN (SELECT k, kk FROM hist GROUP BY k {END}) h USING (k)", "`kk`"),
        (f"SELECT s.k FROM STREAM ev s JOIN (SELECT k, sum(v) FROM hist GROUP BY k {END}) h USING (k)", "Give it another"),
        (f"SELECT s.k FROM STREAM ev s JOIN (SELECT k FROM nowhere GROUP BY k {END}) h USING (k)", "nowhere"),
    ):
        with pytest.raises(Exception, match=message):
            tables(f"CREATE STREAMING TABLE t AS {query}")
        assert tables("SHOW FLOWS") == []
        assert not tables.spark.catalog.tableExists("t")


def test_explain_tells_what_comes_first(tables: Workshop) -> None:
    text = tables(f"EXPLAIN CREATE STREAMING TABLE t AS {JOB.format('sum(v)')}")[0].plan
    stages = re.search(r"== Stages ==\n([\s\S]*?)\n\n", text)
    assert stages is not None
    assert stages.group(1) == "1: Source, Aggregate (blocking)\n2: Source, Project, Join, Aggregate (pipelined)"
