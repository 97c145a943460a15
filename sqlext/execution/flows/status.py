"""The status of a flow of this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from sqlext.execution.backlog.status import BacklogStatus
from sqlext.plan.durations import Durations
from sqlext.plan.flow_spec import StateBackend
from sqlext.spark.state_size import StateSize


class FlowPhase(StrEnum):
    """The phase of a flow of this process.

    DONE: it ran once, and its rows are in the table. BOUNDED STAGES: its streaming queries have not started yet. RETRYING: it
    failed by a fault that may pass, and waits for its next try.
    """

    STARTING = "STARTING"
    PREREQUISITES = "BOUNDED STAGES"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    RETRYING = "RETRYING"
    FAILED = "FAILED"
    FENCED = "FENCED"
    DONE = "DONE"


class PrerequisiteState(StrEnum):
    """Where a prerequisite is; the names are those of Flink's ExecutionState."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class PrerequisiteStatus:
    """A bounded query of a flow, which ends before the streaming ones start.

    Attributes:
        name: of its result, as the queries that read it call it.
        started: when it last did.
        duration, rows: of a finished one.
    """

    name: str
    state: PrerequisiteState
    started: datetime | None = None
    duration: timedelta | None = None
    rows: int | None = None

    def __str__(self) -> str:
        parts = [self.state.value]
        parts += [f"{self.rows} rows"] if self.rows is not None else []
        parts += [f"started {self.started.astimezone():%Y-%m-%d %H:%M:%S}"] if self.started is not None else []
        parts += [f"{self.duration.total_seconds():.1f} s"] if self.duration is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class EndedGroups:
    """Groups with a time to live whose state has ended.

    Attributes:
        groups: their number.
        rows_dropped: the number of input rows that came for a group after its end, and were dropped.
    """

    groups: int = 0
    rows_dropped: int = 0

    def __add__(self, other: EndedGroups) -> EndedGroups:
        return EndedGroups(self.groups + other.groups, self.rows_dropped + other.rows_dropped)


@dataclass(frozen=True)
class FlowProgress:
    """What a flow has done since it started here.

    Attributes:
        micro_batches, rows_in: of its input.
        buffered_batches, buffered_rows, oldest_arrival: waiting in the buffer.
        flushes, rows_flushed, batches_flushed: commits on the target, the changed groups or new rows in them, and micro-batches.
        reasons: how many flushes were made for which reason.
        last_flush, last_reason, last_flush_seconds: of the newest commit.
        violations: how many rows of these flushes violated each constraint.
        flush_durations: how long these flushes took.
        ended: what these flushes have ended.
        watermark: event time up to which input is complete, as Spark reports it.
        state: the size of its state, by the backend that holds it; as of the last flush, or the last report of Spark's.
        prerequisites: the bounded queries that end before the streaming ones start.
        backlog: its phase, and how its sources stand.
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
    violations: Mapping[str, int] = field(default_factory=dict)
    flush_durations: Durations = field(default_factory=Durations)
    ended: EndedGroups = field(default_factory=EndedGroups)
    watermark: str | None = None
    state: Mapping[StateBackend, StateSize] = field(default_factory=dict)
    prerequisites: tuple[PrerequisiteStatus, ...] = ()
    backlog: BacklogStatus = field(default_factory=BacklogStatus)
