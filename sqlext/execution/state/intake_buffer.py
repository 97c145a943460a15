"""The micro-batches that an intake has taken and its table does not have yet, in files or in memory.

Spark's stream thread calls `write`; the flush thread calls `take`, `rows`, `latest_rows` and `flushed`; any thread may call the
rest. `_lock` guards what they share and is held for moments only; `_moving` is held while batches are taken out of the buffer,
and so makes a flush wait for a combination.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.clock import Clock
from sqlext.execution.state.buffer import BufferedBatch, DurableBuffer, MemoryBuffer, StagedBuffer, latest_rows
from sqlext.execution.state.buffer_output import BufferOutput, Element, LatencyMarker, Record, Watermark
from sqlext.execution.state.row_checks import FlowChecks
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark.storage import HadoopPath

_MOST_BATCHES = 32
"""The number of batches in memory that are combined, however few groups they have: each holds a block for every partition of a
shuffle, and a flush plans a union of all of them."""


@dataclass(frozen=True)
class FlushInput:
    """The input of a flush, taken out of a buffer.

    Attributes:
        batches: the batches, oldest first.
        watermark: the latest watermark that came with them, in seconds since 1970.
        arrived: the arrival of the oldest, in seconds of the clock's monotonic time.
    """

    batches: tuple[BufferedBatch, ...]
    watermark: float | None
    arrived: float


class IntakeBuffer:
    """The buffer of one intake; see the module's docstring.

    Args:
        name: the name of the query, for latency markers.
        folder: the folder for batches in files.
        max_entries: the number of groups that memory may buffer; None: the buffer is durable; infinite: it holds one micro-batch,
            until that is in the table.
        clock: measures arrivals.
        epoch: the epoch of the driver.
        table: of a query that appends rows, the location of its table; None: the newest row of each group is buffered.
        checks: of the rows of a query that appends; None: there are no constraints.

    Attributes:
        passes: how often the input of micro-batches was read, by their ids, where that was more than once.
    """

    def __init__(
        self,
        name: str,
        folder: HadoopPath,
        max_entries: float | None,
        clock: Clock,
        epoch: int,
        table: str | None,
        checks: FlowChecks | None = None,
    ) -> None:
        self._name = name
        self._key: tuple[str, ...] = ()
        self.max_entries = max_entries
        self._clock = clock
        self._durable = DurableBuffer(folder, epoch) if table is None else StagedBuffer(folder, epoch, table, checks)
        self._memory = MemoryBuffer()
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._emitted: list[Element] = []
        self._output = BufferOutput(self._emitted.append)  # of micro-batches; Spark does the same row by row
        self._in_flight: tuple[BufferedBatch, ...] = ()
        self._in_hand: tuple[BufferedBatch, ...] = ()
        self.schema = StructType()
        self.watermark: float | None = None
        self.passes: dict[int, int] = {}

    def open(self, schema: StructType, key: tuple[str, ...], committed: int | None) -> None:
        """Find the files that an earlier driver left.

        Args:
            schema, key: the schema and key of the rows.
            committed: the last micro-batch that is in the table; None: there is none.
        """
        self.schema, self._key = schema, key
        if committed is not None:
            self._durable.drop_through(committed)
        for batch in self._durable.find(self._clock.monotonic()):
            self._hold(batch)

    # Spark's stream thread.

    def write(self, rows: DataFrame, batch: int, keeps_empty: bool = False) -> bool:
        """Take in a micro-batch.

        Args:
            keeps_empty: whether one without rows is flushed too.

        Returns:
            Whether it was kept. One without rows only advances the watermark, and an empty buffer commits nothing.
        """
        buffer = self._durable if self.max_entries is None else self._memory
        taken = buffer.write(rows, batch, self._clock.monotonic(), self._key)
        if taken.passes > 1:
            self.passes[batch] = taken.passes
        if taken.is_empty and not keeps_empty:
            buffer.drop([taken])
            return False
        with self._lock:
            self._hold(taken)
        if self.is_full or self._has_many_batches:
            self._combine()
        return True

    def _hold(self, batch: BufferedBatch) -> None:
        self._output.collect(Record(batch.last, batch))
        self._output.emit_latency_marker(LatencyMarker(self._name, batch.arrived))
        if self.watermark is not None:
            self._output.emit_watermark(Watermark(self.watermark))

    def _combine(self) -> None:
        """Combine the batches in memory: several may change the same groups, and only distinct groups count as entries."""
        with self._moving:
            with self._lock:
                old = self._in_hand = self._emit().batches
            is_worth_it = len(old) > 1  # one batch has each group once
            kept = (self._memory.combine(old, self.schema, self._key),) if is_worth_it else old
            with self._lock:
                for batch in kept:
                    self._hold(batch)
                self._in_hand = ()
            if is_worth_it:
                self._memory.drop(old)

    @property
    def can_lose_rows(self) -> bool:
        """Whether rows of micro-batches that Spark has committed may be in memory only."""
        return self.max_entries is not None and self.max_entries < inf

    @property
    def is_full(self) -> bool:
        """Whether memory holds as many groups as it may."""
        with self._lock:
            waiting = sum(record.value.rows for record in self._output.records)
            return self.max_entries is not None and waiting >= self.max_entries

    @property
    def _has_many_batches(self) -> bool:
        with self._lock:
            return self.can_lose_rows and len(self._output.records) >= _MOST_BATCHES

    # The flush thread.

    def take(self) -> FlushInput:
        """Take what is in the buffer now, oldest first; it counts as buffered until `flushed`."""
        with self._moving, self._lock:
            taken = self._emit()
            self._in_flight = taken.batches
            return taken

    def _emit(self) -> FlushInput:
        self._output.flush()
        batches = tuple(element.value for element in self._emitted if isinstance(element, Record))
        watermarks = [element.timestamp for element in self._emitted if isinstance(element, Watermark)]
        arrivals = [element.marked_at for element in self._emitted if isinstance(element, LatencyMarker)]
        self._emitted.clear()
        return FlushInput(batches, max(watermarks, default=None), min(arrivals, default=0.0))

    def rows(self, spark: SparkSession, batches: Sequence[BufferedBatch]) -> DataFrame:
        """Return all rows of `batches`; see `Buffer.rows`."""
        buffer = self._memory if batches[-1].held is not None else self._durable
        return buffer.rows(spark, batches, self.schema)

    def latest_rows(self, spark: SparkSession, batches: Sequence[BufferedBatch]) -> DataFrame:
        """Return the newest row of each group in `batches`."""
        return latest_rows(self.rows(spark, batches), len(batches), self._key)

    def quarantine(self, spark: SparkSession, spec: FlowSpec, batches: Sequence[BufferedBatch]) -> None:
        """Bring the rows of `batches` that are to be quarantined into the tables for them, each once."""
        self._durable.quarantine(spark, spec, batches)

    def flushed(self, batches: Sequence[BufferedBatch]) -> None:
        """Drop batches that are in the table now."""
        with self._lock:
            self._in_flight = ()
        self._memory.drop([batch for batch in batches if batch.held is not None])
        self._durable.drop([batch for batch in batches if batch.held is None])

    # Any thread.

    @property
    def batches(self) -> list[BufferedBatch]:
        """All that is buffered, including what a flush has taken."""
        with self._lock:
            return [*self._in_flight, *self._in_hand, *(record.value for record in self._output.records)]

    @property
    def has_any(self) -> bool:
        """Whether anything is buffered."""
        return bool(self.batches)

    def oldest_arrival(self, is_waiting: bool = False) -> float | None:
        """Return when the oldest batch arrived, in monotonic seconds; with `is_waiting`, the oldest not taken by a flush."""
        if is_waiting:
            with self._lock:
                return self._output.oldest_mark
        return min((batch.arrived for batch in self.batches), default=None)
