"""The backlog of a flow, as its status shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlext.execution.backlog.pacer import SourceLook
from sqlext.execution.streaming.pace import Phase


@dataclass(frozen=True)
class SourceBacklogStatus:
    """The backlog of one source; see `pacer.SourceLook`.

    Attributes:
        alias: the source's alias in the query; two streams may share one.
    """

    alias: str
    is_processing_backlog: bool
    look: SourceLook


@dataclass(frozen=True)
class Switch:
    """A change of phase.

    Attributes:
        because: the observations of the sources, as text for people.
    """

    at: datetime
    phase: Phase
    because: str


@dataclass(frozen=True)
class BacklogStatus:
    """The phase and backlog of a flow.

    Attributes:
        sources: the status of each source, by name.
        lag: the age of the oldest record that no micro-batch has read.
        catch_up: the time that the rest takes at the throughput of the last large micro-batch; None: unknown, or nothing is left.
        switches: the newest changes of phase since the flow started here, of `switch_count` in all.
    """

    phase: Phase = Phase.LIVE
    sources: Mapping[str, SourceBacklogStatus] = field(default_factory=dict)
    lag: timedelta | None = None
    catch_up: timedelta | None = None
    switches: tuple[Switch, ...] = ()
    switch_count: int = 0

    @property
    def unread(self) -> float | None:
        """The amount that no micro-batch has read yet, in the sources' units; None: it is unknown for one of them."""
        found = [source.look.unread for source in self.sources.values()]
        return None if None in found else sum(each for each in found if each is not None)

    @property
    def has_unread(self) -> bool | None:
        """Whether any source has something that no micro-batch has read yet; None: unknown."""
        found = [source.look.has_unread for source in self.sources.values()]
        return True if True in found else None if None in found else False

    @property
    def streams(self) -> frozenset[str]:
        """The aliases of the sources in backlog."""
        return frozenset(source.alias for source in self.sources.values() if source.is_processing_backlog)


def because(sources: Mapping[str, SourceBacklogStatus]) -> str:
    """Describe the observations of each source, for people."""
    return "; ".join(f"{name}: {describe(source.look)}" for name, source in sources.items())


def describe(look: SourceLook) -> str:
    """Describe the observations of one source, for people."""
    parts = ["reads its history"] if look.is_history else []
    parts += [f"a function says {str(look.reported).lower()}"] if look.reported is not None else []
    parts += [f"lag {look.lag.total_seconds():.0f} s"] if look.lag is not None else []
    parts += [f"{look.unread:,.0f} {look.unit} unread"] if look.unread else []
    return ", ".join(parts) or "nothing unread"
