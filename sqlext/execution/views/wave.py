"""A wave: views that are refreshed over one cut, each after those of the wave that it reads.

All of the wave read the same versions of what lies outside of it, the newest ones that are at one cut; of the wave's own views,
the versions that the wave has made. What does not depend on one another runs side by side. A view that fails holds back those
below it, and no others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.errors import StatementCanceledError, ViewError
from sqlext.execution.views.cuts import Cuts
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.workers import Workers
from sqlext.plan.cut import NoSharedCut, TableHistory, shared_cut
from sqlext.plan.lineage import Input, Lineage, place, shown
from sqlext.plan.view_spec import RefreshReport, SourceVersion, ViewSpec
from sqlext.spark import delta_tables, failures, jvm

logger = logging.getLogger(__name__)

Pins = Mapping[str, SourceVersion]
Refresh = Callable[[LiveView, Pins], RefreshReport | None]
"""Refreshes a view over some versions; None: it has failed, and that is noted."""
_STEP_SECONDS = 0.1
_FLUSH_SECONDS = 600.0  # for all flows below a wave; then it goes on with what their tables have


def process_ends(spec: ViewSpec) -> ViewError:
    """Return the error of a refresh that nobody does any more."""
    return ViewError(f"The materialized view {shown(spec.name)} is not refreshed any more: its process ends.")


class Wave:
    """See the module's docstring. The lock guards all that changes; the pins are only replaced, so a refresh keeps those it got.

    Args:
        session: reads logs.
        lineage: the graph.
        views: the views of the wave, by their keys in the graph.
        refresh: refreshes one.
        workers: do so.
        free: returns those of some tables outside of the wave, by key, whose age holds nobody back: nobody brings them forward.
        end: called when the wave has ended.
        before: called one after the other before the cut is found: each brings a flow that the views read up to date, until a
            deadline that they share.

    Attributes:
        reports: what became of the views, by their keys.
        errors: of those that have failed.
        held_back: the names of the views that have failed above others, by the keys of these, which were not refreshed.
    """

    def __init__(
        self,
        session: SparkSession,
        lineage: Lineage,
        views: Mapping[str, LiveView],
        refresh: Refresh,
        workers: Workers,
        free: Callable[[Iterable[str]], AbstractSet[str]],
        end: Callable[[], None] = lambda: None,
        before: Sequence[Callable[[Deadline], None]] = (),
    ) -> None:
        self._session = session
        self._lineage = lineage
        self._views = views
        self._refresh = refresh
        self._workers = workers
        self._free = free
        self._end = end
        self._before = before
        self._lock = threading.Lock()
        self._above = {key: {*lineage.upstream([key])} & views.keys() - {key} for key in views}
        self._waits_for = {key: set(above) for key, above in self._above.items()}
        self._left = set(views)
        self._running = 0
        self._pins: Pins = {}
        self._ended = threading.Event()
        self.reports: dict[str, RefreshReport] = {}
        self.errors: dict[str, BaseException] = {}
        self.held_back: dict[str, str] = {}

    def begin(self) -> None:
        """Find the cut, and hand the first views to the workers; the others follow. Never raises."""
        deadline = Deadline(_FLUSH_SECONDS)
        for flush in self._before:
            try:
                flush(deadline)
            except Exception as error:  # noqa: BLE001  # of one flow, which says itself what is wrong with it
                logger.warning("a flow below a wave of %d views was not flushed: %s", len(self._views), failures.reason_of(error))
        try:
            with jvm.active(self._session):
                self._pins = self._found()
        except Exception as error:  # noqa: BLE001  # also of a torn log: each view's refresh says what is wrong with its sources
            logger.warning("no cut was found for a wave of %d views: %s", len(self._views), failures.reason_of(error))
        self._hand_out()

    def wait(self, canceled: threading.Event | None, seconds: float) -> bool:
        """Return whether the wave has ended within some seconds; it goes on if not.

        Raises:
            StatementCanceledError: the client took the statement back; views that have not begun are left out.
        """
        deadline = Deadline(seconds)
        while not self._ended.wait(min(_STEP_SECONDS, max(deadline.left, 0.001))):
            if canceled is not None and canceled.is_set():
                with self._lock:
                    self._left.clear()
                raise StatementCanceledError("The statement was canceled.")
            if deadline.has_passed:
                return False
        return True

    # The order.

    def _hand_out(self) -> None:
        with self._lock:
            ready = [key for key in self._views if key in self._left and not self._waits_for[key]]
            self._left -= set(ready)
            self._running += len(ready)
            is_over = not self._running and not self._ended.is_set()
            if is_over:
                self._ended.set()
        if is_over:
            self._end()
        for key in ready:
            if not self._workers.submit(partial(self._run, key)):
                self.errors[key] = process_ends(self._views[key].spec)
                self._done(key, None)

    def _run(self, key: str) -> None:
        report: RefreshReport | None = None
        try:
            report = self._refresh(self._views[key], self._pins)
        except Exception as error:  # noqa: BLE001  # who waits for the wave raises it
            self.errors[key] = error
        finally:
            self._done(key, report)

    def _done(self, key: str, report: RefreshReport | None) -> None:
        spec = self._views[key].spec
        below: set[str] = set()
        with self._lock:
            self._running -= 1
            if report is None:
                below = {each for each in self._left if key in self._above[each]}
                self.held_back |= dict.fromkeys(below, shown(spec.name))
                self._left -= below
            else:
                self.reports[key] = report
                made = SourceVersion(spec.table_id, report.version, spec.location)
                self._pins = {**self._pins, place(spec.location): made}
            for waits in self._waits_for.values():
                waits.discard(key)
        if not isinstance(self.errors.get(key), StatementCanceledError):
            for each in below:
                self._views[each].note_held_back()
        self._hand_out()

    # The cut.

    def _found(self) -> Pins:
        """Return the versions of all tables outside of the wave, by their places: the newest that are at one cut."""
        cuts, newest = Cuts(self._session), self._newest()
        free = self._free(newest)
        tables = {where: each for where, each in newest.items() if where not in free}
        least = self._least()
        histories = [
            TableHistory(name, partial(cuts.history, name, at), least.get((where, at.id), 0))
            for where, (name, at) in tables.items()
        ]
        pins = {where: at for where, (_, at) in newest.items()}
        try:
            found = shared_cut(histories)
        except NoSharedCut as because:
            logger.info("a wave of %d views is at no single cut: %s", len(self._views), because)
            return pins
        return {**pins, **{w: replace(pins[w], version=each.version) for w, each in zip(tables, found, strict=True)}}

    def _newest(self) -> dict[str, tuple[str, SourceVersion]]:
        """Return the name and the newest version of each Delta table outside of the wave that its views read."""
        outside: dict[str, Input] = {}
        for view in self._views.values():
            for read in view.spec.reads:
                if read.location and self._lineage.key_of(read) not in self._views:
                    outside[place(read.location)] = read
        found: dict[str, tuple[str, SourceVersion]] = {}
        for where, read in outside.items():
            snapshot = delta_tables.snapshot(self._session, read.location)
            if int(snapshot.version()) >= 0:
                at = SourceVersion(str(snapshot.metadata().id()), int(snapshot.version()), read.location)
                found[where] = (shown(read.name), at)
        return found

    def _least(self) -> dict[tuple[str, str], int]:
        """Return the newest version of each table, by place and id, that a view of the wave has read: it never goes back."""
        found: dict[tuple[str, str], int] = {}
        for view in self._views.values():
            report = view.status.report
            for each in () if report is None else report.sources.values():
                key = (place(each.location), each.id)
                found[key] = max(found.get(key, 0), each.version)
        return found
