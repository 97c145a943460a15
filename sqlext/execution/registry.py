"""The registry: every flow of a home, as a log of events.

A flow's state is the fold of its events. No Spark job runs, so a statement about a flow does not wait for one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sqlext.errors import FlowError, NotFoundError, did_you_mean
from sqlext.execution.event_log import EventLog, Folder, Registry, RegistryEvent
from sqlext.execution.spec import FlowSpec

logger = logging.getLogger(__name__)


class EventKind(StrEnum):
    """What happened to a flow."""

    RESERVED = "reserved"
    STARTED = "started"
    STOPPED = "stopped"
    FAILED = "failed"
    ALTERED = "altered"
    PHASE = "phase"
    DROPPED = "dropped"


class FlowState(StrEnum):
    """What a flow is meant to be; RUNNING is also the state of one whose host died, RESERVED of one that is being made."""

    RESERVED = "RESERVED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class FlowEvent(RegistryEvent):
    """One event, as written.

    Attributes:
        epoch: of the driver that runs the flow; a driver with an older one is fenced.
        host: the process that runs it.
        detail: an error's message; the phase that a flow has changed to, and what of its sources made it.
    """

    flow_id: str
    kind: EventKind
    epoch: int = 0
    host: str = ""
    spec: str = ""
    detail: str = ""


@dataclass(frozen=True)
class FlowRecord:
    """A flow as its events tell it."""

    spec: FlowSpec
    state: FlowState
    epoch: int
    host: str
    error: str
    since: str


Records = Mapping[str, FlowRecord]


def fold(events: Iterable[FlowEvent]) -> dict[str, FlowRecord]:
    """The flows that exist, by id, after `events` in order; a torn record is left out and logged."""
    records: dict[str, FlowRecord] = {}
    states = {
        EventKind.STARTED: FlowState.RUNNING,
        EventKind.STOPPED: FlowState.STOPPED,
        EventKind.FAILED: FlowState.FAILED,
    }
    for event in events:
        try:
            spec = FlowSpec.from_json(event.spec) if event.spec else None
        except FlowError as error:
            logger.error("flow %s is left out: %s", event.flow_id, error)
            records.pop(event.flow_id, None)
            continue
        if event.kind is EventKind.RESERVED and spec is not None:
            records[event.flow_id] = FlowRecord(spec, FlowState.RESERVED, 0, event.host, "", event.at)
        record = records.get(event.flow_id)
        if record is None:
            continue
        if event.kind in (EventKind.FAILED, EventKind.STOPPED) and 0 < event.epoch < record.epoch:
            continue  # a driver that another has replaced says so; the flow goes on elsewhere
        if event.kind is EventKind.DROPPED:
            del records[event.flow_id]
        elif event.kind is EventKind.ALTERED:
            records[event.flow_id] = replace(record, spec=spec or record.spec)
        elif event.kind in states:
            records[event.flow_id] = replace(
                record,
                spec=spec or record.spec,
                state=states[event.kind],
                epoch=max(event.epoch, record.epoch),
                host=event.host,
                error=event.detail if event.kind is EventKind.FAILED else "",
                since=event.at,
            )
    return records


def find(records: Records, name: str) -> FlowRecord:
    """The flow called `name`; case does not matter.

    Raises:
        NotFoundError: with the nearest name.
    """
    for record in records.values():
        if record.spec.name.lower() == name.lower():
            return record
    names = [record.spec.name for record in records.values()]
    raise NotFoundError(f"There is no flow `{name}`.{did_you_mean(name, names)} SHOW FLOWS lists them.")


class FlowRegistry(Registry[FlowEvent, FlowRecord]):
    """The registry of one home.

    Args:
        home: the folder under which the files lie.
    """

    def __init__(self, home: Folder) -> None:
        super().__init__(EventLog(home.child("registry")), EventKind, FlowEvent("", EventKind.DROPPED), fold)
