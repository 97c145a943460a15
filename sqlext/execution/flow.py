"""One flow in this process: a streaming query, its buffer, its flushes.

Three threads meet here. Statements call `start`, `stop`, `flush` and `wait`; Spark's stream thread calls `_on_batch`; the flush
thread calls `_flush`. The host's ticker calls `tick`. One lock guards what they share.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from sqlext import jvm
from sqlext.clock import Clock
from sqlext.errors import FlowError, WaitTimeoutError
from sqlext.execution import target
from sqlext.execution.buffer import BufferedBatch, DurableBuffer
from sqlext.execution.flush import Flusher, FlushPolicy, FlushReason
from sqlext.execution.spec import FlowSpec
from sqlext.jvm import HadoopPath
from sqlext.options import CHECKPOINT_INTERVAL, FLUSH_MAX_INTERVAL, Options
from sqlext.plan import OutputMode

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT = 600.0
"""Seconds a statement or a full buffer waits for one flush."""
_FENCE_FILE = "epoch"
_PROGRESS_SECONDS = 0.5  # how often Spark's progress is read; it is a large JSON


class FlowPhase(StrEnum):
    """Where a flow of this process is in its life."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    FENCED = "FENCED"


@dataclass(frozen=True)
class FlowProgress:
    """What a flow has done since it started here.

    Attributes:
        micro_batches, rows_in: of its input.
        buffered_batches, buffered_rows, oldest_arrival: waiting in the buffer.
        flushes, rows_flushed: commits on the target, and the changed groups or new rows in them.
        last_flush, last_reason, last_flush_seconds: of the newest commit.
        watermark: event time up to which input is complete, as Spark reports it.
    """

    micro_batches: int = 0
    rows_in: int = 0
    buffered_batches: int = 0
    buffered_rows: int = 0
    oldest_arrival: datetime | None = None
    flushes: int = 0
    rows_flushed: int = 0
    last_flush: datetime | None = None
    last_reason: str = ""
    last_flush_seconds: float = 0.0
    watermark: str | None = None


class _StopAtBoundary(Exception):  # noqa: N818  # not an error: it ends the query before a micro-batch has begun
    pass


class Flow:
    """Runs one flow.

    Args:
        spec: what it is.
        options: its options, resolved.
        epoch: this driver's; a flow that another driver has taken has a higher one.
        home: the flow's folder.
        session: the flow's own; nobody else uses it.
        clock: measures intervals.
    """

    def __init__(
        self, spec: FlowSpec, options: Options, epoch: int, home: HadoopPath, session: SparkSession, clock: Clock
    ) -> None:
        self.spec = spec
        self.options = options
        self.epoch = epoch
        self._home = home
        self.session = session
        self._flush_session = jvm.clone_session(session)  # a MERGE takes its transaction from its session's settings
        self._clock = clock
        interval = None if spec.not_idempotent_because else options[FLUSH_MAX_INTERVAL]
        self._policy = FlushPolicy(interval)
        self._buffer = DurableBuffer(home.child("buffer"))
        self._lock = threading.Lock()
        self._buffered: dict[int, BufferedBatch] = {}
        self._flushing_through = -1  # the last micro-batch of the newest flush, done or not
        self._progress = FlowProgress()
        self._phase = FlowPhase.STARTING
        self._error: BaseException | None = None
        self._stopping = False
        self._quiet_since: float | None = None
        self._last_batch_seen = -1
        self._last_report = ""
        self._progress_read = float("-inf")
        self._committed = -1
        self._query: StreamingQuery | None = None
        self._schema = StructType()
        self._flusher = Flusher(spec.name, self._flush, self._fail)

    # What statements call.

    def start(self) -> None:
        """Flush what an earlier driver left in the buffer, then start the query.

        Raises:
            SqlextError, PySparkException: it cannot start; nothing runs then.
        """
        try:
            target.check_same_table(self.session, self.spec)
            self._home.make()
            self._home.child(_FENCE_FILE).write_text(str(self.epoch))
            frame = self.session.sql(self.spec.sql)
            self._schema = target.in_target_columns(frame, self.spec).schema
            self._recover()
            self._query = self._start_query(frame)
        except BaseException:
            self._flusher.close(FLUSH_TIMEOUT)
            raise
        self._set_phase(FlowPhase.RUNNING)
        logger.info("flow %s: started, epoch %d, target %s", self.spec.name, self.epoch, ".".join(self.spec.target))

    def stop(self) -> None:
        """Stop the query, flush what is buffered, end the threads. A micro-batch in progress is repeated on the next start."""
        self._stopping = True
        self._stop_query()
        if self._phase is FlowPhase.RUNNING and self._has_buffered():
            self._flusher.wait(self._flusher.ask(FlushReason.STOP), FLUSH_TIMEOUT)
        ended = self._flusher.close(FLUSH_TIMEOUT)
        if self._phase is FlowPhase.RUNNING:
            self._set_phase(FlowPhase.STOPPED)
        if not ended:
            raise WaitTimeoutError(f"The last flush of flow `{self.spec.name}` still runs after {FLUSH_TIMEOUT:.0f} s.")
        logger.info("flow %s: %s", self.spec.name, self._phase.lower())

    def flush(self) -> None:
        """Flush what is buffered now, and wait for it.

        Raises:
            FlowError: the flow has failed, or fails in this flush.
            WaitTimeoutError: it takes longer than `FLUSH_TIMEOUT`.
        """
        if self._has_buffered() and not self._flusher.wait(self._flusher.ask(FlushReason.COMMAND), FLUSH_TIMEOUT):
            raise WaitTimeoutError(f"The flush of flow `{self.spec.name}` takes longer than {FLUSH_TIMEOUT:.0f} s.")
        self._raise_if_failed()

    def wait(self, timeout: timedelta) -> None:
        """Return when all that had arrived is in the target.

        Raises:
            FlowError: the flow has failed, or fails meanwhile.
            WaitTimeoutError: at the deadline.
        """
        query = self._query
        if query is not None and self._phase is FlowPhase.RUNNING:
            waiter = threading.Thread(target=self._process_all, args=(query,), name=f"sqlext-wait-{self.spec.name}", daemon=True)
            waiter.start()
            waiter.join(timeout.total_seconds())
            if waiter.is_alive():
                raise WaitTimeoutError(
                    f"Flow `{self.spec.name}` has not caught up after {timeout.total_seconds():.0f} s. It goes on; wait longer "
                    "with WAIT FLOW .. TIMEOUT 1 hour."
                )
            self._read_progress(query)
        self.tick()
        self._raise_if_failed()
        self.flush()

    def status(self) -> tuple[FlowPhase, FlowProgress, str]:
        """Its phase, its progress, and its error's message."""
        with self._lock:
            batches = [self._buffered[batch] for batch in sorted(self._buffered)]
            waited = self._clock.monotonic() - batches[0].arrived if batches else 0.0
            progress = replace(
                self._progress,
                buffered_batches=len(batches),
                buffered_rows=sum(max(batch.rows, 0) for batch in batches),
                oldest_arrival=self._clock.now() - timedelta(seconds=waited) if batches else None,
            )
            return self._phase, progress, _message(self._error) if self._error else ""

    # What the host's ticker calls.

    def tick(self) -> None:
        """Look at the query, and ask for a flush when one is due."""
        query = self._query
        if self._phase is not FlowPhase.RUNNING or query is None or self._stopping:
            return
        if not query.isActive:
            self._fail(self._error or query.exception() or FlowError("The streaming query ended by itself."))
            return
        now = self._clock.monotonic()
        if now - self._progress_read >= _PROGRESS_SECONDS:
            self._progress_read = now
            self._read_progress(query)
        status = query.status
        is_quiet = not status["isDataAvailable"] and not status["isTriggerActive"]
        with self._lock:
            self._quiet_since = (self._quiet_since or now) if is_quiet else None
            oldest = min((batch.arrived for batch in self._buffered.values()), default=None)
            reason = self._policy.due(now, oldest, self._quiet_since)
        if reason is not None and not self._flusher.is_busy:
            self._flusher.ask(reason)

    # Spark's stream thread.

    def _start_query(self, frame: DataFrame) -> StreamingQuery:
        writer = (
            frame.writeStream.outputMode(self.spec.output_mode.value)
            .queryName(f"sqlext-{self.spec.name}-{self.spec.id}-{self.epoch}")
            .option("checkpointLocation", self._home.child("checkpoint").location)
            .foreachBatch(self._on_batch)
        )
        interval = self.options[CHECKPOINT_INTERVAL]
        if interval:
            writer = writer.trigger(processingTime=f"{interval // timedelta(milliseconds=1)} milliseconds")
        return writer.start()

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Take a micro-batch. Nothing of it has run yet: plans are lazy."""
        if self._stopping:
            raise _StopAtBoundary
        try:
            rows = target.in_target_columns(frame, self.spec)
            if self.spec.output_mode is OutputMode.APPEND:
                self._append(rows, batch)
            else:
                self._take_into_buffer(rows, batch)
        except Exception as error:
            if not self._stopping:
                self._error = self._error or error  # Spark would only pass on a Python traceback as text
            raise

    def _append(self, rows: DataFrame, batch: int) -> None:
        if batch <= self._committed:
            rows.write.format("noop").mode("overwrite").save()  # it is in the target; only Spark's state must come along
            return
        self._check_fence()
        started = self._clock.monotonic()
        info = self._commit_info(batch, batch, -1, FlushReason.MICRO_BATCH, None)
        target.append(self.spec, rows, info)
        self._note_flush(FlushReason.MICRO_BATCH, 0, started)

    def _take_into_buffer(self, rows: DataFrame, batch: int) -> None:
        count = self._buffer.write(rows, batch)
        if count == 0 or batch <= self._committed:
            # Without rows a micro-batch only moves the watermark; one that is in the target already, and that Spark repeats
            # after a crash, only brings Spark's state up to date. An empty buffer commits nothing.
            self._buffer.drop(batch)
            return
        with self._lock:
            self._buffered[batch] = BufferedBatch(batch, count, self._clock.monotonic())
            oldest = min((each.arrived for each in self._buffered.values() if each.batch > self._flushing_through), default=None)
            is_due = self._policy.due(self._clock.monotonic(), oldest, None) is not None
        if self._policy.max_interval is None:
            self._wait_for_flush(self._flusher.ask(FlushReason.MICRO_BATCH))
        elif is_due and self._flusher.is_busy:  # the next flush is due and the last one still runs: hold the stream back
            self._wait_for_flush(self._flusher.ask(FlushReason.INTERVAL))

    def _wait_for_flush(self, ticket: int) -> None:
        if not self._flusher.wait(ticket, FLUSH_TIMEOUT):
            raise WaitTimeoutError(f"A flush of flow `{self.spec.name}` takes longer than {FLUSH_TIMEOUT:.0f} s.")
        if self._flusher.error is not None:
            raise self._flusher.error

    # The flush thread.

    def _flush(self, reason: FlushReason) -> None:
        with self._lock:
            batches = [self._buffered[batch] for batch in sorted(self._buffered)]
            self._flushing_through = max(self._buffered, default=-1)
        if not batches:
            return
        self._check_fence()
        started = self._clock.monotonic()
        rows = sum(max(batch.rows, 0) for batch in batches)
        first, last = batches[0].batch, batches[-1].batch
        latest = self._buffer.latest_rows(self._flush_session, [b.batch for b in batches], self._schema, self.spec.key)
        arrival = self._clock.now() - timedelta(seconds=started - batches[0].arrived)
        target.merge(self._flush_session, self.spec, latest, self._commit_info(first, last, rows, reason, arrival))
        with self._lock:
            self._committed = last
            for batch in batches:
                del self._buffered[batch.batch]
        self._buffer.drop_through(last)
        self._note_flush(reason, rows, started)

    def _recover(self) -> None:
        """Flush what is buffered and not committed; drop what is committed and not yet cleaned up."""
        committed = jvm.last_txn_version(self.session, self.spec.target_location, self.spec.id)
        if committed is not None:
            self._committed = committed
            self._buffer.drop_through(committed)
        now = self._clock.monotonic()
        self._buffered = {batch: BufferedBatch(batch, -1, now) for batch in self._buffer.complete_batches()}
        if self._buffered:
            logger.info("flow %s: flushing %d micro-batches left by an earlier driver", self.spec.name, len(self._buffered))
            self._wait_for_flush(self._flusher.ask(FlushReason.RECOVERY))

    # Shared.

    def _commit_info(self, first: int, last: int, rows: int, reason: FlushReason, arrival: datetime | None) -> target.CommitInfo:
        spec = self.spec
        return target.CommitInfo(
            spec.name, spec.id, self.epoch, first, last, rows, reason.value, self._progress.watermark, arrival
        )

    def _check_fence(self) -> None:
        """Another driver that has taken the flow has written a higher epoch."""
        current = int(self._home.child(_FENCE_FILE).read_text())
        if current != self.epoch:
            raise _FencedError(
                f"Another driver has taken over flow `{self.spec.name}` (epoch {current}, this one has {self.epoch}). "
                "It stops here."
            )

    def _note_flush(self, reason: FlushReason, rows: int, started: float) -> None:
        seconds = self._clock.monotonic() - started
        with self._lock:
            self._progress = replace(
                self._progress,
                flushes=self._progress.flushes + 1,
                rows_flushed=self._progress.rows_flushed + rows,
                last_flush=self._clock.now(),
                last_reason=reason.value,
                last_flush_seconds=seconds,
            )
        logger.info("flow %s: flushed %d rows in %.1f s (%s)", self.spec.name, rows, seconds, reason.value)

    def _read_progress(self, query: StreamingQuery) -> None:
        newest: Any = query.lastProgress
        if newest is None or newest.timestamp == self._last_report:
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

    def _process_all(self, query: StreamingQuery) -> None:
        try:
            query.processAllAvailable()
        except Exception:  # the query failed: `wait` reports it from the query itself
            logger.debug("flow %s: ended while it was waited for", self.spec.name, exc_info=True)

    def _has_buffered(self) -> bool:
        with self._lock:
            return bool(self._buffered)

    def _fail(self, error: BaseException) -> None:
        """The flow has failed: note the cause, and stop what still runs. Called on the flush thread or the ticker."""
        with self._lock:
            if self._phase in (FlowPhase.FAILED, FlowPhase.FENCED):
                return
            self._error = error
            self._phase = FlowPhase.FENCED if isinstance(error, _FencedError) else FlowPhase.FAILED
            self._stopping = True
        logger.error("flow %s: %s: %s", self.spec.name, self._phase.lower(), _message(error))
        threading.Thread(target=self._stop_query, name=f"sqlext-end-{self.spec.name}", daemon=True).start()

    def _stop_query(self) -> None:
        query = self._query
        try:
            if query is not None and query.isActive:
                query.stop()
        except target.SPARK_ERRORS as error:
            logger.warning("flow %s: its query did not stop: %s", self.spec.name, jvm.reason_of(error))

    def _raise_if_failed(self) -> None:
        if self._phase in (FlowPhase.FAILED, FlowPhase.FENCED):
            raise FlowError(f"Flow `{self.spec.name}` has failed: {_message(self._error) if self._error else ''}")

    def _set_phase(self, phase: FlowPhase) -> None:
        with self._lock:
            self._phase = phase


class _FencedError(FlowError):
    """Another driver runs the flow now."""


def _message(error: BaseException) -> str:
    text = jvm.reason_of(error)
    return text.split("terminated with exception:", 1)[-1].strip()
