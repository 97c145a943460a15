"""One micro-batch for each flush interval: what arrives waits in its source until a flush is due.

For flows that buffer in memory only and whose state Delta tables hold. Between two flushes such a flow would only add partial
results up that nobody reads. So its queries stand still; when a flush is due each takes all there is as one micro-batch, which
is in the table before Spark commits it. After a crash Spark itself repeats it, or its buffer in files has it
(`StreamSpec.repeats_flushes`), and nothing of it was lost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlext.clock import Clock
from sqlext.execution.backlog.status import BacklogStatus
from sqlext.execution.flows.flush import FlushPolicy, FlushReason
from sqlext.execution.flows.intake import Intake
from sqlext.options import CHECKPOINT_INTERVAL
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import StateBackend

_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.2  # between two questions whether a statement still waits for the end of a look


def other_pace(backends: Sequence[StateBackend], options: FlowOptions) -> str | None:
    """Return what other than the flush interval sets the pace of a flow that buffers in memory only; None: nothing.

    Args:
        backends: where the state of each of its aggregates lives.
    """
    if any(backend is not StateBackend.DELTA for backend in backends):
        return "not all of its aggregates have their state in Delta tables"
    if options.flow[CHECKPOINT_INTERVAL] is not None:
        return f"{CHECKPOINT_INTERVAL.key} says when micro-batches come"
    return "micro-batches come at another pace while a source is in backlog" if options.may_be_in_backlog else None


class IntervalTrigger:
    """See the module's docstring.

    `_lock` guards what was seen of the sources, the reason, and how many statements let the queries run freely. `_switching` is
    held while the queries are held or let go: a hold that comes late must not hold what a statement waits for. The host's ticker
    calls `tick`, Spark's stream threads `batch_began` and `batch_ended`, statements the rest.

    Args:
        intakes: whose queries stand still.
        backlog: what no micro-batch has taken yet.
        clock: measures intervals.
    """

    def __init__(self, intakes: Sequence[Intake], backlog: Callable[[], BacklogStatus], clock: Clock) -> None:
        self._intakes = intakes
        self._backlog = backlog
        self._clock = clock
        self._lock = threading.Lock()
        self._switching = threading.Lock()
        self._reason = FlushReason.MICRO_BATCH
        self._oldest_arrival: float | None = None
        self._quiet_since: float | None = None
        self._seen: float | None = 0.0
        self._asked_at = clock.monotonic()
        self._batch_seconds = 0.0
        self._batches = Counter[Intake]()  # that are in the table
        self._running_freely = 0

    @property
    def reason(self) -> FlushReason:
        """Why the newest micro-batch was asked for."""
        with self._lock:
            return self._reason

    def hold(self) -> None:
        """Let no query take a micro-batch by itself any more, unless statements let them run freely."""
        with self._switching:
            self._hold_unless_free()

    def _hold_unless_free(self) -> None:
        with self._lock:
            is_free = self._running_freely > 0
        for intake in () if is_free else self._intakes:
            intake.running.hold()

    def tick(self, policy: FlushPolicy) -> None:
        """Ask for a micro-batch when a flush is due."""
        now, backlog = self._clock.monotonic(), self._backlog()
        has_unread = backlog.has_unread
        with self._lock:
            self._see(now, has_unread, backlog.unread)
            oldest = self._asked_at if has_unread is None else self._oldest_arrival
            reason = policy.due(now, oldest, self._quiet_since, False, self._batch_seconds)
            waits = now - self._asked_at >= policy.quiet.total_seconds()  # for the micro-batch that was asked for last
            if reason is None or self._running_freely or not waits:
                return
            self._reason, self._asked_at = reason, now
        for intake in self._intakes:
            intake.running.take_one()

    def _see(self, now: float, has_unread: bool | None, unread: float | None) -> None:
        if not has_unread:
            self._oldest_arrival = self._quiet_since = None
        elif unread != self._seen or self._oldest_arrival is None:
            self._oldest_arrival = self._oldest_arrival or now
            self._quiet_since = now
        self._seen = unread

    def batch_began(self) -> None:
        """Note that a micro-batch has taken the available input."""
        with self._lock:
            self._oldest_arrival = self._quiet_since = None
            self._seen = 0.0
            self._asked_at = self._clock.monotonic()

    def batch_ended(self, intake: Intake, seconds: float) -> None:
        """Note that the micro-batch is in the table."""
        with self._lock:
            self._batches[intake] += 1
            self._batch_seconds = seconds

    @contextmanager
    def freely(self) -> Iterator[None]:
        """Let the queries take what arrives as it arrives."""
        with self._lock:
            self._running_freely += 1
            self._reason = FlushReason.COMMAND
        try:
            with self._switching:
                for intake in self._intakes:
                    intake.running.let_go()
            yield
        finally:
            with self._switching:
                with self._lock:
                    self._running_freely -= 1
                self._hold_unless_free()

    def take_what_arrived(self, may_wait: Callable[[], bool]) -> None:
        """Bring all that has arrived by now into the tables.

        Args:
            may_wait: False ends the wait.
        """
        with self.freely():
            for intake in self._intakes:
                self._take(intake, may_wait)

    def _take(self, intake: Intake, may_wait: Callable[[], bool]) -> None:
        """Wait until Spark finds no more input.

        If there is always more, wait for two micro-batches of its own: the second one was planned after this call.
        """
        while not intake.running.forget_last_look(_LOOK_SECONDS):  # its source may not answer
            if not may_wait():
                return
            time.sleep(_POLL_SECONDS)  # there may be no query at the moment
        before = self._batches[intake]
        while not intake.running.has_found_nothing and self._batches[intake] < before + 2 and may_wait():
            time.sleep(_POLL_SECONDS)
