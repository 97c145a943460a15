"""Cancellation of a statement by its client (Ctrl-C, Hive's CancelOperation, Spark Connect's interrupt, a statement timeout).

Whatever cancels a statement also cancels the Spark jobs that it has started. Waits in Python have to check for themselves. Both
servers interrupt the Java thread that runs the statement, which also runs the calls that Python makes while it answers Java.
`sqlext run` and the shell set an event, which reaches the wait as a context variable: Spark calls a command's Python function on
the thread that issued the statement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.errors import StatementCanceledError
from sqlext.spark.java import java_of
from sqlext.spark.jvm import active

T = TypeVar("T")

_STEP_SECONDS = 0.1
_asked: ContextVar[threading.Event | None] = ContextVar("sqlext_cancellation", default=None)


@contextmanager
def canceled_by(asked: threading.Event) -> Iterator[None]:
    """Let the waits of this thread in the `with` block end once `asked` is set."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def is_canceled(spark: SparkSession) -> bool:
    """Return whether the client has canceled the statement that this thread answers.

    An interrupt is reported only once, so that the thread can then clean up.
    """
    asked = _asked.get()
    return (asked is not None and asked.is_set()) or _is_interrupted(spark)


def _is_interrupted(spark: SparkSession) -> bool:
    return bool(java_of(spark).java.lang.Thread.interrupted())


def raise_if_canceled(spark: SparkSession, advice: str = "") -> None:
    """Raise StatementCanceledError if the client has canceled the statement that this thread answers.

    Args:
        spark: any session of the application.
        advice: what the user can do about the work that the statement had begun; begins with a space.

    Raises:
        StatementCanceledError: see `is_canceled`.
    """
    if is_canceled(spark):
        raise StatementCanceledError(f"The statement was canceled.{advice}")


def wait_for(spark: SparkSession, wait: Callable[[float], bool], timeout: float) -> bool:
    """Wait until a condition holds, the time is up, or the client cancels the statement.

    Args:
        spark: any session of the application.
        wait: waits up to a number of seconds for the condition, and returns whether it holds.
        timeout: the longest wait, in seconds.

    Returns:
        Whether the condition held in time.

    Raises:
        StatementCanceledError: the client canceled the statement.
    """
    deadline = Deadline(timeout)
    while not wait(min(_STEP_SECONDS, deadline.left)):
        raise_if_canceled(spark)
        if deadline.has_passed:
            return False
    return True


def end_jobs_of(spark: SparkSession, tag: str, threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Cancel the Spark jobs of some threads until the threads end.

    Args:
        spark: any session of the application.
        tag: marks the jobs.
        threads: the threads; the one that calls is left out.
        timeout: the seconds to wait.

    Returns:
        Whether they ended in time.
    """
    others = [thread for thread in threads if thread is not threading.current_thread()]
    deadline = Deadline(timeout)
    while any(thread.is_alive() for thread in others) and not deadline.has_passed:
        spark.sparkContext.cancelJobsWithTag(tag)  # again: a job may begin just after
        for thread in others:
            thread.join(min(1.0, deadline.left))
    return not any(thread.is_alive() for thread in others)


def to_its_end(spark: SparkSession, name: str, action: Callable[[threading.Event], T]) -> T:
    """Run an action that must not be left half done, even if the client cancels the statement.

    The client gets the cancellation at once; the action continues to its end, on a thread that the interrupt does not reach. It
    has deadlines of its own.

    Args:
        spark: the session of the statement.
        name: the name of the statement, for Spark's UI.
        action: its argument is set when the client cancels the statement.

    Raises:
        StatementCanceledError: the client canceled the statement.
    """
    canceled = threading.Event()
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            spark.sparkContext.setJobDescription(f"sqlext: {name}")
            with active(spark):
                results.append(action(canceled))
        except Exception as error:  # noqa: BLE001  # raised again on the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name="sqlext-statement", daemon=True)
    thread.start()

    def has_ended(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    try:
        wait_for(spark, has_ended, threading.TIMEOUT_MAX)
    except StatementCanceledError:
        canceled.set()
        raise
    if errors:
        raise errors[0]
    return results[0]
