"""Live queries: a SELECT over a stream whose rows are shown as they arrive. Nothing of it is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.errors import SqlextError, StatementCanceledError, UnsupportedError
from sqlext.execution.coordination.lease import Lease
from sqlext.extension.results import LiveBatch, fetch
from sqlext.plan.job_graph import OutputMode
from sqlext.spark.failures import reason_of
from sqlext.spark.jvm import check_streaming, outside_of_any_query
from sqlext.spark.micro_batch_rules import sound_rules
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_MODES = (OutputMode.UPDATE, OutputMode.COMPLETE, OutputMode.APPEND)
"""In the order in which they are tried: groups that changed; all groups, if they have an order; rows that never change."""
_BROUGHT = {
    OutputMode.UPDATE: "new and changed rows",
    OutputMode.COMPLETE: "the whole result",
    OutputMode.APPEND: "new rows",
}
_POLL_SECONDS = 0.1
_FOLDER = "live"


class LiveQuery:
    """A streaming query that runs until it is canceled, with a checkpoint that is deleted at its end. Not thread-safe.

    The checkpoint is named after a lease, so that `sweep_live` deletes it if the process was killed.

    Args:
        frame: the query.
        home: a folder that Spark's executors can reach; the checkpoint is put there.
        show: called with each micro-batch that has rows, on a thread of Spark's.
        limit: the number of rows of a micro-batch to show.
    """

    def __init__(self, frame: DataFrame, home: HadoopPath, show: Callable[[LiveBatch], None], limit: int) -> None:
        self._frame = frame
        self._home = home
        self._lease = Lease(home)
        self._checkpoint = home.child(_FOLDER, self._lease.host_id)
        self._show = show
        self._limit = limit
        self._mode = output_mode(frame)

    def run(self, canceled: threading.Event, ends_when_idle: bool) -> None:
        """Show micro-batches until the statement is canceled.

        Args:
            canceled: set when the statement is canceled.
            ends_when_idle: whether to end once everything that had arrived at the start is shown.

        Raises:
            StatementCanceledError: the statement was canceled.
            StreamingQueryException: the query failed.
        """
        self._lease.beat()
        sweep_live(self._home, self._lease)
        self._home.child(_FOLDER).make_private()
        try:
            with outside_of_any_query(self._frame.sparkSession):
                query = self._start(ends_when_idle)
            try:
                while query.isActive:
                    self._lease.beat()
                    if canceled.wait(_POLL_SECONDS):
                        raise StatementCanceledError("The statement was canceled.")
                query.awaitTermination()  # raises the query's error
            finally:
                query.stop()
        finally:
            self._checkpoint.delete()
            self._lease.end()

    def _start(self, ends_when_idle: bool) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self._take).outputMode(self._mode.value)
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        with session_settings(self._frame.sparkSession, sound_rules(self._frame)):
            return (writer.trigger(availableNow=True) if ends_when_idle else writer).start()

    def _take(self, rows: DataFrame, number: int) -> None:
        held = rows.persist()
        try:
            count = held.count()  # runs all partitions, so that all state is stored; fetching the first rows only would skip some
            if count:
                self._show(LiveBatch(number, _BROUGHT[self._mode], fetch(held, self._limit)))
        finally:
            held.unpersist()


def sweep_live(home: HadoopPath, lease: Lease) -> None:
    """Delete the checkpoints of live queries whose processes have died, as a lease of this process sees it."""
    try:
        for name in home.child(_FOLDER).names():
            if lease.is_dead(name):
                home.child(_FOLDER, name).delete()
                home.child("hosts", name).delete()
    except (Py4JJavaError, CapturedException, SqlextError) as error:  # another process sweeps too, or this one may not delete it
        logger.warning("the checkpoints of live queries whose processes died cannot be deleted: %s", reason_of(error))


def output_mode(frame: DataFrame) -> OutputMode:
    """Return the output mode in which the micro-batches of a query are shown.

    Raises:
        UnsupportedError: Spark cannot run it as a stream; the message has Spark's reason.
    """
    errors: list[UnsupportedError] = []
    for mode in _MODES:
        try:
            check_streaming(frame, mode)
        except UnsupportedError as error:
            errors.append(error)
        else:
            return mode
    raise errors[0]
