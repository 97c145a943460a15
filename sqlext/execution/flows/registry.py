"""The registry: every flow of a home, as a log of events.

A flow's state is the fold of its events. No Spark job runs, so a statement about a flow does not wait for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from sqlext.errors import NotFoundError, did_you_mean
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.registry import Registry, RegistryEvent
from sqlext.execution.coordination.snapshot_log import SnapshotLog
from sqlext.plan.flow_spec import FlowSpec


class EventKind(StrEnum):
    """The kind of an event of a flow."""

    RESERVED = "reserved"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    RETRYING = "retrying"
    ALTERED = "altered"
    PHASE = "phase"
    DROPPED = "dropped"
    DONE = "done"
    RESTORED = "restored"


class FlowState(StrEnum):
    """The intended state of a flow.

    RUNNING is also the state of a flow whose host died; RESERVED: it is being created; RETRYING: it failed by a fault that may
    pass, and is restarted; DONE: it ran once, and its rows are in the table.
    """

    RESERVED = "RESERVED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RETRYING = "RETRYING"
    DONE = "DONE"


@dataclass(frozen=True)
class FlowEvent(RegistryEvent):
    """One event, as written.

    Attributes:
        epoch: the epoch of the driver that runs the flow; a driver with an older epoch is fenced.
        host: the id of the process that runs it.
        next_try: when a failed flow is retried, in ISO 8601.
        detail: an error's message; or the new phase of a flow, and the reason.
    """

    id_field = "flow_id"

    flow_id: str
    kind: EventKind
    epoch: int = 0
    host: str = ""
    spec: str = ""
    detail: str = ""
    next_try: str = ""


@dataclass(frozen=True)
class FlowRecord:
    """A flow, as its events add up.

    Attributes:
        next_try: the time of the next try of a RETRYING flow.
        has_succeeded: whether it runs in the place of the flow that it replaces.
    """

    spec: FlowSpec
    state: FlowState
    epoch: int
    host: str
    error: str
    since: str
    next_try: datetime | None = None
    has_succeeded: bool = False

    @property
    def is_active(self) -> bool:
        """Whether a process is to run it: its host, or the next one when that is dead."""
        return self.state in (FlowState.RUNNING, FlowState.RETRYING)

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, for good or until its next try."""
        return self.state in (FlowState.FAILED, FlowState.RETRYING)


Records = Mapping[str, FlowRecord]


_TOLD_BY_DRIVERS = (EventKind.FAILED, EventKind.RETRYING, EventKind.STOPPED, EventKind.DONE)


_STATES = {
    EventKind.STARTED: FlowState.RUNNING,
    EventKind.STOPPED: FlowState.STOPPED,
    EventKind.FAILED: FlowState.FAILED,
    EventKind.RETRYING: FlowState.RETRYING,
    EventKind.DONE: FlowState.DONE,
}


def fold(events: Iterable[FlowEvent], before: Records = MappingProxyType({})) -> dict[str, FlowRecord]:
    """Return the flows that exist after `events`, by id.

    Args:
        before: the flows before them.

    Raises:
        FlowError: a record cannot be read.
    """
    records = dict(before)
    for event in events:
        spec = FlowSpec.from_json(event.spec) if event.spec else None
        if event.kind is EventKind.RESERVED and spec is not None:
            records[event.flow_id] = FlowRecord(spec, FlowState.RESERVED, event.epoch, event.host, "", event.at)
        record = records.get(event.flow_id)
        if record is None:
            continue
        if event.kind in _TOLD_BY_DRIVERS and 0 < event.epoch < record.epoch:
            continue  # a driver that another has replaced says so; the flow goes on elsewhere
        if event.kind is EventKind.DROPPED:
            del records[event.flow_id]
        elif event.kind is EventKind.SUCCEEDED:
            records[event.flow_id] = replace(record, has_succeeded=True)
        elif event.kind is EventKind.ALTERED:
            records[event.flow_id] = replace(record, spec=spec or record.spec)
        elif event.kind is EventKind.RESTORED:
            state = FlowState.STOPPED if record.state is FlowState.FAILED else record.state
            records[event.flow_id] = replace(
                record, spec=spec or record.spec, state=state, epoch=event.epoch, host=event.host, error=""
            )
        elif event.kind in _STATES:
            records[event.flow_id] = replace(
                record,
                spec=spec or record.spec,
                state=_STATES[event.kind],
                epoch=max(event.epoch, record.epoch),
                host=event.host,
                error=event.detail if event.kind in (EventKind.FAILED, EventKind.RETRYING) else "",
                since=event.at,
                next_try=datetime.fromisoformat(event.next_try) if event.next_try else None,
            )
    return records


def events_of(record: FlowRecord) -> list[FlowEvent]:
    """Return events that add up to a flow."""
    spec = record.spec
    kind = next((kind for kind, state in _STATES.items() if state is record.state), None)
    events = [FlowEvent(spec.id, EventKind.RESERVED, record.epoch, record.host, spec.to_json(), at=record.since)]
    if kind is not None:
        next_try = "" if record.next_try is None else record.next_try.isoformat()
        events.append(
            FlowEvent(spec.id, kind, record.epoch, record.host, detail=record.error, next_try=next_try, at=record.since)
        )
    if record.has_succeeded:
        events.append(FlowEvent(spec.id, EventKind.SUCCEEDED, at=record.since))
    return events


def current(records: Records) -> list[FlowRecord]:
    """Return the flows without those that are already replaced by another one and not removed yet."""
    replaced = {record.spec.replaces for record in records.values() if record.has_succeeded}
    return [record for record in records.values() if record.spec.id not in replaced]


def find(records: Records, name: tuple[str, ...]) -> FlowRecord:
    """Return the flow of a name; case does not matter.

    Args:
        name: catalog, database and name.

    Raises:
        NotFoundError: with the nearest name, or the schema that has one of that name.
    """
    wanted = without_case(name)
    found = next((record for record in current(records) if without_case(record.spec.qualified_name) == wanted), None)
    if found is not None:
        return found
    elsewhere = [
        ".".join(r.spec.qualified_name) for r in records.values() if without_case(r.spec.qualified_name[-1:]) == wanted[-1:]
    ]
    known = [record.spec.name for record in records.values()]
    advice = f" There is {', '.join(f'`{each}`' for each in elsewhere)}." if elsewhere else did_you_mean(name[-1], known)
    raise NotFoundError(f"There is no flow `{name[-1]}` in {'.'.join(name[:-1])}.{advice} SHOW FLOWS lists them.")


def still_there(records: Records, spec: FlowSpec) -> FlowRecord:
    """Return the record of a flow that was there a moment ago; raise NotFoundError if it was dropped meanwhile."""
    if (record := records.get(spec.id)) is None:
        raise NotFoundError(f"There is no flow `{spec.name}` any more: it was dropped meanwhile. SHOW FLOWS lists them.")
    return record


def all_by_end(records: Records, text: str) -> list[FlowRecord]:
    """Return the flows whose qualified names end with a text; there is no current schema to complete it."""
    end = without_case(text.split("."))
    return [record for record in records.values() if without_case(record.spec.qualified_name)[-len(end) :] == end]


def find_table(records: Records, name: tuple[str, ...]) -> FlowRecord:
    """Return the flow that created a streaming table.

    Args:
        name: of the table: catalog, database and table.

    Raises:
        NotFoundError: there is none.
    """
    specs = [record.spec for record in current(records)]
    same = [spec for spec in specs if without_case(spec.target) == without_case(name)]
    same.sort(key=lambda spec: (not spec.owns_target, spec.target != name))
    found = same[0] if same else None
    if found is None:
        tables = [spec.target[-1] for spec in specs if spec.owns_target]
        raise NotFoundError(f"There is no streaming table {'.'.join(name)}.{did_you_mean(name[-1], tables)}")
    if not found.owns_target:
        raise NotFoundError(
            f"{'.'.join(name)} is not a streaming table, but an existing table that flow `{found.name}` writes into."
        )
    return records[found.id]


def shown_names(specs: Iterable[FlowSpec]) -> dict[str, str]:
    """Return the name of each flow in a list, by id, with as much of its schema as distinguishes it from the others."""
    return short_names({spec.id: spec.qualified_name for spec in specs})


def short_names(qualified: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return names with as much of their schemas as distinguishes them from each other, whatever their case.

    >>> short_names({"1": ("c", "s", "t"), "2": ("c", "r", "T"), "3": ("c", "r", "u")})
    {'3': 'u', '1': 's.t', '2': 'r.T'}
    """
    names: dict[str, str] = {}
    for parts in (1, 2, 3):
        ends = Counter(without_case(name[-parts:]) for name in qualified.values())
        for key, name in qualified.items():
            if ends[without_case(name[-parts:])] == 1 or parts == 3:
                names.setdefault(key, ".".join(name[-parts:]))
    return names


def without_case(name: Iterable[str]) -> tuple[str, ...]:
    """Return the form of a flow's name for comparisons, whatever the session's setting is."""
    return tuple(part.lower() for part in name)


class FlowRegistry(Registry[FlowEvent, FlowRecord]):
    """The registry of one home.

    Args:
        home: the folder under which the files lie.
        written: called with each event that this process has written, and the records after it.
    """

    def __init__(self, home: Folder, written: Callable[[FlowEvent, Records], None] = lambda event, records: None) -> None:
        log = SnapshotLog(home.child("registry"))
        super().__init__(log, EventKind, FlowEvent, FlowSpec.from_json, fold, events_of, written)

    def alter(self, spec: FlowSpec) -> None:
        """Record what a flow is from now on."""
        self.append(FlowEvent(spec.id, EventKind.ALTERED, spec=spec.to_json()))
