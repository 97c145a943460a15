"""The table that a job fills: its state before the job begins, and filling it exactly once."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import JobError, NameTakenError, UnsupportedError
from sqlext.execution.delta import delta_log, target
from sqlext.execution.delta.commit import TXN_APP_ID, TXN_VERSION, USER_METADATA
from sqlext.execution.jobs.registry import JobSpec
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_RESULT = "__sqlext_job_result"
_COMMIT = re.compile(r"(\d{20})\.json")
_PART_FILE = re.compile(r"(?:[^/]+=[^/]*/|[0-9A-Za-z]+/)*part-\d{5,}-([0-9a-f-]{36})[-.]c\d{3,}\.(?:\w+\.)?parquet")
"""A data file of a Delta table, below folders of partitions or random prefixes; its id."""


@dataclass(frozen=True)
class TargetState:
    """The state of a job's target when the job is submitted.

    Attributes:
        version: the table's version; -1: there is no table.
        table_id: Delta's id of the table; "": there is no table.
        location: the location, still empty, of a table that the job is to create; None if it creates none, or the location is
            not known.
        is_done: whether there is nothing to do: CREATE TABLE IF NOT EXISTS of a table that exists.
    """

    version: int = -1
    table_id: str = ""
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
        table = target.describe(session, name)
        return TargetState(delta_tables.version(session, table.location), table.table_id)
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


def appends(session: SparkSession, head: str) -> bool:
    """Return whether a statement only adds rows; False if it replaces rows or creates a table.

    Args:
        head: the statement up to the query.
    """
    plan = _parsed(session, head)
    is_insert = str(plan.getClass().getSimpleName()) == "InsertIntoStatement"
    return is_insert and not plan.overwrite() and not plan.replaceCriteriaOpt().isDefined()


def is_filled(spark: SparkSession, spec: JobSpec) -> bool:
    """Return whether the job has committed to its target since it was submitted."""
    if not target.exists(spark, spec.target):
        return False
    try:
        location = target.describe(spark, spec.target).location
    except UnsupportedError:  # a view, or a table of another format, has taken its place
        return False
    versions = range(spec.target_version + 1, delta_tables.version(spark, location) + 1)
    return any(_is_of(spec, delta_log.commit_info(spark, location, version)) for version in versions)


def check_unchanged(spark: SparkSession, spec: JobSpec) -> None:
    """Check that a job may fill its target: its rows must not replace, or be lost in, what others have made of its target since.

    Raises:
        JobError: they would.
    """
    if (reason := changed_since(spark, spec)) is None:
        return
    again = f"Drop or rename that table and run RESUME JOB {spec.id}, or run" if spec.makes_table else "Run"
    raise JobError(
        f"Job {spec.id} is to {reason} after the job was submitted. {again} CANCEL JOB {spec.id}, and then the statement again "
        "if its rows are still wanted."
    )


def changed_since(spark: SparkSession, spec: JobSpec) -> str | None:
    """Return what others have done to a job's target since it was submitted, as a phrase; None: nothing that matters to the job.

    New rows matter to a job that replaces rows, and not to one that appends. Maintenance such as OPTIMIZE does not matter.
    """
    if not target.exists(spark, spec.target) or is_filled(spark, spec):
        return None
    text = ".".join(spec.target)
    if spec.makes_table:
        return f"create {text}, which somebody else made"
    table = target.describe(spark, spec.target)
    if spec.target_id and table.table_id != spec.target_id:
        return f"fill {text}, which was replaced, or dropped and recreated,"
    versions = range(spec.target_version + 1, delta_tables.version(spark, table.location) + 1)
    if appends(spark, spec.head) or not any(_changes_rows(spark, table.location, version) for version in versions):
        return None
    return f"replace rows of {text}, which was written by others"


def _changes_rows(spark: SparkSession, location: str, version: int) -> bool:
    """Return whether a commit has changed a table's rows; also if its file has been cleaned up, so that nobody knows."""
    found = delta_log.actions(spark, location, version)
    files = [action.get(kind) for action in found or [] for kind in ("add", "remove", "cdc")]
    return found is None or any(each is not None and each.get("dataChange") for each in files)


def fill(session: SparkSession, spec: JobSpec, epoch: int, rows: DataFrame) -> None:
    """Fill the target in one transaction, unless an earlier driver has filled it.

    Args:
        epoch: the epoch of this driver.

    Raises:
        JobError: another table, or files of others, are in the place of the table that the job creates, or others have changed
            the target since the job was submitted.
        PySparkException: Spark cannot run the query or write the table.
    """
    if is_filled(session, spec):
        logger.info("job %s: its table was already filled", spec.id)
        return
    check_unchanged(session, spec)
    _clear_place(session, spec, epoch)
    is_in_the_way = spec.makes_table and target.exists(session, spec.target)
    rows.createOrReplaceTempView(_RESULT)
    metadata = json.dumps({"sqlext": {"job": spec.id}})
    with session_settings(session, {USER_METADATA: metadata, TXN_APP_ID: spec.id, TXN_VERSION: "0"}):
        session.sql(f"{spec.head} SELECT * FROM {_RESULT}")  # noqa: S608  # the head is Spark's, as the user wrote it
    if is_in_the_way:
        check_unchanged(session, spec)  # CREATE TABLE IF NOT EXISTS has done nothing


def _clear_place(session: SparkSession, spec: JobSpec, epoch: int) -> None:
    """Delete what is left of a driver that died before its new table was in the catalog.

    The location was empty when the job was submitted, so the first driver has nothing to delete there.

    Raises:
        JobError: there is a table, or there are files, that the job did not write.
    """
    if not spec.target_location or target.exists(session, spec.target):
        return
    place = HadoopPath(session, spec.target_location)
    if not place.names():
        return
    if epoch <= 1 or not _is_left_by(session, spec, place):
        raise JobError(
            f"Job {spec.id} is to create {'.'.join(spec.target)} at {spec.target_location}, but a table or files that it did not "
            f"write are there now. Move them away and run RESUME JOB {spec.id}, or run CANCEL JOB {spec.id}."
        )
    logger.info("job %s: an earlier driver left %s incomplete; it is recreated", spec.id, spec.target_location)
    place.delete()


def _is_left_by(session: SparkSession, spec: JobSpec, place: HadoopPath) -> bool:
    """Return whether an earlier driver of a job wrote what is at a place: each commit names the job that wrote it.

    A driver that died before its commit has left data files only. Spark's own are called alike, but those of one query share an
    id, and Delta's have one each.
    """
    commits = [found for name in place.child("_delta_log").names() if (found := _COMMIT.fullmatch(name))]
    if commits:
        return all(_is_of(spec, delta_log.commit_info(session, place.location, int(found[1]))) for found in commits)
    parts = [_PART_FILE.fullmatch(file) for file in _files_below(place)]
    ids = {part[1] for part in parts if part is not None}
    return len(ids) == len(parts)


def _files_below(place: HadoopPath, folder: str = "") -> Iterator[str]:
    """Yield the path of each file below a place, relative to it, without the checksums and unfinished files that Hadoop hides."""
    for status in place.statuses():
        name = str(status.getPath().getName())
        if status.isDirectory():
            yield from _files_below(place.child(name), f"{folder}{name}/")
        elif not name.startswith(".") or not name.endswith((".crc", ".tmp")):
            yield folder + name


def _is_of(spec: JobSpec, commit: dict[str, Any]) -> bool:
    return spec.id in str(commit.get("userMetadata"))


def _create(session: SparkSession, head: str) -> Any:
    """Return Spark's plan of a CREATE TABLE .. AS; None for an INSERT."""
    plan = _parsed(session, head)
    return plan if plan.getClass().getSimpleName().endswith("TableAsSelect") else None


def _parsed(session: SparkSession, head: str) -> Any:
    """Return Spark's plan of a statement, before anything is looked up."""
    return session._jsparkSession.sessionState().sqlParser().parsePlan(f"{head} SELECT 1")


def _replaces(create: Any) -> bool:
    return str(create.getClass().getSimpleName()) == "ReplaceTableAsSelect"
