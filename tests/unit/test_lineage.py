"""The graph of tables, cuts through it, and waves along it: without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.errors import StatementCanceledError, UnsupportedError
from sqlext.execution.views.graph import node_of_view
from sqlext.execution.views.lag import LagKept, is_due
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.needs import asked_elsewhere, needs_of, needs_of_views
from sqlext.execution.views.registry import ViewRecord
from sqlext.execution.views.wave import Wave
from sqlext.execution.views.workers import Workers
from sqlext.plan.cut import Cut, NoSharedCut, TableHistory, TableVersion, merged, shared_cut
from sqlext.plan.lineage import Input, Lineage, Node, NodeKind
from sqlext.plan.view_spec import RefreshReport, Schedule, SourceVersion
from tests.unit.test_view_registry import REPORT, SPEC


def table(name: str) -> Input:
    return Input(("spark_catalog", "s", name), f"file:/{name}")


def node(name: str, *reads: str) -> Node:
    return Node(f"file:/{name}", ("spark_catalog", "s", name), NodeKind.VIEW, tuple(map(table, reads)), name)


MEDALLION = (
    node("gold", "silver", "lookup"),
    node("silver", "bronze"),
    node("bronze", "raw"),
    node("side", "bronze"),
    node("lookup", "airports"),
)


# The graph


def test_nodes_come_after_what_they_read_and_know_their_layers() -> None:
    graph = Lineage(MEDALLION)
    order = list(graph.nodes)
    assert all(order.index(read) < order.index(key) for key in order for read in graph.inputs(key))
    assert {key.removeprefix("file:/"): layer for key, layer in graph.layers.items()} == {
        "raw": 0, "airports": 0, "bronze": 1, "lookup": 1, "silver": 2, "side": 2, "gold": 3,
    }  # fmt: skip
    assert set(graph.upstream(["file:/gold"])) == {f"file:/{n}" for n in ("raw", "bronze", "silver", "airports", "lookup")}
    assert graph.downstream(["file:/raw"])[0] == "file:/bronze"
    assert set(graph.downstream(["file:/raw"])) == {f"file:/{n}" for n in ("bronze", "silver", "side", "gold")}


def test_several_flows_into_one_table_are_one_node_with_all_that_they_read() -> None:
    names = {"t": NodeKind.STREAMING_TABLE, "web": NodeKind.INSERT, "shop": NodeKind.INSERT}
    flows = [
        Node("file:/t", ("spark_catalog", "s", "t"), kind, (table(f"of_{name}"),), name, ("spark_catalog", "s", name))
        for name, kind in names.items()
    ]
    for kept in (flows, [*reversed(flows)]):
        graph = Lineage([*kept, node("sums", "t")])
        found = graph.nodes["file:/t"]
        assert (found.id, found.kind) == ("t", NodeKind.STREAMING_TABLE)
        assert {each for each, _ in found.keepers} == set(names)
        assert set(graph.inputs("file:/t")) == {f"file:/of_{name}" for name in names}
        assert graph.kept_by(("spark_catalog", "s", "web")) == found
        assert graph.waits_for({"shop"}) == {"sums": "s.t"}


def test_tables_are_found_by_their_folders_and_by_names_where_no_folder_is_known() -> None:
    by_path = Node("file:/b", ("c", "s", "b"), NodeKind.VIEW, (Input(("file:/a",), "file:///a/"),), "b")
    by_name = Node("file:/c", ("c", "s", "c"), NodeKind.VIEW, (Input(("spark_catalog", "s", "A")),), "c")
    graph = Lineage([node("a", "raw"), by_path, by_name])
    assert graph.inputs("file:/b") == graph.inputs("file:/c") == ("file:/a",)
    found = graph.node_of(("spark_catalog", "S", "a"))
    assert found is not None
    assert found.id == "a"
    assert graph.node_of(("spark_catalog", "s", "nothing")) is None


@pytest.mark.parametrize(
    ("reads", "way"),
    [
        (("bronze",), "s.bronze reads s.bronze"),
        (("gold",), "s.bronze reads s.gold reads s.silver reads s.bronze"),
        (("raw", "side"), "s.bronze reads s.side reads s.bronze"),
    ],
)
def test_a_table_cannot_be_made_of_itself(reads: tuple[str, ...], way: str) -> None:
    with pytest.raises(UnsupportedError, match=f"materialized view cannot read itself: {way}. "):
        Lineage(MEDALLION).refuse_cycle(node("bronze", *reads))
    Lineage(MEDALLION).refuse_cycle(node("bronze", "raw", "airports"))


def test_a_cycle_that_is_there_is_no_trap() -> None:
    graph = Lineage([node("a", "b"), node("b", "a", "raw")])
    assert set(graph.nodes) == {"file:/a", "file:/b", "file:/raw"}
    assert set(graph.upstream(["file:/a"])) == {"file:/a", "file:/b", "file:/raw"}
    assert set(graph.layers) == set(graph.nodes)


# Cuts


def at(**versions: int) -> Cut:
    return Cut({name: SourceVersion(name, version, f"file:/{name}") for name, version in versions.items()})


def test_what_reads_one_source_at_two_versions_is_mixed() -> None:
    assert merged([at(a=1, b=2), at(b=2, c=3)]) == at(a=1, b=2, c=3)
    assert merged([at(a=1, b=2), at(b=3)]) == replace(at(a=1), mixed=("b",))
    assert merged([replace(at(a=1), mixed=("x",)), at(a=1)]) == replace(at(a=1), mixed=("x",))
    assert merged([]) == Cut()


def history(name: str, *cuts: Cut, least: int = 0) -> TableHistory:
    versions = [TableVersion(number, cut) for number, cut in enumerate(cuts)]
    return TableHistory(name, lambda: iter(reversed(versions)), least)


def test_tables_go_back_to_the_newest_cut_that_they_share() -> None:
    gold = history("gold", at(raw=1, dim=1), at(raw=4, dim=1), at(raw=6, dim=2))
    side = history("side", at(raw=2), at(raw=4), at(raw=5))
    assert [each.version for each in shared_cut([gold, side])] == [1, 1]
    assert [each.version for each in shared_cut([gold])] == [2]
    raw = history("raw", *(at(raw=number) for number in range(9)))
    assert [each.version for each in shared_cut([side, raw])] == [2, 5]
    apart = history("apart", at(other=1), at(other=2))
    assert [each.version for each in shared_cut([gold, apart])] == [2, 1]


def test_no_shared_cut_is_said() -> None:
    with pytest.raises(NoSharedCut, match="gold has no version at the cut of the others: of raw 4, they have 3"):
        shared_cut([history("gold", at(raw=4)), history("side", at(raw=3))])
    with pytest.raises(NoSharedCut, match="side has no version"):
        shared_cut([history("gold", at(raw=3)), history("side", at(raw=3), at(raw=4), least=1)])
    other = Cut({"raw": SourceVersion("another", 3, "file:/raw")})
    with pytest.raises(NoSharedCut, match="replaced meanwhile"):
        shared_cut([history("gold", at(raw=3)), history("side", other)])


def test_versions_that_are_mixed_are_no_cut() -> None:
    mixed = replace(at(), mixed=("raw",))
    assert [each.version for each in shared_cut([history("gold", at(raw=3), mixed), history("side", at(raw=3))])] == [0, 0]


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_shared_cut_is_the_newest_of_all(tables: list[list[tuple[int, int]]]) -> None:
    """What a table has of a source never gets older, so the versions of each are running maxima."""
    histories, cuts = [], []
    for number, versions in enumerate(tables):
        made = [at(a=max(a for a, _ in versions[: i + 1]), b=max(b for _, b in versions[: i + 1])) for i in range(len(versions))]
        cuts.append(made)
        histories.append(history(f"t{number}", *made))
    shared = {cut for cut in map(_pair, cuts[0]) if all(cut in map(_pair, made) for made in cuts)}
    try:
        found = [_pair(each.cut) for each in shared_cut(histories)]
    except NoSharedCut:
        assert not shared
        return
    assert set(found) == {max(shared)}


def _pair(cut: Cut) -> tuple[int, int]:
    return cut.sources["a"].version, cut.sources["b"].version


# Waves


class View:
    """A view for a wave: it waits for the test, and does what the test says."""

    def __init__(self, name: str, *reads: str) -> None:
        self.spec = replace(
            SPEC, id=name, name=("spark_catalog", "s", name), location=f"file:/{name}", reads=tuple(map(table, reads))
        )
        self.fails: Exception | None = None
        self.held_back = 0
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def refresh(self) -> RefreshReport:
        self.began.set()
        assert self.goes_on.wait(30)
        if self.fails is not None:
            raise self.fails
        return replace(REPORT, version=7)

    def note_held_back(self) -> None:
        self.held_back += 1


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(2, "sqlext-view-test")
    yield made
    made.close(10)


class Made:
    """A wave of views of the test's own, without a cut."""

    def __init__(self, workers: Workers, *views: View) -> None:
        graph = Lineage([node_of_view(view.spec) for view in views])
        self.order: list[str] = []
        self.pins: dict[str, Any] = {}

        def refresh(view: LiveView, pins: Any) -> RefreshReport:
            self.order.append(view.spec.id)
            self.pins[view.spec.id] = pins
            return cast(View, view).refresh()

        keyed = {f"file:/{view.spec.id}": cast(LiveView, view) for view in views}
        self.wave = Wave(cast(Any, None), graph, keyed, refresh, workers, lambda keys: set())
        self.wave._found = dict  # type: ignore[method-assign]  # it reads logs
        self.wave._hand_out()


def test_views_come_after_those_that_they_read_and_at_the_versions_just_made(workers: Workers) -> None:
    made = Made(workers, View("gold", "silver"), View("silver", "bronze"), View("bronze", "raw"))
    made.wave.wait(None, 30)
    assert made.order == ["bronze", "silver", "gold"]
    assert made.pins["gold"]["file:/silver"] == SourceVersion(SPEC.table_id, 7)
    assert set(made.wave.reports) == {"file:/gold", "file:/silver", "file:/bronze"}


def test_a_slow_branch_delays_no_other(workers: Workers) -> None:
    slow, quick, above = View("slow", "raw"), View("quick", "raw"), View("above", "quick")
    slow.goes_on.clear()
    made = Made(workers, slow, quick, above)
    assert above.began.wait(30)
    slow.goes_on.set()
    made.wave.wait(None, 30)


def test_a_view_that_fails_holds_back_those_below_it_and_no_others(workers: Workers) -> None:
    low, middle, high, beside = View("low", "raw"), View("middle", "low"), View("high", "middle"), View("beside", "raw")
    low.fails = ValueError("low")
    made = Made(workers, low, middle, high, beside)
    made.wave.wait(None, 30)
    assert made.wave.held_back == {"file:/middle": "s.low", "file:/high": "s.low"}
    assert set(made.wave.reports) == {"file:/beside"}
    assert [str(error) for error in made.wave.errors.values()] == ["low"]
    assert [view.held_back for view in (low, middle, high, beside)] == [0, 1, 1, 0]


def test_a_wave_that_is_canceled_begins_no_more(workers: Workers) -> None:
    low, high = View("low", "raw"), View("high", "low")
    low.goes_on.clear()
    made = Made(workers, low, high)
    canceled = threading.Event()
    canceled.set()
    with pytest.raises(StatementCanceledError):
        made.wave.wait(canceled, 30)
    low.goes_on.set()
    assert made.wave._ended.wait(30)
    assert made.order == ["low"]


def test_a_view_that_was_canceled_makes_no_other_wait(workers: Workers) -> None:
    low, high = View("low", "raw"), View("high", "low")
    low.fails = StatementCanceledError("The statement was canceled.")
    made = Made(workers, low, high)
    made.wave.wait(None, 30)
    assert made.order == ["low"]
    assert high.held_back == 0


def test_a_wave_with_workers_that_are_closed_ends(workers: Workers) -> None:
    workers.close(10)
    made = Made(workers, View("low", "raw"), View("high", "low"))
    made.wave.wait(None, 30)
    assert made.wave.reports == {}


# Lags


def test_what_a_target_lag_needs_is_needed_below_it_unless_that_has_a_pace_of_its_own() -> None:
    graph = Lineage(MEDALLION)
    key = "file:/{}".format
    needs = needs_of(graph, {key("gold"): 30.0, key("side"): 300.0, key("bronze"): 60.0}, frozenset())
    assert needs == {key(n): 30.0 for n in ("gold", "silver", "bronze", "lookup", "raw", "airports")} | {key("side"): 300.0}
    paced = needs_of(graph, {key("gold"): 30.0, key("side"): 300.0}, frozenset([key("silver")]))
    assert key("silver") not in paced
    assert (paced[key("bronze")], paced[key("lookup")]) == (300.0, 30.0)
    assert needs_of(graph, {}, frozenset()) == {}


def test_what_only_views_of_other_processes_need_is_asked_for_there() -> None:
    """`low` and `middle` are of one process, `high` is of another; `side`, of the first, takes `deep` along in time."""
    reads = {"deep": "raw", "low": "deep", "middle": "low", "high": "middle", "side": "deep", "slow": "deep"}
    lags = {"high": 60.0, "side": 30.0, "middle": 300.0}
    records = {
        name: ViewRecord(
            replace(
                View(name, read).spec,
                schedule=Schedule(every=3600.0) if name == "slow" else Schedule(target_lag=lags.get(name)),
            ),
            "other" if name == "high" else "this",
            "",
        )
        for name, read in reads.items()
    }
    graph = Lineage([node_of_view(record.spec) for record in records.values()])
    needs = needs_of_views(graph, records)
    assert needs == {"high": 60.0, "middle": 60.0, "low": 60.0, "deep": 30.0, "side": 30.0}
    assert asked_elsewhere(graph, records, needs, "this") == {"middle": 60.0}
    assert asked_elsewhere(graph, records, needs, "other") == {}
    apart = {name: replace(record, host="other") if name == "middle" else record for name, record in records.items()}
    assert asked_elsewhere(graph, apart, needs, "this") == {"low": 60.0}


@pytest.mark.parametrize(
    ("age", "seconds", "is_now"),
    [
        (0.0, 1.0, False),
        (20.0, 1.0, False),
        (27.9, 1.0, False),
        (28.0, 1.0, True),
        (15.0, 10.0, True),
        (14.9, 10.0, False),
        (99.0, 0.0, True),
    ],
)
def test_a_refresh_begins_as_late_as_the_lag_allows(age: float, seconds: float, is_now: bool) -> None:
    assert is_due(30.0, age, seconds) is is_now


def test_the_lag_that_was_kept_counts_the_seconds_of_refreshes() -> None:
    kept = LagKept()
    assert kept.quantiles() == (None, None)
    for second in range(10):
        kept.note(second, float(second), REPORT)
    kept.note(15.0, 1.0, replace(REPORT, version=REPORT.version + 1, seconds=5.0))
    assert [age for _, age in kept._samples] == [*map(float, range(15)), 1.0]
    assert kept.quantiles() == (timedelta(seconds=7), timedelta(seconds=14))
    kept.note(9000.0, 3.0, replace(REPORT, version=REPORT.version + 1, seconds=5.0))
    assert kept.quantiles() == (timedelta(seconds=3), timedelta(seconds=3))
