"""One streaming query of a flow: where it is in its input, and what happens to each of its micro-batches.

Spark's stream thread calls `_on_batch`; statements and the ticker call the rest. `_lock` guards what is told of the progress;
`_starting` is held while the query starts: a stop waits for that, or it would leave a query that starts after it.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from sqlext.clock import Clock, at_text
from sqlext.errors import FlowError, SchemaError
from sqlext.execution.delta import target
from sqlext.execution.flows.file_columns import FileColumns
from sqlext.execution.flows.intake_settings import IntakeSettings
from sqlext.execution.flows.source_changes import check_columns
from sqlext.execution.flows.work import Work
from sqlext.execution.state.aggregate_shape import has_state
from sqlext.execution.state.delta_state import Expiry
from sqlext.execution.state.intake_buffer import IntakeBuffer
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.execution.streaming import queries, streams
from sqlext.execution.streaming.arrival_wait import ArrivalWait
from sqlext.execution.streaming.checkpoint import Checkpoint
from sqlext.execution.streaming.hybrid import RunningHybrid
from sqlext.execution.streaming.lateness import Lateness
from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.execution.streaming.positions import DeltaOffset
from sqlext.execution.streaming.running_query import RunningQuery, StopAtBoundary
from sqlext.logs import carried
from sqlext.moments import Moment, announce
from sqlext.plan.constraints import OF_ERRORS
from sqlext.plan.flow_spec import StateBackend, StreamSpec
from sqlext.plan.job_graph import OutputMode
from sqlext.spark import failures
from sqlext.spark.jvm import analysed_plan
from sqlext.spark.state_size import StateSize
from sqlext.spark.varying import with_moments_in_input

logger = logging.getLogger(__name__)

_NEVER = -1
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)  # no group was touched before it


@dataclass(frozen=True)
class IntakeProgress:
    """What an intake has taken since it started here: of its input, and what waits in its buffer."""

    micro_batches: int = 0
    rows_in: int = 0
    buffered_batches: int = 0
    buffered_rows: int = 0
    oldest_arrival: float | None = None
    watermark: str | None = None
    state: StateSize | None = None


class BatchListener(Protocol):
    """What a flow does about the micro-batches of its queries; called on Spark's stream threads."""

    def batch_begins(self) -> None:
        """Raise when another driver has the flow."""

    def batch_buffered(self, intake: Intake) -> None:
        """Note that a micro-batch is in the buffer."""

    def batch_ended(self, intake: Intake, batch: int, seconds: float) -> None:
        """Note that a micro-batch has ended after so many seconds."""


class Intake:
    """See the module's docstring.

    Args:
        stream: what it runs.
        session: the flow's own.
        clock: measures arrivals.
        listener: the flow.
    """

    def __init__(
        self, stream: StreamSpec, settings: IntakeSettings, session: SparkSession, clock: Clock, listener: BatchListener
    ) -> None:
        self.name = settings.name
        self.stream = stream
        self.session = session
        self._settings = settings
        self._clock = clock
        self._listener = listener
        hybrid, home = settings.hybrid, settings.home
        self.checkpoint = Checkpoint(home)
        self.hybrid = None if hybrid is None else RunningHybrid(session, hybrid, self.checkpoint, home)
        self.columns = StructType()  # of the query, with what is noted of them, such as CHAR(n)
        self.aggregate: MergeableAggregate | None = None  # whose state a Delta table holds
        self.buffer = IntakeBuffer(
            self.name, home.child("buffer"), settings.max_entries, clock, settings.epoch, settings.staged_in, settings.checks
        )
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._progress = IntakeProgress()
        self._last_batch_seen = _NEVER
        self._last_report = ""
        self._files: FileColumns | None = None  # whose columns become more
        self.lateness: Lateness | None = None  # if late rows are left out here; else Spark does it, or none are
        self._running: RunningQuery | None = None
        self.committed = _NEVER
        self._stored = _NEVER  # what is repeated of it may have no rows any more, and has groups to be shown all the same
        self.rewinding_to: int | None = None
        self.stopping = False
        self.error: Exception | None = None

    # Start and stop.

    def open(self, committed: int | None, stored: int | None) -> None:
        """Analyse the query, and find what an earlier driver left in the buffer.

        Args:
            committed: the last micro-batch that is in the table.
            stored: the last micro-batch that is in a state beside the table.
        """
        self._stored = _NEVER if stored is None else stored
        if self.hybrid is not None:
            self.hybrid.find_part()
        frame = self._analyse()
        if committed is not None:
            self.committed = committed
        if self.aggregate is not None:
            self.lateness = Lateness(self.session, self.checkpoint) if self.aggregate.event_time is not None else None
            self.buffer.open(self.aggregate.buffered, self.aggregate.key, committed)
            return
        rows = target.in_target_columns(frame, self.stream.columns, self.stream.has_qualifies).drop(*OF_ERRORS)
        self.buffer.open(rows.schema, self.stream.key, committed)

    def rewind(self, work: Work) -> None:
        """Get rows back that a memory-only buffer lost with its process or an executor.

        The newest micro-batch is run once more, in complete mode: Spark hands over every group from its state store.

        Args:
            work: watches whether that makes progress.

        Raises:
            FlowError: the query failed meanwhile, or was stopped.
            WaitTimeoutError: it does not get on.
        """
        self.rewinding_to = self.checkpoint.rewind(self.committed)
        if self.rewinding_to is not None:
            announce(Moment.REWIND_BEGUN, self._settings.flow)
            logger.info("flow %s: running micro-batch %d again for all groups", self.name, self.rewinding_to)
            self._start(OutputMode.COMPLETE, Pace(Phase.LIVE))
            work.wait(partial(self._has_rewound, self.rewinding_to), "Getting back the groups")
            self.stop_query()
            self.rewinding_to = None
        self.checkpoint.note_memory_only(self.buffer.can_lose_rows)

    def _has_rewound(self, batch: int, seconds: float) -> bool:
        has_ended = self.has_ended  # before the look: it ends itself right after the commit
        if self.checkpoint.is_committed(batch):
            return True
        if has_ended:
            raise self.error or FlowError(failures.reason_of(self.exception() or FlowError("The query ended.")))
        time.sleep(seconds)
        return False

    def _analyse(self) -> DataFrame:
        if self.hybrid is not None:
            self.hybrid.show()
        self._files = FileColumns(self.session, self.stream.sql) if self._settings.grows else None
        sql = self.stream.sql if self._files is None else self._files.sql
        frame = queries.with_unique_names(self.session.sql(sql))
        self.columns = frame.schema
        check_columns(frame, self.stream, self._settings.is_own or not self.stream.writes_target)
        if self.stream.state_backend is StateBackend.DELTA:
            ttl = self.stream.ttl
            self.aggregate = MergeableAggregate(frame, counts_rows=ttl is not None and ttl.keeps_rows)
            if self.aggregate.fingerprint != self.stream.state_fingerprint:
                raise SchemaError(
                    "What is stored of this query's aggregate cannot be read any more: Spark or the query's tables have changed. "
                    "REFRESH STREAMING TABLE .. FULL recomputes its table."
                )
            frame = self.aggregate.input
        elif self.stream.output_mode is OutputMode.UPDATE:
            frame = with_moments_in_input(frame)
        elif self._settings.checks is not None:
            frame = self._settings.checks.caught(frame, self.stream.columns)
        if self.hybrid is not None:
            frame = self.hybrid.named(frame)
        is_history, on_batch = self.hybrid is not None and not self.hybrid.is_last, carried(self._on_batch)
        location, takes_all = self.checkpoint.location, self._settings.takes_all
        self._running = RunningQuery(self.name, frame, location, on_batch, is_history, takes_all)
        return frame

    def start(self, pace: Pace) -> None:
        """Start the query, unless it is to stop."""
        with self._starting:
            if not self.stopping:
                self._start(self.stream.output_mode if self.aggregate is None else OutputMode.APPEND, pace)

    def _start(self, mode: OutputMode, pace: Pace) -> None:
        with nullcontext() if self.hybrid is None else self.hybrid.offsets_by_name():
            self.running.start(mode, pace)

    def next_part(self) -> None:
        """Turn to the next relation of the hybrid source; `start` begins to read it.

        Raises:
            UnsupportedError: it is not known where that one begins.
        """
        if self.hybrid is None:
            raise AssertionError("only a hybrid source has parts")
        self.read_progress()  # of the query that is let go of
        ended = self.running
        self.hybrid.advance()
        self._analyse()
        ended.release()

    @property
    def has_ended_part(self) -> bool:
        """Whether a relation of the hybrid source was read to its end, and another one follows."""
        running = self._running
        return running is not None and running.has_reached_end and not self.stopping and self.rewinding_to is None

    def stop_query(self) -> None:
        """End the query. A micro-batch in progress is repeated on the next start."""
        with suppress(*failures.SPARK_ERRORS):  # Spark itself may have been stopped
            self._note_rest()
        with self._starting:
            running = self._running
        if running is not None:
            running.stop()

    def _note_rest(self) -> None:
        query = self.query
        if query is not None and self.lateness is not None:
            self.lateness.note_rest(query)

    def release(self) -> None:
        """Let go of the query, which has ended."""
        if self._running is not None:
            self._running.release()
            self._running = None

    def read_versions(self, batch: int) -> dict[str, tuple[str, int | None]] | None:
        """Return how far a micro-batch has brought the query in its tables.

        Returns:
            By the table's location, its id and the version whose content was read; None in its place: a part of one was. None
            altogether: the query reads more than streams of Delta tables.
        """
        tables = None if self._running is None or self.hybrid is not None else self._running.delta_tables
        if tables is None:
            return None
        offsets = self.checkpoint.planned(batch).offsets
        nothing = DeltaOffset("", 0, 0, is_starting=True)
        found: dict[str, tuple[str, int | None]] = {}
        for name, location in tables.items():
            written = offsets.get(name)
            offset = DeltaOffset.parse(written) if written else nothing
            read = (offset.table_id, offset.whole_version)
            # Two streams over one table may have read it up to different versions: it was read as none of them.
            found[location] = read if found.get(location, read) == read else (read[0] or found[location][0], None)
        return found

    def expiry(self, first: int, last: int) -> Expiry | None:
        """Return which groups end when micro-batches are flushed; None: groups have no time to live.

        Args:
            first, last: the first and the last of the micro-batches.
        """
        ttl = self.stream.ttl
        if ttl is None:
            return None
        begun, lived = self.checkpoint.begun(first), timedelta(seconds=ttl.seconds)
        until = begun - lived if lived < begun - _LONG_AGO else _LONG_AGO
        return Expiry(until, self.checkpoint.begun(last), ttl.keeps_rows, ttl.only_deletions)

    def note_flushed(self) -> None:
        """Forget what only the flush of micro-batches needs, which are in the table now."""
        if self.stream.ttl is not None:
            self.checkpoint.forget_begun(self.committed)
        if self.lateness is not None:
            self.lateness.forget_before(self.committed + 1)

    def note_all_flushed(self) -> None:
        """After a clean stop: nothing up to the newest micro-batch needs to be brought back."""
        if self.buffer.can_lose_rows and not self.buffer.has_any:
            self.checkpoint.note_flushed()

    # Spark's stream thread.

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Take a micro-batch. Nothing of it has run yet: plans are lazy."""
        if self.stopping or (self.rewinding_to is not None and batch > self.rewinding_to):
            raise StopAtBoundary
        started = self._clock.monotonic()
        try:
            self._listener.batch_begins()
            announce(Moment.BATCH_BEGUN, self._settings.flow)
            self._note_rest()
            if self.stream.ttl is not None:
                self.checkpoint.note_begun(batch, self._clock.now())
            if self._files is not None and batch > self.committed:
                self._files.look(self.checkpoint, batch)
            rows = self._rows(frame, batch)
            if batch <= self.committed:
                # It is in the table already, and Spark repeats it after a crash: only its state and watermark must come along.
                if self.aggregate is None or self.lateness is not None or has_state(analysed_plan(self.aggregate.input)):
                    rows.write.format("noop").mode("overwrite").save()
            elif self.buffer.write(rows, batch, batch <= self._stored or self._keeps_empty):
                announce(Moment.BATCH_BUFFERED, self._settings.flow)
                self._listener.batch_buffered(self)
            self._listener.batch_ended(self, batch, self._clock.monotonic() - started)
        except Exception as error:
            if not self.stopping:
                self.error = self.error or error  # Spark would only pass on a Python traceback as text
            raise

    @property
    def _keeps_empty(self) -> bool:
        """Whether the next micro-batch is flushed even without rows."""
        tells_versions = self._settings.flushes_empty and self.hybrid is None and self.running.delta_tables is not None
        return tells_versions or (self._settings.flushes_first and self.committed == _NEVER)

    def _rows(self, frame: DataFrame, batch: int) -> DataFrame:
        """Return the rows of a micro-batch that are buffered."""
        if self.aggregate is None:
            return target.in_target_columns(frame, self.stream.columns, self.stream.has_qualifies)
        partials, event_time = self.aggregate.partials(frame), self.aggregate.event_time
        if event_time is None or self.lateness is None:
            return partials
        return event_time.on_time(partials, self.lateness.watermark(batch))

    # Anybody.

    @property
    def watermark(self) -> float | None:
        """The newest that Spark has reported, in seconds since 1970."""
        return self.buffer.watermark

    @property
    def running(self) -> RunningQuery:
        """The query; there is one between `open` and `release`."""
        if self._running is None:
            raise AssertionError("open() comes first")
        return self._running

    @property
    def started(self) -> RunningQuery | None:
        """The query, once it was started and until it is released."""
        running = self._running  # another thread may let go of it
        return running if running is not None and running.query is not None else None

    @property
    def query(self) -> StreamingQuery | None:
        running = self._running
        return running.query if running is not None else None

    @property
    def has_ended(self) -> bool:
        """Whether the query ran, and does no more."""
        running = self._running
        return running is not None and running.has_ended

    @property
    def has_failed(self) -> bool:
        """Whether the query has ended, and not as one of a hybrid source's that others follow."""
        running = self._running
        return running is not None and running.has_failed

    def exception(self) -> BaseException | None:
        """Return the error that ended the query, as Spark reports it."""
        query = self.query
        return failures.failure_of(query) if query is not None else None

    @property
    def failure(self) -> BaseException:
        """Why the query, which has failed, has."""
        return self.error or self.exception() or FlowError("The streaming query ended by itself.")

    @property
    def is_quiet(self) -> bool:
        """Whether no input is available."""
        running = self._running
        return running is not None and running.is_quiet

    def progress(self) -> IntakeProgress:
        buffered = self.buffer.batches
        with self._lock:
            return replace(
                self._progress,
                buffered_batches=sum(batch.last - batch.first + 1 for batch in buffered),
                buffered_rows=sum(max(batch.rows, 0) for batch in buffered),
                oldest_arrival=min((batch.arrived for batch in buffered), default=None),
            )

    @property
    def _is_before_last_part(self) -> bool:
        """Whether the last relation of a hybrid source is not read yet."""
        running = self._running
        return self.hybrid is not None and (running is None or running.is_bounded or running.query is None)

    def process_all(self, name: str) -> ArrivalWait:
        """Wait for all that has arrived to be taken in; a query that fails meanwhile raises its own error.

        Args:
            name: of the thread that waits.
        """
        return ArrivalWait(
            self.session,
            name,
            lambda: self.query,
            lambda: self._is_before_last_part and not self.stopping and not self.has_failed,
        )

    def read_progress(self) -> None:
        """Ask Spark what the query has done."""
        self._note_rest()
        query = self.query
        report = streams.new_report(query, self._last_report, self._last_batch_seen) if query is not None else None
        if report is None:
            return
        with self._lock:
            self._last_report = report.at
            passes = self.buffer.passes
            fresh = {each: rows // passes.pop(each, 1) for each, rows in report.rows.items() if each > self._last_batch_seen}
            self._last_batch_seen = max(fresh, default=self._last_batch_seen)
            self._progress = replace(
                self._progress,
                micro_batches=self._progress.micro_batches + len(fresh),
                rows_in=self._progress.rows_in + sum(fresh.values()),
                watermark=report.watermark or self._progress.watermark,
                state=report.state or self._progress.state,
            )
            if self._progress.watermark:
                self.buffer.watermark = at_text(self._progress.watermark).timestamp()
