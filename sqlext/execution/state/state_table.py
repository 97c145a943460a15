"""A Delta table of stored rows that only a flow may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from sqlext.errors import FlowError
from sqlext.execution.delta import commit
from sqlext.execution.delta.foreign_commits import ForeignCommit, ForeignCommits
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import delta_tables


class StateTable:
    """See the module's docstring. Used by the flush thread only.

    Args:
        spark: the session of the flow's commits.
        location: the location of the table.
        spec, epoch: the flow and the epoch of its driver, whose commits are not foreign.
    """

    def __init__(self, spark: SparkSession, location: str, spec: FlowSpec, epoch: int) -> None:
        self._spark = spark
        self.location = location
        self._spec = spec
        self._epoch = epoch
        self._others = ForeignCommits(spark, location, spec.id)

    def table(self) -> DeltaTable:
        """Return the table."""
        return DeltaTable.forPath(self._spark, self.location)

    def check(self) -> None:
        """Raise FlowError if others have changed stored rows since the flow's last commit."""
        self.refuse_changes_of_others(delta_tables.version(self._spark, self.location))

    def _identity(self, info: commit.CommitInfo, version: int) -> CommitIdentity:
        """Return the identity of a commit.

        Args:
            info: the description of the flush.
            version: the version of the table that was read.
        """
        return CommitIdentity(self._spec.application, info.last_batch, replace(info, read_version=version).to_json())

    def refuse_changes_of_others(self, version: int) -> None:
        """Raise FlowError if others committed changes since the flow's last commit, or since it created the table.

        Also if the log does not say so any more. Where commits lie elsewhere than in the log, only those in it are known.
        """
        found = self._others.since_own(version)
        self._refuse(found.commits)
        if not found.is_all and delta_tables.has_commits_in_log(delta_tables.snapshot(self._spark, self.location)):
            raise FlowError(
                f"The log of the table in {self.location} does not reach back to the last commit of flow `{self._spec.name}`, so "
                "it does not say whether others have changed rows that hold the flow's state. Recompute the table with REFRESH "
                "STREAMING TABLE .. FULL."
            )

    def _refuse_changes_since(self, version: int) -> None:
        """Raise FlowError, after a commit of this driver, if others committed changes since `version` was read."""
        self._refuse(self._others.after(version, self._epoch))

    def _refuse(self, found: Sequence[ForeignCommit]) -> None:
        for change in found:
            raise FlowError(
                f"Version {change.version} of the table in {self.location} ({change.operation}) changed rows that hold the state "
                f"of flow `{self._spec.name}`, so what the flow adds to them would be wrong. Recompute the table with REFRESH "
                "STREAMING TABLE .. FULL."
            )
