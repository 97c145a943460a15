"""The retries of flows that failed by a fault that may pass, with growing pauses up to a limit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlext.clock import Clock
from sqlext.plan.flow_spec import FlowSpec

FIRST_PAUSE = timedelta(seconds=5)
MOST_PAUSE = timedelta(minutes=5)


def pause_after(attempts: int) -> timedelta:
    """Return the time between a failure and the next try: twice as long after each, up to five minutes.

    Args:
        attempts: how many have failed in a row, at least 1.

    >>> [pause_after(attempts).total_seconds() for attempts in (1, 2, 3, 100)]
    [5.0, 10.0, 20.0, 300.0]
    """
    doublings = min(attempts - 1, 30)
    return min(FIRST_PAUSE * int(2**doublings), MOST_PAUSE)


@dataclass(frozen=True)
class Retry:
    """The next try of a flow.

    Attributes:
        attempt: how many there have been since it last ran for long.
        due: when, by the clock's monotonic seconds.
        at: when, by the wall clock.
        error: why the last one failed.
    """

    spec: FlowSpec
    attempt: int
    due: float
    at: datetime
    error: str


class Retries:
    """The flows of this process that are to be tried again. Any thread may call any method; the lock guards the dicts.

    Args:
        clock: measures the pauses.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._planned: dict[str, Retry] = {}
        self._attempts: dict[str, int] = {}
        self._running_since: dict[str, float] = {}

    def plan(self, spec: FlowSpec, error: str) -> Retry:
        """Plan the next try of a flow that has just failed: twice as long after it as the time before, unless it ran for long."""
        now = self._clock.monotonic()
        with self._lock:
            ran = now - self._running_since.pop(spec.id, now)  # a start that hangs and fails is no run
            attempts = 1 if ran >= MOST_PAUSE.total_seconds() else self._attempts.get(spec.id, 0) + 1
            pause = pause_after(attempts)
            retry = Retry(spec, attempts, now + pause.total_seconds(), self._clock.now() + pause, error)
            self._attempts[spec.id] = attempts
            self._planned[spec.id] = retry
        return retry

    def take_due(self) -> list[Retry]:
        """Return the tries that are due, each once."""
        now = self._clock.monotonic()
        with self._lock:
            due = [retry for retry in self._planned.values() if retry.due <= now]
            for retry in due:
                del self._planned[retry.spec.id]
        return due

    def note_running(self, flow_id: str) -> None:
        """Note that a flow runs: no try is planned, but its tries still count until it has run for long."""
        with self._lock:
            self._planned.pop(flow_id, None)
            self._running_since[flow_id] = self._clock.monotonic()

    def drop(self, flow_id: str) -> None:
        """Try a flow no more; it was stopped, or is gone."""
        with self._lock:
            for noted in (self._planned, self._attempts, self._running_since):
                noted.pop(flow_id, None)

    def planned(self) -> Mapping[str, Retry]:
        """Return the planned tries, by the flows' ids."""
        with self._lock:
            return dict(self._planned)
