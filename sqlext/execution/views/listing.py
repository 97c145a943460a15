"""The views of a home with all that is known of each: for SHOW, for pages, and for who keeps their target lags."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from sqlext.clock import Clock
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.views.lag import LagKept, age_of, is_due, lag_of
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.registry import ViewRegistry, created, shown_names
from sqlext.execution.views.rows import ViewRow, state_of
from sqlext.execution.views.status import StatusFiles
from sqlext.execution.views.waves import Waves
from sqlext.plan.view_spec import RefreshReport, ViewSpec


class Listing:
    """See the module's docstring. Any thread may call it.

    Args:
        spark: the host's own session.
        registry, files, lease, clock, logs, waves: of this process.
    """

    def __init__(
        self,
        spark: SparkSession,
        registry: ViewRegistry,
        files: StatusFiles,
        lease: Lease,
        clock: Clock,
        logs: TableLogs,
        waves: Waves,
    ) -> None:
        self._spark = spark
        self._registry = registry
        self._files = files
        self._lease = lease
        self._clock = clock
        self._logs = logs
        self._waves = waves
        self._kept: dict[str, LagKept] = {}  # each is used by the looks of one view, which take turns

    def rows(self, live: Mapping[str, LiveView], is_behind: Callable[[ViewSpec], bool | None] | None) -> list[ViewRow]:
        """Return all views of the home, by name.

        Args:
            live: those of this process, by id.
            is_behind: tells whether a source has changed since the last refresh; None: nobody asks.
        """
        records = created(self._registry.read())
        names = shown_names(record.spec for record in records.values())
        statuses = {key: self._files.read(key) for key in records}
        waits = self._waves.waits_for({key for key, status in statuses.items() if status.error})
        rows = []
        for key, record in records.items():
            here, report = live.get(key), statuses[key].report
            state = state_of(record, statuses[key], here is not None and here.is_running, self._lease.is_alive(record.host))
            lag = None if report is None else lag_of(self._spark, self._logs, report, self._clock.now())
            behind = None if is_behind is None else is_behind(record.spec)
            needed, kept = self._waves.needs.get(key), self._kept.get(key, LagKept()).quantiles()
            rows.append(ViewRow(record, names[key], state, statuses[key], behind, lag, needed, kept, waits.get(key, "")))
        return sorted(rows, key=lambda row: row.name.lower())

    def is_lagging(self, spec: ViewSpec, report: RefreshReport) -> bool:
        """Return whether a refresh must begin now for a view's target lag to be kept."""
        known = age_of(self._spark, self._logs, report, self._clock.now())
        if known is None or spec.schedule.target_lag is None:
            return known is None  # the refresh says what is wrong
        age = known.total_seconds()
        self._kept.setdefault(spec.id, LagKept()).note(self._clock.monotonic(), age, report)
        return is_due(spec.schedule.target_lag, age, self._waves.seconds_of(spec, self._files.read))
