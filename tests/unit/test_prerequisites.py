"""Bounded stages within a flow's query: how they are cut out, and the order in which they run."""

from __future__ import annotations

import json

import pytest

from sqlext.errors import OptionError
from sqlext.plan.flow_spec import FlowSpec, PrerequisiteSpec
from sqlext.plan.job_graph import FlowPlan, Key, OutputMode, Prerequisite
from sqlext.planner.planner import plan_flow
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query
from sqlext.sql.statements import Query

END = "GLOBAL WINDOW END OF STREAM"


def plan(text: str, is_sorted: bool = True) -> FlowPlan:
    return plan_flow(Query(parse_query(text), text), BATCHES, is_sorted)


def call(query: str, how: str = "sorted") -> str:
    return f"SELECT * FROM __sqlext_end_of_stream(TABLE({query}), '{how}')"


HISTORY = (
    "SELECT s.k, sum(s.v * h.w) AS t FROM STREAM s JOIN (SELECT k, avg(w) AS w FROM STREAM hist WITH (maxFilesPerTrigger = 1) "
    f"GROUP BY k {END}) AS h ON s.k = h.k GROUP BY s.k"
)


@pytest.mark.parametrize(("is_sorted", "how"), [(True, "sorted"), (False, "unsorted")])
def test_a_relation_stands_in_the_place_of_the_bounded_query(is_sorted: bool, how: str) -> None:
    found = plan(HISTORY, is_sorted)
    assert found.prerequisites == (Prerequisite("__sqlext_stage_1", call("SELECT k, avg(w) AS w FROM hist GROUP BY k", how)),)
    joined = "FROM STREAM s JOIN (SELECT * FROM __sqlext_stage_1) AS h ON s.k = h.k GROUP BY s.k"
    assert found.sql == f"SELECT s.k, sum(s.v * h.w) AS t {joined}"
    assert (found.output_mode, found.key) == (OutputMode.UPDATE, Key(("k",)))
    assert [source.name for source in found.graph.streams] == [("s",)]
    assert found.references.relations == ("hist", "s")


def test_a_prerequisite_comes_behind_those_that_it_reads() -> None:
    found = plan(
        f"WITH a AS (SELECT k, count(*) AS n FROM x GROUP BY k {END}), b AS (SELECT max(n) AS m FROM a {END}), "
        f"c AS (SELECT k FROM y GROUP BY k {END}) SELECT s.* FROM STREAM s JOIN a USING (k) JOIN c USING (k) CROSS JOIN b"
    )
    assert [(each.name[-1], each.sql, each.after) for each in found.prerequisites] == [
        ("1", call("SELECT k, count(*) AS n FROM x GROUP BY k"), ()),
        ("2", call("WITH a AS (SELECT * FROM __sqlext_stage_1) SELECT max(n) AS m FROM a"), ("__sqlext_stage_1",)),
        ("3", call("SELECT k FROM y GROUP BY k"), ()),
    ]


def test_what_is_bounded_within_a_prerequisite_is_chained() -> None:
    inner = "SELECT k, count(*) AS n FROM d GROUP BY k"
    found = plan(f"SELECT k FROM STREAM s WHERE k IN (SELECT k FROM ({inner} {END}) GROUP BY k {END})")
    assert [each.sql for each in found.prerequisites] == [call(f"SELECT k FROM ({call(inner)}) GROUP BY k")]
    assert found.sql == "SELECT k FROM STREAM s WHERE k IN (SELECT * FROM __sqlext_stage_1)"
    kinds = [([found.graph.operators[i].kind for i in s.operators], s.is_blocking) for s in found.graph.stages()]
    assert kinds == [(["Source", "Aggregate", "Aggregate"], True), (["Source", "Project", "Filter", "Project"], False)]


def test_the_query_above_an_aggregate_reads_prerequisites_too() -> None:
    found = plan(
        "SELECT k, n, m FROM (SELECT k, count(*) AS n FROM STREAM s GROUP BY k) JOIN "
        f"(SELECT k, max(v) AS m FROM d GROUP BY k {END}) USING (k)"
    )
    assert len(found.prerequisites) == len(found.aggregates) == 1
    assert found.above.endswith("FROM __sqlext_aggregate_1) JOIN (SELECT * FROM __sqlext_stage_1) USING (k)")


def test_a_recorded_flow_keeps_its_prerequisites() -> None:
    prerequisites = (
        PrerequisiteSpec("__sqlext_stage_1", "SELECT 1"),
        PrerequisiteSpec("__sqlext_stage_2", "SELECT 2", ("__sqlext_stage_1",)),
    )
    spec = FlowSpec("id", "f", ("c", "d", "t"), "loc", "tid", "text", (), prerequisites=prerequisites)
    assert FlowSpec.from_json(spec.to_json()) == spec
    assert [each["name"] for each in json.loads(spec.to_json())["stages"]] == ["__sqlext_stage_1", "__sqlext_stage_2"]


def test_a_hint_for_a_stream_that_ends_is_refused() -> None:
    query = HISTORY.replace("SELECT s.k", "SELECT /*+ BACKLOG_INTERVAL({}, '1 min') */ s.k", 1)
    assert plan(query.format("s")).prerequisites
    with pytest.raises(OptionError, match="is `1 min` for `hist`, and the query that reads it ends: it has no backlog"):
        plan(query.format("hist"))
