"""The rows by which two versions of a Delta table differ, with weights: +1 a row of the later one, -1 a row of the earlier one.

Rows with weights are what Budiu et al. (DBSP, 2023) call a Z-set. They are read from the change feed where the table has one
throughout; otherwise from the files that the commits between have added and removed. Of files that only got other deletion
vectors, just the rows are read whose marks differ. Rows that were rewritten, not changed, cancel out; OPTIMIZE changes none.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from sqlext.errors import OptionError, UnsupportedError
from sqlext.execution.delta import delta_log, long_marks
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote
from sqlext.spark import delta_tables, failures
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.java import items_of
from sqlext.spark.settings import ALL_FILES

WEIGHT = f"{INTERNAL_PREFIX}weight"
_FEED = "delta.enableChangeDataFeed"
_SEVERAL_TYPES = "VARIANT"  # in the schema of a variant, in the place of the type of a list's elements
MIXED_VARIANT = "a variant has values of several types in one list, by which rows cannot be told from one another"
"""The message of an error of Spark's at such a row."""
_PLAIN = "UTF8_BINARY"
_ADDED = ("insert", "update_postimage")
_OF_FEED = ("_change_type", "_commit_version", "_commit_timestamp")


def changes_of(spark: SparkSession, table: str, before: int, after: int) -> DataFrame:
    """Return the rows by which two versions of a Delta table differ; `sqlext.changes`.

    Args:
        spark: the session.
        table: the table's name, as written in SQL.
        before, after: the versions, the earlier one first.

    Returns:
        The table's columns, and `_weight`, a BIGINT: how many more of that row the later version has, below 0 how many fewer.

    Raises:
        OptionError: a version is below 0, or `after` is before `before`; or Spark is to leave out files that it cannot read.
        AnalysisException: there is no such Delta table.
        UnsupportedError: the changes cannot be read any more.
    """
    if not 0 <= before <= after:
        raise OptionError(f"Versions {before} and {after} of {table} are no range. Give the earlier one first, from 0 on.")
    location = delta_tables.named(spark, table)[0]
    for key, value in ALL_FILES.items():  # Spark reads them only when the caller asks for the rows
        if spark.conf.get(key) != value:
            raise OptionError(f"With {key} = true, changes of {table} could be left out. SET {key} = false, and ask again.")
    try:
        rows = changes(spark, location, before, after)
        check_same_columns(spark, location, before, after, [name for name in rows.columns if name != WEIGHT])
        return rows.withColumnRenamed(WEIGHT, "_weight")
    except UnsupportedError as error:
        raise UnsupportedError(f"Of {table}, versions {before} to {after}, {error}.") from error


def changes(spark: SparkSession, location: str, before: int, after: int, columns: Sequence[str] | None = None) -> DataFrame:
    """Return the rows by which two versions of a Delta table differ, each different row once.

    Args:
        spark: the session.
        location: the folder of the table.
        before, after: the versions; `before` is the earlier one.
        columns: the columns of the rows; None: all. Rows that differ only in others are no change.

    Returns:
        The columns, and `WEIGHT`, a BIGINT: how many more such rows there are in the later version; never 0.

    Raises:
        UnsupportedError: the table's log or its files no longer hold the changes, or its columns changed in a way that they
            cannot be compared.
    """
    rows = weighted(spark, location, before, after)
    wanted = [name for name in rows.columns if name != WEIGHT] if columns is None else [*columns]
    return net(rows.select(*(F.col(quote(name)) for name in wanted), WEIGHT))


@dataclass(frozen=True)
class ChangedFiles:
    """How much of a table's files changed between two versions.

    Attributes:
        changed: the bytes of the files that were added or removed; of those that only got another deletion vector, the share of
            the rows that it marks or no longer marks.
        all: the bytes of all files of the later version.
    """

    changed: int
    all: int


def changed_files(spark: SparkSession, location: str, before: int, after: int) -> ChangedFiles | None:
    """Return how much of a table's files changed; None if the log does not say. Reads the log's own small files only."""
    size = delta_log.table_size(spark, location, after)
    if size is None:
        return None
    changed = 0
    for version in range(before + 1, after + 1):
        commit = delta_log.actions(spark, location, version)
        if commit is None:
            return None
        added, removed = (delta_log.data_files(commit, kind) for kind in ("add", "remove"))
        changed += sum(_bytes_changed(removed.get(path), added.get(path)) for path in added.keys() | removed.keys())
    return ChangedFiles(changed, size.bytes)


def _bytes_changed(removed: Mapping[str, Any] | None, added: Mapping[str, Any] | None) -> int:
    """Return how many bytes of a file a commit has changed: all, or the share of its rows whose marks have changed."""
    size = int((added or removed or {}).get("size") or 0)
    if removed is None or added is None:
        return size
    before, after = (delta_log.marks_of(each) or 0 for each in (removed, added))
    rows = int(json.loads(added.get("stats") or "{}").get("numRecords", 0))
    return size * abs(after - before) // rows if rows else 0


def net(rows: DataFrame) -> DataFrame:
    """Add up the weights of equal rows, and leave out those whose weight is 0."""
    kept = [field for field in rows.schema if field.name != WEIGHT]
    keys = [identity(field.name, field.dataType).alias(f"{INTERNAL_PREFIX}k{at}") for at, field in enumerate(kept)]
    values = [F.first(F.col(quote(field.name))).alias(field.name) for field in kept]
    total = F.sum(WEIGHT).alias(WEIGHT)
    summed = rows.groupBy(*keys).agg(*values, total)
    return summed.where(F.col(WEIGHT) != 0).select(*(F.col(quote(field.name)) for field in kept), WEIGHT)


def identity(name: str, kind: DataType) -> Column:
    """Return an expression of a column that is equal for the same values only, and that can be grouped and joined by.

    -0.0 is not 0.0 here, nor 'a' 'A' in a column whose collation says so; maps are lists of their entries, in the order
    in which map_keys(..) shows them. Of a variant with values of several types in one list it is an error: its schema and its
    JSON do not tell a date in it from a text.
    """
    return _identity(F.col(quote(name)), kind)


def _identity(value: Column, kind: DataType) -> Column:
    match kind:
        case FloatType() | DoubleType():
            return value.cast("string")
        case StringType() if kind.collation != _PLAIN:
            return F.collate(value, _PLAIN)
        case ArrayType() if _is_odd(kind.elementType):
            return F.transform(value, lambda each: _identity(each, kind.elementType))
        case StructType() if any(_is_odd(field.dataType) for field in kind):
            fields = [_identity(value.getField(field.name), field.dataType).alias(f"f{at}") for at, field in enumerate(kind)]
            return F.when(value.isNotNull(), F.struct(*fields))
        case MapType():
            return F.transform(
                F.map_entries(value),
                lambda each: F.struct(
                    _identity(each.getField("key"), kind.keyType).alias("k"),
                    _identity(each.getField("value"), kind.valueType).alias("v"),
                ),
            )
        case VariantType():
            schema = F.schema_of_variant(value)
            told = F.concat(schema, F.lit(" "), F.to_json(value))
            return F.when(schema.contains(_SEVERAL_TYPES), F.raise_error(F.lit(MIXED_VARIANT))).otherwise(told)
        case _:
            return value


def _is_odd(kind: DataType) -> bool:
    """Return whether Spark's equality of a type is not that of the values, or not defined."""
    if isinstance(kind, ArrayType):
        return _is_odd(kind.elementType)
    if isinstance(kind, StructType):
        return any(_is_odd(field.dataType) for field in kind)
    is_collated = isinstance(kind, StringType) and kind.collation != _PLAIN
    return is_collated or isinstance(kind, (FloatType, DoubleType, MapType, VariantType))


def check_same_columns(spark: SparkSession, location: str, before: int, after: int, columns: Sequence[str]) -> None:
    """Check that columns are the same in two versions: no change of their values tells that a column is another one now.

    Raises:
        UnsupportedError: there is no such column; one, or a field in it, was dropped and added again, renamed, got another type,
            or takes no NULL any more; or the table is partitioned by others: all files are read as the later version has them,
            also those that it has no more.
    """
    ends = [delta_tables.snapshot_at(spark, location, version) for version in (before, after)]
    old, new = ({field.name: field for field in delta_tables.schema_of(end)} for end in ends)
    former = {field.metadata.get(delta_tables.COLUMN_ID, name) for name, field in old.items()}
    for name in columns:
        is_new = name in new and name not in old and new[name].metadata.get(delta_tables.COLUMN_ID, name) not in former
        if not (is_new or (name in new and name in old and _reads_alike(old[name], new[name]))):
            raise UnsupportedError(f"the column {name} of {location} has changed")
    if len({tuple(map(str, items_of(end.metadata().partitionColumns()))) for end in ends}) > 1:
        raise UnsupportedError(f"the partitioning of {location} has changed")


def _reads_alike(old: StructField, new: StructField) -> bool:
    """Return whether files from when a column was `old` can be read as `new`, and have the same values then."""
    return _shape_of(old) == _shape_of(new) and not _is_stricter(old, new)


def _is_stricter(old: StructField, new: StructField) -> bool:
    """Return whether a column, or a part of it, takes no NULL any more: Spark would read those there are as values."""
    return (old.nullable and not new.nullable) or _has_stricter(old.dataType, new.dataType)


def _has_stricter(old: DataType, new: DataType) -> bool:
    match old, new:
        case StructType(), StructType():
            return any(map(_is_stricter, old, new))  # they have the same shape
        case ArrayType(), ArrayType():
            return (old.containsNull and not new.containsNull) or _has_stricter(old.elementType, new.elementType)
        case MapType(), MapType():
            values = (old.valueContainsNull and not new.valueContainsNull) or _has_stricter(old.valueType, new.valueType)
            return values or _has_stricter(old.keyType, new.keyType)
        case _:
            return False


def _shape_of(field: StructField) -> object:
    """Return a column's type and Delta's id of it and of each field in it; names may come back, ids never do."""
    return field.metadata.get(delta_tables.COLUMN_ID), _shape(field.dataType)


def _shape(kind: DataType) -> object:
    match kind:
        case StructType():
            return [(field.name, _shape_of(field)) for field in kind]
        case ArrayType():
            return "array", _shape(kind.elementType)
        case MapType():
            return "map", _shape(kind.keyType), _shape(kind.valueType)
        case _:
            return kind.simpleString()


def weighted(spark: SparkSession, location: str, before: int, after: int) -> DataFrame:
    """Return the rows that commits have added and deleted, with their weights: also those that are in both.

    Raises:
        UnsupportedError: they cannot be read.
    """
    try:
        if before == after:
            none = delta_tables.rows_at(spark, location, after).limit(0)
            return none.withColumn(WEIGHT, F.lit(0).cast("bigint"))
        ends = [delta_tables.snapshot_at(spark, location, version) for version in (before, after)]
        if taken := [name for name in delta_tables.schema_of(ends[1]).names if name.lower() in _OF_FEED]:
            raise UnsupportedError(f"its column {taken[0]} has a name of Delta's change feed")
        has_feed = all(delta_tables.properties_of(spark, end).get(_FEED) == "true" for end in ends)
        commits = _commits(spark, location, before, after) if any(delta_tables.has_vectors(spark, end) for end in ends) else {}
        found = _read(spark, ends[1], commits, before + 1, has_feed)
        weight = F.when(F.col("_change_type").isin(*_ADDED), 1).otherwise(-1).cast("bigint")
        return found.select(*(F.col(quote(name)) for name in found.columns if name not in _OF_FEED), weight.alias(WEIGHT))
    except SPARK_ERRORS as error:
        raise UnsupportedError(f"the changes cannot be read: {failures.reason_of(error)}") from error


def _commits(spark: SparkSession, location: str, before: int, after: int) -> dict[int, long_marks.Actions]:
    """Return the actions of each commit; nothing if one is gone, which is for Delta to say."""
    found = {version: delta_log.actions(spark, location, version) for version in range(before + 1, after + 1)}
    known: dict[int, long_marks.Actions] = {version: actions for version, actions in found.items() if actions is not None}
    return known if len(known) == len(found) else {}


def _read(spark: SparkSession, end: Any, commits: Mapping[int, long_marks.Actions], first: int, has_feed: bool) -> DataFrame:
    if has_feed:
        with suppress(*SPARK_ERRORS):  # it was off in between
            return _feed(spark, end, commits, first, is_from_files=False)
    return _feed(spark, end, commits, first, is_from_files=True)


def _feed(spark: SparkSession, end: Any, commits: Mapping[int, long_marks.Actions], first: int, is_from_files: bool) -> DataFrame:
    parts = long_marks.apart(commits, is_from_files)
    if not parts:
        return delta_tables.feed(spark, end, first, is_from_files)
    return functools.reduce(DataFrame.union, (delta_tables.feed_of(spark, end, part, is_from_files) for part in parts))
