"""Sources that get columns, comments and wider types, or whose rows are changed: what their flows do."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, COUNTS, DEADLINE, Workshop
from tests.support import eventually


def goes_on(sql: Workshop, name: str, source: str = "ev") -> None:
    """A flow takes in what comes after a change of its source, by itself."""
    eventually(lambda: has_caught_up(sql, name, source), DEADLINE, lambda: str(sql.shown(name)))


def has_caught_up(sql: Workshop, name: str, source: str) -> bool:
    try:
        sql(f"WAIT FLOW {name}")
    except PySparkException:
        return False  # it is being started again
    return sql.equals_batch(name, source)


def failure(sql: Workshop, name: str) -> str:
    """Why a flow has failed for good: one whose source has other columns fails first, and is then started again."""

    def for_good() -> Any:
        row = sql.shown(name)
        return row.status == "FAILED" and not row.error.startswith("Detected schema change") and row

    return str(eventually(for_good, DEADLINE, lambda: str(sql.shown(name))).error)


@pytest.mark.parametrize("backend", ["delta", "rocksdb"])
def test_a_flow_goes_on_over_what_its_query_does_not_use(sql: Workshop, backend: str) -> None:
    sql(f"SET `spark.sqlext.state.backend.type` = {backend}")
    sql.source()
    sql("ALTER TABLE ev SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    sql("ALTER TABLE ev ADD COLUMNS (other INT)")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    flow = sql.shown("t").id
    changes = ["ADD COLUMNS (more STRING)", "ALTER COLUMN other TYPE BIGINT", "ALTER COLUMN v COMMENT 'how much'"]
    for number, change in enumerate(changes):
        sql(f"ALTER TABLE ev {change}")
        sql(f"INSERT INTO ev (k, v) VALUES ('a', {number}), ('new{number}', 1)")
        goes_on(sql, "t")
    assert (sql.shown("t").id, sql.shown("t").status) == (flow, "RUNNING")


def test_a_flow_that_appends_all_columns_says_how_its_table_gets_a_new_one(sql: Workshop) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE copy AS SELECT *, v + 1 AS next FROM STREAM ev")
    sql("WAIT FLOW copy")
    sql("ALTER TABLE ev ADD COLUMNS (more STRING)")
    sql("INSERT INTO ev VALUES ('a', 7, 'x')")
    said = failure(sql, "copy")
    assert "A source has got `more` STRING, which the query's * takes in and its table has not." in said
    assert "'schema-evolution' = 'add columns'" in said

    sql("ALTER FLOW copy SET ('schema-evolution' = 'add columns')")
    sql("START FLOW copy")
    sql("WAIT FLOW copy")
    batch = "SELECT k, v, next, more FROM {}"
    assert sql.batch(batch.format("copy")) == sql.batch(batch.format("(SELECT *, v + 1 AS next FROM ev)"))

    sql("ALTER TABLE ev ADD COLUMNS (yet DATE)")
    sql("INSERT INTO ev VALUES ('b', 8, 'y', DATE '2026-01-01')")
    batch = "SELECT k, v, next, more, yet FROM {}"
    expected = sql.batch(batch.format("(SELECT *, v + 1 AS next FROM ev)"))
    eventually(
        lambda: "yet" in sql.spark.table("copy").columns and sql.batch(batch.format("copy")) == expected,
        DEADLINE,
        lambda: str(sql.shown("copy")),
    )
    sql.crash()
    assert sql.take_up() == ["copy"]
    sql("INSERT INTO ev VALUES ('c', 9, 'z', NULL)")
    sql("WAIT FLOW copy")
    assert sql.batch(batch.format("copy")) == sql.batch(batch.format("(SELECT *, v + 1 AS next FROM ev)"))


def test_a_wider_type_that_is_used_is_told(sql: Workshop) -> None:
    sql.source()
    sql("ALTER TABLE ev SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    sql("CREATE STREAMING TABLE copy AS SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW copy")
    sql("ALTER TABLE ev ALTER COLUMN v TYPE BIGINT")
    sql("INSERT INTO ev VALUES ('a', 5000000000)")
    said = failure(sql, "copy")
    assert "The column `v` of the query is BIGINT now, and INT in its table: a source has got a wider type." in said
    sql("REFRESH STREAMING TABLE copy FULL")
    assert sql.batch("SELECT * FROM copy") == sql.batch("SELECT * FROM ev")


@pytest.mark.parametrize(
    ("statement", "operation"), [("DELETE FROM ev WHERE k = 'a'", "DELETE"), ("UPDATE ev SET v = 9 WHERE k = 'a'", "UPDATE")]
)
def test_a_source_whose_rows_were_changed_is_named_with_what_happened(sql: Workshop, statement: str, operation: str) -> None:
    sql.source()
    sql("INSERT INTO ev VALUES ('a', 5), ('a', 6)")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql(statement)
    said = failure(sql, "t")
    assert f"Version 3 of ev, {operation}, changed or deleted rows" in said
    for way in ("STREAM ev WITH ('skipChangeCommits' = 'true')", "without STREAM", "MATERIALIZED VIEW"):
        assert way in said

    skipping = COUNTS.format("STREAM ev WITH ('skipChangeCommits' = 'true')")
    sql(f"CREATE OR REPLACE STREAMING TABLE t {BUFFERED} AS {skipping}")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    before = sql.batch(COUNTS.format("ev"))
    sql("DELETE FROM ev WHERE k = 'b'")
    sql("INSERT INTO ev VALUES ('c', 1)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, n, total FROM t") == sorted([*before, ("c", 1, 1)], key=repr)
