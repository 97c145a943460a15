"""The distinct values of an aggregate's groups, as rows of a Delta table of the flow's own.

A row has the key of its group, the number of its set, its value, the FILTERs that have let the value through, and the last
micro-batch of the flush that has added it. A value that another FILTER lets through later gets one more row, for that FILTER
alone. Rows are deleted only when their group ends (`ExpiringState`), in the commit that stores new ones. The state of the
aggregate has no values, but what functions make of them, such as their number. A flush adds to it:

1. What the micro-batches have is compared with the rows that are stored, and what is new is stored, in one commit with the flow's
   transaction.
2. The values that these micro-batches have added become partial results, which are merged into the state with all others
   (`DeltaState`). They are found by the numbers of the micro-batches in their rows.

After a crash between the two the values are ahead of the state. The micro-batches are flushed again: none of their values is new
then, and they are found all the same, since their rows have the numbers of these micro-batches. Micro-batches that the state has
are not merged into it again, nor are their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from sqlext.execution.delta import commit, key_ranges
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.key_ranges import Range
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, KnownFiles, TableTransaction
from sqlext.execution.state.buffer import BATCH_COLUMN, BufferedBatch
from sqlext.execution.state.delta_state import StateFlush
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.execution.state.state_table import StateTable
from sqlext.moments import Moment, announce
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.distinct_aggregates import NO_SET, SEEN_COLUMN, SET_COLUMN, DistinctRows
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

_ADDED = f"{INTERNAL_PREFIX}added"
"""The column with the last micro-batch of the flush that has added a row. It comes first, so that files have statistics of it."""
_BEFORE = f"{INTERNAL_PREFIX}before"
_HASH = f"{INTERNAL_PREFIX}hash"


def values_in(home: HadoopPath) -> HadoopPath:
    """Return the location of a streaming query's distinct values."""
    return home.child("values")


def schema_of(distinct: DistinctRows) -> StructType:
    """Return the schema of the table of distinct values."""
    fields = [distinct.schema[name] for name in (*distinct.value, SEEN_COLUMN)]
    return StructType([StructField(_ADDED, LongType()), *fields])


def partials_among(aggregate: MergeableAggregate, rows: DataFrame) -> DataFrame:
    """Return the partial results among the rows of micro-batches, with `BATCH_COLUMN`."""
    if aggregate.distinct is None:
        return rows
    return rows.where(F.col(SET_COLUMN) == NO_SET).select(*map(quote, aggregate.schema.names), BATCH_COLUMN)


class DistinctValues(StateTable):
    """The distinct values of one streaming query; see the module's docstring. Used by the flush thread only.

    Args:
        spark, location, spec, epoch: as for `StateTable`.
    """

    def __init__(self, spark: SparkSession, location: str, spec: FlowSpec, epoch: int) -> None:
        super().__init__(spark, location, spec, epoch)
        self._known: KnownFiles | None = None  # of the previous flush

    def stored(self, flush: StateFlush, ended: DataFrame | None = None) -> StateFlush:
        """Store the values of a flush that are new, and return the flush with theirs among its partial results.

        Args:
            flush: the flush.
            ended: the keys of groups that end: what was stored for them before the flush is deleted, and counts no more.

        Raises:
            FlowError: somebody else has changed stored values.
            DeltaConcurrentModificationException: somebody else changes them right now; all of it may be tried again.
        """
        aggregate, distinct = flush.aggregate, flush.aggregate.distinct
        if distinct is None:
            raise AssertionError("there are no distinct values")
        rows = flush.partials(flush.batches)
        table = self._store(flush, distinct, rows.where(F.col(SET_COLUMN) != NO_SET), ended)
        announce(Moment.VALUES_COMMITTED, self._spec.name)
        added = _of_added(flush, table, rows)

        def partials(batches: Sequence[BufferedBatch]) -> DataFrame:
            own = added.where(F.col(_ADDED).between(batches[0].first, batches[-1].last)).drop(_ADDED)
            return partials_among(aggregate, flush.partials(batches)).unionByName(own)

        return replace(flush, partials=partials)

    def _store(self, flush: StateFlush, distinct: DistinctRows, values: DataFrame, ended: DataFrame | None) -> TableTransaction:
        """Add the values that are new to the table, and delete those of ended groups, in one commit.

        Nothing is done if there are none, or if this was done already.

        Returns:
            A transaction on what the table has then.
        """
        table = self._begin()
        done = last_transaction(self._spark, self.location, self._spec.application, table.version)
        counts = [batch.values for batch in flush.batches]
        ended = None if table.is_empty else ended
        if (max(counts) == min(counts) == 0 and ended is None) or (done is not None and done >= flush.batches[-1].last):
            return table
        is_few = commit.are_few(sum(counts) if min(counts) >= 0 else -1, values.schema, distinct.value)
        with session_settings(self._spark, commit.FEW_ROWS if is_few else {}):
            new = _new(flush, distinct, None if table.is_empty else table, values, is_few, ended)
            added = F.lit(flush.batches[-1].last).cast(LongType()).alias(_ADDED)
            rows = new.select(added, *map(quote, distinct.value), SEEN_COLUMN)
            flush.check()
            identity = self._identity(flush.info, table.version)
            rows = rows.coalesce(1) if is_few else rows
            if ended is None:
                known = table.append(rows, identity)
            else:
                gone = table.placed_rows({}).alias("t").join(ended.alias("s"), _of_ended(flush), "left_semi")
                with jvm.held(gone.select(FILE_COLUMN, ROW_COLUMN)) as places:
                    known = table.replace(places, rows, identity)
        if known is None:
            return table
        if known.version != table.version + 1:
            self._refuse_changes_since(table.version)
        self._known = known
        return self._begin()

    def _begin(self) -> TableTransaction:
        snapshot = delta_tables.snapshot(self._spark, self.location)
        table = TableTransaction(self._spark, snapshot, self._known, is_small=False)
        if not table.is_known:
            self.refuse_changes_of_others(table.version)
        return table


def _of_ended(flush: StateFlush) -> Column:
    """Return the condition that a stored value, `t`, was stored before the flush for a key, `s`, whose group ends.

    What the same flush has stored, before a crash, is the first of the key's next group.
    """
    return commit.same_key(flush.aggregate.key, {}) & (F.col(f"t.{_ADDED}") < F.lit(flush.batches[0].first))


def _of_added(flush: StateFlush, table: TableTransaction, rows: DataFrame) -> DataFrame:
    """Return the partial results of the values that the flush's micro-batches have added, by `_ADDED`.

    Other functions get their partial results of no rows; where Spark has no expressions for these, each row of a value comes
    with them.
    """
    first, last = flush.batches[0].first, flush.batches[-1].last
    added = table.placed_rows({_ADDED: Range(first, last, has_nulls=False)}).where(F.col(_ADDED).between(first, last))
    results = flush.aggregate.of_new(added, _ADDED)
    others = [name for name in flush.aggregate.schema.names if name not in results.columns]
    of_none = rows.where(F.col(SET_COLUMN) != NO_SET).select(*map(quote, others)).limit(1)
    every = results.crossJoin(F.broadcast(of_none)) if others else results
    return every.select(*map(quote, flush.aggregate.schema.names), F.lit(0).alias(BATCH_COLUMN), _ADDED)


def _new(
    flush: StateFlush,
    distinct: DistinctRows,
    table: TableTransaction | None,
    values: DataFrame,
    is_few: bool,
    ended: DataFrame | None,
) -> DataFrame:
    """Return the values that are not stored, or not for each FILTER, once each, with the FILTERs that are new to them.

    Args:
        table: what is stored; None: nothing.
        values: the values of the flush.
        is_few: whether every executor can have them.
        ended: the keys of groups for which nothing counts that was stored before the flush; None: there are none.
    """
    names, seen = [F.col(quote(name)) for name in distinct.value], F.bit_or(SEEN_COLUMN).alias(SEEN_COLUMN)
    if table is None:
        return values.groupBy(*names).agg(seen)
    within = key_ranges.condition(flush.reach, values.schema, "t")
    stored = table.placed_rows(flush.reach).alias("t")
    stored = stored if within is None else stored.where(within)
    stored = stored if ended is None else stored.join(ended.alias("s"), _of_ended(flush), "left_anti")
    # a join by one number takes a third of the time; whose hashes are the same by chance is left out below
    hashes = values.select(F.xxhash64(*names).alias(_HASH))
    found = stored.withColumn(_HASH, F.xxhash64(*names)).join(F.broadcast(hashes) if is_few else hashes, _HASH, "left_semi")
    none = F.lit(0).cast(LongType())
    both = values.select(*names, F.col(SEEN_COLUMN), none.alias(_BEFORE)).unionByName(
        found.select(*names, none.alias(SEEN_COLUMN), F.col(SEEN_COLUMN).alias(_BEFORE))
    )
    whole = both.groupBy(*names).agg(seen, F.bit_or(_BEFORE).alias(_BEFORE))
    unseen = F.col(SEEN_COLUMN).bitwiseAND(F.bitwise_not(_BEFORE)).alias(SEEN_COLUMN)
    return whole.select(*names, unseen).where(F.col(SEEN_COLUMN) != 0)
