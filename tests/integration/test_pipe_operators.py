"""Pipe operators that are written anew as subqueries: the same rows as Spark's own."""

from __future__ import annotations

import pytest

from tests.integration.workshop import Workshop
from tests.support import rows, side_by_side, written_anew

pytestmark = pytest.mark.usefixtures("lean", "unhurried")

QUERIES = [
    "FROM t |> ORDER BY v DESC NULLS LAST, k |> LIMIT 4 |> WHERE v < 9",
    "FROM t |> ORDER BY v, k |> LIMIT 3 |> ORDER BY k DESC |> LIMIT 1",
    "FROM t AS x |> WHERE x.v > 1 |> EXTEND v * 2 AS w, upper(k) AS u |> SET v = w + 1, w = v |> DROP k",
    "FROM t |> AGGREGATE sum(v) AS v, count(*) GROUP BY upper(k), v % 2 AS odd |> WHERE v > 3",
    "FROM t |> AGGREGATE max(v) AS m |> SELECT m + 1 AS m, m AS old",
    "FROM t |> AGGREGATE GROUP BY k |> UNION ALL SELECT 'z' |> INTERSECT SELECT k FROM t",
    "FROM t AS a |> JOIN d ON a.k = d.k |> LEFT JOIN t AS b ON b.k = d.k |> SELECT a.v, d.name, b.v AS w",
    "FROM t |> WHERE v > 1 |> AS x |> JOIN d USING (k) |> SELECT x.v, name",
    "SELECT k, v * 2 AS v FROM t |> WHERE v > 4 |> SELECT DISTINCT v, rank() OVER (ORDER BY v) AS r",
    "SELECT 1 AS a UNION ALL SELECT 2 |> WHERE a > 1 UNION ALL SELECT 3 ORDER BY a",
    "FROM t |> PIVOT (sum(v) AS s FOR k IN ('a', 'b')) |> EXTEND a + b AS c",
    "WITH c AS (FROM t |> WHERE v > 1) FROM c |> SELECT v |> EXCEPT ALL (FROM t |> SELECT v |> WHERE v = 5)",
]


def test_spark_finds_the_same_rows_in_both_forms(sql: Workshop) -> None:
    _tables(sql)
    for query in QUERIES:
        expected, found = sql.spark.sql(query), sql.spark.sql(written_anew(query))
        assert found.dtypes == expected.dtypes, query
        assert rows(found) == rows(expected), query


def test_flows_equal_batch(sql: Workshop) -> None:
    queries = {
        "limited": "FROM {} |> AGGREGATE sum(v) AS n GROUP BY k |> ORDER BY n DESC, k |> LIMIT 2 |> WHERE k <> 'b'",
        "plain": "FROM {} |> WHERE v > 1 |> AGGREGATE sum(v) AS n GROUP BY k",
        "hinted": "SELECT /*+ FLUSH_INTERVAL('1 s') */ k, min(v) AS v FROM {} GROUP BY k |> WHERE v > 2",
        "doubled": "SELECT k, v * 2 AS v FROM {} |> WHERE v > 9 |> SET v = v + 1",
    }
    _tables(sql)

    def create(table: str) -> None:
        sql(f"CREATE STREAMING TABLE {table} AS {queries[table].format('STREAM t')}")

    def equals_batch(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        batch = queries[table].format("t").replace("/*+ FLUSH_INTERVAL('1 s') */ ", "")
        assert sql.batch(f"SELECT * FROM {table}") == sql.batch(batch), table

    side_by_side(create, queries)
    sql("INSERT INTO t VALUES ('b', 50), ('d', 7), ('a', 1)")
    side_by_side(equals_batch, queries)


def _tables(sql: Workshop) -> None:
    sql("CREATE TABLE t (k STRING, v INT) USING delta")
    sql("INSERT INTO t VALUES ('a', 3), ('b', 5), ('a', 9), ('A', 2), (NULL, 5), ('c', NULL), ('b', 1)")
    sql("CREATE TABLE d (k STRING, name STRING) USING delta")
    sql("INSERT INTO d VALUES ('a', 'first'), ('b', 'second'), ('b', 'other')")
