"""Queries that have read all of their tables rest, until one look at each table's log for all of them finds a new version.

By itself, each of Spark's streams lists the log of its table ten times a second: a hundred flows that have nothing to do take
two cores for it.

A query over files lists their folders for each look. No log says what is new there, so it looks by itself; but where a listing
takes long, it rests nine times as long after each that finds nothing.

The order of what happens is what keeps a version from being missed: the versions are read first, then the query is told to
forget its last look, and only if a look after that finds nothing, and the versions are still the same, does the query rest.

In doubt, a query wakes: it then looks by itself, and says what is wrong. That is so when its table or the query itself cannot be
looked at, and when the watch gets no further, since a storage does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.streaming.running_query import RunningQuery
from sqlext.spark import failures

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
_LONGEST_REST = 60.0
"""The seconds after which a query at rest looks once: what happens to a table without a version shows then."""
_LONGEST_REST_OF_FILES = 10.0
"""The same of a query over files, which finds new ones in no other way."""
_REST_A_LISTING = 9.0
"""The seconds of rest for each second of a listing of files: then a tenth of a core lists folders to which nothing comes."""
_LEAST_REST = 1.0
"""The seconds below which a rest after a listing is not worth it."""
_STUCK_SECONDS = 10.0
"""The seconds after which a look that still goes on counts as stuck; it takes milliseconds where the storage answers."""
_CLOSE_SECONDS = 60.0

Versions = dict[str, int]
"""The newest version of each table, by location."""


class SourceWatch:
    """The watch over the tables of all flows of a process. See the module's docstring. Any thread may call it.

    `_lock` guards which queries are watched. The lock of each query guards whether it rests; the thread `sqlext-watch`,
    statements and the host's ticker meet there. The rest is the thread's own, but when its look has begun.

    Args:
        logs: the logs of tables.
    """

    def __init__(self, logs: TableLogs) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._watched: dict[RunningQuery, _WatchedQuery] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_began: float | None = None  # None: none goes on
        self._failing: set[str] = set()  # locations

    def add(self, running: RunningQuery) -> None:
        """Let a query that runs rest from now on, as long as it runs; not if it reads anything but Delta tables and files."""
        tables = running.watched_tables
        if tables is None:
            return
        with self._lock:
            if self._closed.is_set():
                return
            self._watched = {**self._watched, running: _WatchedQuery(running, tables)}
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sqlext-watch", daemon=True)
                self._thread.start()

    @contextmanager
    def freely(self, queries: Iterable[RunningQuery]) -> Iterator[None]:
        """Let queries look for input by themselves in the `with` block."""
        with ExitStack() as awake:
            for running in queries:
                if (watched := self._watched.get(running)) is not None:
                    awake.enter_context(watched.freely())
            yield

    def tick(self) -> None:
        """Wake all queries while a look at their tables is stuck; the host's ticker calls it. Waits for nothing."""
        began = self._look_began
        if began is None or time.monotonic() - began < _STUCK_SECONDS:
            return
        for each in self._watched.values():
            if each.is_resting:
                self._guarded(each, may_wait=False)

    def close(self) -> None:
        """End the watch; the queries go on by themselves."""
        self._closed.set()
        with self._lock:
            thread, watched = self._thread, self._watched
            self._watched = {}
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)
        for each in watched.values():
            self._guarded(each)

    def _guarded(self, watched: _WatchedQuery, may_wait: bool = True) -> bool:
        """Let a query look by itself; return False if it cannot be told now."""
        try:
            return watched.end(may_wait)
        except Exception as error:  # noqa: BLE001  # Spark was stopped, its gateway is gone, or the query is just released
            logger.info("%s: its rest could not be ended: %s", watched.running.name, failures.reason_of(error))
            return False

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self._look()
            except Exception:  # without this thread, what rests would rest for ever
                logger.exception("the tables of flows could not be looked at")
                for each in self._watched.values():
                    self._guarded(each)

    def _look(self) -> None:
        watched = self._watched
        self._look_began = time.monotonic()
        try:
            newest = self._newest({location for each in watched.values() for location in each.tables})
            for each in watched.values():
                if not (self._closed.is_set() or self._see(each, newest)):
                    with self._lock:
                        self._watched = {key: value for key, value in self._watched.items() if value is not each}
        finally:
            self._look_began = None

    def _see(self, watched: _WatchedQuery, newest: Versions) -> bool:
        """Let a query rest, or wake it; return False if it is not to be watched any more: it has ended, or looks by itself."""
        try:
            return watched.see(newest, time.monotonic())
        except Exception as error:  # noqa: BLE001  # Spark was stopped, its gateway is gone, or this query just ends
            logger.info("%s: it is left to look by itself: %s", watched.running.name, failures.reason_of(error))
        return not (self._guarded(watched) or self._has_ended(watched))

    def _has_ended(self, watched: _WatchedQuery) -> bool:
        try:
            return not watched.running.is_running
        except Exception:  # noqa: BLE001  # Spark was stopped
            return True

    def _newest(self, locations: Iterable[str]) -> Versions:
        found: Versions = {}
        for location in locations:
            try:
                found[location] = self._logs.newest(location, LOOK_SECONDS / 2)
                self._failing.discard(location)
            except Exception as error:  # noqa: BLE001  # its queries look by themselves, and say what is wrong
                if location not in self._failing:
                    logger.warning("the table in %s cannot be looked at: %s", location, failures.reason_of(error))
                self._failing.add(location)
        return found


class _WatchedQuery:
    """A query that may rest.

    Args:
        running: the query.
        tables: the locations of the tables that it reads.
    """

    def __init__(self, running: RunningQuery, tables: frozenset[str]) -> None:
        self.running = running
        self.tables = tables
        self._lock = threading.Lock()
        self._statements = 0
        self._before_look: Versions | None = None
        """The versions before the look that the query does now, or has rested since; None: it was not told to look."""
        self._rests_since: float | None = None
        self._looks_at_rest = False
        """Whether it was told to look once, and goes on resting if that finds nothing."""
        self._longest_rest = _LONGEST_REST

    def see(self, newest: Versions, now: float) -> bool:
        """Let the query rest, or wake it, by the newest versions; return False once it has ended."""
        with self._lock:
            if self._statements:
                return True
            if self._rests_since is not None:
                return self._see_at_rest(newest, now, self._rests_since)
            versions = {location: newest[location] for location in self.tables if location in newest}
            if self.running.is_in_batch:
                return True
            if self._before_look is not None and not self.running.has_found_nothing:
                return self.running.is_running
            if self._before_look != versions or len(versions) < len(self.tables):
                self._look_again(versions)
                return self.running.is_running
            if self.running.lists_files:
                self._longest_rest = min(self.running.listing_seconds * _REST_A_LISTING, _LONGEST_REST_OF_FILES)
                if self._longest_rest < _LEAST_REST:
                    self._look_again(versions)
                    return self.running.is_running
            self._rests_since = now if self.running.rest() else None
            return self._rests_since is not None

    def _look_again(self, versions: Versions) -> None:
        self._before_look = versions if self.running.forget_last_look() else None

    def _see_at_rest(self, newest: Versions, now: float, since: float) -> bool:
        if not self.running.is_at_rest:
            return False  # it was stopped
        before = self._before_look  # None: it could not be woken
        has_changed = before is None or any(newest.get(location) != version for location, version in before.items())
        is_over = now - since >= min(self._longest_rest, _LONGEST_REST)
        has_found = self._looks_at_rest and not self.running.has_found_nothing  # or its look has failed, or takes long
        self._looks_at_rest = False
        if has_changed or has_found or (is_over and self.running.lists_files):
            self._look_again({location: newest[location] for location in self.tables if location in newest})
            self._wake()
        elif is_over and self.running.forget_last_look():
            self.running.take_one()
            self._rests_since, self._looks_at_rest = now, True
        return True

    @contextmanager
    def freely(self) -> Iterator[None]:
        """Let the query look for input by itself in the `with` block."""
        with self._lock:
            self._statements += 1
        try:
            with self._lock:
                self._before_look = None
                self._wake()
            yield
        finally:
            with self._lock:
                self._statements -= 1

    @property
    def is_resting(self) -> bool:
        return self._rests_since is not None

    def end(self, may_wait: bool = True) -> bool:
        """Let the query look for input by itself; return False, and nothing was done, if another thread decides that just now.

        Args:
            may_wait: whether to wait for that.
        """
        if not self._lock.acquire(blocking=may_wait):
            return False
        try:
            self._before_look = None
            self._wake()
        finally:
            self._lock.release()
        return True

    def _wake(self) -> None:
        if self._rests_since is not None:
            self.running.wake()
            self._rests_since, self._looks_at_rest = None, False  # once it is woken: if that fails, it is tried again
