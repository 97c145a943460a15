"""One process: its sign of life, its ticker, its flows, views and jobs. There is one host a Spark application."""

from __future__ import annotations

import logging
import threading

from pyspark.sql import SparkSession

from sqlext.clock import Clock, SystemClock
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.jobs.manager import JobManager
from sqlext.execution.views.manager import ViewManager
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1


class Host:
    """See the module's docstring. Any thread may call it.

    Args:
        spark: any session of the application; the host has a clone of it.
        home: where flows, views and jobs have their folders and registries.
        clock: for flush intervals, and the schedules of views.

    Attributes:
        flows: of this process.
        views: of this process.
        jobs: of this process.
    """

    def __init__(self, spark: SparkSession, home: str, clock: Clock | None = None) -> None:
        self._spark = jvm.clone_session(spark)
        self._home = HadoopPath(self._spark, home)
        self._lease = Lease(self._home)
        clock = clock or SystemClock()
        self.flows = FlowManager(self._spark, self._home, self._lease, clock)
        self.views = ViewManager(self._spark, self._home, self._lease, clock, self.flows.records)
        self.jobs = JobManager(self._spark, self._home, self._lease)
        self._closing = threading.Event()  # flows are no longer looked at
        self._closed = threading.Event()  # and this host gives no more sign of life
        self._ticker = threading.Thread(target=self._tick_until_closed, name="sqlext-flows", daemon=True)
        self._ticker.start()

    @property
    def home(self) -> str:
        return self._home.location

    def close(self) -> None:
        """End jobs and refreshes, and stop the flows, flushed; the next host resumes all. The sign of life goes on until then."""
        self._closing.set()
        self.jobs.close()
        self.views.close()
        self.flows.close()
        self._closed.set()
        if threading.current_thread() is not self._ticker:
            self._ticker.join(timeout=60)
        if self._lease.has_begun:
            self._lease.end()

    def freeze(self) -> None:
        """Hang, as far as flows and views can see: streams run, but nobody looks at the clock. The sign of life ends too."""
        self._closing.set()
        self.views.freeze()
        self.flows.freeze()
        self._closed.set()
        self._ticker.join()

    def abandon(self, timeout: float) -> None:
        """Leave flows as a killed process does: nothing is flushed, and the registry says that they run.

        Args:
            timeout: seconds to wait for each flow's flush in flight, and for the refreshes of views.
        """
        self.freeze()
        self.views.abandon(timeout)
        self.flows.abandon(timeout)
        self._lease.end()

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(TICK_SECONDS):
            if self._spark.sparkContext._jsc is None:  # noqa: SLF001  # Spark was stopped under us; there is no public way to ask
                return
            if not self._closing.is_set():
                self.flows.tick()
                self.views.tick()
            if self._lease.has_begun:  # also while the first flow is still being made, or the last flushes run
                self._beat()

    def _beat(self) -> None:
        try:
            self._lease.beat()
        except Exception:
            if not self._closing.is_set():
                logger.exception("no sign of life could be given")
