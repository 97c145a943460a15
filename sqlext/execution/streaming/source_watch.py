"""Queries that have read all of their tables rest, until one look at each table's log for all of them finds a new version.

By itself, each of Spark's streams lists the log of its table ten times a second: a hundred flows that have nothing to do take
two cores for it.

A query over files lists their folders for each look. No log says what is new there, so it looks by itself; but where a listing
takes long, it rests nine times as long after each that finds nothing.

The order of what happens is what keeps a version from being missed: the versions are read first, then the query is told to
forget its last look, and only if a look after that finds nothing, and the versions are still the same, does the query rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from sqlext.errors import NotFoundError
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.streaming.running_query import RunningQuery
from sqlext.spark import failures
from sqlext.spark.failures import SPARK_ERRORS

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
_LONGEST_REST = 10.0
"""The seconds after which a query looks by itself: what happens to a table without a version shows then, such as a DROP."""
_REST_A_LISTING = 9.0
"""The seconds of rest for each second of a listing of files: then a tenth of a core lists folders to which nothing comes."""
_LEAST_REST = 1.0
"""The seconds below which a rest after a listing is not worth it."""
_CLOSE_SECONDS = 60.0

Versions = dict[str, int]
"""The newest version of each table, by location."""


class SourceWatch:
    """The watch over the tables of all flows of a process. See the module's docstring. Any thread may call it.

    `_lock` guards which queries are watched. The lock of each query guards whether it rests; the thread `sqlext-watch`
    and statements meet there.

    Args:
        logs: the logs of tables.
    """

    def __init__(self, logs: TableLogs) -> None:
        self._logs = logs
        self._lock = threading.Lock()
        self._watched: dict[RunningQuery, _WatchedQuery] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

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

    def _guarded(self, watched: _WatchedQuery) -> None:
        try:
            watched.end()
        except SPARK_ERRORS as error:
            logger.info("%s: its rest could not be ended: %s", watched.running.name, failures.reason_of(error))

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        watched = self._watched
        newest = self._newest({location for each in watched.values() for location in each.tables})
        for each in watched.values():
            try:
                is_running = self._closed.is_set() or each.see(newest, time.monotonic())
            except SPARK_ERRORS as error:  # Spark was stopped, or this query just ends
                logger.info("%s: it is not watched any more: %s", each.running.name, failures.reason_of(error))
                is_running = False
            if not is_running:
                with self._lock:
                    self._watched = {key: value for key, value in self._watched.items() if value is not each}

    def _newest(self, locations: Iterable[str]) -> Versions:
        found: Versions = {}
        for location in locations:
            try:
                found[location] = self._logs.newest(location, LOOK_SECONDS / 2)
            except (NotFoundError, *SPARK_ERRORS) as error:  # the queries look by themselves, and say what is wrong
                logger.info("the table in %s cannot be looked at: %s", location, failures.reason_of(error))
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
        self._longest_rest = _LONGEST_REST

    def see(self, newest: Versions, now: float) -> bool:
        """Let the query rest, or wake it, by the newest versions; return False once it has ended."""
        with self._lock:
            if self._statements:
                return True
            if self._rests_since is not None:
                return self._see_at_rest(newest, now, self._rests_since)
            versions = {location: newest[location] for location in self.tables if location in newest}
            if self._before_look is not None and not self.running.has_found_nothing:
                return self.running.is_running
            if self._before_look != versions or len(versions) < len(self.tables):
                self._look_again(versions)
                return self.running.is_running
            if self.running.lists_files:
                self._longest_rest = min(self.running.listing_seconds * _REST_A_LISTING, _LONGEST_REST)
                if self._longest_rest < _LEAST_REST:
                    self._look_again(versions)
                    return self.running.is_running
            self._rests_since = now if self.running.rest() else None
            return self._rests_since is not None

    def _look_again(self, versions: Versions) -> None:
        self._before_look = versions if self.running.forget_last_look(may_wait=False) else None

    def _see_at_rest(self, newest: Versions, now: float, since: float) -> bool:
        if not self.running.is_at_rest:
            return False  # it was stopped
        versions = {location: newest[location] for location in self.tables if location in newest}
        if versions != self._before_look or now - since >= min(self._longest_rest, _LONGEST_REST):
            self._look_again(versions)
            self._wake()
        return True

    @contextmanager
    def freely(self) -> Iterator[None]:
        """Let the query look for input by itself in the `with` block."""
        with self._lock:
            self._statements += 1
            self._before_look = None
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._statements -= 1

    def end(self) -> None:
        """Let the query look for input by itself for good."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        if self._rests_since is not None:
            self._rests_since = None
            self.running.wake()
