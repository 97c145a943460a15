"""Hybrid sources: what a query becomes, what the flow reads one after the other, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sqlext.errors import SqlextError, SyntaxProblem
from sqlext.options import texts_by_level
from sqlext.plan.explain import explain_flow, lines_of
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.job_graph import FlowPlan
from sqlext.planner.hybrid_sources import cut_hybrids
from sqlext.planner.planner import plan_flow
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query, to_sql
from sqlext.sql.statements import Query

TWO = "SELECT h.k, count(*) AS n FROM STREAM hybrid(TABLE past, STREAM live) AS h GROUP BY h.k"


def plan(text: str) -> FlowPlan:
    return plan_flow(Query(parse_query(text), text), BATCHES)


def test_a_view_stands_in_its_place() -> None:
    tree, (hybrid,) = cut_hybrids(parse_query(TWO), TWO)
    assert to_sql(tree, TWO) == "SELECT h.k, count(*) AS n FROM STREAM __sqlext_hybrid_1 AS h GROUP BY h.k"
    assert (hybrid.name, hybrid.alias, hybrid.on) == ("__sqlext_hybrid_1", "h", "")
    assert [(each.sql, each.name) for each in hybrid.relations] == [
        ("SELECT * FROM STREAM past", ("past",)),
        ("SELECT * FROM STREAM live", ("live",)),
    ]


@pytest.mark.parametrize(
    ("written", "relations", "on", "alias"),
    [
        ("hybrid(TABLE a.b, stream c, on => id)", ["STREAM a.b", "STREAM c"], "id", "hybrid"),
        ("HYBRID(on => `at time`, TABLE a, STREAM c) h", ["STREAM a", "STREAM c"], "at time", "h"),
        ("hybrid(TABLE a, TABLE b, STREAM c) AS H", ["STREAM a", "STREAM b", "STREAM c"], "", "h"),
        (
            "hybrid(TABLE a WITH ('maxFilesPerTrigger' = '2'), STREAM c WITH ('backlog.lag-threshold' = '1 h', 'x' = 'y')) AS h",
            ["STREAM a WITH ('maxFilesPerTrigger' = '2')", "STREAM c WITH ('x' = 'y')"],
            "",
            "h",
        ),
        (
            "hybrid(TABLE a, STREAM read_kafka(subscribe => 't')) AS h",
            ["STREAM a", "__sqlext_stream_read_kafka(subscribe => 't')"],
            "",
            "h",
        ),
    ],
)
def test_relations_as_they_are_written(written: str, relations: list[str], on: str, alias: str) -> None:
    text = f"SELECT count(*) FROM STREAM {written}"
    _, (hybrid,) = cut_hybrids(parse_query(text), text)
    assert [each.sql.removeprefix("SELECT * FROM ") for each in hybrid.relations] == relations
    assert (hybrid.on, hybrid.alias) == (on, alias)


def test_a_query_without_one_stays() -> None:
    text = "SELECT k, count(*) AS n FROM STREAM t GROUP BY k"
    tree, hybrids = cut_hybrids(parse_query(text), text)
    assert (to_sql(tree, text), hybrids) == (text, ())


@pytest.mark.parametrize(
    ("query", "said", "marked"),
    [
        ("SELECT 1 FROM STREAM hybrid(STREAM b, TABLE a)", "is one or more tables", "STREAM hybrid(STREAM b, TABLE a)"),
        (
            "SELECT 1 FROM STREAM hybrid(TABLE a, STREAM b, STREAM c)",
            "followed by one",
            "STREAM hybrid(TABLE a, STREAM b, STREAM c)",
        ),
        ("SELECT 1 FROM STREAM hybrid(TABLE a)", "followed by one stream", "STREAM hybrid(TABLE a)"),
        (
            "SELECT 1 FROM STREAM hybrid(TABLE a, STREAM b) x JOIN STREAM hybrid(TABLE c, STREAM d) y ON x.k = y.k",
            "at most one hybrid source",
            "STREAM hybrid(TABLE c, STREAM d) y",
        ),
        (
            "SELECT 1 FROM STREAM hybrid(TABLE a, STREAM read_kafka(x => '1') WITH ('x' = 'y'))",
            "`x` is an option of the source. Give it to read_kafka as an argument",
            "'x' = 'y'",
        ),
        (
            "SELECT k, count(*) FROM STREAM hybrid(TABLE a, STREAM b) GROUP BY k GLOBAL WINDOW END OF STREAM",
            "GLOBAL WINDOW END OF STREAM has no meaning over it",
            "STREAM hybrid(TABLE a, STREAM b)",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(query: str, said: str, marked: str) -> None:
    with pytest.raises(SqlextError) as caught:
        plan(query)
    position = caught.value.position
    assert said in caught.value.message
    assert position is not None
    assert query[position.start : position.stop] == marked


@pytest.mark.parametrize("written", ["hybrid(a, STREAM b)", "hybrid(TABLE a STREAM b)", "hybrid(TABLE a, STREAM b", "hybrid()"])
def test_what_cannot_be_parsed(written: str) -> None:
    with pytest.raises((SyntaxProblem, SqlextError)):
        plan(f"SELECT count(*) FROM STREAM {written}")


def test_explain_tells_the_relations() -> None:
    text = TWO.replace("live)", "live, on => v)")
    options = FlowOptions.of_plan(plan(text), {}, lambda _: timedelta())
    found = lines_of(explain_flow(plan(text), options, "t"))
    at = found.index("== Hybrid source ==")
    assert found[at + 1 : at + 4] == [
        "h, as __sqlext_hybrid_1, read in this order, by increasing v:",
        "SELECT * FROM STREAM past",
        "SELECT * FROM STREAM live",
    ]


def test_options_of_a_relation_are_those_of_the_stream() -> None:
    text = TWO.replace("live)", "live WITH ('backlog.lag-threshold' = '1 hour', 'maxFilesPerTrigger' = '3'))")
    (source,) = plan(text).graph.streams
    assert texts_by_level(source.options) == {"WITH": {"backlog.lag-threshold": "1 hour"}}
