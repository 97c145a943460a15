"""The micro-batches of a flush that a table lacks, each of which is to be appended once.

A transaction's version keeps Delta from repeating a commit of the same micro-batches, not from one with more of them. So a driver
that was taken for dead must not add some of them to the table unnoticed, by a commit that it has begun before:

- Each attempt leaves out what the table has by now. A commit of any other driver that lands during the attempt is a conflict;
  where the rows are files of the table, also one that lands between this look and the attempt.
- Of what an earlier driver has left, the first micro-batch has a commit of its own. If the earlier driver's commit lands before
  it, Delta skips it; and once it is there, the earlier driver's commit is in conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from sqlext.execution.delta.commit import CommitInfo
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.state.buffer import BufferedBatch, rows_in
from sqlext.execution.state.row_checks import total
from sqlext.plan.cut import Cut


def append_missing(
    spark: SparkSession,
    location: str,
    batches: Sequence[BufferedBatch],
    info: CommitInfo,
    read: Callable[[int], Cut | None],
    append: Callable[[Sequence[BufferedBatch], CommitInfo, int], None],
) -> bool:
    """Append the micro-batches of a flush that the table lacks, in one commit.

    Args:
        spark: the session.
        location: the location of the table.
        batches: of the flush.
        info: the description of a commit of all of them.
        read: returns how far the flow has read its sources with a micro-batch.
        append: does it, given the last micro-batch that the table has, -1 if it has none.

    Returns:
        Whether others are left, for which it is to be called again.
    """
    done = last_transaction(spark, location, info.app_id)
    missing = [batch for batch in batches if done is None or batch.last > done]
    if not missing:
        return False
    is_first_alone = len(missing) == len(batches) > 1 and batches[0].rows < 0
    now = missing[:1] if is_first_alone else missing
    append(now, info if len(now) == len(batches) else _of(now, info, read), -1 if done is None else done)
    return is_first_alone


def _of(batches: Sequence[BufferedBatch], info: CommitInfo, read: Callable[[int], Cut | None]) -> CommitInfo:
    """Return the description of a commit of some micro-batches of a flush."""
    rows, last = rows_in(batches), batches[-1].last
    found = total(batch.checked.violations for batch in batches if batch.checked is not None)
    violations = None if info.violations is None else found
    return replace(info, first_batch=batches[0].first, last_batch=last, rows=rows, violations=violations, read=read(last))
