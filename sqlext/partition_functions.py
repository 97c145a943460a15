"""Python functions over whole partitions (FLIP-380): what they look like, and which are registered for SQL."""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlext.errors import NameTakenError, NotFoundError, SchemaError, did_you_mean


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
        function: of map_partition, a function of an iterator; an `AggregateFunction`; or of reduce_partition, a function of two
            rows.
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
        elif self.returns:
            check_arity("map_partition", self.function, ("records",))
        else:
            check_arity("reduce_partition", self.function, ("one", "other"))

    @property
    def operator(self) -> str:
        """The SQL table function that calls it."""
        if isinstance(self.function, AggregateFunction):
            return "aggregate_partition"
        return "map_partition" if self.returns else "reduce_partition"

    @property
    def reads(self) -> str:
        """`rows` or `batches`."""
        function = self.function.add if isinstance(self.function, AggregateFunction) else self.function
        return "batches" if self.operator != "reduce_partition" and reads_batches(function) else "rows"


class PartitionFunctionRegistry:
    """The partition functions registered in this process.

    The lock guards the dict; any thread may call any method.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[str, PartitionFunction] = {}

    def add(self, function: PartitionFunction) -> None:
        """Add a function; the same one may be added again.

        Raises:
            NameTakenError: another function is registered under its name.
        """
        with self._lock:
            there = self._functions.setdefault(function.name.lower(), function)
        if there != function:
            raise NameTakenError(f"There is a partition function `{there.name}` already. Register yours under another name.")

    def get(self, name: str, operator: str) -> PartitionFunction:
        """The function that an operator calls.

        Raises:
            NotFoundError: there is none of that name; says which one is near.
            SchemaError: it is for another operator.
        """
        with self._lock:
            function = self._functions.get(name.lower())
            known = sorted(each.name for each in self._functions.values() if each.operator == operator)
        if function is None:
            there = f" Those of {operator} are {', '.join(known)}." if known else f" There is none for {operator} yet."
            raise NotFoundError(f"There is no partition function `{name}`.{did_you_mean(name, known)}{there}")
        if function.operator != operator:
            raise SchemaError(f"{operator} cannot call `{function.name}`: it is registered for {function.operator}.")
        return function

    def __iter__(self) -> Iterator[PartitionFunction]:
        with self._lock:
            return iter(sorted(self._functions.values(), key=lambda function: function.name.lower()))


PARTITION_FUNCTIONS = PartitionFunctionRegistry()


def name_of(function: Any) -> str:
    """What messages call a function: its name, or its class's."""
    return str(getattr(function, "__name__", type(function).__name__))


def check_arity(operator: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Raise SchemaError unless `function` can be called with these arguments, by position."""
    calls = f"{operator} calls its function with ({', '.join(arguments)})"
    if not callable(function):
        raise SchemaError(f"{calls}; {function!r} is no function.")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions of C do not say what they take
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise SchemaError(f"{calls}; {name_of(function)}{signature} does not take that.") from None


def reads_batches(function: Callable[..., Any]) -> bool:
    """Whether the last parameter of a function is annotated with `RecordBatch`, alone or inside `Iterator[..]`.

    The annotation's text decides: what it names need not be there at run time.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        return False
    return bool(parameters) and "RecordBatch" in str(parameters[-1].annotation)
