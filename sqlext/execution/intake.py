"""One streaming query of a flow, and the buffer its micro-batches go into.

Spark's stream thread calls `_on_batch`; the flush thread calls `take` and `flushed`; statements and the ticker call the rest.
`_lock` guards what they share and is held for moments only; `_moving` is held by whoever takes batches out of the buffer, and so
makes a flush wait for a combination.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from sqlext import jvm
from sqlext.clock import Clock
from sqlext.errors import FlowError, WaitTimeoutError
from sqlext.execution import target
from sqlext.execution.buffer import BufferedBatch, DurableBuffer, MemoryBuffer
from sqlext.execution.buffer_output import BufferOutput, Element, LatencyMarker, Record, Watermark
from sqlext.execution.checkpoint import Checkpoint
from sqlext.execution.spec import StreamSpec
from sqlext.plan import OutputMode
from sqlext.storage import HadoopPath

logger = logging.getLogger(__name__)

_REWIND_TIMEOUT = 600.0  # seconds for the one micro-batch that brings all groups back
_POLL_SECONDS = 0.05
_NEVER = -1


@dataclass(frozen=True)
class IntakeProgress:
    """What an intake has taken since it started here: of its input, and what waits in its buffer."""

    micro_batches: int = 0
    rows_in: int = 0
    buffered_batches: int = 0
    buffered_rows: int = 0
    oldest_arrival: float | None = None
    watermark: str | None = None


@dataclass(frozen=True)
class Taken:
    """What a flush takes out of a buffer.

    Attributes:
        batches: oldest first.
        watermark: the latest that came with them, in seconds since 1970.
        arrived: the clock's monotonic time of the oldest, in seconds.
    """

    batches: tuple[BufferedBatch, ...]
    watermark: float | None
    arrived: float


class StopAtBoundary(Exception):  # noqa: N818  # not an error: it ends the query before a micro-batch has begun
    pass


class _BatchFunction:
    """What Spark calls with each micro-batch, until it is released.

    Java keeps this object as long as the query, and an intake keeps the query: neither collector could ever free either. So an
    intake that is done lets go of both.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function: Callable[[DataFrame, int], None] | None = function

    def __call__(self, frame: DataFrame, batch: int) -> None:
        function = self._function
        if function is None:
            raise StopAtBoundary
        function(frame, batch)

    def release(self) -> None:
        self._function = None


class Intake:
    """See the module's docstring.

    Args:
        name: of the query, for Spark's UI and logs.
        stream: what it runs.
        home: where checkpoint and buffer lie.
        session: the flow's own.
        max_entries: how many groups memory may buffer; None: the buffer is durable.
        clock: measures arrivals.
        check: called on the stream thread before each micro-batch; raises when another driver has the flow.
        taken: called on the stream thread when a micro-batch is in the buffer.
        append: called on the stream thread with a micro-batch of an APPEND query that is not in the target yet.
    """

    def __init__(
        self,
        name: str,
        stream: StreamSpec,
        home: HadoopPath,
        session: SparkSession,
        max_entries: int | None,
        clock: Clock,
        check: Callable[[], None],
        taken: Callable[[Intake], None],
        append: Callable[[DataFrame, int], None],
    ) -> None:
        self.name = name
        self.stream = stream
        self.max_entries = max_entries
        self._session = session
        self._clock = clock
        self._check = check
        self._taken = taken
        self._append = append
        self._home = home
        self._checkpoint = Checkpoint(home)
        self._durable = DurableBuffer(home.child("buffer"))
        self._memory = MemoryBuffer()
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._emitted: list[Element] = []
        self._output = BufferOutput(self._emitted.append)  # of micro-batches: row by row it happens in Spark
        self._in_flight: tuple[BufferedBatch, ...] = ()
        self._in_hand: tuple[BufferedBatch, ...] = ()
        self._progress = IntakeProgress()
        self._last_batch_seen = _NEVER
        self._last_report = ""
        self._frame: DataFrame | None = None
        self._query: StreamingQuery | None = None
        self._batch_function: _BatchFunction | None = None
        self.schema = StructType()
        self.committed = _NEVER
        self.rewinding_to: int | None = None
        self.stopping = False
        self.error: Exception | None = None

    # Start and stop.

    def open(self, committed: int | None) -> None:
        """Analyse the query, and find what an earlier driver left in the durable buffer.

        Args:
            committed: the last micro-batch that is in the table.
        """
        self._frame = self._session.sql(self.stream.sql)
        self.schema = target.in_target_columns(self._frame, self.stream.columns, self.stream.has_qualifies).schema
        if committed is not None:
            self.committed = committed
            self._durable.drop_through(committed)
        now = self._clock.monotonic()
        for batch in self._durable.complete_batches():
            self._hold(BufferedBatch(batch, batch, -1, now))

    def rewind(self) -> None:
        """Get rows back that a memory-only buffer lost with its process or an executor.

        The newest micro-batch is run once more, in complete mode: Spark hands over every group from its state store.

        Raises:
            FlowError: the query failed meanwhile.
            WaitTimeoutError: at the deadline.
        """
        self.rewinding_to = self._checkpoint.rewind(self.committed)
        if self.rewinding_to is not None:
            logger.info("flow %s: running micro-batch %d again for all groups", self.name, self.rewinding_to)
            self._query = self._start_query(OutputMode.COMPLETE, None)
            deadline = time.monotonic() + _REWIND_TIMEOUT
            while not self._checkpoint.is_committed(self.rewinding_to):
                has_ended = not self._query.isActive  # before the next look: it ends itself right after the commit
                if has_ended and not self._checkpoint.is_committed(self.rewinding_to):
                    raise self.error or FlowError(jvm.reason_of(self._query.exception() or FlowError("The query ended.")))
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"Flow `{self.name}` has not got its groups back after {_REWIND_TIMEOUT:.0f} s.")
                time.sleep(_POLL_SECONDS)
            self.stop_query()
            self.rewinding_to = None
        self._checkpoint.note_memory_only(self.max_entries is not None)

    def start(self, interval: timedelta | None) -> None:
        """Start the query; `interval` is the time between micro-batches, None: as data arrives."""
        self._query = self._start_query(self.stream.output_mode, interval)

    def stop_query(self) -> None:
        """End the query. A micro-batch in progress is repeated on the next start."""
        query = self._query
        try:
            if query is not None and query.isActive:
                query.stop()
        except target.SPARK_ERRORS as error:
            logger.warning("flow %s: its query did not stop: %s", self.name, jvm.reason_of(error))

    def release(self) -> None:
        """Let go of the query, which has ended."""
        if self._batch_function is not None:
            self._batch_function.release()
        self._query = self._frame = self._batch_function = None

    def note_all_flushed(self) -> None:
        """After a clean stop: nothing up to the newest micro-batch needs to be brought back."""
        if self.max_entries is not None and not self.has_buffered:
            self._checkpoint.note_flushed()

    def _start_query(self, mode: OutputMode, interval: timedelta | None) -> StreamingQuery:
        if self._frame is None:
            raise AssertionError("open() comes first")
        self._batch_function = _BatchFunction(self._on_batch)
        writer = (
            self._frame.writeStream.outputMode(mode.value)
            .queryName(self.name)
            .option("checkpointLocation", self._checkpoint.location)
            .foreachBatch(self._batch_function)
        )
        if interval:
            writer = writer.trigger(processingTime=f"{interval // timedelta(milliseconds=1)} milliseconds")
        with jvm.outside_of_any_query(self._session):
            return writer.start()

    # Spark's stream thread.

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Take a micro-batch. Nothing of it has run yet: plans are lazy."""
        if self.stopping or (self.rewinding_to is not None and batch > self.rewinding_to):
            raise StopAtBoundary
        try:
            self._check()
            rows = target.in_target_columns(frame, self.stream.columns, self.stream.has_qualifies)
            if batch <= self.committed:
                # It is in the table already, and Spark repeats it after a crash: only Spark's state must come along.
                rows.write.format("noop").mode("overwrite").save()
            elif self.stream.output_mode is OutputMode.APPEND:
                self._append(rows, batch)
                self.committed = batch
            else:
                self._take_in(rows, batch)
        except Exception as error:
            if not self.stopping:
                self.error = self.error or error  # Spark would only pass on a Python traceback as text
            raise

    def _take_in(self, rows: DataFrame, batch: int) -> None:
        buffer = self._durable if self.max_entries is None else self._memory
        taken = buffer.write(rows, batch, self._clock.monotonic(), self.stream.key)
        if taken.rows == 0:  # it only moves the watermark; an empty buffer commits nothing
            buffer.drop([taken])
            return
        with self._lock:
            self._hold(taken)
        if self.is_full:
            self._combine()
        self._taken(self)

    def _hold(self, batch: BufferedBatch) -> None:
        self._output.collect(Record(batch.last, batch))
        self._output.emit_latency_marker(LatencyMarker(self.name, batch.arrived))
        if self._progress.watermark is not None:
            self._output.emit_watermark(Watermark(_seconds(self._progress.watermark)))

    def _combine(self) -> None:
        """Several batches may change the same groups; entries that count are distinct ones."""
        with self._moving:
            with self._lock:
                old = self._in_hand = self._emit().batches
            is_worth_it = len(old) > 1  # one batch has each group once
            kept = (self._memory.combine(old, self.schema, self.stream.key),) if is_worth_it else old
            with self._lock:
                for batch in kept:
                    self._hold(batch)
                self._in_hand = ()
            if is_worth_it:
                self._memory.drop(old)

    @property
    def is_full(self) -> bool:
        """Whether memory holds as many groups as it may."""
        with self._lock:
            return self.max_entries is not None and self._waiting_rows() >= self.max_entries

    def _waiting_rows(self) -> int:
        return sum(record.value.rows for record in self._output.records)

    # The flush thread.

    def take(self) -> Taken:
        """What is in the buffer now, oldest first; it counts as buffered until `flushed`."""
        with self._moving, self._lock:
            taken = self._emit()
            self._in_flight = taken.batches
            return taken

    def _emit(self) -> Taken:
        self._output.flush()
        batches = tuple(element.value for element in self._emitted if isinstance(element, Record))
        watermarks = [element.timestamp for element in self._emitted if isinstance(element, Watermark)]
        arrivals = [element.marked_at for element in self._emitted if isinstance(element, LatencyMarker)]
        self._emitted.clear()
        return Taken(batches, max(watermarks, default=None), min(arrivals, default=0.0))

    def latest_rows(self, spark: SparkSession, batches: Sequence[BufferedBatch]) -> DataFrame:
        """Of every group in `batches` its newest row."""
        buffer = self._memory if batches[-1].held is not None else self._durable
        return buffer.latest_rows(spark, batches, self.schema, self.stream.key)

    def flushed(self, batches: Sequence[BufferedBatch]) -> None:
        """They are in the table."""
        with self._lock:
            self.committed = batches[-1].last
            self._in_flight = ()
        self._memory.drop([batch for batch in batches if batch.held is not None])
        self._durable.drop([batch for batch in batches if batch.held is None])

    # Anybody.

    def _buffered(self) -> list[BufferedBatch]:
        return [*self._in_flight, *self._in_hand, *(record.value for record in self._output.records)]

    @property
    def has_buffered(self) -> bool:
        with self._lock:
            return bool(self._buffered())

    def oldest_arrival(self, is_waiting: bool = False) -> float | None:
        """When the oldest batch in the buffer arrived; with `is_waiting`, of those that no flush has taken yet."""
        with self._lock:
            if is_waiting:
                return self._output.oldest_mark
            return min((batch.arrived for batch in self._buffered()), default=None)

    @property
    def watermark(self) -> float | None:
        """The newest that Spark has reported, in seconds since 1970."""
        with self._lock:
            return _seconds(self._progress.watermark) if self._progress.watermark else None

    @property
    def query(self) -> StreamingQuery | None:
        return self._query

    @property
    def is_quiet(self) -> bool:
        """Whether no input is available.

        A trigger that only looks for some is no input: where looking is slow, one is active most of the time.
        """
        query = self._query  # another thread may let go of it
        status: Any = query.status if query is not None else {}
        return bool(status) and not status["isDataAvailable"]

    def progress(self) -> IntakeProgress:
        with self._lock:
            buffered = self._buffered()
            return replace(
                self._progress,
                buffered_batches=sum(batch.last - batch.first + 1 for batch in buffered),
                buffered_rows=sum(max(batch.rows, 0) for batch in buffered),
                oldest_arrival=min((batch.arrived for batch in buffered), default=None),
            )

    def process_all(self) -> None:
        """Return when all that has arrived was taken in; a query that fails meanwhile tells so itself."""
        try:
            query = self._query
            if query is not None:
                query.processAllAvailable()
        except Exception:  # Spark and Py4J raise many kinds here, all of them told by `query.exception()`
            logger.debug("flow %s: ended while it was waited for", self.name, exc_info=True)

    def read_progress(self) -> None:
        """Ask Spark what the query has done."""
        query = self._query
        newest: Any = query.lastProgress if query is not None else None
        if query is None or newest is None or newest.timestamp == self._last_report:
            return
        recent = query.recentProgress
        with self._lock:
            self._last_report = newest.timestamp
            # an idle query reports under the number of the batch that is still to come
            fresh = [p for p in recent if p.batchId > self._last_batch_seen and p.numInputRows]
            self._last_batch_seen = max((p.batchId for p in fresh), default=self._last_batch_seen)
            self._progress = replace(
                self._progress,
                micro_batches=self._progress.micro_batches + len({p.batchId for p in fresh}),
                rows_in=self._progress.rows_in + sum(p.numInputRows for p in fresh),
                watermark=newest.eventTime.get("watermark", self._progress.watermark),
            )


def _seconds(timestamp: str) -> float:
    """A watermark as Spark's progress writes it, in seconds since 1970."""
    return datetime.fromisoformat(timestamp).timestamp()
