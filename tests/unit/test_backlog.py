"""Backlog: when a flow is in it, and how large its micro-batches are then (FLIP-309)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sqlext.execution.backlog.pacer import BacklogBatch, BacklogSettings, Pacer, SourceLook
from sqlext.execution.backlog.propagation import is_backlog
from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.plan.flow_spec import OperatorSpec

BASE = timedelta(seconds=30)
HALF_HOUR = timedelta(minutes=30)
LATE = SourceLook(lag=timedelta(minutes=6))
FRESH = SourceLook(lag=timedelta(seconds=1))
HISTORY = SourceLook(is_history=True)
BY_LAG = BacklogSettings(HALF_HOUR, timedelta(minutes=5))


def pacer(**sources: BacklogSettings) -> Pacer:
    return Pacer(BASE, sources)


def test_the_three_values_of_the_interval() -> None:
    """null, 0 and 30 min, as the FLIP has them."""
    found = {}
    for name, interval in (("null", None), ("0", timedelta()), ("30 min", HALF_HOUR)):
        one = pacer(orders=BacklogSettings(interval, None))
        one.see({"orders": HISTORY})
        found[name] = one.pace
    assert found == {"null": Pace(Phase.LIVE, BASE), "0": Pace(Phase.BACKLOG), "30 min": Pace(Phase.BACKLOG, None, 1.0)}


def test_any_running_source_puts_the_flow_in_backlog() -> None:
    one = pacer(a=BacklogSettings(HALF_HOUR, None), b=BacklogSettings(HALF_HOUR, None))
    one.see({"a": SourceLook(), "b": HISTORY})
    phases = [one.phase]
    one.see({"a": SourceLook()})  # b has ended
    assert [*phases, one.phase] == [Phase.BACKLOG, Phase.LIVE]


def test_the_shortest_interval_of_the_sources_in_backlog_counts() -> None:
    one = pacer(a=BacklogSettings(timedelta(), None), b=BacklogSettings(HALF_HOUR, None), c=BacklogSettings(BASE, None))
    one.see({"a": HISTORY, "b": HISTORY})
    one.note_batch(BacklogBatch(1.0, 1.0, 7200.0))
    assert one.pace.size == 0.25
    one.see({"a": HISTORY})
    assert one.pace.size is None


def test_one_late_look_is_no_backlog() -> None:
    one = pacer(orders=BY_LAG)
    phases = []
    for look in (LATE, FRESH, LATE, LATE):
        one.see({"orders": look})
        phases.append(one.phase)
    assert phases == [Phase.LIVE, Phase.LIVE, Phase.LIVE, Phase.BACKLOG]


def test_the_first_look_counts_at_once() -> None:
    one = pacer(orders=BY_LAG)
    one.see({"orders": LATE}, is_first=True)
    assert one.phase is Phase.BACKLOG


@pytest.mark.parametrize(("seconds", "phase"), [(299, Phase.BACKLOG), (151, Phase.BACKLOG), (150, Phase.LIVE), (0, Phase.LIVE)])
def test_backlog_ends_well_below_the_threshold(seconds: int, phase: Phase) -> None:
    one = pacer(orders=BY_LAG)
    for look in (LATE, LATE, SourceLook(lag=timedelta(seconds=seconds))):
        one.see({"orders": look})
    assert one.phase is phase


def test_lag_without_a_threshold_is_no_backlog() -> None:
    one = pacer(orders=BacklogSettings(HALF_HOUR, None))
    for _ in range(3):
        one.see({"orders": LATE})
    assert one.phase is Phase.LIVE


def test_a_function_decides_alone_and_at_once() -> None:
    one = pacer(orders=BY_LAG)
    found = []
    for look in (replace(HISTORY, reported=False), replace(FRESH, reported=True), replace(LATE, reported=False)):
        one.see({"orders": look})
        found.append(one.phase)
    assert found == [Phase.LIVE, Phase.BACKLOG, Phase.LIVE]


def test_a_micro_batch_grows_to_the_interval() -> None:
    one = pacer(orders=BacklogSettings(HALF_HOUR, None))
    one.see({"orders": HISTORY})
    sizes = []
    for _ in range(5):
        size = one.pace.size or 0
        one.note_batch(BacklogBatch(size, 1.0, 2.0 * size))  # two seconds for each first limit
        sizes.append(one.pace.size)
    assert sizes == [8.0, 64.0, 512.0, 900.0, 900.0]


def test_a_micro_batch_that_takes_too_long_is_followed_by_a_smaller_one() -> None:
    one = pacer(orders=BacklogSettings(HALF_HOUR, None))
    one.see({"orders": HISTORY})
    one.note_batch(BacklogBatch(100.0, 1.0, 3600.0))
    assert one.pace.size == 50.0


@pytest.mark.parametrize(("fill", "size"), [(0.49, 1.0), (0.5, 4.0), (None, 8.0), (1.2, 8.0)])
def test_only_a_full_micro_batch_tells_how_large_one_may_be(fill: float | None, size: float) -> None:
    one = pacer(orders=BacklogSettings(HALF_HOUR, None))
    one.see({"orders": HISTORY})
    one.note_batch(BacklogBatch(1.0, fill, 1.0))
    assert one.pace.size == size


def test_without_checkpoints_in_backlog_nothing_is_sized() -> None:
    one = pacer(orders=BacklogSettings(timedelta(), None))
    one.see({"orders": HISTORY})
    one.note_batch(BacklogBatch(1.0, 1.0, 1.0))
    assert one.pace == Pace(Phase.BACKLOG)


# isBacklog through the graph

A, B = OperatorSpec("Source", "a", stream="a"), OperatorSpec("Source", "b", stream="b")
TABLE = OperatorSpec("Source", "d")


@pytest.mark.parametrize(
    ("kind", "streams", "expected"),
    [
        ("Join", {"a"}, True),
        ("Join", set(), False),
        ("Union", {"a"}, False),
        ("Union", {"a", "b"}, True),
    ],
)
def test_a_join_is_backlog_by_any_and_a_union_by_all(kind: str, streams: set[str], expected: bool) -> None:
    graph = (A, B, OperatorSpec(kind, "", (0, 1)), OperatorSpec("Aggregate", "", (2,)))
    assert is_backlog(graph, streams)[2:] == (expected, expected)


def test_a_table_is_never_backlog() -> None:
    graph = (A, TABLE, OperatorSpec("Join", "", (0, 1)))
    assert is_backlog(graph, set()) == (False, False, False)
    assert is_backlog(graph, {"a"}) == (True, False, True)
