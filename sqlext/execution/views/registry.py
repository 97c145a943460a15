"""The registry of materialized views: the definition of each, and the process that refreshes it, as a log of events.

What changes with every refresh is not here but in a file for each view (`status.py`): a log of refreshes would grow for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from sqlext.errors import NotFoundError, did_you_mean
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.registry import Registry, RegistryEvent
from sqlext.execution.coordination.snapshot_log import SnapshotLog
from sqlext.execution.flows.registry import short_names, without_case
from sqlext.plan.view_spec import ViewSpec


class ViewEventKind(StrEnum):
    """The kind of an event of a materialized view.

    RESERVED: it is being created; CREATED: it is there, and the one that it replaces is not any more; TAKEN: another process
    refreshes it from now on.
    """

    RESERVED = "reserved"
    CREATED = "created"
    ALTERED = "altered"
    TAKEN = "taken"
    DROPPED = "dropped"


@dataclass(frozen=True)
class ViewEvent(RegistryEvent):
    """One event, as written.

    Attributes:
        view_id: the view's id.
        kind: the kind of the event.
        host: the id of the process that refreshes the view by its schedule.
        spec: the view's definition as JSON.
        replaces: of a reservation: the id of the view in whose place this one comes.
        replaces_table: of a reservation: whether there was a table of the name, which the view's table replaces.
    """

    id_field = "view_id"

    view_id: str
    kind: ViewEventKind
    host: str = ""
    spec: str = ""
    replaces: str = ""
    replaces_table: bool = False


@dataclass(frozen=True)
class ViewRecord:
    """A materialized view, as its events add up.

    Attributes:
        spec: the definition.
        host: the process that refreshes it by its schedule, or that is creating it.
        since: when it was created.
        is_reserved: whether it is only being created.
        replaces, replaces_table: see `ViewEvent`.
    """

    spec: ViewSpec
    host: str
    since: str
    is_reserved: bool = False
    replaces: str = ""
    replaces_table: bool = False


Records = Mapping[str, ViewRecord]


def fold(events: Iterable[ViewEvent], before: Records = MappingProxyType({})) -> dict[str, ViewRecord]:
    """Return the views that exist after some events, by id, with those being created.

    Args:
        before: the views before them.

    Raises:
        ViewError: a record cannot be read.
    """
    records = dict(before)
    for event in events:
        spec = ViewSpec.from_json(event.spec) if event.spec else None
        if event.kind is ViewEventKind.RESERVED and spec is not None:
            records[event.view_id] = ViewRecord(spec, event.host, event.at, True, event.replaces, event.replaces_table)
        record = records.get(event.view_id)
        if record is None:
            continue
        match event.kind:
            case ViewEventKind.CREATED:
                records.pop(record.replaces, None)
                records[event.view_id] = ViewRecord(spec or record.spec, event.host, event.at)
            case ViewEventKind.ALTERED:
                records[event.view_id] = replace(record, spec=spec or record.spec)
            case ViewEventKind.TAKEN:
                records[event.view_id] = replace(record, host=event.host)
            case ViewEventKind.DROPPED:
                del records[event.view_id]
    return records


def events_of(record: ViewRecord) -> list[ViewEvent]:
    """Return events that add up to a view."""
    spec, at = record.spec, record.since
    replaces = (record.replaces, record.replaces_table)
    reserved = ViewEvent(spec.id, ViewEventKind.RESERVED, record.host, spec.to_json(), *replaces, at=at)
    return [reserved] if record.is_reserved else [reserved, ViewEvent(spec.id, ViewEventKind.CREATED, record.host, at=at)]


def created(records: Records) -> dict[str, ViewRecord]:
    """Return the views that are there, by id, without those being created."""
    return {key: record for key, record in records.items() if not record.is_reserved}


def of_name(records: Records, name: tuple[str, ...]) -> ViewRecord | None:
    """Return the view of a qualified name, whatever its case; None if there is none, or it is only being created."""
    wanted = without_case(name)
    return next((record for record in created(records).values() if without_case(record.spec.name) == wanted), None)


def find(records: Records, name: tuple[str, ...]) -> ViewRecord:
    """Return the view of a name; case does not matter.

    Args:
        records: the views.
        name: catalog, database and name.

    Raises:
        NotFoundError: with the nearest name, or the schema that has one of that name.
    """
    if (found := of_name(records, name)) is not None:
        return found
    specs = [record.spec for record in created(records).values()]
    elsewhere = [".".join(spec.name) for spec in specs if without_case(spec.name[-1:]) == without_case(name[-1:])]
    if elsewhere:
        advice = f" There is {', '.join(f'`{each}`' for each in elsewhere)}."
    else:
        advice = did_you_mean(name[-1], [spec.name[-1] for spec in specs])
    raise NotFoundError(
        f"There is no materialized view `{name[-1]}` in {'.'.join(name[:-1])}.{advice} SHOW MATERIALIZED VIEWS lists them."
    )


def shown_names(specs: Iterable[ViewSpec]) -> dict[str, str]:
    """Return the name of each view in a list, by id, with as much of its schema as distinguishes it from the others."""
    return short_names({spec.id: spec.name for spec in specs})


class ViewRegistry(Registry[ViewEvent, ViewRecord]):
    """The registry of the materialized views of one home.

    Args:
        home: the folder that holds the registry's files.
    """

    def __init__(self, home: Folder) -> None:
        log = SnapshotLog(home.child("views", "registry"))
        super().__init__(log, ViewEventKind, ViewEvent, ViewSpec.from_json, fold, events_of)
