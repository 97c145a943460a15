"""A wait until a stream has read all that has arrived; it can be given up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.clock import Deadline
from sqlext.logs import carried
from sqlext.spark import cancellation
from sqlext.spark.java import java_of

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.05


def has_taken_all(spark: SparkSession, arrivals: ArrivalWait, deadline: Deadline) -> bool:
    """Wait until a stream has read all that has arrived; return False at the deadline.

    Args:
        spark: the session of the statement that waits.
        arrivals: the wait, which is given up in the end.
        deadline: the end of the wait.

    Raises:
        StatementCanceledError: the client canceled the statement.
    """
    try:
        return cancellation.wait_for(spark, arrivals.wait, deadline.left)
    finally:
        arrivals.give_up()


class ArrivalWait:
    """A wait on a thread of its own, as Spark's own wait has no deadline. See the module's docstring.

    Args:
        spark: any session of the application.
        name: the name of the thread.
        query: returns the query to wait for; None: there is none. Called once `is_before_query` is False.
        is_before_query: whether something that ends precedes that query, such as the first relations of a hybrid source.
    """

    def __init__(
        self, spark: SparkSession, name: str, query: Callable[[], StreamingQuery | None], is_before_query: Callable[[], bool]
    ) -> None:
        self._spark = spark
        self._query = query
        self._is_before_query = is_before_query
        self._given_up = threading.Event()
        self._java_thread: Any = None
        self._thread = threading.Thread(target=carried(self._run), name=name, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait a number of seconds; return whether everything is read or the query has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """End the wait, if it has not ended; the query continues."""
        self._given_up.set()
        if self._thread.is_alive() and self._java_thread is not None:
            with suppress(Py4JError):
                self._java_thread.interrupt()

    def _run(self) -> None:
        try:
            self._java_thread = java_of(self._spark).java.lang.Thread.currentThread()
            while self._is_before_query():
                if self._given_up.wait(_POLL_SECONDS):
                    return
            query = self._query()
            if query is not None and not self._given_up.is_set():
                query.processAllAvailable()
        except Exception:  # Spark and Py4J raise many kinds here, all reported by `query.exception()`
            logger.info("%s: the query ended during the wait", self._thread.name, exc_info=not self._given_up.is_set())
