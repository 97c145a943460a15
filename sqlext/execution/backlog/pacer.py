"""When a flow works off a backlog, and how much a micro-batch reads meanwhile (FLIP-309). Independent of Spark.

Its input is observations of each source; its output is the phase of the flow and the pace of its micro-batches. A micro-batch
takes the place of FLIP-309's checkpoint: in backlog there are few, each of about the interval's work; live, they run as they
would without backlog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.options import BACKLOG_LAG_THRESHOLD, CHECKPOINT_INTERVAL_DURING_BACKLOG, Options

LOOKS_BEFORE_BACKLOG = 2
"""The number of consecutive looks that must find lag before the flow changes its pace: one late file is no backlog."""
END_OF_LAG = 0.5
"""A source that lags is in backlog until its lag falls below this part of its threshold; otherwise the flow would switch back and
forth."""
MOST_GROWTH = 8.0
"""The largest ratio between a micro-batch and the one before: the time of a small one is not only spent on its rows."""
IS_FULL = 0.5
"""A micro-batch that read less than this part of its limit was not bounded by it, and does not show how large one may be."""


@dataclass(frozen=True)
class BacklogSettings:
    """The backlog options of one source.

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
    """The observations of a source at one moment.

    Attributes:
        is_history: whether it reads what existed at its start: a table's first snapshot, or a hybrid source's relation before the
            last.
        lag: the age of its oldest unread record; None: there is none, or it is unknown.
        unread: the unread amount, in `unit`; None: unknown.
        unit: bytes, offsets or files.
        reported: isProcessingBacklog from a function of the user's, which decides alone; None: there is no such function.
    """

    is_history: bool = False
    lag: timedelta | None = None
    unread: float | None = None
    unit: str = ""
    reported: bool | None = None

    @property
    def has_unread(self) -> bool | None:
        """Whether anything is unread; None: unknown. A source may know the age of what is unread, and not the amount."""
        if self.unread or self.lag is not None:
            return True
        return None if self.unread is None else False


class SourceBacklog:
    """isProcessingBacklog of one source: the last report counts. Not thread-safe."""

    def __init__(self, settings: BacklogSettings) -> None:
        self.settings = settings
        self.look = SourceLook()
        self.is_processing_backlog = False
        self._late_looks = 0

    def see(self, look: SourceLook, is_first: bool = False) -> None:
        """Take in a new observation; the first one takes effect at once."""
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
    """A micro-batch that ran in backlog.

    Attributes:
        size: the size in the pace when it was planned.
        fill: the share of its limit that it read, for the source with the largest share; None: unknown.
        seconds: its duration, in seconds.
    """

    size: float
    fill: float | None
    seconds: float


class Pacer:
    """The pace of one flow. Not thread-safe.

    Args:
        interval: `execution.checkpointing.interval`.
        sources: the options of each source, by name.
    """

    def __init__(self, interval: timedelta | None, sources: Mapping[str, BacklogSettings]) -> None:
        self._interval = interval
        self.sources = {name: SourceBacklog(settings) for name, settings in sources.items()}
        self._size = 1.0

    def see(self, looks: Mapping[str, SourceLook], is_first: bool = False) -> None:
        """Take in observations of the running sources; a source that has ended or failed no longer counts."""
        for name, source in self.sources.items():
            source.see(looks.get(name, SourceLook()), is_first)

    def note_batch(self, taken: BacklogBatch) -> None:
        """Size the next micro-batch by the throughput of the last one, so that it takes about the interval."""
        wanted = self._backlog_interval().total_seconds()
        if not wanted or (taken.fill is not None and taken.fill < IS_FULL):
            return
        factor = min(max(wanted / max(taken.seconds, 0.001), 1 / MOST_GROWTH), MOST_GROWTH)
        self._size = taken.size * (1.0 if taken.fill is None else min(taken.fill, 1.0)) * factor

    @property
    def phase(self) -> Phase:
        """The phase of the flow: in backlog if and only if one of its running sources is."""
        return Phase.BACKLOG if any(source.is_processing_backlog for source in self.sources.values()) else Phase.LIVE

    @property
    def pace(self) -> Pace:
        """The pace of the next micro-batches."""
        if self.phase is Phase.LIVE:
            return Pace(Phase.LIVE, self._interval)
        return Pace(Phase.BACKLOG, None, self._size if self._backlog_interval() else None)

    def _backlog_interval(self) -> timedelta:
        """Return the shortest interval of the sources in backlog; zero, which stands for no checkpoint, counts as the longest."""
        asked = [source.settings.interval for source in self.sources.values() if source.is_processing_backlog]
        return min((each for each in asked if each), default=timedelta())
