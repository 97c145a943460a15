"""The rows of a refresh brought into the view's table, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from sqlext.errors import ViewError
from sqlext.execution.delta.changes import WEIGHT, identity
from sqlext.execution.delta.target import ddl_of
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, CommitIdentity, KnownFiles, TableTransaction
from sqlext.execution.flows.partition_keys import is_lost, may_be_lost
from sqlext.execution.views.merging import LEAST_WEIGHT, Mergeable, is_unclear, name_of, sums_to
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.java import items_of

_SENT_ROWS = 200_000
_NUMBER = f"{INTERNAL_PREFIX}number"


class RowsMissingError(Exception):
    """Rows that are to be deleted are not in the table: it is not what the last refresh left."""


@dataclass(frozen=True)
class Written:
    """A commit.

    Attributes:
        version: the table's new version.
        deleted, inserted: the numbers of rows.
    """

    version: int
    deleted: int
    inserted: int


@dataclass(frozen=True)
class Replacement:
    """A table whose place that of a view takes, in the commit of the view's first refresh.

    Attributes:
        table_id: Delta's id of the table that is replaced.
        model: the folder of an empty table with the definition that the view's table gets.
    """

    table_id: str
    model: str


Inspect = Callable[[DataFrame], None]
"""Looks at rows that are about to be inserted, which can be computed again; raises if one of them must not be."""

Identify = Callable[[int, int], CommitIdentity]
"""Returns the identity of a commit with these numbers of deleted and inserted rows."""


class ViewTable:
    """One transaction on a view's table.

    Args:
        spark: the session.
        snapshot: the newest version of the table, as `delta_tables.snapshot` returns it.
        columns: its columns, in order.
        model: the newest version of a table whose definition it gets with `write_whole`; None: its definition stays.
        inspect: called before rows are committed.
        check: called right before the commit; raises if this process must not make it.
    """

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Any,
        columns: Sequence[str],
        model: Any = None,
        inspect: Inspect = lambda rows: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._inspect = inspect
        self._columns = columns
        self._snapshot = snapshot
        defined = snapshot if model is None else model
        self._partitions = [str(name) for name in items_of(defined.metadata().partitionColumns())]
        self._transaction = TableTransaction(spark, snapshot, None, is_small=False, check=check)
        if model is not None:
            self._transaction.take_definition(model)

    @property
    def can_change_rows(self) -> bool:
        """Whether single rows of the table can be deleted: it has deletion vectors."""
        return self._transaction.can_mark_rows

    def write_whole(self, rows: DataFrame, identify: Identify) -> Written:
        """Replace all rows."""
        with jvm.counted(rows) as (held, number):
            self._refuse_lost_values(held)
            self._inspect(held)
            known = self._transaction.write_whole(held, identify(-1, number))
        return Written(known.version, -1, number)

    def write_anew(self, rows: DataFrame, identify: Identify) -> Written:
        """Replace all rows, and the columns: a source's column has a wider type now. Comments and NOT NULL stay."""
        fields = {field.name: field for field in delta_tables.schema_of(self._snapshot)}
        said = {name: {"comment": each.metadata["comment"]} for name, each in fields.items() if "comment" in each.metadata}
        may_be_null = {name: each.nullable for name, each in fields.items()}
        columns = [
            StructField(field.name, field.dataType, may_be_null.get(field.name, True), said.get(field.name, {}))
            for field in rows.schema
        ]
        self._transaction.take_columns(StructType(columns))
        return self.write_whole(rows, identify)

    def note(self, identify: Identify) -> Written:
        """Commit that no row has changed."""
        return self._replace(None, None, 0, 0, identify)

    def replace_keys(self, names: Sequence[str], keys: DataFrame, rows: DataFrame, identify: Identify) -> Written:
        """Replace the rows with some keys.

        Args:
            names: the key columns of the table.
            keys: the keys, each once; in the order of `names`.
            rows: the new rows with these keys.
            identify: see `Identify`.
        """
        renamed = keys.toDF(*(f"{INTERNAL_PREFIX}k{at}" for at in range(len(names))))
        same = [F.col(quote(name)).eqNullSafe(F.col(quote(key))) for name, key in zip(names, renamed.columns, strict=True)]
        places = self._transaction.placed_rows({}).join(renamed, _all(same), "left_semi").select(FILE_COLUMN, ROW_COLUMN)
        with jvm.counted(places) as (gone, deleted), jvm.counted(rows) as (new, inserted):
            return self._replace(gone, new, deleted, inserted, identify)

    def merge_groups(self, found: Mergeable, differences: DataFrame, rows: int, identify: Identify) -> Written | None:
        """Add differences to the rows of their groups; a group that is empty then is deleted.

        Args:
            found: the aggregate.
            differences: see `merging.differences`.
            rows: their number.
            identify: see `Identify`.

        Returns:
            None, and nothing was done: the view's rows do not tell which groups are empty now.

        Raises:
            RowsMissingError: a group would have fewer than no rows.
        """
        keys = [(self._columns[at], name_of(at)) for at in found.keys]
        there = self._transaction.placed_rows({})
        same = _all([F.col(quote(name)).eqNullSafe(F.col(key)) for name, key in keys]) if keys else F.expr("true")
        touched = there.join(_sent(differences.select(*(key for _, key in keys)), rows), same, "left_semi") if keys else there
        joined = differences.join(touched, same, "left_outer")
        fields = [there.schema[name] for name in self._columns]
        values = [each.alias(field.name) for each, field in zip(sums_to(found, fields), fields, strict=True)]
        is_there = F.col(FILE_COLUMN).isNotNull()
        count = found.rows_counted_by if found.keys else None
        left = F.lit(1) if count is None else F.col(quote(self._columns[count]))
        counts = {
            "deleted": F.count_if(is_there),
            "inserted": F.count_if(left > 0),
            "least": F.min(left),
            "unclear": F.count_if(is_unclear(found, self._columns)),
        }
        summed = joined.select(*values, LEAST_WEIGHT, FILE_COLUMN, ROW_COLUMN)
        with jvm.observed(summed, *(each.alias(name) for name, each in counts.items())) as (held, seen):
            deleted, inserted, least, unclear = (int(seen[name] or 0) for name in counts)
            if least < 0:
                raise RowsMissingError("the view's table has fewer rows in a group than were deleted")
            if unclear:
                return None
            places = held.where(is_there).select(FILE_COLUMN, ROW_COLUMN)
            new = held.where(left > 0).select(*(F.col(quote(name)) for name in self._columns))
            return self._replace(places, new, deleted, inserted, identify)

    def change_rows(self, changed: DataFrame, added: int, gone: int, identify: Identify) -> Written:
        """Add and delete rows.

        Args:
            changed: the rows, each once, under the table's names, and `WEIGHT`: how many more of it there are to be.
            added, gone: how many rows that adds and deletes.
            identify: see `Identify`.

        Raises:
            RowsMissingError: the table has fewer of a row than are to be deleted.
        """
        columns = [F.col(quote(name)) for name in self._columns]
        copies = F.explode(F.sequence(F.lit(1), F.col(WEIGHT).cast("int"))).alias(_NUMBER)
        new = changed.where(F.col(WEIGHT) > 0).select(*columns, copies).select(*columns) if added else None
        if not gone:
            return self._replace(None, new, 0, added, identify)
        with jvm.counted(self._places(changed.where(F.col(WEIGHT) < 0), gone)) as (places, found):
            if found != gone:
                raise RowsMissingError(f"{gone - found} of {gone} rows that are to be deleted are not in the table")
            return self._replace(places, new, gone, added, identify)

    def _places(self, gone: DataFrame, rows: int) -> DataFrame:
        """Return the positions of as many of each row as are to be deleted."""
        kinds = {field.name: field.dataType for field in gone.schema}
        keys = [f"{INTERNAL_PREFIX}k{at}" for at in range(len(self._columns))]
        named = [(key, identity(name, kinds[name])) for key, name in zip(keys, self._columns, strict=True)]
        there = self._transaction.placed_rows({}).select(*(each.alias(key) for key, each in named), FILE_COLUMN, ROW_COLUMN)
        wanted = gone.select(*(each.alias(f"{key}_w") for key, each in named), WEIGHT)
        same = [F.col(key).eqNullSafe(F.col(f"{key}_w")) for key in keys]
        rank = F.row_number().over(Window.partitionBy(*keys).orderBy(FILE_COLUMN, ROW_COLUMN))
        numbered = there.join(_sent(wanted, rows), _all(same)).withColumn(_NUMBER, rank)
        return numbered.where(F.col(_NUMBER) <= -F.col(WEIGHT)).select(FILE_COLUMN, ROW_COLUMN)

    def _refuse_lost_values(self, rows: DataFrame) -> None:
        """Raise ViewError if a row has a value in a partition column that Delta would not give back as it is."""
        kinds = {field.name: ddl_of(field.dataType) for field in rows.schema if field.name in self._partitions}
        for name, kind in kinds.items():
            if may_be_lost(kind) and rows.where(is_lost(name, kind)).take(1):
                raise ViewError(
                    f"A row of the materialized view has a value in `{name}`, by which the view is partitioned, that Delta does "
                    f"not keep in a partition, such as an empty string. Make the view CLUSTER BY ({name}), or let the query give "
                    f"another value, such as nullif({name}, '')."
                )

    def _replace(
        self, places: DataFrame | None, rows: DataFrame | None, deleted: int, inserted: int, identify: Identify
    ) -> Written:
        gone, new = places if deleted else None, rows if inserted else None
        if new is not None:
            self._refuse_lost_values(new)
            self._inspect(new)
        known: KnownFiles = self._transaction.replace(gone, new, identify(deleted, inserted))
        return Written(known.version, deleted, inserted)


def near(rows: DataFrame, keys: DataFrame, number: int) -> DataFrame:
    """Return the rows whose values of the columns of `keys` are among its rows, of which there are at most a number."""
    renamed = keys.toDF(*(f"{name}_w" for name in keys.columns))
    same = [F.col(name).eqNullSafe(F.col(f"{name}_w")) for name in keys.columns]
    return rows.join(_sent(renamed, number), _all(same), "left_semi")


def _sent(frame: DataFrame, rows: int) -> DataFrame:
    """Return a frame to be sent to all executors, if it has few rows."""
    return F.broadcast(frame) if rows <= _SENT_ROWS else frame


def _all(conditions: Sequence[Column]) -> Any:
    condition = conditions[0]
    for each in conditions[1:]:
        condition &= each
    return condition
