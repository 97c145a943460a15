"""The state of a mergeable aggregate in a Delta table: partial results by key, without a state store.

Where each partial result is a result too, as of count and sum, the target itself holds them. Else a table of the flow's own
does, and the target gets results. Both are commits of one flush, each with the flow's transaction: what a crash leaves undone of
the two is done by the next flush, and nothing is added twice.

What is stored is read before it is merged into, so nobody else may change it in between. A MERGE sees what comes while it runs.
What came before it, and after the reading, is looked for afterwards, in the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext import jvm
from sqlext.errors import FlowError
from sqlext.execution import bounds, commit, target
from sqlext.execution.bounds import Bounds
from sqlext.execution.buffer import BATCH_COLUMN, BufferedBatch
from sqlext.execution.delta_log import actions, info_of, last_transaction, table_size
from sqlext.execution.delta_transaction import FILE_COLUMN, ROW_COLUMN, KnownFiles, Said, TableTransaction
from sqlext.execution.mergeable import MergeableAggregate
from sqlext.execution.spec import Column, FlowSpec, StreamSpec
from sqlext.names import quote
from sqlext.plan import OutputMode
from sqlext.storage import HadoopPath

Partials = Callable[[Sequence[BufferedBatch]], DataFrame]
"""Gives the partial results of micro-batches, and in `BATCH_COLUMN` numbers that grow from one to the next."""
_MOST_FILES = 500
"""Of a table whose files are held in hand; of each that changes, Java is asked a few things."""
_STORED_FIRST = -1  # in the order of arrival, what is stored came before all micro-batches


def state_in(home: HadoopPath) -> HadoopPath:
    """Where a streaming query's state lies, if it has a table of its own."""
    return home.child("state")


@dataclass(frozen=True)
class Advance:
    """What is to be merged into a query's table.

    Attributes:
        rows: of the table.
        additions: as `commit.merge` takes them; None: the rows replace those of the same key.
    """

    rows: DataFrame
    additions: Mapping[str, str] | None = None


class DeltaState:
    """The state of one streaming query. Used by the flush thread only.

    Args:
        spark: of the flow's commits.
        stream: the query.
        location: of the table that holds the state: the query's, or one of the state's own.
        spec, epoch: whose commits are ours.
    """

    def __init__(self, spark: SparkSession, stream: StreamSpec, location: str, spec: FlowSpec, epoch: int) -> None:
        self._spark = spark
        self._stream = stream
        self.location = location
        self._spec = spec
        self._epoch = epoch
        self._known: KnownFiles | None = None  # if the flush before this one wrote the whole table

    @property
    def is_table_of_stream(self) -> bool:
        """Whether the query's table is its state."""
        return bool(self._stream.state_columns)

    def table(self) -> DeltaTable:
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
        """Bring partial results into the query's table, if that is the state: one commit.

        Args:
            partials: of micro-batches, with `BATCH_COLUMN`.
            batches: those of the flush.
            reach: how far their keys reach.
            info: of the flush.
            check: called before the commit; raises when this driver must not commit any more.

        Returns:
            False when the table is not the state, too many rows change, or its change feed is read; nothing was done then.

        Raises:
            FlowError: somebody else has changed what is stored.
        """
        if not self.is_table_of_stream or not commit.are_few(info.rows, aggregate.schema, aggregate.key):
            return False
        size = table_size(self._spark, self.location)
        properties = jvm.delta_table_properties(self._spark, self.location)
        if size is None or size.files > _MOST_FILES or properties.get("delta.enableChangeDataFeed") == "true":
            return False
        table = TableTransaction(self._spark, self.location, self._known)
        is_small = size.bytes <= commit.SMALL_TABLE_BYTES
        if not is_small and not table.can_mark_rows:
            return False
        if self._known is None or self._known.version != table.version:
            self._refuse_changes_of_others(table.version)
        fresh = _after(table.committed(self._spec.id), batches)
        if not fresh:
            return True
        said = Said(self._spec.id, info.last_batch, info.to_json())
        with commit.session_settings(self._spark, commit.FEW_ROWS):
            if is_small:
                before = self._as_partials(table.rows, aggregate)
                rows = self._merged(aggregate, before, partials(fresh))
                check()
                self._known = table.write_whole(rows, said)
            else:
                self._known = self._replaced(aggregate, table, partials(fresh), reach, check, said)
        return True

    def _replaced(
        self,
        aggregate: MergeableAggregate,
        table: TableTransaction,
        fresh: DataFrame,
        reach: Bounds,
        check: Callable[[], None],
        said: Said,
    ) -> KnownFiles:
        """Replace the rows of the groups that change: the table is read once."""
        keys = F.broadcast(fresh.select(*(quote(name) for name in aggregate.key)).distinct())
        stored = self._as_partials(table.placed_rows, aggregate, FILE_COLUMN, ROW_COLUMN)
        found = _of_keys(stored, aggregate, keys, reach).localCheckpoint(eager=True)
        try:
            rows = self._merged(aggregate, found.drop(FILE_COLUMN, ROW_COLUMN), fresh)
            check()
            return table.replace(found, rows, said)
        finally:
            jvm.release(found)

    def _merged(self, aggregate: MergeableAggregate, before: DataFrame, fresh: DataFrame) -> DataFrame:
        """Rows of the table, of partial results that are stored and others."""
        before = before.withColumn(BATCH_COLUMN, F.lit(_STORED_FIRST))
        return self._results(aggregate, aggregate.merged(before.unionByName(fresh), BATCH_COLUMN))

    @contextmanager
    def advanced(
        self,
        aggregate: MergeableAggregate,
        partials: Partials,
        batches: Sequence[BufferedBatch],
        reach: Bounds,
        info: commit.CommitInfo,
    ) -> Iterator[Advance]:
        """Bring partial results into the state, and give the groups that they change, as rows of the query's table, into which
        they are to be merged at once.

        Args:
            partials: of micro-batches, with `BATCH_COLUMN`.
            batches: those of the flush.
            reach: how far their keys reach.
            info: of the flush.

        Raises:
            FlowError: somebody else has changed what is stored.
        """
        version = jvm.table_version(self._spark, self.location)
        self._refuse_changes_of_others(version)
        committed = last_transaction(self._spark, self.location, self._spec.id)
        fresh = _after(-1 if committed is None else committed, batches)
        every = partials(batches)
        new = every if len(fresh) == len(batches) else partials(fresh) if fresh else every.limit(0)
        is_small = commit.are_few(info.rows, aggregate.schema, aggregate.key)
        with commit.session_settings(self._spark, commit.FEW_ROWS if is_small else {}):
            if aggregate.additions and len(self._stream.state_columns) == len(self._stream.columns):
                yield Advance(self._results(aggregate, aggregate.merged(new, BATCH_COLUMN)), self._additions(aggregate))
            else:
                with self._changed(aggregate, every, new, reach, is_small) as changed:
                    if fresh and not self.is_table_of_stream:
                        self._store(aggregate, changed, reach, info)
                        self._refuse_changes_since(version)
                    yield Advance(self._results(aggregate, changed))
        if self.is_table_of_stream:
            self._refuse_changes_since(version)

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
        """What becomes of the groups in `partials`, of what is stored of them and what is `new`.

        After a crash between the two commits of a flush some are stored already, and their results are still to be shown.
        """
        keys = partials.select(*(quote(name) for name in aggregate.key)).distinct()
        table = self._spark.read.format("delta").load(self.location)
        stored = _of_keys(self._as_partials(table, aggregate), aggregate, F.broadcast(keys) if is_small else keys, reach)
        before = stored.withColumn(BATCH_COLUMN, F.lit(_STORED_FIRST))
        changed = aggregate.merged(before.unionByName(new), BATCH_COLUMN).localCheckpoint(eager=True)
        try:
            yield changed
        finally:
            jvm.release(changed)

    def _results(self, aggregate: MergeableAggregate, merged: DataFrame) -> DataFrame:
        return target.in_target_columns(aggregate.results(merged), self._stream.columns, self._stream.has_qualifies)

    def _as_partials(self, table: DataFrame, aggregate: MergeableAggregate, *others: str) -> DataFrame:
        """What is stored, as partial results, and other columns."""
        if not self.is_table_of_stream:
            return table
        pairs = zip(self._stream.state_columns, aggregate.schema.names, strict=True)
        return table.select(*(F.col(quote(column)).alias(name) for column, name in pairs), *others)

    def _store(self, aggregate: MergeableAggregate, rows: DataFrame, reach: Bounds, info: commit.CommitInfo) -> None:
        columns = tuple(Column(f.name, f.name, target.ddl_of(f.dataType)) for f in aggregate.schema)
        stream = StreamSpec(self._stream.relation, "", OutputMode.UPDATE, aggregate.key, columns)
        size = table_size(self._spark, self.location)
        commit.merge(self._spark, self.table(), stream, rows, reach, info, lambda: None, size, attempts=1)

    # Who else writes there.

    def _refuse_changes_of_others(self, version: int) -> None:
        """Look at what was committed since the flow's last commit, or since it made the table."""
        while version >= 0:
            found = actions(self._spark, self.location, version)
            if found is None or self._is_ours(found) or _is_making(found):
                return
            self._refuse_change(version, found)
            version -= 1

    def _refuse_changes_since(self, version: int) -> None:
        """After a commit of this driver: nothing else came since `version` was read."""
        for between in range(version + 1, jvm.table_version(self._spark, self.location) + 1):
            found = actions(self._spark, self.location, between) or []
            if not (self._is_ours(found) and _ours(found).get("epoch") == self._epoch):
                self._refuse_change(between, found)

    def _is_ours(self, found: Sequence[dict[str, object]]) -> bool:
        return _ours(found).get("flow_id") == self._spec.id

    def _refuse_change(self, version: int, found: Sequence[dict[str, object]]) -> None:
        changes = [each.get("add") or each.get("remove") for each in found]
        if any(isinstance(change, dict) and change.get("dataChange") for change in changes):
            what = info_of(found).get("operation", "a commit")
            raise FlowError(
                f"Version {version} of the table in {self.location}, {what}, changed rows that hold the state of flow "
                f"`{self._spec.name}`: what it adds to them would be wrong. CREATE OR REFRESH its streaming table."
            )


def _after(committed: int, batches: Sequence[BufferedBatch]) -> list[BufferedBatch]:
    return [batch for batch in batches if batch.last > committed]


def reach_in_table(stream: StreamSpec, aggregate: MergeableAggregate, reach: Bounds) -> Bounds:
    """How far the keys of partial results reach, by the names of the query's table, if that is its state."""
    return {column: reach[name] for column, name in zip(stream.state_columns, aggregate.key, strict=False) if name in reach}


def _of_keys(stored: DataFrame, aggregate: MergeableAggregate, keys: DataFrame, reach: Bounds) -> DataFrame:
    """What is stored of some groups."""
    stored = stored.alias("t")
    within = bounds.condition(reach, aggregate.schema, "t")
    if within is not None:
        stored = stored.where(within)
    if not aggregate.key:
        return stored
    return stored.join(keys.alias("s"), commit.same_key(aggregate.key), "left_semi")


def _is_making(found: Sequence[dict[str, object]]) -> bool:
    """Whether a commit made a table, or made it anew."""
    return "TABLE" in str(info_of(found).get("operation")) and "CREATE" in str(info_of(found).get("operation"))


def _ours(found: Sequence[dict[str, object]]) -> dict[str, object]:
    """What a flow says in its commit."""
    try:
        metadata = json.loads(str(info_of(found).get("userMetadata")))
    except ValueError:
        return {}
    said = metadata.get("sqlext") if isinstance(metadata, dict) else None
    return said if isinstance(said, dict) else {}
