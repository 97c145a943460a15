"""The state of a mergeable aggregate in a Delta table: partial results by key, without a state store.

Where each partial result is also a result, as for count and sum, the target itself holds the partial results (`StateInTable`).
Otherwise a table of the flow's own does, and the target gets results (`StateBeside`; for session windows, `SessionState`).
Each commit has the flow's transaction: if a crash leaves one of two undone, the next flush does it, and nothing is added twice.

Stored rows are read before they are merged into, so nobody else may change them in between. A transaction and a MERGE detect
changes while they run; changes between the read and a MERGE are found afterwards, in the log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.execution.delta import commit, key_ranges, target
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.own_table import OwnTable
from sqlext.execution.delta.transaction import KnownFiles, TableTransaction
from sqlext.execution.state.buffer import BATCH_COLUMN, BufferedBatch
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.execution.state.state_table import StateTable
from sqlext.plan.flow_spec import FlowSpec, StreamSpec
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

Partials = Callable[[Sequence[BufferedBatch]], DataFrame]
"""The function that returns the partial results of micro-batches, with numbers in `BATCH_COLUMN` that increase from one to the
next."""
_STORED_FIRST = -1  # in the order of arrival, stored rows precede all micro-batches
_ROWS_OF_ONE_TASK = 10_000
_BYTES_OF_ONE_TASK = 1024**2


def state_in(home: HadoopPath, revision: int = 0) -> HadoopPath:
    """Return the location of a streaming query's state, if the state has a table of its own.

    Args:
        home: the query's folder.
        revision: how often the query was changed (`StreamSpec.revision`).
    """
    return home.child(f"state-{revision}" if revision else "state")


@dataclass(frozen=True)
class Expiry:
    """What a flush does to groups that have a time to live.

    Attributes:
        until: the time of groups that end: no micro-batch after it, up to the flush's first one, has had a row of theirs.
        touched: the time that the flush gives the groups of its rows: when its last micro-batch began.
        keeps_rows: whether the rows of ended groups stay in the query's table, and later rows of their keys are dropped.
        only_hidden: whether only groups end that HAVING leaves out of the query's table.
    """

    until: datetime
    touched: datetime
    keeps_rows: bool
    only_hidden: bool = False


@dataclass(frozen=True)
class StateFlush:
    """Partial results that a flush merges into a state.

    Attributes:
        aggregate: the aggregate.
        partials: returns the partial results of micro-batches.
        batches: the batches of the flush.
        reach: the ranges of their keys.
        info: the description of the flush.
        check: called before each commit of a transaction; raises if this driver must not commit any more.
        inspect: called with the changed groups, as rows of the query's table, before a state beside it gets them; raises if the
            table must not.
        passed: a watermark against which the rows of these batches and all later ones are late, in milliseconds since 1970: none
            of them changes a group that it has passed.
        expiry: which groups end; None: they have no time to live.
    """

    aggregate: MergeableAggregate
    partials: Partials
    batches: Sequence[BufferedBatch]
    reach: Bounds
    info: commit.CommitInfo
    check: Callable[[], None]
    inspect: Callable[[DataFrame], None] = lambda rows: None
    passed: int = 0
    expiry: Expiry | None = None

    @property
    def is_small(self) -> bool:
        """Whether its rows are so few that every executor can have them."""
        return commit.are_few(self.info.rows, self.aggregate.schema, self.aggregate.key)

    def fits_one_task(self, table: TableTransaction) -> bool:
        """Return whether one task merges its rows into all of a table sooner than several that exchange rows."""
        return 0 <= self.info.rows <= _ROWS_OF_ONE_TASK and table.bytes <= _BYTES_OF_ONE_TASK


@dataclass(frozen=True)
class Advance:
    """The rows that are to be merged into a query's table.

    Attributes:
        rows: rows of the table.
        additions: as `commit.merge` takes them; None: the rows replace those of the same key.
        read_version: the version of that table from which they were computed, if it is the state.
        all_rows: all rows that the table is to have, if they are at hand; they may be written in place of the ones it has.
        info: the description of the commit, if the state has more to say than the flush.
        reach: the ranges of the keys, as stored, if they are not those of the flush; empty: they are not known.
    """

    rows: DataFrame
    additions: Mapping[str, str] | None = None
    read_version: int | None = None
    all_rows: DataFrame | None = None
    info: commit.CommitInfo | None = None
    reach: Bounds | None = None


Show = Callable[[Advance], None]
"""The function that merges rows into the query's table."""


class DeltaState(StateTable, ABC):
    """The state of one streaming query. Used by the flush thread only.

    Args:
        stream: the streaming query.
        location: the location of the table that holds the state: the query's table, or one of the state's own.
        spark, spec, epoch: as for `StateTable`.
    """

    def __init__(self, spark: SparkSession, stream: StreamSpec, location: str, spec: FlowSpec, epoch: int) -> None:
        super().__init__(spark, location, spec, epoch)
        self._stream = stream
        self._own = OwnTable(spark, location)

    @abstractmethod
    def flush(self, flush: StateFlush, show: Show) -> None:
        """Merge partial results into the state, and their results into the query's table.

        Args:
            flush: the partial results.
            show: called at most once, with the changed groups as rows of the query's table.

        Raises:
            FlowError: somebody else has changed stored rows.
            DeltaConcurrentModificationException: somebody else changes them right now; all of it may be tried again.
        """

    # What kinds of states have in common.

    def _begin(self, flush: StateFlush) -> TableTransaction | None:
        """Begin a transaction on the stored rows; None: it takes a MERGE."""
        table = self._own.begin(flush.info.rows, flush.aggregate.schema, flush.aggregate.key)
        if table is not None and not table.is_known:
            self.refuse_changes_of_others(table.version)
        return table

    def _note(self, table: TableTransaction, known: KnownFiles) -> None:
        """Remember the files after a commit; an INSERT in between is no conflict to Delta, but it is one to us."""
        if known.version != table.version + 1:
            self._refuse_changes_since(table.version)
        self._own.note(known)

    def _stored(self, version: int) -> DataFrame:
        """Return the stored rows in a version, where no transaction reads them."""
        return delta_tables.scan_at(self._spark, self.location, version)

    def _settings(self, is_small: bool) -> AbstractContextManager[None]:
        return session_settings(self._spark, commit.FEW_ROWS if is_small else {})

    def _found(self, flush: StateFlush, placed: DataFrame, new: DataFrame) -> AbstractContextManager[DataFrame]:
        """Hold those of the stored rows whose groups are in `new`: the table is read once.

        Args:
            flush: the flush.
            placed: stored rows, with their positions.
            new: the partial results of the flush.
        """
        return jvm.held(of_keys(placed, flush.aggregate, keys_of(flush.aggregate, new), flush.reach))

    def _changed(self, flush: StateFlush, stored: DataFrame, fresh: Sequence[BufferedBatch]) -> AbstractContextManager[DataFrame]:
        """Hold the new state of the flush's groups, for a MERGE.

        After a crash between the two commits of a flush, some partial results are stored already, but the table lacks their
        results.

        Args:
            flush: the flush.
            stored: the stored rows, as partial results.
            fresh: the batches that are not stored yet.
        """
        aggregate, every = flush.aggregate, flush.partials(flush.batches)
        new = every if len(fresh) == len(flush.batches) else flush.partials(fresh) if fresh else every.limit(0)
        keys = every.select(*(quote(name) for name in aggregate.key)).distinct()
        within = key_ranges.condition(flush.reach, aggregate.schema, "t")
        stored = stored if within is None else stored.alias("t").where(within)
        stored = of_keys(stored, aggregate, F.broadcast(keys) if flush.is_small else keys, flush.reach)
        return jvm.held(added(aggregate, stored, new))

    def _results(self, aggregate: MergeableAggregate, merged: DataFrame) -> DataFrame:
        return target.in_target_columns(aggregate.results(merged), self._stream.columns, self._stream.has_qualifies)

    def _not_committed(self, batches: Sequence[BufferedBatch], version: int) -> list[BufferedBatch]:
        """Return the batches that are not in the state yet."""
        committed = last_transaction(self._spark, self.location, self._spec.application, version)
        return [batch for batch in batches if committed is None or batch.last > committed]


def added(aggregate: MergeableAggregate, stored: DataFrame, new: DataFrame, in_one_task: bool = False) -> DataFrame:
    """Merge stored and other partial results into one for each group, in the order of `BATCH_COLUMN`."""
    before = stored.select(*(quote(name) for name in aggregate.schema.names), F.lit(_STORED_FIRST).alias(BATCH_COLUMN))
    both = before.unionByName(new)
    return aggregate.merged(both.coalesce(1) if in_one_task else both, BATCH_COLUMN)


def numbered(new: DataFrame) -> DataFrame:
    """Add `BATCH_COLUMN` to the partial results of one batch, so that they follow the stored ones."""
    return new.withColumn(BATCH_COLUMN, F.lit(_STORED_FIRST + 1))


def keys_of(aggregate: MergeableAggregate, rows: DataFrame) -> DataFrame:
    """Return the keys of the groups in `rows`, broadcast to every executor."""
    return F.broadcast(rows.select(*(quote(name) for name in aggregate.key)))


def of_keys(stored: DataFrame, aggregate: MergeableAggregate, keys: DataFrame, reach: Bounds) -> DataFrame:
    """Return the stored rows of the groups with these keys."""
    if not aggregate.key:
        return stored
    return stored.alias("t").join(keys.alias("s"), commit.same_key(aggregate.key, reach), "left_semi")
