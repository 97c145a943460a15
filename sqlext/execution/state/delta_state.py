"""The state of a mergeable aggregate in a Delta table: partial results by key, without a state store.

Where each partial result is also a result, as for count and sum, the target itself holds the partial results. Otherwise a table
of the flow's own does, and the target gets results. Both are commits of one flush, each with the flow's transaction: if a crash
leaves one of them undone, the next flush does it, and nothing is added twice.

Stored rows are read before they are merged into, so nobody else may change them in between. A MERGE detects changes while it
runs; changes between the read and the MERGE are found afterwards, in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.errors import FlowError
from sqlext.execution.delta import commit, key_ranges, target
from sqlext.execution.delta.delta_log import last_transaction, table_size
from sqlext.execution.delta.foreign_commits import ForeignCommit, ForeignCommits
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, CommitIdentity, KnownFiles, TableTransaction
from sqlext.execution.state.buffer import BATCH_COLUMN, BufferedBatch
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.moments import Moment, announce
from sqlext.plan.flow_spec import Column, FlowSpec, StreamSpec
from sqlext.plan.job_graph import OutputMode
from sqlext.quoting import quote
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath

Partials = Callable[[Sequence[BufferedBatch]], DataFrame]
"""The function that returns the partial results of micro-batches, with numbers in `BATCH_COLUMN` that increase from one to the
next."""
_MOST_FILES = 500
"""The largest number of files of a table that are kept in memory; each file that changes takes a few calls to Java."""
_STORED_FIRST = -1  # in the order of arrival, stored rows precede all micro-batches


def state_in(home: HadoopPath) -> HadoopPath:
    """Return the location of a streaming query's state, if the state has a table of its own."""
    return home.child("state")


@dataclass(frozen=True)
class Advance:
    """The rows that are to be merged into a query's table.

    Attributes:
        rows: rows of the table.
        additions: as `commit.merge` takes them; None: the rows replace those of the same key.
        read_version: the version of that table from which they were computed, if it is the state.
    """

    rows: DataFrame
    additions: Mapping[str, str] | None = None
    read_version: int | None = None


class DeltaState:
    """The state of one streaming query. Used by the flush thread only.

    Args:
        spark: the session of the flow's commits.
        stream: the streaming query.
        location: the location of the table that holds the state: the query's table, or one of the state's own.
        spec, epoch: the flow and the epoch of its driver, whose commits are not foreign.
    """

    def __init__(self, spark: SparkSession, stream: StreamSpec, location: str, spec: FlowSpec, epoch: int) -> None:
        self._spark = spark
        self._stream = stream
        self.location = location
        self._spec = spec
        self._epoch = epoch
        self._others = ForeignCommits(spark, location, spec.id)
        self._known: KnownFiles | None = None  # if the previous flush wrote the table by a transaction

    @property
    def is_table_of_stream(self) -> bool:
        """Whether the query's table is its state."""
        return bool(self._stream.state_columns)

    def table(self) -> DeltaTable:
        """Return the table that holds the state."""
        return DeltaTable.forPath(self._spark, self.location)

    def transact(
        self,
        aggregate: MergeableAggregate,
        partials: Partials,
        batches: Sequence[BufferedBatch],
        reach: Bounds,
        info: commit.CommitInfo,
        check: Callable[[], None],
    ) -> bool:
        """Merge partial results into the query's table in one commit, if that table is the state.

        Args:
            aggregate: the aggregate.
            partials: returns the partial results of micro-batches, with `BATCH_COLUMN`.
            batches: the batches of the flush.
            reach: the ranges of their keys.
            info: the description of the flush.
            check: called before the commit; raises if this driver must not commit any more.

        Returns:
            False, and nothing was done, if the table is not the state, too many rows change, its change feed is read, or results
            of unchanged groups must stay as they are.

        Raises:
            FlowError: somebody else has changed stored rows.
        """
        is_meant = self.is_table_of_stream and not aggregate.results_vary
        opened = self._open(aggregate, info) if is_meant else None
        if opened is None:
            return False
        table, is_small = opened
        fresh = self._not_committed(batches, table.version)
        if not fresh:
            return True
        identity = self._identity(info, table)
        with commit.session_settings(self._spark, commit.FEW_ROWS):
            if is_small:
                rows = self._results(aggregate, _added(aggregate, self._as_partials(table.rows, aggregate), partials(fresh)))
                check()
                self._note(table, table.write_whole(rows, identity))
                return True
            with (
                _held(aggregate.merged(partials(fresh), BATCH_COLUMN)) as new,
                self._found(aggregate, table, new, reach) as found,
            ):
                rows = self._results(aggregate, _added(aggregate, found, _numbered(new)))
                check()
                self._note(table, table.replace(found, rows, identity))
        return True

    def _identity(self, info: commit.CommitInfo, table: TableTransaction) -> CommitIdentity:
        return CommitIdentity(self._spec.id, info.last_batch, replace(info, read_version=table.version).to_json())

    def _note(self, table: TableTransaction, known: KnownFiles) -> None:
        """Remember the files after a commit; an INSERT in between is no conflict to Delta, but it is one to us."""
        if known.version != table.version + 1:
            self._refuse_changes_since(table.version)
        self._known = known

    def _open(self, aggregate: MergeableAggregate, info: commit.CommitInfo) -> tuple[TableTransaction, bool] | None:
        """Open a transaction on the stored rows.

        Returns:
            The transaction, and whether the table is so small that it is rewritten as a whole; None if too many rows change, the
            table has too many files or no deletion vectors, or its change feed is read.
        """
        if not commit.are_few(info.rows, aggregate.schema, aggregate.key):
            return None
        size = table_size(self._spark, self.location)
        properties = jvm.delta_table_properties(self._spark, self.location)
        if size is None or size.files > _MOST_FILES or properties.get("delta.enableChangeDataFeed") == "true":
            return None
        table = TableTransaction(self._spark, self.location, self._known)
        is_small = size.bytes <= commit.SMALL_TABLE_BYTES
        if not is_small and not table.can_mark_rows:
            return None
        if self._known is None or self._known.version != table.version:
            self._refuse_changes_of_others(table.version)
        return table, is_small

    @contextmanager
    def _found(
        self, aggregate: MergeableAggregate, table: TableTransaction, new: DataFrame, reach: Bounds
    ) -> Iterator[DataFrame]:
        """Yield the stored rows of the groups in `new`, with their positions: the table is read once."""
        reach_there = reach_in_table(self._stream, aggregate, reach) if self.is_table_of_stream else reach
        placed = self._as_partials(table.placed_rows(reach_there), aggregate, FILE_COLUMN, ROW_COLUMN)
        with _held(_of_keys(placed, aggregate, _keys_of(aggregate, new), reach)) as found:
            yield found

    @contextmanager
    def advanced(
        self,
        aggregate: MergeableAggregate,
        partials: Partials,
        batches: Sequence[BufferedBatch],
        reach: Bounds,
        info: commit.CommitInfo,
    ) -> Iterator[Advance]:
        """Merge partial results into the state, and yield the changed groups as rows of the query's table, to be merged at once.

        1. What is stored is read, unless somebody else has changed it.
        2. The state gets what becomes of the groups, if it has a table of its own. After a crash here the table is behind it:
           the next flush shows their results once more, and adds nothing, since the state knows their micro-batch.
        3. The caller merges their results into the query's table.
        4. If that is the state, nobody else may have changed it meanwhile.

        Args:
            aggregate: the aggregate.
            partials: returns the partial results of micro-batches, with `BATCH_COLUMN`.
            batches: the batches of the flush.
            reach: the ranges of their keys.
            info: the description of the flush.

        Raises:
            FlowError: somebody else has changed stored rows.
        """
        version = jvm.table_version(self._spark, self.location)
        self._refuse_changes_of_others(version)
        fresh = self._not_committed(batches, version)
        every = partials(batches)
        opened = self._open(aggregate, info) if not self.is_table_of_stream and len(fresh) == len(batches) else None
        if opened is not None:
            with self._stored(aggregate, *opened, every, reach, info) as changed:
                announce(Moment.STATE_COMMITTED, self._spec.name)
                yield Advance(self._results(aggregate, changed))
            return
        new = every if len(fresh) == len(batches) else partials(fresh) if fresh else every.limit(0)
        is_small = commit.are_few(info.rows, aggregate.schema, aggregate.key)
        with commit.session_settings(self._spark, commit.FEW_ROWS if is_small else {}):
            if aggregate.additions and len(self._stream.state_columns) == len(self._stream.columns):
                rows = self._results(aggregate, aggregate.merged(new, BATCH_COLUMN))
                yield Advance(rows, self._additions(aggregate), version)
            else:
                with self._changed(aggregate, every, new, reach, is_small) as changed:
                    if fresh and not self.is_table_of_stream:
                        self._store(aggregate, changed, reach, replace(info, read_version=version))
                        self._refuse_changes_since(version)
                        announce(Moment.STATE_COMMITTED, self._spec.name)
                    yield Advance(self._results(aggregate, changed), read_version=version if self.is_table_of_stream else None)
        if self.is_table_of_stream:
            self._refuse_changes_since(version)

    @contextmanager
    def _stored(
        self,
        aggregate: MergeableAggregate,
        table: TableTransaction,
        is_small: bool,
        partials: DataFrame,
        reach: Bounds,
        info: commit.CommitInfo,
    ) -> Iterator[DataFrame]:
        """Merge partial results into the state's own table, and yield the new state of the groups that they change."""
        identity = self._identity(info, table)
        few_rows = commit.session_settings(self._spark, commit.FEW_ROWS)
        with few_rows, _held(aggregate.merged(partials, BATCH_COLUMN)) as new:
            if is_small:
                with _held(_added(aggregate, table.rows, _numbered(new))) as whole:
                    self._note(table, table.write_whole(whole, identity))
                    yield _of_keys(whole, aggregate, _keys_of(aggregate, new), reach)
                return
            with self._found(aggregate, table, new, reach) as found, _held(_added(aggregate, found, _numbered(new))) as changed:
                self._note(table, table.replace(found, changed, identity))
                yield changed

    def _additions(self, aggregate: MergeableAggregate) -> dict[str, str]:
        values = self._stream.state_columns[len(aggregate.key) :]
        return {
            column: addition.format(f"t.{quote(column)}", f"s.{quote(column)}")
            for column, addition in zip(values, aggregate.additions, strict=True)
        }

    @contextmanager
    def _changed(
        self, aggregate: MergeableAggregate, partials: DataFrame, new: DataFrame, reach: Bounds, is_small: bool
    ) -> Iterator[DataFrame]:
        """Yield the new state of the groups in `partials`, from their stored rows and the `new` partial results.

        After a crash between the two commits of a flush, some partial results are stored already, but the table lacks their
        results.
        """
        keys = partials.select(*(quote(name) for name in aggregate.key)).distinct()
        stored = self._as_partials(self._spark.read.format("delta").load(self.location), aggregate)
        within = key_ranges.condition(reach, aggregate.schema, "t")
        stored = stored if within is None else stored.alias("t").where(within)
        stored = _of_keys(stored, aggregate, F.broadcast(keys) if is_small else keys, reach)
        with _held(_added(aggregate, stored, new)) as changed:
            yield changed

    def _results(self, aggregate: MergeableAggregate, merged: DataFrame) -> DataFrame:
        return target.in_target_columns(aggregate.results(merged), self._stream.columns, self._stream.has_qualifies)

    def _as_partials(self, table: DataFrame, aggregate: MergeableAggregate, *others: str) -> DataFrame:
        """Return stored rows as partial results, with additional columns."""
        if not self.is_table_of_stream:
            return table
        pairs = zip(self._stream.state_columns, aggregate.schema.names, strict=True)
        return table.select(*(F.col(quote(column)).alias(name) for column, name in pairs), *others)

    def _store(self, aggregate: MergeableAggregate, rows: DataFrame, reach: Bounds, info: commit.CommitInfo) -> None:
        columns = tuple(Column(f.name, f.name, target.ddl_of(f.dataType)) for f in aggregate.schema)
        stream = StreamSpec(self._stream.relation, "", OutputMode.UPDATE, aggregate.key, columns)
        size = table_size(self._spark, self.location)
        commit.merge(self._spark, self.table(), stream, rows, reach, info, lambda: None, size, attempts=1)

    def _not_committed(self, batches: Sequence[BufferedBatch], version: int) -> list[BufferedBatch]:
        """Return the batches that are not in the state yet."""
        committed = last_transaction(self._spark, self.location, self._spec.id, version)
        return [batch for batch in batches if committed is None or batch.last > committed]

    # Other writers.

    def _refuse_changes_of_others(self, version: int) -> None:
        """Raise FlowError if others committed changes since the flow's last commit, or since it created the table."""
        self._refuse(self._others.since_own(version).commits)

    def _refuse_changes_since(self, version: int) -> None:
        """Raise FlowError, after a commit of this driver, if others committed changes since `version` was read."""
        self._refuse(self._others.after(version, self._epoch))

    def _refuse(self, found: Sequence[ForeignCommit]) -> None:
        for change in found:
            raise FlowError(
                f"Version {change.version} of the table in {self.location} ({change.operation}) changed rows that hold the state "
                f"of flow `{self._spec.name}`, so what the flow adds to them would be wrong. Recompute the table with REFRESH "
                "STREAMING TABLE .. FULL."
            )


def reach_in_table(stream: StreamSpec, aggregate: MergeableAggregate, reach: Bounds) -> Bounds:
    """Return the ranges of the keys of partial results, by column of the query's table, if that is the state."""
    return {column: reach[name] for column, name in zip(stream.state_columns, aggregate.key, strict=False) if name in reach}


@contextmanager
def _held(rows: DataFrame) -> Iterator[DataFrame]:
    """Yield the rows as blocks on the executors, computed once."""
    held = rows.localCheckpoint(eager=True)
    try:
        yield held
    finally:
        jvm.release(held)


def _added(aggregate: MergeableAggregate, stored: DataFrame, new: DataFrame) -> DataFrame:
    """Merge stored and other partial results into one for each group, in the order of `BATCH_COLUMN`."""
    before = stored.select(*(quote(name) for name in aggregate.schema.names), F.lit(_STORED_FIRST).alias(BATCH_COLUMN))
    return aggregate.merged(before.unionByName(new), BATCH_COLUMN)


def _numbered(new: DataFrame) -> DataFrame:
    """Add `BATCH_COLUMN` to the partial results of one batch, so that they follow the stored ones."""
    return new.withColumn(BATCH_COLUMN, F.lit(_STORED_FIRST + 1))


def _keys_of(aggregate: MergeableAggregate, rows: DataFrame) -> DataFrame:
    """Return the keys of the groups in `rows`, broadcast to every executor."""
    return F.broadcast(rows.select(*(quote(name) for name in aggregate.key)))


def _of_keys(stored: DataFrame, aggregate: MergeableAggregate, keys: DataFrame, reach: Bounds) -> DataFrame:
    """Return the stored rows of the groups with these keys."""
    if not aggregate.key:
        return stored
    return stored.alias("t").join(keys.alias("s"), commit.same_key(aggregate.key, reach), "left_semi")
