"""The turns of what changes the flows of a table."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

from sqlext.execution.flows.live_flows import LiveFlows
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRecord, FlowRegistry, fold
from tests.unit.test_spec_registry import SPEC

DEADLINE = 30.0
TABLE, OTHER = ("c", "s", "t"), ("c", "s", "u")


def has_turn(live: LiveFlows, table: tuple[str, ...]) -> bool:
    """Whether another thread could have the turn at a table now."""

    def ask() -> bool:
        with live.turn_at(table, patience=0.0) as has_it:
            return has_it

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result(DEADLINE)


def test_a_turn_is_of_one_thread_and_of_one_table_whatever_its_case() -> None:
    live = LiveFlows(cast(FlowRegistry, None))
    with live.turn_at(TABLE), live.turn_at(("C", "S", "T"), patience=0.0) as again:
        assert again
        assert not has_turn(live, TABLE)
        assert has_turn(live, OTHER)
    assert has_turn(live, TABLE)
    assert not live._turns, "of turns that nobody has, nothing is kept"


def test_a_turn_waits_for_the_one_before_it() -> None:
    live, order, begun = LiveFlows(cast(FlowRegistry, None)), list[str](), threading.Event()

    def second() -> None:
        begun.set()
        with live.turn_at(TABLE):
            order.append("second")

    thread = threading.Thread(target=second)
    with live.turn_at(TABLE):
        thread.start()
        assert begun.wait(DEADLINE)
        order.append("first")
    thread.join(DEADLINE)
    assert order == ["first", "second"]


def test_a_flow_that_was_replaced_meanwhile_is_read_again() -> None:
    """Between the look at its table and the turn there, a flow of the same name may be another one, into another table."""
    record = fold([FlowEvent(SPEC.id, EventKind.RESERVED, spec=SPEC.to_json())])[SPEC.id]
    reads: list[dict[str, FlowRecord]] = []

    class Registry:
        def read(self) -> dict[str, FlowRecord]:
            target = OTHER if not reads else TABLE
            reads.append({SPEC.id: replace(record, spec=replace(SPEC, target=target))})
            return reads[-1]

    live = LiveFlows(cast(FlowRegistry, Registry()))
    with live.turn_of(SPEC.qualified_name) as found:
        assert found.spec.target == TABLE
        assert not has_turn(live, TABLE)
        assert has_turn(live, OTHER)
