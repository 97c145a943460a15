"""Copies of tables: of one that belongs to a flow alone, file by file; of its target, row by row; and the target set back to one.

A copy needs no file of its table, so neither VACUUM nor OPTIMIZE nor the end of the table's log makes it unreadable.

Relies on Delta's private side: OptimisticTransaction, and the deletion vectors of files. Checked with Delta 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from sqlext.execution.delta import delta_log
from sqlext.execution.delta.transaction import (
    CommitIdentity,
    TableTransaction,
    begun,
    commit_actions,
    restore_operation,
)
from sqlext.spark import delta_tables
from sqlext.spark.java import java_of
from sqlext.spark.jvm import active
from sqlext.spark.storage import HadoopPath

_LOG = "_delta_log"
_NEVER = -1
_IN_FOLDER = "u"  # the storage type of a deletion vector in a file of the table's folder


def is_table(folder: HadoopPath) -> bool:
    """Return whether a folder holds a Delta table."""
    return folder.child(_LOG).exists()


def copy_files(spark: SparkSession, table: HadoopPath, place: HadoopPath) -> None:
    """Copy the newest version of a Delta table: its log, and the files of that version. Nobody commits to it meanwhile.

    Raises:
        SetupError: a file cannot be copied.
    """
    with active(spark):
        files = delta_tables.files_of(delta_tables.snapshot(spark, table.location))
        table.child(_LOG).copy_to(place.child(_LOG))
        folder = java_of(spark).org.apache.hadoop.fs.Path(table.location)
        names = {unquote(str(file.path())) for file in files}
        for vector in (file.deletionVector() for file in files):
            if vector is not None and str(vector.storageType()) == _IN_FOLDER:
                path = table.on_same_system(str(vector.absolutePath(folder).toString())).location
                names.add(path.removeprefix(table.location).lstrip("/"))
        for name in sorted(names):
            table.child(name).copy_to(place.child(name))


def take_over(spark: SparkSession, table: HadoopPath, before: str, identity: CommitIdentity) -> None:
    """Note in a copy that another application has what an earlier one has committed, as version for version.

    Args:
        spark: the session.
        table: the copy.
        before: the earlier application; a table without a transaction of it stays as it is.
        identity: of the commit; its version is not looked at.
    """
    with active(spark):
        snapshot = delta_tables.snapshot(spark, table.location)
        last = delta_log.last_transaction(spark, table.location, before, int(snapshot.version()))
        if last is not None:
            same = CommitIdentity(identity.app_id, last, identity.metadata)
            commit_actions(spark, begun(spark, snapshot), [], restore_operation(spark, int(snapshot.version())), same)


def copy_rows(spark: SparkSession, location: str, version: int, place: HadoopPath) -> None:
    """Copy the rows of one version of a Delta table into a folder of Parquet files."""
    delta_tables.rows_at(spark, location, version).write.parquet(place.location)


def check_definition(spark: SparkSession, location: str, metadata: str) -> None:
    """See that a Delta table takes the columns and properties that it had; `metadata` is as for `set_back`.

    Raises:
        AnalysisException: Delta's reason against it.
    """
    snapshot = delta_tables.snapshot(spark, location)
    if metadata != delta_tables.metadata_of(snapshot):
        with active(spark):
            begun(spark, snapshot).updateMetadata(delta_tables.metadata_from(spark, metadata), False)


def set_back(
    spark: SparkSession,
    snapshot: Any,
    version: int,
    metadata: str,
    copy: HadoopPath,
    identity: CommitIdentity,
    closed: Sequence[str],
) -> None:
    """Set a Delta table back to a copy of its rows in one commit; nothing if the commit's transaction is there.

    Args:
        spark: the session.
        snapshot: the newest version of the table.
        version, metadata: of the table when it was copied; see `TableTransaction.go_back`.
        copy: the folder of the copy.
        identity: of the commit.
        closed: applications that must commit no more.

    Raises:
        DeltaConcurrentModificationException: somebody else has changed the table since.
    """
    done = {app: snapshot.transactions().get(app) for app in (identity.app_id, *closed)}
    if done.pop(identity.app_id).isDefined():
        return
    table = TableTransaction(spark, snapshot, None, is_small=False)
    table.go_back(version, metadata, {app: int(last.get()) if last.isDefined() else _NEVER for app, last in done.items()})
    rows = spark.read.schema(_without_metadata(delta_tables.columns_in(metadata))).parquet(copy.location)
    table.write_whole(rows, identity)


def _without_metadata(columns: StructType) -> StructType:
    """Return columns as the copy has them: what Delta notes of a column is not Parquet's."""
    return StructType([StructField(column.name, column.dataType) for column in columns])
