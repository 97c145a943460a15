"""The time that detection adds to a statement that is not ours."""

from __future__ import annotations

import statistics
import time

import pytest

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


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t (stream, state) VALUES " + ", ".join(f"('job {i}', 'a flow', 'live stream')" for i in range(120_000)),
        "INSERT INTO t SELECT " + ", ".join(["stream, stream (a)"] * 4_000) + " FROM c",
        "INSERT INTO t SELECT " + "(" * 5_000 + ", stream (a)" * 5_000 + " FROM c",
        f"-- {'x' * 2_000_000}\nSELECT state FROM jobs",
    ],
    ids=["words in values", "columns", "brackets", "comment"],
)
def test_detection_is_quick_in_large_statements(text: str) -> None:
    """They took 1 to 60 s when a common word was enough to cut a statement, and each STREAM looked for its own FROM."""
    start = time.perf_counter()
    assert not is_ours(text)
    assert time.perf_counter() - start < 2
