"""A buffer between an operator and its output: of all that comes in between two flushes, only the newest goes out (FLIP-365)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

_BEFORE_ALL = float("-inf")


@dataclass(frozen=True)
class Record:
    """A row, or whatever else a newer one of its key replaces.

    Attributes:
        key: what it replaces the older ones of; None in an unkeyed stream, which has one key.
        value: never looked at.
        timestamp: its event time, in the unit of the watermarks; None when it has none.
    """

    key: Hashable
    value: Any
    timestamp: float | None = None


@dataclass(frozen=True)
class Watermark:
    """The event time up to which input is complete."""

    timestamp: float


@dataclass(frozen=True)
class WatermarkStatus:
    """Whether watermarks are to be waited for."""

    is_active: bool


@dataclass(frozen=True)
class LatencyMarker:
    """When something entered the stream.

    Attributes:
        subtask: where it did.
        marked_at: by any clock that does not go back.
    """

    subtask: Hashable
    marked_at: float


Element = Record | Watermark | WatermarkStatus | LatencyMarker


class BufferOutput:
    """Holds back the latest record of each key until a flush; FLIP-365's class of that name.

    While no record is held, a watermark, a status or a marker passes through at once. Else it is held too: the latest
    watermark, the latest status, the earliest marker of each subtask. A watermark that is lower than one before it says nothing
    new and goes nowhere. Not thread-safe; `output` must not call back.

    Args:
        output: takes the elements. When it raises, a flush ends there and all of it stays; the next one emits it anew, which
            idempotent records bear.
        max_entries: so many keys are a full buffer, which flushes itself; None: it is never full.
    """

    def __init__(self, output: Callable[[Element], object], max_entries: int | None = None) -> None:
        assert max_entries is None or max_entries > 0
        self._output = output
        self._max_entries = max_entries
        self._records: dict[Hashable, Record] = {}
        self._times: dict[type, Watermark | WatermarkStatus] = {}  # in the order in which they came
        self._markers: dict[Hashable, LatencyMarker] = {}
        self._watermark = _BEFORE_ALL

    def __len__(self) -> int:
        """How many keys are held."""
        return len(self._records)

    @property
    def records(self) -> tuple[Record, ...]:
        """What is held, the key that came first first."""
        return tuple(self._records.values())

    @property
    def oldest_mark(self) -> float | None:
        """When the oldest marker that is held was made; None without markers."""
        return min((marker.marked_at for marker in self._markers.values()), default=None)

    def collect(self, record: Record) -> None:
        """Hold a record in place of the one of its key, which keeps its place in line."""
        self._records[record.key] = record
        if self._max_entries is not None and len(self._records) >= self._max_entries:
            self.flush()

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass it on, or hold it in place of the one before."""
        if watermark.timestamp >= self._watermark:
            self._watermark = watermark.timestamp
            self._pass_or_hold(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass it on, or hold it in place of the one before."""
        self._pass_or_hold(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Pass it on, or hold it unless an earlier one of its subtask is held."""
        if not self._records:
            self._output(marker)
            return
        held = self._markers.setdefault(marker.subtask, marker)
        if marker.marked_at < held.marked_at:
            self._markers[marker.subtask] = marker

    def notify_nothing_available(self) -> None:
        """No input for now: nothing better will come, so flush."""
        self.flush()

    def flush(self) -> None:
        """Emit all that is held, then hold nothing.

        In this order: records up to the watermark, status and watermark as they came, later records, markers. A record without
        a timestamp counts as earlier than all. Among equals the key that came first is first.
        """
        for element in self._in_order():
            self._output(element)
        self._records.clear()
        self._times.clear()
        self._markers.clear()

    def _in_order(self) -> Iterator[Element]:
        later = []
        for record in self._records.values():
            if record.timestamp is None or record.timestamp <= self._watermark:
                yield record
            else:
                later.append(record)
        yield from self._times.values()
        yield from later
        yield from self._markers.values()

    def _pass_or_hold(self, element: Watermark | WatermarkStatus) -> None:
        if not self._records:
            self._output(element)
            return
        self._times.pop(type(element), None)  # put in anew, at the end
        self._times[type(element)] = element
