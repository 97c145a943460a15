"""Changes that are read once for all views: who reads them, with which columns, and when they are freed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sqlext.errors import UnsupportedError
from sqlext.execution.views import shared_changes
from sqlext.execution.views.shared_changes import SharedChanges
from sqlext.plan.view_spec import SourceVersion
from sqlext.testing import HandClock

SPARK = cast(SparkSession, None)
ORDERS = "file:/orders"


class Rows:
    """Rows that know whether they are held."""

    def __init__(self, number: int, wait: threading.Event | None = None) -> None:
        self.number = number
        self.is_held = False
        self._wait = wait

    def persist(self) -> Rows:
        self.is_held = True
        return self

    def unpersist(self) -> None:
        self.is_held = False

    def count(self) -> int:
        if self._wait is not None:
            assert self._wait.wait(30)
        if self.number < 0:
            raise UnsupportedError("the changes cannot be read")
        return self.number


class Reader:
    """What reads changes: it notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.made: list[Rows] = []
        self.number = 7
        self.wait: threading.Event | None = None
        self.differ: set[str] = set()

    def changes(self, _: Any, __: str, ___: int, ____: int, columns: Sequence[str]) -> Rows:
        self.asked.append(tuple(columns))
        self.made.append(Rows(self.number, self.wait))
        return self.made[-1]

    def check(self, _: Any, __: str, ___: int, ____: int, columns: Sequence[str]) -> None:
        if self.differ & {*columns}:
            raise UnsupportedError("a column has changed")


def between(before: int, after: int, location: str = ORDERS, id_: str = "a") -> tuple[SourceVersion, SourceVersion]:
    return SourceVersion(id_, before, location), SourceVersion(id_, after, location)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    made = Reader()
    monkeypatch.setattr(shared_changes, "changes", made.changes)
    monkeypatch.setattr(shared_changes, "check_same_columns", made.check)
    monkeypatch.setattr(shared_changes, "fill", lambda rows, *_: (rows.count(), 1, 1))
    return made


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def shared(clock: HandClock) -> SharedChanges:
    made = SharedChanges(clock)
    made.note("one", {ORDERS: ["id", "amount"]})
    made.note("other", {ORDERS: ["id", "cid"]})
    return made


def test_the_first_reads_the_columns_of_all_and_the_second_reads_nothing(shared: SharedChanges, reader: Reader) -> None:
    first = shared.take(SPARK, *between(3, 4), ["id", "amount"])
    second = shared.take(SPARK, *between(3, 4), ["id", "cid"])
    assert first is second
    assert (first.columns, first.number) == (("id", "amount", "cid"), 7)
    assert reader.asked == [("id", "amount", "cid")]


def test_other_versions_and_other_tables_are_read_by_themselves(shared: SharedChanges, reader: Reader) -> None:
    shared.take(SPARK, *between(3, 4), ["id"])
    shared.take(SPARK, *between(3, 5), ["id"])
    shared.take(SPARK, *between(3, 4, "file:/others"), ["x"])
    assert reader.asked == [("id", "amount", "cid"), ("id", "amount", "cid"), ("x",)]


def test_a_table_that_was_created_anew_in_the_same_folder_is_read_by_itself(shared: SharedChanges, reader: Reader) -> None:
    shared.give_back(shared.take(SPARK, *between(0, 1), ["id"]))
    shared.take(SPARK, *between(0, 1, id_="b"), ["id"])
    assert len(reader.asked) == 2


def test_settings_of_another_meaning_read_by_themselves(shared: SharedChanges, reader: Reader) -> None:
    zones = [frozenset({("spark.sql.session.timeZone", zone)}) for zone in ("UTC", "Asia/Tokyo", "UTC")]
    taken = [shared.take(SPARK, *between(3, 4), ["id"], zone) for zone in zones]
    assert taken[0] is taken[2]
    assert len(reader.asked) == 2


def test_what_several_views_read_is_held_for_some_seconds(shared: SharedChanges, reader: Reader, clock: HandClock) -> None:
    shared.give_back(shared.take(SPARK, *between(3, 4), ["id"]))
    clock.advance(9)
    shared.free_idle()
    assert reader.made[0].is_held
    again = shared.take(SPARK, *between(3, 4), ["id"])
    clock.advance(60)
    shared.free_idle()
    assert reader.made[0].is_held
    shared.give_back(again)
    clock.advance(10)
    shared.free_idle()
    assert not reader.made[0].is_held
    assert len(reader.asked) == 1


def test_what_one_view_reads_is_freed_at_once(shared: SharedChanges, reader: Reader) -> None:
    shared.forget("other")
    shared.give_back(shared.take(SPARK, *between(3, 4), ["id"]))
    assert not reader.made[0].is_held


def test_many_rows_are_freed_at_once(shared: SharedChanges, reader: Reader) -> None:
    reader.number = 1_000_001
    shared.give_back(shared.take(SPARK, *between(3, 4), ["id"]))
    assert not reader.made[0].is_held


def test_at_the_end_of_the_process_all_is_freed(shared: SharedChanges, reader: Reader) -> None:
    shared.give_back(shared.take(SPARK, *between(3, 4), ["id"]))
    shared.free_idle(is_all=True)
    assert not reader.made[0].is_held


def test_a_column_that_was_not_read_is_read_by_itself(shared: SharedChanges, reader: Reader) -> None:
    shared.take(SPARK, *between(3, 4), ["id"])
    own = shared.take(SPARK, *between(3, 4), ["id", "new"])
    assert own.columns == ("id", "new")
    shared.give_back(own)
    assert [each.is_held for each in reader.made] == [True, False]


def test_a_changed_column_of_another_view_is_left_out(shared: SharedChanges, reader: Reader) -> None:
    reader.differ = {"cid"}
    assert shared.take(SPARK, *between(3, 4), ["id", "amount"]).columns == ("id", "amount")
    with pytest.raises(UnsupportedError, match="a column has changed"):
        shared.take(SPARK, *between(3, 4), ["id", "cid"])


def test_after_a_failure_the_next_one_reads_them(shared: SharedChanges, reader: Reader) -> None:
    reader.number = -1
    with pytest.raises(UnsupportedError, match="cannot be read"):
        shared.take(SPARK, *between(3, 4), ["id"])
    assert not reader.made[0].is_held
    reader.number = 7
    assert shared.take(SPARK, *between(3, 4), ["id"]).number == 7


def test_two_at_once_read_once(shared: SharedChanges, reader: Reader) -> None:
    reader.wait = threading.Event()
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(shared.take(SPARK, *between(3, 4), ["id"])), daemon=True) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    reader.wait.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 2
    assert found[0] is found[1]
    assert len(reader.asked) == 1
