"""Buffers of each micro-batch's changed rows, until a flush has taken them (FLIP-365).

Durable: a folder of files for each micro-batch, under the flow's home, written atomically: Spark's committer adds `_SUCCESS`
last. A repeated micro-batch gets another folder, named after its driver's epoch, so that a driver which wakes up after its
successor has started cannot empty what the successor reads. Of a query that appends rows, the files lie in the table's folder
already, and the buffer has their names. Memory-only: blocks on the executors, which are lost with them;
`flows/intake.py` restores their rows from the state store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name all of Spark's documentation uses
from pyspark.sql.types import IntegerType, StructType

from sqlext.errors import FlowError
from sqlext.execution.delta.key_ranges import Bounds, KeyRanges
from sqlext.execution.delta.staged_files import StagedFiles, stage
from sqlext.execution.state import checked_batch
from sqlext.execution.state.checked_batch import CheckedBatch
from sqlext.execution.state.row_checks import FlowChecks, Violations
from sqlext.plan.flow_spec import FlowSpec
from sqlext.quoting import quote
from sqlext.spark import jvm
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.storage import COMMITTER, HadoopPath

T = TypeVar("T")

BATCH_COLUMN = checked_batch.FOLDER_COLUMN
_FOLDER = f"{BATCH_COLUMN}="  # Spark reads the id from the folder's name; a literal would be compiled into each micro-batch
_WHOLE = "_SUCCESS"
_STAGED = "staged.json"
"""Describes files of a micro-batch that lie in the table's own folder; it is written as a whole."""
_LOST_BLOCK = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"  # Spark's condition for a local checkpoint whose executor has gone


@dataclass(frozen=True)
class BufferedBatch:
    """Micro-batches in the buffer: one, or several whose rows were combined.

    Attributes:
        first, last: the ids of the first and the last micro-batch.
        rows: the number of groups that they changed; -1 if an earlier driver wrote it.
        values: the number of distinct values that come with them, or more; -1 if an earlier driver wrote it.
        arrived: the arrival of the oldest, in seconds of the clock's monotonic time.
        held: the rows, if executors hold them.
        bounds: the ranges of their keys; None: unknown.
        place: the folder of the rows, or of what describes `staged`, relative to the buffer's, if files hold them.
        staged: the files of the rows, if they lie in the table's folder.
        checked: what the checks of the rows have found, if constraints check them here.
        passes: how often the micro-batch's input was read, each time of which Spark counts its rows.
    """

    first: int
    last: int
    rows: int
    arrived: float
    held: DataFrame | None = None
    bounds: Bounds | None = None
    place: str = ""
    staged: StagedFiles | None = None
    checked: CheckedBatch | None = None
    values: int = -1
    passes: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be told of it: no rows, and no violations."""
        return self.rows == 0 and (self.checked is None or self.checked.is_empty)


def rows_in(batches: Iterable[BufferedBatch]) -> int:
    """Return the number of rows, or changed groups, of micro-batches; -1 if some were counted by an earlier driver."""
    counts = [batch.rows for batch in batches]
    return sum(counts) if min(counts, default=0) >= 0 else -1


class Buffer(Protocol):
    """The operations of a buffer that an intake needs."""

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        """Take in a micro-batch, in place of an earlier one with the same id."""

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch], schema: StructType) -> DataFrame:
        """Return all rows of `batches`, with numbers in `BATCH_COLUMN` that increase from one batch to the next."""

    def drop(self, batches: Sequence[BufferedBatch]) -> None:
        """Drop batches that are in the table, or that changed nothing."""


class _Observed:
    """What is observed of the micro-batches of a buffer, with expressions that are made once: they take many calls to Java."""

    def __init__(self) -> None:
        self._ranges: KeyRanges | None = None

    def of(self, frame: DataFrame, key: Sequence[str], action: Callable[[DataFrame], T]) -> tuple[T, int, int, Bounds]:
        """Run an action over rows.

        Returns:
            Its result, the numbers of rows and of distinct values beside them, and the ranges of their keys.
        """
        schema = frame.schema
        if self._ranges is None or self._ranges.schema != schema:
            self._ranges = KeyRanges(schema, key)
        observation = Observation()
        done = action(frame.observe(observation, *self._ranges.metrics))
        return done, *self._ranges.observed(observation.get)


class DurableBuffer:
    """The buffer files of one flow. Not thread-safe: Spark's stream thread writes, the flush thread reads and drops others.

    Args:
        home: the folder below which the files lie.
        epoch: the epoch of the driver that writes.
    """

    def __init__(self, home: HadoopPath, epoch: int) -> None:
        self._home = home
        self._epoch = epoch
        self._written = itertools.count(1)
        self._observed = _Observed()

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        return self._written_in(self._place(batch), frame, batch, arrived, key)

    def _written_in(self, place: str, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        folder = self._home.child(place)

        def written(seen: DataFrame) -> None:
            seen.write.options(**COMMITTER).parquet(folder.location)

        _, rows, values, bounds = self._observed.of(frame, key, written)
        if not folder.child(_WHOLE).exists():
            raise FlowError(f"Spark's commit protocol wrote no {_WHOLE} in {folder.location}. Use one that does: flows need it.")
        return BufferedBatch(batch, batch, rows, arrived, None, bounds, place, values=values)

    def _place(self, batch: int) -> str:
        return f"{_FOLDER}{batch}/{self._epoch:06d}-{next(self._written):06d}"

    def find(self, arrived: float) -> list[BufferedBatch]:
        """Return the complete micro-batches of any driver, in order; if several have written one, the last version of it."""
        names = [name for name in self._home.names() if name.startswith(_FOLDER)]
        batches = sorted((int(name.removeprefix(_FOLDER)), name) for name in names)
        found = (self._newest_whole(batch, name, arrived) for batch, name in batches)
        return [each for each in found if each is not None]

    def _newest_whole(self, batch: int, folder: str, arrived: float) -> BufferedBatch | None:
        """Return the last complete version of a micro-batch; None: none is complete."""
        names = self._home.child(folder).names()
        for version in sorted((name for name in names if name[0].isdigit()), reverse=True):
            place = f"{folder}/{version}"
            marks = self._home.child(place).names()
            if _WHOLE in marks or _STAGED in marks:
                staged = self._staged(place) if _STAGED in marks else None
                checked = checked_batch.found_in(self._home, place, names)
                return BufferedBatch(batch, batch, -1, arrived, place=place, staged=staged, checked=checked)
        return None

    def _staged(self, place: str) -> StagedFiles:
        return StagedFiles.from_json(self._home.child(place, _STAGED).read_text())

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch], schema: StructType) -> DataFrame:
        """Return all rows of `batches`, numbered by the ids of their micro-batches."""
        written = StructType(list(schema.fields)).add(BATCH_COLUMN, IntegerType())
        reader = spark.read.schema(written).option("basePath", self._home.location)
        return reader.parquet(*(self._home.child(batch.place).location for batch in batches))

    def quarantine(self, spark: SparkSession, spec: FlowSpec, batches: Sequence[BufferedBatch]) -> None:
        """Bring the rows of `batches` that are to be quarantined into the tables for them; see `checked_batch.quarantine`."""
        checked = [(batch.last, batch.checked) for batch in batches if batch.checked is not None]
        checked_batch.quarantine(spark, self._home, spec, checked)

    def drop(self, batches: Sequence[BufferedBatch]) -> None:
        """Delete the files; those that another driver wrote for the same micro-batch stay until `drop_through`."""
        for batch in batches:
            self._home.child(batch.place).delete()
            if batch.checked is not None:
                checked_batch.drop(self._home, batch.place, batch.checked)
            self._home.child(batch.place.partition("/")[0]).delete_empty()

    def drop_through(self, batch: int) -> None:
        """Delete the micro-batches up to and including `batch`."""
        for name in self._home.names():
            if name.startswith(_FOLDER) and int(name.removeprefix(_FOLDER)) <= batch:
                self._home.child(name).delete()


class StagedBuffer(DurableBuffer):
    """The micro-batches of a query that appends: their rows are written as files of its table, which a flush commits.

    Rows for a table that needs more than files are buffered as those of an aggregate are. Where constraints check the rows, a
    micro-batch is complete only when rows that are to be quarantined are: after a crash before that, Spark repeats it.

    Args:
        home, epoch: as for `DurableBuffer`.
        table: the location of the table.
        checks: of the rows; None: there are no constraints.
    """

    def __init__(self, home: HadoopPath, epoch: int, table: str, checks: FlowChecks | None = None) -> None:
        super().__init__(home, epoch)
        self._table = table
        self._checks = checks

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        place = self._place(batch)
        if self._checks is None:
            staged = stage(frame, self._table)
            if staged is None:
                return self._written_in(place, frame, batch, arrived, key)
            return self._described_in(place, staged, batch, arrived)
        with self._checks.marked(frame) as (marked, is_read_again):
            kept, violations = self._checks.watched(marked)
            staged = stage(kept, self._table)
            if staged is not None:
                checked = self._checked(self._checks, marked, violations(), batch, place)
                written = self._described_in(place, staged, batch, arrived)
            else:
                with jvm.held(kept) as held:
                    checked = self._checked(self._checks, marked, violations(), batch, place)
                    written = self._written_in(place, held, batch, arrived, key)
        return replace(written, checked=checked, passes=1 + len(checked.quarantined) * is_read_again)

    def _checked(self, checks: FlowChecks, marked: DataFrame, violations: Violations, batch: int, place: str) -> CheckedBatch:
        return checked_batch.noted(self._home, place, violations, checks.quarantined(marked, violations, batch))

    def _described_in(self, place: str, staged: StagedFiles, batch: int, arrived: float) -> BufferedBatch:
        self._home.child(place, _STAGED).create_text(staged.to_json())
        return BufferedBatch(batch, batch, staged.rows, arrived, place=place, staged=staged)


class MemoryBuffer:
    """Blocks on executors. Spark's stream thread writes and combines, any thread may do the rest."""

    def __init__(self) -> None:
        self._observed = _Observed()

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        held, rows, values, found = self._hold(frame, key)
        return BufferedBatch(batch, batch, rows, arrived, held, found, values=values)

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch], schema: StructType) -> DataFrame:
        # places, not ids: the same literals in each flush, so that Spark compiles them once
        held = [batch.held for batch in batches if batch.held]
        frames = [frame.withColumn(BATCH_COLUMN, F.lit(place)) for place, frame in enumerate(held)]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.union(other)
        return frame

    def combine(self, batches: Sequence[BufferedBatch], schema: StructType, key: Sequence[str]) -> BufferedBatch:
        """Combine the latest rows of several batches into one; the old batches stay until they are dropped."""
        spark = next(batch.held.sparkSession for batch in batches if batch.held)
        held, rows, _, found = self._hold(latest_rows(self.rows(spark, batches, schema), len(batches), key), key)
        return BufferedBatch(batches[0].first, batches[-1].last, rows, batches[0].arrived, held, found)

    def drop(self, batches: Sequence[BufferedBatch]) -> None:
        for batch in batches:
            if batch.held is not None:
                jvm.release(batch.held)

    def _hold(self, frame: DataFrame, key: Sequence[str]) -> tuple[DataFrame, int, int, Bounds]:
        """Store rows as blocks on the executors, detached from the query they came from: that must not run twice."""
        return self._observed.of(frame, key, lambda seen: seen.localCheckpoint(eager=True))


def is_lost(error: BaseException) -> bool:
    """Return whether a flush failed because buffered rows were lost with an executor."""
    return isinstance(error, SPARK_ERRORS) and _LOST_BLOCK in str(error)


def latest_rows(rows: DataFrame, batches: int, key: Sequence[str]) -> DataFrame:
    """Return the row of each key in the newest batch that has it; without a key, the one newest row.

    Args:
        rows: the rows, with `BATCH_COLUMN`.
        batches: the number of batches.
        key: the key columns.
    """
    if batches == 1:  # which has each key once
        return rows.drop(BATCH_COLUMN)
    names = [name for name in rows.columns if name != BATCH_COLUMN]
    newest = F.max(BATCH_COLUMN)
    keys = [F.col(quote(name)) for name in key]
    # column by column: over a struct of them, Spark would sort all rows instead of hashing their keys
    values = [F.max_by(quote(name), BATCH_COLUMN).alias(name) for name in names if name not in key]
    found = rows.groupBy(*keys).agg(newest.alias(BATCH_COLUMN), *values)
    return found.where(F.col(BATCH_COLUMN).isNotNull()).select(*(quote(name) for name in names))
