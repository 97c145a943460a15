"""A Delta table's log, read as the small files that it consists of.

Delta's own ways to the same facts run Spark jobs: `Snapshot.sizeInBytes` takes 0.5 to 1.5 seconds after each commit of a small
table, `history()` takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from sqlext.errors import NotFoundError, Position, UnsupportedError
from sqlext.plan.records import lines_of
from sqlext.quoting import quote_parts
from sqlext.spark import delta_tables
from sqlext.spark.storage import HadoopPath

_FORGETS = "delta.setTransactionRetentionDuration"
REMEMBERS = {f"spark.databricks.delta.properties.defaults.{_FORGETS.removeprefix('delta.')}": None}
"""Settings with which a table is made that never forgets which transactions it has: they tell what a flow has written."""


@dataclass(frozen=True)
class TableSize:
    """The data files of one version of a table: their number, and their total size in bytes."""

    files: int
    bytes: int


def table_size(spark: SparkSession, location: str, version: int | None = None) -> TableSize | None:
    """Return the size in the version checksum file (Delta's protocol, "Version Checksum File"); None if its writer wrote none.

    Args:
        spark: the session.
        location: the location of the table.
        version: the version of the table; None: the newest one.
    """
    version = delta_tables.version(spark, location) if version is None else version
    try:
        found = json.loads(_file(spark, location, version, "crc").read_text())
        return TableSize(int(found["numFiles"]), int(found["tableSizeBytes"]))
    except (NotFoundError, ValueError, KeyError):
        return None


def size_at(spark: SparkSession, location: str, version: int) -> TableSize | None:
    """Return what `table_size` does, of a version whose snapshot is read anyway: Delta has then read the checksum file, too."""
    checksum = delta_tables.snapshot_at(spark, location, version).checksumOpt()
    return TableSize(int(checksum.get().numFiles()), int(checksum.get().tableSizeBytes())) if checksum.isDefined() else None


def number_of_files(spark: SparkSession, location: str) -> int:
    """Return the number of a table's data files; 0 where its newest commit does not say."""
    size = table_size(spark, location)
    return 0 if size is None else size.files


def last_transaction(spark: SparkSession, location: str, app_id: str, version: int | None = None) -> int | None:
    """Return the `version` of the newest transaction that `app_id` committed to a table; None: there is none.

    Args:
        spark: the session.
        location: the location of the table.
        app_id: the transaction's application.
        version: the version of the table, as for `table_size`.

    Raises:
        UnsupportedError: the table forgets them.
    """
    version = delta_tables.version(spark, location) if version is None else version
    try:
        known = json.loads(_file(spark, location, version, "crc").read_text())["setTransactions"]
        return next((int(each["version"]) for each in known if each["appId"] == app_id), None)
    except (NotFoundError, ValueError, KeyError, TypeError):  # as above, or too many transactions to list
        properties = delta_tables.properties_of(spark, delta_tables.snapshot(spark, location))
        refuse_forgetting(quote_parts(("delta", location)), properties)
        return delta_tables.last_transaction(spark, location, app_id)


def refuse_forgetting(table: str, properties: Mapping[str, str], position: Position | None = None) -> None:
    """Raise UnsupportedError if a table is to forget what was committed to it: rows that it has would come in again.

    Args:
        table: its name, as SQL has it.
        properties: its properties, or those of the statement that makes it.
        position: of the statement.
    """
    found = next((value for key, value in properties.items() if key.lower() == _FORGETS.lower()), None)
    if found is not None:
        raise UnsupportedError(
            f"The table {table} has `{_FORGETS}` = `{found}`, so it forgets which rows a flow has brought into it. Leave the "
            f"property out, or: ALTER TABLE {table} UNSET TBLPROPERTIES ('{_FORGETS}')",
            position,
        )


def version_of(spark: SparkSession, location: str, app_id: str, number: int | None, newest: int) -> int | None:
    """Return the version in which `app_id` committed its transaction of a number; None: the log does not reach back to it.

    Args:
        newest: the version to look from.
    """
    for version in range(newest, -1, -1):
        found = actions(spark, location, version)
        if found is None:
            return None
        if any(a["txn"]["appId"] == app_id and a["txn"]["version"] == number for a in found if "txn" in a):
            return version
    return None


def exists(spark: SparkSession, location: str) -> bool:
    """Return whether a table was ever committed there; for tables whose log nobody cleans up."""
    return _file(spark, location, 0, "json").exists()


def commit_info(spark: SparkSession, location: str, version: int) -> dict[str, Any]:
    """Return the commitInfo of one version; empty if the commit's file has been cleaned up."""
    try:
        found = actions(spark, location, version) or []
    except ValueError:
        return {}
    return info_of(found)


def info_of(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the commitInfo among a commit's actions; empty if there is none."""
    return next((dict(action["commitInfo"]) for action in found if "commitInfo" in action), {})


def actions(spark: SparkSession, location: str, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of one version's commit; None if its file has been cleaned up."""
    try:
        return [json.loads(line) for line in lines_of(_file(spark, location, version, "json").read_text())]
    except NotFoundError:
        return None


def data_files(found: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Mapping[str, Any]]:
    """Return the files that a commit's actions `add` or `remove`, by path, without those of which no row has changed."""
    return {file["path"]: file for action in found if (file := action.get(kind)) and file["dataChange"]}


def marks_of(file: Mapping[str, Any]) -> int | None:
    """Return how many rows of an added or removed file its deletion vector marks; None if it has none."""
    vector = file.get("deletionVector")
    return int(vector["cardinality"]) if vector else None


def written_at(spark: SparkSession, location: str, version: int) -> datetime | None:
    """Return when a version was committed; None if its file has been cleaned up."""
    statuses = _file(spark, location, version, "json").statuses()
    return datetime.fromtimestamp(statuses[0].getModificationTime() / 1000, UTC) if statuses else None


def _file(spark: SparkSession, location: str, version: int, kind: str) -> HadoopPath:
    return HadoopPath(spark, location).child("_delta_log", f"{version:020d}.{kind}")
