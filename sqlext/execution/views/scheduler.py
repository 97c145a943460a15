"""What is due for the views of a process, handed to its workers: looks, and waves of refreshes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from sqlext.execution.views.live import LiveView
from sqlext.execution.views.timetable import Due
from sqlext.execution.views.wave import Wave
from sqlext.execution.views.workers import Workers
from sqlext.plan.lineage import Lineage

_MOST_WAIT_SECONDS = 60.0
"""How long a view waits for refreshes of the views that it reads, which may have one after the other."""
MakeWave = Callable[[Mapping[str, LiveView]], Wave]
"""Makes a wave of views, given by their keys in the graph."""


class Scheduler:
    """See the module's docstring. The host's ticker calls it; nothing here waits.

    Args:
        workers: do what is due.
        make_wave: makes the wave of views that are due.
    """

    def __init__(self, workers: Workers, make_wave: MakeWave) -> None:
        self._workers = workers
        self._make_wave = make_wave
        self._passed_over: dict[str, float] = {}  # since when a view waits for those that it reads

    def hand_out(self, views: Mapping[str, LiveView], lineage: Lineage, now: float) -> None:
        """Hand what is due to the workers. A view that is due takes those of its chain along whose pace allows it.

        Args:
            views: those that this process refreshes, by id.
            lineage: the graph.
            now: the time, by the clock of their timetables.
        """
        keyed = {node.key: views[node.id] for node in lineage.nodes.values() if node.id in views}
        due = {key: view.due(now) for key, view in keyed.items() if not view.is_queued}
        seeds = [key for key, what in due.items() if what is Due.REFRESH]
        if seeds:
            busy = {key for key, view in keyed.items() if view.is_queued or view.is_running}
            members = {*seeds, *self._followers(seeds, keyed, lineage, now)} - busy
            ready = [key for key in members if not self._waits(key, busy, lineage, now)]
            for part in _connected(ready, lineage):
                self._submit_wave({key: keyed[key] for key in keyed if key in part})
        looks = [keyed[key] for key, what in due.items() if what is Due.LOOK and not keyed[key].is_queued]
        if looks:
            _queue(looks)
            if not self._workers.submit(partial(_look, looks)):
                unqueue(looks)

    def _followers(self, seeds: Iterable[str], keyed: Mapping[str, LiveView], lineage: Lineage, now: float) -> set[str]:
        """Return what is refreshed with views that are due: what may follow, and what they read that has no pace of its own."""
        below, above = {*lineage.upstream(seeds)} & keyed.keys(), {*lineage.downstream(seeds)} & keyed.keys()
        found = {key for key in below | above if keyed[key].may_follow(now)}
        found |= {key for key in below if not keyed[key].spec.schedule.has_pace and not keyed[key].spec.schedule.is_stopped}
        return {key for key in found if not keyed[key].is_queued}

    def _waits(self, key: str, busy: Collection[str], lineage: Lineage, now: float) -> bool:
        """Return whether a view that is due waits for those that it reads."""
        if not {*busy} & {*lineage.upstream([key])} - {key}:
            self._passed_over.pop(key, None)
            return False
        return now - self._passed_over.setdefault(key, now) < _MOST_WAIT_SECONDS

    def _submit_wave(self, views: Mapping[str, LiveView]) -> None:
        _queue(views.values())
        if not self._workers.submit(self._make_wave(views).begin):
            unqueue(views.values())


def _connected(keys: Iterable[str], lineage: Lineage) -> list[set[str]]:
    """Return keys in groups that share something which they read, directly or through others, or read each other."""
    groups: list[tuple[set[str], set[str]]] = []
    for key in keys:
        own, reached = {key}, {key, *lineage.upstream([key])}
        apart = []
        for group, touched in groups:
            if touched & reached:
                own, reached = own | group, reached | touched
            else:
                apart.append((group, touched))
        groups = [*apart, (own, reached)]
    return [group for group, _ in groups]


def _look(views: Iterable[LiveView]) -> None:
    try:
        for view in views:
            view.look()
    finally:
        unqueue(views)


def _queue(views: Iterable[LiveView]) -> None:
    for view in views:
        view.is_queued = True


def unqueue(views: Iterable[LiveView]) -> None:
    """Let views be due again."""
    for view in views:
        view.is_queued = False
