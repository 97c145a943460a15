"""Materialized views as SHOW MATERIALIZED VIEWS displays them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlext.execution.views.registry import ViewRecord
from sqlext.execution.views.status import ViewStatus


@dataclass(frozen=True)
class ViewRow:
    """A materialized view.

    Attributes:
        record: its record in the registry.
        name: the view's name, with as much of its schema as distinguishes it from others.
        state: REFRESHING, FAILED, LOST (its process is gone), STOPPED, SCHEDULED, or IDLE (refreshed by hand only).
        status: what became of its last refreshes.
        is_behind: whether a source has changed since; None: not known.
    """

    record: ViewRecord
    name: str
    state: str
    status: ViewStatus
    is_behind: bool | None


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
