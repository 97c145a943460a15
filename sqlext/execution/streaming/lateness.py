"""Which rows of a query's micro-batches are late for its aggregate, where a Delta table holds the state: as Spark's own would be.

A watermark advances when a micro-batch ends. What Spark does then depends on the next look for input. If it finds some, the rows
of the next micro-batch are late against the watermark before: that which the ended micro-batch ran with. If it finds none, Spark
runs a micro-batch without rows, for stateful operators to drop groups by the advanced watermark, and the rows of the micro-batch
after that are late against this one.

A query whose aggregate's state is in a Delta table has no stateful operator, so Spark runs no micro-batch without rows. Here the
checkpoint notes where there would have been one.

Relies on Spark's private side: reads the execution of a running query. Checked with Spark 4.2.
"""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.execution.streaming.checkpoint import Checkpoint

_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"


class Lateness:
    """See the module's docstring. Any thread may call it; the lock guards what is noted.

    Args:
        spark: the query's session.
        checkpoint: the query's checkpoint.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._runs_without_rows = spark.conf.get(_WITHOUT_ROWS, "true") == "true"
        self._lock = threading.Lock()
        self._rested_before = checkpoint.rested_before
        self._known = dict[int, int]()  # of micro-batches that no flush has taken yet: Spark deletes the offsets of older ones

    def note_rest(self, query: StreamingQuery) -> None:
        """Record if a query has read all there was since its last micro-batch, and the watermark has advanced.

        It is called while the query rests, so that a crash does not change which rows are late, and before the rows of a
        micro-batch are taken, so that they are the same when it is repeated.

        Args:
            query: the query, which has started.
        """
        before = _rested_before(query) if self._runs_without_rows else None
        with self._lock:
            if before is not None and before > self._rested_before:
                self._checkpoint.note_rest(before)
                self._rested_before = before

    def watermark(self, batch: int) -> int:
        """Return the watermark against which rows of the newest micro-batch, or of one before it, are late.

        For the newest one it is Spark's, and the same when the micro-batch is repeated, since all of it comes from the
        checkpoint. For one before it may be lower: rows of this and later micro-batches are late against it in any case.

        Returns:
            The watermark, in milliseconds since 1970; 0: there was none yet.
        """
        with self._lock:
            if batch not in self._known:
                self._known[batch] = self._looked_up(batch)
            return self._known[batch]

    def forget_before(self, batch: int) -> None:
        """Note that nobody will ask for micro-batches before this one."""
        with self._lock:
            self._known = {number: known for number, known in self._known.items() if number >= batch}

    def _looked_up(self, batch: int) -> int:
        planned = self._checkpoint.planned(batch)
        is_against_own = self._rested_before == batch or planned.is_late_against_it
        return (planned if is_against_own else self._checkpoint.planned(batch - 1)).watermark_ms


def _rested_before(query: StreamingQuery) -> int | None:
    """Return the number of a micro-batch before which Spark would have run one without rows.

    Returns:
        The number of the micro-batch that runs now, or is to come; None: no look found nothing since the micro-batch before it,
        or that one did not advance the watermark, or the query has run none since its start.
    """
    java_query: Any = query._jsq
    execution = java_query.streamingQuery()
    context = execution.getLatestExecutionContext()
    previous = context.previousContext() if context is not None else None
    if previous is None or previous.isEmpty():
        return None
    before = previous.get()
    # the look that found the micro-batch is the first one after the micro-batch before, or others came in between
    has_rested = context.lastTriggerStartTimestamp() != before.currentTriggerStartTimestamp() or execution.noNewData()
    has_advanced = context.offsetSeqMetadata().batchWatermarkMs() > before.offsetSeqMetadata().batchWatermarkMs()
    return int(context.batchId()) if has_rested and has_advanced else None
