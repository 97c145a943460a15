"""The current time and random numbers in aggregates: each micro-batch and each flush has its own, wherever the state lives."""

from __future__ import annotations

import time

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import Workshop

BACKENDS = pytest.mark.parametrize("backend", ["delta", "rocksdb"])


def create(sql: Workshop, backend: str, query: str, name: str = "t") -> None:
    sql(f"CREATE STREAMING TABLE {name} TBLPROPERTIES ('state.backend.type' = '{backend}') AS {query}")


def arrive(sql: Workshop, values: str, *flows: str) -> tuple[int, int]:
    """Let rows arrive, and give the time before and after they came into the tables, in milliseconds since 1970."""
    before = int(time.time() * 1000)
    sql(f"INSERT INTO ev VALUES {values}")
    for flow in flows:
        sql(f"WAIT FLOW {flow}")
    return before, int(time.time() * 1000)


@BACKENDS
def test_results_have_the_time_of_their_own_flush(sql: Workshop, backend: str) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    create(
        sql,
        backend,
        "SELECT k, count(*) AS n, current_timestamp() AS at, unix_millis(now()) AS ms, localtimestamp() AS l, "
        "unix_timestamp() AS s, current_date() AS d, rand() AS r, uuid() AS id FROM STREAM ev GROUP BY k",
    )
    first = arrive(sql, "('a', 1), ('b', 2)", "t")
    earlier = {row.k: row for row in sql("SELECT *, unix_millis(at) AS at_ms FROM t")}
    second = arrive(sql, "('a', 3), ('c', 4)", "t")
    rows = {row.k: row for row in sql("SELECT *, unix_millis(at) AS at_ms FROM t")}
    assert {k: row.n for k, row in rows.items()} == {"a": 2, "b": 1, "c": 1}
    for k, (start, end) in (("a", second), ("b", first), ("c", second)):
        row = rows[k]
        assert start <= row.at_ms <= end
        assert start <= row.ms <= end
        assert start // 1000 <= row.s <= end // 1000
        assert row.l == row.at
        assert row.d == row.at.date()
    assert rows["b"] == earlier["b"]  # a group that has not changed keeps its row
    random = [row.r for row in (*earlier.values(), rows["a"], rows["c"])]
    assert len(set(random)) == len(random)
    identities = [row.id for row in (*earlier.values(), rows["a"], rows["c"])]
    assert len(set(identities)) == len(identities)


@BACKENDS
@pytest.mark.parametrize("relation", ["STREAM ev", "seen"])
def test_keys_arguments_and_filters_have_the_time_of_their_micro_batch(sql: Workshop, backend: str, relation: str) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    now = {"STREAM ev": "now()", "seen": "at"}[relation]
    with_ = "WITH seen AS (SELECT *, current_timestamp() AS at FROM STREAM ev) " if relation == "seen" else ""
    create(sql, backend, f"{with_}SELECT {now} AS at, count(*) AS n FROM {relation} GROUP BY {now}")
    create(
        sql,
        backend,
        f"{with_}SELECT k, unix_millis(min({now})) AS least, unix_millis(max({now})) AS most, max(curdate()) AS d, "
        f"count(*) FILTER (WHERE v < unix_millis({now}) - unix_millis(current_timestamp()) + 5) AS few "
        f"FROM {relation} GROUP BY k",
        "u",
    )
    times = [arrive(sql, "('a', 1), ('b', 9)", "t", "u"), arrive(sql, "('a', 3)", "t", "u")]
    found = sql("SELECT unix_millis(at) AS at, n FROM t ORDER BY at")
    assert [row.n for row in found] == [2, 1]
    assert all(start <= row.at <= end for row, (start, end) in zip(found, times, strict=True))
    sql("STOP FLOW u")  # and what is stored can be read again, whatever time it is
    sql("START FLOW u")
    times.append(arrive(sql, "('a', 30)", "t", "u"))
    a, b = sql("SELECT * FROM u ORDER BY k")
    assert (a.few, b.few) == (2, 0)
    assert times[0][0] <= a.least <= times[0][1]
    assert times[2][0] <= a.most <= times[2][1]
    assert b.least == b.most == a.least
    assert [row.n for row in sql("SELECT n FROM t ORDER BY at")] == [2, 1, 1]


@BACKENDS
def test_having_sees_the_time_of_the_flush(sql: Workshop, backend: str) -> None:
    sql("CREATE TABLE ev (k STRING, v BIGINT) USING delta")
    query = "SELECT k, count(*) AS n FROM STREAM ev GROUP BY k HAVING max(v) > unix_millis(current_timestamp())"
    create(sql, backend, query)
    start = int(time.time() * 1000)
    arrive(sql, f"('later', {start + 3_600_000}), ('now', {start})", "t")
    assert sql.batch("SELECT * FROM t") == [("later", 1)]
    start = int(time.time() * 1000)  # after the flow's start, and before the next flush
    arrive(sql, f"('later', {start}), ('now', {start})", "t")
    assert sql.batch("SELECT * FROM t") == [("later", 2)]


@BACKENDS
def test_random_keys_differ_between_micro_batches(sql: Workshop, backend: str) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    create(
        sql,
        backend,
        "SELECT r, count(*) AS n FROM (SELECT CAST(rand() * 1e15 AS BIGINT) AS r FROM STREAM ev) GROUP BY r",
    )
    for _ in range(2):
        arrive(sql, "('a', 1)", "t")
    assert [row.n for row in sql("SELECT * FROM t")] == [1, 1]


def test_the_time_of_day_is_no_key(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    with pytest.raises(PySparkException, match=r"GROUP BY current_time\(\) has no meaning"):
        create(
            sql,
            "auto",
            "SELECT CAST(current_time() AS STRING) AS c, count(*) AS n FROM STREAM ev GROUP BY CAST(current_time() AS STRING)",
        )
    assert sql("SHOW FLOWS") == []
    create(sql, "auto", "SELECT k, max(CAST(current_time() AS STRING)) AS c FROM STREAM ev GROUP BY k")
    found = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert found["state"] == "rocksdb: an argument reads current_time(), which no column can hold."
