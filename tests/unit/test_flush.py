"""Flushing: when one is due, by a clock of the test's; and the flusher's thread, one flush at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.errors import SetupError
from sqlext.execution.flows.flush import Flusher, FlushPolicy, FlushReason

DEADLINE = 60.0  # seconds that a test waits for a thread before it fails
SOON = 0.02  # seconds in which something must not happen


# When


def minutes(count: float) -> FlushPolicy:
    return FlushPolicy(timedelta(minutes=count))


@pytest.mark.parametrize(
    ("now", "oldest_arrival", "quiet_since", "expected"),
    [
        (1000.0, None, None, None),
        (1000.0, None, 0.0, None),  # an empty buffer is never flushed
        (1000.0, 1000.0, None, None),
        (1000.0, 880.001, None, None),
        (1000.0, 880.0, None, FlushReason.INTERVAL),
        (1000.0, 100.0, None, FlushReason.INTERVAL),
        (1000.0, 880.0, 0.0, FlushReason.INTERVAL),  # the interval comes first
        (1000.0, 950.0, 1000.0, None),
        (1000.0, 950.0, 990.001, None),
        (1000.0, 950.0, 990.0, FlushReason.IDLE),
        (1000.0, 999.0, 900.0, FlushReason.IDLE),
        (-5.0, -125.0, None, FlushReason.INTERVAL),  # a monotonic clock starts anywhere
        (-5.0, -124.9, -15.0, FlushReason.IDLE),
    ],
)
def test_a_flush_is_due_after_the_interval_or_when_nothing_comes(
    now: float, oldest_arrival: float | None, quiet_since: float | None, expected: FlushReason | None
) -> None:
    assert minutes(2).due(now, oldest_arrival, quiet_since) == expected


@pytest.mark.parametrize(("flush_seconds", "due"), [(0.0, 120.0), (3.0, 117.0), (59.0, 61.0), (61.0, 60.0), (500.0, 60.0)])
def test_a_flush_begins_early_by_what_the_last_one_took_up_to_half_the_interval(flush_seconds: float, due: float) -> None:
    assert minutes(2).due(due - 0.001, 0.0, None, flush_seconds=flush_seconds) is None
    assert minutes(2).due(due, 0.0, None, flush_seconds=flush_seconds) is FlushReason.INTERVAL


def test_without_an_interval_the_clock_never_asks_for_a_flush() -> None:
    assert FlushPolicy(None).due(1e9, 0.0, 0.0) is None


@pytest.mark.parametrize(
    ("interval", "quiet"),
    [
        (None, 1.0),
        (timedelta(milliseconds=1), 1.0),
        (timedelta(seconds=1), 1.0),
        (timedelta(seconds=10), 1.0),
        (timedelta(seconds=30), 3.0),
        (timedelta(seconds=100), 10.0),
        (timedelta(minutes=2), 10.0),
        (timedelta(days=1), 10.0),
    ],
)
def test_a_stream_counts_as_idle_after_a_tenth_of_the_interval_between_1_and_10_seconds(
    interval: timedelta | None, quiet: float
) -> None:
    assert FlushPolicy(interval).quiet.total_seconds() == quiet


def test_an_interval_shorter_than_the_quiet_time_comes_first() -> None:
    policy = FlushPolicy(timedelta(milliseconds=500))
    assert policy.due(0.4, 0.0, 0.0) is None
    assert policy.due(0.5, 0.0, 0.0) is FlushReason.INTERVAL


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0.001, 1e4))
def test_what_is_due_stays_due(now: float, age: float, quiet: float, later: float) -> None:
    policy = minutes(2)
    if policy.due(now, now - age, now - quiet):
        assert policy.due(now + later, now - age, now - quiet)


@given(st.floats(0, 1e6), st.floats(120.01, 1e4))
def test_no_row_waits_longer_than_the_interval(now: float, age: float) -> None:
    assert minutes(2).due(now, now - age, None) is FlushReason.INTERVAL


def test_reasons_are_the_words_of_the_commit() -> None:
    assert [reason.value for reason in FlushReason] == [
        "interval",
        "cache full",
        "micro-batch",
        "idle",
        "backlog end",
        "command",
        "stop",
        "recovery",
        "once",
    ]


# Who


class Table:
    """A flush that the test holds back, and lets go on or fail."""

    def __init__(self) -> None:
        self.swept = 0
        self.begun: list[FlushReason] = []
        self.done: list[FlushReason] = []
        self.failures: list[Exception] = []
        self.threads: set[str] = set()
        self.error: Exception | None = None
        self.error_afterwards: Exception | None = None
        self._begins = threading.Semaphore(0)
        self._may_end = threading.Semaphore(0)
        self._failed = threading.Event()
        self._at_work = threading.Lock()

    def flush(self, reason: FlushReason) -> None:
        assert self._at_work.acquire(blocking=False), "two flushes at once"
        try:
            self.threads.add(threading.current_thread().name)
            self.begun.append(reason)
            self._begins.release()
            assert self._may_end.acquire(timeout=DEADLINE), "nobody let the flush end"
            if self.error:
                raise self.error
            self.done.append(reason)
        finally:
            self._at_work.release()

    def afterwards(self) -> None:
        self.swept += 1
        if self.error_afterwards is not None:
            raise self.error_afterwards

    def failed(self, error: Exception) -> None:
        self.failures.append(error)
        self._failed.set()

    def wait_until_it_begins(self) -> None:
        assert self._begins.acquire(timeout=DEADLINE), "no flush began"

    def wait_until_it_failed(self) -> None:
        assert self._failed.wait(DEADLINE), "nobody was told"

    def let_end(self, flushes: int = 1) -> None:
        self._may_end.release(flushes)

    def begins_another(self) -> bool:
        return self._begins.acquire(timeout=SOON)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def flusher(table: Table) -> Iterator[Flusher]:
    flusher = Flusher("views", table.flush, table.failed, table.afterwards)
    yield flusher
    table.let_end(100)
    assert flusher.close(DEADLINE)


def test_nothing_is_flushed_until_somebody_asks(flusher: Flusher, table: Table) -> None:
    assert not table.begins_another()
    assert not flusher.is_busy


def test_who_asks_can_wait_for_the_flush(flusher: Flusher, table: Table) -> None:
    ticket = flusher.ask(FlushReason.COMMAND)
    table.wait_until_it_begins()
    assert flusher.is_busy
    assert not flusher.wait(ticket, SOON)
    table.let_end()
    assert flusher.wait(ticket, DEADLINE)
    assert table.done == [FlushReason.COMMAND]
    assert not flusher.is_busy


def test_flushes_are_made_on_a_thread_that_is_called_after_the_flow(flusher: Flusher, table: Table) -> None:
    table.let_end()
    assert flusher.wait(flusher.ask(FlushReason.IDLE), DEADLINE)
    assert table.threads == {"sqlext-flush-views"}


def test_a_flush_that_has_begun_does_not_serve_who_asks_now(flusher: Flusher, table: Table) -> None:
    first = flusher.ask(FlushReason.INTERVAL)
    table.wait_until_it_begins()
    second = flusher.ask(FlushReason.COMMAND)
    table.let_end()
    assert flusher.wait(first, DEADLINE)
    assert not flusher.wait(second, SOON)
    table.wait_until_it_begins()
    table.let_end()
    assert flusher.wait(second, DEADLINE)
    assert table.done == [FlushReason.INTERVAL, FlushReason.COMMAND]


def test_all_who_ask_during_a_flush_share_the_next_one(flusher: Flusher, table: Table) -> None:
    flusher.ask(FlushReason.INTERVAL)
    table.wait_until_it_begins()
    tickets = [flusher.ask(reason) for reason in (FlushReason.COMMAND, FlushReason.IDLE, FlushReason.STOP)]
    table.let_end(2)
    table.wait_until_it_begins()
    assert all(flusher.wait(ticket, DEADLINE) for ticket in tickets)
    assert not table.begins_another()
    assert table.done == [FlushReason.INTERVAL, FlushReason.COMMAND]  # the reason of who asked first


def test_two_flushes_are_never_made_at_once(flusher: Flusher, table: Table) -> None:
    flusher.ask(FlushReason.INTERVAL)
    table.wait_until_it_begins()
    last = flusher.ask(FlushReason.COMMAND)
    assert not table.begins_another()
    table.let_end(2)
    assert flusher.wait(last, DEADLINE)


def test_a_ticket_of_a_flush_that_is_done_need_not_wait(flusher: Flusher, table: Table) -> None:
    table.let_end(2)
    first = flusher.ask(FlushReason.COMMAND)
    assert flusher.wait(first, DEADLINE)
    second = flusher.ask(FlushReason.COMMAND)
    assert flusher.wait(second, DEADLINE)
    assert second > first
    assert flusher.wait(first, 0)


def test_many_threads_may_ask_and_wait(flusher: Flusher, table: Table) -> None:
    table.let_end(100)
    served: list[bool] = []

    def ask() -> None:
        served.extend(flusher.wait(flusher.ask(FlushReason.COMMAND), DEADLINE) for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert served == [True] * 40
    assert 1 <= len(table.done) <= 40


# Failures


def test_an_error_is_kept_and_told_once(flusher: Flusher, table: Table) -> None:
    table.error = OSError("disk full")
    ticket = flusher.ask(FlushReason.INTERVAL)
    table.let_end()
    table.wait_until_it_failed()
    assert flusher.wait(ticket, DEADLINE)
    assert flusher.error is table.error
    assert table.failures == [table.error]


def test_no_flush_follows_one_that_failed(flusher: Flusher, table: Table) -> None:
    table.error = OSError("disk full")
    flusher.ask(FlushReason.INTERVAL)
    table.wait_until_it_begins()
    waiting = flusher.ask(FlushReason.COMMAND)
    table.let_end(2)
    table.wait_until_it_failed()
    assert flusher.wait(waiting, DEADLINE)
    assert flusher.wait(flusher.ask(FlushReason.STOP), DEADLINE)
    assert not table.begins_another()
    assert table.begun == [FlushReason.INTERVAL]
    assert len(table.failures) == 1


def test_who_waits_is_told_of_a_failure_at_once(flusher: Flusher, table: Table) -> None:
    table.error = ValueError("no")
    ticket = flusher.ask(FlushReason.COMMAND)
    table.wait_until_it_begins()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(flusher.wait(ticket, DEADLINE)))
    waiter.start()
    table.let_end()
    waiter.join(DEADLINE)
    assert answers == [True]


def test_who_waits_is_told_only_after_the_flow_knows_of_the_failure(table: Table) -> None:
    """The flow may take its time: it asks its fence why it has failed."""
    may_know = threading.Event()

    def failed(error: Exception) -> None:
        assert may_know.wait(DEADLINE)
        table.failed(error)

    table.error = ValueError("no")
    flusher = Flusher("views", table.flush, failed, table.afterwards)
    ticket = flusher.ask(FlushReason.COMMAND)
    table.let_end()
    assert not flusher.wait(ticket, SOON)
    may_know.set()
    assert flusher.wait(ticket, DEADLINE)
    assert table.failures == [table.error]


def test_what_fails_after_a_flush_leaves_it_done_and_the_next_one_comes(
    flusher: Flusher, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.error_afterwards = SetupError("The file cannot be opened: no answer.")
    table.let_end(2)
    for _ in range(2):
        assert flusher.wait(flusher.ask(FlushReason.COMMAND), DEADLINE)
        assert not flusher.is_busy
    assert (flusher.error, table.failures) == (None, [])
    assert "views" in caplog.text
    assert "no answer" in caplog.text


# The end


def test_close_ends_an_idle_flusher(table: Table) -> None:
    flusher = Flusher("views", table.flush, table.failed, table.afterwards)
    assert flusher.close(DEADLINE)
    assert table.begun == []
    assert flusher.close(DEADLINE)


def test_close_waits_for_the_flush_in_flight(table: Table) -> None:
    flusher = Flusher("views", table.flush, table.failed, table.afterwards)
    ticket = flusher.ask(FlushReason.STOP)
    table.wait_until_it_begins()
    assert not flusher.close(SOON)
    assert table.done == []
    table.let_end()
    assert flusher.close(DEADLINE)
    assert table.done == [FlushReason.STOP]
    assert flusher.wait(ticket, 0)
    assert flusher.error is None


def test_what_was_asked_for_before_close_is_still_flushed(table: Table) -> None:
    flusher = Flusher("views", table.flush, table.failed, table.afterwards)
    flusher.ask(FlushReason.INTERVAL)
    table.wait_until_it_begins()
    flusher.ask(FlushReason.STOP)
    assert not flusher.close(SOON)
    table.let_end(2)
    assert flusher.close(DEADLINE)
    assert table.done == [FlushReason.INTERVAL, FlushReason.STOP]


def test_who_waits_for_a_closed_flusher_does_not_hang(table: Table) -> None:
    flusher = Flusher("views", table.flush, table.failed, table.afterwards)
    assert flusher.close(DEADLINE)
    assert flusher.wait(flusher.ask(FlushReason.COMMAND), DEADLINE)
    assert table.begun == []


def test_a_flusher_may_close_itself(table: Table) -> None:
    closed: list[bool] = []

    def close(error: Exception) -> None:
        closed.append(itself.close(DEADLINE))
        table.failed(error)

    table.error = OSError("disk full")
    itself = Flusher("views", table.flush, close, table.afterwards)
    itself.ask(FlushReason.INTERVAL)
    table.let_end()
    table.wait_until_it_failed()
    assert closed == [False]  # its own thread still runs
    assert itself.close(DEADLINE)
