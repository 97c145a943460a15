"""Time, from an object, so that tests can advance it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two kinds of time: one to measure with, one to tell people."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""

    def now(self) -> datetime:
        """The wall clock, with its zone."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


class Deadline:
    """The end of a wait, so many seconds from now.

    Monotonic time cannot be set back: a wait of ten seconds ends after ten, whatever happens to the machine's clock.

    Args:
        seconds: from now; zero or less: it has passed.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._end = self._clock.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; zero when it has passed."""
        return max(self._end - self._clock.monotonic(), 0.0)

    @property
    def has_passed(self) -> bool:
        return self.left == 0
