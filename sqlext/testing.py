"""For tests of your own flows: a clock that stands still, and a process that hangs, crashes and comes back.

    def test_totals_survive_a_crash(spark):
        process = FlowProcess(spark, HandClock())
        spark.sql("CREATE STREAMING TABLE totals TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes') AS ..")
        process.take_in("totals")      # what has arrived is buffered, and nothing is flushed before its time
        process.crash()                # as kill -9 leaves it
        process.resume()
        process.clock.advance(600)     # ten minutes pass: the flush is due
        assert process.eventually(lambda: spark.table("totals").count() == 3)

Nothing here is for production. Moments of a flow's life, to fail or to stop at, are `sqlext.testing.Moment` and `listened`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyspark.sql import SparkSession

from sqlext.clock import Clock, Deadline, SystemClock
from sqlext.errors import NotFoundError
from sqlext.execution.flows.flow import Flow
from sqlext.execution.host import Host
from sqlext.extension.session import installation_of
from sqlext.moments import Listener, Moment, listened

__all__ = ["FlowProcess", "HandClock", "Listener", "Moment", "listened"]

T = TypeVar("T")

DEADLINE = 180.0
"""Seconds after which a wait has failed, unless another time is given."""
_POLL_SECONDS = 0.1


class HandClock:
    """A clock that stands still until it is advanced. It begins in the first minutes of 2026."""

    def __init__(self) -> None:
        self._seconds = 1_000.0

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._seconds += seconds

    def monotonic(self) -> float:
        """Return the seconds passed; only differences mean anything."""
        return self._seconds

    def now(self) -> datetime:
        """Return the time of day, with its zone."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)


class FlowProcess:
    """The process that hosts an application's flows, as a test sees it.

    Args:
        spark: a session with sqlext.
        clock: by which flushes are due; None: the machine's. Another clock takes effect with the next host, so give it before
            the first flow is created, or before `resume`.
    """

    def __init__(self, spark: SparkSession, clock: Clock | None = None) -> None:
        self._installed = installation_of(spark)
        self.clock = clock or SystemClock()
        self._installed.clock = self.clock

    @property
    def host(self) -> Host:
        """The host of the flows; made now, if there is none yet."""
        return self._installed.get_host()

    def flow(self, name: str) -> Flow:
        """Return a flow of this process.

        Args:
            name: with as much of its schema and catalog as others of its name require, the parts joined by dots.

        Raises:
            NotFoundError: there is none.
        """
        end = tuple(name.split("."))
        for flow in self.host.flows.all.values():
            if flow.spec.qualified_name[-len(end) :] == end:
                return flow
        raise NotFoundError(f"There is no flow `{name}` in this process.")

    def take_in(self, name: str) -> None:
        """Return when what has arrived in a flow's sources is in its buffer; no flush is asked for."""
        self.flow(name).take_in()

    def freeze(self) -> Host:
        """Let the process hang: streams run, but nobody looks at the clock, so nothing is flushed for being due or idle.

        Returns:
            The host that hangs.
        """
        host = self.host
        host.freeze()
        return host

    def crash(self) -> None:
        """Leave what a killed process leaves: buffers are not flushed, and the registry says that its flows run."""
        self.host.abandon(DEADLINE)
        self._installed.host = None

    def resume(self) -> list[str]:
        """Start the next process on the same home.

        Returns:
            The names of the flows that it has resumed.
        """
        return self.host.flows.resume()

    def eventually(self, predicate: Callable[[], T], timeout: float = DEADLINE) -> T:
        """Ask until the answer is true, and return it.

        Raises:
            AssertionError: it was not within `timeout` seconds.
        """
        deadline = Deadline(timeout)
        while not (answer := predicate()):
            if deadline.has_passed:
                raise AssertionError(f"it never came true ({timeout:.0f} s)")
            time.sleep(_POLL_SECONDS)
        return answer
