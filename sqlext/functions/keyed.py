"""Python functions over the rows of a key, with state and timers: what they look like, and which are registered for SQL.

One function runs in a bounded stage, over input sorted by key (FLIP-140), and in a flow, on Spark's transformWithState. Names
are Flink's (`KeyedProcessFunction`) and those of `pyspark.sql.streaming.stateful_processor`, in Python's spelling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import Row, StructType

from sqlext.errors import SchemaError
from sqlext.functions.partition import check_arity
from sqlext.functions.registry import OperatorFunctions

OPERATOR = "process_keyed"
"""SQL's name of it."""

MIN_WATERMARK = -(2**63)
"""The watermark, in milliseconds, while the rows of a key are read in a bounded stage (Flink's `Watermark.MIN_VALUE`)."""

MAX_WATERMARK = 2**63 - 1
"""The watermark, in milliseconds, while the timers of a key fire in a bounded stage (Flink's `Watermark.MAX_VALUE`)."""


class ValueState(ABC):
    """One value of the current key (Flink's and Spark's `ValueState`).

    A value is the plain Python value where the state's type has one column, and a tuple in the columns' order where it has
    more. A mutable value that is changed in place is to be handed to `update` again: not every backend keeps the object.

    Raises:
        SchemaError: from what writes, in each kind of state: a value is not of the declared type. Looked at is the class of
            each column's value, not what is nested in it, and no range. Integers count as DOUBLE, numpy's scalars as Python's.
        KeyedFunctionError: from every method, in each kind of state: there is no current key, as in `open` and `close`.
    """

    __slots__ = ()

    @abstractmethod
    def exists(self) -> bool:
        """Whether the key has a value."""

    @abstractmethod
    def value(self) -> Any:
        """The value, or None."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the value; None clears it, as in Flink."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the value."""


class ListState(ABC):
    """A list of values of the current key (Flink's and Spark's `ListState`); values and errors as in `ValueState`."""

    __slots__ = ()

    @abstractmethod
    def exists(self) -> bool:
        """Whether the list has values."""

    @abstractmethod
    def get(self) -> Iterator[Any]:
        """The values as they are now, in the order in which they came; what is appended while they are read is not among them."""

    @abstractmethod
    def append(self, value: Any) -> None:
        """Add a value at the end."""

    @abstractmethod
    def append_list(self, values: Iterable[Any]) -> None:
        """Add values at the end; all or, where one is not of the declared type, none."""

    @abstractmethod
    def put(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all values."""


class MapState(ABC):
    """A map of the current key (Flink's and Spark's `MapState`); its keys and values, and errors, are as in `ValueState`.

    Its keys must be hashable, and cannot be NaN.
    """

    __slots__ = ()

    @abstractmethod
    def exists(self) -> bool:
        """Whether the map has entries."""

    @abstractmethod
    def get_value(self, key: Any) -> Any:
        """The value of a key of the map, or None."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Whether the map has a key; its value may be None."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map."""

    @abstractmethod
    def update(self, entries: Mapping[Any, Any]) -> None:
        """Set the values of several keys of the map."""

    @abstractmethod
    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values as they are now; the map may be changed while they are read."""

    @abstractmethod
    def keys(self) -> Iterator[Any]:
        """The keys of the map, as of `iterator`."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """The values of the map, as of `iterator`."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove a key of the map, if it is there."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""


class RuntimeContext(ABC):
    """Hands out states, in `KeyedProcessFunction.open` only (Flink's `RuntimeContext`, Spark's `StatefulProcessorHandle`).

    A type is DDL with column names, such as `n BIGINT` or `n BIGINT, at TIMESTAMP`, or a `StructType`. The same name and type
    give the same state again.

    Raises:
        SchemaError: a type cannot be read, or the name is that of another state.
        KeyedFunctionError: `open` has returned.
    """

    __slots__ = ()

    @abstractmethod
    def get_value_state(self, name: str, schema: str | StructType) -> ValueState:
        """A state of one value for each key."""

    @abstractmethod
    def get_list_state(self, name: str, schema: str | StructType) -> ListState:
        """A state of a list for each key."""

    @abstractmethod
    def get_map_state(self, name: str, key_schema: str | StructType, value_schema: str | StructType) -> MapState:
        """A state of a map for each key; the map's own keys cannot be of a type ARRAY or MAP."""


class KeyedContext(ABC):
    """What a function knows of the moment, and its timers (Flink's `KeyedProcessFunction.Context` and `OnTimerContext`).

    Times are milliseconds since 1970-01-01 00:00:00 UTC.

    Raises:
        KeyedFunctionError: there is no current key, as in `open` and `close`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def key(self) -> tuple[Any, ...]:
        """The current key: the value of each PARTITION BY expression."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """In `process_element` the row's event time: None where it is null or no time column is known. In `on_timer` the timer's.

        Raises:
            SchemaError: the time column is no TIMESTAMP, TIMESTAMP_NTZ (taken as UTC), DATE or integer (milliseconds).
        """

    @abstractmethod
    def current_watermark(self) -> int:
        """How far event time has come. In a bounded stage: `MIN_WATERMARK` while rows are read, `MAX_WATERMARK` in timers."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called for the current key once the watermark has reached a time; once, however often it is registered.

        Raises:
            SchemaError: it is no integer, or no BIGINT.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take a timer of the current key back, if it is there."""


class KeyedProcessFunction(ABC):
    """Reads the rows of each key, one after the other, with state of that key (Flink's `KeyedProcessFunction`).

    It is pickled with cloudpickle, and one copy runs in each task. In a bounded stage (FLIP-140) each key is read to its end
    before the next begins; then its timers fire in the order of their times, those registered meanwhile included, and its state
    is gone. A timer that always registers another one would never end there: `current_watermark() == MAX_WATERMARK` tells.

        class Visits(sqlext.KeyedProcessFunction):
            def open(self, runtime_context):
                self.count = runtime_context.get_value_state("count", "n BIGINT")

            def process_element(self, row, context):
                self.count.update((self.count.value() or 0) + 1)
                context.register_event_time_timer(context.timestamp() + 60_000)

            def on_timer(self, timestamp, context):
                yield (*context.key, self.count.value())

    Rows that come out are Row, tuple, list or dict, or the bare value of a single column.
    """

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: B027  # may be left out
        """Called before the first row of a task, with or without rows: states are made here, and cannot be used yet."""

    @abstractmethod
    def process_element(self, row: Row, context: KeyedContext) -> Iterable[Any] | None:
        """Called with each row; gives the rows that come out, or None."""

    def on_timer(self, timestamp: int, context: KeyedContext) -> Iterable[Any] | None:
        """Called when the watermark has reached a registered time, in milliseconds; gives the rows that come out, or None."""
        return None

    def close(self) -> None:  # noqa: B027  # may be left out
        """Called at the end of a task, also of one that failed; states cannot be used any more."""


_ARGUMENTS = {
    "open": ("runtime_context",),
    "process_element": ("row", "context"),
    "on_timer": ("timestamp", "context"),
    "close": (),
}


@dataclass(frozen=True)
class KeyedFunction:
    """A keyed function that SQL calls by name.

    Attributes:
        name: as SQL gives it, in a string; case does not matter.
        function: of which each task gets a copy.
        returns: the columns that come out, as DDL.

    Raises:
        SchemaError: it is no `KeyedProcessFunction`, a method takes other arguments, or `returns` is empty.
    """

    name: str
    function: KeyedProcessFunction
    returns: str

    def __post_init__(self) -> None:
        if not isinstance(self.function, KeyedProcessFunction):
            advice = (
                f" Give an object of the class: {self.function.__name__}()."
                if isinstance(self.function, type)
                else " Extend sqlext.KeyedProcessFunction."
            )
            raise SchemaError(f"The keyed function `{self.name}` is {self.function!r}, no KeyedProcessFunction.{advice}")
        for method, arguments in _ARGUMENTS.items():
            check_arity(OPERATOR, getattr(self.function, method), arguments)
        if not self.returns.strip():
            raise SchemaError(f"The keyed function `{self.name}` needs `returns`: its columns, such as 'total DOUBLE'.")

    @property
    def operator(self) -> str:
        """The SQL table function that calls it."""
        return OPERATOR


KEYED_FUNCTIONS: OperatorFunctions[KeyedFunction] = OperatorFunctions("keyed function")


def register_keyed_function(name: str, function: KeyedProcessFunction, *, returns: str) -> None:
    """Make a keyed function known to SQL, in every session (FLIP-140's keyed operators).

    sqlext.register_keyed_function("visits", Visits(), returns="user_id BIGINT, visits BIGINT")

    Args:
        name: as SQL gives it, in a string.
        function: of which each task gets a copy.
        returns: the columns that come out, as DDL.

    Raises:
        SchemaError: it is no `KeyedProcessFunction`, a method takes other arguments, or `returns` is empty.
        NameTakenError: another function is registered under this name.
    """
    KEYED_FUNCTIONS.add(KeyedFunction(name, function, returns))
