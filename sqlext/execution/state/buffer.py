"""Buffers: each micro-batch's changed rows, until a flush has taken them (FLIP-365).

Durable: a folder of files for each micro-batch, under the flow's home, written whole or not at all: Spark's committer puts
`_SUCCESS` in last. A micro-batch that is repeated gets another folder, named after its driver's epoch: so a driver that wakes
behind its successor's back cannot empty what that one reads. Memory-only: blocks on the executors, which die with them;
`flows/intake.py` gets their rows back from the state store.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name all of Spark's documentation uses
from pyspark.sql.types import IntegerType, StructType

from sqlext.errors import FlowError
from sqlext.execution.delta import key_ranges
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.quoting import quote
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath

BATCH_COLUMN = "__sqlext_batch"
_FOLDER = f"{BATCH_COLUMN}="  # Spark reads the id from the folder's name; as a literal it would be compiled into each micro-batch
_WHOLE = "_SUCCESS"
_LOST_BLOCK = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"  # Spark's condition for a local checkpoint whose executor has gone
_COMMITTER = {
    # without the mark that a cluster may have turned off, a whole micro-batch could not be told from a torn one
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",  # one move a file less; nobody reads a folder without the mark
    # Hadoop writes a checksum file beside each local file, and starts a process for each of the two. Not for checkpoints:
    # Spark's state store asks for the local file system by its class, and deletes files in another way than it writes them.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


@dataclass(frozen=True)
class BufferedBatch:
    """Micro-batches in the buffer: one, or several whose rows were combined.

    Attributes:
        first, last: their ids.
        rows: how many groups they changed; -1 when a driver before this one wrote it.
        arrived: the clock's monotonic time of the oldest, in seconds.
        held: the rows, if executors hold them.
        place: the folder of the rows, below the buffer's, if files hold them.
        bounds: how far their keys reach; None: not known.
    """

    first: int
    last: int
    rows: int
    arrived: float
    held: DataFrame | None = None
    bounds: Bounds | None = None
    place: str = ""


class Buffer(Protocol):
    """What an intake asks of a buffer."""

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        """Take a micro-batch; it replaces what came under its id before."""

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch], schema: StructType) -> DataFrame:
        """All rows of `batches`, and in `BATCH_COLUMN` numbers that grow from one batch to the next."""

    def drop(self, batches: Sequence[BufferedBatch]) -> None:
        """Forget batches that are in the table, or that changed nothing."""


class DurableBuffer:
    """Files of one flow. Not thread-safe: Spark's stream thread writes, the flush thread reads and drops other batches.

    Args:
        home: the folder below which they lie.
        epoch: of the driver that writes.
    """

    def __init__(self, home: HadoopPath, epoch: int) -> None:
        self._home = home
        self._epoch = epoch
        self._written = itertools.count(1)

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        observation = Observation()
        seen = frame.observe(observation, *key_ranges.metrics(frame.schema, key))
        place = f"{_FOLDER}{batch}/{self._epoch:06d}-{next(self._written):06d}"
        folder = self._home.child(place)
        seen.write.options(**_COMMITTER).parquet(folder.location)
        if not folder.child(_WHOLE).exists():
            raise FlowError(f"The commit protocol in use leaves no {_WHOLE} in {folder.location}; a flow needs it.")
        found = key_ranges.observed(observation.get, frame.schema, key)
        return BufferedBatch(batch, batch, int(observation.get[key_ranges.ROWS]), arrived, None, found, place)

    def find(self, arrived: float) -> list[BufferedBatch]:
        """The micro-batches that are whole, of any driver, in order; of one that several have written, what came last."""
        names = [name for name in self._home.names() if name.startswith(_FOLDER)]
        batches = sorted((int(name.removeprefix(_FOLDER)), name) for name in names)
        found = ((batch, self._newest_whole(name)) for batch, name in batches)
        return [BufferedBatch(batch, batch, -1, arrived, place=place) for batch, place in found if place]

    def _newest_whole(self, folder: str) -> str:
        """The place of what was written last of a micro-batch; empty if nothing of it is whole."""
        names = self._home.child(folder).names()
        places = [folder] if _WHOLE in names else []  # before there were epochs, the files lay right here
        places += sorted(f"{folder}/{name}" for name in names if name[0].isdigit())
        return next((place for place in reversed(places) if self._home.child(place, _WHOLE).exists()), "")

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch], schema: StructType) -> DataFrame:
        """Numbered by their ids."""
        written = StructType(list(schema.fields)).add(BATCH_COLUMN, IntegerType())
        reader = spark.read.schema(written).option("basePath", self._home.location)
        return reader.parquet(*(self._home.child(batch.place).location for batch in batches))

    def drop(self, batches: Sequence[BufferedBatch]) -> None:
        """Delete the files; those that another driver wrote of the same micro-batch stay, until `drop_through`."""
        for batch in batches:
            self._home.child(batch.place).delete()
            self._home.child(batch.place.partition("/")[0]).delete_empty()

    def drop_through(self, batch: int) -> None:
        """Delete the micro-batches up to and with `batch`."""
        for name in self._home.names():
            if name.startswith(_FOLDER) and int(name.removeprefix(_FOLDER)) <= batch:
                self._home.child(name).delete()


class MemoryBuffer:
    """Blocks on executors. Any thread may call any method; no state is kept here."""

    def write(self, frame: DataFrame, batch: int, arrived: float, key: Sequence[str]) -> BufferedBatch:
        held, rows, found = _hold(frame, key)
        return BufferedBatch(batch, batch, rows, arrived, held, found)

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch], schema: StructType) -> DataFrame:
        # places, not ids: the same literals in each flush, so that Spark compiles them once
        held = [batch.held for batch in batches if batch.held]
        frames = [frame.withColumn(BATCH_COLUMN, F.lit(place)) for place, frame in enumerate(held)]
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.union(other)
        return frame

    def combine(self, batches: Sequence[BufferedBatch], schema: StructType, key: Sequence[str]) -> BufferedBatch:
        """One batch of the latest rows of several; theirs stay until they are dropped."""
        spark = next(batch.held.sparkSession for batch in batches if batch.held)
        held, rows, found = _hold(latest_rows(self.rows(spark, batches, schema), len(batches), key), key)
        return BufferedBatch(batches[0].first, batches[-1].last, rows, batches[0].arrived, held, found)

    def drop(self, batches: Sequence[BufferedBatch]) -> None:
        for batch in batches:
            if batch.held is not None:
                jvm.release(batch.held)


def is_lost(error: BaseException) -> bool:
    """Whether a flush failed because an executor took buffered rows with it."""
    return isinstance(error, (PySparkException, Py4JJavaError)) and _LOST_BLOCK in str(error)


def _hold(frame: DataFrame, key: Sequence[str]) -> tuple[DataFrame, int, Bounds]:
    """The rows as blocks on the executors, with no way back to the query they came from: it must not run twice."""
    observation = Observation()
    held = frame.observe(observation, *key_ranges.metrics(frame.schema, key)).localCheckpoint(eager=True)
    return held, int(observation.get[key_ranges.ROWS]), key_ranges.observed(observation.get, frame.schema, key)


def latest_rows(rows: DataFrame, batches: int, key: Sequence[str]) -> DataFrame:
    """Of every key its row in the newest batch; with no key, the one newest row.

    Args:
        rows: with `BATCH_COLUMN`.
        batches: how many there are.
    """
    if batches == 1:  # it has each key once
        return rows.drop(BATCH_COLUMN)
    names = [name for name in rows.columns if name != BATCH_COLUMN]
    newest = F.max(BATCH_COLUMN)
    keys = [F.col(quote(name)) for name in key]
    # column by column: over a struct of them, Spark would sort all rows instead of hashing their keys
    values = [F.max_by(quote(name), BATCH_COLUMN).alias(name) for name in names if name not in key]
    found = rows.groupBy(*keys).agg(newest.alias(BATCH_COLUMN), *values)
    return found.where(F.col(BATCH_COLUMN).isNotNull()).select(*(quote(name) for name in names))
