"""A failed flow is reported once, also if the ticker still looks at it while another one takes its place."""

from __future__ import annotations

import threading
from typing import Any, cast

from sqlext.errors import SetupError
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
    supervisor = FlowSupervisor(cast(Any, flows), cast(Any, None), cast(Any, None), Retries(clock), threading.RLock())
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
