"""Commits of others on a table in which a flow must be alone, found in the table's log.

A flow's commit names the version of the table that it was made of. So a change that came between the two is found whenever the
flow looks again, also after a restart, and not only by the driver that was there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sqlext.errors import FlowError
from sqlext.execution.delta.delta_log import actions, info_of, last_transaction
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import jvm

_ADD_NO_ROWS = frozenset(("DELETE", "UPDATE", "TRUNCATE"))
_Actions = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ForeignCommit:
    """A commit of somebody else that changed rows."""

    version: int
    operation: str

    @property
    def adds_rows(self) -> bool:
        return self.operation not in _ADD_NO_ROWS


@dataclass(frozen=True)
class ForeignHistory:
    """What the log tells of others.

    Attributes:
        commits: newest first.
        is_all: whether the log reaches back far enough to tell of all of them.
    """

    commits: tuple[ForeignCommit, ...]
    is_all: bool = True


class ForeignCommits:
    """Those on one table.

    Args:
        location: of the table.
        flow_id: whose commits are not foreign.
    """

    def __init__(self, spark: SparkSession, location: str, flow_id: str) -> None:
        self._spark = spark
        self._location = location
        self._flow_id = flow_id

    def since_own(self, version: int) -> ForeignHistory:
        """Commits up to `version` that the flow's last one was not made of, or since the table was made."""
        found: list[ForeignCommit] = []
        while version >= 0:
            commit = actions(self._spark, self._location, version)
            if commit is None:
                return ForeignHistory(tuple(found), is_all=False)
            said = _said(commit)
            if said.get("flow_id") == self._flow_id:
                read, epoch = said.get("read_version"), said.get("epoch")
                return (
                    ForeignHistory((*found, *self._between(read, version, epoch)))
                    if isinstance(read, int)
                    else ForeignHistory(tuple(found))
                )
            if _is_making(commit):
                break
            found += _changes(version, commit)
            version -= 1
        return ForeignHistory(tuple(found))

    def after(self, version: int, epoch: int) -> tuple[ForeignCommit, ...]:
        """Commits after `version`, but for those of the flow's driver with this epoch."""
        return self._between(version, jvm.table_version(self._spark, self._location) + 1, epoch)

    def _between(self, after: int, before: int, epoch: object) -> tuple[ForeignCommit, ...]:
        found: list[ForeignCommit] = []
        for version in reversed(range(after + 1, before)):
            commit = actions(self._spark, self._location, version) or []
            said = _said(commit)
            if (said.get("flow_id"), said.get("epoch")) != (self._flow_id, epoch):
                found += _changes(version, commit)
        return tuple(found)


def refuse_rows_of_others(spark: SparkSession, spec: FlowSpec, version: int) -> None:
    """Before an aggregate without GROUP BY writes its one row, which has no key to tell it from others.

    Args:
        version: of the target.

    Raises:
        FlowError: the target holds rows that the flow has not written.
    """
    location = spec.target_location
    if last_transaction(spark, location, spec.id, version) is None:
        found, most = ForeignHistory(()), 0
    else:
        found = ForeignCommits(spark, location, spec.id).since_own(version)
        most = 0 if any(each.adds_rows for each in found.commits) else 1
        if found.is_all and most:
            return
    if len(spark.read.format("delta").option("versionAsOf", version).load(location).take(most + 1)) > most:
        raise _rows_of_others(spec, found.commits)


def refuse_rows_added_since(spark: SparkSession, spec: FlowSpec, version: int, epoch: int) -> None:
    """The same after the flow's commit, of what came between `version` and that.

    Raises:
        FlowError: others have added rows.
    """
    found = ForeignCommits(spark, spec.target_location, spec.id).after(version, epoch)
    if any(each.adds_rows for each in found):
        raise _rows_of_others(spec, found)


def _rows_of_others(spec: FlowSpec, commits: Sequence[ForeignCommit]) -> FlowError:
    table = ".".join(spec.target)
    by = next((f" Version {each.version}, {each.operation}, added some." for each in commits if each.adds_rows), "")
    return FlowError(
        f"The aggregate of flow `{spec.name}` has no GROUP BY, so it keeps one row, and {table} holds rows of others, which it "
        f"would overwrite.{by} Move them to another table and empty this one (TRUNCATE TABLE {table}); START FLOW then writes "
        "the flow's row again with the next input."
    )


def _changes(version: int, commit: _Actions) -> list[ForeignCommit]:
    changes = [each.get("add") or each.get("remove") for each in commit]
    if any(isinstance(change, dict) and change.get("dataChange") for change in changes):
        return [ForeignCommit(version, str(info_of(commit).get("operation", "a commit")))]
    return []


def _is_making(commit: _Actions) -> bool:
    """Whether a commit made a table, or made it anew."""
    operation = str(info_of(commit).get("operation"))
    return "TABLE" in operation and "CREATE" in operation


def _said(commit: _Actions) -> dict[str, Any]:
    """What a flow says in its commit."""
    try:
        metadata = json.loads(str(info_of(commit).get("userMetadata")))
    except ValueError:
        return {}
    said = metadata.get("sqlext") if isinstance(metadata, dict) else None
    return said if isinstance(said, dict) else {}
