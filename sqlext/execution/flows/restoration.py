"""RESTORE FLOW f TO SAVEPOINT s: a flow and its table as they were, from where the flow goes on.

1. All that is known to be in the way is looked for; then the flow is stopped.
2. The savepoint's checkpoints and tables are copied into a new folder of the flow. After a crash up to here the old flow is
   resumed; the next RESTORE deletes the folder.
3. The registry gets the flow as it was, with this folder, and that its table is to be set back. From here on it is the restored
   flow: after a crash, its next start goes on with step 4.
4. Rows that the flow has quarantined are set back. Then the table is, in one commit, which has the restored flow's transaction;
   where the table has that already, nothing happens. The same commit closes out writers of the flow as it was before.
5. The registry gets that this is done, and the old folder is deleted.

Numbers of micro-batches come again in the restored flow, for other rows, and Delta's own RESTORE does not forget the transactions
that a table has: it would take them for committed. So the restored flow commits as another application (`FlowSpec.application`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from pyspark.sql import SparkSession

from sqlext.errors import FlowError, UnsupportedError
from sqlext.execution.delta import commit, quarantine, table_copy, target
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.foreign_commits import ForeignCommits
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.execution.flows.creation import same_name
from sqlext.execution.flows.registry import Records, current
from sqlext.execution.flows.savepoints import SavepointStore, content_of, copy_content, tables_in
from sqlext.execution.flows.source_positions import check_rest
from sqlext.execution.state.expiring_state import set_forward
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.lineage import Input
from sqlext.plan.savepoint import Savepoint
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import ALL_FILES, session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_REASON = "restore"
_MOST_LISTED = 5


def refuse_savepoints(spark: SparkSession, spec: FlowSpec, records: Records) -> None:
    """Refuse a flow that cannot be set back on its own.

    Raises:
        UnsupportedError: it is one of several flows into a table, runs once, or has what no savepoint keeps.
    """
    table = ".".join(spec.target)
    _refuse_writers(spec, records)
    if spec.runs_once:
        raise UnsupportedError(f"Flow `{spec.name}` runs once, so there is nothing that it could go back to.")
    if "delta.identity." in str(delta_tables.snapshot(spark, spec.target_location).metadata().schemaString()):
        raise UnsupportedError(f"The table {table} has an identity column, whose values a savepoint could not give back.")


def check_restorable(
    spark: SparkSession, store: SavepointStore, savepoint: Savepoint, spec: FlowSpec, records: Records, home: HadoopPath
) -> None:
    """Look for all that is in the way of setting a flow back, before anything changes.

    Args:
        spark: a session of the flow's.
        store: its savepoints.
        savepoint: the one to go back to.
        spec: the flow as it is now.
        records: of all flows.
        home: the flow's folder.

    Raises:
        SqlextError, PySparkException: the flow cannot be set back to this savepoint.
    """
    refuse_savepoints(spark, spec, records)
    target.check_same_table(spark, savepoint.spec)
    _refuse_readers(spec, records)
    refuse_rows_of_others(spark, spec, savepoint)
    table_copy.check_definition(spark, spec.target_location, savepoint.metadata)
    store.check_rows(savepoint)
    check_rest(spark, savepoint.spec, store.files(savepoint), content_of(home, spec))


def refuse_records(spec: FlowSpec, records: Records) -> None:
    """Refuse if another flow writes the table of one that is to be set back, or reads it as a stream."""
    _refuse_writers(spec, records)
    _refuse_readers(spec, records)


def _refuse_writers(spec: FlowSpec, records: Records) -> None:
    others = [each.spec.name for each in current(records) if each.spec.id != spec.id and same_name(each.spec.target, spec.target)]
    if others:
        raise UnsupportedError(
            f"Flow `{spec.name}` cannot be set back alone: flow `{others[0]}` writes {'.'.join(spec.target)}, too, and would "
            "lose rows. Savepoints are for flows that have a table of their own."
        )


def _refuse_readers(spec: FlowSpec, records: Records) -> None:
    """Refuse if another flow reads the table as a stream: it has passed on rows that are no more, and would get others twice."""
    keys = (Input(spec.target, spec.target_location).key, Input(spec.target).key)  # later ones of a hybrid source have no folder
    readers = [r.spec.name for r in current(records) if any(each.is_stream and each.key in keys for each in r.spec.reads)]
    if readers:
        raise UnsupportedError(
            f"Flow `{readers[0]}` reads {'.'.join(spec.target)} as a stream, and has read rows that would be set back. DROP FLOW "
            "it first, and create it again afterwards."
        )


def refuse_rows_of_others(spark: SparkSession, spec: FlowSpec, savepoint: Savepoint, version: int | None = None) -> None:
    """Refuse to remove rows that others have written since into a table that is not the flow's own.

    Args:
        version: of the table, which is to be set back; None: its newest.
    """
    if spec.owns_target:
        return
    found = ForeignCommits(spark, spec.target_location, spec.id).by_others_since(savepoint.target_version, version)
    table = ".".join(spec.target)
    if found.commits:
        last = found.commits[0]
        raise UnsupportedError(
            f"{table} is not flow `{spec.name}`'s own, and others have changed rows of it since the savepoint "
            f"`{savepoint.name}`, last in version {last.version} ({last.operation}): that would be lost."
        )
    if not found.is_all:
        raise UnsupportedError(
            f"{table} is not flow `{spec.name}`'s own, and its log does not say any more whether others have changed rows since "
            f"the savepoint `{savepoint.name}`: that would be lost."
        )


def _refuse_rows_written_since(spark: SparkSession, spec: FlowSpec, savepoint: Savepoint, version: int) -> None:
    """Refuse as `refuse_rows_of_others` does, unless the table is set back by then: later rows are not lost."""
    if spec.owns_target or last_transaction(spark, spec.target_location, spec.application, version) is not None:
        return
    try:
        refuse_rows_of_others(spark, spec, savepoint, version)
    except UnsupportedError as error:
        raise FlowError(
            f"{error.message} The flow was being set back when they came. DROP FLOW it, and create it again: the table stays."
        ) from None


def changed_by_others(spark: SparkSession, spec: FlowSpec, savepoint: Savepoint) -> str:
    """Return what the statement's answer says of changes by others that are set back, too; empty: there are none."""
    found = ForeignCommits(spark, spec.target_location, spec.id).by_others_since(savepoint.target_version).commits
    listed = ", ".join(f"{each.version} ({each.operation})" for each in reversed(found[:_MOST_LISTED]))
    more = ", .." if len(found) > _MOST_LISTED else ""
    return f"; versions of others are set back, too: {listed}{more}" if found else ""


def restored(savepoint: Savepoint, spec: FlowSpec) -> FlowSpec:
    """Return the record of a flow that is to be set back to a savepoint.

    Args:
        spec: the flow as it is now.
    """
    return replace(
        savepoint.spec,
        generation=spec.generation + 1,
        restored=savepoint.name,
        restoring=savepoint.id,
        replaces=spec.replaces,
        former_quarantines=tuple(dict.fromkeys((*savepoint.spec.former_quarantines, *spec.quarantine_tables))),
    )


def prepare(
    spark: SparkSession, store: SavepointStore, savepoint: Savepoint, spec: FlowSpec, home: HadoopPath, now: datetime
) -> None:
    """Copy a savepoint's checkpoints and tables into the folder of the restored flow (step 2).

    Args:
        spec: the restored flow.
        home: the flow's folder.
        now: the time. The state of groups ends as much later as has passed since the savepoint.
    """
    folder = content_of(home, spec)
    folder.delete()
    copy_content(spark, store.files(savepoint), folder)
    for table in tables_in(folder):
        set_forward(spark, table.location, now - datetime.fromisoformat(savepoint.at))
        version = delta_tables.version(spark, table.location)
        said = {"flow": spec.name, "flow_id": spec.id, "reason": _REASON, "savepoint": savepoint.name, "read_version": version}
        identity = CommitIdentity(spec.application, 0, json.dumps({"sqlext": said | {"application": spec.application}}))
        table_copy.take_over(spark, table, savepoint.spec.application, identity)


def set_table_back(spark: SparkSession, store: SavepointStore, spec: FlowSpec, epoch: int, check: Callable[[], None]) -> None:
    """Set a restored flow's table back to its savepoint, unless it is (step 4).

    Args:
        spark: a session of the flow's, and of nobody else.
        store: the flow's savepoints.
        spec: the restored flow.
        epoch: of the driver.
        check: called before each attempt; raises if this driver must not commit any more.

    Raises:
        SqlextError: the savepoint or the table is gone.
    """
    savepoint = store.by_id(spec.restoring)
    store.check_rows(savepoint)
    target.check_same_table(spark, spec)
    _refuse_rows_written_since(spark, spec, savepoint, delta_tables.version(spark, spec.target_location))
    set_back = partial(_set_back, spark, store.rows(savepoint), savepoint, spec, epoch)
    described = jvm.described(spark, f"flow {spec.name}: restore to savepoint {savepoint.name}", spec.id)
    with described, session_settings(spark, ALL_FILES):
        check()
        kept = store.quarantined(spark, savepoint)
        for name in spec.quarantine_tables:  # again after a crash: the same rows
            if name in kept:
                quarantine.set_back(spark, name, kept[name], spec)
            else:
                quarantine.forget(spark, name, spec.id)  # it had no rows there then
        commit.again_after_conflicts(set_back, check)
    logger.info("flow %s: %s is as it was at savepoint %s", spec.name, ".".join(spec.target), savepoint.name)


def _set_back(spark: SparkSession, rows: HadoopPath, savepoint: Savepoint, spec: FlowSpec, epoch: int) -> None:
    snapshot, last = delta_tables.snapshot(spark, spec.target_location), savepoint.committed
    _refuse_rows_written_since(spark, spec, savepoint, int(snapshot.version()))
    info = commit.CommitInfo(
        spec.name,
        spec.id,
        epoch,
        last + 1,
        last,
        -1,
        _REASON,
        read_version=int(snapshot.version()),
        application=spec.application,
    )
    more = {"savepoint": savepoint.name, "savepoint_version": savepoint.target_version, **savepoint.read}
    identity = CommitIdentity(spec.application, last, info.to_json(more))
    closed = [replace(spec, generation=earlier).application for earlier in range(spec.generation)]
    table_copy.set_back(spark, snapshot, savepoint.target_version, savepoint.metadata, rows, identity, closed)


def completed(spec: FlowSpec) -> FlowSpec:
    """Return the record of a restored flow whose table is set back."""
    return replace(spec, restoring="")


def note_of(spec: FlowSpec) -> str:
    """Return what SHOW FLOWS says of a flow that was set back; empty: it was not."""
    if spec.restoring:
        return f"is being set back to savepoint {spec.restored}: START FLOW goes on with it"
    return f"set back to savepoint {spec.restored}" if spec.restored else ""


def check_still_there(savepoint: Savepoint, spec: FlowSpec) -> None:
    """Refuse to drop the savepoint that a flow is just being set back to."""
    if spec.restoring == savepoint.id:
        raise FlowError(
            f"Flow `{spec.name}` is being set back to savepoint `{savepoint.name}`, and needs it until then: START FLOW it first."
        )
