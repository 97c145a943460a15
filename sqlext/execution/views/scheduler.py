"""What is due for the views of a process, handed to its workers in the order of the views' dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from sqlext.execution.views.creation import places_of, read_by
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.timetable import Due
from sqlext.execution.views.workers import Workers

_MOST_WAIT_SECONDS = 60.0
"""How long a view waits for refreshes of the views that it reads, which may have one after the other."""


class Scheduler:
    """See the module's docstring. The host's ticker calls it; nothing here waits.

    Args:
        workers: do what is due.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._passed_over: dict[str, float] = {}  # since when a view waits for those that it reads

    def hand_out(self, views: Mapping[str, LiveView], now: float) -> None:
        """Hand what is due to the workers. A view whose sources are views that are due, or run, comes after these.

        Args:
            views: those that this process refreshes, by id.
            now: the time, by the clock of their timetables.
        """
        due = {key: view.due(now) for key, view in views.items() if not view.is_queued}
        busy = {key for key, view in views.items() if view.is_queued or view.is_running or due.get(key) is Due.REFRESH}
        looks: list[LiveView] = []
        for key, what in due.items():
            if what is Due.NOTHING or self._waits(key, views, busy, now):
                continue
            self._passed_over.pop(key, None)
            if what is Due.LOOK:
                looks.append(views[key])
            else:
                self._submit([views[key]], views[key].refresh_by_itself)
        if looks:
            self._submit(looks, partial(_look, looks))

    def _waits(self, key: str, views: Mapping[str, LiveView], busy: set[str], now: float) -> bool:
        """Return whether a view that is due waits for those that it reads."""
        if not busy & upstream(key, views) - {key}:
            return False
        return now - self._passed_over.setdefault(key, now) < _MOST_WAIT_SECONDS

    def _submit(self, views: Iterable[LiveView], task: Callable[[], None]) -> None:
        for view in views:
            view.is_queued = True
        if not self._workers.submit(partial(_run, views, task)):
            for view in views:
                view.is_queued = False


def upstream(key: str, views: Mapping[str, LiveView]) -> set[str]:
    """Return the ids of the views that a view reads, directly or through others, as far as they are among `views`."""
    ids = {".".join(view.spec.name).lower(): each for each, view in views.items()}
    places = places_of(view.spec for view in views.values())
    found: set[str] = set()
    left = [key]
    while left:
        read = {ids[name] for name in read_by(views[left.pop()].status, places) if name in ids}
        left += read - found
        found |= read
    return found


def _look(views: Iterable[LiveView]) -> None:
    for view in views:
        view.look()


def _run(views: Iterable[LiveView], task: Callable[[], None]) -> None:
    try:
        task()
    finally:
        for view in views:
            view.is_queued = False
