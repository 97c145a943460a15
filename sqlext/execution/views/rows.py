"""Materialized views as SHOW MATERIALIZED VIEWS displays them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlext.execution.views.lag import Lag
from sqlext.execution.views.registry import ViewRecord
from sqlext.execution.views.status import ViewStatus
from sqlext.plan.lineage import shown
from sqlext.plan.view_spec import RefreshReport, ViewSpec


@dataclass(frozen=True)
class ViewRow:
    """A materialized view.

    Attributes:
        record: its record in the registry.
        name: the view's name, with as much of its schema as distinguishes it from others.
        state: REFRESHING, FAILED, LOST (its process is gone), STOPPED, SCHEDULED, or IDLE (refreshed by hand only).
        status: what became of its last refreshes.
        is_behind: whether a source has changed since; None: not known.
        lag: how far it is behind what it is made of; None: not known.
        needed: within how many seconds a target lag, its own or one above it, needs it to be up to date; None: none does.
        lags: the lag that half of the time, and 95% of it, was not exceeded in the last hour; None: it has no target lag here.
        waits_for: the table that it is made of, directly or through others, and that could not be brought up to date.
    """

    record: ViewRecord
    name: str
    state: str
    status: ViewStatus
    is_behind: bool | None
    lag: Lag | None = None
    needed: float | None = None
    lags: tuple[timedelta | None, timedelta | None] = (None, None)
    waits_for: str = ""


def state_of(record: ViewRecord, status: ViewStatus, is_running: bool, is_host_alive: bool) -> str:
    """Return the state of a view, as `ViewRow` has it.

    Args:
        record: the view.
        status: what became of its last refreshes.
        is_running: whether this process refreshes it just now.
        is_host_alive: whether the process that its record names is alive.
    """
    spec = record.spec
    needs_host = not spec.schedule.is_by_hand or bool(spec.session_bound)
    if is_running:
        return "REFRESHING"
    if needs_host and not is_host_alive:
        return "LOST"
    if status.error:
        return "FAILED"
    if spec.schedule.is_stopped:
        return "STOPPED"
    return "IDLE" if spec.schedule.is_by_hand else "SCHEDULED"


def sentence(spec: ViewSpec, report: RefreshReport) -> str:
    """Return the sentence that tells the user of a refresh."""
    if report.done == "no change":
        return f"materialized view {shown(spec.name)}: no change, version {report.version}"
    rows = f", {report.rows_in:,} rows changed in sources" if report.rows_in >= 0 else ""
    because = f" ({report.because})" if report.because and report.done == "full" else ""
    return f"materialized view {shown(spec.name)}: {report.done}{because}{rows}, version {report.version}"
