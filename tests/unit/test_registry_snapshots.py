"""Records as the events of a snapshot: they add up to the same records, whatever has happened before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sqlext.execution.coordination.registry import Registry
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
