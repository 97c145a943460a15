"""The pace of a streaming query: how often its micro-batches run, and how much each of them reads (FLIP-309)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Phase(StrEnum):
    """The phase of a flow."""

    LIVE = "live"
    BACKLOG = "backlog"


@dataclass(frozen=True)
class Pace:
    """The frequency and size of micro-batches.

    Attributes:
        phase: the phase of the flow.
        interval: the time from one micro-batch to the next; None: as data arrives, and in backlog back to back.
        size: in backlog, the amount that a micro-batch reads, as a multiple of each source's first limit; None: all that is
            available. Live, the user's own limits hold.
    """

    phase: Phase
    interval: timedelta | None = None
    size: float | None = None
