"""When a flow is flushed (FLIP-365): by its interval, when its buffer is full, when its sources are idle, or at each micro-batch.

The host's ticker calls `tick`, Spark's stream threads the `batch_` methods, statements the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from sqlext.clock import Clock
from sqlext.execution.flows.flush import Flusher, FlushPolicy, FlushReason
from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.intakes import Intakes
from sqlext.execution.flows.interval_trigger import IntervalTrigger
from sqlext.execution.flows.work import Work


class FlushSchedule:
    """See the module's docstring.

    Args:
        policy: the wall-clock side; may be replaced at any time.
        intakes: whose buffers are flushed.
        flusher: the flow's.
        trigger: asks for one micro-batch an interval, which is flushed as it comes; None: micro-batches come by themselves.
        is_sink_backlog: whether what reaches the target is backlog.
        flush_seconds: returns how long the last flush took.
        work: the flow's.
        clock: measures intervals.
    """

    def __init__(
        self,
        policy: FlushPolicy,
        intakes: Intakes,
        flusher: Flusher,
        trigger: IntervalTrigger | None,
        is_sink_backlog: Callable[[], bool],
        flush_seconds: Callable[[], float],
        work: Work,
        clock: Clock,
    ) -> None:
        self.policy = policy
        self._intakes = intakes
        self._flusher = flusher
        self._trigger = trigger
        self._is_sink_backlog = is_sink_backlog
        self._flush_seconds = flush_seconds
        self._work = work
        self._clock = clock
        self._quiet_since: float | None = None  # only the ticker's

    # The host's ticker.

    def tick(self) -> None:
        """Ask for a flush when one is due."""
        if self._trigger is not None:
            self._trigger.tick(self.policy)
            return
        oldest_arrival = self._intakes.oldest_arrival()
        if self.policy.max_interval is None or oldest_arrival is None:
            self._quiet_since = None  # Spark is not asked for what nothing depends on
            return
        now = self._clock.monotonic()
        self._quiet_since = (self._quiet_since or now) if self._intakes.is_quiet else None
        reason = self._due(now, oldest_arrival, self._quiet_since)
        if reason is not None and not self._flusher.is_busy:
            self._flusher.ask(reason)

    # Spark's stream threads.

    def batch_begins(self) -> None:
        """Note that a micro-batch was planned."""
        if self._trigger is not None:
            self._trigger.batch_began()

    def batch_buffered(self, intake: Intake) -> None:
        """Flush a buffered micro-batch if a flush is due; hold the stream back while the previous flush still runs.

        Raises:
            Exception: what ended the flush.
        """
        if intake.rewinding_to is not None:
            self.flush_first(FlushReason.RECOVERY)
        elif self._trigger is not None:
            self.flush_first(self._trigger.reason)
        elif self.policy.max_interval is None:
            self.flush_first(FlushReason.MICRO_BATCH)
        else:
            reason = self._due(self._clock.monotonic(), self._intakes.oldest_arrival(is_waiting=True), None)
            if intake.buffer.is_full:
                reason = FlushReason.CACHE_FULL
            if reason is not None and self._flusher.is_busy:
                self.flush_first(reason)
            elif reason is FlushReason.CACHE_FULL:
                self._flusher.ask(reason)

    def batch_ended(self, intake: Intake, seconds: float) -> None:
        """Note that a micro-batch has ended after so many seconds."""
        if self._trigger is not None:
            self._trigger.batch_ended(intake, seconds)

    def flush_first(self, reason: FlushReason) -> None:
        """Flush, and wait for it, before anything else is done.

        Raises:
            Exception: what ended the flush.
        """
        self.flush(reason)
        if self._flusher.error is not None:
            raise self._flusher.error

    # Statements, and the end of a backlog.

    def start(self) -> None:
        """Hold the queries that take one micro-batch per interval, once they run."""
        if self._trigger is not None:
            self._trigger.hold()

    def backlog_ended(self) -> None:
        """Flush the rows of a backlog at its end (FLIP-309)."""
        if self.policy.max_interval is not None and self._intakes.has_buffered:
            self._flusher.ask(FlushReason.BACKLOG_END)

    def flush(self, reason: FlushReason, check: Callable[[], object] = lambda: None) -> None:
        """Flush what is buffered now, and wait until that is done or has failed.

        Args:
            check: called while waiting; raises to end the wait.

        Raises:
            WaitTimeoutError: the flush makes no progress.
        """
        ticket = self._flusher.ask(reason)
        self._work.wait(partial(self._flusher.wait, ticket), "A flush", check)

    def take_what_arrived(self, may_wait: Callable[[], bool]) -> bool:
        """Bring all that has arrived into the tables, if it waits in the sources for the interval; False: it does not.

        Args:
            may_wait: False ends the wait.
        """
        if self._trigger is None:
            return False
        self._trigger.take_what_arrived(may_wait)
        return True

    def freely(self) -> AbstractContextManager[None]:
        """Let the queries take what arrives as it arrives, in the `with` block."""
        return nullcontext() if self._trigger is None else self._trigger.freely()

    def _due(self, now: float, oldest_arrival: float | None, quiet_since: float | None) -> FlushReason | None:
        return self.policy.due(now, oldest_arrival, quiet_since, self._is_sink_backlog(), self._flush_seconds())
