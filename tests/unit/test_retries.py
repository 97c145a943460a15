"""When failed flows are tried again, by a clock that the test advances; and which errors may pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sqlext.errors import (
    FlowError,
    NotFoundError,
    SchemaError,
    SetupError,
    SqlextError,
    UnsupportedError,
    WaitTimeoutError,
)
from sqlext.execution import faults
from sqlext.execution.registry import EventKind, FlowEvent, FlowState, fold
from sqlext.execution.retries import MOST_PAUSE, Retries
from tests.support import HandClock
from tests.unit.test_spec_registry import SPEC


def test_each_pause_is_twice_as_long_up_to_a_limit() -> None:
    clock = HandClock()
    retries = Retries(clock)
    pauses = []
    for _ in range(9):
        retry = retries.plan(SPEC, "the broker is gone")
        assert retry.at - clock.now() == retries.planned()["f-1"].at - clock.now()
        pauses.append((retry.at - clock.now()).total_seconds())
        clock.advance(pauses[-1] - 1)
        assert retries.take_due() == []
        clock.advance(1)
        assert retries.take_due() == [retry]
        assert retries.take_due() == []
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_flow_that_ran_for_long_begins_anew() -> None:
    clock = HandClock()
    retries = Retries(clock)
    assert [retries.plan(SPEC, "").attempt for _ in range(3)] == [1, 2, 3]
    retries.forget_plan("f-1")  # it runs
    assert retries.planned() == {}
    clock.advance(MOST_PAUSE.total_seconds())
    assert retries.plan(SPEC, "").attempt == 1


def test_a_flow_that_was_stopped_is_tried_no_more() -> None:
    clock = HandClock()
    retries = Retries(clock)
    retries.plan(SPEC, "")
    retries.plan(replace(SPEC, id="f-2"), "")
    retries.drop("f-1")
    clock.advance(5)
    assert [retry.spec.id for retry in retries.take_due()] == ["f-2"]


def test_the_registry_keeps_error_and_next_try() -> None:
    reserved = FlowEvent("f-1", EventKind.RESERVED, spec=SPEC.to_json())
    waiting = FlowEvent("f-1", EventKind.RETRYING, epoch=1, detail="gone", next_try="2026-01-01T00:00:05+00:00")
    (record,) = fold([reserved, FlowEvent("f-1", EventKind.STARTED, epoch=1), waiting]).values()
    assert (record.state, record.error, record.is_active) == (FlowState.RETRYING, "gone", True)
    assert record.next_try is not None
    assert record.next_try.isoformat() == "2026-01-01T00:00:05+00:00"
    (record,) = fold([reserved, waiting, FlowEvent("f-1", EventKind.STARTED, epoch=2)]).values()
    assert (record.state, record.error, record.next_try) == (FlowState.RUNNING, "", None)
    later = FlowEvent("f-1", EventKind.STARTED, epoch=2)
    assert fold([reserved, later, waiting])["f-1"].state is FlowState.RUNNING, "an old driver's word counts no more"


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (OSError("no route to host"), True),
        (TimeoutError(), True),
        (ConnectionRefusedError(), True),
        (SetupError("the storage cannot be read"), True),
        (WaitTimeoutError("a flush has not got on"), True),
        (caused(FlowError("a stage failed"), OSError("no route to host")), True),
        (FlowError("another driver"), False),
        (SchemaError("what is stored cannot be read"), False),
        (UnsupportedError("no stream"), False),
        (NotFoundError("the target was dropped"), False),
        (KeyError("a bug"), False),
        (ValueError("a bug"), False),
        (caused(NotFoundError("the target was dropped"), OSError("no route to host")), False),
    ],
)
def test_what_may_pass(error: SqlextError | Any, may_pass: bool) -> None:
    assert faults.may_pass(error) is may_pass
