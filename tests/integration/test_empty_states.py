"""Aggregates of which nothing is to be stored, columns that are called the same, and what is refused by name."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

EMPTY = "SELECT count(DISTINCT v) FILTER (WHERE FALSE) AS n, sum(v) FILTER (WHERE 1 = 2) AS s FROM {}"


def test_a_filter_that_is_never_true(sql: Workshop) -> None:
    sql.source()
    backends = ("auto", "rocksdb")
    for backend in backends:
        properties = f"{BUFFERED[:-1]}, 'state.backend.type' = '{backend}')"
        sql(f"CREATE STREAMING TABLE {backend} {properties} AS {EMPTY.format('STREAM ev')}")

    def equals_batch(backend: str) -> None:
        sql(f"WAIT FLOW {backend}")
        assert sql.batch(f"SELECT * FROM {backend}") == sql.batch(EMPTY.format("ev")) == [(0, None)]

    def restart(backend: str) -> None:
        sql(f"STOP FLOW {backend}")
        sql(f"START FLOW {backend}")
        equals_batch(backend)

    for value in range(2):
        side_by_side(equals_batch, backends)
        sql(f"INSERT INTO ev VALUES ('a', {value})")
    side_by_side(restart, backends)


@pytest.mark.usefixtures("unhurried")
def test_columns_that_are_called_the_same_go_by_their_places(sql: Workshop) -> None:
    sql.source()
    backends = ("delta", "rocksdb")
    for backend in backends:
        sql(f"SET `state.backend.type` = {backend}")
        sql(f"CREATE TABLE t_{backend} (a BIGINT, b BIGINT, c BIGINT, k STRING) USING delta")
        sql(f"INSERT INTO t_{backend} (c, b, a, k) SELECT count(*), count(1), sum(v), k FROM STREAM ev GROUP BY k")
        sql(f"CREATE TABLE one_{backend} (a BIGINT, b BIGINT) USING delta")
        sql(f"INSERT INTO one_{backend} SELECT count(*), count(1) FROM STREAM ev")
        sql(f"CREATE TABLE appended_{backend} (a INT, b INT) USING delta")
        sql(f"INSERT INTO appended_{backend} SELECT v + 1, v + 1 FROM STREAM ev")
    sql("INSERT INTO ev VALUES ('a', 10)")
    expected = {
        "t": sql.batch("SELECT sum(v), count(*), count(*), k FROM ev GROUP BY k"),
        "one": [(4, 4)],
        "appended": sql.batch("SELECT v + 1, v + 1 FROM ev"),
    }

    def goes_by_places(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT * FROM {table}") == expected[table.partition("_")[0]]

    side_by_side(goes_by_places, [f"{name}_{backend}" for name in expected for backend in backends])


def test_what_is_refused_by_name(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE t (a STRING, b STRING, c BIGINT) USING delta")
    for query, because in (
        ("SELECT k, k, count(*) FROM STREAM ev GROUP BY k", "Several columns of the query are called `k`"),
        ("SELECT k, k AS b, count(DISTINCT *) FROM STREAM ev GROUP BY k", r"count\(DISTINCT \*\) over a stream needs"),
        ("SELECT k, k AS b, count(*) FROM STREAM ev GROUP BY k HAVING 1", "HAVING takes a condition, but 1 is INT"),
        ("SELECT k, k AS b, count(*) FROM STREAM ev GROUP BY k HAVING count(*)", r"a condition, but count\(\*\) is BIGINT"),
        ("SELECT k, k AS b, count(*) FROM STREAM ev GROUP BY k HAVING count(DISTINCT v)", r"but count\(DISTINCT v\) is BIGINT"),
    ):
        with pytest.raises(PySparkException, match=because):
            sql(f"INSERT INTO t {query}")
    assert sql("SHOW FLOWS") == []
