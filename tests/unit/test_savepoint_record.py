"""The record of a savepoint, and what a restored flow is called by Delta and in its folder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqlext.errors import FlowError
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowState, fold
from sqlext.execution.flows.restoration import completed, note_of, restored
from sqlext.plan.savepoint import Savepoint
from tests.unit.test_spec_registry import SPEC

SAVEPOINT = Savepoint(
    id="s-1",
    name="good",
    at="2026-01-02T03:04:05.678+00:00",
    spec=SPEC,
    target_version=7,
    committed=3,
    metadata='{"metaData":{}}',
    positions=("default.events: version 9",),
    read={"sources": {}, "mixed": ["events"]},
    bytes=12,
)


def test_the_record_comes_back_whole() -> None:
    assert Savepoint.from_json(SAVEPOINT.to_json()) == SAVEPOINT


@pytest.mark.parametrize("text", ["", "{", SAVEPOINT.to_json()[:-9], SAVEPOINT.to_json().replace('"version": 1', '"version": 2')])
def test_a_torn_record_and_one_of_another_version_are_refused(text: str) -> None:
    with pytest.raises(FlowError, match="savepoint"):
        Savepoint.from_json(text)


def test_a_restored_flow_commits_as_another_application_each_time() -> None:
    now = replace(SPEC, comment="altered since")
    first = restored(SAVEPOINT, now)
    assert (SPEC.application, SPEC.folder) == ("f-1", "")
    assert (first.application, first.folder, first.comment) == ("f-1/1", "restored-1", "")
    assert note_of(first) == "is being set back to savepoint good: START FLOW goes on with it"
    second = restored(SAVEPOINT, completed(first))
    assert (second.application, second.folder) == ("f-1/2", "restored-2")
    assert note_of(completed(second)) == "set back to savepoint good"


def test_a_flow_that_had_failed_is_stopped_after_it_was_set_back() -> None:
    spec = restored(SAVEPOINT, SPEC)
    before = [
        FlowEvent("f-1", EventKind.RESERVED, spec=SPEC.to_json()),
        FlowEvent("f-1", EventKind.STARTED, epoch=1, host="a"),
    ]
    back = FlowEvent("f-1", EventKind.RESTORED, epoch=2, host="b", spec=spec.to_json())
    record = fold([*before, back])["f-1"]
    assert (record.spec, record.state, record.epoch, record.host) == (spec, FlowState.RUNNING, 2, "b")
    failed = FlowEvent("f-1", EventKind.FAILED, epoch=1, detail="rows were changed")
    record = fold([*before, failed, back])["f-1"]
    assert (record.state, record.error) == (FlowState.STOPPED, "")
    late = FlowEvent("f-1", EventKind.FAILED, epoch=1, detail="told by the driver before")
    assert fold([*before, back, late])["f-1"].state is FlowState.RUNNING
