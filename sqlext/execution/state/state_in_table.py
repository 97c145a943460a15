"""The state of a mergeable aggregate in the query's own table, where each partial result is also a result: one commit a flush."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.target import ddl_of, with_nulls
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, TableTransaction
from sqlext.execution.state.buffer import BATCH_COLUMN
from sqlext.execution.state.delta_state import Advance, DeltaState, Show, StateFlush, added, numbered
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.plan.flow_spec import StreamSpec
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.column_types import in_order


class StateInTable(DeltaState):
    """The state of an aggregate in the query's table; see `DeltaState`."""

    def flush(self, flush: StateFlush, show: Show) -> None:
        """Merge partial results into the table, which has results and state in one.

        1. What is stored is read, unless somebody else has changed it; micro-batches that it has are left out.
        2. One commit stores what becomes of it. A crash before it leaves the flush undone, one after it leaves it done.

        A transaction does both at once. A MERGE (`show`) does where too many rows change, the table's change feed is read, it has
        other columns too or checks their lengths, or results of unchanged groups must stay as they are; then nobody else may have
        changed the table meanwhile.
        """
        table = None if flush.aggregate.results_vary else self._begin(flush)
        if table is None or not table.has_just(column.target for column in self._stream.columns):
            self._merge(flush, show)
        else:
            self._write(flush, table)

    def _write(self, flush: StateFlush, table: TableTransaction) -> None:
        fresh = self._not_committed(flush.batches, table.version)
        if not fresh:
            return
        aggregate, identity, partials = flush.aggregate, self._identity(flush.info, table.version), flush.partials(fresh)
        if table.is_empty:
            with self._settings(flush.is_small):
                flush.check()
                rows = self._results(aggregate, aggregate.merged(partials, BATCH_COLUMN))
                self._note(table, table.write_whole(rows, identity))
            return
        with self._settings(is_small=True):
            if table.is_small:
                stored = self._as_partials(table.rows, aggregate)
                rows = self._results(aggregate, added(aggregate, stored, partials, flush.fits_one_task(table)))
                flush.check()
                self._note(table, table.write_whole(rows, identity))
                return
            placed = table.placed_rows(reach_in_table(self._stream, aggregate, flush.reach))
            with (
                jvm.held(aggregate.merged(partials, BATCH_COLUMN)) as new,
                self._found(flush, self._as_partials(placed, aggregate, FILE_COLUMN, ROW_COLUMN), new) as found,
            ):
                rows = self._results(aggregate, added(aggregate, found, numbered(new)))
                flush.check()
                self._note(table, table.replace(found, rows, identity))

    def _merge(self, flush: StateFlush, show: Show) -> None:
        version, aggregate = delta_tables.version(self._spark, self.location), flush.aggregate
        self.refuse_changes_of_others(version)
        fresh = self._not_committed(flush.batches, version)
        with self._settings(flush.is_small):
            if aggregate.additions and len(self._stream.state_columns) == len(self._stream.columns):
                partials = flush.partials(fresh) if fresh else flush.partials(flush.batches).limit(0)
                rows = self._results(aggregate, aggregate.merged(partials, BATCH_COLUMN))
                show(Advance(rows, self._additions(aggregate), version))
            else:
                stored = self._as_partials(self._stored(version), aggregate)
                with self._changed(flush, stored, fresh) as changed:
                    show(Advance(self._results(aggregate, changed), read_version=version))
        self._refuse_changes_since(version)

    def _additions(self, aggregate: MergeableAggregate) -> dict[str, str]:
        values = self._stream.state_columns[len(aggregate.key) :]
        return {
            column: addition.format(f"t.{quote(column)}", f"s.{quote(column)}")
            for column, addition in zip(values, aggregate.additions, strict=True)
        }

    def _as_partials(self, table: DataFrame, aggregate: MergeableAggregate, *others: str) -> DataFrame:
        return as_partials(table, self._stream.state_columns, aggregate, *others)


def as_partials(table: DataFrame, columns: Sequence[str], aggregate: MergeableAggregate, *others: str) -> DataFrame:
    """Return rows of a table as partial results.

    The table may have got wider types, which hold what the aggregate has written: its steps only read their own types.

    Args:
        table: the rows.
        columns: the columns that hold the partial results, one for one.
        aggregate: what the partial results are of.
        others: additional columns.
    """
    has = {field.name.lower(): with_nulls(field.dataType) for field in table.schema}
    wanted = {column: with_nulls(field.dataType) for column, field in zip(columns, aggregate.schema, strict=True)}
    widened = {column: kind for column, kind in wanted.items() if has.get(column.lower()) != kind}
    rows = in_order(table, {column: ddl_of(kind) for column, kind in widened.items()})

    def value(column: str) -> SparkColumn:
        stored = F.col(quote(column))
        return stored.cast(widened[column]) if column in widened else stored

    named = zip(columns, aggregate.schema.names, strict=True)
    return rows.select(*(value(column).alias(name) for column, name in named), *others)


def reach_in_table(stream: StreamSpec, aggregate: MergeableAggregate, reach: Bounds) -> Bounds:
    """Return the ranges of the keys of partial results, by column of the query's table, if that is the state."""
    return {column: reach[name] for column, name in zip(stream.state_columns, aggregate.key, strict=False) if name in reach}
