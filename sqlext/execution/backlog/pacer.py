"""When a flow works off a backlog, and how much a micro-batch takes meanwhile (FLIP-309). Knows no Spark.

What is seen of each source goes in; the phase of the flow and the pace of its micro-batches come out. A checkpoint is a
micro-batch here: in backlog there are few, each of about the interval's work; live, they come as they would without backlog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.options import BACKLOG_LAG_THRESHOLD, CHECKPOINT_INTERVAL_DURING_BACKLOG, Options

LOOKS_BEFORE_BACKLOG = 2
"""So often in a row lag must be seen before the flow changes its pace: one late file is no backlog."""
END_OF_LAG = 0.5
"""A source that lags is in backlog until its lag is below this part of its threshold, or the flow would change to and fro."""
MOST_GROWTH = 8.0
"""A micro-batch is at most so many times larger than the one before: what takes long in a small one is not only its rows."""
IS_FULL = 0.5
"""A micro-batch that took less than this part of its limit was not bounded by it, and says nothing of how large one may be."""


@dataclass(frozen=True)
class BacklogSettings:
    """What is asked of one source.

    Attributes:
        interval: `execution.checkpointing.interval-during-backlog`; zero: no checkpoint meanwhile; None: the source is never in
            backlog.
        lag_threshold: `backlog.lag-threshold`; None: lag alone makes no backlog.
    """

    interval: timedelta | None
    lag_threshold: timedelta | None

    @classmethod
    def of(cls, options: Options) -> BacklogSettings:
        """Return the settings of one stream's options."""
        return cls(options[CHECKPOINT_INTERVAL_DURING_BACKLOG], options[BACKLOG_LAG_THRESHOLD])


@dataclass(frozen=True)
class SourceLook:
    """What is seen of a source at one moment.

    Attributes:
        is_history: it reads what was there at its start: a table's first snapshot, or a hybrid source's that others follow.
        lag: the age of the oldest record that it has not handed over; None: there is none, or the source cannot tell.
        unread: how much it has not handed over, in `unit`; None: it cannot tell.
        unit: bytes, offsets or files.
        reported: isProcessingBacklog as a function of the user's says it, which decides alone; None: there is no such function.
    """

    is_history: bool = False
    lag: timedelta | None = None
    unread: float | None = None
    unit: str = ""
    reported: bool | None = None


class SourceBacklog:
    """isProcessingBacklog of one source: the last report counts. Not for several threads."""

    def __init__(self, settings: BacklogSettings) -> None:
        self.settings = settings
        self.look = SourceLook()
        self.is_processing_backlog = False
        self._late_looks = 0

    def see(self, look: SourceLook, is_first: bool = False) -> None:
        """Take in what is seen now; the first look counts at once."""
        self.look = look
        if self.settings.interval is None:
            return
        lags = self._lags(look.lag)
        self._late_looks = self._late_looks + 1 if lags else 0
        is_sure = self.is_processing_backlog or is_first or self._late_looks >= LOOKS_BEFORE_BACKLOG
        seen = look.is_history or (lags and is_sure)
        self.is_processing_backlog = seen if look.reported is None else look.reported

    def _lags(self, lag: timedelta | None) -> bool:
        threshold = self.settings.lag_threshold
        if threshold is None or lag is None:
            return False
        return lag > (threshold * END_OF_LAG if self.is_processing_backlog else threshold)


@dataclass(frozen=True)
class BacklogBatch:
    """A micro-batch that was taken in backlog.

    Attributes:
        size: the pace's, when it was planned.
        fill: how much of its limit it took, of the source that took most of its own; None: unknown.
        seconds: from its start to its end.
    """

    size: float
    fill: float | None
    seconds: float


class Pacer:
    """Decides the pace of one flow. Not for several threads.

    Args:
        interval: `execution.checkpointing.interval`.
        sources: by name.
    """

    def __init__(self, interval: timedelta | None, sources: Mapping[str, BacklogSettings]) -> None:
        self._interval = interval
        self.sources = {name: SourceBacklog(settings) for name, settings in sources.items()}
        self._size = 1.0

    def see(self, looks: Mapping[str, SourceLook], is_first: bool = False) -> None:
        """Take in what is seen of the sources that run; one that has ended or failed no longer counts."""
        for name, source in self.sources.items():
            source.see(looks.get(name, SourceLook()), is_first)

    def note_batch(self, taken: BacklogBatch) -> None:
        """Size the next micro-batch by the throughput of one, so that it takes about the interval."""
        wanted = self._backlog_interval().total_seconds()
        if not wanted or (taken.fill is not None and taken.fill < IS_FULL):
            return
        factor = min(max(wanted / max(taken.seconds, 0.001), 1 / MOST_GROWTH), MOST_GROWTH)
        self._size = taken.size * (1.0 if taken.fill is None else min(taken.fill, 1.0)) * factor

    @property
    def phase(self) -> Phase:
        """A job is in backlog if and only if any of its running sources is."""
        return Phase.BACKLOG if any(source.is_processing_backlog for source in self.sources.values()) else Phase.LIVE

    @property
    def pace(self) -> Pace:
        """How the next micro-batches are to come."""
        if self.phase is Phase.LIVE:
            return Pace(Phase.LIVE, self._interval)
        return Pace(Phase.BACKLOG, None, self._size if self._backlog_interval() else None)

    def _backlog_interval(self) -> timedelta:
        """The shortest of those of the sources in backlog; zero, which stands for no checkpoint, is the longest."""
        asked = [source.settings.interval for source in self.sources.values() if source.is_processing_backlog]
        return min((each for each in asked if each), default=timedelta())
