"""State and timers of one key at a time: FLIP-140's SingleKeyStateBackend and its timer service.

A state is a field of an object; when the key changes, the field is reset. Nothing is looked up, written out or locked: one task
uses it, in one thread. Outside of keys the field does not exist, and the expected class of values is one that no value has. So
the common path of each access need not check whether there is a key.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pyspark.sql.types import StructType

from sqlext.errors import KeyedFunctionError, SchemaError
from sqlext.execution.keyed.state_types import StatesOfOpen, StateType
from sqlext.functions.keyed import MAX_WATERMARK, MIN_WATERMARK, KeyedContext, ListState, MapState, ValueState


class _NoValue:
    """A class that no value has: as the expected class, it sends each value down the path with all checks."""


def no_key(subject: str) -> KeyedFunctionError:
    """Return the error for a state or context that is used outside of keys."""
    return KeyedFunctionError(
        f"{subject} belongs to a key, and there is no key now. Use it only in process_element and on_timer."
    )


def timer_time(timestamp: Any) -> int:
    """Return a timer's time, in milliseconds, as an int.

    Raises:
        SchemaError: the time is not an integer, or outside of BIGINT's range.
    """
    try:
        time = operator.index(timestamp)
    except TypeError:
        raise SchemaError(f"A timer's time must be an integer, in milliseconds, not {timestamp!r}.") from None
    if not MIN_WATERMARK <= time <= MAX_WATERMARK:
        raise SchemaError(f"A timer's time must fit a BIGINT; {timestamp} does not.")
    return time


class SingleKeyValueState(ValueState):
    """A value state in a field; the backend calls `enter`, `reset` and `leave` as keys begin, change and end."""

    __slots__ = ("_kind", "_type", "_value")

    _value: Any

    def __init__(self, type_: StateType) -> None:
        self._type = type_
        self._kind: type = _NoValue

    def exists(self) -> bool:
        return self.value() is not None

    def value(self) -> Any:
        try:
            return self._value
        except AttributeError:
            raise no_key(self._type.subject) from None

    def update(self, value: Any) -> None:
        if type(value) is not self._kind:
            value = self._conformed(value)
        self._value = value

    def clear(self) -> None:
        self.value()
        self._value = None

    def _conformed(self, value: Any) -> Any:
        self.value()
        return None if value is None else self._type.conform(value)

    # For the backend.

    def enter(self) -> None:
        self._kind = self._type.kind or _NoValue
        self.reset()

    def reset(self) -> None:
        self._value = None

    def leave(self) -> None:
        self._kind = _NoValue
        del self._value


class SingleKeyListState(ListState):
    """A list state in a field. The list is replaced, not emptied, so what `get` returned does not change.

    The backend calls `enter`, `reset` and `leave` as keys begin, change and end.
    """

    __slots__ = ("_kind", "_type", "_values")

    _values: list[Any]

    def __init__(self, type_: StateType) -> None:
        self._type = type_
        self._kind: type = _NoValue

    def exists(self) -> bool:
        return bool(self._list())

    def get(self) -> Iterator[Any]:
        values = self._list()
        return islice(values, len(values))

    def append(self, value: Any) -> None:
        if type(value) is not self._kind:
            value = self._conformed(value)
        self._values.append(value)

    def append_list(self, values: Iterable[Any]) -> None:
        self._list().extend([self._type.conform(value) for value in values])

    def put(self, values: Iterable[Any]) -> None:
        self._list()
        self._values = [self._type.conform(value) for value in values]

    def clear(self) -> None:
        self._list()
        self._values = []

    def _list(self) -> list[Any]:
        try:
            return self._values
        except AttributeError:
            raise no_key(self._type.subject) from None

    def _conformed(self, value: Any) -> Any:
        self._list()
        return self._type.conform(value)

    # For the backend.

    def enter(self) -> None:
        self._kind = self._type.kind or _NoValue
        self.reset()

    def reset(self) -> None:
        self._values = []

    def leave(self) -> None:
        self._kind = _NoValue
        del self._values


class SingleKeyMapState(MapState):
    """A map state, as a dict in a field; the backend calls `enter`, `reset` and `leave` as keys begin, change and end."""

    __slots__ = ("_entries", "_key_kind", "_key_type", "_kind", "_type")

    _entries: dict[Any, Any]

    def __init__(self, key_type: StateType, type_: StateType) -> None:
        self._key_type = key_type
        self._type = type_
        self._key_kind: type = _NoValue
        self._kind: type = _NoValue

    def exists(self) -> bool:
        return bool(self._dict())

    def get_value(self, key: Any) -> Any:
        try:
            return self._entries.get(key)
        except AttributeError:
            raise no_key(self._type.subject) from None

    def contains(self, key: Any) -> bool:
        return key in self._dict()

    def put(self, key: Any, value: Any) -> None:
        if type(key) is not self._key_kind:
            self._dict()
            key = self._key_type.conform_key(key)
        if type(value) is not self._kind:
            value = self._type.conform(value)
        self._entries[key] = value

    def update(self, entries: Mapping[Any, Any]) -> None:
        self._dict().update({self._key_type.conform_key(key): self._type.conform(value) for key, value in entries.items()})

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._dict().items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self._dict()))

    def values(self) -> Iterator[Any]:
        return iter(list(self._dict().values()))

    def remove(self, key: Any) -> None:
        self._dict().pop(key, None)

    def clear(self) -> None:
        self._dict()
        self._entries = {}

    def _dict(self) -> dict[Any, Any]:
        try:
            return self._entries
        except AttributeError:
            raise no_key(self._type.subject) from None

    # For the backend.

    def enter(self) -> None:
        # A float may be NaN, and must be checked.
        self._key_kind = _NoValue if self._key_type.kind is float else self._key_type.kind or _NoValue
        self._kind = self._type.kind or _NoValue
        self.reset()

    def reset(self) -> None:
        self._entries = {}

    def leave(self) -> None:
        self._key_kind = self._kind = _NoValue
        del self._entries


_CLASSES: dict[str, Any] = {"value": SingleKeyValueState, "list": SingleKeyListState, "map": SingleKeyMapState}


class SingleKeyStateBackend(StatesOfOpen):
    """The states of a task, all of the current key (FLIP-140).

    States are created first, until `end_open` is called.
    """

    __slots__ = ("_has_key",)

    def __init__(self) -> None:
        super().__init__()
        self._has_key = False

    def _make(self, kind: str, name: str, schemas: Sequence[str | StructType], types: Sequence[StateType]) -> Any:
        return _CLASSES[kind](*types)

    # For the worker.

    def start_key(self) -> None:
        """Begin a key, with all states empty."""
        if self._has_key:
            for state in self._states.values():
                state.reset()
            return
        self._has_key = True
        for state in self._states.values():
            state.enter()

    def end_keys(self) -> None:
        """End the current key, if there is one; no key follows it."""
        self._is_open = False
        if self._has_key:
            for state in self._states.values():
                state.leave()
        self._has_key = False


class SingleKeyContext(KeyedContext):
    """The current key, the event time of its row, and its timers, which fire at the end of the key (FLIP-140's timer service).

    While rows are read, timers are only a set; they are sorted when they fire. So a timer that is registered and deleted again
    with each row takes no memory.

    Attributes:
        index: the index of the current row in its batch; the worker sets it with each row.
        times: returns the event time, in milliseconds, at such an index; the worker sets it with each batch, if there is a time
            column.
        key_of: returns the current key; None: there is no key.
    """

    __slots__ = ("_fired", "_heap", "_timers", "index", "key_of", "times")

    def __init__(self) -> None:
        self.index = 0
        self.times: Callable[[int], int | None] | None = None
        self.key_of: Callable[[], tuple[Any, ...]] | None = None
        self._timers: set[int] = set()
        self._heap: list[int] | None = None  # of times, while timers fire; a time that is not in the set was deleted
        self._fired: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        return self._some_key()()

    def timestamp(self) -> int | None:
        self._some_key()
        if self._heap is not None:
            return self._fired
        return self.times(self.index) if self.times is not None else None

    def current_watermark(self) -> int:
        self._some_key()
        return MIN_WATERMARK if self._heap is None else MAX_WATERMARK

    def register_event_time_timer(self, timestamp: int) -> None:
        timers = self._timers
        timestamp = self._time(timestamp)
        if self._heap is None:
            timers.add(timestamp)
        elif timestamp not in timers:
            timers.add(timestamp)
            heapq.heappush(self._heap, timestamp)
            if len(self._heap) > 2 * len(timers) + 100:  # most were deleted
                self._heap[:] = sorted(timers)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers.discard(self._time(timestamp))

    def _time(self, timestamp: Any) -> int:
        self._some_key()
        return timer_time(timestamp)

    def _some_key(self) -> Callable[[], tuple[Any, ...]]:
        if self.key_of is None:
            raise no_key("The context")
        return self.key_of

    # For the worker.

    @property
    def fired(self) -> int | None:
        """The time of the firing timer, in milliseconds; None while rows are read."""
        return self._fired

    @property
    def has_timers(self) -> bool:
        """Whether the current key has timers."""
        return bool(self._timers)

    def start_key(self, key_of: Callable[[], tuple[Any, ...]]) -> None:
        """Begin a key, after all timers of the previous one have fired."""
        self.key_of = key_of
        self._heap = self._fired = None

    def fire(self) -> Iterator[int]:
        """Yield the times of the current key's timers in order, including timers registered meanwhile; the key ends with them."""
        heap = self._heap = sorted(self._timers)
        while heap:
            time = heapq.heappop(heap)
            if time in self._timers:
                self._timers.remove(time)
                self._fired = time
                yield time

    def end_keys(self) -> None:
        """End the current key; no key follows it."""
        self.key_of = None
