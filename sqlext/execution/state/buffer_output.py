"""A buffer between an operator and its output: between two flushes, only the newest record of each key is kept (FLIP-365)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

_BEFORE_ALL = float("-inf")


@dataclass(frozen=True)
class Record:
    """A row, or anything else that a newer one of its key replaces.

    Attributes:
        key: the key by which it replaces older ones; None in an unkeyed stream, which has one key.
        value: any value; it is never looked at.
        timestamp: its event time, in the unit of the watermarks; None if it has none.
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
    """The time when something entered the stream.

    Attributes:
        subtask: where it entered.
        marked_at: the time, by any monotonic clock.
    """

    subtask: Hashable
    marked_at: float


Element = Record | Watermark | WatermarkStatus | LatencyMarker


class BufferOutput:
    """The latest record of each key, held back until a flush; FLIP-365's class of that name.

    While no record is held, a watermark, a status or a marker passes through at once. Otherwise it is held too: the latest
    watermark, the latest status, the earliest marker of each subtask. A watermark lower than an earlier one has no new
    information and is dropped. Not thread-safe; `output` must not call back.

    Args:
        output: called with the elements. If it raises, the flush ends there and all elements stay; the next flush emits them
            again, which idempotent records allow.
        max_entries: the number of keys at which the buffer is full and flushes itself; None: it is never full.
    """

    def __init__(self, output: Callable[[Element], object], max_entries: int | None = None) -> None:
        assert max_entries is None or max_entries > 0
        self._output = output
        self._max_entries = max_entries
        self._records: dict[Hashable, Record] = {}
        self._times: dict[type, Watermark | WatermarkStatus] = {}  # in the order of their arrival
        self._markers: dict[Hashable, LatencyMarker] = {}
        self._watermark = _BEFORE_ALL

    def __len__(self) -> int:
        """Return the number of keys that are held."""
        return len(self._records)

    @property
    def records(self) -> tuple[Record, ...]:
        """The records that are held, in the order in which their keys arrived."""
        return tuple(self._records.values())

    @property
    def oldest_mark(self) -> float | None:
        """The time of the oldest marker that is held; None without markers."""
        return min((marker.marked_at for marker in self._markers.values()), default=None)

    def collect(self, record: Record) -> None:
        """Hold a record in place of the earlier one of its key, at that one's place in the order."""
        self._records[record.key] = record
        if self._max_entries is not None and len(self._records) >= self._max_entries:
            self.flush()

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark on, or hold it in place of the earlier one."""
        if watermark.timestamp >= self._watermark:
            self._watermark = watermark.timestamp
            self._pass_or_hold(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status on, or hold it in place of the earlier one."""
        self._pass_or_hold(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Pass a marker on, or hold it unless an earlier one of its subtask is held."""
        if not self._records:
            self._output(marker)
            return
        held = self._markers.setdefault(marker.subtask, marker)
        if marker.marked_at < held.marked_at:
            self._markers[marker.subtask] = marker

    def notify_nothing_available(self) -> None:
        """Flush, because there is no input for now and nothing newer is about to arrive."""
        self.flush()

    def flush(self) -> None:
        """Emit all elements that are held, then hold nothing.

        The order is: records up to the watermark; status and watermark, in the order of their arrival; later records; markers. A
        record without a timestamp counts as earlier than all others. Equal records keep the order in which their keys arrived.
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
        self._times.pop(type(element), None)  # so that it moves to the end
        self._times[type(element)] = element
