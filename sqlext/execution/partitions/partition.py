"""Full-partition processing: map, sort, aggregate and reduce over whole partitions (FLIP-380).

df = sqlext.full_window_partition(spark.table("readings"))                    # one window a partition, as it is
df = sqlext.full_window_partition(spark.table("readings").groupBy("sensor"))  # one window a key

Without keys nothing moves: partitions and parallelism are the input's. With keys Spark brings the rows of a key into one
partition and sorts them by key; the worker then reads key after key, and keeps one of them at a time.
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
from pyspark.sql.types import DataType, StringType, StructField, StructType

from sqlext.errors import SchemaError, UnsupportedError, did_you_mean
from sqlext.execution.partitions.partition_worker import AggregateWindow, MapWindow, PartitionTask, ReduceWindow, SelectKey
from sqlext.functions.partition import OPERATORS, AggregateFunction, check_arity, name_of, reads_batches
from sqlext.plan.job_graph import INTERNAL_PREFIX, OperatorAttributes, OperatorAttributesBuilder
from sqlext.spark.jvm import grouping_of, reason_of

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
"""Of each operator. All are full dams (FLIP-331): a window is complete only at the end of the input."""


class Order(Enum):
    """The order of a sort. Ascending: null first, then values, then NaN; descending: the other way round."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


def full_window_partition(df: DataFrame | GroupedData) -> PartitionWindowedDataFrame:
    """Collect the rows of each partition, or of each key, into one window (FLIP-380's `fullWindowPartition`).

    Args:
        df: a batch DataFrame: a window is a partition of it. Or `df.groupBy(..)`: a window is a key, in GROUP BY's sense.

    Raises:
        UnsupportedError: it reads a stream, or it is grouped by more than plain GROUP BY, or by a collated string.
    """
    if isinstance(df, GroupedData):
        return windowed("full_window_partition", *grouped("full_window_partition", df))
    if not isinstance(df, DataFrame):
        raise SchemaError(f"full_window_partition takes a DataFrame or df.groupBy(..), not {type(df).__name__}.")
    return windowed("full_window_partition", df, [])


def window_all(df: DataFrame) -> PartitionWindowedDataFrame:
    """Collect all rows into one window (Flink's `windowAll` with FLIP-331's end-of-stream window): one task reads them all.

    Rows come in no order that is sure; `sort_partition` gives them one.

    Args:
        df: a batch DataFrame.

    Raises:
        SchemaError: it is none.
        UnsupportedError: it reads a stream.
    """
    if not isinstance(df, DataFrame):
        raise SchemaError(f"window_all takes a DataFrame, not {type(df).__name__}.")
    check_bounded("window_all", df.isStreaming)
    return windowed("window_all", single_partition(df), [])


def single_partition(frame: DataFrame) -> DataFrame:
    """All rows in one partition, even where there is none: a window that is empty is one too."""
    return frame.repartition(1)


def grouped(operator: str, df: GroupedData) -> tuple[DataFrame, Sequence[tuple[str, Column]]]:
    """What an operator's `df.groupBy(columns)` was made of: `df`, and name and expression of each key.

    Raises:
        SchemaError: it is not grouped.
        UnsupportedError: it is grouped by more than plain GROUP BY, or by nothing.
    """
    if not isinstance(df, GroupedData):
        raise SchemaError(f"{operator} takes df.groupBy(columns), not {type(df).__name__}.")
    frame, keys, kind = grouping_of(df)
    if kind != "GroupBy" or not keys:
        given = kind if keys else "groupBy() without columns"
        raise UnsupportedError(f"{operator} takes df.groupBy(columns); this is {given}.")
    return frame, keys


def check_bounded(operator: str, is_streaming: bool) -> None:
    """Raise UnsupportedError for a stream."""
    if is_streaming:
        raise UnsupportedError(
            f"{operator} needs the end of its input, and a stream has none. Give it a table, or a query that leaves STREAM out."
        )


def windowed(
    operator: str, frame: DataFrame, keys: Sequence[tuple[str, Column]], orders: Sequence[Column] = ()
) -> PartitionWindowedDataFrame:
    """The windows of a DataFrame: of its partitions, or of its keys where there are any.

    Args:
        operator: for messages.
        keys: name, for messages, and expression of each.
        orders: in which functions read the rows of a window.

    Raises:
        UnsupportedError: as of `full_window_partition`.
    """
    check_bounded(operator, frame.isStreaming)
    if keys:
        frame = frame.select("*", *(key.alias(f"{_KEY}{index}") for index, (_, key) in enumerate(keys)))
        for (name, _), field in zip(keys, frame.schema.fields[-len(keys) :], strict=True):
            if isinstance(field.dataType, StringType) and field.dataType.collation not in (None, "UTF8_BINARY"):
                raise UnsupportedError(
                    f"{operator} cannot group by `{name}`, of collation {field.dataType.collation}. Group by "
                    f"collate({name}, 'UTF8_BINARY'), or by lower(..) of it."
                )
    return PartitionWindowedDataFrame(frame, tuple(name for name, _ in keys), tuple(orders))


class PartitionWindowedDataFrame:
    """A DataFrame in windows, each a whole partition or all rows of a key. `full_window_partition` makes it.

    Its methods are lazy, as a DataFrame's are: functions are called when the result is read.

    Args:
        frame: the rows; key columns stand last.
        keys: names of these, for messages.
        orders: in which functions read the rows of a window.
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

        The function starts when the first rows are there, not when all are, and what it yields goes on at once.

        Args:
            function: takes an iterator of `pyspark.sql.Row`, or of `pyarrow.RecordBatch` where its parameter is annotated so,
                such as `Iterator[pa.RecordBatch]`; yields rows (Row, tuple, list, dict, or the bare value of a single column),
                batches, or both. It is also called with an empty partition; of keys, there is none without rows.
            schema: of what it yields, as DDL (`a INT, b STRING`) or type. Batches must have just these columns and types.
            name: what messages call the function.

        Raises:
            SchemaError: the function takes no single argument, or a schema cannot go through Arrow.
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
        """Sort the rows of each window, on disk where memory is too small. The rows of a key stay beside each other.

        Nulls are first when ascending and last when descending; NaN is greater than all numbers.

        Args:
            key: a column's 0-based index; its name, also of a nested field, `a.b`; or a function of a row that gives its key;
                where its parameter is annotated with `pyarrow.RecordBatch`, of a batch, and gives a `pyarrow.Array` of keys.
            order: of the keys.
            key_type: of the keys that a function gives. Where it is None, the function's return annotation says it.

        Raises:
            SchemaError: there is no such column, or more than one; its type has no order; or the type of a key is not known.
        """
        if not isinstance(order, Order):
            raise SchemaError(f"The order of sort_partition is Order.ASCENDING or Order.DESCENDING, not {order!r}.")
        if callable(key):
            return self._sorted_by_selector(key, order, _key_type(key, key_type))
        if isinstance(key, int) and not isinstance(key, bool):
            return self._sorted_by_index(key, order)
        if isinstance(key, str):
            return self._sorted_by(_ordered(self._named(key), order))
        raise SchemaError(f"The key of sort_partition is a column's index or name, or a function, not {key!r}.")

    def aggregate(self, function: AggregateFunction, schema: StructType | str, *, name: str | None = None) -> DataFrame:
        """Make one row of each window.

        An empty partition gives a row too, the result of a new accumulator: FLIP-380 makes one before it reads the first record.

        Args:
            function: an `AggregateFunction`; it reads batches where the value that `add` takes is annotated so.
            schema: of the row, as DDL or type.
            name: what messages call the function.

        Raises:
            SchemaError: it is no `AggregateFunction`, or a schema cannot go through Arrow.
        """
        if not isinstance(function, AggregateFunction):
            raise SchemaError(f"aggregate takes an object whose class extends sqlext.AggregateFunction, not {function!r}.")
        process, name = AggregateWindow(function), name or name_of(function)
        fields = as_schema("aggregate_partition", schema)
        return self.run("aggregate_partition", name, process, reads_batches(function.add), fields)

    def reduce(self, function: Callable[[Any, Any], Any], *, name: str | None = None) -> DataFrame:
        """Make one row of each window, of two rows over and over, in the window's order. An empty partition gives none.

        Args:
            function: takes two rows and gives one with the same columns; of a single row, it is that row.
            name: what messages call the function.

        Raises:
            SchemaError: the function does not take two arguments, or the columns cannot go through Arrow.
        """
        check_arity("reduce_partition", function, ("one", "other"))
        process = ReduceWindow(function, tuple(self._schema.names))
        return self.run("reduce_partition", name or name_of(function), process, False, self._schema)

    def sorted(self) -> DataFrame:
        """The rows of each window in the orders that were given with it.

        Raises:
            SchemaError: Spark does not take one of them; with its reason.
        """
        try:
            return self.in_windows().drop(*self._frame.columns[len(self._schema) :])
        except AnalysisException as error:
            reason = reason_of(error).partition(";")[0]  # Spark's plan follows
            raise SchemaError(f"sort_partition cannot sort by that: {reason}") from None

    # Sorting.

    def _sorted_by(self, order: Column) -> DataFrame:
        return PartitionWindowedDataFrame(self._frame, self._keys, (order,)).sorted()

    def _sorted_by_index(self, index: int, order: Order) -> DataFrame:
        names = self._schema.names
        if not 0 <= index < len(names):
            columns = ", ".join(f"{at} `{name}`" for at, name in enumerate(names))
            raise SchemaError(f"sort_partition has no column {index}. The columns are {columns}.")
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
                raise SchemaError(f"sort_partition: `{name}` may be several columns. Give its index.") from None
            raise SchemaError(
                f"sort_partition has no column `{name}`.{did_you_mean(name, self._schema.names)} {columns}"
            ) from None
        if len(found) != 1 or found[0].startswith(_KEY):
            raise SchemaError(f"sort_partition has no column `{name}`. {columns}")
        return F.col(name)

    def _sorted_by_selector(self, selector: Callable[[Any], Any], order: Order, kind: DataType) -> DataFrame:
        """The keys are made in Python, go with the rows through the sort, and are dropped behind it."""
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
        """What a process makes of each window; `operator` and `name` are for messages."""
        task = PartitionTask(operator, name, process, is_over_batches, self._schema, returns, self._keys or None)
        return through_arrow(self.in_windows(), task)

    def in_windows(self) -> DataFrame:
        """The rows of each key beside each other in one partition; without keys, as they are."""
        keys = [F.col(name) for name in self._frame.columns[len(self._schema) :]]
        frame = self._frame.repartition(*keys) if keys else self._frame
        return frame.sortWithinPartitions(*keys, *self._orders) if keys or self._orders else frame


def _ordered(column: Column, order: Order) -> Column:
    return column.asc_nulls_first() if order is Order.ASCENDING else column.desc_nulls_last()


def _can_be_named(names: list[str]) -> bool:
    """Whether each name, as it is, finds its column: it has no dot in it, and stands there once."""
    return len({name.lower() for name in names}) == len(names) and all(re.fullmatch(r"\w+", name) for name in names)


def _numbered(frame: DataFrame) -> DataFrame:
    """The same columns, under names that are no other's; key columns keep theirs."""
    return frame.toDF(*(name if name.startswith(_KEY) else f"{_COLUMN}{at}" for at, name in enumerate(frame.columns)))


class ArrowTask(Protocol):
    """What runs in Python workers, a partition at a time; see `PartitionTask` and `KeyedTask`."""

    @property
    def name(self) -> str: ...

    @property
    def operator(self) -> str: ...

    @property
    def returns(self) -> StructType: ...

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


def through_arrow(frame: DataFrame, task: ArrowTask) -> DataFrame:
    """What a task makes of each partition.

    Raises:
        SchemaError: a column's type has no counterpart in Arrow.
    """
    for field in (*frame.schema.fields, *task.returns.fields):
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException:
            kind = field.dataType.simpleString().upper()
            raise SchemaError(
                f"{task.operator}: the column `{field.name}` is {kind}, which cannot go through Arrow. Cast it, or leave it out."
            ) from None

    names = task.returns.names
    unique = [f"{_COLUMN}{at}" for at in range(len(names))]
    is_plain = len(set(names)) == len(names)  # Spark cannot read batches in which two columns have one name

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in task.run(batches):
            yield batch if is_plain else pa.RecordBatch.from_arrays(batch.columns, names=unique)

    run.__name__ = re.sub(r"\W", "_", f"{task.operator}_{task.name}")  # Spark's plans show it
    frame = frame if _can_be_named(frame.columns) else _numbered(frame)
    if is_plain:
        return frame.mapInArrow(run, task.returns)
    fields = [StructField(name, field.dataType, field.nullable) for name, field in zip(unique, task.returns, strict=True)]
    return frame.mapInArrow(run, StructType(fields)).toDF(*names)


def as_schema(operator: str, schema: StructType | str) -> StructType:
    """A schema given as DDL or type.

    Raises:
        SchemaError: it cannot be read, or names no columns.
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
            f"sort_partition does not know the type of the keys that {name_of(selector)} gives. Give key_type, such as "
            f"'BIGINT', or annotate what it returns: {', '.join(sorted(by_name))}."
        )
    try:
        return DataType.fromDDL(given)
    except PySparkException as error:
        raise SchemaError(f"The key_type `{given}` of sort_partition cannot be read: {reason_of(error)}") from None
