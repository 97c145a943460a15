"""Waiting for the Spark jobs of a flow, as long as they make progress and no longer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark import SparkContext

from sqlext.clock import Clock
from sqlext.errors import WaitTimeoutError
from sqlext.logs import carried

logger = logging.getLogger(__name__)

STALLED_AFTER = 600.0
"""Seconds without a sign of work after which nobody waits any more."""
STOP_PATIENCE = 600.0
"""Seconds that STOP FLOW waits for the last flush before it cancels that."""
_STEP_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # asking Spark takes several calls
_CANCEL_SECONDS = 1.0


class Work:
    """See the module's docstring. Any thread may use it.

    Args:
        flow: its name, for messages.
        context: where the jobs run.
        groups: gives the ids of the job groups that the flow's jobs are in.
        clock: measures how long there was no sign of work.
    """

    def __init__(self, flow: str, context: SparkContext, groups: Callable[[], Sequence[str]], clock: Clock) -> None:
        self._flow = flow
        self._context = context
        self._groups = groups
        self._clock = clock
        self._interrupted = threading.Event()

    @property
    def is_interrupted(self) -> bool:
        """Whether the user has had enough of it."""
        return self._interrupted.is_set()

    def wait(self, is_done: Callable[[float], bool], what: str, check: Callable[[], object] = lambda: None) -> None:
        """Wait for a piece of work as long as it gets on.

        Args:
            is_done: waits as many seconds, and returns whether the work is done.
            what: the work is, for the message: "A flush".
            check: called between two looks; raises to end the wait.

        Raises:
            WaitTimeoutError: nothing has happened for `STALLED_AFTER` seconds.
        """
        seen: tuple[int, int, int] | None = None
        since = looked = self._clock.monotonic()
        while not is_done(_STEP_SECONDS):
            check()
            now = self._clock.monotonic()
            if now - looked < _LOOK_SECONDS:
                continue
            looked, found = now, self.look()
            if found != seen or found[1]:
                seen, since = found, now
            elif now - since >= STALLED_AFTER:
                raise WaitTimeoutError(
                    f"{what} of flow `{self._flow}` has made no progress for {STALLED_AFTER:.0f} s: no task of it ran or ended."
                )

    def look(self) -> tuple[int, int, int]:
        """How many jobs there were, how many tasks run, and how many of those jobs' tasks have ended."""
        tracker = self._context.statusTracker()
        jobs = [job for group in self._groups() for job in tracker.getJobIdsForGroup(group)]
        running = [tracker.getJobInfo(job) for job in set(jobs) & set(tracker.getActiveJobsIds())]
        stages = [tracker.getStageInfo(stage) for info in running if info is not None for stage in info.stageIds]
        known = [stage for stage in stages if stage is not None]
        return len(jobs), sum(s.numActiveTasks for s in known), sum(s.numCompletedTasks + s.numFailedTasks for s in known)

    def interrupt(self) -> None:
        """Cancel the jobs that run.

        A commit that has begun is completed, or not made at all; rows that are not in the table stay in the buffer, or are read
        from their source again.
        """
        if not self._interrupted.is_set():
            logger.warning("flow %s: what it does is interrupted", self._flow)
        self._interrupted.set()
        for group in self._groups():
            self._context.cancelJobGroup(group)

    @contextmanager
    def interrupted_after(self, seconds: float, canceled: threading.Event | None = None) -> Iterator[None]:
        """Interrupt the work if the `with` block takes too long, or when the client takes its statement back.

        Args:
            seconds: of the wall clock.
            canceled: set when the client does.
        """
        is_over = threading.Event()
        watch = threading.Thread(
            target=carried(self._watch), args=(is_over, seconds, canceled), name=f"sqlext-end-{self._flow}", daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            is_over.set()
            watch.join()

    def _watch(self, is_over: threading.Event, seconds: float, canceled: threading.Event | None) -> None:
        left = seconds
        while left > 0 and not self.is_interrupted and not (canceled is not None and canceled.is_set()):
            if is_over.wait(min(_STEP_SECONDS, left)):
                return
            left -= _STEP_SECONDS
        while not is_over.is_set():
            self.interrupt()  # again: a job may begin just after
            is_over.wait(_CANCEL_SECONDS)
