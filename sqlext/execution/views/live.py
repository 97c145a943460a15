"""A materialized view as this process refreshes it: its session, one refresh at a time, and what became of the last ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

from pyspark.sql import SparkSession

from sqlext.clock import Clock, Deadline
from sqlext.errors import StatementCanceledError, ViewError, WaitTimeoutError
from sqlext.execution.coordination.runs import Query, RunEvent, RunKind, Runnable, RunState, tell
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.flows import faults
from sqlext.execution.views.looks import Looks
from sqlext.execution.views.partial_table import PartialTable
from sqlext.execution.views.refresh import Owner, Refresher
from sqlext.execution.views.shared_changes import SharedChanges
from sqlext.execution.views.status import StatusFiles, ViewStatus
from sqlext.execution.views.timetable import Due, Timetable
from sqlext.execution.views.writing import Replacement
from sqlext.logs import Subject, logged
from sqlext.plan.lineage import Input, shown
from sqlext.plan.view_spec import RefreshReport, SourceVersion, ViewSpec
from sqlext.spark import failures, jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_STEP_SECONDS = 0.1
_TURN_SECONDS = 24 * 3600.0
"""How long a statement waits for the refresh before its own; the client may cancel it at any time."""


@dataclass(frozen=True)
class _Run:
    """A refresh.

    Attributes:
        begun: when it began, by the machine's monotonic clock.
        is_full: whether it computes the view in full.
        canceled: set when the client of its statement cancels it.
        replacement: see `Refresher`.
        pins: see `Refresher.refresh`; None: all sources are at their newest version.
    """

    begun: float
    is_full: bool
    canceled: threading.Event | None
    replacement: Replacement | None = None
    pins: Mapping[str, SourceVersion] | None = None


class LiveView:
    """See the module's docstring. Any thread may call it.

    The turn is a lock: who holds it uses the session and the refresher, which are not thread-safe. The state's lock, never held
    for long, guards the rest.

    Args:
        spec: the view.
        make_session: makes the view's session, when it is first needed.
        files: where the status is kept.
        clock: for the timetable.
        owner: keeps the view's record.
        logs: the logs of tables, for the looks at the view's sources.
        partials: the folder of the table of partial results beside the view, which need not exist.
        shared: the changes that are read for all views.
    """

    def __init__(
        self,
        spec: ViewSpec,
        make_session: Callable[[ViewSpec], SparkSession],
        files: StatusFiles,
        clock: Clock,
        owner: Owner,
        logs: TableLogs,
        partials: HadoopPath,
        shared: SharedChanges,
    ) -> None:
        self._spec = spec
        self.subject: Subject = {"view": ".".join(spec.name)}
        self._place = partials
        self._shared = shared
        self._make_session = make_session
        self._files = files
        self._clock = clock
        self._owner = owner
        self._looks = Looks(logs)
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._session: SparkSession | None = None
        self._refresher: Refresher | None = None
        self._running: _Run | None = None
        self._last: tuple[_Run, RefreshReport] | None = None
        self._status = files.read(spec.id)
        since = None if self._status.at is None else max((clock.now() - self._status.at).total_seconds(), 0.0)
        self._timetable = Timetable(spec.schedule, clock.monotonic(), since)
        self._is_closed = threading.Event()
        self.is_queued = False  # set by the host's ticker, cleared by the thread that has done what was due

    @property
    def spec(self) -> ViewSpec:
        """The view."""
        return self._spec

    @property
    def is_running(self) -> bool:
        """Whether it is being refreshed."""
        return self._running is not None

    @property
    def status(self) -> ViewStatus:
        """What became of the last refreshes in this process."""
        return self._status

    def due(self, now: float) -> Due:
        """Return what is due."""
        with self._state:
            return Due.NOTHING if self._is_closed.is_set() else self._timetable.due(now)

    def may_follow(self, now: float) -> bool:
        """Return whether it may be refreshed with others of its chain."""
        with self._state:
            return not self._is_closed.is_set() and self._timetable.may_follow(now)

    def note_held_back(self) -> None:
        """Note that it was not refreshed since one that it reads has failed: it is tried again after a pause, as that one is."""
        with self._state:
            self._timetable.note_failure(self._clock.monotonic())

    def set_asked(self, lag: float | None) -> None:
        """Note the target lag for which views of other processes need it, in seconds; None: its own schedule is enough."""
        with self._state:
            schedule = self._spec.schedule if lag is None else replace(self._spec.schedule, target_lag=lag)
            if schedule != self._timetable.schedule:
                self._timetable = self._timetable.with_schedule(schedule)

    def set_spec(self, spec: ViewSpec) -> None:
        """Take another definition of the same view, from the next refresh on."""
        with self._state:
            if spec.schedule != self._spec.schedule:
                self._timetable = self._timetable.with_schedule(spec.schedule)
            self._spec = spec
            self._refresher = None

    @logged
    def refresh(
        self,
        is_full: bool = False,
        canceled: threading.Event | None = None,
        pins: Mapping[str, SourceVersion] | None = None,
    ) -> RefreshReport:
        """Bring the view up to date. A refresh that another thread begins after this call is as good, and is waited for.

        Args:
            is_full: whether to compute it in full.
            canceled: set when the client takes the statement back.
            pins: see `Refresher.refresh`.

        Raises:
            ViewError: the view was dropped, replaced, or is refreshed elsewhere.
            StatementCanceledError: the client took the statement back.
            SqlextError, PySparkException: the refresh failed.
        """
        asked = time.monotonic()
        with self.held(canceled):
            last = self._last
            is_as_good = last is not None and last[0].begun >= asked and (last[0].is_full or not is_full)
            if last is not None and is_as_good and pins is None and last[0].pins is None:
                return last[1]
            return self._refresh(_Run(time.monotonic(), is_full, canceled, pins=pins))

    @logged
    def make(self, replacement: Replacement | None, canceled: threading.Event | None) -> RefreshReport:
        """Compute a view that is just being created.

        Args:
            replacement: the table whose place the view's takes with this refresh; None: the view's own is there, and empty.
            canceled: set when the client takes the statement back.

        Raises:
            SqlextError, PySparkException: the refresh failed.
        """
        with self.held(canceled):
            return self._refresh(_Run(time.monotonic(), True, canceled, replacement))

    @contextmanager
    def held(self, canceled: threading.Event | None = None, seconds: float = _TURN_SECONDS) -> Iterator[None]:
        """Have no refresh run within the block.

        Args:
            canceled: set when the client waits no longer.
            seconds: how long to wait for the one that runs.

        Raises:
            StatementCanceledError: the client took the statement back.
            WaitTimeoutError: the refresh that runs has not ended in time.
        """
        deadline = Deadline(seconds)
        while not self._turn.acquire(timeout=min(_STEP_SECONDS, max(deadline.left, 0.001))):
            if canceled is not None and canceled.is_set():
                raise StatementCanceledError("The statement was canceled.")
            if deadline.has_passed:
                raise WaitTimeoutError(f"The refresh of {shown(self._spec.name)} has not ended within {seconds:g} s.")
        try:
            yield
        finally:
            self._turn.release()

    @logged
    def is_behind(self) -> bool | None:
        """Return whether a source has changed since the last refresh; None: it is being refreshed, or it cannot be said."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            with jvm.active(self.session):
                return self._current().is_behind()
        except Exception as error:  # noqa: BLE001  # whatever a source or the catalog has, a list of views is shown
            name, reason = shown(self._spec.name), failures.reason_of(error)
            logger.info("whether materialized view %s is behind is not known: %s", name, reason)
            return None
        finally:
            self._turn.release()

    @logged
    def look(self) -> None:
        """See whether a source has changed; if so, a refresh is due from now on. Never raises: a failure is noted."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            with self._state:
                self._timetable.note_look(self._clock.monotonic())
            is_behind = self._is_due()
            with self._state:
                self._timetable.note_looked(is_behind)
        except Exception as error:  # noqa: BLE001  # one view's trouble must not stop the others
            self._note_failure(error)
        finally:
            self._turn.release()

    def _is_due(self) -> bool:
        """Return whether a source has changed, or, with a target lag, whether a change is so old that it must come now.

        That the query means something else is a change whose age nobody knows, and so comes at once.
        """
        report, spec = self._status.report, replace(self._spec, schedule=self._timetable.schedule)
        if spec.schedule.target_lag is not None and report is not None:
            with jvm.active(self.session):
                return self._owner.is_lagging(spec, report) or self._looks.is_other(self._current())
        return self._looks.is_behind(self._current())

    @logged
    def refresh_by_itself(self, is_full: bool = False, pins: Mapping[str, SourceVersion] | None = None) -> RefreshReport | None:
        """Bring the view up to date while nobody waits for it. Never raises: a failure is noted, and tried again.

        Returns:
            None: it has failed.
        """
        try:
            return self.refresh(is_full, pins=pins)
        except Exception as error:  # one view's trouble must not stop the others
            is_told = faults.is_told(error)
            logger.error("materialized view %s: %s", shown(self._spec.name), faults.message_of(error), exc_info=not is_told)
            return None

    def stop(self) -> None:
        """Refresh the view no more; what runs commits nothing."""
        self._is_closed.set()
        self._cancel_jobs()

    def cancel_if_asked(self) -> None:
        """Cancel the Spark jobs of a refresh that its client has canceled, or whose view is stopped; for the host's ticker."""
        running = self._running
        if running is not None and (self._is_closed.is_set() or (running.canceled is not None and running.canceled.is_set())):
            self._cancel_jobs()

    @property
    def session(self) -> SparkSession:
        """The view's own session, made when it is first needed. The turn is held, or nobody else knows the view yet."""
        if self._session is None:
            self._session = self._make_session(self._spec)
        return self._session

    def _current(self) -> Refresher:
        """Return what refreshes the view as it is defined now. The turn is held."""
        made = self._refresher or self._made_refresher(None)
        with self._state:
            if self._refresher is None:
                self._refresher = made
            return self._refresher

    def _made_refresher(self, replacement: Replacement | None) -> Refresher:
        partials = PartialTable(self.session, self._place, shown(self._spec.name), self._spec.id)
        return Refresher(self.session, self._spec, partials, self._shared, self._owner, replacement)

    def _refresh(self, run: _Run) -> RefreshReport:
        """Refresh; the turn is held."""
        with self._state:
            self._running = run
            self._timetable.note_begun(self._clock.monotonic())
        tell(RunEvent(self._spec.id, RunState.BEGUN, runnable(self._spec)))
        try:
            session = self.session
            self._check(run)
            description = f"sqlext: refresh of {shown(self._spec.name)}"
            with jvm.active(session), jvm.described(session, description, self._spec.id):
                made = None if run.replacement is None else self._made_refresher(run.replacement)
                report = (made or self._current()).refresh(run.is_full, lambda: self._check(run), run.pins)
        except BaseException as error:
            is_canceled = run.canceled is not None and run.canceled.is_set()
            end = RunState.STOPPED if is_canceled or self._is_closed.is_set() else RunState.FAILED
            tell(RunEvent(self._spec.id, end, error=faults.message_of(error)))
            if is_canceled:
                with self._state:
                    self._timetable.note_canceled()
                raise StatementCanceledError("The statement was canceled.") from None
            if not self._is_closed.is_set():
                self._note_failure(error)
            raise
        finally:
            with self._state:
                self._running = None
        tell(RunEvent(self._spec.id, RunState.COMPLETED, rows=_rows_of(report), report=report))
        self._note_success(run, report)
        return report

    def _check(self, run: _Run) -> None:
        if run.canceled is not None and run.canceled.is_set():
            raise StatementCanceledError("The statement was canceled.")
        if self._is_closed.is_set():
            raise ViewError(
                f"The materialized view {shown(self._spec.name)} is not refreshed any more: it was dropped, or its process ends."
            )
        self._owner.may_commit(self._spec)

    def _cancel_jobs(self) -> None:
        if self._session is not None and self._running is not None:
            self._session.sparkContext.cancelJobGroup(self._spec.id)

    def _note_success(self, run: _Run, report: RefreshReport) -> None:
        with self._state:
            self._timetable.note_success()
            self._last = (run, report)
            before = self._status
            has_committed = before.report is None or before.report.version != report.version
            if has_committed:
                self._status = ViewStatus(report, self._clock.now())
            else:
                self._status = replace(before, error="", next_try=None)
        if self._status != before:
            self._write()

    def _note_failure(self, error: BaseException) -> None:
        with self._state:
            pause = self._timetable.note_failure(self._clock.monotonic())
            next_try = None if pause is None else self._clock.now() + timedelta(seconds=pause)
            self._status = replace(self._status, error=faults.message_of(error), next_try=next_try)
        self._write()

    def _write(self) -> None:
        """Write the status for other processes; that it cannot be written must not hide what the refresh has done."""
        try:
            self._files.write(self._spec.id, self._status)
        except Exception as error:
            logger.exception("the status of materialized view %s cannot be written: %s", shown(self._spec.name), error)


def runnable(spec: ViewSpec) -> Runnable:
    """Return a view as what runs: each refresh is a run."""
    query = None if spec.session_bound else Query(spec.query, names=spec.columns)
    target = Input(spec.name, spec.location)
    return Runnable(spec.id, RunKind.VIEW, spec.name, spec.text, target, (), spec.reads, query, spec)


def _rows_of(report: RefreshReport) -> int | None:
    """Return the number of rows that a refresh has written; None: not counted."""
    return None if report.rows_inserted < 0 else report.rows_inserted
