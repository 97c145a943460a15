"""Delta's tables as its own Java side knows them: the newest version, and what it says of the table.

Each call that does not take a snapshot lists the log's folder. Only `last_transaction` may run Spark jobs.
"""

from __future__ import annotations

from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from sqlext.spark.java import items_of, java_of, texts_of


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


def partition_columns(spark: SparkSession, location: str) -> list[str]:
    """Return the columns that the Delta table at `location` is partitioned by."""
    return [str(name) for name in items_of(snapshot(spark, location).metadata().partitionColumns())]


def table_id(spark: SparkSession, location: str) -> str:
    """Return Delta's id of the table at `location`."""
    return str(snapshot(spark, location).metadata().id())


def snapshot(spark: SparkSession, location: str) -> Any:
    """Return Delta's Snapshot of the newest version of the table at `location`."""
    log = java_of(spark).org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, location)
    return log.update(False, _none(spark), _none(spark))


def _none(spark: SparkSession) -> Any:
    return java_of(spark).scala.Option.apply(None)
