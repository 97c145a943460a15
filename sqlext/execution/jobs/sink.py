"""The table that a job fills: its state before the job begins, and filling it exactly once."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import JobError, NameTakenError
from sqlext.execution.delta import delta_log, target
from sqlext.execution.delta.commit import TXN_APP_ID, TXN_VERSION, USER_METADATA
from sqlext.execution.jobs.registry import JobSpec
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_RESULT = "__sqlext_job_result"


@dataclass(frozen=True)
class TargetState:
    """The state of a job's target when the job is submitted.

    Attributes:
        version: the table's version; -1: there is no table.
        location: the location, still empty, of a table that the job is to create; None if it creates none, or the location is
            not known.
        is_done: whether there is nothing to do: CREATE TABLE IF NOT EXISTS of a table that exists.
    """

    version: int = -1
    location: str | None = None
    is_done: bool = False


def target_state(session: SparkSession, head: str, name: tuple[str, ...]) -> TargetState:
    """Look up a job's target, so that a conflict is found before the work and not after it.

    Args:
        head: the statement up to the query.
        name: the target's qualified name.

    Raises:
        NameTakenError: the table that the job is to create exists, or there are files at its location.
        UnsupportedError: the table is not a Delta table.
    """
    create = _create(session, head)
    if target.exists(session, name):
        if create is not None and not _replaces(create):
            if create.ignoreIfExists():
                return TargetState(is_done=True)
            raise NameTakenError(f"There is a table {'.'.join(name)} already. Drop it with DROP TABLE, or choose another name.")
        return TargetState(delta_tables.version(session, target.describe(session, name).location))
    given = create.tableSpec().location() if create is not None else None
    place = target.path_of(name) or (str(given.get()) if given is not None and given.isDefined() else None)
    location = place or jvm.default_location(session, name)
    if location and HadoopPath(session, location).names():
        raise NameTakenError(
            f"There is no table {'.'.join(name)}, but there are files at {location}, where it would be created. Move them away, "
            "or choose another name."
        )
    return TargetState(location=location)


def makes_table(session: SparkSession, head: str) -> bool:
    """Return whether a statement is a CREATE TABLE .. AS.

    Args:
        head: the statement up to the query.
    """
    return _create(session, head) is not None


def is_filled(spark: SparkSession, spec: JobSpec) -> bool:
    """Return whether the job has committed to its target since it was submitted."""
    if not target.exists(spark, spec.target):
        return False
    location = target.describe(spark, spec.target).location
    versions = range(spec.target_version + 1, delta_tables.version(spark, location) + 1)
    return any(_is_of(spec, delta_log.commit_info(spark, location, version)) for version in versions)


def fill(session: SparkSession, spec: JobSpec, rows: DataFrame) -> None:
    """Fill the target in one transaction, unless an earlier driver has filled it.

    Raises:
        JobError: another table is at the location of the one that the job creates.
        PySparkException: Spark cannot run the query or write the table.
    """
    if is_filled(session, spec):
        logger.info("job %s: its table was already filled", spec.id)
        return
    _clear_place(session, spec)
    rows.createOrReplaceTempView(_RESULT)
    metadata = json.dumps({"sqlext": {"job": spec.id}})
    with session_settings(session, {USER_METADATA: metadata, TXN_APP_ID: spec.id, TXN_VERSION: "0"}):
        session.sql(f"{spec.head} SELECT * FROM {_RESULT}")  # noqa: S608  # the head is Spark's, as the user wrote it


def _clear_place(session: SparkSession, spec: JobSpec) -> None:
    """Delete what is left of a driver that died before its new table was in the catalog.

    The location was empty when the job was submitted, and the first commit of a Delta table there names the job that wrote it.

    Raises:
        JobError: there is a table that the job did not write.
    """
    if not spec.target_location or target.exists(session, spec.target):
        return
    place = HadoopPath(session, spec.target_location)
    if not place.names():
        return
    made = delta_log.exists(session, spec.target_location)
    if made and not _is_of(spec, delta_log.commit_info(session, spec.target_location, 0)):
        raise JobError(
            f"Job {spec.id} is to create {'.'.join(spec.target)} at {spec.target_location}, but a table that it did not write is "
            f"there now. Move that table away and run RESUME JOB {spec.id}, or run CANCEL JOB {spec.id}."
        )
    logger.info("job %s: an earlier driver left %s incomplete; it is recreated", spec.id, spec.target_location)
    place.delete()


def _is_of(spec: JobSpec, commit: dict[str, Any]) -> bool:
    return spec.id in str(commit.get("userMetadata"))


def _create(session: SparkSession, head: str) -> Any:
    """Return Spark's plan of a CREATE TABLE .. AS; None for an INSERT."""
    parser = session._jsparkSession.sessionState().sqlParser()
    plan = parser.parsePlan(f"{head} SELECT 1")
    return plan if plan.getClass().getSimpleName().endswith("TableAsSelect") else None


def _replaces(create: Any) -> bool:
    return str(create.getClass().getSimpleName()) == "ReplaceTableAsSelect"
