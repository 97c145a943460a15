"""A streaming query of Spark's that is started and stopped again, at a pace that may change while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.execution.streaming import streams
from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.plan.job_graph import OutputMode
from sqlext.spark import failures, jvm
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.micro_batch_rules import sound_rules
from sqlext.spark.settings import session_settings

logger = logging.getLogger(__name__)


class StopAtBoundary(Exception):  # noqa: N818  # not an error
    """The signal that ends a query before a micro-batch has begun."""


class _BatchFunction:
    """The function that Spark calls with each micro-batch, until it is released.

    Java keeps this object as long as the query, and an intake keeps the query, so neither garbage collector could ever free
    either. An intake that has finished therefore releases both.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function: Callable[[DataFrame, int], None] | None = function
        self.is_running = False

    def __call__(self, frame: DataFrame, batch: int) -> None:
        function = self._function
        if function is None:
            raise StopAtBoundary
        self.is_running = True
        try:
            function(frame, batch)
        finally:
            self.is_running = False

    def release(self) -> None:
        self._function = None


class RunningQuery:
    """A streaming query, started and stopped by one thread; any thread may change its pace. See the module's docstring.

    Args:
        name: the query's name, for Spark's UI and logs.
        frame: the analysed query.
        location: the location of its checkpoint.
        function: called with each micro-batch, on Spark's stream thread.
        is_bounded: whether it ends once all that was available at its start is read.
        takes_all: whether a micro-batch reads all that is available, whatever limits the query's sources have.
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
        self._rests = False

    def find_streams(self, aliases: Collection[str]) -> None:
        """Find the query's streams, whose pace is to be controlled."""
        self.leaves = streams.leaves_of(self._frame, aliases)

    @cached_property
    def delta_tables(self) -> Mapping[str, str] | None:
        """The locations of the Delta tables that the query reads, by the names of their offsets; None: it reads others, too."""
        leaves = streams.leaves_of(self._frame, ())
        are_tables = all(leaf.kind is streams.SourceKind.DELTA and leaf.location for leaf in leaves)
        return {leaf.name: leaf.location for leaf in leaves} if leaves and are_tables else None

    @cached_property
    def watched_tables(self) -> frozenset[str] | None:
        """The locations of the Delta tables that the query reads, if it reads only those and files; else None."""
        leaves = streams.leaves_of(self._frame, ())
        tables = frozenset(leaf.location for leaf in leaves if leaf.kind is streams.SourceKind.DELTA)
        are_known = all(leaf.kind is streams.SourceKind.FILES or leaf.location in tables for leaf in leaves)
        return tables if leaves and are_known and "" not in tables else None

    @property
    def lists_files(self) -> bool:
        """Whether it reads files that no table names, so that only a listing finds new ones."""
        return self.delta_tables is None and self.watched_tables is not None

    @property
    def listing_seconds(self) -> float:
        """How long the last listing took that Spark has reported; it reports each that found something, and one every 10 s."""
        query = self.query  # another thread may release it
        return 0.0 if query is None else streams.listing_seconds(query)

    def start(self, mode: OutputMode, pace: Pace) -> None:
        """Start the query from its checkpoint."""
        self.pace = pace
        self._held, self._rests = None, False
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
        with session_settings(frame.sparkSession, sound_rules(frame)), jvm.outside_of_any_query(frame.sparkSession):
            self.query = writer.start()

    def set_pace(self, pace: Pace) -> None:
        """Change the pace, from the next micro-batch that Spark plans."""
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

    # Micro-batches on request.

    def hold(self) -> None:
        """Run micro-batches only on request, from the next one on."""
        query = self.query
        if query is not None and query.isActive and self._held is None:
            self._held = streams.HeldTrigger(self._frame.sparkSession, query)

    def take_one(self) -> None:
        """Look for input once while the query is held, and run a micro-batch if there is some."""
        held = self._held  # a statement may let it go meanwhile
        if held is not None:
            held.fire()

    def let_go(self) -> None:
        """Run micro-batches as data arrives again."""
        held, self._held = self._held, None
        if held is not None:
            try:
                held.let_go()
            except BaseException:
                self._held = held  # it is still held, and can be let go again
                raise

    def forget_last_look(self, seconds: float = 0.0) -> bool:
        """Forget the last look for input; see `has_found_nothing`.

        Args:
            seconds: how long to wait for the end of a look that goes on; False is returned if it has not ended then.
        """
        query = self.query  # another thread may release it
        return query is not None and streams.forget_last_look(self._frame.sparkSession, query, seconds)

    @property
    def has_found_nothing(self) -> bool:
        """Whether a look for input has ended since `forget_last_look` and found none."""
        query = self.query  # another thread may release it
        return query is not None and streams.has_found_nothing(query)

    # Rest while nothing arrives; see `source_watch`.

    def rest(self) -> bool:
        """Look for input no more, until `wake`; return False if the query has ended."""
        self.hold()
        self._rests = self._held is not None
        return self._rests

    def wake(self) -> None:
        """Look for input again."""
        self.let_go()
        self._rests = False

    @property
    def is_at_rest(self) -> bool:
        """Whether the query has read all there was, and looks for nothing until it is woken; see `source_watch`."""
        return self._rests and self.query is not None

    # The end of the query.

    def stop(self) -> None:
        """Stop the query. A micro-batch in progress is repeated at the next start."""
        query, self._rests = self.query, False
        try:
            if query is not None and query.isActive:
                query.stop()
        except SPARK_ERRORS as error:
            logger.warning("flow %s: its query could not be stopped: %s", self.name, failures.reason_of(error))

    def release(self) -> None:
        """Release the query, which has ended."""
        if self._batch_function is not None:
            self._batch_function.release()
        self.query = self._batch_function = self._held = None

    @property
    def is_in_batch(self) -> bool:
        """Whether its function has a micro-batch just now."""
        function = self._batch_function  # another thread may release it
        return function is not None and function.is_running

    def _is_active(self, query: StreamingQuery) -> bool:
        """Return whether a query of this object's runs; Spark is not asked while it has handed over a micro-batch."""
        return self.is_in_batch or query.isActive

    @property
    def is_running(self) -> bool:
        """Whether the query was started and has not ended."""
        query = self.query  # another thread may release it
        return query is not None and self._is_active(query)

    @property
    def has_ended(self) -> bool:
        """Whether the query was started, no longer runs, and was not released."""
        query = self.query
        return query is not None and not self._is_active(query)

    @property
    def has_reached_end(self) -> bool:
        """Whether the query is bounded and has read all that was available at its start."""
        return self._reached_end is True

    @property
    def has_failed(self) -> bool:
        """Whether the query has ended without reaching its end."""
        return self._reached_end is False

    @property
    def _reached_end(self) -> bool | None:
        """Whether the query has reached its end; None: it still runs, or was not started.

        The query is read once, since another thread may release one that has reached its end.
        """
        query = self.query
        if query is None or self._is_active(query):
            return None
        return self.is_bounded and query.exception() is None

    @property
    def is_quiet(self) -> bool:
        """Whether no input is available.

        A trigger that only looks for input does not count: where looking is slow, one is active most of the time.
        """
        if self.is_at_rest:
            return True
        if self.is_in_batch:
            return False
        query = self.query
        status: Any = query.status if query is not None and not self.is_bounded else {}
        return bool(status) and not status["isDataAvailable"]
