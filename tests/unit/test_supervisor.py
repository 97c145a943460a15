"""What counts as a flow's failure, and how often it is reported."""

from __future__ import annotations

from typing import Any, cast

from sqlext.errors import FlowError, RunsElsewhereError, SetupError
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.registry import EventKind
from sqlext.execution.flows.retries import Retries
from sqlext.execution.flows.status import FlowPhase
from sqlext.execution.flows.supervisor import FlowSupervisor
from sqlext.testing import HandClock
from tests.unit.test_spec_registry import SPEC


class FailedFlow:
    """A flow that has failed."""

    spec = SPEC
    epoch = 1

    def __init__(self) -> None:
        self.error = SetupError("the broker is gone")
        self.subject = {"flow": "views"}

    def status(self) -> tuple[FlowPhase, None, None]:
        return FlowPhase.FAILED, None, None

    def tick(self) -> None:
        """Do nothing."""

    def new_switches(self) -> list[Any]:
        return []


class Flows:
    """The flows of a process, and what is recorded of them."""

    def __init__(self) -> None:
        self.all: dict[str, Flow] = {}
        self.events: list[EventKind] = []

    def record(self, flow_id: str, kind: EventKind, *_: object) -> None:
        self.events.append(kind)


def test_a_failed_flow_that_was_replaced_is_not_reported_again() -> None:
    flows, clock = Flows(), HandClock()
    supervisor = FlowSupervisor(cast(Any, flows), cast(Any, None), cast(Any, None), Retries(clock), cast(Any, None))
    old, new = (cast(Flow, FailedFlow()) for _ in range(2))
    flows.all = {SPEC.id: old}
    supervisor.tick()
    supervisor.note_running(SPEC.id)  # on another thread, while the ticker has still the old one in hand
    supervisor.tick()
    assert flows.events == [EventKind.RETRYING]
    flows.all = {SPEC.id: new}
    supervisor.tick()
    supervisor.tick()
    assert flows.events == [EventKind.RETRYING, EventKind.RETRYING]


def test_a_flow_that_another_process_was_faster_to_take_has_not_failed() -> None:
    flows, clock = Flows(), HandClock()
    supervisor = FlowSupervisor(cast(Any, flows), cast(Any, Registry()), cast(Any, None), Retries(clock), cast(Any, None))
    supervisor.note_anyhow("cannot be resumed", SPEC, RunsElsewhereError("It runs in another process."))
    assert flows.events == []
    supervisor.note_anyhow("cannot be resumed", SPEC, FlowError("It cannot."))
    assert flows.events == [EventKind.FAILED]


class Registry:
    """The registry, as far as it is asked for an epoch."""

    epoch = 3

    def read(self) -> dict[str, Any]:
        return {SPEC.id: self}
