"""Looks for input that find none, between two micro-batches of a query.

A watermark advances when a micro-batch ends. What Spark does then depends on the next look for input. If it finds some, the rows
of the next micro-batch are late against the watermark before: that which the ended micro-batch ran with. If it finds none, Spark
runs a micro-batch without rows, for stateful operators to drop groups by the advanced watermark, and the rows of the micro-batch
after that are late against this one.

A query whose aggregate's state is in a Delta table has no stateful operator, so Spark runs no micro-batch without rows. This
module finds out where there would have been one.

Relies on Spark's private side: reads the execution of a running query. Checked with Spark 4.2.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


def rested_before(query: StreamingQuery) -> int | None:
    """Return the number of a micro-batch before which Spark would have run one without rows.

    Args:
        query: a query that has started.

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
