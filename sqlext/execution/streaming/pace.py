"""The pace of a streaming query: how often its micro-batches come, and how much each takes (FLIP-309)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Phase(StrEnum):
    """What a flow is doing."""

    LIVE = "live"
    BACKLOG = "backlog"


@dataclass(frozen=True)
class Pace:
    """How micro-batches come.

    Attributes:
        phase: of the flow.
        interval: from one micro-batch to the next; None: as data arrives, and in backlog back to back.
        size: in backlog, what a micro-batch takes, as a multiple of each source's first limit; None: all there is. Live, the
            user's own limits hold.
    """

    phase: Phase
    interval: timedelta | None = None
    size: float | None = None
