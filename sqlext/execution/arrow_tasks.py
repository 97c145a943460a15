"""Tasks of Python workers over Arrow batches, as DataFrames or as columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from sqlext.errors import SchemaError
from sqlext.execution.keyed_worker import KeyedTask
from sqlext.execution.partition_worker import PartitionTask
from sqlext.plan import INTERNAL_PREFIX

KEY = f"{INTERNAL_PREFIX}key_"
"""What the names of key columns begin with, which stand behind a window's own."""
COLUMN = f"{INTERNAL_PREFIX}column_"
"""What the names of columns begin with that go by their places."""


def can_be_named(names: list[str]) -> bool:
    """Whether each name, as it is, finds its column: it has no dot in it, and stands there once."""
    return len({name.lower() for name in names}) == len(names) and all(re.fullmatch(r"\w+", name) for name in names)


def numbered(frame: DataFrame) -> DataFrame:
    """The same columns, under names that are no other's; key columns keep theirs."""
    return frame.toDF(*(name if name.startswith(KEY) else f"{COLUMN}{at}" for at, name in enumerate(frame.columns)))


def through_arrow(frame: DataFrame, task: PartitionTask | KeyedTask) -> DataFrame:
    """What a task makes of each partition.

    Raises:
        SchemaError: a column's type has no counterpart in Arrow.
    """
    _check_types(task.operator, *frame.schema.fields, *task.returns.fields)
    names = task.returns.names
    unique = [f"{COLUMN}{at}" for at in range(len(names))]
    is_plain = len(set(names)) == len(names)  # Spark cannot read batches in which two columns have one name

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in task.run(batches):
            yield batch if is_plain else pa.RecordBatch.from_arrays(batch.columns, names=unique)

    run.__name__ = _shown(task)
    frame = frame if can_be_named(frame.columns) else numbered(frame)
    if is_plain:
        return frame.mapInArrow(run, task.returns)
    fields = [StructField(name, field.dataType, field.nullable) for name, field in zip(unique, task.returns, strict=True)]
    return frame.mapInArrow(run, StructType(fields)).toDF(*names)


def column_through_arrow(task: PartitionTask, names: list[str]) -> Column:
    """The only column of what a task makes, a row for a row: Spark keeps the rows meanwhile, and sends what the task reads.

    Args:
        names: of the columns that are the task's records, in the order of its schema.

    Raises:
        SchemaError: a column's type has no counterpart in Arrow.
    """
    _check_types(task.operator, *task.schema.fields, *task.returns.fields)
    (returned,) = task.returns.fields

    def run(records: Iterator[pa.Array]) -> Iterator[pa.Array]:
        batches = (pa.RecordBatch.from_struct_array(each) for each in records)
        for batch in task.run(batches):
            yield batch.column(0)

    run.__name__ = _shown(task)
    # Of a struct: where an Arrow function reads plain columns of a Parquet scan, Spark 4.2.0 hangs (SPARK-58241).
    select = arrow_udf(run, returned.dataType)  # type: ignore[call-overload]  # it takes any DataType
    made: Column = select(F.struct(*map(F.col, names)))
    return made


def _shown(task: PartitionTask | KeyedTask) -> str:
    """How Spark's plans show a task."""
    return re.sub(r"\W", "_", f"{task.operator}_{task.name}")


def _check_types(operator: str, *fields: StructField) -> None:
    for field in fields:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException:
            kind = field.dataType.simpleString().upper()
            raise SchemaError(
                f"{operator}: the column `{field.name}` is {kind}, which cannot go through Arrow. Cast it, or leave it out."
            ) from None
