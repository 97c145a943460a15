"""Values that files and logs between sqlext's tables must not change: line separators of Unicode, microseconds, collations."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, Workshop

pytestmark = pytest.mark.usefixtures("lean")

SEPARATORS = "'a\u2028b\x85'"
"""A text with U+2028 and U+0085, at which Python's `splitlines` divides, and JSON does not."""


def test_line_separators_of_unicode_in_keys(sql: Workshop) -> None:
    """They are in the statistics in Delta's log, which flows and views read."""
    sql.source()
    query = "SELECT k, avg(v) AS mean, count(*) AS n FROM {} GROUP BY k"
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {query.format('STREAM ev')}")
    sql(f"CREATE MATERIALIZED VIEW m AS {query.format('ev')}")
    for statement in ("FLUSH FLOW t", "STOP FLOW t; START FLOW t"):
        sql(f"INSERT INTO ev VALUES ({SEPARATORS}, 1), ('c', 2)")
        for each in ("WAIT FLOW t", *statement.split("; "), "WAIT FLOW t", "REFRESH MATERIALIZED VIEW m"):
            sql(each)
        expected = sql.batch(query.format("ev"))
        assert sql.batch("SELECT * FROM t") == expected
        assert sql.batch("SELECT * FROM m") == expected
    sql(f"DELETE FROM ev WHERE k = {SEPARATORS}")
    sql("REFRESH MATERIALIZED VIEW m")
    assert sql.batch("SELECT * FROM m") == sql.batch(query.format("ev"))


def test_timestamps_keep_their_microseconds(sql: Workshop) -> None:
    """Whatever precision the user's session writes into Parquet files."""
    sql("CREATE TABLE ev (at TIMESTAMP, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('2026-11-01 10:00:00.000100', 1), ('2026-11-01 10:00:00.000200', 2)")
    sql("SET spark.sql.parquet.outputTimestampType = TIMESTAMP_MILLIS")
    query = "SELECT at, count(*) AS n, max(at) AS latest FROM {} GROUP BY at"
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("SET spark.sqlext.execution.batch.job-recovery.enabled = true")
    sql(f"CREATE TABLE b AS {query.format('ev')} GLOBAL WINDOW END OF STREAM")
    expected = sql.batch(query.format("ev"))
    assert len(expected) == 2
    assert sql.batch("SELECT * FROM t") == expected
    assert sql.batch("SELECT * FROM b") == expected


@pytest.mark.parametrize("key", ["{}", "struct({} AS x)", "array({})"])
def test_a_key_with_a_collation_is_refused_by_its_name(sql: Workshop, key: str) -> None:
    """Delta's columns have none, so rows of the table would be other groups than those of the query."""
    sql.source()
    query = f"SELECT {key.format('k COLLATE UTF8_LCASE')} AS folded, count(*) AS n FROM STREAM ev GROUP BY 1"
    with pytest.raises(PySparkException, match="The key `folded` of the query has the collation UTF8_LCASE"):
        sql(f"EXPLAIN CREATE STREAMING TABLE t AS {query}")
    with pytest.raises(PySparkException, match="A key of the query has the collation UTF8_LCASE"):
        sql(f"EXPLAIN CREATE STREAMING TABLE t AS SELECT n FROM ({query})")


def test_a_partial_result_with_a_collation_is_in_no_table(sql: Workshop) -> None:
    sql.source()
    query = "SELECT max(struct(k COLLATE UTF8_LCASE AS x, v)).v AS m FROM STREAM ev"
    (explained,) = sql(f"EXPLAIN CREATE STREAMING TABLE t AS {query}")
    assert "rocksdb: a partial result has the type STRUCT<x: STRING COLLATE UTF8_LCASE, v: INT>" in explained.plan


def test_distinct_values_are_joined_by_their_texts(sql: Workshop) -> None:
    """As in Spark: 0.0 and -0.0 have two texts, and two times in the hour that a clock goes back have one."""
    sql("SET spark.sql.session.timeZone = America/New_York")
    sql("CREATE TABLE ev (k STRING, f DOUBLE, at TIMESTAMP, v INT) USING delta")
    columns = {
        "fs": "array_sort(split(listagg(DISTINCT f, ';'), ';'))",
        "ats": "listagg(DISTINCT at, ';')",
        "vs": "listagg(DISTINCT v, ';') WITHIN GROUP (ORDER BY v DESC)",
    }
    items = ", ".join(f"{call} AS {name}" for name, call in columns.items())
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS SELECT k, {items} FROM STREAM ev GROUP BY k")
    for values in ("'a', 0.0, '2024-11-03 05:30:00Z', 9", "'a', -0.0D, '2024-11-03 06:30:00Z', 10", "'b', NULL, NULL, NULL"):
        sql(f"INSERT INTO ev VALUES ({values})")
        sql("WAIT FLOW t")
    for name, call in columns.items():
        assert sql.batch(f"SELECT k, {name} FROM t") == sql.batch(f"SELECT k, {call} FROM ev GROUP BY k"), name
    assert sql.batch("SELECT fs, ats, vs FROM t WHERE k = 'a'") == [(["-0.0", "0.0"], "2024-11-03 01:30:00", "10;9")]


def test_sum0_of_decimals(sql: Workshop) -> None:
    """A sum that has overflowed is no sum of nothing, and 0 takes no digits away."""
    sql("SET spark.sql.ansi.enabled = false")
    sql("CREATE TABLE ev (k STRING, v DECIMAL(38,0), w DECIMAL(38,30)) USING delta")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS SELECT k, sum0(v) AS s, sum0(w) AS d FROM STREAM ev GROUP BY k")
    for most in ("9" * 38, "8" * 38):
        sql(f"INSERT INTO ev VALUES ('over', {most}, 0.000000000000000000000000000001), ('none', NULL, NULL), ('some', 2, 1)")
        sql("WAIT FLOW t")
    sums = "if(count(v) = 0, CAST(0 AS DECIMAL(38,0)), sum(v)) AS s, if(count(w) = 0, CAST(0 AS DECIMAL(38,30)), sum(w)) AS d"
    expected = sql.spark.sql(f"SELECT k, {sums} FROM ev GROUP BY k")
    assert sql.spark.table("t").dtypes == expected.dtypes
    assert sql.batch("SELECT * FROM t") == sql.batch(f"SELECT k, {sums} FROM ev GROUP BY k")
    assert sql.batch("SELECT s FROM t WHERE k = 'over'") == [(None,)]
