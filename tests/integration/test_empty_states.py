"""Aggregates of which nothing is to be stored, columns that are called the same, and what is refused by name."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, Workshop

EMPTY = "SELECT count(DISTINCT v) FILTER (WHERE FALSE) AS n, sum(v) FILTER (WHERE 1 = 2) AS s FROM {}"


@pytest.mark.parametrize("backend", ["auto", "rocksdb"])
def test_a_filter_that_is_never_true(sql: Workshop, backend: str) -> None:
    sql.source()
    properties = f"{BUFFERED[:-1]}, 'state.backend.type' = '{backend}')"
    sql(f"CREATE STREAMING TABLE t {properties} AS {EMPTY.format('STREAM ev')}")
    for value in range(2):
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(EMPTY.format("ev")) == [(0, None)]
        sql(f"INSERT INTO ev VALUES ('a', {value})")
    sql("STOP FLOW t")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(0, None)]


@pytest.mark.parametrize("backend", ["delta", "rocksdb"])
def test_columns_that_are_called_the_same_go_by_their_places(sql: Workshop, backend: str) -> None:
    sql.source()
    sql(f"SET `state.backend.type` = {backend}")
    sql("CREATE TABLE t (a BIGINT, b BIGINT, c BIGINT, k STRING) USING delta")
    sql("INSERT INTO t (c, b, a, k) SELECT count(*), count(1), sum(v), k FROM STREAM ev GROUP BY k")
    sql("CREATE TABLE one (a BIGINT, b BIGINT) USING delta")
    sql("INSERT INTO one SELECT count(*), count(1) FROM STREAM ev")
    sql("CREATE TABLE appended (a INT, b INT) USING delta")
    sql("INSERT INTO appended SELECT v + 1, v + 1 FROM STREAM ev")
    sql("INSERT INTO ev VALUES ('a', 10)")
    for flow in ("t", "one", "appended"):
        sql(f"WAIT FLOW {flow}")
    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT sum(v), count(*), count(*), k FROM ev GROUP BY k")
    assert sql.batch("SELECT * FROM one") == [(4, 4)]
    assert sql.batch("SELECT * FROM appended") == sql.batch("SELECT v + 1, v + 1 FROM ev")


def test_what_is_refused_by_name(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE t (a STRING, b STRING, c BIGINT) USING delta")
    for query, because in (
        ("SELECT k, k, count(*) FROM STREAM ev GROUP BY k", "Several columns of the query are called `k`"),
        ("SELECT k, k AS b, count(DISTINCT *) FROM STREAM ev GROUP BY k", r"count\(DISTINCT \*\) over a stream needs"),
        ("SELECT k, k AS b, count(*) FROM STREAM ev GROUP BY k HAVING 1", "HAVING takes a condition, but 1 is INT"),
        ("SELECT k, k AS b, count(*) FROM STREAM ev GROUP BY k HAVING count(*)", r"a condition, but count\(\*\) is BIGINT"),
        ("SELECT k, k AS b, count(*) FROM STREAM ev GROUP BY k HAVING count(DISTINCT v)", r"and count\(DISTINCT v\) is BIGINT"),
    ):
        with pytest.raises(PySparkException, match=because):
            sql(f"INSERT INTO t {query}")
    assert sql("SHOW FLOWS") == []
