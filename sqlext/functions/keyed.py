"""Python functions over the rows of a key, with state and timers: their interfaces, and those registered for SQL.

The same function runs in a bounded stage, over input sorted by key (FLIP-140), and in a flow, on Spark's transformWithState. The
names are those of Flink (`KeyedProcessFunction`) and `pyspark.sql.streaming.stateful_processor`, in Python's spelling.
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
"""The operator's name in SQL."""

MIN_WATERMARK = -(2**63)
"""The watermark, in milliseconds, while the rows of a key are read in a bounded stage (Flink's `Watermark.MIN_VALUE`)."""

MAX_WATERMARK = 2**63 - 1
"""The watermark, in milliseconds, while the timers of a key fire in a bounded stage (Flink's `Watermark.MAX_VALUE`)."""


class ValueState(ABC):
    """A value of the current key (Flink's and Spark's `ValueState`).

    If the state's type has one column, a value is the plain Python value; otherwise it is a tuple in the columns' order. A
    mutable value that was changed in place must be passed to `update` again: not every backend keeps the object.

    Raises:
        SchemaError: from methods that write, in each kind of state: a value is not of the declared type. Only the class of each
            column's value is checked, not nested values or ranges. Integers count as DOUBLE, numpy's scalars as Python's.
        KeyedFunctionError: from every method, in each kind of state: there is no current key, as in `open` and `close`.
    """

    __slots__ = ()

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the key has a value."""

    @abstractmethod
    def value(self) -> Any:
        """Return the value, or None."""

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
        """Return whether the list has values."""

    @abstractmethod
    def get(self) -> Iterator[Any]:
        """Return the current values in the order in which they were added, without any that are appended during the iteration."""

    @abstractmethod
    def append(self, value: Any) -> None:
        """Add a value at the end."""

    @abstractmethod
    def append_list(self, values: Iterable[Any]) -> None:
        """Add values at the end; none of them if one is not of the declared type."""

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
        """Return whether the map has entries."""

    @abstractmethod
    def get_value(self, key: Any) -> Any:
        """Return the value of a key of the map, or None."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Return whether the map has a key; the key's value may be None."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map."""

    @abstractmethod
    def update(self, entries: Mapping[Any, Any]) -> None:
        """Set the values of several keys of the map."""

    @abstractmethod
    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Return the current keys and values; the map may be changed during the iteration."""

    @abstractmethod
    def keys(self) -> Iterator[Any]:
        """Return the keys of the map, as `iterator` does."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """Return the values of the map, as `iterator` does."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove a key of the map, if present."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries."""


class RuntimeContext(ABC):
    """The source of states, in `KeyedProcessFunction.open` only (Flink's `RuntimeContext`, Spark's `StatefulProcessorHandle`).

    A type is DDL with column names, such as `n BIGINT` or `n BIGINT, at TIMESTAMP`, or a `StructType`. The same name and type
    return the same state again.

    Raises:
        SchemaError: a type cannot be read, or another state has the name.
        KeyedFunctionError: `open` has already returned.
    """

    __slots__ = ()

    @abstractmethod
    def get_value_state(self, name: str, schema: str | StructType) -> ValueState:
        """Return a state of one value per key."""

    @abstractmethod
    def get_list_state(self, name: str, schema: str | StructType) -> ListState:
        """Return a state of one list per key."""

    @abstractmethod
    def get_map_state(self, name: str, key_schema: str | StructType, value_schema: str | StructType) -> MapState:
        """Return a state of one map per key; the map's own keys cannot be of type ARRAY or MAP."""


class KeyedContext(ABC):
    """The current key, times and timers of a function (Flink's `KeyedProcessFunction.Context` and `OnTimerContext`).

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
        """Return the row's event time in `process_element`, and the timer's time in `on_timer`.

        The event time is None if it is null or the time column is not known.

        Raises:
            SchemaError: the time column is not a TIMESTAMP, TIMESTAMP_NTZ (read as UTC), DATE or integer (milliseconds).
        """

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark. In a bounded stage: `MIN_WATERMARK` while rows are read, `MAX_WATERMARK` in timers."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a call of `on_timer` for the current key when the watermark reaches a time.

        A time that is registered several times is called once.

        Raises:
            SchemaError: the time is not an integer, or exceeds BIGINT.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key, if it is registered."""


class KeyedProcessFunction(ABC):
    """A function that reads the rows of each key one by one, with state of that key (Flink's `KeyedProcessFunction`).

    It is pickled with cloudpickle, and one copy runs in each task. In a bounded stage (FLIP-140) each key is read to its end
    before the next one begins; then its timers fire in the order of their times, including those registered meanwhile, and its
    state is removed. A timer that always registers another one would never end there: test
    `current_watermark() == MAX_WATERMARK`.

        class Visits(sqlext.KeyedProcessFunction):
            def open(self, runtime_context):
                self.count = runtime_context.get_value_state("count", "n BIGINT")

            def process_element(self, row, context):
                self.count.update((self.count.value() or 0) + 1)
                context.register_event_time_timer(context.timestamp() + 60_000)

            def on_timer(self, timestamp, context):
                yield (*context.key, self.count.value())

    An output row is a Row, tuple, list or dict, or the bare value of a single column.
    """

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: B027  # may be left out
        """Prepare for the rows of a task, also of one without rows; states are made here, and cannot be used yet."""

    @abstractmethod
    def process_element(self, row: Row, context: KeyedContext) -> Iterable[Any] | None:
        """Process a row; return the output rows, or None."""

    def on_timer(self, timestamp: int, context: KeyedContext) -> Iterable[Any] | None:
        """Process a timer when the watermark reaches its time, in milliseconds; return the output rows, or None."""
        return None

    def close(self) -> None:  # noqa: B027  # may be left out
        """Release resources at the end of a task, also of one that failed; states cannot be used any more."""


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
        name: its name, which SQL gives as a string; case does not matter.
        function: the function; each task gets a copy.
        returns: the columns of the output rows, as DDL.

    Raises:
        SchemaError: `function` is not a `KeyedProcessFunction`, a method takes other arguments, or `returns` is empty.
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
            raise SchemaError(f"The keyed function `{self.name}` is {self.function!r}, not a KeyedProcessFunction.{advice}")
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
    """Register a keyed function for SQL, in every session (FLIP-140's keyed operators).

    sqlext.register_keyed_function("visits", Visits(), returns="user_id BIGINT, visits BIGINT")

    Args:
        name: its name, which SQL gives as a string.
        function: the function; each task gets a copy.
        returns: the columns of the output rows, as DDL.

    Raises:
        SchemaError: `function` is not a `KeyedProcessFunction`, a method takes other arguments, or `returns` is empty.
        NameTakenError: another function is registered under this name.
    """
    KEYED_FUNCTIONS.add(KeyedFunction(name, function, returns))
