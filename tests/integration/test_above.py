"""Queries above a streaming aggregate: evaluated at each flush over the maintained aggregates, in that flush's commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta.own_table import OwnTable
from tests.integration.workshop import BUFFERED, Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

QUERIES = {
    "top": "SELECT k, count(*) AS n FROM {ev} GROUP BY k ORDER BY n DESC, k NULLS LAST LIMIT 2",
    "without_key": "SELECT upper(k) || '!' AS name, count(*) + 1 AS n FROM {ev} GROUP BY k HAVING count(*) > 1",
    "joined": (
        "SELECT d.name, t.total FROM (SELECT k, sum(v) AS total FROM {ev} GROUP BY k) AS t JOIN dim AS d ON d.k = t.k "
        "WHERE t.total > 1"
    ),
    "again": "WITH c AS (SELECT k, count(*) AS n FROM {ev} GROUP BY k) SELECT n, count(*) AS groups FROM c GROUP BY n",
    "ranked": "SELECT k, sum(v) AS s, rank() OVER (ORDER BY sum(v) DESC NULLS LAST) AS r FROM {ev} GROUP BY k",
    "rolled": "SELECT k, v % 2 AS odd, count(DISTINCT v) AS n FROM {ev} GROUP BY ROLLUP (k, v % 2)",
    "rolled_union": (
        "SELECT k, v, max(k) AS most, count(*) AS n FROM (SELECT * FROM {ev} UNION ALL SELECT * FROM {ev}) GROUP BY ROLLUP (k, v)"
    ),
    "cube_of_union": (
        "WITH u AS (SELECT k, v FROM {ev} UNION ALL SELECT upper(k), v FROM {ev}) "
        "SELECT k, v, grouping_id() AS g, collect_set(v) AS vs FROM u GROUP BY CUBE (k, v)"
    ),
}
UNION = "SELECT 'all' AS what, count(*) AS n FROM {ev} UNION ALL SELECT k, count(*) FROM {ev} WHERE v > 1 GROUP BY k"


def source(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE dim (k STRING, name STRING) USING delta")
    sql("INSERT INTO dim VALUES ('a', 'first'), ('b', 'second')")


def arrive(sql: Workshop, name: str, more: int) -> None:
    sql(f"INSERT INTO ev VALUES ('a', {more}), ('new', 5), (NULL, {more})")
    sql.take_in(name)


@pytest.mark.usefixtures("unhurried")
def test_target_equals_a_batch_query_after_each_flush(sql: Workshop) -> None:
    source(sql)

    def create(name: str) -> None:
        sql(f"CREATE STREAMING TABLE {name} {BUFFERED} AS {QUERIES[name].format(ev='STREAM ev')}")

    def equals_batch(name: str) -> None:
        sql(f"WAIT FLOW {name}")
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch(QUERIES[name].format(ev="ev"))

    side_by_side(create, QUERIES)
    for more in range(2):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('new', 5), (NULL, {more})")
        side_by_side(sql.take_in, QUERIES)
        side_by_side(equals_batch, QUERIES)
    for name in QUERIES:
        assert [column for column in sql.spark.table(name).columns if column.startswith("__")] == []
        assert len(sql.commits(name)) == len({commit["last_batch"] for commit in sql.commits(name)})


@pytest.mark.parametrize("options", ["", "'execution.flush.max-interval' = '10 minutes', "])
@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_a_query_above_has_its_rows_when_no_group_is_there(sql: Workshop, backend: str, options: str) -> None:
    sql.source()
    query = "SELECT count(*) AS groups FROM (SELECT k, count(*) AS n FROM {} WHERE v > 10 GROUP BY k HAVING n > 1)"
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({options}'state.backend.type' = '{backend}') AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev")) == [(0,)]
    sql("INSERT INTO ev VALUES ('a', 11), ('a', 12), ('b', 13)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(1,)]


def test_a_union_of_aggregates_runs_each_and_survives_a_crash(sql: Workshop) -> None:
    source(sql)
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {UNION.format(ev='STREAM ev')}")
    sql.freeze()
    arrive(sql, "t", 1)
    sql("FLUSH FLOW t")
    arrive(sql, "t", 2)
    sql.crash()

    assert sql.resume() == ["t"]
    assert sql.batch("SELECT * FROM t") == sql.batch(UNION.format(ev="ev"))
    arrive(sql, "t", 3)
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(UNION.format(ev="ev"))


def test_a_crash_between_the_two_commits_is_made_up_for(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    source(sql)
    query = QUERIES["top"]
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {query.format(ev='STREAM ev')}")
    sql.freeze()
    arrive(sql, "t", 1)
    with monkeypatch.context() as patched:
        patched.setattr(OwnTable, "replace_all", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(PySparkException, match="killed"):
            sql("FLUSH FLOW t")
    assert sql.commits("t") == []
    sql.crash()

    assert sql.resume() == ["t"]
    assert [commit["reason"] for commit in sql.commits("t")] == ["recovery"]
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format(ev="ev"))


def test_an_existing_table_is_not_replaced(sql: Workshop) -> None:
    source(sql)
    sql("CREATE TABLE kept (k STRING, n BIGINT) USING delta")
    with pytest.raises(PySparkException, match="Write CREATE STREAMING TABLE"):
        sql(f"INSERT INTO kept {QUERIES['top'].format(ev='STREAM ev')}")


def as_batch(sql: Workshop, queries: Mapping[str, str]) -> list[list[tuple[Any, ...]]]:
    """Check that the table of each query over `raw` is what a batch query gives; return their rows."""
    found = []
    for name, query in queries.items():
        sql(f"CREATE STREAMING TABLE {name} AS {query.format(raw='STREAM raw')}")
        sql(f"WAIT FLOW {name}")
        found.append(sql.batch(f"SELECT * FROM {name}"))
        assert found[-1] == sql.batch(query.format(raw="raw"))
    return found


def test_columns_of_a_fixed_length_are_padded_above_as_in_the_source(sql: Workshop) -> None:
    sql("CREATE TABLE raw (c CHAR(3), v INT) USING delta")
    sql("CREATE TABLE names (c CHAR(5), name STRING) USING delta")
    sql("INSERT INTO raw VALUES ('a', 1), ('b', 2), ('a', 3)")
    sql("INSERT INTO names VALUES ('a', 'first')")
    counted = "(SELECT c, count(*) AS n FROM {raw} GROUP BY c)"
    queries = {
        "equal": f"SELECT c, n FROM {counted} WHERE c = 'a'",
        "among": f"SELECT n FROM {counted} WHERE c IN ('a', 'x')",
        "joined": f"SELECT d.name, t.n FROM {counted} AS t JOIN names AS d ON d.c = t.c",
    }
    assert [len(found) for found in as_batch(sql, queries)] == [1, 1, 1]


def test_windows_of_windows_are_computed_above(sql: Workshop) -> None:
    sql("CREATE TABLE raw (at TIMESTAMP, k STRING) USING delta")
    sql("INSERT INTO raw VALUES ('2026-01-01 10:01', 'a'), ('2026-01-01 10:02', 'a'), ('2026-01-01 10:58', 'b')")
    short = "(SELECT window, k, count(*) AS n FROM {raw} GROUP BY window(at, '5 minutes'), k)"
    queries = {
        "of_time": f"SELECT window(window_time(window), '1 hour').start AS w, sum(n) AS n FROM {short} GROUP BY 1",
        "of_window": f"SELECT window(window, '1 hour').start AS w, sum(n) AS n FROM {short} GROUP BY 1",
        "times": f"SELECT window_time(window) AS at, k, n FROM {short}",
    }
    as_batch(sql, queries)
