"""How long FLUSH FLOW waits for micro-batches that come once an interval: without Spark, by queries of the test's own."""

from __future__ import annotations

from typing import cast

from sqlext.clock import SystemClock
from sqlext.execution.backlog.status import BacklogStatus
from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.interval_trigger import IntervalTrigger


class Query:
    """An intake and its query in one, as the trigger sees them."""

    def __init__(self) -> None:
        self.has_found_nothing = self.is_waited_for = self.is_looking = False

    @property
    def running(self) -> Query:
        return self

    @property
    def intake(self) -> Intake:
        return cast(Intake, self)

    def hold(self) -> None:
        pass

    def let_go(self) -> None:
        pass

    def forget_last_look(self, seconds: float) -> bool:
        self.has_found_nothing, self.is_waited_for = False, True
        return not self.is_looking


def test_micro_batches_of_another_query_do_not_count() -> None:
    first, other = Query(), Query()
    trigger = IntervalTrigger([first.intake, other.intake], BacklogStatus, SystemClock())
    waits = 0

    def may_wait() -> bool:
        nonlocal waits
        waits += 1
        if waits <= 2:
            trigger.batch_ended(other.intake, 0.0)
        elif not first.has_found_nothing:
            assert not other.is_waited_for
            first.has_found_nothing = True
        else:
            other.has_found_nothing = True
        return True

    trigger.take_what_arrived(may_wait)
    assert first.has_found_nothing
    assert other.has_found_nothing


def test_where_there_is_always_more_two_micro_batches_are_waited_for() -> None:
    query, waits = Query(), 0
    trigger = IntervalTrigger([query.intake], BacklogStatus, SystemClock())

    def may_wait() -> bool:
        nonlocal waits
        waits += 1
        trigger.batch_ended(query.intake, 0.0)
        return waits < 10

    trigger.take_what_arrived(may_wait)
    assert waits == 2


def test_a_look_that_does_not_end_is_waited_for_as_long_as_the_statement_waits() -> None:
    query, asked = Query(), 0
    trigger = IntervalTrigger([query.intake], BacklogStatus, SystemClock())
    query.is_looking = True

    def may_wait() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3

    trigger.take_what_arrived(may_wait)
    assert asked == 3
