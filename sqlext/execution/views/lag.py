"""How far a materialized view is behind the tables that it is made of, from their logs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from pyspark.sql import SparkSession

from sqlext.errors import NotFoundError
from sqlext.execution.delta import delta_log
from sqlext.execution.delta.changes import changed_files
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.plan.lineage import place
from sqlext.plan.view_spec import RefreshReport, SourceVersion
from sqlext.spark import failures
from sqlext.spark.failures import SPARK_ERRORS

logger = logging.getLogger(__name__)

T = TypeVar("T")

_HOUR = 3600
_SLACK = 1.5
"""A refresh may take so many times as long as the last one."""
_LEAST_SECONDS = 2.0
"""The seconds that are left at least: the sources are looked at every second."""
_RECENT_SECONDS = 0.5
"""The age of a look at a table's log that is recent enough."""


@dataclass(frozen=True)
class Lag:
    """How far something is behind what it is made of.

    Attributes:
        age: of the oldest change that is not in it; zero: there is none.
        unread_bytes: of the files that changed since; None: the log does not say.
    """

    age: timedelta = timedelta()
    unread_bytes: int | None = 0


class LagKept:
    """The lags of one view over the last hour, second by second. Not thread-safe, but for `quantiles`.

    While it is refreshed, nobody looks: its lag has grown by a second each second until the commit.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_HOUR)
        self._last: RefreshReport | None = None

    def note(self, at: float, age: float, report: RefreshReport) -> None:
        """Note a look.

        Args:
            at: the time, in seconds of a monotonic clock.
            age: the lag, in seconds.
            report: of the view's newest refresh.
        """
        if self._last is not None and self._last.version != report.version and self._samples:
            then, before = self._samples[-1]
            self._samples += [(then + passed, before + passed) for passed in range(1, round(report.seconds) + 1)]
        self._last = report
        self._samples.append((at, age))

    def quantiles(self) -> tuple[timedelta | None, timedelta | None]:
        """Return the lags that were not exceeded half of the time, and 95% of it; None: nobody has looked yet."""
        samples = list(self._samples)
        ages = sorted(age for at, age in samples if at >= samples[-1][0] - _HOUR)
        if not ages:
            return None, None
        half, most = (timedelta(seconds=ages[min(int(len(ages) * share), len(ages) - 1)]) for share in (0.5, 0.95))
        return half, most


def is_due(target: float, age: float, seconds: float) -> bool:
    """Return whether a refresh must begin now: what it brings is then no older than the target when it ends.

    Args:
        target: the target lag, in seconds.
        age: of the oldest change that has not come, in seconds; 0: there is none.
        seconds: how long the refresh of the whole chain took last.
    """
    return age > 0 and age >= target - max(_SLACK * seconds, _LEAST_SECONDS)


def lag_of(spark: SparkSession, logs: TableLogs, report: RefreshReport, now: datetime) -> Lag | None:
    """Return the lag of a view: behind its first sources, and behind what it reads itself. Runs no Spark job.

    Args:
        spark: the session.
        logs: the logs of tables.
        report: of the view's newest refresh.
        now: the time.

    Returns:
        None: it is not known, since a table is gone.
    """
    return _if_known(lambda: Lag(_age(spark, logs, report, now), _unread(spark, logs, report)))


def age_of(spark: SparkSession, logs: TableLogs, report: RefreshReport, now: datetime) -> timedelta | None:
    """Return the age of a view's lag, as `lag_of` does, but without a look at all that its sources' commits have changed."""
    return _if_known(lambda: _age(spark, logs, report, now))


def _if_known(look: Callable[[], T]) -> T | None:
    try:
        return look()
    except (NotFoundError, OSError, *SPARK_ERRORS) as error:
        logger.info("a lag is not known: %s", failures.reason_of(error))
        return None


def _age(spark: SparkSession, logs: TableLogs, report: RefreshReport, now: datetime) -> timedelta:
    oldest = now
    for source, newest in _ahead(logs, report):
        found = delta_log.written_at(spark, source.location, source.version + 1)
        oldest = min(oldest, found or delta_log.written_at(spark, source.location, newest) or now)
    return now - oldest


def _unread(spark: SparkSession, logs: TableLogs, report: RefreshReport) -> int | None:
    unread = 0
    for source, newest in _ahead(logs, report):
        changed = changed_files(spark, source.location, source.version, newest)
        if changed is None:
            return None
        unread += changed.changed
    return unread


def _ahead(logs: TableLogs, report: RefreshReport) -> Iterator[tuple[SourceVersion, int]]:
    """Yield each table that has gone on since it was read, with its newest version."""
    for source in {place(each.location): each for each in (*report.sources.values(), *report.cut.values())}.values():
        newest = logs.newest(source.location, _RECENT_SECONDS)
        if newest > source.version:
            yield source, newest
