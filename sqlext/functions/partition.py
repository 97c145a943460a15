"""Python functions over whole partitions (FLIP-380): what they look like, and which are registered for SQL."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlext.errors import SchemaError
from sqlext.functions.registry import OperatorFunctions

OPERATORS = ("map_partition", "sort_partition", "aggregate_partition", "reduce_partition", "process_keyed", "cogroup")
"""SQL's names of them."""

_ARGUMENTS = {"map_partition": ("records",), "reduce_partition": ("one", "other"), "cogroup": ("first", "second")}
"""What each calls its function with, for messages."""


class AggregateFunction(ABC):
    """Makes one row of all rows of a partition, one after the other (FLIP-380, Flink's `AggregateFunction`).

    `add` takes rows (`pyspark.sql.Row`); where its second parameter is annotated with `pyarrow.RecordBatch`, it takes batches.
    A partition is read by one task, so no two accumulators ever meet: Flink's `merge` may be there, and is not called.
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """What the aggregate of nothing starts with."""

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """The accumulator with a row, or a batch of rows, added; the one that was given may be changed and returned."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The row that comes out: a Row, tuple, list or dict, or the bare value of a single column."""


@dataclass(frozen=True)
class PartitionFunction:
    """A function over whole partitions that SQL calls by name.

    Attributes:
        name: as SQL gives it, in a string; case does not matter.
        function: of map_partition, a function of an iterator; of cogroup, of two iterators; an `AggregateFunction`; or of
            reduce_partition, a function of two rows.
        returns: the columns that come out, as DDL; empty for reduce_partition, whose rows are like those that it reads.

    Raises:
        SchemaError: `function` cannot be called like that.
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
        """`rows` or `batches`."""
        function = self.function.add if isinstance(self.function, AggregateFunction) else self.function
        return "batches" if self.operator not in ("reduce_partition", "cogroup") and reads_batches(function) else "rows"


PARTITION_FUNCTIONS: OperatorFunctions[PartitionFunction] = OperatorFunctions("partition function")


def name_of(function: Any) -> str:
    """What messages call a function: its name, or its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def check_arity(operator: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Raise SchemaError unless `function` can be called with these arguments, by position."""
    calls = f"{operator} calls its function with ({', '.join(arguments)})"
    if not callable(function):
        raise SchemaError(f"{calls}; {function!r} is no function.")
    if not _takes(function, arguments):
        raise SchemaError(f"{calls}; {name_of(function)}{inspect.signature(function)} does not take that.")


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Whether a function can be called with so many arguments, as far as it says."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # some functions of C do not say what they take
        return True
    return True


def reads_batches(function: Callable[..., Any]) -> bool:
    """Whether the last parameter of a function is annotated with `RecordBatch`, alone or inside `Iterator[..]`.

    The annotation's text decides: what it names need not be there at run time.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return False
    return bool(parameters) and "RecordBatch" in str(parameters[-1].annotation)
