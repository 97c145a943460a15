"""Records as the events of a snapshot: they add up to the same records, whatever has happened before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.errors import NameTakenError, SetupError
from sqlext.execution.coordination.registry import Registry
from sqlext.execution.coordination.snapshot_log import EVENTS_A_SNAPSHOT, SnapshotLog
from sqlext.execution.flows import registry as flows
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRegistry
from sqlext.execution.jobs import registry as jobs
from sqlext.execution.jobs.registry import JobEventKind, JobSpec, RegisteredEvent
from sqlext.execution.views import registry as views
from sqlext.execution.views.registry import ViewEvent, ViewEventKind
from tests.unit.memory_folder import MemoryFolder
from tests.unit.test_spec_registry import SPEC as FLOW
from tests.unit.test_view_registry import SPEC as VIEW

JOB = JobSpec("j-1", "INSERT ..", "INSERT INTO t", "SELECT 1", ("c", "s", "t"), 3, "", True, 8, (), "f")
IDS = st.sampled_from(["a", "b", "c"])
TIMES = st.integers(0, 9).map(lambda minute: f"2026-11-26T09:0{minute}:00.000+00:00")
HOSTS = st.sampled_from(["h-1", "h-2"])


@st.composite
def flow_events(draw: st.DrawFn) -> FlowEvent:
    key, kind = draw(IDS), draw(st.sampled_from(EventKind))
    has_spec = kind is EventKind.RESERVED or draw(st.booleans())
    spec = replace(FLOW, id=key, name=draw(st.sampled_from(["one", "two"]))).to_json() if has_spec else ""
    next_try = draw(TIMES) if kind is EventKind.RETRYING else ""
    return FlowEvent(key, kind, draw(st.integers(0, 3)), draw(HOSTS), spec, draw(st.text(max_size=3)), next_try, at=draw(TIMES))


@st.composite
def view_events(draw: st.DrawFn) -> ViewEvent:
    key, kind = draw(IDS), draw(st.sampled_from(ViewEventKind))
    has_spec = kind is ViewEventKind.RESERVED or draw(st.booleans())
    spec = replace(VIEW, id=key, comment=draw(st.sampled_from(["one", "two"]))).to_json() if has_spec else ""
    replaces = draw(IDS) if kind is ViewEventKind.RESERVED and draw(st.booleans()) else ""
    return ViewEvent(key, kind, draw(HOSTS), spec, "" if replaces == key else replaces, draw(st.booleans()), at=draw(TIMES))


@st.composite
def job_events(draw: st.DrawFn) -> RegisteredEvent:
    key, kind = draw(IDS), draw(st.sampled_from(JobEventKind))
    spec = replace(JOB, id=key).to_json() if kind is JobEventKind.SUBMITTED else ""
    return RegisteredEvent(key, kind, draw(st.integers(0, 3)), draw(HOSTS), spec, draw(st.text(max_size=3)), at=draw(TIMES))


def assert_kept(module: Any, before: list[Any], after: list[Any]) -> None:
    """The records are the same with a snapshot between some events and others, in the same order."""
    records = module.fold(before)
    snapshot = [event for record in records.values() for event in module.events_of(record)]
    assert list(module.fold(snapshot).items()) == list(records.items())
    assert list(module.fold([*snapshot, *after]).items()) == list(module.fold([*before, *after]).items())
    assert module.fold(after, records) == module.fold([*before, *after])


@given(st.lists(flow_events(), max_size=12), st.lists(flow_events(), max_size=4))
def test_flows(before: list[FlowEvent], after: list[FlowEvent]) -> None:
    assert_kept(flows, before, after)


@given(st.lists(view_events(), max_size=12), st.lists(view_events(), max_size=4))
def test_views(before: list[ViewEvent], after: list[ViewEvent]) -> None:
    assert_kept(views, before, after)


@given(st.lists(job_events(), max_size=12), st.lists(job_events(), max_size=4))
def test_jobs(before: list[RegisteredEvent], after: list[RegisteredEvent]) -> None:
    assert_kept(jobs, before, after)


def test_a_registry_of_many_flows_is_opened_by_a_few_requests() -> None:
    """1,000 flows with three events each: a listing, a snapshot, and the events since then, eight at once."""
    folder = MemoryFolder("mem:/home")
    registry: Registry[Any, Any] = FlowRegistry(folder)
    for number in range(1_000):
        spec = replace(FLOW, id=f"f-{number}", name=f"flow_{number}", text="x" * 1_000).to_json()
        registry.append(FlowEvent(f"f-{number}", EventKind.RESERVED, spec=spec))
        registry.append(FlowEvent(f"f-{number}", EventKind.STARTED, 1, "h-1"))
        registry.append(FlowEvent(f"f-{number}", EventKind.PHASE, 1, "h-1"))
    folder.requests.clear()
    other = FlowRegistry(folder)
    assert other.read() == registry.read()
    assert len(other.read()) == 1_000
    assert len(folder.requests) < 60


def test_two_hosts_never_have_the_same_epoch_where_one_cannot_read_what_the_other_wrote() -> None:
    folder = MemoryFolder("mem:/home")
    one, other = FlowRegistry(folder), FlowRegistry(folder)

    def started(host: str) -> Callable[[flows.Records], FlowEvent]:
        return lambda records: FlowEvent("f-1", EventKind.STARTED, records["f-1"].epoch + 1, host)

    one.append(FlowEvent("f-1", EventKind.RESERVED, spec=FLOW.to_json()))
    other.read()
    assert one.append(started("h-1"))["f-1"].epoch == 1
    folder.failing.add(f"{2:020d}.json")
    with pytest.raises(SetupError, match=r"The file mem:/home/registry/0+2\.json cannot be read"):
        other.append(started("h-2"))
    assert other.append(started("h-2"))["f-1"].epoch == 2


# What this version cannot read

NEWER = json.dumps({**json.loads(FLOW.to_json()), "version": 6, "full_name": ["c", "s", "Orders"]})
FOREIGN: dict[str, list[Any]] = {
    "another version of the definition": [FlowEvent("f-2", EventKind.RESERVED, spec=NEWER)],
    "an altered definition of another version": [
        FlowEvent("f-2", EventKind.RESERVED, spec=replace(FLOW, id="f-2").to_json()),
        FlowEvent("f-2", EventKind.STARTED, 3, "h-1"),
        FlowEvent("f-2", EventKind.ALTERED, spec=NEWER),
        FlowEvent("f-2", EventKind.STOPPED, 3, "h-1"),
    ],
    "an unknown kind": [
        FlowEvent("f-2", EventKind.RESERVED, spec=replace(FLOW, id="f-2").to_json()),
        {"flow_id": "f-2", "kind": "paused", "at": "2026-11-26T09:00:00.000+00:00"},
        FlowEvent("f-2", EventKind.STARTED, 1, "h-1"),
    ],
    "an unknown field": [{"flow_id": "f-2", "kind": "reserved", "spec": FLOW.to_json(), "region": "eu"}],
}


def a_log_with(folder: MemoryFolder, events: Iterable[Any]) -> list[str]:
    """Write a flow and then other events, as another version of sqlext does; return the texts of those."""
    log = SnapshotLog(folder.child("registry"))
    mine = FlowEvent("f-1", EventKind.RESERVED, spec=FLOW.to_json())
    texts = [json.dumps(each if isinstance(each, dict) else asdict(each)) for each in (mine, *events)]
    assert all(log.append(text) for text in texts)
    return texts[1:]


def in_snapshot(folder: MemoryFolder) -> list[str]:
    (name,) = (name for name in folder.files if name.endswith(".snapshot.json"))
    return list(json.loads(folder.files[name])["events"])


@pytest.mark.parametrize("events", FOREIGN.values(), ids=FOREIGN.keys())
def test_what_this_version_cannot_read_stays_in_the_registry(events: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    folder = MemoryFolder("mem:/home")
    texts = a_log_with(folder, events)
    registry = FlowRegistry(folder)
    assert list(registry.read()) == ["f-1"]
    assert caplog.text.count("f-2 of the registry mem:/home/registry is skipped: ") == 1
    for _ in range(EVENTS_A_SNAPSHOT):
        registry.append(FlowEvent("f-1", EventKind.PHASE))
    kept = [json.loads(text) for text in in_snapshot(folder) if json.loads(text)["flow_id"] == "f-2"]
    written = [json.loads(text) for text in texts]
    assert [(each["kind"], each.get("spec")) for each in kept] == [(each["kind"], each.get("spec")) for each in written]
    assert list(FlowRegistry(folder).read()) == ["f-1"]


def test_what_this_version_cannot_read_is_forgotten_when_it_is_dropped() -> None:
    folder = MemoryFolder("mem:/home")
    a_log_with(folder, [*FOREIGN["another version of the definition"], FlowEvent("f-2", EventKind.DROPPED)])
    registry = FlowRegistry(folder)
    registry.read()
    registry.refuse_unread(("c", "s", "orders"))
    for _ in range(EVENTS_A_SNAPSHOT):
        registry.append(FlowEvent("f-1", EventKind.PHASE))
    assert [json.loads(text)["flow_id"] for text in in_snapshot(folder)] == ["f-1"]


def test_the_name_of_what_this_version_cannot_read_is_taken() -> None:
    folder = MemoryFolder("mem:/home")
    a_log_with(folder, FOREIGN["another version of the definition"])
    registry = FlowRegistry(folder)
    registry.read()
    registry.refuse_unread(("c", "s", "customers"))
    for name in (("c", "s", "orders"), FLOW.target):
        with pytest.raises(NameTakenError) as caught:
            registry.refuse_unread(name)
        assert caught.value.message == (
            f"{'.'.join(name)} is in the registry mem:/home/registry, in a record that cannot be read. A flow was recorded in "
            "version 6 of the registry's format; this sqlext reads version 5. Use the sqlext that wrote it, or a home of its own "
            "(spark.sqlext.home)."
        )


def test_a_torn_event_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    folder = MemoryFolder("mem:/home")
    a_log_with(folder, [])
    folder.files[f"mem:/home/registry/{2:020d}.json"] = '{"flow_id": "f-2'
    assert list(FlowRegistry(folder).read()) == ["f-1"]
    assert "an event of the registry mem:/home/registry is skipped: it is torn" in caplog.text
