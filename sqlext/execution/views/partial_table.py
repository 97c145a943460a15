"""The table of partial results that lies beside a view: see `partials.py`.

It is written before the view, whose commit names its version. After a crash in between it is ahead of the view, so a refresh
first sets it back to the version that the view names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.delta.compaction import Compaction
from sqlext.execution.delta.delta_log import actions, info_of
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.execution.views.history import changes_rows
from sqlext.execution.views.merging import Mergeable
from sqlext.execution.views.writing import Identify, ViewTable
from sqlext.quoting import quote
from sqlext.spark import delta_tables, failures
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.storage import HadoopPath

NONE = -1
"""The version of no table: the view has no partial results."""
INEXACT = -2
"""The version of no table: the view's results are not computed exactly from partial ones."""


class PartialTable:
    """The table of one view. Not thread-safe: it is used by the view's refresh.

    Args:
        spark: the view's session.
        place: the table's folder, which need not exist.
        view: the view's name, for logs.
        view_id: the view.
    """

    def __init__(self, spark: SparkSession, place: HadoopPath, view: str, view_id: str) -> None:
        self._spark = spark
        self._place = place
        self._view_id = view_id
        self._compaction = Compaction(view, view_id, place.location, is_hidden=True)

    def write(self, rows: DataFrame, check: Callable[[], None]) -> int:
        """Replace all rows, and return the new version; create the table if it is not there, or has other columns.

        Args:
            rows: the new rows.
            check: raises if this process must not commit.
        """
        check()
        snapshot = self._snapshot()
        if int(snapshot.version()) < 0:
            target.create_at(self._spark, self._place, rows.schema)
            snapshot = self._snapshot()
        table, identify = self._transaction(snapshot, rows.columns)
        if _columns(delta_tables.schema_of(snapshot)) != _columns(rows.schema):
            return table.write_anew(rows, identify).version
        return table.write_whole(rows, identify).version

    def begin(self, version: int, columns: Sequence[str]) -> Any:
        """Make a version the newest one, and compact the table if it has many small files.

        Returns:
            Delta's Snapshot with the rows of that version, to which `add` and `replace` are to be applied: the table may be ahead
            of it a moment later, since any process may refresh the view.

        Raises:
            UnsupportedError: the table is gone, or its old version is.
        """
        snapshot = self._snapshot()
        if int(snapshot.version()) < 0 or delta_tables.schema_of(snapshot).names != [*columns]:
            raise UnsupportedError("the partial results beside the view are gone")
        seen = int(snapshot.version())
        if seen != version:
            try:
                self._spark.sql(f"RESTORE TABLE delta.{quote(self._place.location)} TO VERSION AS OF {version}").collect()
            except SPARK_ERRORS as error:
                raise UnsupportedError(f"the partial results beside the view are gone: {failures.reason_of(error)}") from None
        self._compaction.after_flush(self._spark, lambda: DeltaTable.forPath(self._spark, self._place.location))
        snapshot = self._snapshot()
        changed_by = self._changed_by(seen, int(snapshot.version()))
        # With nothing to set back, say after a VACUUM, the RESTORE has found the rows of that version, and changed none.
        is_there = not changed_by or (seen != version and changed_by == "RESTORE")
        return snapshot if is_there else self.begin(version, columns)

    def _changed_by(self, after: int, until: int) -> str:
        """Return the operation of the newest commit after a version that changed rows; empty: none did."""
        for version in range(until, after, -1):
            commit = actions(self._spark, self._place.location, version) or []
            if changes_rows(commit):
                return str(info_of(commit).get("operation"))
        return ""

    def add(self, to: Any, found: Mergeable, columns: Sequence[str], differences: DataFrame, rows: int) -> int:
        """Add to the groups of a snapshot what changed; see `ViewTable.merge_groups`. Returns the new version.

        Raises:
            DeltaConcurrentModificationException: another process has changed the table since.
        """
        table, identify = self._transaction(to, columns)
        written = table.merge_groups(found, differences, rows, identify)
        if written is None:
            raise UnsupportedError("the partial results do not tell which groups are empty now")
        return written.version

    def replace(self, of: Any, columns: Sequence[str], keys: DataFrame, rows: DataFrame) -> int:
        """Replace the rows of some groups, and return the new version.

        Args:
            of: the snapshot that has the other groups.
            columns: the table's columns.
            keys: the groups, each once, by the table's key columns.
            rows: their new rows.

        Raises:
            DeltaConcurrentModificationException: another process has changed the table since.
        """
        table, identify = self._transaction(of, columns)
        return table.replace_keys(keys.columns, keys, rows, identify).version

    def rows(self, version: int) -> DataFrame:
        """Return the rows of a version."""
        return delta_tables.rows_at(self._spark, self._place.location, version)

    def _snapshot(self) -> Any:
        return delta_tables.snapshot(self._spark, self._place.location)

    def _transaction(self, snapshot: Any, columns: Sequence[str]) -> tuple[ViewTable, Identify]:
        """Begin a transaction; its number, by which Delta's writer leaves out what was written before, is the table's version."""

        def identify(deleted: int, inserted: int) -> CommitIdentity:
            made = {"view": self._view_id, "rows_deleted": deleted, "rows_inserted": inserted}
            return CommitIdentity(self._view_id, int(snapshot.version()) + 1, json.dumps({"sqlext-partials": made}))

        return ViewTable(self._spark, snapshot, columns), identify


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]
