"""A streaming query of Spark's, started and stopped again, at a pace that may change while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.execution.delta.target import SPARK_ERRORS
from sqlext.execution.streaming import streams
from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.plan.job_graph import OutputMode
from sqlext.spark import jvm

logger = logging.getLogger(__name__)


class StopAtBoundary(Exception):  # noqa: N818  # not an error: it ends the query before a micro-batch has begun
    pass


class _BatchFunction:
    """What Spark calls with each micro-batch, until it is released.

    Java keeps this object as long as the query, and an intake keeps the query: neither collector could ever free either. So an
    intake that is done lets go of both.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function: Callable[[DataFrame, int], None] | None = function

    def __call__(self, frame: DataFrame, batch: int) -> None:
        function = self._function
        if function is None:
            raise StopAtBoundary
        function(frame, batch)

    def release(self) -> None:
        self._function = None


class RunningQuery:
    """See the module's docstring. One thread starts and stops it; any may change its pace.

    Args:
        name: for Spark's UI and logs.
        frame: the query, analysed.
        location: of its checkpoint.
        function: called on Spark's stream thread with each micro-batch.
        is_bounded: it ends when all that was there at its start was taken.
        takes_all: a micro-batch takes all there is, whatever limits the query's sources have.
    """

    def __init__(
        self,
        name: str,
        frame: DataFrame,
        location: str,
        function: Callable[[DataFrame, int], None],
        is_bounded: bool = False,
        takes_all: bool = False,
    ) -> None:
        self.name = name
        self.is_bounded = is_bounded
        self._takes_all = takes_all
        self._frame = frame
        self._location = location
        self._function = function
        self._batch_function: _BatchFunction | None = None
        self.query: StreamingQuery | None = None
        self.leaves: tuple[streams.StreamLeaf, ...] = ()
        self.pace = Pace(Phase.LIVE)
        self._held: streams.HeldTrigger | None = None

    def find_streams(self, aliases: Collection[str]) -> None:
        """Find the query's streams, whose pace is to be changed."""
        self.leaves = streams.leaves_of(self._frame, aliases)

    def start(self, mode: OutputMode, pace: Pace) -> None:
        """Start it, where its checkpoint says it was."""
        self.pace = pace
        is_limited = pace.phase is Phase.BACKLOG or self._takes_all
        frame = streams.limited(self._frame, self.leaves, pace.size) if is_limited else self._frame
        self._batch_function = _BatchFunction(self._function)
        writer = (
            frame.writeStream.outputMode(mode.value)
            .queryName(self.name)
            .option("checkpointLocation", self._location)
            .foreachBatch(self._batch_function)
        )
        if self.is_bounded:
            writer = writer.trigger(availableNow=True)
        elif pace.interval:
            writer = writer.trigger(processingTime=f"{pace.interval // timedelta(milliseconds=1)} milliseconds")
        with jvm.outside_of_any_query(frame.sparkSession):
            self.query = writer.start()

    def set_pace(self, pace: Pace) -> None:
        """Let micro-batches come at another pace from the next one on that Spark plans."""
        query = self.query
        if query is None or pace == self.pace:
            return
        spark = self._frame.sparkSession
        if pace.phase is Phase.BACKLOG:
            streams.set_backlog_limits(spark, query, self.leaves, pace.size)
        elif self.pace.phase is Phase.BACKLOG:
            streams.set_own_limits(spark, query, self.leaves)
        if pace.interval != self.pace.interval and not self.is_bounded:
            streams.set_interval(spark, query, pace.interval)
        self.pace = pace

    # At the pace of somebody else.

    def hold(self) -> None:
        """From the next micro-batch on, take one only when asked."""
        query = self.query
        if query is not None and query.isActive and self._held is None:
            self._held = streams.HeldTrigger(self._frame.sparkSession, query)

    def take_one(self) -> None:
        """While it is held: look for input, and take a micro-batch if there is some."""
        if self._held is not None:
            self._held.fire()

    def let_go(self) -> None:
        """Take what arrives as it arrives again."""
        held, self._held = self._held, None
        if held is not None:
            held.let_go()

    def forget_last_look(self) -> None:
        """See `has_found_nothing`."""
        if self.query is not None:
            streams.forget_last_look(self.query)

    @property
    def has_found_nothing(self) -> bool:
        """Whether a look for input has ended since `forget_last_look`, and there was none."""
        return self.query is not None and streams.has_found_nothing(self.query)

    # Its end.

    def stop(self) -> None:
        """End it. A micro-batch in progress is repeated on the next start."""
        query = self.query
        try:
            if query is not None and query.isActive:
                query.stop()
        except SPARK_ERRORS as error:
            logger.warning("flow %s: its query did not stop: %s", self.name, jvm.reason_of(error))

    def release(self) -> None:
        """Let go of the query, which has ended."""
        if self._batch_function is not None:
            self._batch_function.release()
        self.query = self._batch_function = None

    @property
    def has_ended(self) -> bool:
        """Whether it ran, and does no more."""
        query = self.query  # another thread may let go of it
        return query is not None and not query.isActive

    @property
    def has_reached_end(self) -> bool:
        """Whether it took all that there was at its start, when it is bounded."""
        return self._reached_end is True

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and not because it reached its end."""
        return self._reached_end is False

    @property
    def _reached_end(self) -> bool | None:
        """None: it has not ended. One look at the query: another thread lets go of one that has reached its end."""
        query = self.query
        if query is None or query.isActive:
            return None
        return self.is_bounded and query.exception() is None

    @property
    def is_quiet(self) -> bool:
        """Whether no input is available.

        A trigger that only looks for some is no input: where looking is slow, one is active most of the time.
        """
        query = self.query
        status: Any = query.status if query is not None and not self.is_bounded else {}
        return bool(status) and not status["isDataAvailable"]
