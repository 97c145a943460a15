"""Flows as SHOW and DESCRIBE show them: the registry's records, and the progress of those of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlext.execution.coordination.lease import Lease
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.registry import FlowRecord, FlowRegistry, FlowState, find, shown_names
from sqlext.execution.flows.retries import Retries
from sqlext.execution.flows.status import FlowPhase, FlowProgress

_RECENT_SECONDS = 0.5
"""The age of a look at the sources that is new enough for a statement."""
_WATCHED_SECONDS = 5.0
"""The same for what asks every second, such as a page."""
LocalView = tuple[str, FlowPhase, FlowProgress, str, tuple[str, ...]]
"""Name, phase, progress, error and qualified name."""


@dataclass(frozen=True)
class FlowView:
    """A flow.

    Attributes:
        progress: only of flows of this process.
        name: the flow's name, with as much of its schema as distinguishes it from others.
        next_try: of a flow that failed by what may pass.
        failed_starts: the number of its failures in a row, as far as this process knows.
    """

    record: FlowRecord
    status: str
    progress: FlowProgress | None
    error: str
    is_here: bool
    name: str
    next_try: datetime | None = None
    failed_starts: int = 0


class FlowViews:
    """See the module's docstring. Any thread may call any method.

    Args:
        registry, lease, retries: of this process.
        flows: gives those of this process, by id.
    """

    def __init__(self, registry: FlowRegistry, lease: Lease, retries: Retries, flows: Callable[[], Mapping[str, Flow]]) -> None:
        self._registry = registry
        self._lease = lease
        self._retries = retries
        self._flows = flows

    def all(self) -> list[FlowView]:
        """Return all flows of the home, by name."""
        records = self._registry.read()
        names = shown_names(record.spec for record in records.values())
        views = [self._view(record, names[record.spec.id]) for record in records.values()]
        return sorted(views, key=lambda view: view.name.lower())

    def one(self, name: tuple[str, ...]) -> FlowView:
        """Return the flow of a qualified name; raise NotFoundError if there is none."""
        records = self._registry.read()
        record = find(records, name)
        return self._view(record, shown_names(each.spec for each in records.values())[record.spec.id])

    def local(self) -> list[LocalView]:
        """Return the flows of this process and those that wait for a retry; nothing is read from storage."""
        flows, planned = self._flows(), self._retries.planned()
        specs = {**{key: retry.spec for key, retry in planned.items()}, **{key: flow.spec for key, flow in flows.items()}}
        names = shown_names(specs.values())
        found: list[LocalView] = []
        for key, spec in specs.items():
            phase, progress, error = (
                flows[key].status(_WATCHED_SECONDS) if key in flows else (FlowPhase.RETRYING, FlowProgress(), "")
            )
            if (retry := planned.get(key)) is not None:
                phase, error = FlowPhase.RETRYING, retry.error
            found.append((names[key], phase, progress, error, spec.qualified_name))
        return found

    def _view(self, record: FlowRecord, name: str) -> FlowView:
        flow, retry = self._flows().get(record.spec.id), self._retries.planned().get(record.spec.id)
        if retry is not None:  # which the registry may not know, if that is what fails
            progress = None if flow is None else flow.status(_RECENT_SECONDS)[1]
            return FlowView(record, FlowState.RETRYING.value, progress, retry.error, True, name, retry.at, retry.attempt)
        if flow is None:
            is_lost = record.is_active and not self._lease.is_alive(record.host)
            return FlowView(record, "LOST" if is_lost else record.state.value, None, record.error, False, name, record.next_try)
        phase, progress, error = flow.status(_RECENT_SECONDS)
        if record.state is FlowState.FAILED and phase in (FlowPhase.FAILED, FlowPhase.STOPPED):  # perhaps in a later start
            phase, error = FlowPhase.FAILED, record.error or error
        return FlowView(record, phase.value, progress, error, True, name)
