"""Keyed functions over a stream: the same function on Spark's transformWithState, its states and timers in RocksDB.

A function runs as in a bounded stage, except that a key never ends: state is kept from one micro-batch to the next, the
watermark advances, and a timer fires once the watermark has passed it. Within a micro-batch, the rows of a key are read in the
order of their event times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from sqlext.errors import KeyedFunctionError
from sqlext.execution.keyed.keyed_worker import ROWS_IN_A_BATCH, KeyedTask, iterable, shown
from sqlext.execution.keyed.single_key_state import no_key, timer_time
from sqlext.execution.keyed.state_types import StatesOfOpen, StateType
from sqlext.execution.partitions.partition_worker import as_tuple
from sqlext.functions.keyed import MIN_WATERMARK, KeyedContext, ListState, MapState, ValueState


class KeyedProcessor(StatefulProcessor):
    """A keyed function as a stateful processor, whose methods Spark calls. One copy runs in each task, in one thread.

    Args:
        task: the function and the types of its rows. Rows have the columns of the task's schema, then the event time in
            milliseconds if there is one, then the keys.
        has_timers: whether timers can be used, which need a watermark.
    """

    def __init__(self, task: KeyedTask, has_timers: bool) -> None:
        self._task = task
        self._has_timers = has_timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._columns = [_converter(field.dataType) for field in self._task.schema.fields]
        self._keys = [_converter(field.dataType) for field in self._task.keys.fields]
        self._context = _StreamContext(handle, self._has_timers)
        states = _States(handle)
        self._task.call_outside_of_keys("open", states)
        states.end_open()

    def close(self) -> None:
        self._task.call_outside_of_keys("close")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        self._context.start_key(self._key(key), timerValues)
        time = self._task.time
        ordered = rows if time is None else sorted(rows, key=lambda row: (row[time] is not None, row[time]))
        return self._rows(self._of_rows(ordered))

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo) -> Iterator[Row]:
        self._context.start_key(self._key(key), timerValues)
        return self._rows(self._of_timer(expiredTimerInfo.getExpiryTimeInMs()))

    def _key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(convert(value) for convert, value in zip(self._keys, key, strict=True))

    def _of_rows(self, rows: Iterable[Row]) -> Iterator[Any]:
        task, context = self._task, self._context
        make, convert = Row(*task.schema.names), self._columns
        for each in rows:
            context.time = None if task.time is None else each[task.time]
            row = make(*(function(value) for function, value in zip(convert, each, strict=False)))
            try:
                results = task.function.process_element(row, context)
                if results is not None:
                    yield from iterable("process_element", results)
            except Exception as error:  # noqa: BLE001  # whatever the user's function raises
                raise task.failure(error, f", row {shown(row)}", lambda: context.key, __file__) from None

    def _of_timer(self, time: int) -> Iterator[Any]:
        context = self._context
        context.time = time
        if context.is_deleted(time):
            return
        try:
            results = self._task.function.on_timer(time, context)
            if results is not None:
                yield from iterable("on_timer", results)
        except Exception as error:  # noqa: BLE001  # whatever the user's function raises
            raise self._task.failure(error, f", timer {time}", lambda: context.key, __file__) from None

    def _rows(self, results: Iterator[Any]) -> Iterator[Row]:
        """Yield the function's results, after the same conversion to Arrow as in a bounded stage."""
        task, names = self._task, self._task.returns.names
        while found := list(itertools.islice(results, ROWS_IN_A_BATCH)):
            rows = []
            for each in found:
                try:
                    rows.append(as_tuple(each, names))
                except TypeError as error:
                    raise task.problem(f"returned {error}", lambda: self._context.key) from None
            for batch in task.checked_batches(rows, [lambda: self._context.key] * len(rows)):
                yield from (Row(**values) for values in batch.to_pylist())


class _StreamContext(KeyedContext):
    """The current key, and its timers in Spark's state store.

    Attributes:
        time: the event time of the row, or the time of the timer, in milliseconds.
    """

    def __init__(self, handle: StatefulProcessorHandle, has_watermark: bool) -> None:
        self._handle = handle
        self._has_watermark = has_watermark
        self._key: tuple[Any, ...] | None = None
        self._watermark = MIN_WATERMARK
        self._deleted: set[tuple[tuple[Any, ...], int]] = set()  # timers, by key: Spark may have fetched them as expired before
        self.time: int | None = None

    def start_key(self, key: tuple[Any, ...], timers: TimerValues) -> None:
        """Make a key the current one."""
        self._key = key
        reached = timers.getCurrentWatermarkInMs()
        self._watermark = reached if reached > 0 else MIN_WATERMARK  # Spark's 0 means that no event has arrived yet

    @property
    def key(self) -> tuple[Any, ...]:
        if self._key is None:
            raise no_key("The context")
        return self._key

    def timestamp(self) -> int | None:
        self.key  # noqa: B018  # raises when there is none
        return self.time

    def current_watermark(self) -> int:
        self.key  # noqa: B018  # raises when there is none
        return self._watermark

    def is_deleted(self, time: int) -> bool:
        """Return whether a timer of the current key was deleted in this micro-batch."""
        return (self.key, time) in self._deleted

    def register_event_time_timer(self, timestamp: int) -> None:
        time = self._checked(timestamp)
        self._deleted.discard((self.key, time))
        self._handle.registerTimer(time)

    def delete_event_time_timer(self, timestamp: int) -> None:
        time = self._checked(timestamp)
        self._deleted.add((self.key, time))
        if time in self._handle.listTimers():
            self._handle.deleteTimer(time)

    def _checked(self, timestamp: Any) -> int:
        self.key  # noqa: B018  # raises when there is none
        time = timer_time(timestamp)
        if not self._has_watermark:
            raise KeyedFunctionError(
                "Timers fire when the watermark passes them, but this stream has no watermark. Give it one: STREAM t WATERMARK "
                "ts DELAY OF INTERVAL 1 MINUTE, and ORDER BY ts."
            )
        return time


class _States(StatesOfOpen):
    """Makes states in Spark's state store."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        super().__init__()
        self._handle = handle

    def _make(self, kind: str, name: str, schemas: Sequence[str | StructType], types: Sequence[StateType]) -> Any:
        handle = self._handle
        if kind == "map":
            return _StreamMapState(handle.getMapState(name, schemas[0], schemas[1]), *types)
        if kind == "list":
            return _StreamListState(handle.getListState(name, schemas[0]), *types)
        return _StreamValueState(handle.getValueState(name, schemas[0]), *types)


def _packed(kind: StateType, value: Any) -> tuple[Any, ...]:
    """Return a value in the form that Spark takes: always a tuple."""
    conformed = kind.conform(value)
    return conformed if len(kind.kinds) > 1 else (conformed,)


def _unpacked(kind: StateType, value: Any) -> Any:
    if value is None:
        return None
    return tuple(value) if len(kind.kinds) > 1 else value[0]


class _StreamValueState(ValueState):
    def __init__(self, state: Any, kind: StateType) -> None:
        self._state, self._kind = state, kind

    def exists(self) -> bool:
        return self.value() is not None

    def value(self) -> Any:
        return _unpacked(self._kind, self._state.get())

    def update(self, value: Any) -> None:
        if value is None:
            self._state.clear()
        else:
            self._state.update(_packed(self._kind, value))

    def clear(self) -> None:
        self._state.clear()


class _StreamListState(ListState):
    def __init__(self, state: Any, kind: StateType) -> None:
        self._state, self._kind = state, kind

    def exists(self) -> bool:
        return bool(self._state.exists())

    def get(self) -> Iterator[Any]:
        return iter([_unpacked(self._kind, value) for value in self._state.get()])

    def append(self, value: Any) -> None:
        self._state.appendValue(_packed(self._kind, value))

    def append_list(self, values: Iterable[Any]) -> None:
        if packed := [_packed(self._kind, value) for value in values]:
            self._state.appendList(packed)

    def put(self, values: Iterable[Any]) -> None:
        if packed := [_packed(self._kind, value) for value in values]:
            self._state.put(packed)
        else:
            self._state.clear()

    def clear(self) -> None:
        self._state.clear()


class _StreamMapState(MapState):
    def __init__(self, state: Any, key_kind: StateType, kind: StateType) -> None:
        self._state, self._key_kind, self._kind = state, key_kind, kind

    def exists(self) -> bool:
        return bool(self._state.exists())

    def get_value(self, key: Any) -> Any:
        return _unpacked(self._kind, self._state.getValue(self._packed_key(key)))

    def contains(self, key: Any) -> bool:
        return bool(self._state.containsKey(self._packed_key(key)))

    def put(self, key: Any, value: Any) -> None:
        self._state.updateValue(self._packed_key(key), _packed(self._kind, value))

    def update(self, entries: Mapping[Any, Any]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        found = [(_unpacked(self._key_kind, key), _unpacked(self._kind, value)) for key, value in self._state.iterator()]
        return iter(found)

    def keys(self) -> Iterator[Any]:
        return iter([_unpacked(self._key_kind, key) for key in self._state.keys()])  # noqa: SIM118  # no dict

    def values(self) -> Iterator[Any]:
        return iter([_unpacked(self._kind, value) for value in self._state.values()])

    def remove(self, key: Any) -> None:
        self._state.removeKey(self._packed_key(key))

    def clear(self) -> None:
        self._state.clear()

    def _packed_key(self, key: Any) -> tuple[Any, ...]:
        conformed = self._key_kind.conform_key(key)
        return conformed if len(self._key_kind.kinds) > 1 else (conformed,)


def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts a value from Arrow's form to Spark's; Spark passes rows of streams unconverted."""
    convert: Callable[[Any], Any] = ArrowTableToRowsConversion._create_converter(kind)  # noqa: SLF001  # the one used for batches
    return convert
