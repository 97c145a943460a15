"""Deadlines, by a clock that the test moves."""

from __future__ import annotations

from sqlext.clock import Deadline
from sqlext.testing import HandClock


def test_a_deadline_tells_what_is_left_until_it_has_passed() -> None:
    clock = HandClock()
    deadline = Deadline(10, clock)
    assert (deadline.left, deadline.has_passed) == (10, False)
    clock.advance(9)
    assert (deadline.left, deadline.has_passed) == (1, False)
    clock.advance(1)
    assert (deadline.left, deadline.has_passed) == (0, True)
    clock.advance(1)
    assert deadline.left == 0, "never less: it is what a wait is given"


def test_no_time_has_passed_at_once() -> None:
    assert Deadline(0, HandClock()).has_passed
