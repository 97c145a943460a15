"""The Python workers' side of full-partition processing: windows in, a user's function over each, batches out.

Batches are read and written one by one, so memory does not grow with the partition: Spark sends them while the worker reads,
and neither runs far ahead of the other.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from numbers import Number
from operator import itemgetter
from types import NoneType
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DateType, IntegralType, Row, StructType

from sqlext.errors import PartitionFunctionError
from sqlext.execution.partitions.key_runs import KeyRun, key_runs
from sqlext.functions.partition import AggregateFunction

_ROWS_IN_A_BATCH = 1000
"""The number of result rows in a batch; more would be hardly faster, and rows may be long."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class MapWindow:
    """The process of map_partition: the function's results for a window."""

    function: Callable[[Iterator[Any]], Iterable[Any]]

    def __call__(self, records: Iterator[Any]) -> Iterable[Any]:
        return self.function(records)


@dataclass(frozen=True)
class AggregateWindow:
    """The process of aggregate: one result per window, even if the window is empty."""

    function: AggregateFunction

    def __call__(self, records: Iterator[Any]) -> Iterable[Any]:
        accumulator, add = self.function.create_accumulator(), self.function.add
        for record in records:
            accumulator = add(accumulator, record)
        yield self.function.get_result(accumulator)


@dataclass(frozen=True)
class ReduceWindow:
    """The process of reduce: one row per window, none if the window is empty.

    Attributes:
        function: combines two rows; its result is converted to a Row before it is passed to the next call.
        names: the names of the columns.
    """

    function: Callable[[Row, Row], Any]
    names: tuple[str, ...]

    def __call__(self, records: Iterator[Any]) -> Iterable[Any]:
        row_of = Row(*self.names)
        reduced = next(records, None)
        if reduced is None:
            return
        for record in records:
            result = self.function(reduced, record)
            reduced = result if isinstance(result, Row) else row_of(*as_tuple(result, self.names))
        yield reduced


@dataclass(frozen=True)
class SelectKey:
    """The process of sort_partition: each batch, with a column of its rows' keys inserted after the columns of `schema`.

    Attributes:
        selector: returns the key of a row; or, if `reads_batches`, an array with the keys of a batch.
        reads_batches: whether the selector takes batches.
        schema: the schema of the records.
        key: the key's column, as a schema of its own.
    """

    selector: Callable[[Any], Any]
    reads_batches: bool
    schema: StructType
    key: StructType

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        count = len(self.schema)
        for batch in batches:
            records = pa.RecordBatch.from_arrays(batch.columns[:count], names=self.schema.names)
            keys = self._of_batch(records) if self.reads_batches else self._of_rows(_rows(records, self.schema))
            names = [*batch.schema.names[:count], *self.key.names, *batch.schema.names[count:]]
            yield pa.RecordBatch.from_arrays([*batch.columns[:count], keys, *batch.columns[count:]], names=names)

    @cached_property
    def _declared(self) -> pa.DataType:
        (kind,) = _arrow_schema(self.key).types
        return kind

    def _of_batch(self, batch: pa.RecordBatch) -> pa.Array:
        keys = self.selector(batch)
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if not isinstance(keys, pa.Array) or not _are_alike(keys.type, self._declared):
            found = keys.type if isinstance(keys, pa.Array) else type(keys).__name__
            raise TypeError(f"the keys of a batch must be a pyarrow.Array of {self._declared}, as key_type says, not {found}")
        if len(keys) != batch.num_rows:
            raise TypeError(f"a batch of {batch.num_rows} rows must have as many keys, not {len(keys)}")
        return keys

    def _of_rows(self, rows: list[Row]) -> pa.Array:
        keys = [(self.selector(row),) for row in rows]
        try:
            (batch,) = to_batches(keys, self.key)
            return batch.column(0)
        except (pa.ArrowException, TypeError, ValueError) as error:
            kind = self.key.fields[0].dataType.simpleString().upper()
            raise TypeError(f"a key does not fit the type {kind}: {error}") from None


@dataclass(frozen=True)
class PartitionTask:
    """A task that reads one partition window by window.

    Attributes:
        operator: the operator's name, for messages.
        name: the name of the user's function, for messages.
        process: returns the results of one window's records.
        reads_batches: whether a record is a `pyarrow.RecordBatch`; else it is a `pyspark.sql.Row`.
        schema: the schema of the records, without key columns. Batches may have other column names, which are unique for Spark.
        returns: the schema of the results.
        keys: the names of the key columns, which are the last columns; None: the whole partition is one window.
    """

    operator: str
    name: str
    process: Callable[[Iterator[Any]], Iterable[Any]]
    reads_batches: bool
    schema: StructType
    returns: StructType
    keys: tuple[str, ...] | None = None

    def run(self, batches: Batches) -> Batches:
        """Yield the results of a partition. Spark calls this method.

        Raises:
            PartitionFunctionError: the function failed, or its results are not as declared.
        """
        rows: list[tuple[Any, ...]] = []
        checked: pa.Schema | None = None
        for item in self._results(batches):
            if isinstance(item, pa.RecordBatch):
                schema = item.schema
                if checked is None or not schema.equals(checked):
                    self._check(schema)
                    checked = schema
                if rows:
                    yield from self._batches(rows)
                    rows = []
                yield item
                continue
            try:
                rows.append(as_tuple(item, self.returns.names))
            except TypeError as error:
                raise self._problem(f"returned {error}") from None
            if len(rows) == _ROWS_IN_A_BATCH:
                yield from self._batches(rows)
                rows = []
        yield from self._batches(rows)

    def _results(self, batches: Batches) -> Iterator[Any]:
        for run, records in self._windows(batches):
            try:
                yield from self._of_window(records)
            except PartitionFunctionError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever the user's function raises
                raise self._failure(error, run) from None

    def _of_window(self, records: Iterator[Any]) -> Iterator[Any]:
        results = self.process(records)
        try:
            iterator = iter(results)
        except TypeError:
            raise self._problem(f"returned {results!r}, which is not an iterable of rows or batches; yield them") from None
        return iterator

    def _windows(self, batches: Batches) -> Iterator[tuple[KeyRun | None, Iterator[Any]]]:
        if self.keys is None:
            yield None, self._records(batches)
            return
        for run, pieces in key_runs(batches, len(self.keys)):
            yield run, self._records(pieces)

    def _records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        if not self.reads_batches:
            for batch in batches:
                yield from _rows(batch, self.schema)
            return
        names, named = self.schema.names, None
        for batch in batches:
            schema = batch.schema
            if named is None or not schema.equals(named):
                if schema.names != names:
                    yield pa.RecordBatch.from_arrays(batch.columns, names=names)
                    continue
                named = schema
            yield batch

    def _batches(self, rows: list[tuple[Any, ...]]) -> Batches:
        if rows:
            try:
                yield from to_batches(rows, self.returns)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise self._problem(self._which_column(rows, error)) from None

    def _which_column(self, rows: list[tuple[Any, ...]], error: Exception) -> str:
        for index, field in enumerate(self.returns.fields):
            try:
                to_batches([(row[index],) for row in rows], StructType([field]))
            except (pa.ArrowException, TypeError, ValueError) as cause:
                return (
                    f"returned values that do not fit its column `{field.name} {field.dataType.simpleString().upper()}`: {cause}"
                )
        return f"returned rows that do not fit `{self.returns.simpleString()}`: {error}"

    def _check(self, schema: pa.Schema) -> None:
        expected = _arrow_schema(self.returns)
        if schema.names != expected.names:
            raise self._problem(f"returned batches with the columns {schema.names}; the declared columns are {expected.names}")
        for found, declared in zip(schema, expected, strict=True):
            if not _are_alike(found.type, declared.type):
                raise self._problem(f"returned `{found.name}` as Arrow's {found.type}; the declared type is {declared.type}")

    def _failure(self, error: Exception, run: KeyRun | None) -> PartitionFunctionError:
        """Return an error with the user's own traceback, without our frames and Spark's above the function's first one."""
        frames = traceback.extract_tb(error.__traceback__)
        while frames and frames[0].filename == __file__:
            del frames[0]
        key = ""
        if run is not None and self.keys is not None:
            key = " at " + ", ".join(f"{name} = {value!r}" for name, value in zip(self.keys, run.values(), strict=True))
        text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)]).rstrip()
        return PartitionFunctionError(f"{self._subject()} failed{key}:\n{text}")

    def _problem(self, text: str) -> PartitionFunctionError:
        return PartitionFunctionError(f"{self._subject()} {text}.")

    def _subject(self) -> str:
        context = TaskContext.get()
        place = "" if context is None else f" in partition {context.partitionId()}"
        return f"{self.operator}: the function `{self.name}`{place}"


def to_batches(rows: list[tuple[Any, ...]], schema: StructType) -> list[pa.RecordBatch]:
    """Return rows as batches, with each value converted as Spark does: one, unless a column has more than 2 GiB of text.

    Raises:
        ValueError: a value is not of its column's type. Arrow and Spark also raise errors of other classes in that case.
    """
    for index, field in enumerate(schema.fields):
        if isinstance(field.dataType, (IntegralType, DateType)):
            _check_whole(rows, index, field.dataType)
    batches: list[pa.RecordBatch] = LocalDataToArrowConversion.convert(rows, schema, False).to_batches()
    return batches


def _check_whole(rows: list[tuple[Any, ...]], index: int, declared: DataType) -> None:
    """Raise ValueError where Arrow would silently take a number for a date, or drop a fraction."""
    usual: set[type] = {date, datetime} if isinstance(declared, DateType) else {int}
    if set(map(type, map(itemgetter(index), rows))) <= {*usual, NoneType}:
        return
    for row in rows:
        value = row[index]
        if isinstance(value, (Number, Decimal)) and (isinstance(declared, DateType) or value != value // 1):  # type: ignore[operator]
            raise ValueError(f"{value!r} is not a valid {declared.simpleString().upper()}")


def as_tuple(item: Any, names: Iterable[str]) -> tuple[Any, ...]:
    """Convert a row to a tuple.

    A Row, tuple or list has its values by position, a dict by name; any other value is that of a single column.

    Raises:
        TypeError: the row has other columns than `names`.
    """
    expected = list(names)
    if isinstance(item, dict):
        if set(item) != set(expected):
            raise TypeError(f"a row with the columns {sorted(map(str, item))}; the declared columns are {expected}")
        return tuple(item[name] for name in expected)
    values = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if len(values) != len(expected):
        raise TypeError(f"{item!r}, of {len(values)} columns; the declared columns are {expected}")
    return values


def _rows(batch: pa.RecordBatch, schema: StructType) -> list[Row]:
    return ArrowTableToRowsConversion.convert(pa.Table.from_batches([batch]), schema)


def _arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def _are_alike(found: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether Spark reads both as one type: it ignores time zones and the width of offsets, inside nested types too."""
    if found == declared:
        return True
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(declared):
        return found.unit == declared.unit and (found.tz is None) == (declared.tz is None)
    if found.num_fields and found.num_fields == declared.num_fields and type(found) is type(declared):
        pairs = [(found.field(i), declared.field(i)) for i in range(found.num_fields)]
        return all(_are_alike(one.type, other.type) for one, other in pairs)
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return bool(narrow.get(found, found) == declared)
