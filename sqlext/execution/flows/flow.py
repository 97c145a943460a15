"""One flow in this process: its life, from its start over prerequisites and queries to its end or failure.

What comes in is `intakes`, when it is flushed `flush_schedule`, what a flush writes `table_writer`. Several threads meet here:
those of statements, Spark's stream threads (the `batch_` methods), the flush thread, that of the last prerequisite
(`_start_queries`), and the host's ticker. One lock guards phase, error and options.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import inf

from pyspark.sql import SparkSession

from sqlext.clock import Clock, Deadline
from sqlext.errors import FlowError, NewColumnsError, WaitTimeoutError
from sqlext.execution.backlog.pacer import BacklogSettings
from sqlext.execution.backlog.propagation import is_backlog
from sqlext.execution.backlog.status import Switch
from sqlext.execution.coordination.fence import Fence, FencedError
from sqlext.execution.delta import target
from sqlext.execution.flows.backlog_controller import BacklogController, report_of
from sqlext.execution.flows.buffering import intake_settings, policy_of, takes_intervals
from sqlext.execution.flows.faults import message_of
from sqlext.execution.flows.flush import Flusher, FlushReason
from sqlext.execution.flows.flush_schedule import FlushSchedule
from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.intakes import Intakes
from sqlext.execution.flows.interval_trigger import IntervalTrigger
from sqlext.execution.flows.meter import FlowMeter
from sqlext.execution.flows.once import OnceRun
from sqlext.execution.flows.prerequisites import Prerequisites
from sqlext.execution.flows.savepoints import content_of
from sqlext.execution.flows.source_changes import explained
from sqlext.execution.flows.status import FlowPhase, FlowProgress
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.execution.flows.work import STALLED_AFTER, STOP_PATIENCE, Work
from sqlext.execution.streaming.arrival_wait import has_taken_all
from sqlext.execution.streaming.pace import Phase
from sqlext.execution.streaming.source_watch import SourceWatch
from sqlext.logs import Subject, carried, logged
from sqlext.options import CACHE_MAX_ENTRIES, CHECKPOINT_INTERVAL, FLUSH_MAX_INTERVAL, OPTIONS
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import cancellation, jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)


class Flow:
    """Runs one flow.

    Args:
        spec: what it is.
        options: its options, resolved.
        epoch: this driver's; a flow that another driver has taken has a higher one.
        home: the flow's folder; a restored flow has one of its own in it (`FlowSpec.folder`).
        session: the flow's own; nobody else uses it.
        clock: measures intervals.
        watch: lets its queries rest while nothing arrives.
    """

    def __init__(
        self,
        spec: FlowSpec,
        options: FlowOptions,
        epoch: int,
        home: HadoopPath,
        session: SparkSession,
        clock: Clock,
        watch: SourceWatch,
    ) -> None:
        self.spec = spec
        self.options = options
        self.epoch = epoch
        self.subject: Subject = {"flow": ".".join(spec.qualified_name), "epoch": epoch}
        self._home = content_of(home, spec)
        self.session = session
        self._clock = clock
        self._watch = watch
        self._fence = Fence(home, f"flow `{spec.name}`", epoch)
        self._lock = threading.Lock()
        self._meter = FlowMeter(spec.id, spec.name, clock)
        self._phase = FlowPhase.STARTING
        self._error: BaseException | None = None
        self._stopping = False
        self._has_rested = False
        self._takes_intervals = takes_intervals(spec, options)
        streams = () if spec.runs_once else spec.streams
        settings = [intake_settings(spec, options, stream, self._home, epoch) for stream in streams]
        self._intakes = Intakes(Intake(*each, session, clock, self) for each in zip(streams, settings, strict=True))
        self.work = Work(spec.name, session.sparkContext, lambda: [spec.id, *self._intakes.job_groups()], clock)
        self._backlog = BacklogController(
            spec.name,
            options.flow[CHECKPOINT_INTERVAL],
            {alias: BacklogSettings.of(each) for alias, each in options.streams.items()},
            options.may_be_in_backlog or self._takes_intervals,
            partial(report_of, spec.sources),
            clock,
            self._phase_changed,
            self._fail,
        )
        self._writer = TableWriter(
            spec, epoch, self._home, jvm.clone_session(session), self._intakes, clock, self._fence.check, self._meter.note_flush
        )
        self._flusher = Flusher(spec.name, self._writer.flush, self._fail, lambda: self._writer.compact(lambda: self._stopping))
        self._schedule = FlushSchedule(
            policy_of(spec, options),
            self._intakes,
            self._flusher,
            IntervalTrigger(self._intakes, lambda: self._backlog.status, clock) if self._takes_intervals else None,
            lambda: self._is_sink_backlog,
            lambda: self._meter.last_flush_seconds,
            self.work,
            clock,
        )
        specs, tag, check = spec.prerequisites, f"sqlext-stages-{spec.id}", self._fence.check
        self._prerequisites = Prerequisites(spec.name, tag, specs, self._home, session, check, self._start_queries, self._fail)
        tag = f"sqlext-once-{spec.id}"
        self._once = OnceRun(spec.name, tag, self._writer.session, self._writer.append_once, self._end_once, self._fail)
        self._settled = threading.Event()  # the queries run, or never will

    @property
    def _may_rest(self) -> bool:
        """Whether nothing but arrivals in the queries' tables says when micro-batches come."""
        has_own_pace = self._takes_intervals or self.options.flow[CHECKPOINT_INTERVAL] is not None
        return not (has_own_pace or self.options.may_be_in_backlog or self.spec.hybrids)

    # What statements call.

    def start(self) -> None:
        """Flush what an earlier driver left in the buffers, then start the queries.

        If prerequisites have not finished yet, the queries start on the thread of the last one.

        Raises:
            SqlextError, PySparkException: it cannot start; nothing runs then.
        """
        try:
            target.check_same_table(self.session, self.spec)
            self._fence.take()
            if self.spec.runs_once:
                self._set_phase(FlowPhase.RUNNING)
                self._once.start()
                return
            if self._prerequisites.open():
                self._start_queries()
                return
        except BaseException:
            self._stopping = True
            self._intakes.stop()
            self._backlog.close()
            self._flusher.close(STALLED_AFTER)
            self._intakes.release()
            raise
        self._set_phase(FlowPhase.PREREQUISITES)
        self._prerequisites.start()
        logger.info("flow %s: its bounded stages come first, epoch %d", self.spec.name, self.epoch)

    def _start_queries(self) -> None:
        self._prerequisites.show(self._writer.session)
        self._intakes.open(self._writer.committed, self._writer.stored)
        self._recover()
        self._intakes.rewind(self.work)
        self._backlog.open(self._intakes)
        self._intakes.start(self._backlog.pace)
        self._schedule.start()
        self._backlog.watch()
        if self._may_rest:
            for running in self._intakes.running():
                self._watch.add(running)
        with self._lock:
            if self._phase in (FlowPhase.STARTING, FlowPhase.PREREQUISITES):
                self._phase = FlowPhase.RUNNING
        if not isinstance(self._error, NewColumnsError):  # of which the supervisor heals it
            self._raise_if_failed()  # a first flush may have failed before the last query had started
        self._settled.set()
        logger.info("flow %s: started, epoch %d, target %s", self.spec.name, self.epoch, ".".join(self.spec.target))

    def _end_once(self) -> None:
        self._set_phase(FlowPhase.DONE)
        self._settled.set()
        logger.info("flow %s: done", self.spec.name)

    @logged
    def stop(self, canceled: threading.Event | None = None) -> None:
        """Stop the queries, flush what is buffered, end the threads. A micro-batch in progress is repeated on the next start.

        Args:
            canceled: set when the user waits no longer; what still runs is interrupted then, or after `STOP_PATIENCE`.

        Raises:
            FlowError: the last flush failed; what it could not bring into the table comes with the next start.
            WaitTimeoutError: something goes on although it was interrupted.
        """
        was_running = self.is_running
        self._stopping = True
        with self.work.interrupted_after(STOP_PATIENCE, canceled):
            have_ended = self._prerequisites.stop(STALLED_AFTER)
            have_ended = self._once.stop(STALLED_AFTER) and have_ended
            self._backlog.close()
            self._intakes.stop()
            if self._phase is FlowPhase.RUNNING and self._intakes.has_buffered and not self.work.is_interrupted:
                self._flusher.wait(self._flusher.ask(FlushReason.STOP), STOP_PATIENCE + STALLED_AFTER)
            have_ended = self._flusher.close(STOP_PATIENCE + STALLED_AFTER) and have_ended
        if self._phase is FlowPhase.RUNNING and not self.work.is_interrupted:
            self._intakes.note_all_flushed()
        if self.is_running:
            self._set_phase(FlowPhase.STOPPED)
        self._settled.set()
        if have_ended:
            self._intakes.release()
        else:
            raise WaitTimeoutError(f"What flow `{self.spec.name}` did last still runs, although it was interrupted.")
        if was_running:
            self._raise_if_failed()
        logger.info("flow %s: %s", self.spec.name, self._phase.lower())

    @logged
    def interrupt(self) -> None:
        """End the flow's work at once; rows that are not in the table yet are flushed by the next start."""
        self._stopping = True
        self.work.interrupt()
        self._intakes.stop()

    def abandon(self, timeout: float) -> None:
        """End the flow's threads as a killed process would: nothing more is flushed, and nothing is recorded.

        Args:
            timeout: seconds to wait for the flush in flight.
        """
        self._stopping = True
        self._intakes.stop()
        self._backlog.close()
        self._flusher.close(timeout)
        self._intakes.release()

    def take_in(self) -> None:
        """Return when what has arrived is in the buffers, or flushed; no flush is asked for.

        Raises:
            StreamingQueryException: a query has failed.
        """
        with self._watch.freely(self._intakes.running()):
            for intake in self._intakes:
                if intake.query is not None:
                    intake.query.processAllAvailable()

    def forgive(self) -> None:
        """STOP FLOW of a flow that has failed: its error has been seen."""
        with self._lock:
            if self._phase is FlowPhase.FAILED:
                self._phase, self._error = FlowPhase.STOPPED, None

    @logged
    def flush(self) -> None:
        """Flush what is buffered now, and wait for it.

        Raises:
            FlowError: the flow has failed, or fails in this flush.
            WaitTimeoutError: it does not get on.
            StatementCanceledError: the client does not wait any more; the flush goes on.
        """
        if self._phase is FlowPhase.RUNNING and self._schedule.take_what_arrived(self._may_wait):
            self._raise_if_failed()
        else:
            self._flush_buffered()

    def _flush_buffered(self) -> None:
        if self._intakes.has_buffered:
            self._schedule.flush(FlushReason.COMMAND, partial(cancellation.raise_if_canceled, self.session))
        self._raise_if_failed()

    def _may_wait(self) -> bool:
        cancellation.raise_if_canceled(self.session)
        return not self._stopping

    @logged
    def wait(self, timeout: timedelta) -> None:
        """Return when all that had arrived is in the target.

        Raises:
            FlowError: the flow has failed, or fails meanwhile.
            WaitTimeoutError: at the deadline.
            StatementCanceledError: the client does not wait any more.
        """
        deadline = Deadline(timeout.total_seconds())
        late = WaitTimeoutError(
            f"Flow `{self.spec.name}` has not caught up after {timeout.total_seconds():.0f} s. It keeps running; wait longer "
            "with WAIT FLOW .. TIMEOUT 1 hour."
        )
        if not cancellation.wait_for(self.session, self._settled.wait, timeout.total_seconds()):
            raise late
        is_running = self._phase is FlowPhase.RUNNING
        with self._freely() if is_running else nullcontext():
            for intake in self._intakes if is_running else ():
                if not has_taken_all(self.session, intake.process_all(f"sqlext-wait-{self.spec.name}"), deadline):
                    raise late
                intake.read_progress()
        self.tick()
        self._raise_if_failed()
        self._flush_buffered()

    @contextmanager
    def _freely(self) -> Iterator[None]:
        """Let the queries take what arrives as it arrives, in the `with` block."""
        with self._schedule.freely(), self._watch.freely(self._intakes.running()):
            yield

    def set_options(self, spec: FlowSpec, options: FlowOptions) -> bool:
        """Apply other options, if that needs no restart.

        Returns:
            Whether they are in force.
        """
        now, before = options.flow, self.options.flow
        changed = [option for option in OPTIONS.values() if now[option] != before[option]]
        turns_buffering = (now[FLUSH_MAX_INTERVAL] is None) != (before[FLUSH_MAX_INTERVAL] is None)
        if spec.constraints != self.spec.constraints or turns_buffering:
            return False
        if any(option not in (FLUSH_MAX_INTERVAL, CACHE_MAX_ENTRIES) for option in changed):
            return False
        with self._lock:
            self.spec, self.options, self._schedule.policy = spec, options, policy_of(spec, options)
        for intake in self._intakes:
            if intake.buffer.can_lose_rows:
                intake.buffer.max_entries = now[CACHE_MAX_ENTRIES]
        return True

    def status(self, max_age: float = inf) -> tuple[FlowPhase, FlowProgress, str]:
        """Its phase, its progress with a look at its sources of at most an age in seconds, and its error's message."""
        done, statuses = self._meter.progress(self._intakes), self._prerequisites.statuses()
        backlog, state = self._backlog.seen(self._intakes, max_age), {**done.state, **self._writer.state_size}
        progress = replace(done, prerequisites=statuses, backlog=backlog, state=state)
        with self._lock:
            return self._phase, progress, message_of(self._error) if self._error else ""

    @property
    def phase(self) -> FlowPhase:
        """Its phase; `status` tells more, at a price."""
        return self._phase

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it has."""
        with self._lock:
            return self._error

    @property
    def has_buffered(self) -> bool:
        """Whether rows are in its buffers that are not in the table."""
        return self._intakes.has_buffered

    @property
    def is_running(self) -> bool:
        """Whether its queries run, or will when its prerequisites have finished."""
        return self._phase in (FlowPhase.RUNNING, FlowPhase.PREREQUISITES)

    # What the host's ticker calls.

    @property
    def is_idle(self) -> bool:
        """Whether it has come to rest at an earlier tick, with nothing to flush, so that there is nothing to look at."""
        is_at_rest = self._has_rested and self._phase is FlowPhase.RUNNING and self._intakes.are_at_rest
        return is_at_rest and not self._intakes.has_buffered

    def tick(self) -> None:
        """Look at the queries, and ask for a flush when one is due."""
        if self._phase is not FlowPhase.RUNNING or self._stopping:
            return
        has_rested, self._has_rested = self._has_rested, self._intakes.are_at_rest
        if not (has_rested and self._has_rested):
            if (failed := self._intakes.failed) is not None:
                if not self._stopping:  # STOP FLOW may have come since the look above, and ended it
                    self._fail(explained(self.session, self.spec, failed.failure))
                return
            self._intakes.read_progress_at_times(self._clock.monotonic())
        self._schedule.tick()

    def new_switches(self) -> tuple[Switch, ...]:
        """Return the changes of phase since the last call."""
        return self._backlog.new_switches()

    # Spark's stream threads.

    def batch_begins(self) -> None:
        """Raise when another driver has the flow."""
        self._fence.check()
        self._schedule.batch_begins()

    def batch_buffered(self, intake: Intake) -> None:
        """Flush, when a flush is due."""
        self._schedule.batch_buffered(intake)

    def batch_ended(self, intake: Intake, batch: int, seconds: float) -> None:
        """Note how long a micro-batch took."""
        self._backlog.batch_ended(intake, batch, seconds)
        self._schedule.batch_ended(intake, seconds)

    # Shared.

    def _phase_changed(self, phase: Phase) -> None:
        """Flush the rows of a backlog at its end; called on the pace thread and on Spark's stream threads."""
        if phase is Phase.LIVE:
            self._schedule.backlog_ended()

    @property
    def _is_sink_backlog(self) -> bool:
        """Whether what comes to the sink is backlog: with a union over other streams, the flow's phase alone does not tell."""
        status = self._backlog.status
        return status.phase is Phase.BACKLOG and is_backlog(self.spec.operators, status.streams)[-1]

    def _recover(self) -> None:
        """Flush what is buffered and not committed; evaluate the query above if a crash came before it."""
        if self._intakes.has_buffered:
            logger.info("flow %s: flushing micro-batches left by an earlier driver", self.spec.name)
            self._schedule.flush_first(FlushReason.RECOVERY)
        self._writer.recover()

    def _fail(self, error: BaseException) -> None:
        """Note why the flow has failed, and stop what still runs; called on the flush thread or the ticker."""
        error = self._fence.cause_of(error)
        with self._lock:
            if self._phase in (FlowPhase.FAILED, FlowPhase.FENCED) or self.work.is_interrupted:
                return
            self._error = error
            self._phase = FlowPhase.FENCED if isinstance(error, FencedError) else FlowPhase.FAILED
            self._stopping = True
        self._settled.set()
        logger.error("flow %s: %s: %s", self.spec.name, self._phase.lower(), message_of(error))
        threading.Thread(target=carried(self._intakes.stop), name=f"sqlext-end-{self.spec.name}", daemon=True).start()

    def _raise_if_failed(self) -> None:
        if self._phase in (FlowPhase.FAILED, FlowPhase.FENCED):
            raise FlowError(f"Flow `{self.spec.name}` has failed: {message_of(self._error) if self._error else ''}")

    def _set_phase(self, phase: FlowPhase) -> None:
        with self._lock:
            self._phase = phase
