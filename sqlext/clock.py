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
