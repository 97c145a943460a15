"""Commits by others on a table that only a flow may write, found in the table's log.

A flow's commit records the version of the table from which it was computed. So a change between the two is found whenever the
flow looks again, also after a restart, and not only by the driver that was running then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sqlext.errors import FlowError
from sqlext.execution.delta.delta_log import actions, info_of, last_transaction
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import delta_tables
from sqlext.spark.failures import SPARK_ERRORS

_ADD_NO_ROWS = frozenset(("DELETE", "UPDATE", "TRUNCATE"))
_Actions = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ForeignCommit:
    """A commit by somebody else that changed rows."""

    version: int
    operation: str

    @property
    def adds_rows(self) -> bool:
        """Whether the commit may have added rows."""
        return self.operation not in _ADD_NO_ROWS


@dataclass(frozen=True)
class ForeignHistory:
    """The commits by others in a table's log.

    Attributes:
        commits: newest first.
        is_all: whether the log reaches back far enough to contain all of them.
    """

    commits: tuple[ForeignCommit, ...]
    is_all: bool = True


class ForeignCommits:
    """The commits by others on one table.

    Args:
        spark: the session.
        location: the location of the table.
        flow_id: the id of the flow whose commits are not foreign.
    """

    def __init__(self, spark: SparkSession, location: str, flow_id: str) -> None:
        self._spark = spark
        self._location = location
        self._flow_id = flow_id

    def since_own(self, version: int) -> ForeignHistory:
        """Return the commits up to `version` that the flow's last one did not know of, or all since the table was created."""
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
            found += self._changes(version, commit)
            version -= 1
        return ForeignHistory(tuple(found))

    def by_others_since(self, version: int, newest: int | None = None) -> ForeignHistory:
        """Return the commits after `version`, up to `newest`, that are not the flow's, whichever of its drivers made those."""
        found: list[ForeignCommit] = []
        newest = delta_tables.version(self._spark, self._location) if newest is None else newest
        for later in range(newest, version, -1):
            commit = actions(self._spark, self._location, later)
            if commit is None:
                return ForeignHistory(tuple(found), is_all=False)
            found += [] if _said(commit).get("flow_id") == self._flow_id else self._changes(later, commit)
        return ForeignHistory(tuple(found))

    def after(self, version: int, epoch: int) -> tuple[ForeignCommit, ...]:
        """Return the commits after `version`, except those of the flow's driver with this epoch."""
        return self._between(version, delta_tables.version(self._spark, self._location) + 1, epoch)

    def _between(self, after: int, before: int, epoch: object) -> tuple[ForeignCommit, ...]:
        found: list[ForeignCommit] = []
        for version in reversed(range(after + 1, before)):
            commit = actions(self._spark, self._location, version) or []
            said = _said(commit)
            if (said.get("flow_id"), said.get("epoch")) != (self._flow_id, epoch):
                found += self._changes(version, commit)
        return tuple(found)

    def _changes(self, version: int, commit: _Actions) -> list[ForeignCommit]:
        changes = [each.get("add") or each.get("remove") for each in commit]
        has_other_rows = any(isinstance(change, dict) and change.get("dataChange") for change in changes)
        if has_other_rows or moves_columns(self._spark, self._location, version, commit):
            return [ForeignCommit(version, str(info_of(commit).get("operation", "a commit")))]
        return []


def last_said(spark: SparkSession, location: str, version: int, flow_id: str) -> dict[str, Any]:
    """Return what a flow's newest commit up to `version` says; empty: it has made none, or the log has it no more."""
    for earlier in range(version, -1, -1):
        commit = actions(spark, location, earlier)
        if commit is None:
            break
        said = _said(commit)
        if said.get("flow_id") == flow_id:
            return said
    return {}


def refuse_rows_of_others(spark: SparkSession, spec: FlowSpec, version: int) -> None:
    """Check the target before an aggregate without GROUP BY writes its one row, which has no key to distinguish it from others.

    Args:
        spark: the session.
        spec: the flow.
        version: the version of the target.

    Raises:
        FlowError: the target holds rows that the flow has not written.
    """
    location = spec.target_location
    if last_transaction(spark, location, spec.application, version) is None:
        found, most = ForeignHistory(()), 0
    else:
        found = ForeignCommits(spark, location, spec.id).since_own(version)
        most = 0 if any(each.adds_rows for each in found.commits) else 1
        if found.is_all and most:
            return
    if len(spark.read.format("delta").option("versionAsOf", version).load(location).take(most + 1)) > most:
        raise _rows_of_others(spec, found.commits)


def refuse_rows_added_since(spark: SparkSession, spec: FlowSpec, version: int, epoch: int) -> None:
    """Check, after the flow's commit, that nobody added rows between `version` and the commit.

    Raises:
        FlowError: others have added rows.
    """
    found = ForeignCommits(spark, spec.target_location, spec.id).after(version, epoch)
    if any(each.adds_rows for each in found):
        raise _rows_of_others(spec, found)


def _rows_of_others(spec: FlowSpec, commits: Sequence[ForeignCommit]) -> FlowError:
    table = ".".join(spec.target)
    by = next((f" Version {each.version} ({each.operation}) added some." for each in commits if each.adds_rows), "")
    return FlowError(
        f"The aggregate of flow `{spec.name}` has no GROUP BY, so it keeps one row, but {table} holds rows of others, which it "
        f"would overwrite.{by} Move them to another table and empty this one (TRUNCATE TABLE {table}). After START FLOW, the "
        "flow writes its row again with the next input."
    )


def moves_columns(spark: SparkSession, location: str, version: int, commit: _Actions) -> bool:
    """Return whether a commit has taken the name of a column, and perhaps given it to another one, which has other values.

    With column mapping, DROP and RENAME COLUMN do that without a change of any file; ADD COLUMN and another RENAME bring the name
    back.

    Args:
        spark, location: the table.
        version: the version that the commit has made.
        commit: its actions.
    """
    defined = [action for action in commit if "metaData" in action]
    if not defined or version == 0:
        return False
    try:
        before = _ids_of(delta_tables.schema_of(delta_tables.snapshot_at(spark, location, version - 1)))
    except SPARK_ERRORS:  # the log does not reach back, as whoever goes through it finds out next
        return False
    after = _ids_of(delta_tables.columns_in(json.dumps(defined[-1])))
    return any(after.get(name) != column for name, column in before.items())


def _ids_of(columns: StructType) -> dict[str, int]:
    return {each.name: each.metadata[delta_tables.COLUMN_ID] for each in columns if delta_tables.COLUMN_ID in each.metadata}


def _is_making(commit: _Actions) -> bool:
    """Return whether a commit created or recreated a table."""
    operation = str(info_of(commit).get("operation"))
    return "TABLE" in operation and "CREATE" in operation


def _said(commit: _Actions) -> dict[str, Any]:
    """Return the metadata that a flow put into its commit."""
    try:
        metadata = json.loads(str(info_of(commit).get("userMetadata")))
    except ValueError:
        return {}
    said = metadata.get("sqlext") if isinstance(metadata, dict) else None
    return said if isinstance(said, dict) else {}
