"""Flows with state in corners: types that change, no rows at all, lengths, names in structs, and what others do to the table."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.flows.registry import FlowRegistry
from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop, local

pytestmark = pytest.mark.usefixtures("lean")

DELTA = "TBLPROPERTIES ('state.backend.type' = 'delta')"
MAPPED = "TBLPROPERTIES ('state.backend.type' = 'delta', 'delta.columnMapping.mode' = 'name')"


def test_a_source_whose_types_get_wider(sql: Workshop) -> None:
    """Stored bytes and hashes are of the former types: they are not read as others."""
    sql("CREATE TABLE ev (k STRING, v FLOAT, d DECIMAL(5,2)) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    sql("INSERT INTO ev VALUES ('a', 1.5, 1.50), ('a', 2.5, 1.50), ('a', 3.5, 1.50)")
    queries = {
        "bytes": "SELECT k, median(v) AS m FROM {} GROUP BY k",
        "hashes": "SELECT k, approx_count_distinct(v) AS n FROM {} GROUP BY k",
        "decimals": "SELECT k, CAST(sum(d) AS DECIMAL(20,3)) AS s FROM {} GROUP BY k",
    }
    for name, query in queries.items():
        sql(f"CREATE STREAMING TABLE {name} {DELTA} AS {query.format('STREAM ev')}")
        sql(f"WAIT FLOW {name}")
    sql("ALTER TABLE ev ALTER COLUMN v TYPE DOUBLE")
    sql("ALTER TABLE ev ALTER COLUMN d TYPE DECIMAL(7,3)")
    sql("INSERT INTO ev VALUES ('a', 2.5, 1.000)")
    for name, query in queries.items():
        assert sql.eventually(lambda: "cannot be read any more" in str(sql.shown(name).error))  # noqa: B023  # it ends before the next, name
        sql(f"REFRESH STREAMING TABLE {name} FULL")
        sql(f"WAIT FLOW {name}")
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch(query.format("ev")), name


@pytest.mark.parametrize("call", ["sum(v) AS s", "avg(v) AS m", "max(v) AS m"])
def test_an_aggregate_of_no_rows_has_a_row(sql: Workshop, call: str) -> None:
    """Also where no file is read: Spark has no partitions then, and no partial results."""
    sql("CREATE TABLE ev (d DATE, v INT) USING delta PARTITIONED BY (d)")
    sql("INSERT INTO ev VALUES (DATE'2026-01-01', 1)")
    query = f"SELECT count(*) AS n, {call} FROM {{}} WHERE d = DATE'2030-01-01'"
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))
    sql("INSERT INTO ev VALUES (DATE'2030-01-01', 7)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))


def test_lengths_are_checked_where_the_table_is_the_state(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, s STRING) USING delta")
    sql(f"CREATE STREAMING TABLE t (k STRING, s VARCHAR(3)) {DELTA} AS SELECT k, max(s) AS s FROM STREAM ev GROUP BY k")
    sql("INSERT INTO ev VALUES ('a', 'abc')")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 'bcde')")
    with pytest.raises(PySparkException, match="length limitation"):
        sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", "abc")]


def test_columns_that_others_have_added_keep_their_values(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1), ('b', 2)")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS SELECT k, sum(v) AS s FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    sql("ALTER TABLE t ADD COLUMN note STRING")
    sql("INSERT INTO ev VALUES ('a', 3)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 4, None), ("b", 2, None)]


def test_fields_of_one_name_in_a_state(sql: Workshop) -> None:
    sql("CREATE TABLE o (id INT, c INT) USING delta")
    sql("CREATE TABLE c (id INT, r STRING) USING delta")
    sql("INSERT INTO o VALUES (1, 1), (2, 1), (3, 2)")
    sql("INSERT INTO c VALUES (1, 'n'), (2, 's')")
    query = "SELECT c.r, count(DISTINCT o.id, c.id) AS n FROM {} AS o JOIN c ON o.c = c.id GROUP BY c.r"
    sql(f"CREATE STREAMING TABLE t AS {query.format('STREAM o')}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("o"))


def test_a_column_of_the_state_that_another_has_dropped_and_added(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 10), ('b', 5)")
    sql(f"CREATE STREAMING TABLE t {MAPPED} AS SELECT k, sum(v) AS s FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    sql("ALTER TABLE t DROP COLUMN s")
    sql("ALTER TABLE t ADD COLUMN s BIGINT")
    sql("INSERT INTO ev VALUES ('a', 1)")
    with pytest.raises(PySparkException, match="changed rows that hold the state"):
        sql("WAIT FLOW t")


def test_a_log_that_does_not_reach_back_to_the_flow(sql: Workshop) -> None:
    """Whether others have changed the state is not known then."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1)")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("UPDATE t SET n = n + 100")
    log = local(sql("DESCRIBE DETAIL t")[0].location) / "_delta_log"
    for number in range(12):
        sql(f"ALTER TABLE t SET TBLPROPERTIES ('x' = '{number}')")
    newest = max(int(file.name.split(".")[0]) for file in log.glob("*.checkpoint*.parquet"))
    for file in log.glob("*.json"):  # as Delta does when they are old
        if int(file.name.split(".")[0]) < newest:
            file.unlink()
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('a', 1)")
    with pytest.raises(PySparkException, match="does not reach back to the last commit"):
        sql("WAIT FLOW t")


def test_a_savepoint_of_a_flow_whose_last_flush_is_half_done(sql: Workshop) -> None:
    """The state has a micro-batch that the table has not: a copy of both would miss what is to be shown."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1)")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS SELECT k, avg(v) AS m FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")

    def dies(moment: Moment, flow: str) -> None:
        if moment is Moment.STATE_COMMITTED:
            raise OSError("died here")

    sql("INSERT INTO ev VALUES ('b', 1000)")
    with listened(dies), pytest.raises(PySparkException, match="died here"):
        sql("WAIT FLOW t")
    sql("STOP FLOW t")
    with pytest.raises(PySparkException, match="START FLOW"):
        sql("SAVEPOINT FLOW t AS s")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 1.0), ("b", 1000.0)]


def test_an_appending_flow_that_is_set_back_to_before_its_first_commit(sql: Workshop) -> None:
    sql("CREATE TABLE ev (v INT) USING delta")
    sql("CREATE STREAMING TABLE t AS SELECT v FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS nothing")
    sql("INSERT INTO ev VALUES (1)")
    sql("WAIT FLOW t")
    sql("RESTORE FLOW t TO nothing")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(1,)]


def test_a_refresh_in_full_of_a_dropped_table_keeps_its_constraints(sql: Workshop) -> None:
    sql("CREATE TABLE ev (v INT) USING delta")
    sql("INSERT INTO ev VALUES (-1), (1), (100)")
    pos = "CONSTRAINT pos EXPECT (v > 0 -- of course\n) ON VIOLATION DROP ROW"
    sql(f"CREATE STREAMING TABLE t ({pos}) AS SELECT v FROM STREAM ev")
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT small EXPECT (v < 50) ON VIOLATION DROP ROW")
    sql("WAIT FLOW t")
    sql("DROP TABLE t")
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(1,)]
    shown = {row.key: row.value for row in sql("SHOW TBLPROPERTIES t")}
    assert {key for key in shown if "expect" in key} == {"sqlext.expect.pos", "sqlext.expect.small"}


def test_a_declared_table_takes_no_other_tables_place(sql: Workshop) -> None:
    sql("CREATE TABLE ev (v INT) USING delta")
    sql("INSERT INTO ev VALUES (1)")
    sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM ev")
    with pytest.raises(PySparkException, match="is the table of the materialized view"):
        sql("CREATE OR REPLACE STREAMING TABLE v (n BIGINT)")
    with pytest.raises(PySparkException, match="it is no streaming table"):
        sql("CREATE OR REPLACE STREAMING TABLE ev (n BIGINT)")
    sql("CREATE STREAMING TABLE d (n BIGINT)")
    sql("CREATE OR REPLACE STREAMING TABLE d (m BIGINT)")
    assert sql("SELECT * FROM d") == []
    assert sql.batch("SELECT * FROM v") == [(1,)]


def test_an_alteration_that_cannot_be_recorded(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow runs on as before, and the same statement does it later."""
    sql("CREATE TABLE ev (v INT) USING delta")
    sql("CREATE STREAMING TABLE t AS SELECT v FROM STREAM ev")
    sql("WAIT FLOW t")
    statement = "ALTER STREAMING TABLE t ADD CONSTRAINT pos EXPECT (v > 0) ON VIOLATION DROP ROW"
    with monkeypatch.context() as patched:
        patched.setattr(FlowRegistry, "alter", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(PySparkException, match="no space"):
            sql(statement)
    sql("INSERT INTO ev VALUES (-1)")
    sql("WAIT FLOW t")
    sql(statement)
    sql("INSERT INTO ev VALUES (-2), (2)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(-1,), (2,)]


def test_names_in_a_query_mean_what_they_mean_in_spark(sql: Workshop) -> None:
    sql("CREATE TABLE ev (addr STRUCT<city: STRING, zip: STRING>, s STRUCT<v: INT>, k INT, ts INT) USING delta")
    values = (("Bonn", "1", 1), ("Bonn", "2", 2), ("Ulm", "3", 3))
    listed = ", ".join(
        f"(named_struct('city', '{city}', 'zip', '{code}'), named_struct('v', {v}), 1, {v})" for city, code, v in values
    )
    sql(f"INSERT INTO ev VALUES {listed}")
    queries = {
        "structs": "SELECT addr.city AS addr, count(*) AS n FROM {} GROUP BY addr ORDER BY n DESC",
        "fields": "SELECT addr.city, count(*) AS n FROM {} GROUP BY city",
        "outputs": "SELECT named_struct('v', -s.v) AS s, count(*) AS n FROM {} GROUP BY s.v ORDER BY s.v LIMIT 1",
    }
    for name, query in queries.items():
        sql(f"CREATE STREAMING TABLE {name} AS {query.format('STREAM ev')}")
        sql(f"WAIT FLOW {name}")
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch(query.format("ev")), name


def test_a_with_query_that_would_be_another_in_the_place_of_its_name(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k INT, ts INT) USING delta")
    sql("CREATE TABLE d (k INT, w STRING) USING delta")
    ranked = "row_number() OVER (PARTITION BY ev.k ORDER BY ev.ts DESC) AS r FROM STREAM ev JOIN d ON ev.k = d.k"
    with pytest.raises(PySparkException, match="`d` in the WITH query `a` is another relation"):
        sql(
            f"CREATE STREAMING TABLE t AS WITH a AS (SELECT ev.k, d.w, {ranked}), d AS (SELECT k, 'cte' AS w FROM d) "
            "SELECT k, w FROM a WHERE r = 1"
        )


def test_a_comment_before_the_query_of_a_job(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k INT) USING delta")
    sql("INSERT INTO ev VALUES (1), (1)")
    query = "SELECT k, count(*) AS n FROM STREAM ev GROUP BY k GLOBAL WINDOW END OF STREAM"
    sql(f"CREATE TABLE daily USING delta AS\n-- counts\n{query}")
    assert sql.batch("SELECT * FROM daily") == [(1, 2)]
