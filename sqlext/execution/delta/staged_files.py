"""Data files that are written into a Delta table's folder by micro-batches, and committed together later.

Until a commit names them, nobody reads them; VACUUM deletes those that no commit has named for a week. They are described by
Delta's own AddFile actions, as JSON, with a fingerprint of the table's schema, properties and protocol: files that were written
for another schema are read and written again.

Relies on Delta's private side: OptimisticTransaction. Checked with Delta 4.4.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial, reduce
from typing import Any
from urllib.parse import unquote

from delta.exceptions import ConcurrentTransactionException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from sqlext.errors import FlowError
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.target import with_nulls
from sqlext.execution.delta.transaction import CommitIdentity, begun, commit_actions, note_read, write_operation, written_files
from sqlext.spark import delta_tables
from sqlext.spark.java import java_of, scala_object, scala_seq
from sqlext.spark.jvm import active
from sqlext.spark.storage import HadoopPath

_FORMAT = 1
_AT_ONCE = 8
"""The number of files that are looked for at once: on an object store, each takes some ten milliseconds."""


@dataclass(frozen=True)
class StagedFiles:
    """The files of one micro-batch.

    Attributes:
        version: the version of the table that they were written for.
        fingerprint: of the table's metadata and protocol in that version.
        files: an AddFile action for each, as JSON.
    """

    version: int
    fingerprint: str
    files: tuple[str, ...]

    @property
    def rows(self) -> int:
        """The number of rows; -1 if the table has no statistics."""
        statistics = [json.loads(file)["add"].get("stats") for file in self.files]
        return sum(json.loads(each)["numRecords"] for each in statistics) if all(statistics) else -1

    def to_json(self) -> str:
        """Return the description of the files."""
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> StagedFiles:
        """Read a description.

        Raises:
            FlowError: another version of sqlext wrote it.
        """
        found = json.loads(text)
        if found.pop("format", None) != _FORMAT:
            raise FlowError(f"Another version of sqlext has written the description of staged files: {text[:100]}")
        return cls(found["version"], found["fingerprint"], tuple(found["files"]))


def stage(rows: DataFrame, location: str) -> StagedFiles | None:
    """Write rows as files of a table, without a commit.

    Args:
        rows: the rows; their columns are the table's.
        location: the location of the table.

    Returns:
        The files; None, and nothing was written, if the table has columns of its own, or its rows need Delta's own writer.
    """
    spark = rows.sparkSession
    with active(spark):
        snapshot = delta_tables.snapshot(spark, location)
        files = written_files(rows, snapshot)
        if files is None:
            return None
    return StagedFiles(int(snapshot.version()), _fingerprint(snapshot), tuple(str(file.json()) for file in files))


def check_files(spark: SparkSession, location: str, staged: Sequence[StagedFiles]) -> None:
    """See that files are still there; a table would be unreadable with a commit of those that are not.

    Raises:
        FlowError: one is gone.
    """
    folder = HadoopPath(spark, location)
    names = [unquote(json.loads(file)["add"]["path"]) for each in staged for file in each.files]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sqlext-files") as pool:
        are_there = pool.map(lambda name: folder.child(name).exists(), names)
    for name, is_there in zip(names, are_there, strict=True):
        if not is_there:
            raise FlowError(
                f"The file {name} of {location}, which a micro-batch has written, is gone before it was committed: it was "
                "vacuumed. REFRESH STREAMING TABLE .. FULL recomputes the table. VACUUM must keep files for longer than rows "
                "wait for a flush."
            )


def append(
    spark: SparkSession, location: str, staged: Sequence[StagedFiles], identity: CommitIdentity, after: int | None = None
) -> bool:
    """Add files to a table in one commit; nothing if their transaction is there.

    Args:
        spark, location: the table.
        staged: the files.
        identity: of the commit.
        after: the version of the application's last transaction that the table must have, -1 if none; None: any.

    Returns:
        False, and nothing was committed, if the table is another now than when they were written.

    Raises:
        DeltaConcurrentModificationException: the table has become another in this moment, or another driver has committed.
    """
    with active(spark):
        snapshot = delta_tables.snapshot(spark, location)
        done = last_transaction(spark, location, identity.app_id, int(snapshot.version()))
        if done is not None and done >= identity.app_version:
            return True
        if after is not None and after != (-1 if done is None else done):
            raise ConcurrentTransactionException(f"The table in {location} has a transaction {done} of {identity.app_id}.")
        if any(each.fingerprint != _fingerprint(snapshot) for each in staged):
            return False
        transaction = begun(spark, snapshot)
        note_read(transaction, identity.app_id)
        actions = [_action(spark, file) for each in staged for file in each.files]
        if actions:  # Delta's writer asks for this, in the transaction that writes files
            transaction.registerPostCommitHook(scala_object(spark, "org.apache.spark.sql.delta.hooks.AutoCompact"))
        commit_actions(spark, transaction, actions, write_operation(spark, "Append"), identity, _metrics(staged))
    return True


def rows_of(spark: SparkSession, location: str, staged: Sequence[StagedFiles], columns: Sequence[str] = ()) -> DataFrame:
    """Return the rows of staged files, each with the columns that the table had when they were written.

    Args:
        columns: columns of the table; those, and fields in them, that it has got since are NULL. Empty: its columns of then.
    """
    with active(spark):
        snapshot = delta_tables.snapshot(spark, location)
        log = snapshot.deltaLog()
        none = java_of(spark).scala.Option.apply(None)
        frames: list[DataFrame] = []
        for each in staged:
            actions = [_action(spark, file) for file in each.files]
            written_for = log.getSnapshotAt(each.version, none, none, False)
            frame = log.createDataFrame(written_for, scala_seq(spark, actions), False, none)
            frames.append(_with_new(DataFrame(frame, spark), snapshot, columns))
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)


def _with_new(rows: DataFrame, now: Any, columns: Sequence[str]) -> DataFrame:
    """Return rows with those of some columns, and of the fields in these, that they lack and the table has now."""
    schema = StructType.fromJson(json.loads(now.schema().json()))
    fields = {field.name.lower(): field for field in schema}
    wanted = [fields[name.lower()] for name in columns if name.lower() in fields]
    if len(wanted) < len(columns) or all(field in rows.schema.fields for field in wanted):
        return rows  # what is gone is an error where it is selected
    return rows.to(StructType([StructField(field.name, with_nulls(field.dataType)) for field in wanted]))


def _metrics(staged: Sequence[StagedFiles]) -> dict[str, int]:
    """Return what Delta's writer notes of an append in the table's history."""
    files = [json.loads(file)["add"] for each in staged for file in each.files]
    rows = sum(max(each.rows, 0) for each in staged)
    has_rows = all(each.rows >= 0 for each in staged)
    found = {"numFiles": len(files), "numOutputBytes": sum(file["size"] for file in files)}
    return found | ({"numOutputRows": rows} if has_rows else {})


def _fingerprint(snapshot: Any) -> str:
    text = f"{snapshot.metadata().json()}{snapshot.protocol().json()}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _action(spark: SparkSession, file: str) -> Any:
    return scala_object(spark, "org.apache.spark.sql.delta.actions.Action").fromJson(file)
