"""A server's watch over its home: flows and jobs of processes that die go on here."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from pyspark.sql import SparkSession

from sqlext.extension.session import resume_all

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_CLOSE_SECONDS = 60.0


class TakeOver:
    """Looks at the registries on a thread, `sqlext-takeover`, in a `with` block.

    The sign of life of a process on another machine, or in another container, that died a moment before this one started is not
    too old yet then.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_until_closed, name="sqlext-takeover", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _look_until_closed(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            if self._spark.sparkContext._jsc is None:  # noqa: SLF001  # Spark was stopped under us; there is no public way to ask
                return
            try:
                resume_all(self._spark)
            except Exception:
                if not self._closed.is_set():
                    logger.exception("flows and jobs of processes that have ended cannot be taken over")
