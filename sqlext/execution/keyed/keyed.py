"""Keyed functions: a bounded stage exchanges rows by key, sorts them by key and order, and reads one key at a time (FLIP-140).

Over a stream, the same function runs on Spark's transformWithState.

sqlext.process_keyed(spark.table("clicks").groupBy("user"), Sessions(), "user STRING, clicks BIGINT", order_by="at")
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, DateType, IntegralType, StructType, TimestampNTZType, TimestampType

from sqlext.errors import SchemaError, SetupError, UnsupportedError
from sqlext.execution.keyed.keyed_stream import KeyedProcessor
from sqlext.execution.keyed.keyed_worker import KeyedTask
from sqlext.execution.partitions.partition import as_schema, grouped, through_arrow, windowed
from sqlext.functions.keyed import OPERATOR, KeyedProcessFunction
from sqlext.functions.partition import name_of
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote
from sqlext.spark.failures import reason_of
from sqlext.spark.jvm import has_watermark, is_ascending

_TIME = f"{INTERNAL_PREFIX}time"
_KEY = f"{INTERNAL_PREFIX}key_"
_TIMES = (TimestampType, TimestampNTZType, DateType, IntegralType)


def process_keyed(
    df: GroupedData,
    function: KeyedProcessFunction,
    returns: StructType | str,
    *,
    order_by: str | Column | Sequence[str | Column] = (),
    name: str | None = None,
) -> DataFrame:
    """Call a keyed function with the rows of each key, in order.

    The result is lazy, like any DataFrame: the function is called when the result is read.

    Args:
        df: `df.groupBy(..)`, also of a streaming DataFrame.
        function: the keyed function; it reads one key after the other, with the state and timers of that key.
        returns: the columns of the function's results, as DDL or type.
        order_by: the columns by which the rows of a key are ordered, ascending; the first one is the event time, if it is a
            timestamp, a date, or a whole number of milliseconds.
        name: the function's name in messages.

    Raises:
        SchemaError: `function` is not a keyed function, a column cannot be ordered by, or a type cannot be converted to Arrow.
        SetupError: over a stream, protobuf is missing, through which Spark's workers access its state.
        UnsupportedError: `df` is grouped by more than plain GROUP BY, or a stream is ordered by more than its event time.
    """
    frame, keys = grouped(OPERATOR, df)
    given = [order_by] if isinstance(order_by, (str, Column)) else list(order_by)
    orders = [F.col(each) if isinstance(each, str) else each for each in given]
    fields, named = as_schema(OPERATOR, returns), name or name_of(function)
    return processed(frame, keys, function, fields, orders, orders[:1], named, frame.isStreaming and has_watermark(frame))


def processed(
    frame: DataFrame,
    keys: Sequence[tuple[str, Column]],
    function: KeyedProcessFunction,
    returns: StructType,
    orders: Sequence[Column],
    times: Sequence[Column],
    name: str,
    has_timers: bool,
) -> DataFrame:
    """Call a keyed function as `process_keyed` does, with keys and orders as expressions.

    Args:
        frame: the rows.
        keys: the name, for messages, and the expression of each key.
        function: the keyed function.
        returns: the columns of the function's results.
        orders: the expressions by which the rows of a key are ordered.
        times: the first of them, without ASC or DESC; empty if the rows are not ordered.
        name: the function's name in messages.
        has_timers: whether the rows are a stream with a watermark.
    """
    if not isinstance(function, KeyedProcessFunction):
        raise SchemaError(f"process_keyed takes an object whose class extends sqlext.KeyedProcessFunction, not {function!r}.")
    try:
        timed = frame.select("*", *(time.alias(_TIME) for time in times))
        is_timed = bool(times) and isinstance(timed.schema[-1].dataType, _TIMES)
        if frame.isStreaming:
            return _over_stream(
                timed if is_timed else frame, len(frame.schema), keys, function, returns, orders, name, has_timers
            )
        in_windows = windowed(OPERATOR, timed if is_timed else frame, keys, orders).in_windows()
    except AnalysisException as error:
        raise SchemaError(f"process_keyed cannot order rows as requested: {reason_of(error).partition(';')[0]}") from None
    rows = frame.schema
    return through_arrow(
        in_windows,
        KeyedTask(
            name=name,
            function=function,
            schema=rows,
            keys=_named(keys, [field.dataType for field in in_windows.schema.fields[-len(keys) :]]),
            returns=returns,
            time=len(rows) if is_timed else None,
        ),
    )


def _named(keys: Sequence[tuple[str, Column]], types: Sequence[DataType]) -> StructType:
    found = StructType()
    for (name, _), kind in zip(keys, types, strict=True):
        found = found.add(name, kind)
    return found


def _over_stream(
    timed: DataFrame,
    width: int,
    keys: Sequence[tuple[str, Column]],
    function: KeyedProcessFunction,
    returns: StructType,
    orders: Sequence[Column],
    name: str,
    has_timers: bool,
) -> DataFrame:
    """Call a keyed function over a stream, whose event time, if it has one, follows its `width` columns."""
    is_timed = len(timed.schema) > width
    if len(orders) > is_timed:
        raise UnsupportedError(
            "Over a stream, process_keyed orders rows by their event time only: a timestamp, a date, or a whole number."
        )
    if not all(is_ascending(timed, each) for each in orders):
        raise UnsupportedError(
            "Over a stream, process_keyed reads the rows of a key from the earliest to the latest. Leave out DESC and NULLS LAST."
        )
    if find_spec("google.protobuf") is None:
        raise SetupError("process_keyed over a stream needs protobuf. Install it with: pip install 'sqlext[keyed]'")
    rows = StructType(timed.schema.fields[:width])
    in_order = timed.select(
        *(F.col(quote(column)) for column in rows.names),
        *([_milliseconds(timed).alias(_TIME)] if is_timed else []),
        *(key.alias(f"{_KEY}{index}") for index, (_, key) in enumerate(keys)),
    )
    has_timers = is_timed and has_timers
    task = KeyedTask(
        name=name,
        function=function,
        schema=rows,
        keys=_named(keys, [field.dataType for field in in_order.schema.fields[-len(keys) :]]),
        returns=returns,
        time=width if is_timed else None,
    )
    by_key = in_order.groupBy(*(f"{_KEY}{index}" for index in range(len(keys))))
    processor = KeyedProcessor(task, has_timers)
    return by_key.transformWithState(processor, returns, "Append", "EventTime" if has_timers else "None")


def _milliseconds(timed: DataFrame) -> Column:
    column, kind = F.col(_TIME), timed.schema[-1].dataType
    if isinstance(kind, DateType):
        return F.unix_date(column).cast("bigint") * 86_400_000
    if isinstance(kind, TimestampNTZType):
        # a difference knows no zone; a cast to TIMESTAMP goes through the session's, where some times do not exist
        since = (column - F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")).cast("interval second")
        return F.floor(since.cast("decimal(20, 6)") * 1000).cast("bigint")
    return F.unix_millis(column) if isinstance(kind, TimestampType) else column.cast("bigint")
