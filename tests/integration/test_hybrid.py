"""Hybrid sources: history first, then the live stream, each row once (FLIP-309)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.streaming.pace import Phase
from tests.integration.test_backlog import KEY, is_live, phases
from tests.integration.workshop import DEADLINE, Workshop
from tests.support import eventually

FLOW = (
    "CREATE STREAMING TABLE t TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', '{key}' = '0') AS "
    "SELECT h.k, count(*) AS n, sum(h.v) AS total FROM STREAM {hybrid} AS h GROUP BY h.k"
)


def tables(sql: Workshop, *names: str) -> None:
    for name in names:
        sql(f"CREATE TABLE {name} (k STRING, v INT) USING delta")


def make(sql: Workshop, hybrid: str) -> None:
    sql(FLOW.format(key=KEY, hybrid=hybrid))


def result(sql: Workshop) -> list[tuple[object, ...]]:
    return sql.batch("SELECT k, n, total FROM t")


def test_history_comes_first_and_is_backlog(sql: Workshop) -> None:
    tables(sql, "past", "live")
    sql("INSERT INTO past VALUES ('a', 1), ('b', 2)")
    sql("INSERT INTO live VALUES ('a', 10)")
    make(sql, "hybrid(TABLE past, STREAM live)")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 2, 11), ("b", 1, 2)]
    flow = sql.flow("t")
    assert phases(flow) == [Phase.BACKLOG, Phase.LIVE]
    sql("INSERT INTO past VALUES ('a', 1000)")  # the past is over
    sql("INSERT INTO live VALUES ('b', 20)")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 2, 11), ("b", 2, 22)]
    assert (phases(flow), is_live(flow)) == ([Phase.BACKLOG, Phase.LIVE], True)


def test_rows_that_history_has_are_not_read_again(sql: Workshop) -> None:
    tables(sql, "past", "live")
    sql("INSERT INTO past VALUES ('a', 1), ('b', 2), ('a', 3)")
    sql("INSERT INTO live VALUES ('b', 2), ('a', 3), ('a', 4), ('c', NULL)")
    make(sql, "hybrid(TABLE past, STREAM live, on => v)")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 3, 8), ("b", 1, 2), ("c", 1, None)]


def test_three_relations(sql: Workshop) -> None:
    tables(sql, "older", "old", "live")
    for value, name in enumerate(("older", "old", "live"), 1):
        sql(f"INSERT INTO {name} VALUES ('a', {value}), ('a', 1)")
    make(sql, "hybrid(TABLE older, TABLE old, STREAM live, on => v)")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 4, 7)]
    hybrid = sql.flow("t")._intakes[0].hybrid
    assert hybrid is not None
    boundaries = [hybrid._boundary_before(part) for part in (1, 2)]
    found = sql.spark.range(1).select(*(each for each in boundaries if each is not None)).first()
    assert found is not None
    assert tuple(found) == (1, 2), "a relation that is looked at again is not held against itself"


@pytest.mark.parametrize(
    ("kind", "older", "old", "live", "counted"),
    [
        # the second relation ends lower than the first: what the first had does not count again
        ("INT", [1, 9, 10], [2, 3], [4, 9, 10, 11], [1, 9, 10, 11]),
        # as numbers, not as texts; nulls are no end, and always count
        (
            "DECIMAL(10,2)",
            ["9.50", "100.00", None],
            ["20", None],
            ["99.99", "100.01", None],
            ["9.50", "100", "100.01", *[None] * 3],
        ),
        # the same hour of the clock, twice in one night
        (
            "TIMESTAMP",
            ["2024-11-03 05:30:00 UTC", "2024-11-03 06:30:00 UTC"],
            ["2024-11-03 05:45:00 UTC"],
            ["2024-11-03 06:15:00 UTC", "2024-11-03 06:45:00 UTC"],
            ["2024-11-03 05:30:00 UTC", "2024-11-03 06:30:00 UTC", "2024-11-03 06:45:00 UTC"],
        ),
        ("STRING", ["b", "é"], ["a", "c"], ["d", "z", "ü"], ["b", "é", "ü"]),
    ],
)
def test_a_later_relation_that_ends_lower(
    sql: Workshop, kind: str, older: list[Any], old: list[Any], live: list[Any], counted: list[Any]
) -> None:
    sql("SET spark.sql.session.timeZone = America/New_York")
    for name, values in (("older", older), ("old", old), ("live", live)):
        sql(f"CREATE TABLE {name} (k STRING, v {kind}) USING delta")
        sql(f"INSERT INTO {name} VALUES {', '.join(_row(value, kind) for value in values)}")
    make_list = "SELECT h.k, count(*) AS n, sort_array(collect_list(h.v)) AS vs FROM STREAM"
    sql(f"CREATE STREAMING TABLE t AS {make_list} hybrid(TABLE older, TABLE old, STREAM live, on => v) h GROUP BY h.k")
    sql("WAIT FLOW t")
    every = f"(SELECT col1 AS k, col2 AS v FROM VALUES {', '.join(_row(value, kind) for value in counted)})"
    expected = sql.batch(f"SELECT k, count(*) AS n, sort_array(collect_list(v)) AS vs FROM {every} GROUP BY k")
    assert sql.batch("SELECT k, n, vs FROM t") == expected


def _row(value: Any, kind: str) -> str:
    return f"('a', CAST({'NULL' if value is None else repr(str(value))} AS {kind}))"


def test_beside_a_plain_stream(sql: Workshop) -> None:
    """Spark keeps offsets by name for the one query, and asks no names of the other, started before it or after."""
    tables(sql, "past", "live", "plain")
    sql("INSERT INTO past VALUES ('a', 1)")
    sql("INSERT INTO live VALUES ('a', 10)")
    sql("INSERT INTO plain VALUES ('b', 5)")
    query = "SELECT h.k, count(*) AS n, sum(h.v) AS total FROM STREAM {} AS h GROUP BY h.k"
    sql("CREATE STREAMING TABLE t AS " + query.format("plain") + " UNION ALL " + query.format("hybrid(TABLE past, STREAM live)"))
    assert len(sql.flow("t")._intakes) == 2
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("START FLOW t")
    sql("INSERT INTO plain VALUES ('b', 6)")
    sql("INSERT INTO live VALUES ('a', 20)")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 3, 31), ("b", 2, 11)]


def test_resumes_after_a_stop_and_a_crash(sql: Workshop) -> None:
    tables(sql, "past", "live")
    sql("INSERT INTO past VALUES ('a', 1), ('b', 2)")
    make(sql, "hybrid(TABLE past, STREAM live, on => v)")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("INSERT INTO live VALUES ('b', 2), ('b', 5)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 1, 1), ("b", 2, 7)]
    sql("INSERT INTO live VALUES ('c', 6)")
    sql.take_in("t")
    sql.crash()
    sql.resume()
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 1, 1), ("b", 2, 7), ("c", 1, 6)]


def test_a_crash_in_the_history_loses_nothing(sql: Workshop) -> None:
    """The switch never came: after the crash, the history's newer rows count too, and the boundary is theirs."""
    tables(sql, "past", "live")
    sql("INSERT INTO past VALUES ('a', 1)")
    sql("INSERT INTO live VALUES ('a', 2), ('a', 3)")
    make(sql, "hybrid(TABLE past, STREAM live, on => v)")
    flow = sql.flow("t")
    flow._backlog._closed.set()  # nobody looks, so the next relation is never turned to
    eventually(lambda: flow._intakes[0].has_ended_part, DEADLINE)
    sql.crash()
    sql("INSERT INTO past VALUES ('a', 2)")
    sql.resume()
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 3, 6)]


@pytest.mark.parametrize(
    ("hybrid", "said"),
    [
        ("hybrid(STREAM live, TABLE past)", "A hybrid source is one or more tables, followed by one stream."),
        ("hybrid(STREAM live)", "A hybrid source is one or more tables, followed by one stream."),
        ("hybrid(TABLE other, STREAM live)", "The relations of a hybrid source must have the same columns."),
        ("hybrid(TABLE past, STREAM live, on => w)", "`h` has no column `w`, which `on` names."),
        (
            "hybrid(TABLE past WITH ('startingVersion' = '1'), STREAM live, on => v)",
            "`startingVersion` of `past` changes which rows are read, but `on` of `h` needs all rows of the table to be read.",
        ),
        (
            "hybrid(TABLE past WITH ('skipChangeCommits' = 'true'), STREAM live, on => v)",
            "`skipChangeCommits` of `past` changes which rows",
        ),
        ("hybrid(TABLE reals, STREAM reals, on => v)", "`on` of `h` names `v` of type double, whose values cannot all be put"),
        ("hybrid(TABLE seen, STREAM live, on => v)", "`on` of `h` needs Delta tables before the last relation"),
    ],
)
def test_a_mistake_is_told(sql: Workshop, hybrid: str, said: str) -> None:
    tables(sql, "past", "live")
    sql("CREATE TABLE other (k STRING, w INT) USING delta")
    sql("CREATE TABLE reals (k STRING, v DOUBLE) USING delta")
    sql.spark.readStream.table("past").where("v > 1").createOrReplaceTempView("seen")
    with pytest.raises(PySparkException) as caught:
        make(sql, hybrid)
    assert said in str(caught.value)
