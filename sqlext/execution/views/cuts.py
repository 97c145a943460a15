"""The cuts of tables, from their own commits: a view's names its cut, a flow's how far it has read its sources.

A table that neither has made is a first source: its versions are cuts of their own. So is the table of a flow that reads what has
no versions, or that reads a table anew with each micro-batch; and a table that several flows write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sqlext.execution.delta.delta_log import actions, info_of
from sqlext.execution.views.history import Commit, changes_rows, report_in
from sqlext.plan.cut import Cut, TableVersion, merged
from sqlext.plan.job_graph import FLOW_PROPERTY, SHARED_PROPERTY
from sqlext.plan.view_spec import VIEW_PROPERTY, SourceVersion
from sqlext.spark import delta_tables

_FARTHEST = 500
"""How many versions are looked back for a cut."""


class Cuts:
    """The cuts of tables. Not thread-safe. What a commit says never changes, so it is read once.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._known: dict[tuple[str, str, int], Cut] = {}
        self._keepers: dict[str, str] = {}

    def of(self, sources: Mapping[str, SourceVersion]) -> Cut:
        """Return the cut of what reads some tables.

        Args:
            sources: their versions, by name.
        """
        return merged(self.at(name, each) for name, each in sources.items())

    def at(self, name: str, source: SourceVersion) -> Cut:
        """Return the cut of a version of a table."""
        key = (source.location, source.id, source.version)
        if key not in self._known:
            self._known[key] = self._at(name, source)
        return self._known[key]

    def history(self, name: str, source: SourceVersion) -> Iterator[TableVersion]:
        """Yield a version of a table, and those before it, newest first, each with its cut; of equal cuts, the newest one.

        Of a table that a flow or view keeps, the commits are read, so it ends after some hundreds.
        """
        keeper, last = self._keeper(source.location), None
        for version in range(source.version, -1, -1):
            if keeper and version < source.version - _FARTHEST:
                return
            if keeper and version < source.version:
                commit = actions(self._spark, source.location, version)
                if commit is None:
                    return  # the log no longer has it
                if _said(commit, keeper, version) is None:
                    continue  # no commit of the keeper's: its rows belong to the one before it, or are another's
            cut = self.at(name, SourceVersion(source.id, version, source.location))
            if cut != last:
                yield TableVersion(version, cut)
            last = cut

    def _at(self, name: str, source: SourceVersion) -> Cut:
        keeper, own, is_foreign = self._keeper(source.location), Cut({name: source}), False
        for version in range(source.version, -1, -1) if keeper else ():
            commit = actions(self._spark, source.location, version)
            if commit is None:
                break
            said = _said(commit, keeper, version)
            if said is not None and said.cut is not None:
                return Cut(mixed=(name,)) if is_foreign else self._resolved(said)
            if said is not None:
                break
            is_foreign = is_foreign or changes_rows(commit)
        return own

    def _resolved(self, said: _Said) -> Cut:
        """Return a cut in first sources."""
        assert said.cut is not None  # it was looked at
        return said.cut if said.is_first else merged((self.of(said.cut.sources), Cut(mixed=said.cut.mixed)))

    def _keeper(self, location: str) -> str:
        """Return the id of the flow or view that keeps a table alone; empty: neither does."""
        if location not in self._keepers:
            properties = delta_tables.properties_of(self._spark, delta_tables.snapshot(self._spark, location))
            flow = "" if SHARED_PROPERTY in properties else properties.get(FLOW_PROPERTY)
            self._keepers[location] = properties.get(VIEW_PROPERTY) or flow or ""
        return self._keepers[location]


@dataclass(frozen=True)
class _Said:
    """What a flow or view says of a table in a commit of its own.

    Attributes:
        cut: how far its sources had been read; None: they have no versions.
        is_first: whether it is in first sources, and not in those that a flow reads itself.
    """

    cut: Cut | None
    is_first: bool


def _said(commit: Commit, keeper: str, version: int) -> _Said | None:
    """Return what a commit says; None: it is not the keeper's own."""
    info = info_of(commit)
    report = report_in(info, keeper, version)
    if report is not None:
        return _Said(Cut(report.cut, report.mixed), is_first=True)
    try:
        said = json.loads(str(info.get("userMetadata")))["sqlext"]
        if said["flow_id"] != keeper:
            return None
    except (ValueError, KeyError, TypeError):
        return None
    if "sources" not in said:
        return _Said(None, is_first=False)
    sources = {name: SourceVersion(**each) for name, each in said["sources"].items()}
    return _Said(Cut(sources, tuple(said["mixed"])), is_first=False)
