"""The DataFrame of one part of a job vertex: its piece of the plan over a slice of its scan, or over a group of buckets.

This module makes Catalyst's plans, which are internal to Spark; it was tested with Spark 4.2 and Delta 4.4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from sqlext.execution.jobs.fragments import Fragment, input_number
from sqlext.execution.jobs.outputs import BUCKET, VertexTable
from sqlext.spark.java import items_of, java_of, scala_seq
from sqlext.spark.jvm import alias
from sqlext.spark.physical_plan import as_columns, frame_over
from sqlext.spark.settings import ALL_FILES

_ALL_FILES = {key.rpartition(".")[2]: value for key, value in ALL_FILES.items()}
"""Options with which a result of which a file is lost is an error, whatever the session's settings say of the user's files."""


def schema_of(spark: SparkSession, fragment: Fragment) -> StructType:
    """Return the schema of a fragment's results: columns are named by position, since their names may not be unique."""
    # The type of a column alone would be without its collation, which Spark's JSON keeps beside it.
    schema = StructType.fromJson(json.loads(str(fragment.plan.schema().json())))
    return StructType([StructField(_column(at), field.dataType) for at, field in enumerate(schema)])


def rows_of_part(
    spark: SparkSession, fragment: Fragment, tables: Sequence[VertexTable], buckets: Sequence[int] | None, slice_of_scan: Any
) -> DataFrame:
    """Return the rows of a part, with the bucket as the last column.

    Args:
        tables: the results of each input.
        buckets: the buckets that a part of a BUCKETS vertex reads; None for other vertices, which read all of them.
        slice_of_scan: the scan that a part of a source reads, from `Slices.scan`; None for other vertices.
    """
    # A clone, since parts are planned concurrently.
    plan = _with_inputs(spark, fragment, fragment.plan.clone(), tables, buckets, slice_of_scan)
    catalyst = java_of(spark).org.apache.spark.sql.catalyst.expressions
    named = [alias(spark, each, _column(at)) for at, each in enumerate(items_of(fragment.plan.output()))]
    none = java_of(spark).org.apache.spark.sql.types.DataTypes.IntegerType
    bucket = fragment.bucket if fragment.bucket is not None else catalyst.Literal.create(0, none)
    return frame_over(spark, plan, [*named, alias(spark, bucket, BUCKET)])


def rows_of_sink(
    spark: SparkSession,
    fragment: Fragment,
    tables: Sequence[VertexTable],
    columns: Sequence[StructField],
    division: Sequence[Sequence[int]] | None,
) -> DataFrame:
    """Return the rows of the last piece of a plan, if the sink itself runs it.

    Args:
        tables: the results of each input.
        columns: the query's columns.
        division: the groups of buckets that run side by side; None for a piece that cannot be divided.
    """
    groups: Sequence[Sequence[int] | None] = division or [None]
    names = [column.name for column in columns]
    frames = [_of_sink(spark, fragment, tables, names, buckets) for buckets in groups]
    return reduce(DataFrame.union, frames)


def _of_sink(
    spark: SparkSession, fragment: Fragment, tables: Sequence[VertexTable], names: Sequence[str], buckets: Sequence[int] | None
) -> DataFrame:
    plan = _with_inputs(spark, fragment, fragment.plan.clone(), tables, buckets, None)
    output = items_of(fragment.plan.output())
    return frame_over(spark, plan, [alias(spark, each, name) for each, name in zip(output, names, strict=True)])


def result(spark: SparkSession, table: VertexTable, columns: Sequence[StructField]) -> DataFrame:
    """Return the rows of a whole result as the query's columns: with their names, and what is noted of them, such as CHAR(n)."""
    named = [F.col(_column(at)).alias(column.name, metadata=column.metadata) for at, column in enumerate(columns)]
    return _read(spark, table, None).select(*named)


def _with_inputs(
    spark: SparkSession, fragment: Fragment, node: Any, tables: Sequence[VertexTable], buckets: Sequence[int] | None, scan: Any
) -> Any:
    """Return the plan, with each leaf that stands for an input or a scan replaced by what this part reads."""
    if (number := input_number(node)) is not None:
        is_whole = buckets is None or fragment.inputs[number].is_whole
        return _input(spark, node, tables[number], None if is_whole else buckets)
    children = items_of(node.children())
    if not children:
        return scan if scan is not None and node.equals(fragment.scan) else node
    changed = [_with_inputs(spark, fragment, child, tables, buckets, scan) for child in children]
    return node.withNewChildren(scala_seq(spark, changed))


def _input(spark: SparkSession, leaf: Any, table: VertexTable, buckets: Sequence[int] | None) -> Any:
    """Return a plan that reads a result as the columns of the exchange it replaces; a group of buckets is one partition."""
    scan = _read(spark, table, buckets)._jdf.queryExecution().sparkPlan()
    if buckets is not None:
        # so that Spark knows that all rows of a key are in one partition
        scan = java_of(spark).org.apache.spark.sql.execution.CoalesceExec(1, scan)
    return as_columns(spark, scan, items_of(leaf.output()))


def _read(spark: SparkSession, table: VertexTable, buckets: Sequence[int] | None) -> DataFrame:
    files = table.files(buckets)
    if not files:
        return spark.createDataFrame([], table.schema)
    return spark.read.schema(table.schema).options(**_ALL_FILES).parquet(*table.paths(files))


def _column(at: int) -> str:
    return f"c{at}"
