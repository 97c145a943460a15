"""Subqueries over tables inside the arguments of aggregates, and beside them, in flows against batch."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import Workshop

QUERIES = (
    "SELECT k, sum(v * (SELECT max(w) FROM dim)) AS s FROM {} GROUP BY k",
    "SELECT k, count(*) FILTER (WHERE v IN (SELECT w FROM dim)) AS n FROM {} GROUP BY k",
    "SELECT k, count_if(v NOT IN (SELECT w FROM dim)) AS m FROM {} GROUP BY k",
    "SELECT e.k, sum(CASE WHEN EXISTS (SELECT 1 FROM dim AS d WHERE d.w = e.v) THEN v ELSE 0 END) AS s FROM {} AS e GROUP BY e.k",
    "SELECT e.k, max((SELECT max(d.w) FROM dim AS d WHERE d.w = e.v)) AS m FROM {} AS e GROUP BY e.k",
    "SELECT k, count(*) AS n FROM {0} GROUP BY k "
    "HAVING count(*) >= (SELECT avg(n) FROM (SELECT count(*) AS n FROM {0} GROUP BY k))",
    "SELECT count(DISTINCT v + (SELECT min(w) FROM dim)) AS n FROM {}",
    "SELECT k, sum(v * (SELECT max(w) FROM dim)) AS s FROM {} GROUP BY k ORDER BY s DESC LIMIT 2",
    "SELECT k, avg(v) AS a FROM {} GROUP BY k HAVING sum(v) > (SELECT min(w) FROM dim)",
)


def test_subqueries_over_tables_equal_batch(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE dim (w INT) USING delta")
    sql("INSERT INTO dim VALUES (1), (5), (9)")
    for at, query in enumerate(QUERIES):
        sql(f"CREATE STREAMING TABLE t{at} AS {query.format('STREAM ev')}")
    for values in ("('a', 5), ('c', 9), ('c', NULL)", "('b', 1), (NULL, 8)", ""):
        for at, query in enumerate(QUERIES):
            sql(f"WAIT FLOW t{at}")
            assert sql.batch(f"SELECT * FROM t{at}") == sql.batch(query.format("ev")), query
        if values:
            sql(f"INSERT INTO ev VALUES {values}")


def test_a_subquery_that_joins_the_stream_with_itself_is_refused(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE dim (w INT) USING delta")
    query = "SELECT e.k, max((SELECT max(d.w) FROM dim AS d WHERE d.w < e.v)) AS m FROM STREAM ev AS e GROUP BY e.k"
    with pytest.raises(PySparkException, match="Spark evaluates a subquery of this query by joining the stream with itself"):
        sql(f"CREATE STREAMING TABLE t AS {query}")
    assert sql("SHOW FLOWS") == []
