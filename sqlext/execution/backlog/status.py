"""What a flow tells of its backlog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlext.execution.backlog.pacer import SourceLook
from sqlext.execution.streaming.pace import Phase


@dataclass(frozen=True)
class SourceBacklogStatus:
    """What is known of one source; see `pacer.SourceLook`.

    Attributes:
        alias: what the query calls it; two streams may have one.
    """

    alias: str
    is_processing_backlog: bool
    look: SourceLook


@dataclass(frozen=True)
class Switch:
    """A change of phase.

    Attributes:
        because: what is seen of the sources, for people.
    """

    at: datetime
    phase: Phase
    because: str


@dataclass(frozen=True)
class BacklogStatus:
    """How a flow stands.

    Attributes:
        sources: by name.
        lag: the age of the oldest record that no micro-batch has taken.
        catch_up: what the rest takes at the throughput of the last large micro-batch; None: unknown, or nothing is left.
        switches: the newest ones since it started here, of `switch_count` in all.
    """

    phase: Phase = Phase.LIVE
    sources: Mapping[str, SourceBacklogStatus] = field(default_factory=dict)
    lag: timedelta | None = None
    catch_up: timedelta | None = None
    switches: tuple[Switch, ...] = ()
    switch_count: int = 0

    @property
    def unread(self) -> float | None:
        """How much the sources have that no micro-batch has taken, in units of theirs; None: one of them cannot tell."""
        found = [source.look.unread for source in self.sources.values()]
        return None if None in found else sum(each for each in found if each is not None)

    @property
    def streams(self) -> frozenset[str]:
        """The aliases of the sources in backlog."""
        return frozenset(source.alias for source in self.sources.values() if source.is_processing_backlog)


def because(sources: Mapping[str, SourceBacklogStatus]) -> str:
    """What is seen of each source, for people."""
    return "; ".join(f"{name}: {describe(source.look)}" for name, source in sources.items())


def describe(look: SourceLook) -> str:
    """What is seen of a source, for people."""
    parts = ["reads its history"] if look.is_history else []
    parts += [f"a function says {str(look.reported).lower()}"] if look.reported is not None else []
    parts += [f"lag {look.lag.total_seconds():.0f} s"] if look.lag is not None else []
    parts += [f"{look.unread:,.0f} {look.unit} unread"] if look.unread else []
    return ", ".join(parts) or "nothing unread"
