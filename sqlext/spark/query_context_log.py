"""PySpark's log of errors in queries: what passes through our proxies is logged by the client alone, as it is without us.

PySpark writes a line of JSON whenever it makes an error of Python's out of one of Java's. On its way from Spark's parser through
a proxy and back into Java an error is made into one of Python's as well, and then a second time for the client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_thread = threading.local()


def install() -> None:
    """Filter PySpark's loggers of such errors; a second time changes nothing."""
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_is_of_a_client)


@contextmanager
def inside_a_proxy() -> Iterator[None]:
    """Errors that this thread meets within the block go back to Java, or nowhere: whoever gets them logs them."""
    depth = getattr(_thread, "depth", 0)
    _thread.depth = depth + 1
    try:
        yield
    finally:
        _thread.depth = depth


def _is_of_a_client(_: logging.LogRecord) -> bool:
    return not getattr(_thread, "depth", 0)
