"""The current time and random numbers in aggregates: each micro-batch and each flush has its own, wherever the state lives."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

BACKENDS = ("delta", "rocksdb")


def create(sql: Workshop, backend: str, query: str, name: str) -> None:
    sql(f"CREATE STREAMING TABLE {name} TBLPROPERTIES ('state.backend.type' = '{backend}') AS {query}")


def arrive(sql: Workshop, values: str, *flows: str) -> tuple[int, int]:
    """Let rows arrive, and give the time before and after they came into the tables, in milliseconds since 1970."""
    before = int(time.time() * 1000)
    sql(f"INSERT INTO ev VALUES {values}")
    side_by_side(lambda flow: sql(f"WAIT FLOW {flow}"), flows)
    return before, int(time.time() * 1000)


def test_results_have_the_time_of_their_own_flush(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    query = (
        "SELECT k, count(*) AS n, current_timestamp() AS at, unix_millis(now()) AS ms, localtimestamp() AS l, "
        "unix_timestamp() AS s, current_date() AS d, rand() AS r, uuid() AS id FROM STREAM ev GROUP BY k"
    )
    for backend in BACKENDS:
        create(sql, backend, query, backend)
    first = arrive(sql, "('a', 1), ('b', 2)", *BACKENDS)
    earlier = {backend: rows_of(sql, backend) for backend in BACKENDS}
    second = arrive(sql, "('a', 3), ('c', 4)", *BACKENDS)

    def have_their_time(backend: str) -> None:
        before, rows = earlier[backend], rows_of(sql, backend)
        assert {k: row.n for k, row in rows.items()} == {"a": 2, "b": 1, "c": 1}
        for k, (start, end) in (("a", second), ("b", first), ("c", second)):
            row = rows[k]
            assert start <= row.at_ms <= end
            assert start <= row.ms <= end
            assert start // 1000 <= row.s <= end // 1000
            assert row.l == row.at
            assert row.d == row.at.date()
        assert rows["b"] == before["b"]  # a group that has not changed keeps its row
        random = [row.r for row in (*before.values(), rows["a"], rows["c"])]
        assert len(set(random)) == len(random)
        identities = [row.id for row in (*before.values(), rows["a"], rows["c"])]
        assert len(set(identities)) == len(identities)

    side_by_side(have_their_time, BACKENDS)


def rows_of(sql: Workshop, table: str) -> dict[str, Any]:
    return {row.k: row for row in sql(f"SELECT *, unix_millis(at) AS at_ms FROM {table}")}


@pytest.mark.usefixtures("unhurried")
def test_keys_arguments_and_filters_have_the_time_of_their_micro_batch(sql: Workshop) -> None:
    """Also where the time is a column of a query below."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    below = "WITH seen AS (SELECT *, current_timestamp() AS at FROM STREAM ev) "
    ways = {"direct": ("", "now()", "STREAM ev"), "below": (below, "at", "seen")}
    cases = [f"{way}_{backend}" for way in ways for backend in BACKENDS]

    def create_both(case: str) -> None:
        way, backend = case.split("_")
        with_, now, relation = ways[way]
        create(sql, backend, f"{with_}SELECT {now} AS at, count(*) AS n FROM {relation} GROUP BY {now}", f"t_{case}")
        create(
            sql,
            backend,
            f"{with_}SELECT k, unix_millis(min({now})) AS least, unix_millis(max({now})) AS most, max(curdate()) AS d, "
            f"count(*) FILTER (WHERE v < unix_millis({now}) - unix_millis(current_timestamp()) + 5) AS few "
            f"FROM {relation} GROUP BY k",
            f"u_{case}",
        )

    def start_again(case: str) -> None:
        sql(f"STOP FLOW u_{case}")
        sql(f"START FLOW u_{case}")

    def have_their_time(case: str) -> None:
        found = sql(f"SELECT unix_millis(at) AS at, n FROM t_{case} ORDER BY at")
        assert [row.n for row in found] == [2, 1, 1]
        assert all(start <= row.at <= end for row, (start, end) in zip(found, times, strict=True))
        a, b = sql(f"SELECT * FROM u_{case} ORDER BY k")
        assert (a.few, b.few) == (2, 0)
        assert times[0][0] <= a.least <= times[0][1]
        assert times[2][0] <= a.most <= times[2][1]

    side_by_side(create_both, cases)
    flows = [f"{table}_{case}" for case in cases for table in "tu"]
    times = [arrive(sql, "('a', 1), ('b', 9)", *flows), arrive(sql, "('a', 3)", *flows)]
    side_by_side(start_again, cases)  # what is stored can be read again, whatever time it is
    times.append(arrive(sql, "('a', 30)", *flows))
    side_by_side(have_their_time, cases)


def test_having_sees_the_time_of_the_flush(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v BIGINT) USING delta")
    query = "SELECT k, count(*) AS n FROM STREAM ev GROUP BY k HAVING max(v) > unix_millis(current_timestamp())"
    for backend in BACKENDS:
        create(sql, backend, query, backend)
    start = int(time.time() * 1000)
    arrive(sql, f"('later', {start + 3_600_000}), ('now', {start})", *BACKENDS)
    for backend in BACKENDS:
        assert sql.batch(f"SELECT * FROM {backend}") == [("later", 1)], backend
    start = int(time.time() * 1000)  # after the flows' start, and before the next flush
    arrive(sql, f"('later', {start}), ('now', {start})", *BACKENDS)
    for backend in BACKENDS:
        assert sql.batch(f"SELECT * FROM {backend}") == [("later", 2)], backend


def test_random_keys_differ_between_micro_batches(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    query = "SELECT r, count(*) AS n FROM (SELECT CAST(rand() * 1e15 AS BIGINT) AS r FROM STREAM ev) GROUP BY r"
    for backend in BACKENDS:
        create(sql, backend, query, backend)
    for _ in range(2):
        arrive(sql, "('a', 1)", *BACKENDS)
    for backend in BACKENDS:
        assert [row.n for row in sql(f"SELECT * FROM {backend}")] == [1, 1], backend


def test_the_time_of_day_is_no_key(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    with pytest.raises(PySparkException, match=r"GROUP BY current_time\(\) has no meaning"):
        create(
            sql,
            "auto",
            "SELECT CAST(current_time() AS STRING) AS c, count(*) AS n FROM STREAM ev GROUP BY CAST(current_time() AS STRING)",
            "t",
        )
    assert sql("SHOW FLOWS") == []
    create(sql, "auto", "SELECT k, max(CAST(current_time() AS STRING)) AS c FROM STREAM ev GROUP BY k", "t")
    found = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert found["state"] == "rocksdb: an argument reads current_time(), which no column can hold."


def test_a_text_that_means_the_time_of_planning(sql: Workshop) -> None:
    """Spark makes a literal of it when it plans, which is once for an aggregate with its state in Delta."""
    sql("CREATE TABLE ev (k STRING, at TIMESTAMP) USING delta")
    query = "SELECT k, count(*) FILTER (WHERE at > 'now') AS future, count(*) AS n FROM STREAM ev GROUP BY k"
    with pytest.raises(PySparkException, match=r"it reads 'now', .* Write current_date\(\) or current_timestamp\(\)"):
        create(sql, "delta", query, "t")
    with pytest.raises(PySparkException, match="it reads 'today'"):
        create(sql, "delta", "SELECT k, sum(CASE WHEN at >= DATE('today') THEN 1 END) AS n FROM STREAM ev GROUP BY k", "t")
    create(sql, "auto", query, "t")
    sql("INSERT INTO ev VALUES ('a', current_timestamp())")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 0, 1)]
    assert "it reads 'now'" in next(str(row.value) for row in sql("DESCRIBE FLOW t") if row.property == "state")
