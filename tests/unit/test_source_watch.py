"""Which queries rest, and what wakes them: without Spark, by queries and logs of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from sqlext.execution.streaming import source_watch
from sqlext.execution.streaming.running_query import RunningQuery
from sqlext.execution.streaming.source_watch import SourceWatch
from tests.support import TableVersions, eventually

DEADLINE = 60.0


class Query:
    """A query as the watch sees it. `look` is what Spark's thread does: it sees the versions there are."""

    name = "q"

    def __init__(self, *tables: str) -> None:
        self._tables = frozenset(tables)
        self.has_found_nothing = False
        self.is_running = True
        self.is_in_batch = False
        self.is_at_rest = False
        self.is_looking = False
        self.looks = 0
        self.lists_files = False
        self.listing_seconds = 0.0
        self.wakes = True

    @property
    def watched_tables(self) -> frozenset[str] | None:
        return self._tables if self._tables or self.lists_files else None

    def forget_last_look(self, seconds: float = 0.0) -> bool:
        if self.is_looking:
            return False
        self.has_found_nothing = False
        return True

    def rest(self) -> bool:
        self.is_at_rest = self.is_running
        return self.is_at_rest

    def take_one(self) -> None:
        self.looks += 1

    def wake(self) -> None:
        if not self.wakes:
            raise Py4JError("no answer")
        self.is_at_rest = False

    @property
    def running(self) -> RunningQuery:
        return cast(RunningQuery, self)


@pytest.fixture
def logs() -> TableVersions:
    return TableVersions(a=3, b=7)


@pytest.fixture
def watch(logs: TableVersions, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceWatch]:
    """A watch whose looks the test makes."""
    monkeypatch.setattr(source_watch, "LOOK_SECONDS", 3600.0)
    made = SourceWatch(cast(Any, logs))
    yield made
    made.close()


def look(watch: SourceWatch, times: int = 1) -> None:
    for _ in range(times):
        watch._look()


def at_rest(watch: SourceWatch, query: Query) -> None:
    watch.add(query.running)
    look(watch)
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest


def test_a_query_that_finds_nothing_rests_until_a_table_has_a_new_version(watch: SourceWatch, logs: TableVersions) -> None:
    query = Query("a", "b")
    at_rest(watch, query)
    look(watch, 5)
    assert query.is_at_rest
    logs.versions["b"] += 1
    look(watch)
    assert not query.is_at_rest
    look(watch, 5)
    assert not query.is_at_rest, "it has not looked since"
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest


def test_what_was_found_before_the_watch_asked_says_nothing(watch: SourceWatch) -> None:
    query = Query("a")
    query.has_found_nothing = True
    watch.add(query.running)
    look(watch)
    assert not query.is_at_rest
    assert not query.has_found_nothing


def test_a_version_between_the_look_and_the_rest_is_looked_for(watch: SourceWatch, logs: TableVersions) -> None:
    query = Query("a")
    watch.add(query.running)
    look(watch)
    query.has_found_nothing = True  # it has seen version 3
    logs.versions["a"] = 4
    look(watch)
    assert not query.is_at_rest
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest


def test_a_query_that_works_on_a_micro_batch_is_asked_after_it(watch: SourceWatch) -> None:
    query = Query("a")
    watch.add(query.running)
    look(watch)
    query.has_found_nothing = query.is_in_batch = True
    look(watch, 3)
    assert not query.is_at_rest
    query.is_in_batch = False
    look(watch)
    assert query.is_at_rest


def test_a_query_in_its_look_is_asked_the_next_time(watch: SourceWatch) -> None:
    query = Query("a")
    query.has_found_nothing = query.is_looking = True
    watch.add(query.running)
    look(watch, 3)
    assert not query.is_at_rest
    query.is_looking = False
    look(watch)
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest


def test_no_query_rests_beside_a_table_that_cannot_be_looked_at(watch: SourceWatch, logs: TableVersions) -> None:
    query = Query("a", "b")
    at_rest(watch, query)
    del logs.versions["b"]
    look(watch)
    assert not query.is_at_rest
    query.has_found_nothing = True
    look(watch, 3)
    assert not query.is_at_rest


def test_a_query_looks_once_after_a_long_rest(watch: SourceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query("a")
    at_rest(watch, query)
    look(watch)
    assert not query.looks
    monkeypatch.setattr(source_watch, "_LONGEST_REST", 0.0)
    for number in range(1, 4):
        look(watch)
        assert query.looks == number
        query.has_found_nothing = True
    assert query.is_at_rest


def test_a_look_at_rest_that_finds_something_wakes(watch: SourceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query("a")
    at_rest(watch, query)
    monkeypatch.setattr(source_watch, "_LONGEST_REST", 0.0)
    look(watch)
    assert query.is_at_rest
    look(watch)
    assert not query.is_at_rest, "it has found rows, has failed, or still looks"
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest


def test_a_statement_wakes_it_and_keeps_it_awake(watch: SourceWatch) -> None:
    query = Query("a")
    at_rest(watch, query)
    with watch.freely([query.running]):
        assert not query.is_at_rest
        query.has_found_nothing = True
        look(watch, 3)
        assert not query.is_at_rest
        assert query.has_found_nothing, "what the statement waits for is not taken from it"
    look(watch)
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest


def test_what_is_no_table_is_not_watched(watch: SourceWatch) -> None:
    query = Query()
    watch.add(query.running)
    query.has_found_nothing = True
    look(watch, 3)
    assert not query.is_at_rest
    assert not watch._watched


def test_a_query_over_files_rests_after_a_long_listing(watch: SourceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query()
    query.lists_files = True
    query.listing_seconds = 0.1
    watch.add(query.running)
    look(watch)
    query.has_found_nothing = True
    look(watch)
    assert not query.is_at_rest, "it takes a tenth of a second, and ten looks a second find what arrives soon"
    query.listing_seconds = 0.5
    query.has_found_nothing = True
    look(watch)
    assert query.is_at_rest
    look(watch)
    assert query.is_at_rest, "for four and a half seconds"
    query.listing_seconds = 0.2
    monkeypatch.setattr(source_watch, "_LONGEST_REST", 0.0)
    look(watch)
    assert not query.is_at_rest


def test_a_table_beside_files_wakes_a_query(watch: SourceWatch, logs: TableVersions) -> None:
    query = Query("a")
    query.lists_files, query.listing_seconds = True, 60.0
    at_rest(watch, query)
    logs.versions["a"] += 1
    look(watch)
    assert not query.is_at_rest


@pytest.mark.parametrize("is_at_rest", [True, False])
def test_a_query_that_has_ended_is_forgotten(watch: SourceWatch, is_at_rest: bool) -> None:
    query = Query("a")
    at_rest(watch, query)
    query.is_at_rest = False  # as a stop leaves it
    query.is_running = False
    if not is_at_rest:
        with watch.freely([query.running]):
            pass
    look(watch, 2)
    assert not watch._watched


class Storage(TableVersions):
    """Tables whose storage may fail, or not answer before the test lets it."""

    def __init__(self, **versions: int) -> None:
        super().__init__(**versions)
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.is_asked = threading.Event()
        self.answers.set()

    def newest(self, location: str, max_age: float = 0.0) -> int:
        self.is_asked.set()
        assert self.answers.wait(DEADLINE)
        if self.error is not None and location == "a":
            raise self.error
        return super().newest(location, max_age)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), Py4JError("the answer is empty"), ValueError("bug")])
def test_whatever_happens_in_a_look_its_queries_wake_and_the_others_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    storage = Storage(a=3, b=7)
    monkeypatch.setattr(source_watch, "LOOK_SECONDS", 0.005)
    watch = SourceWatch(cast(Any, storage))
    first, other = Query("a"), Query("b")
    try:
        for query in (first, other):
            watch.add(query.running)

        def rests(query: Query) -> bool:
            query.has_found_nothing = True
            return query.is_at_rest

        eventually(lambda: rests(first) and rests(other), DEADLINE)
        storage.error = error
        eventually(lambda: not first.is_at_rest, DEADLINE)
        assert other.is_at_rest
        storage.versions["b"] += 1
        eventually(lambda: not other.is_at_rest, DEADLINE)
        told = [record for record in caplog.records if "cannot be looked at" in record.message]
        assert len(told) == 1
        storage.error = None
        eventually(lambda: rests(first), DEADLINE)
    finally:
        watch.close()


def test_a_query_that_cannot_be_seen_wakes_and_is_left_alone(watch: SourceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread releases it, or Java does not answer."""
    query, other = Query("a"), Query("b")
    at_rest(watch, query)
    at_rest(watch, other)

    def forget_last_look(seconds: float = 0.0) -> bool:
        raise Py4JError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(query, "forget_last_look", forget_last_look)
        patch.setattr(source_watch, "_LONGEST_REST", 0.0)
        look(watch)
    other.has_found_nothing = True
    look(watch)
    assert not query.is_at_rest
    assert [*watch._watched] == [other.running]
    assert other.is_at_rest


def test_a_query_that_cannot_be_woken_is_woken_later(watch: SourceWatch, logs: TableVersions) -> None:
    query = Query("a")
    at_rest(watch, query)
    query.wakes = False
    logs.versions["a"] += 1
    look(watch, 2)
    assert query.is_at_rest
    query.wakes = True
    look(watch)
    assert not query.is_at_rest


def test_a_query_that_a_statement_cannot_wake_is_woken_later(watch: SourceWatch, logs: TableVersions) -> None:
    query = Query("a")
    at_rest(watch, query)
    query.wakes = False
    with pytest.raises(Py4JError), watch.freely([query.running]):
        pass
    query.wakes = True
    look(watch)
    assert not query.is_at_rest


def test_while_a_storage_does_not_answer_queries_look_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(a=3, b=7)
    monkeypatch.setattr(source_watch, "LOOK_SECONDS", 0.005)
    watch = SourceWatch(cast(Any, storage))
    queries = [Query("a"), Query("b")]
    try:
        for query in queries:
            watch.add(query.running)

        def rest() -> bool:
            for query in queries:
                query.has_found_nothing = True
            return all(query.is_at_rest for query in queries)

        eventually(rest, DEADLINE)
        storage.answers.clear()
        storage.is_asked.clear()
        assert storage.is_asked.wait(DEADLINE)
        watch.tick()
        assert all(query.is_at_rest for query in queries), "it may still answer"
        monkeypatch.setattr(source_watch, "_STUCK_SECONDS", 0.0)
        watch.tick()
        assert not any(query.is_at_rest for query in queries)
        storage.answers.set()
        eventually(rest, DEADLINE)
    finally:
        storage.answers.set()
        watch.close()


def test_the_end_of_the_watch_wakes_all(watch: SourceWatch) -> None:
    queries = [Query("a"), Query("b")]
    for query in queries:
        at_rest(watch, query)
    watch.close()
    assert not any(query.is_at_rest for query in queries)
    watch.add(Query("a").running)
    assert not watch._watched
