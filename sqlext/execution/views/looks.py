"""Whether a view is behind, asked every second: by the versions of its tables, at which all views and flows look together."""

from __future__ import annotations

import time

from sqlext.errors import NotFoundError
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.views.refresh import Refresher
from sqlext.spark.failures import SPARK_ERRORS

_RECENT_SECONDS = 0.5
"""The age of a look at a table that is recent enough for another view."""
_BELIEVED_SECONDS = 10.0
"""The seconds after which a view is asked itself: a view of Spark's below it may have been redefined, or a table replaced."""


class Looks:
    """The looks at the tables of one view, whose turn is held.

    Args:
        logs: the logs of tables.
    """

    def __init__(self, logs: TableLogs) -> None:
        self._logs = logs
        self._up_to_date: tuple[Refresher, dict[str, int]] | None = None
        """What has last said that it is not behind, and the versions that its tables had before."""
        self._asked = float("-inf")

    def is_behind(self, refresher: Refresher) -> bool:
        """Return whether a source has changed since the last refresh. Runs no Spark job.

        Raises:
            PySparkException: a source is gone.
        """
        now, versions = time.monotonic(), self._versions(refresher)
        if versions is not None and self._up_to_date == (refresher, versions) and now - self._asked < _BELIEVED_SECONDS:
            return False
        is_behind = refresher.is_behind()
        self._up_to_date = None if is_behind or versions is None else (refresher, versions)
        self._asked = now
        return is_behind

    def is_other(self, refresher: Refresher) -> bool:
        """Return whether the view's query means something else than at the last refresh; asked every ten seconds only.

        Raises:
            PySparkException: a source is gone.
        """
        now = time.monotonic()
        if now - self._asked < _BELIEVED_SECONDS:
            return False
        self._asked = now
        return refresher.is_other()

    def _versions(self, refresher: Refresher) -> dict[str, int] | None:
        tables = refresher.tables
        try:
            return None if tables is None else {each: self._logs.newest(each, _RECENT_SECONDS) for each in tables}
        except (NotFoundError, OSError, *SPARK_ERRORS):  # the view's own look tells what is wrong
            return None
