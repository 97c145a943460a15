"""Micro-batches of a query that appends, added to its table in one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from sqlext.execution.delta import commit, staged_files
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.execution.state.buffer import BATCH_COLUMN, BufferedBatch
from sqlext.plan.flow_spec import FlowSpec
from sqlext.quoting import quote


def append_batches(
    session: SparkSession,
    spec: FlowSpec,
    buffered: Callable[[Sequence[BufferedBatch]], DataFrame],
    batches: Sequence[BufferedBatch],
    info: commit.CommitInfo,
    done: int | None = None,
) -> None:
    """Add the rows of micro-batches to a flow's table: their files, where they have been written for the table.

    Args:
        session: nobody else commits in it.
        spec: the flow, which has one query.
        buffered: returns the rows of micro-batches that are not files of the table, with `BATCH_COLUMN`.
        batches: the micro-batches.
        info: of the commit.
        done: the last micro-batch that the table had when these were found missing, -1 if it had none; None: nobody else can
            have committed some of them.

    Raises:
        DeltaConcurrentModificationException: another driver has committed since.
    """
    location, columns = spec.target_location, [column.target for column in spec.streams[0].columns]
    staged = [batch.staged for batch in batches if batch.staged is not None]
    others = [batch for batch in batches if batch.staged is None]
    staged_files.check_files(session, location, staged)
    identity = CommitIdentity(info.app_id, info.last_batch, info.to_json())
    if not others and staged_files.append(session, location, staged, identity, done):
        return
    frames = [staged_files.rows_of(session, location, staged, columns)] if staged else []
    frames += [buffered(others).drop(BATCH_COLUMN)] if others else []
    rows = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    commit.append(spec.target, rows.select(*map(quote, columns)), info)
