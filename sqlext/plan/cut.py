"""Cuts: the versions of first sources, which nobody here keeps, that the content of a table is made of.

A query over several tables is repeatable if all of them are at one cut. Their versions are found by going back: whatever is ahead
of the others in a source that it shares with them goes back to where it was not. What a table has of a source never gets older
from version to version, so the first versions that agree are the newest that do. Knows no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlext.plan.lineage import place
from sqlext.plan.view_spec import SourceVersion


@dataclass(frozen=True)
class Cut:
    """What the content of a table is made of.

    Attributes:
        sources: the version of each first source, by name.
        mixed: the names of sources of which it has no single version: it was read at several, or has none.
    """

    sources: Mapping[str, SourceVersion] = field(default_factory=dict)
    mixed: tuple[str, ...] = ()

    @property
    def by_place(self) -> Mapping[str, SourceVersion]:
        """The version of each first source, by its folder."""
        return {place(each.location): each for each in self.sources.values()}


def merged(cuts: Iterable[Cut]) -> Cut:
    """Return the cut of what reads tables that have these cuts: sources of which they have different versions are mixed."""
    found: dict[str, tuple[str, SourceVersion]] = {}
    mixed: dict[str, None] = {}
    for cut in cuts:
        mixed |= dict.fromkeys(cut.mixed)
        for name, each in cut.sources.items():
            first_name, first = found.setdefault(place(each.location), (name, each))
            if first != each:
                mixed[first_name] = None
    sources = {name: each for name, each in found.values() if name not in mixed}
    return Cut(dict(sorted(sources.items())), tuple(sorted(mixed)))


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, with its cut."""

    version: int
    cut: Cut


@dataclass(frozen=True)
class TableHistory:
    """A table of which a version is to be found.

    Attributes:
        name: for messages.
        versions: its versions, newest first, those left out whose cut is that of one before; made anew at each call.
        least: the version before which it must not be.
    """

    name: str
    versions: Callable[[], Iterator[TableVersion]]
    least: int = 0


class NoSharedCut(Exception):  # noqa: N818  # an answer, of which each caller makes an error of its own, or none
    """No versions of the tables are at one cut; the message says why, without a full stop."""


def shared_cut(tables: Sequence[TableHistory]) -> list[TableVersion]:
    """Return the newest version of each table such that all are at one cut.

    Raises:
        NoSharedCut: there are none.
    """
    ways = [_Way(table) for table in tables]
    while True:
        least: dict[str, SourceVersion] = {}
        for way in ways:
            for key, each in way.at.cut.by_place.items():
                if key in least and least[key].id != each.id:
                    raise NoSharedCut(f"{way.table.name} is made of a table in {each.location} that was replaced meanwhile")
                least[key] = min(least.get(key, each), each, key=lambda found: found.version)
        ahead = [way for way in ways if not way.is_at(least)]
        if not ahead:
            return [way.at for way in ways]
        for way in ahead:
            way.go_back(least)


class _Way:
    """A table on its way back."""

    def __init__(self, table: TableHistory) -> None:
        self.table = table
        self._versions = table.versions()
        self.at = self._next(f"{table.name} has no version whose sources are known")

    def is_at(self, least: Mapping[str, SourceVersion]) -> bool:
        """Return whether no source of the version is newer than in `least`, and each has one version."""
        return not self.at.cut.mixed and all(each.version <= least[key].version for key, each in self.at.cut.by_place.items())

    def go_back(self, least: Mapping[str, SourceVersion]) -> None:
        """Go to the newest version that is nowhere ahead of `least`."""
        ahead = ", ".join(f"{name} {each.version}" for name, each in self.at.cut.sources.items())
        behind = ", ".join(str(least[key].version) for key in self.at.cut.by_place if key in least)
        because = f"{self.table.name} has no version at the cut of the others: of {ahead}, they have {behind}"
        while not self._is_within(least):
            self.at = self._next(because)

    def _is_within(self, least: Mapping[str, SourceVersion]) -> bool:
        known = {key: each for key, each in self.at.cut.by_place.items() if key in least}
        return not self.at.cut.mixed and all(
            each.id == least[key].id and each.version <= least[key].version for key, each in known.items()
        )

    def _next(self, because: str) -> TableVersion:
        found = next(self._versions, None)
        if found is None or found.version < self.table.least:
            raise NoSharedCut(because)
        return found
