"""Sources that get columns, comments and wider types, or whose rows are changed: what their flows do."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, COUNTS, DEADLINE, Workshop, local
from tests.support import eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")


def goes_on(sql: Workshop, name: str, source: str = "ev") -> None:
    """A flow takes in what comes after a change of its source, by itself."""
    eventually(lambda: has_taken_all(sql, name, source), DEADLINE, lambda: str(sql.shown(name)))


def has_taken_all(sql: Workshop, name: str, source: str) -> bool:
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


def test_a_flow_goes_on_over_what_its_query_does_not_use(sql: Workshop) -> None:
    backends = ("delta", "rocksdb")
    sql.source()
    sql("ALTER TABLE ev SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    sql("ALTER TABLE ev ADD COLUMNS (other INT)")
    for backend in backends:
        properties = f"'execution.flush.max-interval' = '10 minutes', 'state.backend.type' = '{backend}'"
        sql(f"CREATE STREAMING TABLE {backend} TBLPROPERTIES ({properties}) AS {COUNTS.format('STREAM ev')}")
    for backend in backends:
        sql(f"WAIT FLOW {backend}")
    flows = [(row.name, row.id, row.status) for row in sql("SHOW FLOWS")]
    changes = ["ADD COLUMNS (more STRING)", "ALTER COLUMN other TYPE BIGINT", "ALTER COLUMN v COMMENT 'how much'"]
    for number, change in enumerate(changes):
        sql(f"ALTER TABLE ev {change}")
        sql(f"INSERT INTO ev (k, v) VALUES ('a', {number}), ('new{number}', 1)")
        side_by_side(lambda backend: goes_on(sql, backend), backends)
    assert [(row.name, row.id, row.status) for row in sql("SHOW FLOWS")] == flows
    assert {status for *_, status in flows} == {"RUNNING"}


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
    assert sql.resume() == ["copy"]
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


def test_fields_of_structs_go_to_their_names(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k INT, s STRUCT<a: INT, b: STRING>) USING delta")
    sql("INSERT INTO ev SELECT 1, named_struct('a', 1, 'b', 'x')")
    sql("CREATE STREAMING TABLE copy AS SELECT k, s FROM STREAM ev")
    sql("CREATE STREAMING TABLE listed (k, s STRUCT<b: STRING, a: INT>) AS SELECT k, s FROM STREAM ev")
    for table in ("fed", "by_batch"):
        sql(f"CREATE TABLE {table} (k INT, s ARRAY<STRUCT<b: STRING, a: INT>>) USING delta")
    sql("CREATE FLOW f AS INSERT INTO fed SELECT k, array(s) AS s FROM STREAM ev")
    sql("INSERT INTO by_batch SELECT k, array(s) AS s FROM ev")
    flows = ("copy", "listed", "f")
    for flow in flows:
        sql(f"WAIT FLOW {flow}")
        sql(f"STOP FLOW {flow}")
    assert sql.batch("SELECT * FROM fed") == sql.batch("SELECT * FROM by_batch") == [(1, [("x", 1)])]

    sql("ALTER TABLE ev ALTER COLUMN s.b FIRST")
    sql("INSERT INTO ev SELECT 2, named_struct('b', 'y', 'a', 2)")
    for flow in flows:
        sql(f"START FLOW {flow}")
        sql(f"WAIT FLOW {flow}")
    for table, field in (("copy", "s"), ("listed", "s"), ("fed", "s[0]")):
        assert sql.batch(f"SELECT k, {field}.a, {field}.b FROM {table}") == [(1, 1, "x"), (2, 2, "y")], table
    sql("CREATE MATERIALIZED VIEW seen (k, s STRUCT<a: INT, b: STRING>) AS SELECT * FROM ev")
    assert sql.batch("SELECT k, s.a, s.b FROM seen") == [(1, 1, "x"), (2, 2, "y")]


def test_a_source_whose_rows_were_changed_is_named_with_what_happened(sql: Workshop) -> None:
    statements = {"DELETE": "DELETE FROM of_delete WHERE k = 'a'", "UPDATE": "UPDATE of_update SET v = 9 WHERE k = 'a'"}

    def is_named(operation: str) -> None:
        source, table = f"of_{operation.lower()}", f"after_{operation.lower()}"
        sql.source(source)
        sql(f"INSERT INTO {source} VALUES ('a', 5), ('a', 6)")
        sql(f"CREATE STREAMING TABLE {table} {BUFFERED} AS {COUNTS.format(f'STREAM {source}')}")
        sql(f"WAIT FLOW {table}")
        sql(statements[operation])
        said = failure(sql, table)
        assert f"Version 3 of {source}, {operation}, changed or deleted rows" in said
        for way in (f"STREAM {source} WITH ('skipChangeCommits' = 'true')", "without STREAM", "MATERIALIZED VIEW"):
            assert way in said

        skipping = COUNTS.format(f"STREAM {source} WITH ('skipChangeCommits' = 'true')")
        sql(f"CREATE OR REPLACE STREAMING TABLE {table} {BUFFERED} AS {skipping}")
        sql(f"WAIT FLOW {table}")
        before = sql.batch(COUNTS.format(source))
        assert sql.batch(f"SELECT k, n, total FROM {table}") == before
        sql(f"DELETE FROM {source} WHERE k = 'b'")
        sql(f"INSERT INTO {source} VALUES ('c', 1)")
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT k, n, total FROM {table}") == sorted([*before, ("c", 1, 1)], key=repr)

    side_by_side(is_named, statements)


def test_a_value_that_has_no_place_in_a_table_of_others_is_an_error(sql: Workshop) -> None:
    """A table that the flow did not make keeps its type; Spark's INSERT wraps no value either, in whatever mode CAST is."""
    flows = ("ansi", "not_ansi")
    sql.source()
    sql("ALTER TABLE ev SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for flow in flows:
        sql(f"CREATE TABLE fed_{flow} (k STRING, v INT) USING delta")
        sql(f"SET spark.sql.ansi.enabled = {str(flow == 'ansi').lower()}")
        sql(f"CREATE FLOW {flow} AS INSERT INTO fed_{flow} SELECT k, v FROM STREAM ev")
    for flow in flows:
        sql(f"WAIT FLOW {flow}")
    sql("ALTER TABLE ev ALTER COLUMN v TYPE BIGINT")
    sql("INSERT INTO ev VALUES ('c', 4)")
    before = sql.batch("SELECT * FROM ev")

    def holds_all(flow: str) -> None:
        eventually(lambda: sql.batch(f"SELECT * FROM fed_{flow}") == before, DEADLINE, lambda: str(sql.shown(flow)))

    side_by_side(holds_all, flows)
    sql("INSERT INTO ev VALUES ('d', 5000000000)")
    for flow in flows:
        said = failure(sql, flow)
        if flow == "not_ansi":
            assert "A value of the column `v`, which is BIGINT, is out of range for INT of the table's column `v`." in said
            assert said.count("5000000000") == 1
        assert "5000000000" in said, flow
        assert sql.batch(f"SELECT * FROM fed_{flow}") == before, flow


def test_a_new_column_goes_into_a_column_of_its_name_only_if_that_takes_it(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE fed (k STRING, v INT, more STRUCT<a: INT>) USING delta")
    sql("CREATE TABLE fed_too (v STRING, number INT) USING delta")
    sql("CREATE FLOW f AS INSERT INTO fed (k, v) SELECT * FROM STREAM ev")
    sql("CREATE FLOW g AS INSERT INTO fed_too SELECT * FROM STREAM ev")
    for flow in "fg":
        sql(f"WAIT FLOW {flow}")
        sql(f"ALTER FLOW {flow} SET ('schema-evolution' = 'add columns')")
    sql("ALTER TABLE ev ADD COLUMNS (more STRING, number INT)")
    sql("INSERT INTO ev VALUES ('a', 7, 'x', 8)")
    assert "`more` of its table is STRUCT<a: INT>, which does not take it: a source has changed" in failure(sql, "f")
    assert "got `number`, and the column `number` of spark_catalog.default.fed_too takes the query's `v` already" in failure(
        sql, "g"
    )
    assert sql.spark.table("fed").columns == ["k", "v", "more"]


def test_a_file_that_was_vacuumed_before_it_was_read_is_named(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    (file,) = sql("SELECT DISTINCT input_file_name() AS name FROM ev WHERE v = 10")
    local(file.name).unlink()
    sql("START FLOW t")
    said = failure(sql, "t")
    assert f"{local(file.name).name} of ev is gone: it was vacuumed or deleted before the flow had read it." in said
