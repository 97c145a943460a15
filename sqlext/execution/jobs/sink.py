"""The table that a job fills: what is there before it begins, and filling it exactly once."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import JobError, NameTakenError
from sqlext.execution.delta import delta_log, target
from sqlext.execution.delta.commit import TXN_APP_ID, TXN_VERSION, USER_METADATA, session_settings
from sqlext.execution.jobs.registry import JobSpec
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_RESULT = "__sqlext_job_result"


@dataclass(frozen=True)
class TargetState:
    """What there is of a target when its job is submitted.

    Attributes:
        version: of the table; -1 when there is none.
        location: of a table that the job is to make, where nothing lies yet; None when it makes none, or Spark does not tell.
        is_done: whether the statement asks for nothing: CREATE TABLE IF NOT EXISTS of a table that exists.
    """

    version: int = -1
    location: str | None = None
    is_done: bool = False


def target_state(session: SparkSession, head: str, name: tuple[str, ...]) -> TargetState:
    """Look a job's target up, so that it is not found to be in the way when all the work is done.

    Args:
        head: what stands before the query.

    Raises:
        NameTakenError: the table that it is to make is there, or files lie in its place.
        UnsupportedError: it is no Delta table.
    """
    create = _create(session, head)
    if target.exists(session, name):
        if create is not None and not _replaces(create):
            if create.ignoreIfExists():
                return TargetState(is_done=True)
            raise NameTakenError(f"There is a table {'.'.join(name)} already. DROP TABLE it, or choose another name.")
        return TargetState(jvm.table_version(session, target.describe(session, name).location))
    given = create.tableSpec().location() if create is not None else None
    place = target.path_of(name) or (str(given.get()) if given is not None and given.isDefined() else None)
    location = place or jvm.default_location(session, name)
    if location and HadoopPath(session, location).names():
        raise NameTakenError(
            f"There is no table {'.'.join(name)}, but files lie where it would be made, in {location}. Move them away, or "
            "choose another name."
        )
    return TargetState(location=location)


def makes_table(session: SparkSession, head: str) -> bool:
    """Whether a statement is a CREATE TABLE .. AS."""
    return _create(session, head) is not None


def is_filled(spark: SparkSession, spec: JobSpec) -> bool:
    """Whether a commit of the target since the submission is the job's."""
    if not target.exists(spark, spec.target):
        return False
    location = target.describe(spark, spec.target).location
    versions = range(spec.target_version + 1, jvm.table_version(spark, location) + 1)
    return any(_is_of(spec, delta_log.commit_info(spark, location, version)) for version in versions)


def fill(session: SparkSession, spec: JobSpec, rows: DataFrame) -> None:
    """Fill the target in one transaction; does nothing when an earlier driver has.

    Raises:
        JobError: somebody else has made a table in the place of the one that the job makes.
        PySparkException: Spark's.
    """
    if is_filled(session, spec):
        logger.info("job %s: its table was filled before", spec.id)
        return
    _clear_place(session, spec)
    rows.createOrReplaceTempView(_RESULT)
    metadata = json.dumps({"sqlext": {"job": spec.id}})
    with session_settings(session, {USER_METADATA: metadata, TXN_APP_ID: spec.id, TXN_VERSION: "0"}):
        session.sql(f"{spec.head} SELECT * FROM {_RESULT}")  # noqa: S608  # the head is Spark's, as the user wrote it


def _clear_place(session: SparkSession, spec: JobSpec) -> None:
    """Take away what a driver has left that died before its new table was in the catalog.

    Nothing lay there when the job was submitted, and a Delta table that is there now says whose it is.
    """
    if not spec.target_location or target.exists(session, spec.target):
        return
    place = HadoopPath(session, spec.target_location)
    if not place.names():
        return
    made = delta_log.exists(session, spec.target_location)
    if made and not _is_of(spec, delta_log.commit_info(session, spec.target_location, 0)):
        raise JobError(
            f"Job {spec.id} was to make {'.'.join(spec.target)} in {spec.target_location}, and a table that is not its own lies "
            "there now. Move it away and RESUME JOB it, or CANCEL JOB it."
        )
    logger.info("job %s: an earlier driver left %s half made; it is made anew", spec.id, spec.target_location)
    place.delete()


def _is_of(spec: JobSpec, commit: dict[str, Any]) -> bool:
    return spec.id in str(commit.get("userMetadata"))


def _create(session: SparkSession, head: str) -> Any:
    """Spark's plan of a CREATE TABLE .. AS; None for an INSERT."""
    parser = session._jsparkSession.sessionState().sqlParser()
    plan = parser.parsePlan(f"{head} SELECT 1")
    return plan if plan.getClass().getSimpleName().endswith("TableAsSelect") else None


def _replaces(create: Any) -> bool:
    return str(create.getClass().getSimpleName()) == "ReplaceTableAsSelect"
