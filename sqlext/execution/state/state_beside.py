"""The state of a mergeable aggregate in a table of the flow's own, beside the table with the results: two commits a flush.

Groups that a watermark has passed leave the state, in the commit of a flush; their results stay in the query's table. A flush
deletes those for which rows of its first micro-batch are late, so none of the groups that it changes itself: after a crash
between its two commits, these are still there to be shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import commit, target
from sqlext.execution.delta.changes import WEIGHT, weighted
from sqlext.execution.delta.delta_log import last_transaction, table_size, version_of
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, TableTransaction
from sqlext.execution.state.buffer import BATCH_COLUMN, BufferedBatch
from sqlext.execution.state.delta_state import Advance, DeltaState, Show, StateFlush, added, keys_of, numbered, of_keys
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.moments import Moment, announce
from sqlext.plan.flow_spec import Column, StreamSpec
from sqlext.plan.job_graph import QUALIFIES, OutputMode
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Written:
    """What a transaction has stored.

    Attributes:
        changed: the new state of the changed groups.
        every: the state of all groups, if it is at hand, no group ever leaves it, and a group's results stay the same while its
            state does.
    """

    changed: DataFrame
    every: DataFrame | None = None


class StateBeside(DeltaState):
    """The state of an aggregate in a table of the flow's own; see the module's docstring, and `DeltaState`."""

    _emptied = 0  # the watermark up to which this driver has deleted passed groups

    def flush(self, flush: StateFlush, show: Show) -> None:
        """Merge partial results into the state, then the results of the changed groups into the query's table.

        1. What is stored is read, unless somebody else has changed it.
        2. The state gets what becomes of the groups, and passed ones leave it. After a crash here the table is behind it: the
           next flush shows their results once more, and adds nothing, since the state knows their micro-batch.
        3. Their results are merged into the query's table.
        """
        table = self._begin(flush)  # first: what is stored is what it reads
        version = delta_tables.version(self._spark, self.location) if table is None else table.version
        if table is None:
            self.refuse_changes_of_others(version)
        fresh = self._not_committed(flush.batches, version)
        if table is not None and len(fresh) == len(flush.batches):
            with self._written(flush, table) as written:
                announce(Moment.STATE_COMMITTED, self._spec.name)
                every = None if written.every is None else self._results(flush.aggregate, written.every)
                show(Advance(self._results(flush.aggregate, written.changed), all_rows=every))
            return
        stored, is_again = self._stored(version), len(fresh) < len(flush.batches)
        if is_again:
            flush = replace(flush, reach={})  # the groups may be others than those of its rows
        held = self._changed_again(flush, stored, fresh, version) if is_again else self._changed(flush, stored, fresh)
        with self._settings(flush.is_small), held as changed:
            results = self._results(flush.aggregate, changed)
            if fresh:
                flush.inspect(results)
                self._store(flush, changed, stored, replace(flush.info, read_version=version))
                self._refuse_changes_since(version)
                announce(Moment.STATE_COMMITTED, self._spec.name)
            info = replace(flush.info, rows=changed.count()) if is_again else None
            show(Advance(results, info=info, reach=flush.reach))

    def _changed_again(
        self, flush: StateFlush, stored: DataFrame, fresh: Sequence[BufferedBatch], version: int
    ) -> AbstractContextManager[DataFrame]:
        """Hold the new state of the groups of a flush some of whose batches are stored, and perhaps not shown.

        Spark may have computed these batches anew since, of tables that have changed: which groups they have changed says the
        commit that stored them.
        """
        aggregate = flush.aggregate
        new = flush.partials(fresh) if fresh else flush.partials(flush.batches).limit(0)
        before = self._keys_stored_last(aggregate, version)
        if before is not None and aggregate.key:
            stored = of_keys(stored, aggregate, before.union(new.select(*before.columns)).distinct(), {})
        return jvm.held(added(aggregate, stored, new))

    def _keys_stored_last(self, aggregate: MergeableAggregate, version: int) -> DataFrame | None:
        """Return the keys of the groups that the newest flush has stored; None: the log no longer tells, so it may be any."""
        application = self._spec.application
        batch = last_transaction(self._spark, self.location, application, version)
        at = version_of(self._spark, self.location, application, batch, version)
        if not at:  # before version 0 there is nothing to compare with
            return None
        try:
            found = weighted(self._spark, self.location, at - 1, at)
        except UnsupportedError as error:
            logger.info("flow %s: all groups are shown again: %s", self._spec.name, error)
            return None
        return found.where(F.col(WEIGHT) > 0).select(*map(quote, aggregate.key))

    @contextmanager
    def _written(self, flush: StateFlush, table: TableTransaction) -> Iterator[_Written]:
        """Merge partial results into the state by a transaction, and yield the new state of the groups that they change."""
        aggregate, identity, partials = flush.aggregate, self._identity(flush.info, table.version), flush.partials(flush.batches)
        with self._settings(flush.is_small or not table.is_empty):
            if table.is_small and not table.is_empty:
                with jvm.held(added(aggregate, _left(flush, table.rows), partials, flush.fits_one_task(table))) as every:
                    changed = of_keys(every, aggregate, keys_of(aggregate, partials), flush.reach)
                    flush.inspect(self._results(aggregate, changed))
                    flush.check()
                    self._note(table, table.write_whole(every, identity))
                    yield _Written(changed, None if aggregate.results_vary or aggregate.event_time else every)
                return
            with jvm.held(aggregate.merged(partials, BATCH_COLUMN)) as new:
                if table.is_empty:
                    flush.inspect(self._results(aggregate, new))
                    flush.check()
                    self._note(table, table.write_whole(new, identity))
                    yield _Written(new)
                    return
                with (
                    self._found(flush, table.placed_rows(flush.reach), new) as found,
                    jvm.held(added(aggregate, found, numbered(new))) as changed,
                ):
                    gone = self._passed(flush, table.placed_rows({}))
                    places = found.select(FILE_COLUMN, ROW_COLUMN)
                    places = places if gone is None else places.union(gone.select(FILE_COLUMN, ROW_COLUMN))
                    flush.inspect(self._results(aggregate, changed))
                    flush.check()
                    self._note(table, table.replace(places, changed, identity))
                    self._emptied = flush.passed
                    yield _Written(changed)

    def _passed(self, flush: StateFlush, stored: DataFrame) -> DataFrame | None:
        """Return the stored rows that leave the state; None: the watermark is where it was when the last ones did."""
        event_time = flush.aggregate.event_time
        is_later = event_time is not None and flush.passed > self._emptied
        return stored.where(event_time.has_passed(flush.passed)) if event_time is not None and is_later else None

    def _store(self, flush: StateFlush, rows: DataFrame, stored: DataFrame, info: commit.CommitInfo) -> None:
        """Merge the new state of changed groups into the state's table, and delete the passed ones.

        Args:
            flush: the flush.
            rows: the new state.
            stored: all stored rows.
            info: the description of the commit.
        """
        gone, reach = self._passed(flush, stored), flush.reach
        with nullcontext() if gone is None else jvm.held(gone) as found:
            if found is not None:
                deleted = found.withColumn(QUALIFIES, F.lit(False))
                rows, reach = rows.withColumn(QUALIFIES, F.lit(True)).unionByName(deleted), {}
            self._merge(flush, rows, reach, info)
        self._emptied = flush.passed

    def _merge(self, flush: StateFlush, rows: DataFrame, reach: Bounds, info: commit.CommitInfo) -> None:
        columns = tuple(Column(f.name, f.name, target.ddl_of(f.dataType)) for f in flush.aggregate.schema)
        stream = StreamSpec(self._stream.relation, "", OutputMode.UPDATE, flush.aggregate.key, columns)
        size = table_size(self._spark, self.location)
        commit.merge(self._spark, self.table(), stream, rows, reach, info, flush.check, size, attempts=1)


def _left(flush: StateFlush, stored: DataFrame) -> DataFrame:
    """Return the stored rows of groups that no watermark has passed."""
    event_time = flush.aggregate.event_time
    return stored if event_time is None else event_time.on_time(stored, flush.passed)
