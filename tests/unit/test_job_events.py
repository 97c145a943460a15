"""Events of jobs: written, read back, torn, of another version; and the store that writes them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.errors import JobError, SetupError, SqlextError
from sqlext.execution.jobs.events import (
    CoordinatorSnapshot,
    ExecutionJobVertexInitialized,
    ExecutionVertexFinished,
    JobEvent,
    TornEventError,
    from_json,
    to_json,
)
from sqlext.execution.jobs.store import JobEventStore, read_events

NUMBERS = st.integers(0, 2**40)
COUNTS = st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3)
EVENTS: st.SearchStrategy[JobEvent] = st.one_of(
    st.builds(
        ExecutionJobVertexInitialized,
        vertex=NUMBERS,
        parts=NUMBERS,
        division=st.lists(st.lists(NUMBERS, max_size=3).map(tuple), max_size=3).map(tuple),
        table=st.text(max_size=5),
        epoch=NUMBERS,
    ),
    st.builds(ExecutionVertexFinished, NUMBERS, NUMBERS, NUMBERS, st.floats(0, 1e6), COUNTS, COUNTS),
    st.builds(CoordinatorSnapshot, NUMBERS, COUNTS, st.text(max_size=5)),
)
ONE = ExecutionVertexFinished(2, 1, 3, 0.5, {"rows": 7})
DEADLINE = 30.0


@given(EVENTS)
def test_an_event_comes_back_as_it_was(event: JobEvent) -> None:
    line = to_json(event)
    assert "\n" not in line
    assert from_json(line) == event


@given(EVENTS, st.data())
def test_any_torn_line_is_known_as_torn(event: JobEvent, data: st.DataObject) -> None:
    line = to_json(event)
    with pytest.raises(TornEventError):
        from_json(line[: data.draw(st.integers(0, len(line) - 1))])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2; this sqlext reads version 1"),
        ({"version": None}, "has version None"),
        ({"type": "ExecutionVertexReset"}, "is a ExecutionVertexReset, which this sqlext does not know"),
    ],
)
def test_what_another_version_wrote_is_refused(change: dict[str, object], message: str) -> None:
    line = json.dumps(json.loads(to_json(ONE)) | change)
    with pytest.raises(JobError, match=message) as caught:
        from_json(line)
    assert not isinstance(caught.value, TornEventError)
    with pytest.raises(JobError, match=message):
        read_events([line])


def test_torn_lines_are_left_out() -> None:
    whole = to_json(ONE)
    assert read_events([f"{whole}\n{whole[:20]}", whole]) == [ONE, ONE]


class Log:
    """An event log that lies in memory."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.written = threading.Event()
        self.is_mine = True
        self.error: SetupError | None = None

    def append(self, text: str) -> bool:
        if self.error is not None:
            raise self.error
        if self.is_mine:
            self.texts.append(text)
        self.written.set()
        is_mine, self.is_mine = self.is_mine, True
        return is_mine

    def read_new(self) -> list[str]:
        return []


def store_over(
    log: Log,
    failures: list[SqlextError],
    buffer_bytes: int = 10**6,
    interval: float = 3600.0,
    check: Callable[[], None] = lambda: None,
) -> JobEventStore:
    return JobEventStore("j", log, buffer_bytes, timedelta(seconds=interval), check, failures.append)  # type: ignore[arg-type]


def test_events_are_written_in_order_when_the_store_closes() -> None:
    log, failures = Log(), list[SqlextError]()
    store = store_over(log, failures)
    events = [ExecutionVertexFinished(0, part) for part in range(100)]
    for event in events:
        store.write(event)
    store.close()
    assert read_events(log.texts) == events
    assert len(log.texts) == 1, "one file for all that was held"
    assert store.bytes_written == len(log.texts[0])
    assert failures == []
    with pytest.raises(JobError, match="closed"):
        store.write(ONE)


@pytest.mark.parametrize("limits", [{"buffer_bytes": 1}, {"interval": 0.01}])
def test_a_full_buffer_or_the_interval_writes(limits: dict[str, float]) -> None:
    log = Log()
    store = store_over(log, [], **limits)  # type: ignore[arg-type]
    store.write(ONE)
    assert log.written.wait(DEADLINE)
    store.close()
    assert read_events(log.texts) == [ONE]


def test_a_store_that_cannot_write_fails_the_job() -> None:
    log, failures = Log(), list[SqlextError]()
    log.error = SetupError("The file cannot be written: read-only file system.")
    store = store_over(log, failures, interval=0.01)
    store.write(ONE)
    with pytest.raises(SetupError, match="read-only"):
        store.close()
    assert failures == [log.error]
    with pytest.raises(SetupError, match="read-only"):
        store.write(ONE)


def test_of_two_drivers_one_learns_that_it_is_not_the_one() -> None:
    def taken() -> None:
        raise JobError("Another driver has taken over job j.")

    log = Log()
    store = store_over(log, [], interval=0.01, check=taken)
    store.write(ONE)
    with pytest.raises(JobError, match="Another driver has taken over job j"):
        store.close()
    assert log.texts == []


def test_a_dead_drivers_late_event_does_not_stop_the_one_that_has_the_job() -> None:
    log = Log()
    log.is_mine = False
    store = store_over(log, [], interval=0.01)
    store.write(ONE)
    store.close()
    assert read_events(log.texts) == [ONE]


def test_a_store_without_events_writes_nothing() -> None:
    log = Log()
    store_over(log, []).close()
    assert log.texts == []
