"""Statements in this process's own Spark."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from sqlext.app.progress import TaskCounts
from sqlext.app.statement_run import Run
from sqlext.errors import UnsupportedError
from sqlext.extension.live import LiveQuery
from sqlext.extension.results import Result, fetch
from sqlext.extension.session import home_of
from sqlext.spark.cancellation import canceled_by
from sqlext.spark.jvm import redaction
from sqlext.spark.storage import HadoopPath
from sqlext.sql.tokens import is_ours

_CHECKPOINT_DELETED_WITHIN = 15.0


class LocalSession:
    """A session of this process, for a `StatementRunner`.

    A run is a Spark job group; flows that it starts are not part of the group (`jvm.outside_of_any_query`).

    Attributes:
        ends_when_idle: whether a SELECT over a stream ends once it has shown all that had arrived.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.ends_when_idle = False
        self._is_live = False

    def execute(self, run: Run) -> Result:
        description = " ".join(redaction(self._spark).sql(run.text).split())[:200]  # for Spark's UI and event log
        self._spark.sparkContext.setJobGroup(run.tag, description, interruptOnCancel=True)
        self._is_live = False
        with canceled_by(run.canceled):
            frame = self._spark.sql(run.text)
            if frame.isStreaming and run.show is not None:
                home = HadoopPath(self._spark, home_of(self._spark))
                self._is_live = True
                LiveQuery(frame, home, run.show, run.limit).run(run.canceled, self.ends_when_idle)
                return Result([], [], [])
            if frame.isStreaming:
                raise UnsupportedError(
                    "This SELECT reads a stream and never ends, so it has no result to print. Keep its result in a table with "
                    "CREATE STREAMING TABLE t AS SELECT .., or leave STREAM out to read what is there now."
                )
            return fetch(frame, run.limit)

    def cancel(self, run: Run) -> None:
        self._spark.sparkContext.cancelJobGroup(run.tag)

    def leave(self, run: Run, thread: threading.Thread) -> None:
        if self._is_live:
            thread.join(_CHECKPOINT_DELETED_WITHIN)
        if not is_ours(run.text):  # a job that survives its driver has not failed: the next process resumes it
            self.cancel(run)

    def tasks(self, tag: str) -> TaskCounts:
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(tag)]
        ids = [stage for job in jobs if job is not None and job.status == "RUNNING" for stage in job.stageIds]
        stages = [stage for each in ids if (stage := tracker.getStageInfo(each)) is not None]
        return TaskCounts(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))
