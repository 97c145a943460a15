"""The run of one statement at a time, on its own thread, so that Ctrl-C acts at once and ends what the statement started."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from sqlext.app.interrupts import Interrupts
from sqlext.app.problems import problem_of
from sqlext.app.progress import TaskCounts
from sqlext.clock import Deadline
from sqlext.errors import UnsupportedError
from sqlext.extension.live import LiveQuery
from sqlext.extension.results import ROW_LIMIT, LiveBatch, Result, fetch
from sqlext.extension.session import home_of
from sqlext.spark.cancellation import canceled_by
from sqlext.spark.jvm import redaction
from sqlext.spark.storage import HadoopPath
from sqlext.sql.tokens import is_ours

T = TypeVar("T")
Show = Callable[[LiveBatch], None]
Watch = Callable[[Callable[[], bool]], None]
"""Shows progress until the given function returns true; both run on the main thread."""

_QUICK_SECONDS = 0.3
_POLL_SECONDS = 0.05
_CANCEL_AGAIN_SECONDS = 0.5  # a statement may start its next job just after the last one was canceled
_CANCELLED_WITHIN = 15.0
_BY_US = "The statement was canceled."


class Task(Generic[T]):
    """An action on a daemon thread: the end of the process does not wait for it."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._result: list[T] = []
        self._error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="sqlext-task", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._action())
        except Exception as error:  # noqa: BLE001  # raised again by `result`
            self._error = error

    def result(self) -> T:
        """Return what the action returned, once the thread has ended; raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class StatementRunner:
    """The runner of statements in one session; only the main thread uses it.

    A statement is a Spark job group; flows that it starts are not part of the group (`jvm.outside_of_any_query`).

    Attributes:
        ends_when_idle: whether a SELECT over a stream ends once it has shown all that had arrived.
    """

    def __init__(self, spark: SparkSession, interrupts: Interrupts) -> None:
        self._spark = spark
        self._interrupts = interrupts
        self._numbers = itertools.count(1)
        self._group = ""
        self.ends_when_idle = False
        self._is_live = False

    def run(self, text: str, watch: Watch, limit: int = ROW_LIMIT, show: Show | None = None) -> Result:
        """Run a statement and return its rows.

        Args:
            watch: called when the statement takes long.
            limit: the most rows to return.
            show: called on the main thread with each micro-batch of a SELECT over a stream, whose result is then empty. None:
                such a SELECT is refused.

        Raises:
            KeyboardInterrupt: at an interrupt; the message says whether the statement has ended or still will.
            Exception: whatever the statement raises.
        """
        group, canceled = f"sqlext-statement-{next(self._numbers)}", threading.Event()
        self._group, self._is_live = group, False
        come: queue.SimpleQueue[LiveBatch] = queue.SimpleQueue()
        task = Task(lambda: self._execute(text, group, canceled, limit, None if show is None else come.put))

        def is_over() -> bool:
            ended = not task.thread.is_alive()
            while show is not None and not come.empty():
                show(come.get())
            return ended or self._interrupts.asked.is_set()

        task.thread.join(_QUICK_SECONDS)
        while not is_over():
            watch(is_over)
            self._interrupts.asked.wait(_POLL_SECONDS)
        if not task.thread.is_alive():
            is_over()  # shows the last micro-batches
            return task.result()
        if self._interrupts.must_end:
            canceled.set()
            if self._is_live:
                task.thread.join(_CANCELLED_WITHIN)  # it deletes its checkpoint
            if not is_ours(text):  # a job that survives its driver has not failed: the next process resumes it
                self._spark.sparkContext.cancelJobGroup(group)
            raise KeyboardInterrupt("interrupted")
        canceled.set()
        raise KeyboardInterrupt(self._cancel(task, group))

    def tasks(self) -> TaskCounts:
        """Return how many of Spark's tasks for the running statement have ended, and how many there are so far."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        ids = [stage for job in jobs if job is not None and job.status == "RUNNING" for stage in job.stageIds]
        stages = [stage for each in ids if (stage := tracker.getStageInfo(each)) is not None]
        return TaskCounts(sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages))

    def _execute(
        self, text: str, group: str, canceled: threading.Event, limit: int, show: Callable[[LiveBatch], None] | None
    ) -> Result:
        description = " ".join(redaction(self._spark).sql(text).split())[:200]  # for Spark's UI and event log
        self._spark.sparkContext.setJobGroup(group, description, interruptOnCancel=True)
        with canceled_by(canceled):
            frame = self._spark.sql(text)
            if frame.isStreaming and show is not None:
                home = HadoopPath(self._spark, home_of(self._spark))
                self._is_live = True
                LiveQuery(frame, home, show, limit).run(canceled, self.ends_when_idle)
                return Result([], [], [])
            if frame.isStreaming:
                raise UnsupportedError(
                    "This SELECT reads a stream and never ends, so it has no result to print. Keep its result in a table with "
                    "CREATE STREAMING TABLE t AS SELECT .., or leave STREAM out to read what is there now."
                )
            return fetch(frame, limit)

    def _cancel(self, task: Task[Result], group: str) -> str:
        """Cancel until the statement has ended, takes too long, or a second interrupt ends the wait.

        Returns:
            A message on how the statement ended.
        """
        self._interrupts.asked.clear()
        deadline = Deadline(_CANCELLED_WITHIN)
        while task.thread.is_alive() and not deadline.has_passed:
            self._spark.sparkContext.cancelJobGroup(group)
            task.thread.join(_CANCEL_AGAIN_SECONDS)
            if self._interrupts.asked.is_set():
                break
        if task.thread.is_alive():
            return "The statement was canceled, but has not ended yet: its last work still runs in the background."
        try:
            task.result()
        except Exception as error:  # noqa: BLE001  # the statement was to end
            message = problem_of(error).message
            return message if _BY_US in message else _BY_US
        return "The statement ended before it could be canceled."
