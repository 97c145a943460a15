"""How far a flow has read its sources, from its checkpoints, and whether they still hold what comes after."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import unquote

from pyspark.sql import SparkSession

from sqlext.errors import FlowError
from sqlext.execution.delta import delta_log, target
from sqlext.execution.streaming.checkpoint import Checkpoint
from sqlext.execution.streaming.positions import DeltaOffset
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.lineage import Input, shown
from sqlext.quoting import quote_parts
from sqlext.spark import delta_tables
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.storage import HadoopPath

_PART = "hybrid_"
_MOST_TEXT = 200
_PASSES_CHANGES = ("skipchangecommits", "ignorechanges", "ignoredeletes")
"""Options of Delta's streams with which commits that change or delete rows do not end them; a view of a session may have some."""


def positions(spark: SparkSession, spec: FlowSpec, home: HadoopPath) -> tuple[str, ...]:
    """Return how far a flow has read each of its sources, for people.

    Args:
        spark: the session.
        spec: the flow.
        home: the folder of its checkpoints.
    """
    tables, found = _tables(spark, spec), dict[str, None]()
    for checkpoint in _checkpoints(spec, home):
        for offset in checkpoint.planned(checkpoint.newest_planned).offsets.values():
            found |= {_shown(offset, tables): None} if offset else {}
    return tuple(found)


def check_rest(spark: SparkSession, spec: FlowSpec, home: HadoopPath, now: HadoopPath) -> None:
    """See that a flow can read on from its checkpoints, as far as that is known: of Delta tables, and of files.

    Args:
        spark: the session.
        spec: the flow as it was.
        home: the folder with its checkpoints as they were.
        now: the folder with those of now.

    Raises:
        FlowError: a source has lost something that comes after.
    """
    tables, text = _tables(spark, spec), " ".join(spec.texts).lower()
    passes_changes = bool(spec.session_bound) or any(option in text for option in _PASSES_CHANGES)
    for stream in spec.streams:
        checkpoint = Checkpoint(target.home_of(home, stream.relation))
        batch = checkpoint.newest_committed
        batch = checkpoint.newest_planned if batch is None else batch
        for offset in _last_parts(checkpoint.planned(batch).offsets):
            if (table := _delta_offset(offset)) is not None:
                _check_table(spark, spec, tables, table, passes_changes)
        _check_files(spark, spec, checkpoint, Checkpoint(target.home_of(now, stream.relation)))


def _checkpoints(spec: FlowSpec, home: HadoopPath) -> Iterator[Checkpoint]:
    for stream in spec.streams:
        yield Checkpoint(target.home_of(home, stream.relation))


def _tables(spark: SparkSession, spec: FlowSpec) -> dict[str, Input]:
    """Return the Delta tables that a flow reads as streams, by Delta's ids of them."""
    found: dict[str, Input] = {}
    for each in (each for each in spec.reads if each.is_stream):
        try:
            location = each.location or delta_tables.named(spark, quote_parts(each.name))[0]  # later ones of a hybrid source
            found[delta_tables.table_id(spark, location)] = replace(each, location=location)
        except SPARK_ERRORS:
            continue  # it is no Delta table, or is gone, and so is not found by its id
    return found


def _last_parts(offsets: Mapping[str, str | None]) -> list[str]:
    """Return offsets without those of relations of a hybrid source that were read to their ends."""
    parts = [int(name.removeprefix(_PART)) for name in offsets if name.startswith(_PART)]
    ended = {f"{_PART}{part}" for part in parts if part < max(parts)}
    return [offset for name, offset in offsets.items() if offset and name not in ended]


def _delta_offset(offset: str) -> DeltaOffset | None:
    try:
        return DeltaOffset.parse(offset) if "reservoirVersion" in json.loads(offset) else None
    except (ValueError, TypeError):
        return None


def _shown(offset: str, tables: dict[str, Input]) -> str:
    table = _delta_offset(offset)
    if table is None:
        return offset if len(offset) <= _MOST_TEXT else f"{offset[:_MOST_TEXT]}.."
    source = tables.get(table.table_id)
    name = f"table {table.table_id}" if source is None else shown(source.name)
    return f"{name}: version {table.version} in part" if table.whole_version is None else f"{name}: version {table.whole_version}"


def _check_table(
    spark: SparkSession, spec: FlowSpec, tables: dict[str, Input], offset: DeltaOffset, passes_changes: bool
) -> None:
    source = tables.get(offset.table_id)
    if source is None:
        raise FlowError(
            f"Flow `{spec.name}` cannot be set back: the table with Delta's id {offset.table_id}, which it read, was dropped or "
            "replaced. REFRESH STREAMING TABLE .. FULL recomputes its table from what its sources hold now."
        )
    if (lost := _lost(spark, source.location, offset, passes_changes)) is not None:
        raise FlowError(
            f"Flow `{spec.name}` cannot be set back: it would read {shown(source.name)} on from version {offset.version}, and "
            f"{lost}. REFRESH STREAMING TABLE .. FULL recomputes its table from what its sources hold now."
        )


def _lost(spark: SparkSession, location: str, offset: DeltaOffset, passes_changes: bool) -> str | None:
    """Return what a Delta table has lost of what follows an offset; None: nothing."""
    snapshot = delta_tables.snapshot(spark, location)
    newest, first, needed = int(snapshot.version()), offset.version, list[str]()
    if offset.is_starting:
        try:
            needed += [str(file.path()) for file in delta_tables.files_of(delta_tables.snapshot_at(spark, location, first))]
        except SPARK_ERRORS:
            return f"its log does not reach back to version {first} any more"
        first += 1
    for version in range(first, newest + 1):
        commit = delta_log.actions(spark, location, version)
        if commit is None:
            return f"version {version} is not in its log any more"
        if not passes_changes and any(each["remove"].get("dataChange") for each in commit if "remove" in each):
            operation = delta_log.info_of(commit).get("operation", "a commit")
            return f"version {version}, {operation}, changed or deleted rows, which a stream does not follow"
        needed += [str(each["add"]["path"]) for each in commit if "add" in each and each["add"].get("dataChange")]
    there = {str(file.path()) for file in delta_tables.files_of(snapshot)} if needed else set[str]()
    folder = HadoopPath(spark, location)
    gone = next((path for path in needed if path not in there and not _file(spark, folder, path).exists()), None)
    return None if gone is None else f"its file {unquote(gone)} is gone: it was vacuumed or deleted"


def _file(spark: SparkSession, folder: HadoopPath, path: str) -> HadoopPath:
    is_absolute = ":" in path.partition("/")[0] or path.startswith("/")
    return HadoopPath(spark, unquote(path)) if is_absolute else folder.child(unquote(path))


def _check_files(spark: SparkSession, spec: FlowSpec, was: Checkpoint, now: Checkpoint) -> None:
    """See that the files that a query has read since are there."""
    for name in now.sources:
        known = set(was.files_of(name))
        for path in now.files_of(name):
            if path not in known and not HadoopPath(spark, unquote(path)).exists():
                raise FlowError(
                    f"Flow `{spec.name}` cannot be set back: it would read the file {unquote(path)} again, and that is gone."
                )
