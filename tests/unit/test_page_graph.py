"""The graph of tables on the page: where nodes lie, and what they say."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from sqlext.page.graph import HEIGHT, WIDTH, graph_of
from sqlext.page.render import Renderer
from sqlext.page.snapshot import FlowSummary, Overview, RefreshView, SourceView, ViewSummary
from sqlext.plan.lineage import Input, Lineage, Node, NodeKind

NOW = datetime(2026, 11, 26, 9, 0, tzinfo=UTC)


def node(name: str, *reads: str, kind: NodeKind = NodeKind.VIEW) -> Node:
    inputs = tuple(Input(("spark_catalog", "s", each), f"file:/{each}", kind is not NodeKind.VIEW) for each in reads)
    return Node(f"file:/{name}", ("spark_catalog", "s", name), kind, inputs, name)


def view(name: str, newest: int, **read: int) -> ViewSummary:
    sources = (SourceView("x", 3, newest, NOW - timedelta(minutes=7) if newest > 3 else None),)
    rows = {f"spark_catalog.s.{each}": number for each, number in read.items()}
    return ViewSummary(name, name, name, "SCHEDULED", last=RefreshView(1, NOW, "append", read=rows), sources=sources)


CHAIN = Lineage([node("bronze", "raw", kind=NodeKind.STREAMING_TABLE), node("silver", "bronze", "dim"), node("gold", "silver")])
FLOWS = (FlowSummary("bronze", "bronze", "s.bronze", "RUNNING"),)
VIEWS = (view("silver", 3, bronze=1234), view("gold", 5))


def test_nodes_lie_in_layers_and_do_not_overlap() -> None:
    graph = graph_of(CHAIN, FLOWS, VIEWS, NOW)
    assert graph is not None
    places = {each.full_name: (each.x, each.y) for each in graph.nodes}
    columns = [places[f"s.{name}"][0] for name in ("raw", "bronze", "silver", "gold")]
    assert all(right >= left + WIDTH for left, right in itertools.pairwise(columns))
    assert places["s.raw"][0] == places["s.dim"][0]
    assert abs(places["s.raw"][1] - places["s.dim"][1]) >= HEIGHT
    assert all(each.x + WIDTH <= graph.width and each.y + HEIGHT <= graph.height for each in graph.nodes)


def test_a_node_says_how_fresh_it_is_and_an_edge_how_many_rows_came() -> None:
    graph = graph_of(CHAIN, FLOWS, VIEWS, NOW)
    assert graph is not None
    assert {each.full_name: (each.freshness, each.path) for each in graph.nodes} == {
        "s.raw": ("", ""),
        "s.dim": ("", ""),
        "s.bronze": ("lag not known", "/flows/bronze"),
        "s.silver": ("up to date", "/views/silver"),
        "s.gold": ("7 min behind", "/views/gold"),
    }
    assert sorted(each.rows for each in graph.edges if each.rows is not None) == [1234]
    assert sum(each.is_stream for each in graph.edges) == 1


def test_a_long_name_fits() -> None:
    name = "a_table_with_a_name_that_is_long"
    graph = graph_of(Lineage([node(name, "raw")]), (), (view(name, 3),), NOW)
    assert graph is not None
    assert [each.name for each in graph.nodes if each.kind != "source"] == ["a_table_with_a_nam…"]


def test_numbers_stand_apart() -> None:
    """Two lines that cross in the middle: neither number stands on the other, nor on a table."""
    crossed = Lineage([node("c", "a", "b"), node("d", "a", "b")])
    graph = graph_of(crossed, (), (view("c", 3, a=12_345, b=23_456), view("d", 3, a=34_567, b=45_678)), NOW)
    assert graph is not None
    numbers = [(each.x, each.y) for each in graph.edges]
    assert len(numbers) == 4
    for one, other in itertools.combinations(numbers, 2):
        assert abs(one[0] - other[0]) >= 42 or abs(one[1] - other[1]) >= 14
    between = range(min(each.x for each in graph.nodes) + WIDTH, max(each.x for each in graph.nodes))
    assert all(x - 21 >= between.start and x + 21 <= between.stop for x, _ in numbers)


def test_nothing_that_is_kept_is_no_graph() -> None:
    assert graph_of(Lineage([]), (), (), NOW) is None


def test_the_saved_overview_has_the_graph_and_no_links() -> None:
    overview = Overview(NOW, "warehouse w", FLOWS, VIEWS, graph=graph_of(CHAIN, FLOWS, VIEWS, NOW))
    page, saved = Renderer().overview(overview), Renderer().overview(overview, is_saved=True)
    assert 'href="/views/gold"' in page
    assert "<svg" in saved
    assert 'href="/' not in saved
    assert "7 min behind" in saved
