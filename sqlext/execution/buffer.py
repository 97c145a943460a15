"""The durable buffer: each micro-batch's changed rows, under the flow's home, until a flush has taken them (FLIP-365).

A micro-batch is a folder of its own, written whole or not at all: Spark's committer puts `_SUCCESS` in last. A micro-batch
that Spark repeats after a crash overwrites its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name all of Spark's documentation uses
from pyspark.sql.types import IntegerType, StructType

from sqlext.jvm import HadoopPath
from sqlext.names import quote

BATCH_COLUMN = "__sqlext_batch"
_ROW_COLUMN = "__sqlext_row"


@dataclass(frozen=True)
class BufferedBatch:
    """A micro-batch in the buffer.

    Attributes:
        batch: its id.
        rows: how many groups it changed; -1 when a driver before this one wrote it.
        arrived: the clock's monotonic time, in seconds.
    """

    batch: int
    rows: int
    arrived: float


class DurableBuffer:
    """Files of one flow. Not thread-safe: Spark's stream thread writes, the flush thread reads and drops other batches."""

    def __init__(self, home: HadoopPath) -> None:
        self._home = home

    def write(self, frame: DataFrame, batch: int) -> int:
        """Write a micro-batch over what its folder held.

        Returns:
            The number of rows.
        """
        observation = Observation()
        counted = frame.withColumn(BATCH_COLUMN, F.lit(batch)).observe(observation, F.count(F.lit(1)).alias("rows"))
        counted.write.mode("overwrite").parquet(self._folder(batch).location)
        return int(observation.get["rows"])

    def complete_batches(self) -> list[int]:
        """Ids of the micro-batches that are whole, in order."""
        names = [name for name in self._home.names() if name.startswith("batch-")]
        whole = [name for name in names if self._home.child(name, "_SUCCESS").exists()]
        return sorted(int(name.removeprefix("batch-")) for name in whole)

    def latest_rows(self, spark: SparkSession, batches: Sequence[int], schema: StructType, key: Sequence[str]) -> DataFrame:
        """Of every key its row in the newest of `batches`; with no key, the one newest row."""
        written = StructType(list(schema.fields)).add(BATCH_COLUMN, IntegerType())
        frame = spark.read.schema(written).parquet(*(self._folder(batch).location for batch in batches))
        if len(batches) == 1:
            return frame.drop(BATCH_COLUMN)
        columns = [F.col(quote(name)) for name in schema.names]
        newest = F.max_by(F.struct(*columns), F.col(BATCH_COLUMN)).alias(_ROW_COLUMN)
        return (
            frame.groupBy(*(F.col(quote(name)) for name in key))
            .agg(newest)
            .where(F.col(_ROW_COLUMN).isNotNull())
            .select(f"{_ROW_COLUMN}.*")
        )

    def drop(self, batch: int) -> None:
        """Delete one micro-batch."""
        self._folder(batch).delete()

    def drop_through(self, batch: int) -> None:
        """Delete the micro-batches up to and with `batch`."""
        for name in self._home.names():
            if name.startswith("batch-") and int(name.removeprefix("batch-")) <= batch:
                self._home.child(name).delete()

    def _folder(self, batch: int) -> HadoopPath:
        return self._home.child(f"batch-{batch:012d}")
