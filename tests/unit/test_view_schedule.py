"""When materialized views are due, by seconds that the test counts; in which order they are refreshed; and by which threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.errors import ViewError
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.views.graph import node_of_view
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.registry import ViewRecord, ViewRegistry
from sqlext.execution.views.scheduler import Scheduler
from sqlext.execution.views.timetable import Due, Timetable
from sqlext.execution.views.wave import Wave
from sqlext.execution.views.waves import Waves as AllWaves
from sqlext.execution.views.workers import Workers
from sqlext.plan.lineage import Input, Lineage
from sqlext.plan.view_spec import RefreshReport, Schedule, SourceVersion
from tests.unit.test_view_registry import SPEC

BY_HAND = Schedule()
EVERY = Schedule(every=60.0)
ON_UPDATE = Schedule(on_update=True, at_most_every=10.0)


# Due


def test_a_view_that_is_refreshed_by_hand_is_never_due() -> None:
    timetable = Timetable(BY_HAND, 0.0)
    timetable.note_begun(5.0)
    assert timetable.note_failure(6.0) is None
    assert {timetable.due(now) for now in (0.0, 7.0, 1e9)} == {Due.NOTHING}


def test_a_refresh_is_due_when_its_time_has_passed_since_the_last_one_was_begun() -> None:
    timetable = Timetable(EVERY, 100.0, since=20.0)
    assert timetable.due(139.9) is Due.NOTHING
    assert timetable.due(140.0) is Due.REFRESH
    timetable.note_begun(141.0)
    timetable.note_success()
    assert timetable.due(200.9) is Due.NOTHING
    assert timetable.due(201.0) is Due.REFRESH


@pytest.mark.parametrize("since", [None, 60.0, 86400.0])
def test_refreshes_that_were_missed_are_made_up_for_once(since: float | None) -> None:
    timetable = Timetable(EVERY, 100.0, since)
    assert timetable.due(100.0) is Due.REFRESH
    timetable.note_begun(100.0)
    timetable.note_success()
    assert timetable.due(159.0) is Due.NOTHING


def test_a_refresh_that_takes_longer_than_its_interval_is_followed_by_one_at_once_not_by_many() -> None:
    timetable = Timetable(EVERY, 0.0, 0.0)
    timetable.note_begun(60.0)
    timetable.note_success()  # at 300
    assert timetable.due(300.0) is Due.REFRESH
    timetable.note_begun(300.0)
    timetable.note_success()
    assert timetable.due(301.0) is Due.NOTHING


def test_sources_are_looked_at_each_second_and_a_change_causes_a_refresh() -> None:
    timetable = Timetable(ON_UPDATE, 0.0, since=0.0)
    assert timetable.due(9.9) is Due.NOTHING
    assert timetable.due(10.0) is Due.LOOK
    timetable.note_look(10.0)
    timetable.note_looked(is_behind=False)
    assert timetable.due(10.9) is Due.NOTHING
    assert timetable.due(11.0) is Due.LOOK
    timetable.note_look(11.0)
    timetable.note_looked(is_behind=True)
    assert timetable.due(11.1) is Due.REFRESH


def test_changes_cause_at_most_a_refresh_in_so_many_seconds() -> None:
    timetable = Timetable(ON_UPDATE, 0.0)
    timetable.note_look(0.0)
    timetable.note_looked(is_behind=True)
    timetable.note_begun(0.5)
    timetable.note_success()
    assert timetable.due(10.4) is Due.NOTHING
    assert timetable.due(10.5) is Due.LOOK


def test_after_a_failure_the_pauses_grow_and_a_success_ends_them() -> None:
    timetable = Timetable(EVERY, 0.0, 0.0)
    now, pauses = 60.0, []
    for _ in range(9):
        assert timetable.due(now) is Due.REFRESH
        timetable.note_begun(now)
        pause = timetable.note_failure(now)
        assert pause is not None
        pauses.append(pause)
        assert timetable.due(now + pause - 0.1) is Due.NOTHING
        now += pause
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    timetable.note_begun(now)
    timetable.note_success()
    assert timetable.due(now + 59) is Due.NOTHING
    assert timetable.note_failure(now + 60) == 5


def test_a_look_that_fails_is_followed_by_a_refresh_which_says_why() -> None:
    timetable = Timetable(ON_UPDATE, 0.0)
    timetable.note_look(0.0)
    timetable.note_failure(0.0)
    assert timetable.due(4.9) is Due.NOTHING
    assert timetable.due(5.0) is Due.REFRESH


def test_another_schedule_knows_when_the_last_refresh_was() -> None:
    timetable = Timetable(EVERY, 0.0, 0.0)
    timetable.note_begun(100.0)
    sooner = timetable.with_schedule(Schedule(every=10.0))
    assert sooner.due(109.9) is Due.NOTHING
    assert sooner.due(110.0) is Due.REFRESH
    assert timetable.with_schedule(BY_HAND).due(1e9) is Due.NOTHING


def test_a_refresh_that_is_canceled_leaves_what_was_due() -> None:
    timetable = Timetable(EVERY, 0.0, 0.0)
    timetable.note_begun(30.0)
    timetable.note_canceled()
    assert timetable.due(60.0) is Due.REFRESH
    looking = Timetable(ON_UPDATE, 0.0)
    looking.note_looked(is_behind=True)
    looking.note_begun(0.0)
    looking.note_canceled()
    assert looking.due(0.0) is Due.REFRESH


# Order


class View:
    """A view for the scheduler: what is due is what the test says."""

    def __init__(self, name: str, reads: tuple[str, ...] = (), due: Due = Due.REFRESH, follows: bool = False) -> None:
        inputs = tuple(Input(("spark_catalog", "default", each), f"file:/{each}") for each in reads)
        self.spec = replace(SPEC, id=name, name=("spark_catalog", "default", name), location=f"file:/{name}", reads=inputs)
        self.what = due
        self.follows = follows
        self.is_queued = False
        self.is_running = False
        self.done: list[str] = []

    def due(self, now: float) -> Due:
        return self.what

    def may_follow(self, now: float) -> bool:
        return self.follows

    def look(self) -> None:
        self.done.append("look")

    def note_held_back(self) -> None:
        self.done.append("held back")

    def refresh_by_itself(self, is_full: bool = False) -> None:
        self.done.append("refresh")


class Queue:
    """Workers that work when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.is_closed = False

    def submit(self, task: Any) -> bool:
        if not self.is_closed:
            self.tasks.append(task)
        return not self.is_closed

    def run(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task()


class Waves:
    """Makes waves that only say which views they have."""

    def __init__(self) -> None:
        self.made: list[set[str]] = []

    def make(self, views: Mapping[str, LiveView]) -> Wave:
        self.made.append({view.spec.id for view in views.values()})
        return cast(Wave, SimpleNamespace(begin=lambda: None))


def hand_out(scheduler: Scheduler, views: list[View], now: float) -> list[str]:
    """Hand out what is due; return the names of the views that are queued."""
    lineage = Lineage([node_of_view(view.spec) for view in views])
    scheduler.hand_out({view.spec.id: cast(LiveView, view) for view in views}, lineage, now)
    return [view.spec.id for view in views if view.is_queued]


def test_views_of_a_chain_that_are_due_are_one_wave_and_others_are_others() -> None:
    low, high = View("low", ("orders",)), View("high", ("low",))
    beside, apart = View("beside", ("orders",)), View("apart", ("customers",))
    waves, queue = Waves(), Queue()
    assert hand_out(Scheduler(cast(Workers, queue), waves.make), [high, apart, low, beside], 0.0) == [
        "high",
        "apart",
        "low",
        "beside",
    ]
    assert sorted(map(sorted, waves.made)) == [["apart"], ["beside", "high", "low"]]
    assert len(queue.tasks) == 2


def test_a_view_takes_those_of_its_chain_along_that_may_follow() -> None:
    low, middle = View("low", ("orders",), Due.LOOK, follows=True), View("middle", ("low",))
    high = View("high", ("middle",), Due.NOTHING, follows=True)
    slow, apart = View("slow", ("middle",), Due.NOTHING), View("apart", ("customers",), Due.NOTHING, follows=True)
    waves = Waves()
    assert hand_out(Scheduler(cast(Workers, Queue()), waves.make), [low, middle, high, slow, apart], 0.0) == [
        "low",
        "middle",
        "high",
    ]
    assert waves.made == [{"low", "middle", "high"}]


def test_a_view_waits_only_so_long_for_those_that_it_reads() -> None:
    low, high = View("low"), View("high", ("low",))
    low.is_running = True
    low.what = Due.NOTHING
    scheduler = Scheduler(cast(Workers, Queue()), Waves().make)
    assert hand_out(scheduler, [low, high], 0.0) == []
    assert hand_out(scheduler, [low, high], 59.0) == []
    assert hand_out(scheduler, [low, high], 60.0) == ["high"]


def test_looks_of_many_views_are_one_task_and_hold_up_nobody() -> None:
    low, high = View("low", due=Due.LOOK), View("high", ("low",), Due.LOOK)
    queue = Queue()
    assert hand_out(Scheduler(cast(Workers, queue), Waves().make), [low, high], 0.0) == ["low", "high"]
    assert len(queue.tasks) == 1
    queue.run()
    assert low.done == high.done == ["look"]
    assert not low.is_queued


def test_nothing_stays_queued_with_workers_that_are_closed() -> None:
    queue = Queue()
    queue.is_closed = True
    views = [View("low"), View("high", due=Due.LOOK)]
    assert hand_out(Scheduler(cast(Workers, queue), Waves().make), views, 0.0) == []


def wave(
    views: list[View], refreshed: list[str], queue: Queue, before: list[Callable[[Deadline], None]], ended: list[str]
) -> Wave:
    """A wave of views that say when they are refreshed."""

    def refresh(view: LiveView, _: Any) -> RefreshReport:
        refreshed.append(view.spec.id)
        return cast(RefreshReport, SimpleNamespace(version=1))

    lineage = Lineage([node_of_view(view.spec) for view in views])
    keyed = {node_of_view(view.spec).key: cast(LiveView, view) for view in views}
    workers, spark = cast(Workers, queue), cast(SparkSession, None)
    return Wave(spark, lineage, keyed, refresh, workers, lambda _: set(), lambda: ended.append("ended"), before)


@pytest.mark.parametrize("error", [ViewError("no"), KeyError("add"), ValueError("a torn commit"), PermissionError("denied")])
def test_a_wave_without_a_cut_goes_on_whatever_the_reason(error: Exception) -> None:
    def fail(_: Deadline) -> None:
        raise error

    queue, refreshed, ended = Queue(), list[str](), list[str]()
    made = wave([View("low"), View("high", ("low",))], refreshed, queue, [fail], ended)
    made.begin()
    for _ in range(2):
        queue.run()
    assert made.wait(None, 1.0)
    assert (refreshed, ended) == (["low", "high"], ["ended"])


def test_a_flow_that_cannot_flush_costs_neither_the_others_nor_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Deadline) -> None:
        raise ViewError("no")

    flushed, queue = list[str](), Queue()
    made = wave([View("low")], [], queue, [fail, lambda _: flushed.append("other")], [])
    monkeypatch.setattr("sqlext.spark.jvm.active", lambda _: nullcontext())
    monkeypatch.setattr(made, "_found", lambda: {"file:/orders": SourceVersion("id", 7)})
    made.begin()
    assert (flushed, made._pins) == (["other"], {"file:/orders": SourceVersion("id", 7)})


def test_what_no_worker_takes_fails() -> None:
    queue, refreshed, ended = Queue(), list[str](), list[str]()
    queue.is_closed = True
    views = [View("low"), View("high", ("low",))]
    made = wave(views, refreshed, queue, [], ended)
    made.begin()
    assert made.wait(None, 1.0)
    assert [str(error) for error in made.errors.values()] == [
        "The materialized view default.low is not refreshed any more: its process ends."
    ]
    assert (refreshed, ended) == ([], ["ended"])
    records = {view.spec.id: ViewRecord(view.spec, "host", "") for view in views}
    registry, flows = SimpleNamespace(read=lambda: records), SimpleNamespace(records=dict)
    waves = AllWaves(cast(SparkSession, None), cast(ViewRegistry, registry), cast(FlowManager, flows), cast(Workers, queue))
    with pytest.raises(ViewError, match=r"default\.high is not refreshed any more"):
        waves.refresh_chain(views[1].spec, lambda spec: cast(LiveView, View(spec.id)), seconds=5.0)
    with pytest.raises(ViewError, match=r"default\.low is not refreshed any more"):
        waves.begin(cast(LiveView, views[0]), False)


# Threads


def test_workers_run_tasks_on_a_few_threads_and_end_them() -> None:
    workers = Workers(2, "sqlext-view-test")
    started, release = threading.Semaphore(0), threading.Event()
    names: list[str] = []

    def task() -> None:
        names.append(threading.current_thread().name)
        started.release()
        release.wait(10)

    for _ in range(5):
        assert workers.submit(task)
    assert started.acquire(timeout=10)
    assert started.acquire(timeout=10)
    assert not started.acquire(timeout=0.1)
    release.set()
    workers.close(10)
    assert len(names) == 5
    assert set(names) == {"sqlext-view-test-1", "sqlext-view-test-2"}
    assert not workers.submit(task)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sqlext-view-test")]


def test_a_task_that_fails_does_not_end_its_thread() -> None:
    workers = Workers(1, "sqlext-view-test")
    done = threading.Event()

    def fail() -> None:
        raise ValueError("no")

    workers.submit(fail)
    workers.submit(done.set)
    assert done.wait(10)
    workers.close(10)
