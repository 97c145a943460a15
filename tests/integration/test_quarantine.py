"""What becomes of quarantined rows when processes die, statements come again, constraints change, and flows are made anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.errors import FlowError
from sqlext.execution.delta import quarantine
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.registry import FlowRecord
from sqlext.plan.flow_spec import FlowSpec
from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

CHECKED = "CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad) AS SELECT * FROM STREAM ev"
ALL = sorted([("a", 5), ("b", 2), (None, 3)], key=repr)
"""All rows of `ev`, after the one that is quarantined was corrected."""


@pytest.fixture(autouse=True)
def ev(sql: Workshop) -> None:
    sql.source()


def rows(sql: Workshop, table: str) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in sql(f"SELECT k, v FROM {table}")), key=repr)


@contextmanager
def dying_at(moment: Moment) -> Iterator[None]:
    def crash(at: Moment, _: str) -> None:
        if at is moment:
            raise RuntimeError("the driver dies here")

    with listened(crash):
        yield


def replayed_halfway(sql: Workshop) -> None:
    """Correct the row in quarantine, and let the driver die between the two commits of its replay."""
    sql("UPDATE bad SET v = 5")
    with dying_at(Moment.REPLAY_BEGUN), pytest.raises(PySparkException, match="dies here"):
        sql("REPLAY QUARANTINE bad")
    assert (rows(sql, "bad"), len(rows(sql, "t"))) == ([], 2)


@pytest.mark.parametrize("then", ["REPLAY QUARANTINE bad", "STOP FLOW t; START FLOW t", "SAVEPOINT FLOW t AS s"])
def test_a_replay_that_was_not_finished_is_finished_by_what_comes_next(sql: Workshop, then: str) -> None:
    sql(CHECKED)
    sql("WAIT FLOW t")
    replayed_halfway(sql)
    for statement in then.split("; "):
        sql(statement)
    assert rows(sql, "t") == ALL
    sql("REPLAY QUARANTINE bad")
    assert rows(sql, "t") == ALL


def test_a_replay_that_was_not_finished_is_not_finished_into_a_table_that_was_set_back(sql: Workshop) -> None:
    sql(CHECKED)
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS s")
    replayed_halfway(sql)
    sql("RESTORE FLOW t TO s")
    sql("WAIT FLOW t")
    assert rows(sql, "bad") == [("a", 1)]
    sql("UPDATE bad SET v = 5")
    sql("REPLAY QUARANTINE bad")
    assert rows(sql, "t") == ALL


def test_rows_whose_constraint_is_gone_stay_their_flows(sql: Workshop) -> None:
    """They go back with a savepoint, and a full refresh reads them anew."""
    sql(CHECKED)
    sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t DROP CONSTRAINT c")
    sql("SAVEPOINT FLOW t AS s")
    sql("REPLAY QUARANTINE bad")
    sql("RESTORE FLOW t TO s")
    sql("WAIT FLOW t")
    assert rows(sql, "bad") == [("a", 1)]
    assert len(rows(sql, "t")) == 2
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    sql("REPLAY QUARANTINE bad")
    assert rows(sql, "t") == rows(sql, "ev")
    assert rows(sql, "bad") == []


def test_a_quarantine_that_is_newer_than_the_savepoint_is_emptied(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE t AS SELECT * FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS s")
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT c EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad")
    sql("INSERT INTO ev VALUES ('x', 0)")
    sql("WAIT FLOW t")
    assert rows(sql, "bad") == [("x", 0)]
    sql("RESTORE FLOW t TO s")
    sql("WAIT FLOW t")
    assert rows(sql, "bad") == []
    assert rows(sql, "t") == rows(sql, "ev")


def test_rows_of_an_earlier_flow_of_the_same_name_stay(sql: Workshop) -> None:
    sql(CHECKED)
    sql("WAIT FLOW t")
    sql("DROP STREAMING TABLE t")
    sql(CHECKED)
    sql("WAIT FLOW t")
    assert rows(sql, "bad") == [("a", 1), ("a", 1)], "of which the first has lost its flow"
    sql("UPDATE bad SET v = 5")
    said = sql("REPLAY QUARANTINE bad")[0][0]
    assert "1 rows replayed" in said
    assert "1 rows stay: the flow spark_catalog.default.t that has quarantined them is no more" in said
    assert rows(sql, "t") == ALL


def test_what_a_flow_that_is_undone_has_quarantined_is_deleted(sql: Workshop) -> None:
    sql(CHECKED)
    sql("WAIT FLOW t")
    sql("INSERT INTO bad SELECT k, v, _constraints, _input, _flow, 'undone', 0, _quarantined_at FROM bad")
    quarantine.undo(sql.spark, ("spark_catalog", "default", "bad"), "undone")
    assert rows(sql, "bad") == [("a", 1)]


def test_what_could_not_be_computed_stays_until_it_was_corrected(sql: Workshop) -> None:
    sql("CREATE TABLE raw (k INT, v STRING) USING delta")
    sql("INSERT INTO raw VALUES (7, 'x'), (8, '8')")
    readable = "CONSTRAINT readable EXPECT (NO ERROR) ON VIOLATION QUARANTINE INTO unreadable"
    sql(f"CREATE STREAMING TABLE parsed ({readable}) AS SELECT k, CAST(v AS INT) AS v FROM STREAM raw")
    sql("WAIT FLOW parsed")
    sql("ALTER STREAMING TABLE parsed DROP CONSTRAINT readable")
    assert sql("REPLAY QUARANTINE unreadable")[0][0].startswith("0 rows replayed")
    assert rows(sql, "parsed") == [(8, 8)]
    sql("UPDATE unreadable SET v = 7, _input = NULL")
    sql("REPLAY QUARANTINE unreadable")
    assert rows(sql, "parsed") == [(7, 7), (8, 8)]


def test_the_condition_of_a_replay_is_meant_as_in_the_session_of_the_statement(sql: Workshop) -> None:
    sql("SET TIME ZONE 'America/Los_Angeles'")
    sql(CHECKED)
    sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t DROP CONSTRAINT c")
    sql("SET TIME ZONE 'UTC'")
    sql("UPDATE bad SET _quarantined_at = TIMESTAMP '2026-11-01 02:00:00'")  # where the flow was made, it is October
    sql("REPLAY QUARANTINE bad WHERE _quarantined_at >= '2026-11-01'")
    assert rows(sql, "t") == rows(sql, "ev")


def test_a_backfill_brings_each_row_into_one_of_its_tables_whatever_becomes_of_its_source(sql: Workshop) -> None:
    sql("CREATE TABLE archive (k STRING, v INT) USING delta")
    sql("INSERT INTO archive VALUES ('x', 1), ('y', 20)")
    sql("INSERT INTO ev VALUES ('z', 9)")
    sql(CHECKED)
    sql("WAIT FLOW t")
    before = rows(sql, "t")
    with dying_at(Moment.ROWS_QUARANTINED):
        sql("CREATE FLOW history AS INSERT INTO ONCE t SELECT k, v FROM archive")
        assert sql.eventually(lambda: sql.shown("history").status in ("FAILED", "RETRYING"))
    assert rows(sql, "t") == before
    sql.crash()
    sql("UPDATE archive SET v = 100 WHERE k = 'x'")  # what was read is what counts
    sql("INSERT INTO archive VALUES ('new', 0), ('new', 50)")
    sql.resume()
    sql("START FLOW history")
    sql("WAIT FLOW history")
    assert rows(sql, "t") == sorted([*before, ("y", 20)], key=repr)
    assert rows(sql, "bad") == [("a", 1), ("x", 1)]
    assert not [*sql.home("history").glob("buffer/*")]


def test_a_table_without_a_query_gets_and_loses_constraints(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE t (k STRING, v INT)")
    sql("CREATE FLOW f AS INSERT INTO t BY NAME SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW f")
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT small EXPECT (v < 100) ON VIOLATION DROP ROW")
    sql("INSERT INTO ev VALUES ('x', 100), ('y', 99)")
    sql("WAIT FLOW f")
    assert rows(sql, "t") == sorted([("a", 1), ("b", 2), (None, 3), ("y", 99)], key=repr)
    sql("ALTER STREAMING TABLE t DROP CONSTRAINT small")
    sql("INSERT INTO ev VALUES ('x', 100)")
    sql("WAIT FLOW f")
    assert ("x", 100) in rows(sql, "t")
    sql("ALTER TABLE t ADD COLUMN more INT")
    with pytest.raises(PySparkException, match=r"The constraint `d` cannot be checked.*`more`"):
        sql("ALTER STREAMING TABLE t ADD CONSTRAINT d EXPECT (more > 0)")
    assert sql.shown("f").status == "RUNNING"


@pytest.fixture
def two(sql: Workshop) -> None:
    """Two flows into a table without a query."""
    sql("CREATE STREAMING TABLE t (k STRING, v INT)")
    for name in ("f", "g"):
        sql(f"CREATE FLOW {name} AS INSERT INTO t BY NAME SELECT k, v FROM STREAM ev")


def constraints(sql: Workshop) -> list[list[str]]:
    """The constraints of the flows, by flow."""
    return [[each.name for each in record.spec.constraints] for record in sql.host.flows.records().values()]


@pytest.mark.usefixtures("two")
def test_a_constraint_that_came_to_one_of_two_flows_is_added_and_dropped_whole(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter_record, altered = FlowManager.alter_record, list[str]()

    def dies_at_the_second(self: FlowManager, record: FlowRecord, spec: FlowSpec, *more: Any) -> None:
        if altered:
            raise FlowError("the driver dies here")
        altered.append(spec.name)
        alter_record(self, record, spec, *more)

    for verb, expected in (
        ("ADD CONSTRAINT small EXPECT (v < 100) ON VIOLATION DROP ROW", ["small"]),
        ("DROP CONSTRAINT small", []),
    ):
        altered.clear()
        with monkeypatch.context() as patched:
            patched.setattr(FlowManager, "alter_record", dies_at_the_second)
            with pytest.raises(PySparkException, match="dies here"):
                sql(f"ALTER STREAMING TABLE t {verb}")
        assert sorted(constraints(sql)) == [[], ["small"]]
        sql(f"ALTER STREAMING TABLE t {verb}")
        assert constraints(sql) == [expected, expected]
        assert ("sqlext.expect.small" in {row.key for row in sql("SHOW TBLPROPERTIES t")}) == bool(expected)


def test_a_quarantine_is_in_the_schema_of_the_statement_that_names_it(sql: Workshop) -> None:
    sql("CREATE DATABASE other")
    try:
        sql("CREATE STREAMING TABLE t (k STRING, v INT, CONSTRAINT p EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad)")
        sql("USE other")
        sql("CREATE FLOW default.f AS INSERT INTO default.t BY NAME SELECT k, v FROM STREAM default.ev")
        sql("WAIT FLOW default.f")
        assert rows(sql, "default.bad") == [("a", 1)]
        assert not sql("SHOW TABLES IN other")
    finally:
        sql("USE default")
        sql("DROP FLOW IF EXISTS f")
        sql("DROP DATABASE other CASCADE")


def test_rows_that_change_when_they_are_computed_again_come_into_one_table(sql: Workshop) -> None:
    sql("INSERT INTO ev SELECT CAST(id AS STRING), CAST(id AS INT) FROM range(200)")
    value = "CAST(java_method('java.lang.Math', 'random') AS DOUBLE)"
    sql(
        "CREATE STREAMING TABLE t (CONSTRAINT half EXPECT (r < 0.5) ON VIOLATION QUARANTINE INTO bad) "
        f"AS SELECT k, v, {value} AS r FROM STREAM ev"
    )
    sql("WAIT FLOW t")
    assert sorted([*rows(sql, "t"), *rows(sql, "bad")], key=repr) == rows(sql, "ev")
    assert 0 < len(rows(sql, "bad")) < 203
