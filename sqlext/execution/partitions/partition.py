"""Full-partition processing: map, sort, aggregate and reduce over whole partitions (FLIP-380).

df = sqlext.full_window_partition(spark.table("readings"))                    # one window per partition, as it is
df = sqlext.full_window_partition(spark.table("readings").groupBy("sensor"))  # one window per key

Without keys, no rows are moved: partitions and parallelism are the input's. With keys, Spark brings the rows of a key into one
partition and sorts them by key; the worker then reads one key after the other.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from sqlext.errors import SchemaError, UnsupportedError, did_you_mean
from sqlext.execution.partitions.partition_worker import AggregateWindow, MapWindow, PartitionTask, ReduceWindow, SelectKey
from sqlext.functions.partition import OPERATORS, AggregateFunction, check_arity, name_of, reads_batches
from sqlext.plan.job_graph import INTERNAL_PREFIX, OperatorAttributes, OperatorAttributesBuilder
from sqlext.spark.failures import reason_of
from sqlext.spark.jvm import collation_in, grouping_of

_KEY = f"{INTERNAL_PREFIX}key_"
_SORT_KEY = f"{INTERNAL_PREFIX}sort_key"
_COLUMN = f"{INTERNAL_PREFIX}column_"

_DDL_OF_ANNOTATIONS: Mapping[type, str] = MappingProxyType(
    {
        bool: "BOOLEAN",
        int: "BIGINT",
        float: "DOUBLE",
        str: "STRING",
        bytes: "BINARY",
        decimal.Decimal: "DECIMAL(38, 18)",
        datetime.date: "DATE",
        datetime.datetime: "TIMESTAMP",
    }
)


def _full_dam(operator: str) -> OperatorAttributes:
    return OperatorAttributesBuilder(operator).set_output_idempotent(False).set_output_only_after_end_of_stream(True).build()


ATTRIBUTES: Mapping[str, OperatorAttributes] = MappingProxyType({name: _full_dam(name) for name in OPERATORS})
"""The attributes of each operator. All are full dams (FLIP-331): a window is complete only at the end of the input."""


class Order(Enum):
    """The order of a sort. Ascending: nulls first, then values, then NaN; descending: the reverse."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


def full_window_partition(df: DataFrame | GroupedData) -> PartitionWindowedDataFrame:
    """Collect the rows of each partition, or of each key, into one window (FLIP-380's `fullWindowPartition`).

    Args:
        df: a batch DataFrame, whose partitions are the windows; or `df.groupBy(..)`, whose keys, as in GROUP BY, are the windows.

    Raises:
        SchemaError: `df` is not a DataFrame.
        UnsupportedError: `df` reads a stream, or is grouped by more than plain GROUP BY, or by a collated string.
    """
    if isinstance(df, GroupedData):
        return windowed("full_window_partition", *grouped("full_window_partition", df))
    if not isinstance(df, DataFrame):
        raise SchemaError(f"full_window_partition takes a DataFrame or df.groupBy(..), not {type(df).__name__}.")
    return windowed("full_window_partition", df, [])


def window_all(df: DataFrame) -> PartitionWindowedDataFrame:
    """Collect all rows into one window (Flink's `windowAll` with FLIP-331's end-of-stream window): one task reads them all.

    The order of the rows is undefined; `sort_partition` defines one.

    Args:
        df: a batch DataFrame.

    Raises:
        SchemaError: `df` is not a DataFrame.
        UnsupportedError: `df` reads a stream.
    """
    if not isinstance(df, DataFrame):
        raise SchemaError(f"window_all takes a DataFrame, not {type(df).__name__}.")
    check_bounded("window_all", df.isStreaming)
    return windowed("window_all", single_partition(df), [])


def single_partition(frame: DataFrame) -> DataFrame:
    """Bring all rows into one partition, even if there are none: an empty window is a window too."""
    return frame.repartition(1)


def grouped(operator: str, df: GroupedData) -> tuple[DataFrame, Sequence[tuple[str, Column]]]:
    """Return the parts of an operator's `df.groupBy(columns)`: `df`, and the name and the expression of each key.

    Raises:
        SchemaError: `df` is not grouped.
        UnsupportedError: `df` is grouped by more than plain GROUP BY, or without columns.
    """
    if not isinstance(df, GroupedData):
        raise SchemaError(f"{operator} takes df.groupBy(columns), not {type(df).__name__}.")
    frame, keys, kind = grouping_of(df)
    if kind != "GroupBy" or not keys:
        given = kind if keys else "groupBy() without columns"
        raise UnsupportedError(f"{operator} takes df.groupBy(columns); this is {given}.")
    return frame, keys


def check_bounded(operator: str, is_streaming: bool) -> None:
    """Raise UnsupportedError if an operator's input is a stream."""
    if is_streaming:
        raise UnsupportedError(
            f"{operator} needs the end of its input, and a stream has no end. Give it a table, or a query without STREAM."
        )


def windowed(
    operator: str, frame: DataFrame, keys: Sequence[tuple[str, Column]], orders: Sequence[Column] = ()
) -> PartitionWindowedDataFrame:
    """Return the windows of a DataFrame: its keys if there are any, else its partitions.

    Args:
        operator: the operator's name, for messages.
        frame: the rows.
        keys: the name, for messages, and the expression of each key.
        orders: the expressions by which the rows of a window are ordered.

    Raises:
        UnsupportedError: as `full_window_partition` does.
    """
    check_bounded(operator, frame.isStreaming)
    if keys:
        frame = frame.select("*", *(key.alias(f"{_KEY}{index}") for index, (_, key) in enumerate(keys)))
        for (name, _), field in zip(keys, frame.schema.fields[-len(keys) :], strict=True):
            if (collation := collation_in(field.dataType)) is not None:
                raise UnsupportedError(
                    f"{operator} cannot group by `{name}`, which has the collation {collation}. Group by "
                    f"collate({name}, 'UTF8_BINARY'), or by lower(..) of that."
                )
    return PartitionWindowedDataFrame(frame, tuple(name for name, _ in keys), tuple(orders))


class PartitionWindowedDataFrame:
    """A DataFrame in windows, each a whole partition or all rows of a key, as `full_window_partition` returns it.

    Its methods are lazy, like a DataFrame's: functions are called when the result is read.

    Args:
        frame: the rows, with the key columns last.
        keys: the names of the key columns, for messages.
        orders: the expressions by which the rows of a window are ordered.
    """

    def __init__(self, frame: DataFrame, keys: tuple[str, ...], orders: tuple[Column, ...] = ()) -> None:
        self._frame = frame
        self._keys = keys
        self._orders = orders
        fields = frame.schema.fields
        self._schema = StructType(fields[: len(fields) - len(keys)])

    def map_partition(
        self, function: Callable[[Iterator[Any]], Iterable[Any]], schema: StructType | str, *, name: str | None = None
    ) -> DataFrame:
        """Call a function with each window.

        The function starts with the first rows, before all of them have arrived, and the rows that it yields are passed on at
        once.

        Args:
            function: takes an iterator of `pyspark.sql.Row`, or of `pyarrow.RecordBatch` if its parameter is annotated so,
                such as `Iterator[pa.RecordBatch]`; yields rows (Row, tuple, list, dict, or the bare value of a single column),
                batches, or both. It is also called with an empty partition; a key always has rows.
            schema: the columns that it yields, as DDL (`a INT, b STRING`) or type. Batches must have exactly these columns and
                types.
            name: the function's name in messages.

        Raises:
            SchemaError: the function does not take a single argument, or a column's type cannot be converted to Arrow.
        """
        check_arity("map_partition", function, ("records",))
        process, name = MapWindow(function), name or name_of(function)
        return self.run("map_partition", name, process, reads_batches(function), as_schema("map_partition", schema))

    def sort_partition(
        self,
        key: int | str | Callable[[Any], Any],
        order: Order = Order.ASCENDING,
        *,
        key_type: DataType | str | None = None,
    ) -> DataFrame:
        """Sort the rows of each window, on disk where memory is too small. The rows of a key stay consecutive.

        Nulls are first when ascending and last when descending; NaN is greater than all numbers.

        Args:
            key: a column's 0-based index; a column's name, or that of a nested field, `a.b`; or a function that takes a row and
                returns its key. A function whose parameter is annotated with `pyarrow.RecordBatch` takes a batch, and returns
                a `pyarrow.Array` of keys.
            order: the order of the keys.
            key_type: the type of the keys that a function returns; None: that of the function's return annotation.

        Raises:
            SchemaError: there is no such column, or more than one; its type has no order; or the type of a key is not known.
        """
        if not isinstance(order, Order):
            raise SchemaError(f"The order of sort_partition must be Order.ASCENDING or Order.DESCENDING, not {order!r}.")
        if callable(key):
            return self._sorted_by_selector(key, order, _key_type(key, key_type))
        if isinstance(key, int) and not isinstance(key, bool):
            return self._sorted_by_index(key, order)
        if isinstance(key, str):
            return self._sorted_by(_ordered(self._named(key), order))
        raise SchemaError(f"The key of sort_partition must be a column's index or name, or a function, not {key!r}.")

    def aggregate(self, function: AggregateFunction, schema: StructType | str, *, name: str | None = None) -> DataFrame:
        """Aggregate each window into one row.

        An empty partition has a row too, the result of a new accumulator: FLIP-380 creates one before it reads the first record.

        Args:
            function: an `AggregateFunction`; it reads batches if the value that `add` takes is annotated so.
            schema: the columns of the row, as DDL or type.
            name: the function's name in messages.

        Raises:
            SchemaError: `function` is not an `AggregateFunction`, or a column's type cannot be converted to Arrow.
        """
        if not isinstance(function, AggregateFunction):
            raise SchemaError(f"aggregate takes an object whose class extends sqlext.AggregateFunction, not {function!r}.")
        process, name = AggregateWindow(function), name or name_of(function)
        fields = as_schema("aggregate_partition", schema)
        return self.run("aggregate_partition", name, process, reads_batches(function.add), fields)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> DataFrame:
        """Reduce each window to one row, by combining two rows at a time in the window's order. An empty partition has no row.

        Args:
            function: takes two rows and returns one with the same columns; the result of a single row is that row.
            name: the function's name in messages.

        Raises:
            SchemaError: the function does not take two arguments, or a column's type cannot be converted to Arrow.
        """
        check_arity("reduce_partition", function, ("one", "other"))
        process = ReduceWindow(function, tuple(self._schema.names))
        return self.run("reduce_partition", name or name_of(function), process, False, self._schema)

    def sorted(self) -> DataFrame:
        """Return the rows of each window, sorted by the windows' orders.

        Raises:
            SchemaError: Spark cannot sort by one of the orders; the message has its reason.
        """
        try:
            return self.in_windows().drop(*self._frame.columns[len(self._schema) :])
        except AnalysisException as error:
            reason = reason_of(error).partition(";")[0]  # Spark's plan follows
            raise SchemaError(f"sort_partition cannot sort as requested: {reason}") from None

    # Sorting.

    def _sorted_by(self, order: Column) -> DataFrame:
        return PartitionWindowedDataFrame(self._frame, self._keys, (order,)).sorted()

    def _sorted_by_index(self, index: int, order: Order) -> DataFrame:
        names = self._schema.names
        if not 0 <= index < len(names):
            columns = ", ".join(f"{at} `{name}`" for at, name in enumerate(names))
            raise SchemaError(f"The input of sort_partition has no column {index}. The columns are {columns}.")
        if _can_be_named(names):
            return self._sorted_by(_ordered(F.col(names[index]), order))
        numbered = PartitionWindowedDataFrame(_numbered(self._frame), self._keys)
        return numbered._sorted_by(_ordered(F.col(f"{_COLUMN}{index}"), order)).toDF(*names)

    def _named(self, name: str) -> Column:
        columns = f"The columns are {', '.join(f'`{each}`' for each in self._schema.names)}."
        try:
            found = self._frame.select(F.col(name)).columns
        except AnalysisException as error:
            if "AMBIGUOUS" in (error.getCondition() or ""):
                raise SchemaError(f"sort_partition: the column `{name}` is ambiguous. Give its index.") from None
            raise SchemaError(
                f"The input of sort_partition has no column `{name}`.{did_you_mean(name, self._schema.names)} {columns}"
            ) from None
        if len(found) != 1 or found[0].startswith(_KEY):
            raise SchemaError(f"The input of sort_partition has no column `{name}`. {columns}")
        return F.col(name)

    def _sorted_by_selector(self, selector: Callable[[Any], Any], order: Order, kind: DataType) -> DataFrame:
        """Sort by keys that are made in Python, travel with the rows through the sort, and are dropped after it."""
        check_arity("sort_partition", selector, ("record",))
        frame = _numbered(self._frame)
        key = StructField(_SORT_KEY, kind)
        fields, count = frame.schema.fields, len(self._schema)
        whole = StructType([*fields[:count], key, *fields[count:]])
        process = SelectKey(selector, reads_batches(selector), self._schema, StructType([key]))
        task = PartitionTask("sort_partition", name_of(selector), process, True, frame.schema, whole)
        with_key = PartitionWindowedDataFrame(through_arrow(frame, task), self._keys)
        return with_key._sorted_by(_ordered(F.col(_SORT_KEY), order)).drop(_SORT_KEY).toDF(*self._schema.names)

    # Windows.

    def run(
        self,
        operator: str,
        name: str,
        process: Callable[[Iterator[Any]], Iterable[Any]],
        is_over_batches: bool,
        returns: StructType,
    ) -> DataFrame:
        """Run a process over each window, and return its results.

        Args:
            operator: the operator's name, for messages.
            name: the function's name, for messages.
            process: returns the results of a window.
            is_over_batches: whether the process reads batches; else it reads rows.
            returns: the columns of the results.
        """
        task = PartitionTask(operator, name, process, is_over_batches, self._schema, returns, self._keys or None)
        return through_arrow(self.in_windows(), task)

    def in_windows(self) -> DataFrame:
        """Return the rows with those of each key consecutive in one partition; without keys, as they are."""
        keys = [F.col(name) for name in self._frame.columns[len(self._schema) :]]
        frame = self._frame.repartition(*keys) if keys else self._frame
        return frame.sortWithinPartitions(*keys, *self._orders) if keys or self._orders else frame


def _ordered(column: Column, order: Order) -> Column:
    return column.asc_nulls_first() if order is Order.ASCENDING else column.desc_nulls_last()


def _can_be_named(names: list[str]) -> bool:
    """Return whether each name finds its column without quoting: it is a plain word, and unique."""
    return len({name.lower() for name in names}) == len(names) and all(re.fullmatch(r"\w+", name) for name in names)


def _numbered(frame: DataFrame) -> DataFrame:
    """Return the same columns under unique names; key columns keep their names."""
    return frame.toDF(*(name if name.startswith(_KEY) else f"{_COLUMN}{at}" for at, name in enumerate(frame.columns)))


class ArrowTask(Protocol):
    """A task that Python workers run, a partition at a time; see `PartitionTask` and `KeyedTask`."""

    @property
    def name(self) -> str:
        """The function's name, for messages."""

    @property
    def operator(self) -> str:
        """The operator's name, for messages."""

    @property
    def returns(self) -> StructType:
        """The schema of the results."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of a partition."""


def through_arrow(frame: DataFrame, task: ArrowTask) -> DataFrame:
    """Run a task over each partition, and return its results.

    Raises:
        SchemaError: a column's type cannot be converted to Arrow.
    """
    for field in (*frame.schema.fields, *task.returns.fields):
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException:
            kind = field.dataType.simpleString().upper()
            raise SchemaError(
                f"{task.operator}: the column `{field.name}` is {kind}, which cannot be converted to Arrow. Cast it, or leave it "
                "out."
            ) from None

    names = task.returns.names
    unique = [f"{_COLUMN}{at}" for at in range(len(names))]
    is_plain = len(set(names)) == len(names)  # Spark cannot read batches in which two columns have one name

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in task.run(batches):
            yield batch if is_plain else pa.RecordBatch.from_arrays(batch.columns, names=unique)

    run.__name__ = re.sub(r"\W", "_", f"{task.operator}_{task.name}")  # shown in Spark's plans
    frame = frame if _can_be_named(frame.columns) else _numbered(frame)
    if is_plain:
        return frame.mapInArrow(run, task.returns)
    fields = [StructField(name, field.dataType, field.nullable) for name, field in zip(unique, task.returns, strict=True)]
    return frame.mapInArrow(run, StructType(fields)).toDF(*names)


def as_schema(operator: str, schema: StructType | str) -> StructType:
    """Read a schema from DDL or a type.

    Raises:
        SchemaError: the schema cannot be read, or has no column names.
    """
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = DataType.fromDDL(schema)
    except PySparkException as error:
        raise SchemaError(f"The schema `{schema}` of {operator} cannot be read: {reason_of(error)}") from None
    if not isinstance(parsed, StructType):
        raise SchemaError(f"The schema `{schema}` of {operator} has no column names. Write `name {schema}`.")
    return parsed


def _key_type(selector: Callable[[Any], Any], given: DataType | str | None) -> DataType:
    if isinstance(given, DataType):
        return given
    if given is None:
        annotation = inspect.signature(selector).return_annotation
        by_name = {kind.__name__: ddl for kind, ddl in _DDL_OF_ANNOTATIONS.items()}
        given = by_name.get(getattr(annotation, "__name__", str(annotation).rpartition(".")[2]))
    if given is None:
        raise SchemaError(
            f"sort_partition does not know the type of the keys that {name_of(selector)} returns. Give key_type, such as "
            f"'BIGINT', or annotate the return type as one of {', '.join(sorted(by_name))}."
        )
    try:
        return DataType.fromDDL(given)
    except PySparkException as error:
        raise SchemaError(f"The key_type `{given}` of sort_partition cannot be read: {reason_of(error)}") from None
