"""Session windows: sessions are put together as rows come, and the table is what a batch query gives of all of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from sqlext.execution.delta import commit
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.execution.state.session_state import SessionState
from tests.integration.test_delta_state import other_driver_before
from tests.integration.workshop import BUFFERED, Workshop, are_contiguous
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

STREAM = "STREAM ev WITH ('maxFilesPerTrigger' = '1')"
WATERMARKED = f"{STREAM} WATERMARK at DELAY OF INTERVAL 1 MINUTE"
WINDOW = "session_window(at, '10 minutes')"
BY_KEY = f"FROM {{}} GROUP BY {WINDOW}, k"
QUERY = f"SELECT {WINDOW} AS w, k, count(*) AS n, sum(v) AS total {BY_KEY}"

Values = tuple[str | None, int | None, int | None]
"""A key, minutes after midnight, and a value."""
STEPS: tuple[list[Values], ...] = (
    [("a", 0, 1), ("a", 5, 2), ("a", 60, 7), ("b", 0, 3), (None, 3, 4), ("a", None, 5)],
    [("a", 30, 6), ("b", 100, 8), ("c", 1, None)],
    [("a", 14, 10), ("a", 24, 9), ("b", 50, 11), (None, None, 12)],  # one session of those from 0 and from 30, which 34 touches
    [("a", 45, 13), ("a", 52, 14), ("b", 90, 16), ("b", -200, 17)],  # 90 to 100 touches what begins at 100
    [("a", 40, 15), ("d", 3, 1)],  # all of a is one session
)


def source(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, at TIMESTAMP, v INT) USING delta")
    insert(sql, STEPS[0])


def insert(sql: Workshop, rows: list[Values]) -> None:
    """One commit of rows, in one file."""
    start = datetime(2026, 1, 1)
    values = [Row(k=k, at=None if minute is None else start + timedelta(minutes=minute), v=v) for k, minute, v in rows]
    frame = sql.spark.createDataFrame(values, "k STRING, at TIMESTAMP, v INT")
    frame.coalesce(1).write.format("delta").mode("append").saveAsTable("ev")


def check(sql: Workshop, query: str, table: str = "t") -> None:
    sql(f"WAIT FLOW {table}")
    assert sql.batch(f"SELECT * FROM {table}") == sql.batch(query.format("ev"))


def check_all(sql: Workshop, queries: Mapping[str, str]) -> None:
    """Check the table of each query, called by its name."""
    side_by_side(lambda name: check(sql, queries[name], name), queries)


def create_all(sql: Workshop, queries: Mapping[str, str]) -> None:
    """Create a table for each query, called by its name."""
    side_by_side(lambda name: sql(f"CREATE STREAMING TABLE {name} {BUFFERED} AS {queries[name].format(STREAM)}"), queries)


def dies(*_: object, **__: object) -> None:
    raise OSError("died here")


def write_as(writing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways in which a state is written: a small one as a whole, few rows of a large one, many rows by MERGE."""
    if writing != "whole":
        monkeypatch.setattr(commit, "SMALL_TABLE_BYTES", 0)
    if writing == "merged":
        for limit in ("_BROADCAST_ROWS", "_BROADCAST_WIDE_ROWS"):
            monkeypatch.setattr(commit, limit, -1)


ENDING = {
    "by_key": f"SELECT k, {WINDOW} AS w, count(*) AS n, sum(v) AS total FROM {{}} GROUP BY k, {WINDOW}",
    "distinct": f"SELECT session_window.start AS s, count(DISTINCT v) AS n FROM {{}} GROUP BY {WINDOW}",
    "gap_of_each_row": "SELECT v, session_window(at, CASE WHEN v > 5 THEN '1 minute' ELSE '1 hour' END) AS w, max_by(k, at) AS k "
    "FROM {} GROUP BY 1, 2",
}


def test_queries_that_end_have_sessions_too(sql: Workshop) -> None:
    source(sql)
    for step in STEPS[1:]:
        insert(sql, step)

    def equals_batch(name: str) -> None:
        ended = sql.batch(f"{ENDING[name].format('STREAM ev')} GLOBAL WINDOW END OF STREAM")
        assert ended == sql.batch(ENDING[name].format("ev"))

    side_by_side(equals_batch, ENDING)


def test_late_rows_make_one_session_of_two(sql: Workshop) -> None:
    source(sql)
    flows = {"plain": ("", STREAM), "watermarked": (BUFFERED, WATERMARKED)}
    for name, (properties, relation) in flows.items():
        sql(f"CREATE STREAMING TABLE {name} {properties} AS {QUERY.format(relation)}")
    check_all(sql, dict.fromkeys(flows, QUERY))
    for step in STEPS[1:]:
        insert(sql, step)
        check_all(sql, dict.fromkeys(flows, QUERY))
    for name in flows:
        assert [row[2] for row in sql.batch(f"SELECT * FROM {name} WHERE k = 'a'")] == [9]  # 0 to 70
        assert are_contiguous(sql.commits(name))
    newest = sql.commits("watermarked")[-1]
    assert newest["watermark"].startswith("2026-01-01T01:39:00")  # of the row at 100, less a minute


FUNCTIONS = {
    "by_value": "avg(v) AS mean, count(DISTINCT v % 3) AS d, min_by(v, at) AS f, max_by(v, at) AS l, min(at) AS least, "
    "round(stddev(v), 6) AS sd, count(*) FILTER (WHERE v > 5) AS large, array_sort(collect_set(v)) AS s",
    "by_time": "first(v) AS f, last(v) AS l, collect_list(v) AS list, count(*) AS n",
}


@pytest.mark.parametrize("writing", ["whole", "placed", "merged"])
def test_functions(sql: Workshop, monkeypatch: pytest.MonkeyPatch, writing: str) -> None:
    """Values come by the time of their rows, as Spark's batch takes them, however late they are."""
    write_as(writing, monkeypatch)
    names = FUNCTIONS if writing == "whole" else ["by_time"]
    queries = {name: f"SELECT k, {WINDOW} AS w, {FUNCTIONS[name]} {BY_KEY}" for name in names}
    source(sql)
    create_all(sql, queries)
    for step in (*STEPS[2:], STEPS[1]):
        insert(sql, step)
    check_all(sql, queries)
    insert(sql, [("a", 33, 100), ("c", 5, 1), ("d", 50, 2)])
    check_all(sql, queries)


QUERIES = {
    "no_other_key": f"SELECT {WINDOW} AS w, count(*) AS n FROM {{}} GROUP BY {WINDOW}",
    "start": f"SELECT session_window.start AS since, upper(k) AS u, count(*) AS n FROM {{}} GROUP BY upper(k), {WINDOW}",
    "fields": f"SELECT {WINDOW}.end AS until, k, {WINDOW}.start AS since, v > 5 AS large, sum(v) AS total FROM {{}} GROUP BY ALL",
    "dynamic_gap": "SELECT session_window(at, CASE WHEN v > 9 THEN '0 minutes' WHEN v > 5 THEN '40 minutes' ELSE '5 minutes' END)"
    " AS w, k, count(*) AS n FROM {} GROUP BY 1, 2",
    "local_time": "SELECT session_window(CAST(at AS TIMESTAMP_NTZ), '10 minutes') AS w, k, avg(v) AS mean FROM {} GROUP BY ALL",
    "having": f"SELECT {WINDOW} AS w, k, count(*) AS n {BY_KEY} HAVING count(*) BETWEEN 2 AND 4",
    "above": "SELECT k, max(n) AS most, sum(unix_seconds(e) - unix_seconds(s)) AS seconds FROM (SELECT k, count(*) AS n, "
    f"{WINDOW}.end AS e, session_window.start AS s {BY_KEY}) GROUP BY k ORDER BY most DESC, k LIMIT 3",
    "key_left_out": f"SELECT count(*) AS n, avg(v) AS mean {BY_KEY}",
}


@pytest.mark.usefixtures("unhurried")
def test_queries(sql: Workshop) -> None:
    source(sql)
    create_all(sql, QUERIES)
    check_all(sql, QUERIES)
    for first, second in ((1, 2), (3, 4)):
        insert(sql, STEPS[first])
        insert(sql, STEPS[second])
        check_all(sql, QUERIES)


@pytest.mark.parametrize("writing", ["whole", "placed", "merged"])
def test_many_rows_by_chance(sql: Workshop, monkeypatch: pytest.MonkeyPatch, writing: str) -> None:
    write_as(writing, monkeypatch)
    chance = random.Random(writing)  # no secret
    gap = "concat(1 + v % 7, ' minutes')"
    query = QUERY.replace("'10 minutes'", gap)
    source(sql)
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {query.format(STREAM)}")
    for _ in range(3):
        insert(sql, [(chance.choice("abcd"), chance.randint(0, 600), chance.randint(0, 100)) for _ in range(50)])
        insert(sql, [(chance.choice("abcde"), chance.randint(-100, 900), chance.randint(0, 100)) for _ in range(9)])
        check(sql, query)


# Crashes.


def test_a_crash_between_the_two_commits_of_a_flush(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is ahead of the state, which still knows what the table showed before."""
    flows = {"unbuffered": "", "buffered": BUFFERED}
    queries = dict.fromkeys(flows, QUERY)
    source(sql)
    for name, properties in flows.items():
        sql(f"CREATE STREAMING TABLE {name} {properties} AS {QUERY.format(STREAM)}")
    check_all(sql, queries)
    insert(sql, STEPS[1])
    with monkeypatch.context() as patched:
        patched.setattr(SessionState, "_write", dies)
        for name in flows:
            with pytest.raises(PySparkException, match="died here"):
                sql(f"WAIT FLOW {name}")
    for name in flows:
        assert len(sql.commits(name)) == 2
    sql.crash()
    insert(sql, STEPS[2])
    insert(sql, STEPS[3])
    for name in flows:
        sql(f"START FLOW {name}")
    check_all(sql, queries)
    insert(sql, STEPS[4])
    check_all(sql, queries)
    for name in flows:
        assert are_contiguous(sql.commits(name))


def test_what_another_driver_has_just_stored_is_not_added_again(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    source(sql)
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {QUERY.format(STREAM)}")
    check(sql, QUERY)
    insert(sql, STEPS[1])
    landed = other_driver_before(monkeypatch, SessionState)
    check(sql, QUERY)
    assert landed
    insert(sql, STEPS[2])
    check(sql, QUERY)


def test_a_crash_before_the_first_of_the_two(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    query = f"SELECT k, max(n) AS most FROM (SELECT k, count(*) AS n {BY_KEY}) GROUP BY k"
    source(sql)
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {query.format(STREAM)}")
    check(sql, query)
    for name, step in (("_merge_rows", 1), ("_replace", 2)):
        insert(sql, STEPS[step])
        with monkeypatch.context() as patched:
            patched.setattr(TableWriter, name, dies)
            with pytest.raises(PySparkException, match="died here"):
                sql("WAIT FLOW t")
        sql.crash()
        sql("START FLOW t")
        check(sql, query)


def test_resumes_what_a_crash_left(sql: Workshop) -> None:
    source(sql)
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {QUERY.format(WATERMARKED)}")
    sql.freeze()
    sql.take_in("t")
    sql("FLUSH FLOW t")
    insert(sql, STEPS[1])
    insert(sql, STEPS[2])
    sql.take_in("t")
    sql.crash()
    assert sql.resume() == ["t"]
    assert [commit["reason"] for commit in sql.commits("t")] == ["command", "recovery"]
    assert sql.batch("SELECT * FROM t") == sql.batch(QUERY.format("ev"))


# What is told, and what is refused.


def test_where_the_state_is(sql: Workshop) -> None:
    source(sql)
    statement = f"CREATE STREAMING TABLE t AS {QUERY.format(WATERMARKED)}"
    where = "delta: partial results are kept in a table of the flow's own, since a row may merge two sessions"
    assert where in sql(f"EXPLAIN {statement}")[0].plan
    sql(statement)
    assert next(row.value for row in sql("DESCRIBE FLOW t") if row.property == "state").startswith(where)
    sql("INSERT INTO ev VALUES ('a', TIMESTAMP '2026-01-01 00:07:00', 1)")
    sql("WAIT FLOW t")
    sql(f"DELETE FROM delta.`{sql.home('t') / 'state'}` WHERE true")
    sql("INSERT INTO ev VALUES ('a', TIMESTAMP '2026-01-01 00:08:00', 1)")
    with pytest.raises(PySparkException, match=r"\(DELETE\) changed rows"):
        sql("WAIT FLOW t")


@pytest.mark.parametrize(
    ("query", "because"),
    [
        (QUERY.replace("count(*)", "count(*) FILTER (WHERE v > (SELECT 1))"), "it contains a subquery"),
        (f"SELECT {WINDOW} AS w, k, count(*) AS n FROM {{}} GROUP BY ROLLUP({WINDOW}, k)", "Leave session_window out of ROLLUP"),
    ],
    ids=["subquery", "rollup"],
)
def test_what_is_refused(sql: Workshop, query: str, because: str) -> None:
    source(sql)
    with pytest.raises(PySparkException, match=because):
        sql(f"CREATE STREAMING TABLE t AS {query.format(STREAM)}")


@pytest.mark.parametrize("statement", ["", "EXPLAIN "])
def test_sessions_are_not_kept_in_a_state_store(sql: Workshop, statement: str) -> None:
    source(sql)
    properties = "TBLPROPERTIES ('state.backend.type' = 'rocksdb')"
    with pytest.raises(PySparkException, match=r"state\.backend\.type is rocksdb, and Spark's state store has no sessions"):
        sql(f"{statement}CREATE STREAMING TABLE t {properties} AS {QUERY.format(STREAM)}")
