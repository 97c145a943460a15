"""Python functions over whole partitions (FLIP-380): their interfaces, and those registered for SQL."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlext.errors import SchemaError
from sqlext.functions.registry import OperatorFunctions

OPERATORS = ("map_partition", "sort_partition", "aggregate_partition", "reduce_partition", "process_keyed", "cogroup")
"""The operators' names in SQL."""

_ARGUMENTS = {"map_partition": ("records",), "reduce_partition": ("one", "other"), "cogroup": ("first", "second")}
"""The arguments with which each operator calls its function, for messages."""


class AggregateFunction(ABC):
    """An aggregate that reads the rows of a partition one by one and returns one row (FLIP-380, Flink's `AggregateFunction`).

    `add` takes rows (`pyspark.sql.Row`); if its second parameter is annotated with `pyarrow.RecordBatch`, it takes batches.
    One task reads a partition, so accumulators are never merged: Flink's `merge` may be defined, but is not called.
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return the accumulator before the first row."""

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator with a row, or a batch of rows, added; the given one may be changed and returned."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result row: a Row, tuple, list or dict, or the bare value of a single column."""


@dataclass(frozen=True)
class PartitionFunction:
    """A function over whole partitions that SQL calls by name.

    Attributes:
        name: its name, which SQL gives as a string; case does not matter.
        function: for map_partition, a function of an iterator; for cogroup, of two iterators; for aggregate_partition, an
            `AggregateFunction`; for reduce_partition, a function of two rows.
        returns: the columns of its rows, as DDL; empty for reduce_partition, whose result has the columns of its input.

    Raises:
        SchemaError: `function` takes other arguments, or an aggregate function has no `returns`.
    """

    name: str
    function: Callable[..., Any] | AggregateFunction
    returns: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.function, AggregateFunction):
            if not self.returns:
                raise SchemaError(f"The aggregate function `{self.name}` needs `returns`: its columns, such as 'total DOUBLE'.")
        else:
            check_arity(self.operator, self.function, _ARGUMENTS[self.operator])

    @property
    def operator(self) -> str:
        """The SQL table function that calls it."""
        if isinstance(self.function, AggregateFunction):
            return "aggregate_partition"
        if not self.returns:
            return "reduce_partition"
        is_cogroup = not _takes(self.function, _ARGUMENTS["map_partition"]) and _takes(self.function, _ARGUMENTS["cogroup"])
        return "cogroup" if is_cogroup else "map_partition"

    @property
    def reads(self) -> str:
        """The form of its input: `rows` or `batches`."""
        function = self.function.add if isinstance(self.function, AggregateFunction) else self.function
        return "batches" if self.operator not in ("reduce_partition", "cogroup") and reads_batches(function) else "rows"


PARTITION_FUNCTIONS: OperatorFunctions[PartitionFunction] = OperatorFunctions("partition function")


def name_of(function: Any) -> str:
    """Return a function's name in messages: its own, or its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def check_arity(operator: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Raise SchemaError unless `function` can be called with these arguments, by position."""
    calls = f"{operator} calls its function with ({', '.join(arguments)})"
    if not callable(function):
        raise SchemaError(f"{calls}; {function!r} is not a function.")
    if not _takes(function, arguments):
        raise SchemaError(f"{calls}; {name_of(function)}{inspect.signature(function)} does not take these arguments.")


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Return whether a function can be called with these arguments; true if it has no signature."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # some C functions have no signature
        return True
    return True


def reads_batches(function: Callable[..., Any]) -> bool:
    """Return whether the last parameter of a function is annotated with `RecordBatch`, alone or inside `Iterator[..]`.

    Only the annotation's text is examined: the type that it names need not exist at run time.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return False
    return bool(parameters) and "RecordBatch" in str(parameters[-1].annotation)
