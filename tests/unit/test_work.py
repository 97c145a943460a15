"""How long work is waited for: while tasks run or end, and a while longer; by a clock that the test advances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from sqlext.errors import WaitTimeoutError
from sqlext.execution.flows import work
from sqlext.execution.flows.work import Work
from sqlext.testing import HandClock

Look = tuple[int, int, int]


def waited(looks: list[Look], seconds: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often one looks before the work is done, or given up, when each look comes so many seconds after the one before.

    The work is done when there are no more looks.
    """
    clock, left = HandClock(), list(looks)
    waiting = Work("t", cast(Any, None), list, clock)
    monkeypatch.setattr(waiting, "look", lambda: left.pop(0))

    def is_done(_: float) -> bool:
        clock.advance(seconds)
        return not left

    waiting.wait(is_done, "A flush")
    return len(looks)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda at: (at, 0, 0), id="jobs begin"),
        pytest.param(lambda at: (1, 0, at), id="tasks end"),
        pytest.param(lambda at: (1, 1, 0), id="one task runs for ever"),
    ],
)
def test_work_that_gets_on_is_waited_for_as_long_as_it_takes(
    look: Callable[[int], Look], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waited([look(at) for at in range(100)], work.STALLED_AFTER - 1, monkeypatch) == 100


def test_work_that_does_not_get_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WaitTimeoutError, match=r"A flush of flow `t` has made no progress for 600 s"):
        waited([(3, 0, 7)] * 100, work.STALLED_AFTER / 10, monkeypatch)


def test_a_check_ends_the_wait() -> None:
    def check() -> None:
        raise InterruptedError("the client is gone")

    waiting = Work("t", cast(Any, None), list, HandClock())
    waiting.look = lambda: (0, 0, 0)  # type: ignore[method-assign]
    with pytest.raises(InterruptedError, match="the client is gone"):
        waiting.wait(lambda _: False, "A flush", check)
