"""Bounded jobs: statements that fill a table, run to their end, and report what they did."""

from __future__ import annotations

import json
import logging
import time
import uuid

from pyspark.sql import SparkSession

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import delta_log, target
from sqlext.execution.delta.commit import USER_METADATA
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import session_settings

logger = logging.getLogger(__name__)


def run_job(spark: SparkSession, text: str, table: tuple[str, ...]) -> str:
    """Run one of Spark's own statements in a session like the caller's.

    Args:
        spark: the caller's session.
        text: the statement.
        table: the table that it fills; if that is a Delta table, its commit names the job.

    Returns:
        A sentence with the job's id, the number of its rows, and its duration.

    Raises:
        PySparkException: the statement failed.
    """
    job = uuid.uuid4().hex
    own = jvm.clone_session(spark)
    started = time.monotonic()
    with (
        jvm.described(own, f"sqlext job {job} into {'.'.join(table)}"),  # stays in the statement's group, for cancellation
        session_settings(own, {USER_METADATA: json.dumps({"sqlext": {"job": job}})}),
    ):
        own.sql(text)
    seconds = time.monotonic() - started
    rows = _rows_written(own, table, job)
    counted = f", {rows} rows" if rows is not None else ""
    logger.info("job %s: finished in %.1f s%s", job, seconds, counted)
    return f"job {job} finished into {'.'.join(table)}{counted}, {seconds:.1f} s"


def _rows_written(spark: SparkSession, table: tuple[str, ...], job: str) -> int | None:
    """Return the number of rows in the job's commit; None if the table is not a Delta table, or somebody has committed since."""
    try:
        location = target.describe(spark, target.qualified(spark, table)).location
    except UnsupportedError:
        return None
    info = delta_log.commit_info(spark, location, delta_tables.version(spark, location))
    if job not in str(info.get("userMetadata")):
        return None
    rows = dict(info.get("operationMetrics") or {}).get("numOutputRows")
    return None if rows is None else int(rows)
