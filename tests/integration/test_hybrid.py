"""Hybrid sources: history first, then the live stream, each row once (FLIP-309)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.flows import backlog_controller
from sqlext.execution.streaming.hybrid import RunningHybrid
from sqlext.execution.streaming.pace import Phase
from tests.integration.test_backlog import KEY, is_live, phases
from tests.integration.workshop import DEADLINE, Workshop
from tests.support import eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")

FLOW = (
    "CREATE STREAMING TABLE {table} TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', '{key}' = '0') AS "
    "SELECT h.k, count(*) AS n, sum(h.v) AS total FROM STREAM {hybrid} AS h GROUP BY h.k"
)


def tables(sql: Workshop, *names: str) -> None:
    for name in names:
        sql(f"CREATE TABLE {name} (k STRING, v INT) USING delta")


def make(sql: Workshop, hybrid: str, table: str = "t") -> None:
    sql(FLOW.format(table=table, key=KEY, hybrid=hybrid))


def result(sql: Workshop, table: str = "t") -> list[tuple[object, ...]]:
    return sql.batch(f"SELECT k, n, total FROM {table}")


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


MISTAKES = [
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
]


class Case(NamedTuple):
    """Relations of a hybrid source, the stream last, whose rows are compared by `v`.

    Attributes:
        relations: the values of `v` in each; or pairs of `k` and `v`, where `k` is not 'a'.
        counted: those of which the flow's result is to be made.
        aggregates: what is made of them, from `h.v`.
        properties: of the flow.
    """

    name: str
    kind: str
    relations: Sequence[Sequence[Any]]
    counted: Sequence[Any]
    aggregates: str = "sort_array(collect_list(h.v)) AS vs"
    properties: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def tables(self) -> list[str]:
        return [f"{self.name}_{at}" for at in range(len(self.relations))]

    def query(self, relation: str) -> str:
        return f"SELECT h.k, count(*) AS n, {self.aggregates} FROM {relation} AS h GROUP BY h.k"

    def values(self, values: Sequence[Any]) -> str:
        pairs = [value if isinstance(value, tuple) else ("a", value) for value in values]
        rows = [f"('{k}', CAST({'NULL' if v is None else repr(str(v))} AS {self.kind}))" for k, v in pairs]
        return f"(SELECT col1 AS k, col2 AS v FROM VALUES {', '.join(rows)})"


SUMS = {
    "aggregates": "sum(h.v) AS total",
    "properties": f"TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', '{KEY}' = '0')",
}
CASES = [
    Case(
        "two_relations",
        "INT",
        [[1, ("b", 2), 3], [("b", 2), 3, 4, ("c", None)]],
        [1, ("b", 2), 3, 4, ("c", None)],
        **SUMS,
    ),
    Case("three_relations", "INT", [[1, 1], [2, 1], [3, 1]], [1, 1, 2, 3], **SUMS),
    # the second relation ends lower than the first: what the first had does not count again
    Case("ends_lower", "INT", [[1, 9, 10], [2, 3], [4, 9, 10, 11]], [1, 9, 10, 11]),
    # as numbers, not as texts; nulls are no end, and always count
    Case(
        "numbers",
        "DECIMAL(10,2)",
        [["9.50", "100.00", None], ["20", None], ["99.99", "100.01", None]],
        ["9.50", "100", "100.01", *[None] * 3],
    ),
    # the same hour of the clock, twice in one night
    Case(
        "times",
        "TIMESTAMP",
        [
            ["2024-11-03 05:30:00 UTC", "2024-11-03 06:30:00 UTC"],
            ["2024-11-03 05:45:00 UTC"],
            ["2024-11-03 06:15:00 UTC", "2024-11-03 06:45:00 UTC"],
        ],
        ["2024-11-03 05:30:00 UTC", "2024-11-03 06:30:00 UTC", "2024-11-03 06:45:00 UTC"],
    ),
    Case("texts", "STRING", [["b", "é"], ["a", "c"], ["d", "z", "ü"]], ["b", "é", "ü"]),
]


@pytest.mark.usefixtures("unhurried")
def test_rows_that_earlier_relations_have_are_not_read_again(sql: Workshop) -> None:
    sql("SET spark.sql.session.timeZone = America/New_York")

    def create(case: Case) -> None:
        for table, values in zip(case.tables, case.relations, strict=True):
            sql(f"CREATE TABLE {table} USING delta AS SELECT * FROM {case.values(values)}")
        *earlier, stream = case.tables
        hybrid = f"STREAM hybrid({', '.join(f'TABLE {table}' for table in earlier)}, STREAM {stream}, on => v)"
        sql(f"CREATE STREAMING TABLE {case.name} {case.properties} AS {case.query(hybrid)}")

    def equals_batch(case: Case) -> None:
        sql(f"WAIT FLOW {case.name}")
        assert sql.batch(f"SELECT * FROM {case.name}") == sql.batch(case.query(case.values(case.counted)))

    side_by_side(create, CASES)
    side_by_side(equals_batch, CASES)

    hybrid = sql.flow("three_relations")._intakes[0].hybrid
    assert hybrid is not None
    boundaries = [hybrid._boundary_before(part) for part in (1, 2)]
    found = sql.spark.range(1).select(*(each for each in boundaries if each is not None)).first()
    assert found is not None
    assert tuple(found) == (1, 2), "a relation that is looked at again is not held against itself"


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
    """Also when the switch never came: after the crash, the history's newer rows count too, and the boundary is theirs."""
    tables(sql, "past", "live", "longer", "later")
    sql("INSERT INTO past VALUES ('a', 1), ('b', 2)")
    sql("INSERT INTO longer VALUES ('a', 1)")
    sql("INSERT INTO later VALUES ('a', 2), ('a', 3)")
    make(sql, "hybrid(TABLE past, STREAM live, on => v)")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("INSERT INTO live VALUES ('b', 2), ('b', 5)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 1, 1), ("b", 2, 7)]
    sql("INSERT INTO live VALUES ('c', 6)")
    sql.take_in("t")
    make(sql, "hybrid(TABLE longer, STREAM later, on => v)", "u")
    flow = sql.flow("u")
    flow._backlog._closed.set()  # nobody looks, so the next relation is never turned to
    eventually(lambda: flow._intakes[0].has_ended_part, DEADLINE)

    sql.crash()
    sql("INSERT INTO longer VALUES ('a', 2)")
    assert sorted(sql.resume()) == ["t", "u"]
    for table in "tu":
        sql(f"WAIT FLOW {table}")
    assert result(sql) == [("a", 1, 1), ("b", 2, 7), ("c", 1, 6)]
    assert result(sql, "u") == [("a", 3, 6)]


def test_a_turn_that_ends_after_a_stop_starts_no_query(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_controller, "_CLOSE_SECONDS", 0.2)
    turning, go_on, advance = threading.Event(), threading.Event(), RunningHybrid.advance

    def slowly(hybrid: RunningHybrid) -> None:
        turning.set()
        assert go_on.wait(DEADLINE)
        advance(hybrid)

    monkeypatch.setattr(RunningHybrid, "advance", slowly)
    tables(sql, "past", "live")
    sql("INSERT INTO past VALUES ('a', 1)")
    make(sql, "hybrid(TABLE past, STREAM live)")
    assert turning.wait(DEADLINE)
    flow = sql.flow("t")
    sql("STOP FLOW t")
    go_on.set()
    eventually(lambda: not any(each.name == "sqlext-pace-t" for each in threading.enumerate()), DEADLINE)
    assert flow.session.streams.active == []
    monkeypatch.undo()
    sql("INSERT INTO live VALUES ('a', 10)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert result(sql) == [("a", 2, 11)]


def test_a_mistake_is_told(sql: Workshop) -> None:
    tables(sql, "past", "live")
    sql("CREATE TABLE other (k STRING, w INT) USING delta")
    sql("CREATE TABLE reals (k STRING, v DOUBLE) USING delta")
    sql.spark.readStream.table("past").where("v > 1").createOrReplaceTempView("seen")

    def is_told(mistake: tuple[str, str]) -> None:
        hybrid, said = mistake
        with pytest.raises(PySparkException) as caught:
            make(sql, hybrid)
        assert said in str(caught.value)

    side_by_side(is_told, MISTAKES)
