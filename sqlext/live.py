"""Live queries: a SELECT over a stream whose rows are shown as they come. Nothing of it is kept."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.errors import StatementCanceledError, UnsupportedError
from sqlext.jvm import check_streaming, outside_of_any_query
from sqlext.output import LiveBatch, fetch
from sqlext.plan import OutputMode
from sqlext.storage import HadoopPath

_MODES = (OutputMode.UPDATE, OutputMode.COMPLETE, OutputMode.APPEND)
"""In the order in which they are tried: groups that changed, all groups where those have an order, rows that stay as they are."""
_BROUGHT = {
    OutputMode.UPDATE: "new and changed rows",
    OutputMode.COMPLETE: "the whole result",
    OutputMode.APPEND: "new rows",
}
_POLL_SECONDS = 0.1


class LiveQuery:
    """Runs a streaming query until it is canceled, with a checkpoint that goes when it ends. For one thread.

    Args:
        frame: the query.
        home: a folder that Spark's executors reach; the checkpoint lies there.
        show: takes each micro-batch that has rows, on a thread of Spark's.
        limit: how many rows of a micro-batch are shown.
    """

    def __init__(self, frame: DataFrame, home: HadoopPath, show: Callable[[LiveBatch], None], limit: int) -> None:
        self._frame = frame
        self._checkpoint = home.child("live", uuid.uuid4().hex)
        self._show = show
        self._limit = limit
        self._mode = output_mode(frame)

    def run(self, canceled: threading.Event, ends_when_idle: bool) -> None:
        """Show micro-batches until the statement is canceled.

        Args:
            ends_when_idle: end when all is shown that had arrived at the start.

        Raises:
            StatementCanceledError: it was canceled.
            StreamingQueryException: the query failed.
        """
        try:
            with outside_of_any_query(self._frame.sparkSession):
                query = self._start(ends_when_idle)
            try:
                while not canceled.is_set():
                    if query.awaitTermination(_POLL_SECONDS):
                        return
            finally:
                query.stop()
        finally:
            self._checkpoint.delete()
        raise StatementCanceledError("The statement was canceled.")

    def _start(self, ends_when_idle: bool) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self._take).outputMode(self._mode.value)
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        return (writer.trigger(availableNow=True) if ends_when_idle else writer).start()

    def _take(self, rows: DataFrame, number: int) -> None:
        held = rows.persist()
        try:
            count = held.count()  # all partitions run, so that all state is kept; the first rows alone would leave some out
            if count:
                self._show(LiveBatch(number, _BROUGHT[self._mode], fetch(held, self._limit)))
        finally:
            held.unpersist()


def output_mode(frame: DataFrame) -> OutputMode:
    """How micro-batches of a query are shown.

    Raises:
        UnsupportedError: Spark cannot run it as a stream; with its reason.
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
