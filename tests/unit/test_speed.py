"""The time that detection adds to a statement that is not ours."""

from __future__ import annotations

import statistics
import time

from sqlext.sql.tokens import is_ours
from tests.corpus import load


def test_detection_takes_less_than_a_millisecond() -> None:
    """Design section 6: at most 1 ms of our own, median, over ordinary statements."""
    taken = []
    for statement in load():
        start = time.perf_counter()
        is_ours(statement.text)
        taken.append(time.perf_counter() - start)
    assert statistics.median(taken) < 0.001
