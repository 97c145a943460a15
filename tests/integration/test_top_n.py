"""The first rows of each partition of a stream, by ROW_NUMBER() and a limit: flows against batch."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, Workshop
from tests.support import rows, side_by_side

pytestmark = pytest.mark.usefixtures("lean", "unhurried")

NEWEST = "row_number() OVER (PARTITION BY k ORDER BY at DESC)"
QUERIES = {
    "newest": f"SELECT k, v, note FROM (SELECT *, {NEWEST} AS r FROM {{}}) WHERE r = 1",
    "renamed": f"SELECT x.k AS name, v AS w, r FROM (SELECT k, v + 1 AS v, {NEWEST} AS r FROM {{}} WHERE v > 0) x WHERE r < 2",
    "two": f"SELECT * FROM (SELECT *, {NEWEST} AS r, v * 2 AS twice FROM {{}}) WHERE r <= 2",
    "second": f"WITH ranked AS (SELECT s.*, {NEWEST} AS r FROM {{}} AS s) SELECT k, note.x AS x FROM ranked WHERE r = 2",
    "oldest": "SELECT k, at FROM {} QUALIFY row_number() OVER (PARTITION BY upper(k), 1 ORDER BY at) = 1",
    "everywhere": "SELECT * FROM {} QUALIFY row_number() OVER (ORDER BY v NULLS LAST, at) <= 3",
    "last": "SELECT v, at FROM {} WHERE v > 4 QUALIFY row_number() OVER (ORDER BY at DESC) = 1",
    "last_of_all": "SELECT * FROM {} WHERE v > 4 QUALIFY row_number() OVER (PARTITION BY 1 ORDER BY at DESC) = 1",
    "none": f"SELECT v, r FROM (SELECT v, {NEWEST} AS r FROM {{}}) WHERE r BETWEEN 2 AND 1",
    "nulls_first": "SELECT v, at, r FROM (SELECT v, at, row_number() OVER (PARTITION BY v % 2 ORDER BY k DESC NULLS FIRST, "
    "at DESC) AS r FROM {}) WHERE r BETWEEN 1 AND 2",
    "joined": f"SELECT d.name, t.v FROM (SELECT k, v, {NEWEST} AS r FROM {{}}) AS t JOIN dim AS d ON d.k = t.k WHERE 1 >= t.r",
    "nested": "SELECT k, v, at FROM (SELECT *, row_number() OVER (PARTITION BY upper(k) ORDER BY at) AS q "
    f"FROM (SELECT k, v, at, {NEWEST} AS r FROM {{}}) WHERE r <= 2) WHERE q = 1",
    "nested_qualify": "SELECT k, v FROM (SELECT * FROM {} QUALIFY row_number() OVER (PARTITION BY k, v ORDER BY at DESC) = 1) "
    "QUALIFY row_number() OVER (PARTITION BY k ORDER BY at) <= 2",
    "counted": f"SELECT note.x, count(*) AS n FROM (SELECT *, {NEWEST} AS r FROM {{}}) WHERE r <= 1 GROUP BY note.x",
}
ARRIVALS = (
    "('a', 1, 10, named_struct('x', 1)), ('b', 2, 11, NULL), (NULL, NULL, 12, named_struct('x', NULL)), ('a', NULL, 13, NULL)",
    "('a', 4, 9, named_struct('x', 7)), ('A', 5, 20, named_struct('x', 1)), (NULL, 3, 21, NULL)",
    "('b', NULL, 30, named_struct('x', 7)), ('a', 1, 31, named_struct('x', 2)), ('c', 1, 1, NULL), ('b', 2, 2, NULL)",
)


def test_flows_equal_batch_also_after_a_crash(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT, at INT, note STRUCT<x: INT>) USING delta")
    sql("CREATE TABLE dim (k STRING, name STRING) USING delta")
    sql("INSERT INTO dim VALUES ('a', 'first'), ('c', 'third')")
    flows = {f"{name}_{backend}": (query, backend) for name, query in QUERIES.items() for backend in ("rocksdb", "auto")}

    def create(flow: str) -> None:
        query, backend = flows[flow]
        sql(f"CREATE STREAMING TABLE {flow} TBLPROPERTIES ('state.backend.type' = '{backend}') AS {query.format('STREAM ev')}")

    def equals_batch(flow: str) -> None:
        sql(f"WAIT FLOW {flow}")
        expected, found = sql.spark.sql(flows[flow][0].format("ev")), sql.spark.table(flow)
        assert rows(found) == rows(expected)
        assert found.dtypes == expected.dtypes

    side_by_side(create, flows)
    for at, values in enumerate(ARRIVALS):
        if at == 2:
            sql.crash()
            sql.resume()
        sql(f"INSERT INTO ev VALUES {values}")
        side_by_side(equals_batch, flows)


def test_the_newest_row_of_a_key_is_kept_by_the_key(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT, at INT, note STRUCT<x: INT>) USING delta")
    sql(f"INSERT INTO ev VALUES {ARRIVALS[0]}")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {QUERIES['newest'].format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('b', 9, 99, NULL)")
    sql("WAIT FLOW t")

    assert [commit["rows"] for commit in sql.commits("t")][1:] == [1]
    assert [row.v for row in sql("SELECT v FROM t WHERE k = 'b'")] == [9]


def test_an_alias_in_qualify_that_is_a_column_too(sql: Workshop) -> None:
    """Spark filters by the column."""
    sql("CREATE TABLE ev (id INT, rank INT, at INT) USING delta")
    sql("INSERT INTO ev VALUES (1, 1, 1), (1, 2, 2)")
    ranked = "SELECT id, at, row_number() OVER (PARTITION BY id ORDER BY at DESC) AS {} FROM STREAM ev QUALIFY {} = 1"
    with pytest.raises(PySparkException, match="QUALIFY names `rank`, which is an alias of the select list and a column"):
        sql(f"CREATE STREAMING TABLE t AS {ranked.format('rank', 'rank')}")
    sql(f"CREATE STREAMING TABLE t AS {ranked.format('place', 'place')}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(1, 2, 1)]


def test_an_order_in_both_directions_is_refused(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT, at INT) USING delta")
    query = "SELECT k, v FROM STREAM ev QUALIFY row_number() OVER (PARTITION BY k ORDER BY v, at DESC) = 1"
    with pytest.raises(PySparkException, match=r"sorts its columns in both directions. .* \(line 1, pos 63"):
        sql(f"CREATE STREAMING TABLE t AS {query}")
    with pytest.raises(PySparkException, match=r"a window function needs all rows at once.* WHERE r <= 3 filters"):
        sql("CREATE STREAMING TABLE t AS SELECT k, row_number() OVER (PARTITION BY k ORDER BY v) AS r FROM STREAM ev")
    assert sql("SHOW FLOWS") == []
