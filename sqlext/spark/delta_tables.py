"""Delta's tables as its own Java side knows them: the newest version, and what it says of the table.

Each call that does not take a snapshot lists the log's folder. Only `last_transaction` may run Spark jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.spark.java import items_of, java_of, scala_object, scala_seq, texts_of
from sqlext.spark.jvm import active

COLUMN_ID = "delta.columnMapping.id"
"""Delta's key, in a column's metadata, of what the column is in files: names may come back, ids never do."""


def last_transaction(spark: SparkSession, location: str, app_id: str) -> int | None:
    """Return the `version` of `app_id`'s newest transaction on the Delta table at `location`; None if there is none."""
    found = snapshot(spark, location).transactions().get(app_id)
    return int(found.get()) if found.isDefined() else None


def version(spark: SparkSession, location: str) -> int:
    """Return the newest version of the Delta table at `location`."""
    return int(snapshot(spark, location).version())


def named(spark: SparkSession, name: str) -> tuple[str, str, dict[str, str]]:
    """Return a Delta table's location, id and properties, without the Spark job that DESCRIBE DETAIL runs.

    Args:
        spark: the session.
        name: the table's name, as written in SQL.

    Raises:
        AnalysisException: it is not a Delta table.
    """
    log = DeltaTable.forName(spark, name)._jdt.deltaLog()
    metadata = log.update(False, _none(spark), _none(spark)).metadata()
    return str(log.dataPath().toString()), str(metadata.id()), texts_of(spark, metadata.configuration())


def properties_of(spark: SparkSession, snapshot: Any) -> dict[str, str]:
    """Return the properties of a Delta table in one of its versions."""
    return texts_of(spark, snapshot.metadata().configuration())


def has_vectors(spark: SparkSession, snapshot: Any) -> bool:
    """Return whether files of a Delta table may have deletion vectors in one of its versions."""
    utils = scala_object(spark, "org.apache.spark.sql.delta.commands.DeletionVectorUtils")
    return bool(utils.deletionVectorsReadable(snapshot, _none(spark), _none(spark)))


def metadata_of(snapshot: Any) -> str:
    """Return what a Delta table says of itself in one of its versions, its `metaData` action, as JSON."""
    return str(snapshot.metadata().json())


def metadata_from(spark: SparkSession, text: str) -> Any:
    """Return Delta's Metadata from the JSON of `metadata_of`."""
    return scala_object(spark, "org.apache.spark.sql.delta.actions.Action").fromJson(text)


def columns_in(metadata: str) -> StructType:
    """Return the columns in the JSON of `metadata_of`."""
    return StructType.fromJson(json.loads(json.loads(metadata)["metaData"]["schemaString"]))


def schema_of(snapshot: Any) -> StructType:
    """Return the columns of a Delta table in one of its versions."""
    return StructType.fromJson(json.loads(str(snapshot.schema().json())))


def partition_columns(spark: SparkSession, location: str) -> list[str]:
    """Return the columns that the Delta table at `location` is partitioned by."""
    return [str(name) for name in items_of(snapshot(spark, location).metadata().partitionColumns())]


def table_id(spark: SparkSession, location: str) -> str:
    """Return Delta's id of the table at `location`."""
    return str(snapshot(spark, location).metadata().id())


def comment(spark: SparkSession, location: str) -> str:
    """Return the comment of the Delta table at `location`; an empty text if it has none."""
    return str(snapshot(spark, location).metadata().description() or "")


def snapshot(spark: SparkSession, location: str) -> Any:
    """Return Delta's Snapshot of the newest version of the table at `location`."""
    log = java_of(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)
    return log.update(False, _none(spark), _none(spark))


def has_commits_in_log(snapshot: Any) -> bool:
    """Return whether each commit of a table is a file in its log; False: a catalog or coordinator may keep the newest ones."""
    return not (snapshot.isCatalogOwned() or snapshot.tableCommitCoordinatorClientOpt().isDefined())


def snapshot_at(spark: SparkSession, location: str, version: int) -> Any:
    """Return Delta's Snapshot of one version of the table at `location`.

    Raises:
        PySparkException: the log no longer reaches back so far.
    """
    log = java_of(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)
    return log.getSnapshotAt(version, _none(spark), _none(spark), False)


def rows_at(spark: SparkSession, location: str, version: int) -> DataFrame:
    """Return the rows of one version of the table at `location`, as long as its files are there.

    Spark's own time travel refuses versions that are older than the table keeps deleted files, whether these are needed or not.
    Where the files are known, they are listed here once: else each scan of a plan lists them, in four Spark jobs.
    """
    at = snapshot_at(spark, location, version)
    if (files := known_files(at)) is not None:
        with active(spark):
            return DataFrame(at.deltaLog().createDataFrame(at, files, False, _none(spark)), spark)
    return _scan(spark, at)


def scan_at(spark: SparkSession, location: str, version: int) -> DataFrame:
    """Return the rows of one version of the table at `location`; a filter skips files by their statistics.

    Unlike a plan over the newest version, it never has the rows that somebody has cached.
    """
    return _scan(spark, snapshot_at(spark, location, version))


def _scan(spark: SparkSession, at: Any) -> DataFrame:
    relation = at.deltaLog().createRelation(scala_seq(spark, []), java_of(spark).scala.Option.apply(at), _none(spark), True)
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


def files_of(snapshot: Any) -> list[Any]:
    """Return the files of a snapshot, as Delta's AddFile."""
    known = known_files(snapshot)
    return items_of(known) if known is not None else [*snapshot.allFiles().collectAsList()]


def known_files(snapshot: Any) -> Any:
    """Return the files that the version's checksum file lists, which Delta writes with up to 50; None if it lists none."""
    checksum = snapshot.checksumOpt()
    files = checksum.get().allFiles() if checksum.isDefined() else checksum
    is_whole = files.isDefined() and int(files.get().size()) == int(checksum.get().numFiles())
    return files.get() if is_whole else None


def feed(spark: SparkSession, end: Any, first: int, is_from_files: bool) -> DataFrame:
    """Return the changes of a table as its change feed has them: each row with `_change_type`, `_commit_version`, and the time.

    Args:
        spark: the session.
        end: the snapshot of the last version.
        first: the version of the first commit.
        is_from_files: whether to compute the changes from the files that commits have added and removed, for tables without a
            change feed; a row that was only rewritten is then deleted and inserted.

    Raises:
        PySparkException, Py4JJavaError: the log no longer has the commits, or the columns changed too much.
    """
    reader = java_of(spark).org.apache.spark.sql.delta.commands.cdc.CDCReader
    none, versions = _none(spark), (first, int(end.version()))
    some = java_of(spark).scala.Option.apply(end)
    rows = reader.changesToBatchDF(end.deltaLog(), *versions, spark._jsparkSession, none, some, is_from_files, none)
    return DataFrame(rows, spark)


def feed_of(spark: SparkSession, end: Any, commits: Mapping[int, Sequence[Mapping[str, Any]]], is_from_files: bool) -> DataFrame:
    """Return the changes of commits as `feed` does, where some of their actions are others than in the log.

    Args:
        spark: the session.
        end: the snapshot of the last version.
        commits: the actions of each version, without gaps.
        is_from_files: as for `feed`.

    Raises:
        PySparkException, Py4JJavaError: the columns changed too much.
    """
    java, none, first, last = java_of(spark), _none(spark), min(commits), max(commits)
    action = scala_object(spark, "org.apache.spark.sql.delta.actions.Action")
    actions = [scala_seq(spark, [action.fromJson(json.dumps(each)) for each in commits[at]]) for at in range(first, last + 1)]
    longs = java.java.util.stream.LongStream.rangeClosed(first, last).boxed().iterator()  # Py4J makes small numbers Integers
    pairs = java.scala.jdk.javaapi.CollectionConverters.asScala(longs).zip(scala_seq(spark, actions))
    reader = java.org.apache.spark.sql.delta.commands.cdc.CDCReader
    found = reader.changesToDF(end, first, last, pairs, spark._jsparkSession, none, False, is_from_files, none)
    return DataFrame(found.fileChangeDf(), spark)


def _none(spark: SparkSession) -> Any:
    return java_of(spark).scala.Option.apply(None)
