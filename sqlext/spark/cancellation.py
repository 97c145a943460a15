"""A statement that its client takes back (Ctrl-C, Hive's CancelOperation, Spark Connect's interrupt, a statement timeout).

The Spark jobs it has started are canceled by whoever takes it back. What it waits for in Python has to ask. Both servers
interrupt the Java thread that runs the statement, on which the calls run that Python makes while it answers Java. `sqlext run`
and the shell set an event, which reaches the wait as a context variable: Spark calls a command's Python on the thread that gave
the statement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
    """What this thread does in the `with` block ends, where it waits, once `asked` is set."""
    token = _asked.set(asked)
    try:
        yield
    finally:
        _asked.reset(token)


def is_canceled(spark: SparkSession) -> bool:
    """Whether the client has taken back the statement that this thread answers. After an interrupt the next call says no: what
    has to be cleaned up can then be done on this thread.
    """
    asked = _asked.get()
    return (asked is not None and asked.is_set()) or _is_interrupted(spark)


def _is_interrupted(spark: SparkSession) -> bool:
    return bool(java_of(spark).java.lang.Thread.interrupted())


def raise_if_canceled(spark: SparkSession, advice: str = "") -> None:
    """
    Args:
        advice: what the user can do about what the statement had begun.

    Raises:
        StatementCanceledError: see `is_canceled`.
    """
    if is_canceled(spark):
        raise StatementCanceledError(f"The statement was canceled.{advice}")


def wait_for(spark: SparkSession, wait: Callable[[float], bool], timeout: float) -> bool:
    """Wait, unless the client takes the statement back.

    Args:
        wait: waits as many seconds, and tells whether what was waited for is there.
        timeout: seconds in all.

    Returns:
        Whether it came in time.

    Raises:
        StatementCanceledError: the client did.
    """
    deadline = Deadline(timeout)
    while not wait(min(_STEP_SECONDS, deadline.left)):
        raise_if_canceled(spark)
        if deadline.has_passed:
            return False
    return True


def to_its_end(spark: SparkSession, name: str, action: Callable[[threading.Event], T]) -> T:
    """Run what must not be left half done. A client that takes the statement back is told so; the action goes on to its end, on a
    thread that the interrupt does not reach. It has deadlines of its own.

    Args:
        spark: the session of the statement.
        name: of the statement, for Spark's UI.
        action: its argument is set when the client takes the statement back.

    Raises:
        StatementCanceledError: the client did.
    """
    canceled = threading.Event()
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            spark.sparkContext.setJobDescription(f"sqlext: {name}")
            with active(spark):
                results.append(action(canceled))
        except Exception as error:  # noqa: BLE001  # raised again by whoever waits
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
