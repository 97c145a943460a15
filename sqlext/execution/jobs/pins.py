"""The inputs of a job as they were when it was submitted, so that a resumed job reads the same rows as its first run.

A Delta table is pinned to its version, any other table of files to its files. A job with an input that cannot be pinned could
not be resumed, and is refused when it is submitted.

This module reads and changes Catalyst's plans, which are internal to Spark; it was tested with Spark 4.2 and Delta 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from sqlext.errors import JobError, UnsupportedError
from sqlext.execution.jobs.slices import index_of_files, is_delta, with_index
from sqlext.options import JOB_RECOVERY
from sqlext.spark.failures import reason_of
from sqlext.spark.java import items_of, java_of, scala_seq, texts_of, transformed
from sqlext.spark.storage import HadoopPath

_OF_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_WITHOUT_DATA = frozenset("LocalRelation OneRowRelation Range CTERelationRef".split())
"""Leaves that read nothing, read another part of the plan, or have their rows in it, which its fingerprint covers."""


@dataclass(frozen=True)
class Pin:
    """One pinned input of a job.

    Attributes:
        name: its name, as users know it.
        location: the location of its files.
        version: the version of a Delta table; -1 for other tables.
        table_id: Delta's id of the table, since another table may take its location later.
        files: path, size in bytes and modification time (ms since 1970) of each file, if it is not a Delta table.
    """

    name: str
    location: str
    version: int = -1
    table_id: str = ""
    files: tuple[tuple[str, int, int], ...] = ()


def pins_of(spark: SparkSession, plan: Any) -> tuple[Pin, ...]:
    """Pin the inputs of an analysed plan as they are now.

    Raises:
        UnsupportedError: an input cannot be pinned.
    """
    pins: list[Pin] = []

    def note(leaf: Any) -> Any:
        pins.append(_pin(spark, leaf))
        return leaf

    _over_inputs(plan, note)
    return tuple(pins)


def pinned(spark: SparkSession, plan: Any, pins: Sequence[Pin]) -> Any:
    """Return the plan with its inputs as they were pinned.

    Raises:
        JobError: the plan has other inputs now, or a pinned input is gone or was changed.
    """
    left = list(pins)

    def replace(leaf: Any) -> Any:
        pin = left.pop(0) if left else None
        if pin is None or _location(spark, leaf) != pin.location:
            raise JobError(
                f"The query reads other tables than when the job was submitted, such as {_name(spark, leaf)}. Cancel the job "
                "with CANCEL JOB, and run the statement again."
            )
        relation = _of_version(spark, pin) if pin.version >= 0 else _of_files(spark, leaf.relation(), pin)
        return leaf.copy(relation, leaf.output(), leaf.catalogTable(), leaf.isStreaming(), leaf.stream())

    changed = _over_inputs(plan, replace)
    if left:
        raise JobError(
            f"The query no longer reads {left[0].name}, which it read when the job was submitted. Cancel the job with CANCEL "
            "JOB, and run the statement again."
        )
    return changed


def _over_inputs(plan: Any, function: Callable[[Any], Any]) -> Any:
    """Replace each input of a plan and its subqueries by the result of `function`, in a deterministic order."""

    def over(node: Any) -> Any:
        is_input = node.children().isEmpty() and str(node.getClass().getSimpleName()) not in _WITHOUT_DATA
        return function(node) if is_input else node

    return transformed(plan.transformDownWithSubqueries, over)


def _pin(spark: SparkSession, leaf: Any) -> Pin:
    location = _location(spark, leaf)
    if location is None:
        raise UnsupportedError(
            f"A job with {JOB_RECOVERY.key} can read only tables of files, and {_name(spark, leaf)} is not one: its current rows "
            "could not be read again. Copy it into a table first, or set the option to false."
        )
    index = leaf.relation().location()
    if is_delta(index):
        snapshot = index.getSnapshot()
        return Pin(_name(spark, leaf), location, int(snapshot.version()), str(snapshot.metadata().id()))
    files = sorted((str(f.getPath().toString()), int(f.getLen()), int(f.getModificationTime())) for f in _files(spark, index))
    return Pin(_name(spark, leaf), location, files=tuple(files))


def _files(spark: SparkSession, index: Any) -> list[Any]:
    """Return the status of each file of an index."""
    nothing = scala_seq(spark, [])
    return [file for folder in items_of(index.listFiles(nothing, nothing)) for file in items_of(folder.files())]


def _of_version(spark: SparkSession, pin: Pin) -> Any:
    """Return the relation of a pinned version of a Delta table.

    Raises:
        JobError: the version is gone, or another table is at the location.
    """
    try:
        frame = spark.read.format("delta").option("versionAsOf", pin.version).load(pin.location)
        relation = frame._jdf.queryExecution().analyzed().collectLeaves().head().relation()
    except (AnalysisException, Py4JJavaError, CapturedException) as error:
        raise JobError(
            f"The job reads version {pin.version} of {pin.name}, which is gone: {reason_of(error)} Another version cannot "
            "replace it. Cancel the job with CANCEL JOB, and run the statement again."
        ) from None
    if str(relation.location().getSnapshot().metadata().id()) != pin.table_id:
        raise JobError(
            f"The job reads version {pin.version} of {pin.name}, but another table is at its location now. Cancel the job with "
            "CANCEL JOB, and run the statement again."
        )
    return relation


def _of_files(spark: SparkSession, relation: Any, pin: Pin) -> Any:
    """Return the relation over the pinned files, all of which are on one file system.

    Raises:
        JobError: a file was deleted or changed, or its partition was.
    """
    place: HadoopPath | None = None
    for path, size, changed in pin.files:
        place = HadoopPath(spark, path) if place is None else place.on_same_system(path)
        status = place.status()
        if status is None or (int(status.getLen()), int(status.getModificationTime())) != (size, changed):
            state = "changed" if status is not None else "deleted"
            raise JobError(
                f"The job reads the file {path} of {pin.name}, which was {state} after the job was submitted. Cancel the job "
                "with CANCEL JOB, and run the statement again."
            )
    paths = [path for path, _, _ in pin.files]
    index = index_of_files(spark, relation.location(), paths)
    if left := {*paths} - {str(file.getPath().toString()) for file in _files(spark, index)}:
        raise JobError(
            f"The job reads the file {min(left)} of {pin.name}, whose partition was dropped or moved since it was submitted. "
            "Cancel the job with CANCEL JOB, and run the statement again."
        )
    return with_index(relation, index)


def _location(spark: SparkSession, leaf: Any) -> str | None:
    """Return the location of a leaf's files, a glob as it was given; None if the leaf does not read files."""
    if str(leaf.getClass().getSimpleName()) != "LogicalRelation":
        return None
    relation = leaf.relation()
    if not java_of(spark).py4j.reflection.TypeUtil.isInstanceOf(_OF_FILES, relation):  # Delta's is a subclass
        return None
    index = relation.location()
    given = texts_of(spark, relation.options()).get("path", "")
    hadoop = java_of(spark).org.apache
    if given and not is_delta(index) and hadoop.spark.deploy.SparkHadoopUtil.get().isGlobPath(hadoop.hadoop.fs.Path(given)):
        return given  # what is like it may be more later
    roots = [index.path()] if is_delta(index) else items_of(index.rootPaths())
    return " ".join(str(root.toString()) for root in roots)


def _name(spark: SparkSession, leaf: Any) -> str:
    """Return the name of a leaf, as users know it."""
    if str(leaf.getClass().getSimpleName()) == "LogicalRelation" and leaf.catalogTable().isDefined():
        return str(leaf.catalogTable().get().identifier().unquotedString())
    return _location(spark, leaf) or str(leaf.nodeName())
