"""Time as an object, so that tests can advance it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""Spark's times go further than Python's."""


def at_milliseconds(since_1970: int) -> datetime:
    """Return a time of Spark's; one that Python does not have is the first or the last that it has.

    >>> at_milliseconds(1_700_000_000_000_000).year
    9999
    """
    first, last = (int(each.timestamp()) for each in (_FIRST, _LAST))
    return datetime.fromtimestamp(min(max(since_1970 / 1000, first), last), UTC)


def at_text(text: str) -> datetime:
    """Return a time as Spark's reports have it; as for `at_milliseconds`.

    >>> at_text("+55840-11-09T06:40:00.000Z").year, at_text("2026-11-09T06:40:00.000Z").year
    (9999, 2026)
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return _FIRST if text.startswith("-") else _LAST


class Clock(Protocol):
    """A source of two kinds of time: one to measure durations with, one to show to people."""

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences between them have a meaning."""

    def now(self) -> datetime:
        """Return the wall-clock time, with its time zone."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return the machine's monotonic time, in seconds."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the wall-clock time, in UTC."""
        return datetime.now(UTC)


class Deadline:
    """The end of a wait.

    Monotonic time cannot be set back: a wait of ten seconds ends after ten seconds, whatever happens to the machine's clock.

    Args:
        seconds: the length of the wait from now, in seconds; zero or less: the deadline has passed.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._end = self._clock.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left; zero when the deadline has passed."""
        return max(self._end - self._clock.monotonic(), 0.0)

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return self.left == 0
