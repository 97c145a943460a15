"""The partial results of all rows that a flow has read: one more micro-batch, from the beginning of its streams to where it is.

Spark reads them as it read them for the flow, by the offsets in its checkpoint. So it is Delta that finds the rows: those of the
version before the last one that was read, and of that one as many files as were read. A source that no longer has them, since its
files were vacuumed or its log is cleaned up, is an error of Delta's.
"""

from __future__ import annotations

import uuid
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.errors import StatementCanceledError, UnsupportedError
from sqlext.execution.state.buffer import BATCH_COLUMN
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.execution.streaming.checkpoint import Checkpoint
from sqlext.spark import failures, jvm
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.micro_batch_rules import sound_rules
from sqlext.spark.settings import ALL_FILES, session_settings
from sqlext.spark.storage import HadoopPath

_POLL_SECONDS = 1


def partials_of_history(
    spark: SparkSession,
    name: str,
    aggregate: MergeableAggregate,
    checkpoint: Checkpoint,
    batch: int,
    home: HadoopPath,
    canceled: Event,
) -> DataFrame:
    """Return the partial results of the rows that were read up to the end of a micro-batch, one row for each group.

    Args:
        spark: a session like the flow's, of nobody else.
        name: of the query, for Spark's UI and logs.
        aggregate: analysed in that session.
        checkpoint: of the flow's query.
        batch: the micro-batch.
        home: an unused folder; the rows lie there.
        canceled: set when the client waits no longer.

    Raises:
        UnsupportedError: a source no longer has these rows.
        StatementCanceledError: the client has canceled the statement.
    """
    if not checkpoint.planned(batch).offsets:
        raise UnsupportedError(f"its checkpoint does not tell any more what micro-batch {batch} has read.")
    own, rows = Checkpoint(home), home.child("rows").location
    own.begin_with_all_before(checkpoint, batch, str(uuid.uuid4()))

    def store(frame: DataFrame, _: int) -> None:
        partials = aggregate.partials(frame).withColumn(BATCH_COLUMN, F.lit(0))
        aggregate.merged(partials, BATCH_COLUMN).write.format("parquet").mode("overwrite").save(rows)

    stream = aggregate.input.writeStream.queryName(name).option("checkpointLocation", own.location)
    writer = stream.foreachBatch(store).trigger(once=True)
    try:
        with session_settings(spark, {**ALL_FILES, **sound_rules(aggregate.input)}), jvm.outside_of_any_query(spark):
            query = writer.start()
            while not query.awaitTermination(_POLL_SECONDS):
                if canceled.is_set():
                    query.stop()
                    raise StatementCanceledError("The statement was canceled.")
    except SPARK_ERRORS as error:
        raise UnsupportedError(f"its history cannot be computed: {failures.reason_of(error)}") from None
    return spark.read.schema(aggregate.schema).parquet(rows)
