"""What a flow of this process tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class FlowPhase(StrEnum):
    """Where a flow of this process is in its life."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    FENCED = "FENCED"


@dataclass(frozen=True)
class FlowProgress:
    """What a flow has done since it started here.

    Attributes:
        micro_batches, rows_in: of its input.
        buffered_batches, buffered_rows, oldest_arrival: waiting in the buffer.
        flushes, rows_flushed, batches_flushed: commits on the target, the changed groups or new rows in them, and micro-batches.
        reasons: how many flushes were made for which reason.
        last_flush, last_reason, last_flush_seconds: of the newest commit.
        watermark: event time up to which input is complete, as Spark reports it.
    """

    micro_batches: int = 0
    rows_in: int = 0
    buffered_batches: int = 0
    buffered_rows: int = 0
    oldest_arrival: datetime | None = None
    flushes: int = 0
    rows_flushed: int = 0
    batches_flushed: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    last_flush: datetime | None = None
    last_reason: str = ""
    last_flush_seconds: float = 0.0
    watermark: str | None = None
