"""A filter for PySpark's logs of query errors: each error is logged for the client only, as it is without sqlext.

PySpark writes a line of JSON whenever it converts a Java error into a Python one. An error on its way from Spark's parser through
a proxy of ours and back into Java is converted as well, and then a second time for the client.
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
    """Add the filter to PySpark's loggers of query errors; a second call changes nothing."""
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_is_of_a_client)


@contextmanager
def inside_a_proxy() -> Iterator[None]:
    """Keep errors that this thread meets within the block out of the logs: Java gets them, and the client logs them."""
    depth = getattr(_thread, "depth", 0)
    _thread.depth = depth + 1
    try:
        yield
    finally:
        _thread.depth = depth


def _is_of_a_client(_: logging.LogRecord) -> bool:
    """Return whether a record is logged outside of all proxies."""
    return not getattr(_thread, "depth", 0)
