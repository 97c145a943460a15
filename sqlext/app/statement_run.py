"""The run of one statement at a time, on its own thread, so that Ctrl-C acts at once and ends what the statement started."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from sqlext.app.interrupts import Interrupts
from sqlext.app.problems import problem_of
from sqlext.app.progress import TaskCounts
from sqlext.clock import Deadline
from sqlext.extension.results import ROW_LIMIT, LiveBatch, Result

T = TypeVar("T")
Show = Callable[[LiveBatch], None]
Watch = Callable[[Callable[[], bool]], None]
"""Shows progress until the given function returns true; both run on the main thread."""

_QUICK_SECONDS = 0.3
_POLL_SECONDS = 0.05
_CANCEL_AGAIN_SECONDS = 0.5  # a statement may start its next job just after the last one was canceled
_CANCELLED_WITHIN = 15.0
_BY_US = "The statement was canceled."
_ENDED = "The statement ended before it could be canceled."


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


@dataclass(frozen=True)
class Run:
    """One run of a statement.

    Attributes:
        text: the statement.
        tag: a name for the run, which no other run of the session has.
        limit: the most rows to return.
        show: called, on the statement's thread, with each micro-batch of a SELECT over a stream, whose result is then empty.
            None: such a SELECT is refused.
        canceled: set when the statement is canceled.
    """

    text: str
    tag: str
    limit: int
    show: Show | None
    canceled: threading.Event


class Session(Protocol):
    """A session that runs one statement at a time: Spark's in this process, or one at a host."""

    def execute(self, run: Run) -> Result:
        """Run a statement; called on a thread of its own.

        Raises:
            Exception: whatever the statement raises.
        """

    def cancel(self, run: Run) -> None:
        """Cancel what a statement runs now; called on the main thread, again and again until the statement has ended."""

    def leave(self, run: Run, thread: threading.Thread) -> None:
        """Cancel a statement because this process ends; called once, on the main thread.

        Args:
            thread: the statement's thread.
        """

    def tasks(self, tag: str) -> TaskCounts:
        """Return how many of Spark's tasks for a run have ended, and how many there are so far."""


class StatementRunner:
    """The runner of statements in one session; only the main thread uses it."""

    def __init__(self, session: Session, interrupts: Interrupts) -> None:
        self._session = session
        self._interrupts = interrupts
        self._numbers = itertools.count(1)
        self._tag = ""

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
        if self._interrupts.asked.is_set():  # after the statement before
            raise KeyboardInterrupt("interrupted")
        come: queue.SimpleQueue[LiveBatch] = queue.SimpleQueue()
        self._tag = f"sqlext-statement-{next(self._numbers)}"
        run = Run(text, self._tag, limit, None if show is None else come.put, threading.Event())
        task = Task(lambda: self._session.execute(run))

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
            result = task.result()
            if self._interrupts.asked.is_set():
                raise KeyboardInterrupt(_ENDED)
            return result
        run.canceled.set()
        if self._interrupts.must_end:
            self._session.leave(run, task.thread)
            raise KeyboardInterrupt("interrupted")
        raise KeyboardInterrupt(self._cancel(task, run))

    def tasks(self) -> TaskCounts:
        """Return how many of Spark's tasks for the running statement have ended, and how many there are so far."""
        return self._session.tasks(self._tag)

    def _cancel(self, task: Task[Result], run: Run) -> str:
        """Cancel until the statement has ended, takes too long, or a second interrupt ends the wait.

        Returns:
            A message on how the statement ended.
        """
        self._interrupts.asked.clear()
        deadline = Deadline(_CANCELLED_WITHIN)
        while task.thread.is_alive() and not deadline.has_passed:
            self._session.cancel(run)
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
        return _ENDED
