"""What counts as a flow's failure, and how often it is reported."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sqlext.errors import FlowError, RunsElsewhereError, SetupError, SqlextError
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
    phase = FlowPhase.FAILED
    is_idle = False

    def __init__(self) -> None:
        self.error: SqlextError = SetupError("the broker is gone")
        self.subject = {"flow": "views"}

    def tick(self) -> None:
        """Do nothing."""

    def new_switches(self) -> list[Any]:
        return []


class Flows:
    """The flows of a process, and what is recorded of them."""

    def __init__(self) -> None:
        self.all: dict[str, Flow] = {}
        self.events: list[EventKind] = []
        self.problem: Exception | None = None

    def record(self, flow_id: str, kind: EventKind, *_: object) -> None:
        if self.problem is not None:
            raise self.problem
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


def test_a_failure_that_cannot_be_recorded_now_is_not_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """The flow is tried again later, and its failure is recorded then."""
    flows, retries = Flows(), Retries(HandClock())
    supervisor = FlowSupervisor(cast(Any, flows), cast(Any, None), cast(Any, None), retries, cast(Any, None))
    failed = FailedFlow()
    failed.error = FlowError("v / 0")
    flows.all = {SPEC.id: cast(Flow, failed)}
    flows.problem = SetupError("The file f cannot be read: connection reset.")
    supervisor.tick()
    supervisor.tick()
    assert retries.planned()[SPEC.id].error == "v / 0"
    assert caplog.text.count("its failure cannot be recorded: The file f cannot be read: connection reset.") == 1
