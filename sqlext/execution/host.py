"""One process: its sign of life, its ticker, the watch over tables, its flows, views and jobs. There is one an application."""

from __future__ import annotations

import logging
import threading

from pyspark.sql import SparkSession

from sqlext.clock import Clock, SystemClock
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.coordination.runs import RunEvent, RunState, tell
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.flows import faults
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.jobs.manager import JobManager
from sqlext.execution.streaming.source_watch import SourceWatch
from sqlext.execution.views.manager import ViewManager
from sqlext.spark import failures, jvm
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
_BEAT_SECONDS = 1.0


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
        started: when this host did.
    """

    def __init__(self, spark: SparkSession, home: str, clock: Clock | None = None) -> None:
        self._spark = jvm.bare_clone(spark)
        self._home = HadoopPath(self._spark, home)
        self._lease = Lease(self._home)
        clock = clock or SystemClock()
        self.started = clock.now()
        logs = TableLogs(self._spark)
        self._watch = SourceWatch(logs)
        self.flows = FlowManager(self._spark, self._home, self._lease, clock, self._watch)
        self.views = ViewManager(self._spark, self._home, self._lease, clock, self.flows, logs)
        self.jobs = JobManager(self._spark, self._home, self._lease)
        self._closing = threading.Event()  # flows are no longer looked at
        self._closed = threading.Event()  # and this host gives no more sign of life
        self._ticker = threading.Thread(target=self._tick_until_closed, name="sqlext-flows", daemon=True)
        self._lives = threading.Thread(target=self._beat_until_closed, name="sqlext-lease", daemon=True)  # whatever takes long
        self._ticker.start()
        self._lives.start()

    @property
    def home(self) -> str:
        return self._home.location

    def close(self) -> None:
        """End jobs and refreshes, and stop the flows, flushed; the next host resumes all. The sign of life goes on until then."""
        self._closing.set()
        self.jobs.close()
        self.views.close()
        self.flows.close()
        self._tell_ends()
        self._watch.close()
        self._closed.set()
        for thread in (self._ticker, self._lives):
            if threading.current_thread() is not thread:
                thread.join(timeout=60)
        if self._lease.has_begun:
            try:
                self._lease.end()
            except SPARK_ERRORS as error:  # the storage does not answer; the file gets too old by itself
                logger.warning("this host's sign of life could not be deleted: %s", failures.reason_of(error))

    def _tell_ends(self) -> None:
        """Tell that the runs of flows have ended here; the registry keeps them as running, for the next host."""
        for key, flow in self.flows.all.items():
            state = RunState.COMPLETED if flow.error is None else RunState.FAILED
            tell(RunEvent(key, state, error="" if flow.error is None else faults.message_of(flow.error)))

    def freeze(self) -> None:
        """Hang, as far as flows and views can see: streams run, but nobody looks at the clock. The sign of life ends too."""
        self._closing.set()
        self.views.freeze()
        self.flows.freeze()
        self._watch.close()
        self._closed.set()
        self._ticker.join()
        self._lives.join()

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
                self._watch.tick()

    def _beat_until_closed(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            if self._spark.sparkContext._jsc is None:  # noqa: SLF001  # as above
                return
            if self._lease.has_begun:  # also while the first flow is still being made, or the last flushes run
                self._beat()

    def _beat(self) -> None:
        try:
            self._lease.beat()
        except Exception:
            if not self._closing.is_set():
                logger.exception("no sign of life could be given")
