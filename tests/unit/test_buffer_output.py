"""The buffer of FLIP-365, element by element: examples of each sentence, and any interleaving against what came in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sqlext.execution.state.buffer_output import BufferOutput, Element, LatencyMarker, Record, Watermark, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus(False), WatermarkStatus(True)


def feed(buffer: BufferOutput, *elements: Element) -> None:
    for element in elements:
        match element:
            case Record():
                buffer.collect(element)
            case Watermark():
                buffer.emit_watermark(element)
            case WatermarkStatus():
                buffer.emit_watermark_status(element)
            case LatencyMarker():
                buffer.emit_latency_marker(element)


def flushed(*elements: Element) -> list[Element]:
    """What one flush emits after these; the first is to be a record, so that nothing passes through."""
    out: list[Element] = []
    buffer = BufferOutput(out.append)
    feed(buffer, *elements)
    assert out == []
    buffer.flush()
    return out


# Examples.


def test_the_latest_record_of_each_key_in_the_order_of_the_keys() -> None:
    assert flushed(Record("a", 1), Record("b", 2), Record("a", 3)) == [Record("a", 3), Record("b", 2)]


def test_an_unkeyed_stream_has_one_record() -> None:
    assert flushed(Record(None, 1), Record(None, 2)) == [Record(None, 2)]


def test_records_stand_around_the_watermark_and_markers_last() -> None:
    late, later, none = Record("late", 1, 5), Record("later", 2, 11), Record("none", 3)
    at = Record("at", 4, 10)
    marker = LatencyMarker(0, 1.0)
    assert flushed(later, marker, late, Watermark(10), at, none) == [late, at, none, Watermark(10), later, marker]


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ([Watermark(1), IDLE], [Watermark(1), IDLE]),
        ([IDLE, Watermark(1)], [IDLE, Watermark(1)]),
        ([Watermark(1), IDLE, Watermark(2)], [IDLE, Watermark(2)]),  # the watermark that is left came last
        ([IDLE, Watermark(1), ACTIVE], [Watermark(1), ACTIVE]),
        ([Watermark(2), IDLE, Watermark(1)], [Watermark(2), IDLE]),  # time does not go back
    ],
)
def test_status_and_watermark_in_the_order_they_came(came: Sequence[Element], expected: Sequence[Element]) -> None:
    assert flushed(Record("a", 1), *came) == [Record("a", 1), *expected]


def test_the_earliest_marker_of_each_subtask() -> None:
    markers = [LatencyMarker(0, 3.0), LatencyMarker(1, 2.0), LatencyMarker(0, 1.0), LatencyMarker(1, 4.0)]
    assert flushed(Record("a", 1), *markers) == [Record("a", 1), LatencyMarker(0, 1.0), LatencyMarker(1, 2.0)]


def test_all_but_records_passes_through_an_empty_buffer() -> None:
    out: list[Element] = []
    buffer = BufferOutput(out.append)
    elements: list[Element] = [Watermark(1), IDLE, LatencyMarker(0, 2.0), LatencyMarker(0, 3.0), ACTIVE, Watermark(1)]
    feed(buffer, *elements)
    assert out == elements
    buffer.flush()
    assert out == elements


def test_a_watermark_that_passed_through_still_orders_records() -> None:
    out: list[Element] = []
    buffer = BufferOutput(out.append)
    feed(buffer, Watermark(10), Record("later", 1, 11), IDLE, Record("late", 2, 9))
    buffer.flush()
    assert out == [Watermark(10), Record("late", 2, 9), IDLE, Record("later", 1, 11)]


def test_flushes_when_nothing_is_available() -> None:
    out: list[Element] = []
    buffer = BufferOutput(out.append)
    buffer.notify_nothing_available()
    feed(buffer, Record("a", 1))
    buffer.notify_nothing_available()
    buffer.notify_nothing_available()
    assert out == [Record("a", 1)]


def test_a_full_buffer_flushes_itself() -> None:
    out: list[Element] = []
    buffer = BufferOutput(out.append, max_entries=2)
    feed(buffer, Record("a", 1), Record("a", 2), Watermark(1))
    assert (out, len(buffer)) == ([], 1)
    feed(buffer, Record("b", 3))
    assert (out, len(buffer)) == ([Record("a", 2), Record("b", 3), Watermark(1)], 0)


def test_tells_how_long_the_oldest_has_waited() -> None:
    buffer = BufferOutput(lambda element: None)
    feed(buffer, LatencyMarker(0, 1.0))
    assert buffer.oldest_mark is None
    feed(buffer, Record("a", 1), LatencyMarker(0, 3.0), LatencyMarker(1, 2.0), LatencyMarker(0, 4.0))
    assert buffer.oldest_mark == 2.0
    buffer.flush()
    assert buffer.oldest_mark is None


def test_an_output_that_fails_loses_nothing() -> None:
    out: list[Element] = []
    is_broken = True

    def breaks(element: Element) -> None:
        if is_broken and element == Record("b", 2):
            raise OSError("disk full")
        out.append(element)

    buffer = BufferOutput(breaks)
    feed(buffer, Record("a", 1), Record("b", 2), Watermark(1))
    with pytest.raises(OSError, match="disk full"):
        buffer.flush()
    is_broken = False
    feed(buffer, Record("a", 3))
    buffer.flush()
    assert out == [Record("a", 1), Record("a", 3), Record("b", 2), Watermark(1)]
    assert len(buffer) == 0


# Any interleaving.

KEYS = st.sampled_from(["a", "b", "c", "d", None])
TIMES = st.integers(0, 4)  # few, so that they often meet


class AnyInterleaving(RuleBasedStateMachine):
    """Remembers all that came in since the last flush, and holds each emission against it."""

    @initialize(max_entries=st.sampled_from([None, 1, 3]))
    def begin(self, max_entries: int | None) -> None:
        self.max_entries = max_entries
        self.out: list[Element] = []
        self.buffer = BufferOutput(self.out.append, max_entries)
        self.came: list[Element] = []  # since the last flush
        self.highest = float("-inf")  # watermark of all time
        self.number = 0

    @rule(key=KEYS, timestamp=st.none() | TIMES)
    def record(self, key: str | None, timestamp: int | None) -> None:
        self.number += 1
        record = Record(key, self.number, timestamp)
        self.came.append(record)
        keys = {each.key for each in self.came if isinstance(each, Record)}
        before = len(self.out)
        self.buffer.collect(record)
        if len(keys) == self.max_entries:
            self.check_emission(self.out[before:])
        else:
            assert len(self.out) == before

    @rule(timestamp=TIMES)
    def watermark(self, timestamp: int) -> None:
        if timestamp >= self.highest:
            self.highest = timestamp
            self.passes_or_is_held(Watermark(timestamp))
        else:
            before = len(self.out)
            self.buffer.emit_watermark(Watermark(timestamp))
            assert len(self.out) == before

    @rule(is_active=st.booleans())
    def status(self, is_active: bool) -> None:
        self.passes_or_is_held(WatermarkStatus(is_active))

    @rule(subtask=st.integers(0, 2), marked_at=TIMES)
    def marker(self, subtask: int, marked_at: int) -> None:
        self.passes_or_is_held(LatencyMarker(subtask, marked_at))

    @rule(nothing_available=st.booleans())
    def flush(self, nothing_available: bool) -> None:
        before = len(self.out)
        (self.buffer.notify_nothing_available if nothing_available else self.buffer.flush)()
        self.check_emission(self.out[before:])

    @precondition(lambda self: hasattr(self, "out"))
    @invariant()
    def watermarks_never_go_back(self) -> None:
        times = [each.timestamp for each in self.out if isinstance(each, Watermark)]
        assert times == sorted(times)

    @precondition(lambda self: hasattr(self, "out"))
    @invariant()
    def knows_what_it_holds(self) -> None:
        assert len(self.buffer) == len({each.key for each in self.came if isinstance(each, Record)})
        marks = [each.marked_at for each in self.came if isinstance(each, LatencyMarker)]
        assert self.buffer.oldest_mark == min(marks, default=None)

    def passes_or_is_held(self, element: Element) -> None:
        before = len(self.out)
        feed(self.buffer, element)
        if self.came:
            self.came.append(element)
            assert len(self.out) == before
        else:
            assert self.out[before:] == [element]

    def check_emission(self, emitted: list[Element]) -> None:
        came, self.came = self.came, []
        records = [each for each in emitted if isinstance(each, Record)]
        latest = {each.key: each for each in came if isinstance(each, Record)}
        assert {each.key: each for each in records} == latest
        assert len(records) == len(latest)

        def place(element: Element) -> int:
            match element:
                case Record(timestamp=timestamp):
                    return 0 if timestamp is None or timestamp <= self.highest else 2
                case LatencyMarker():
                    return 3
            return 1

        assert [place(each) for each in emitted] == sorted(place(each) for each in emitted)
        keys = list(dict.fromkeys(each.key for each in came if isinstance(each, Record)))
        for where in (0, 2):
            there = [keys.index(each.key) for each in records if place(each) == where]
            assert there == sorted(there), "keys in the order in which they came"
        newest: list[Element] = []
        for each in reversed(came):
            if isinstance(each, Watermark | WatermarkStatus) and not any(type(each) is type(other) for other in newest):
                newest.insert(0, each)
        assert [each for each in emitted if place(each) == 1] == newest
        markers = [each for each in came if isinstance(each, LatencyMarker)]
        earliest = {each.subtask: min(m.marked_at for m in markers if m.subtask == each.subtask) for each in markers}
        found = [each for each in emitted if isinstance(each, LatencyMarker)]
        assert [(each.subtask, each.marked_at) for each in found] == list(earliest.items())


TestAnyInterleaving = AnyInterleaving.TestCase
