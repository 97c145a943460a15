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
