"""The state of an aggregate whose groups have a time to live, in a table of the flow's own: two commits a flush.

A group ends when no micro-batch has had a row for it for that time. What has ended when a flush begins follows from two things
that a crash does not change: when the flush's first micro-batch began, which is recorded before any of it runs, and when the last
micro-batch with a row of the group began, which is stored with the group. So a flush that is repeated ends the same groups. Nor
does it end one that it changes itself: after a crash between its commits, all of these are still there to be shown.

A group that has ended has no time any more. What is left of it in the state:

- Where rows are kept: its key, by which later rows of the key are known. They are dropped before anything is made of them.
- Where rows are deleted: its partial results, for one more flush. The row is deleted by the commit on the query's table, and if a
  crash comes before that one, the next flush finds in the state which rows to delete. Once they are deleted, it leaves the state.

The deletions of AUTO CDC are groups without a row. Where only these end, the time of all others is `_NEVER`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType, TimestampType

from sqlext.execution.delta import commit, key_ranges, target
from sqlext.execution.delta.delta_log import table_size
from sqlext.execution.delta.foreign_commits import last_said
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, TableTransaction
from sqlext.execution.state.buffer import BufferedBatch
from sqlext.execution.state.delta_state import (
    Advance,
    DeltaState,
    Expiry,
    Partials,
    Show,
    StateFlush,
    added,
    of_keys,
)
from sqlext.execution.state.distinct_values import DistinctValues, partials_among
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.moments import Moment, announce
from sqlext.plan.flow_spec import Column as ColumnSpec
from sqlext.plan.flow_spec import FlowSpec, StreamSpec
from sqlext.plan.job_graph import INTERNAL_PREFIX, QUALIFIES, OutputMode
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm

_TOUCHED = f"{INTERNAL_PREFIX}touched"
"""The column with the time of a group: when the last micro-batch with a row of it began; null: the group has ended."""
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
"""The time of a group that does not end while it has a row in the query's table."""
_IS_HIT = f"{INTERNAL_PREFIX}hit"
"""Whether the flush has a row of a stored group's key."""


def schema_of(aggregate: MergeableAggregate) -> StructType:
    """Return the schema of the state's table."""
    return StructType([*aggregate.schema.fields]).add(_TOUCHED, TimestampType())


def set_forward(spark: SparkSession, location: str, by: timedelta) -> None:
    """Let the times of all groups be later by a duration, where a table is such a state: the flow reads again what came since."""
    table = DeltaTable.forPath(spark, location)
    if _TOUCHED in table.toDF().columns:
        later = F.timestamp_micros(F.unix_micros(_TOUCHED) + F.lit(by // timedelta(microseconds=1)))
        table.update(F.col(_TOUCHED) < F.lit(_NEVER), {_TOUCHED: later})


@dataclass(frozen=True)
class _Found:
    """The stored groups that a flush has to do with: those of its keys, those that end, and those that have and may leave.

    Attributes:
        rows: their rows, with `_IS_HIT`, and with their positions if a transaction writes.
        expiry: what the flush ends.
        ending: the number of groups that end with the flush.
        ended_hits: the number of groups of its keys that end or have ended.
        gone: the number of groups of other keys that end or have ended.
        deleted: the number of those that end.
    """

    rows: DataFrame
    expiry: Expiry
    ending: int
    ended_hits: int
    gone: int
    deleted: int

    @property
    def ends(self) -> Column:
        """The condition of groups that end with the flush; null for those that have ended before."""
        return F.col(_TOUCHED) <= F.lit(self.expiry.until)

    @property
    def has_ended(self) -> Column:
        """The condition of groups that end with the flush, or have ended before."""
        return F.col(_TOUCHED).isNull() | self.ends

    @property
    def live(self) -> DataFrame:
        """The groups of the flush's keys that go on."""
        return self.rows.where(F.col(_IS_HIT) & ~self.has_ended)


class ExpiringState(DeltaState):
    """See the module's docstring, and `DeltaState`.

    Args:
        stream, location, spark, spec, epoch: as for `DeltaState`.
        values: the distinct values of the groups, which leave with them; None: there are none.
    """

    def __init__(
        self, spark: SparkSession, stream: StreamSpec, location: str, spec: FlowSpec, epoch: int, values: DistinctValues | None
    ) -> None:
        super().__init__(spark, stream, location, spec, epoch)
        self._values = values

    def flush(self, flush: StateFlush, show: Show) -> None:
        """Merge partial results into the state and end groups, then bring both into the query's table.

        1. The groups of the flush's keys, and those that end, are read, unless somebody else has changed them.
        2. Partial results of keys whose groups have ended are dropped and counted, where rows are kept.
        3. Distinct values of groups that end are deleted, and new ones are stored; see `DistinctValues`.
        4. The state gets what becomes of the groups. After a crash here the table is behind it: the next flush shows the groups
           of these micro-batches once more, and deletes the rows of all groups that have ended.
        5. The results of the changed groups are merged into the query's table, and rows are deleted.
        """
        if flush.expiry is None:
            raise AssertionError("its groups have a time to live")
        table = self._begin(flush)
        version = delta_tables.version(self._spark, self.location) if table is None else table.version
        if table is None:
            self.refuse_changes_of_others(version)
        fresh = self._not_committed(flush.batches, version)
        with self._found_by(flush, flush.expiry, table, version) as found:  # 1
            number = flush.info.rows + found.ending + found.gone
            is_small = flush.is_small and commit.are_few(number, flush.aggregate.schema, flush.aggregate.key)
            with self._settings(is_small):
                self._advance(flush, found, fresh, table, version, show)

    def _advance(
        self,
        flush: StateFlush,
        found: _Found,
        fresh: Sequence[BufferedBatch],
        table: TableTransaction | None,
        version: int,
        show: Show,
    ) -> None:
        # if the state has none of these micro-batches, the table has all of the state's: a flush takes all that the table lacks
        aggregate, has_deleted, dropped = flush.aggregate, len(fresh) == len(flush.batches), 0
        if found.expiry.keeps_rows and found.ended_hits:  # 2
            ended = found.rows.where(F.col(_IS_HIT) & found.has_ended)
            dropped = _rows_in(flush, fresh, ended)
            flush = replace(flush, partials=_without(flush, ended))
        ended_before, dropped_before = (0, 0) if has_deleted else self._not_shown(version)
        info = replace(flush.info, groups_ended=ended_before + found.ending, rows_dropped=dropped_before + dropped)
        if info.rows >= 0 and not found.expiry.keeps_rows:
            info = replace(info, rows=info.rows + (found.deleted if has_deleted else found.gone))
        if self._values is not None:  # 3
            flush = self._values.stored(flush, self._keys(found.rows.where(found.ends), found.ending, aggregate))
        new = flush.partials(fresh) if fresh else flush.partials(flush.batches).limit(0)
        with jvm.held(added(aggregate, found.live, new)) as changed:
            if fresh:  # 4
                self._store(flush, found, changed, table, replace(info, read_version=version), has_deleted)
                announce(Moment.STATE_COMMITTED, self._spec.name)
            show(Advance(self._shown(aggregate, found, changed, has_deleted), info=info))  # 5

    @contextmanager
    def _found_by(self, flush: StateFlush, expiry: Expiry, table: TableTransaction | None, version: int) -> Iterator[_Found]:
        aggregate, nowhere = flush.aggregate, F.lit(None).cast("string")
        if table is not None:
            near, every = table.placed_rows(flush.reach), table.placed_rows({})
        else:
            every = self._stored(version).withColumn(FILE_COLUMN, nowhere).withColumn(ROW_COLUMN, nowhere)
            within = key_ranges.condition(flush.reach, aggregate.schema, "t")
            near = every if within is None else every.alias("t").where(within).select("t.*")
        found = _Found(every, expiry, 0, 0, 0, 0)
        keys = flush.partials(flush.batches).select(*map(quote, aggregate.key))
        keys = F.broadcast(keys) if flush.is_small else keys
        hits = of_keys(near, aggregate, keys, flush.reach)
        ended = every.where(found.ends if expiry.keeps_rows else found.has_ended).alias("t")
        others = ended.join(keys.alias("s"), commit.same_key(aggregate.key, flush.reach), "left_anti")
        rows = hits.withColumn(_IS_HIT, F.lit(True)).unionByName(others.withColumn(_IS_HIT, F.lit(False)))
        with self._settings(flush.is_small), jvm.held(rows) as held:
            is_hit = F.col(_IS_HIT)
            counted = (found.ends, is_hit & found.has_ended, ~is_hit, ~is_hit & found.ends)
            yield _Found(held, expiry, *held.agg(*map(F.count_if, counted)).collect()[0])

    def _keys(self, rows: DataFrame, number: int, aggregate: MergeableAggregate) -> DataFrame | None:
        """Return the keys of groups, sent to every executor if they are few; None if there are none."""
        keys = rows.select(*map(quote, aggregate.key))
        is_few = commit.are_few(number, keys.schema, aggregate.key)
        return None if not number else F.broadcast(keys) if is_few else keys

    def _store(
        self,
        flush: StateFlush,
        found: _Found,
        changed: DataFrame,
        table: TableTransaction | None,
        info: commit.CommitInfo,
        has_deleted: bool,
    ) -> None:
        """Commit what becomes of the groups.

        Args:
            flush: the flush.
            found: the groups as they are stored.
            changed: the new state of those that the flush changes.
            table: the transaction; None: a MERGE does it.
            info: the description of the commit.
            has_deleted: whether the table has no rows of groups that had ended before, so that these may leave.
        """
        aggregate, expiry = flush.aggregate, found.expiry
        stays = [F.col(quote(name)) for name in aggregate.schema.names]
        if expiry.keeps_rows:  # only the keys of ended groups stay
            stays = [
                F.col(quote(each.name)) if each.name in aggregate.key else F.lit(None).cast(each.dataType).alias(each.name)
                for each in aggregate.schema
            ]
            ended, replaced = found.rows.where(found.ends), found.ends | (F.col(_IS_HIT) & ~found.has_ended)
            leaving = F.lit(False)
        else:
            ended, replaced = found.rows.where(found.ends & ~F.col(_IS_HIT)), found.ends | F.col(_IS_HIT)
            leaving = F.col(_TOUCHED).isNull() & ~F.col(_IS_HIT) & F.lit(has_deleted)
        none = F.lit(None).cast(TimestampType()).alias(_TOUCHED)
        rows = self._touched(aggregate, changed, expiry).unionByName(ended.select(*stays, none))
        if table is None:
            self._merge(flush, rows, found.rows.where(leaving), info)
            self._refuse_changes_since(info.read_version or 0)
            return
        identity = self._identity(info, table.version)
        left = found.rows.where(replaced | leaving)
        flush.check()
        if table.is_empty:
            known = table.write_whole(rows, identity)
        elif table.is_small:
            same = commit.same_key(aggregate.key, {})
            others = table.rows.alias("t").join(
                F.broadcast(left.select(*map(quote, aggregate.key))).alias("s"), same, "left_anti"
            )
            known = table.write_whole(others.unionByName(rows), identity)
        else:
            known = table.replace(left.select(FILE_COLUMN, ROW_COLUMN), rows, identity)
        self._note(table, known)

    def _touched(self, aggregate: MergeableAggregate, changed: DataFrame, expiry: Expiry) -> DataFrame:
        """Return the new state of groups with their time."""
        touched, columns = F.lit(expiry.touched), [F.col(quote(name)) for name in aggregate.schema.names]
        if not expiry.only_hidden:
            return changed.select(*columns, touched.alias(_TOUCHED))
        key = [F.col(quote(name)) for name in aggregate.key]
        hidden = (
            aggregate.results(changed, with_key=True).where(~F.col(quote(QUALIFIES))).select(*key, F.lit(True).alias(_IS_HIT))
        )
        same = commit.same_key(aggregate.key, {})
        ends = F.coalesce(F.col(_IS_HIT), F.lit(False))
        rows = changed.alias("t").join(hidden.alias("s"), same, "left")
        mine = [F.col(f"t.{quote(name)}") for name in aggregate.schema.names]
        return rows.select(*mine, F.when(ends, touched).otherwise(F.lit(_NEVER)).alias(_TOUCHED))

    def _merge(self, flush: StateFlush, rows: DataFrame, leaving: DataFrame, info: commit.CommitInfo) -> None:
        """Commit rows of the state by a MERGE, and delete those that leave."""
        deleted = leaving.select(*rows.columns).withColumn(QUALIFIES, F.lit(False))
        rows = rows.withColumn(QUALIFIES, F.lit(True)).unionByName(deleted)
        columns = tuple(ColumnSpec(f.name, f.name, target.ddl_of(f.dataType)) for f in schema_of(flush.aggregate))
        stream = StreamSpec(self._stream.relation, "", OutputMode.UPDATE, flush.aggregate.key, columns)
        size = table_size(self._spark, self.location)
        commit.merge(self._spark, self.table(), stream, rows, {}, info, flush.check, size, attempts=1)

    def _shown(self, aggregate: MergeableAggregate, found: _Found, changed: DataFrame, has_deleted: bool) -> DataFrame:
        """Return the rows for the query's table; `QUALIFIES` is false for those that are to be deleted there."""
        rows = self._results(aggregate, changed)
        if found.expiry.keeps_rows or found.expiry.only_hidden or not found.gone:
            return rows
        rows = rows if self._stream.has_qualifies else rows.withColumn(QUALIFIES, F.lit(True))
        gone = found.rows.where(~F.col(_IS_HIT) & (found.ends if has_deleted else F.lit(True)))
        deleted = self._results(aggregate, gone.select(*map(quote, aggregate.schema.names)))
        return rows.unionByName(deleted.withColumn(QUALIFIES, F.lit(False)))

    def _not_shown(self, version: int) -> tuple[int, int]:
        """Return how many groups the state's last commit has ended, and rows it has dropped, which the table's has not told of.

        Args:
            version: the version of the state's table.
        """
        said = last_said(self._spark, self.location, version, self._spec.id)
        return (said["groups_ended"], said["rows_dropped"]) if said else (0, 0)  # else the log has been cleaned up since


def _without(flush: StateFlush, ended: DataFrame) -> Partials:
    """Return the partial results of a flush, and its distinct values, without those of ended groups."""

    def left(batches: Sequence[BufferedBatch]) -> DataFrame:
        return _joined(flush, batches, ended, "left_anti")

    return left


def _rows_in(flush: StateFlush, batches: Sequence[BufferedBatch], ended: DataFrame) -> int:
    """Return the number of input rows of micro-batches that are rows of ended groups."""
    if not batches:
        return 0
    partials = partials_among(flush.aggregate, _joined(flush, batches, ended, "left_semi"))
    return int(partials.agg(F.sum(quote(flush.aggregate.rows_counted))).collect()[0][0] or 0)


def _joined(flush: StateFlush, batches: Sequence[BufferedBatch], groups: DataFrame, how: str) -> DataFrame:
    keys, same = groups.select(*map(quote, flush.aggregate.key)), commit.same_key(flush.aggregate.key, {})
    return flush.partials(batches).alias("t").join(keys.alias("s"), same, how)
