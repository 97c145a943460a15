"""The newest versions of Delta tables, each found by one look at the log however many ask.

The commit of version n creates the file n.json in the log. So a look asks whether the next one is there, and lists nothing. From
time to time it asks for that of the version itself too: a table that was dropped and made anew begins with version 0.
"""

from __future__ import annotations

import threading
import time

from pyspark.sql import SparkSession

from sqlext.errors import NotFoundError
from sqlext.spark import delta_tables
from sqlext.spark.storage import HadoopPath

_SURE_SECONDS = 5.0
"""The seconds for which it is taken for granted that a version is still there."""
_FORGOTTEN_AFTER = 600.0
"""The seconds after which a table is forgotten that nobody asks for."""


class TableLogs:
    """The logs of the tables that this process follows. Any thread may call it.

    `_lock` guards which logs there are; the lock of each guards its version, and is held during a look.

    Args:
        spark: any session of the application.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._logs: dict[str, _TableLog] = {}

    def newest(self, location: str, max_age: float = 0.0) -> int:
        """Return the newest version of a table. Runs no Spark job.

        Args:
            location: the folder of the table.
            max_age: the age in seconds of a look that is recent enough.

        Raises:
            NotFoundError: there is no Delta table.
            PySparkException, Py4JJavaError, OSError: its storage does not answer.
        """
        now = time.monotonic()
        with self._lock:
            log = self._logs.get(location)
            if log is None:
                self._logs = {key: each for key, each in self._logs.items() if now - each.asked < _FORGOTTEN_AFTER}
                log = self._logs[location] = _TableLog(self._spark, location)
            log.asked = now
        return log.newest(max_age)


class _TableLog:
    """The log of one table; see `TableLogs`."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.asked = time.monotonic()
        self._spark = spark
        self._location = location
        self._lock = threading.Lock()
        self._folder: HadoopPath | None = None
        self._version: int | None = None
        self._looked = float("-inf")
        self._sure_at = float("-inf")  # when the version was there

    def newest(self, max_age: float) -> int:
        with self._lock:
            if self._version is None or time.monotonic() - self._looked > max_age:
                self._version = self._look()
                self._looked = time.monotonic()
            return self._version

    def _look(self) -> int:
        version, folder = self._version, self._folder
        if version is None or folder is None or not self._is_there(folder, version):  # no look yet, or commits that lie elsewhere
            snapshot = delta_tables.snapshot(self._spark, self._location)
            if int(snapshot.version()) < 0:
                raise NotFoundError(f"There is no Delta table in {self._location}.")
            if delta_tables.has_commits_in_log(snapshot):
                self._folder = HadoopPath(self._spark, self._location).child("_delta_log")
            self._sure_at = time.monotonic()
            return int(snapshot.version())
        while _commit(folder, version + 1).exists():
            version += 1
        return version

    def _is_there(self, folder: HadoopPath, version: int) -> bool:
        now = time.monotonic()
        if now - self._sure_at >= _SURE_SECONDS:
            if not _commit(folder, version).exists():
                return False
            self._sure_at = now
        return True


def _commit(folder: HadoopPath, version: int) -> HadoopPath:
    return folder.child(f"{version:020d}.json")
