"""Cogroups (FLIP-331): the rows of each key of two DataFrames, processed together once both inputs have ended.

The union of both sides is exchanged by key and sorted by key and side, on disk where memory is too small. So a key's rows of the
first side come before those of the second, and no key is ever held in memory as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData, Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.errors import SchemaError
from sqlext.execution.partitions.partition import as_schema, grouped, windowed
from sqlext.functions.partition import check_arity, name_of
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote

OPERATOR = "cogroup"
_SIDE, _FIRST, _SECOND = (f"{INTERNAL_PREFIX}{name}" for name in ("side", "first", "second"))
_KEY = f"{INTERNAL_PREFIX}cogroup_key_"

CogroupFunction = Callable[[Iterator[Row], Iterator[Row]], Iterable[Any]]
"""Takes the rows of a key of both DataFrames, and returns the rows of the result (Flink's `CoGroupFunction`)."""


def cogroup(
    first: GroupedData, second: GroupedData, function: CogroupFunction, returns: StructType | str, *, name: str | None = None
) -> DataFrame:
    """Call a function with the rows of each key that either DataFrame has.

    The result is lazy, like any DataFrame: the function is called when the result is read.

    Args:
        first, second: `df.groupBy(..)` of batch DataFrames, by the same number of keys of the same types; null is a key as well.
        function: takes an iterator over each side's rows of a key, which is empty if the side has none. Once it reads the second
            side, the rows of the first side that it has not read yet are held in memory.
        returns: the columns of the function's results, as DDL or type.
        name: the function's name in messages.

    Raises:
        SchemaError: the keys differ in number or type, or the function does not take two iterators.
        UnsupportedError: a DataFrame is a stream, or is grouped by more than plain GROUP BY.
    """
    check_arity(OPERATOR, function, ("first", "second"))
    (one, keys), (other, other_keys) = grouped(OPERATOR, first), grouped(OPERATOR, second)
    names = [key for key, _ in keys]
    return cogrouped(as_side(one, keys), as_side(other, other_keys), names, function, returns, name or name_of(function))


def as_side(frame: DataFrame, keys: Sequence[tuple[str, Column]]) -> DataFrame:
    """Return the rows of a side, each as one struct, followed by its keys.

    Args:
        frame: the rows.
        keys: the name and the expression of each key.
    """
    columns = [F.col(quote(column)) for column in frame.columns]
    return frame.select(F.struct(*columns).alias(_FIRST), *(key.alias(f"{_KEY}{index}") for index, (_, key) in enumerate(keys)))


def cogrouped(
    first: DataFrame, second: DataFrame, names: Sequence[str], function: CogroupFunction, returns: StructType | str, name: str
) -> DataFrame:
    """Call a function as `cogroup` does, with two results of `as_side`.

    Args:
        names: the names of the keys, for messages.
    """
    sides = [first, second]
    kinds = [[field.dataType.simpleString() for field in frame.schema.fields[1:]] for frame in sides]
    if kinds[0] != kinds[1]:
        one, other = (", ".join(each) for each in kinds)
        raise SchemaError(f"cogroup needs keys of the same types on both sides; these are ({one}) and ({other}).")
    (left, right), keys = (frame.schema.fields[0].dataType for frame in sides), [F.col(key) for key in first.columns[1:]]
    firsts = [F.lit(0).alias(_SIDE), F.col(_FIRST), F.lit(None).cast(right).alias(_SECOND), *keys]
    seconds = [F.lit(1).alias(_SIDE), F.lit(None).cast(left).alias(_FIRST), F.col(_FIRST).alias(_SECOND), *keys]
    both = first.select(*firsts).unionAll(second.select(*seconds))
    windows = windowed(OPERATOR, both, list(zip(names, keys, strict=True)), [F.col(_SIDE)])
    return windows.run(OPERATOR, name, _SideSplitter(function), False, as_schema(OPERATOR, returns))


class _SideSplitter:
    """Splits the rows of a key into its two sides, and calls the user's function."""

    def __init__(self, function: CogroupFunction) -> None:
        self._function = function

    def __call__(self, records: Iterator[Row]) -> Iterable[Any]:
        key = _Key(records)
        return self._function(key.first(), key.second())


class _Key:
    """The rows of one key, each with its side, first struct and second struct.

    Rows of the first side that are still unread when the second side is read are held in memory.
    """

    def __init__(self, records: Iterator[Row]) -> None:
        self._records = records
        self._held: deque[Row] = deque()
        self._ahead: Row | None = None

    def first(self) -> Iterator[Row]:
        while (row := self._held.popleft() if self._held else self._next_of_first()) is not None:
            yield row

    def second(self) -> Iterator[Row]:
        while (row := self._next_of_first()) is not None:
            self._held.append(row)
        if self._ahead is not None:
            yield self._ahead[2]
        for record in self._records:
            yield record[2]

    def _next_of_first(self) -> Row | None:
        if self._ahead is not None:
            return None
        record = next(self._records, None)
        if record is None or record[0] == 0:
            return None if record is None else record[1]
        self._ahead = record
        return None
