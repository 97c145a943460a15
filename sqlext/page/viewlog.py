"""What the logs of Delta tables hold of a materialized view: its last refreshes, and how far it is behind its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlext.commands.view_statements import schedule_text
from sqlext.errors import SqlextError
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.views.history import ViewState, report_in, state_in
from sqlext.execution.views.rows import ViewRow
from sqlext.page.commits import CommitLog, LastCommits, time_of
from sqlext.page.shown import shown_view
from sqlext.page.snapshot import RefreshView, SourceView, ViewDetail, ViewSummary
from sqlext.plan.view_spec import SourceVersion, ViewSpec
from sqlext.redaction import Redaction
from sqlext.spark.failures import SPARK_ERRORS, reason_of

_GONE = "The table was dropped or moved: there is none in {}."
_REPLACED = "The table was dropped and created again."
_UNREADABLE = (SqlextError, *SPARK_ERRORS, OSError, ValueError, KeyError, TypeError)
"""The errors of a log that cannot be read, or is torn."""

OpenFolder = Callable[[str], Folder | None]
"""Returns the folder at a location; None if it cannot be read here."""


@dataclass(frozen=True)
class TableState:
    """The state of a view's table, as its log has it.

    Attributes:
        state: its newest version and the report of its last refresh; None: not known.
        last: the last refresh; None: not known.
        problem: why the state is not known; empty: it is.
    """

    state: ViewState | None = None
    last: RefreshView | None = None
    problem: str = ""


class ViewLog:
    """The reader of a view's log and of its sources' logs. Not thread-safe.

    Args:
        spec: the view.
        open_folder: opens the folders of tables.
    """

    def __init__(self, spec: ViewSpec, open_folder: OpenFolder) -> None:
        self._id = spec.id
        self._location = spec.location
        self._table_id = spec.table_id
        self._open = open_folder
        self._logs: dict[str, CommitLog] = {}
        self._state = TableState()
        self._refreshes: LastCommits[RefreshView] | None = None

    def refreshes(self) -> tuple[RefreshView, ...]:
        """Return the last refreshes, oldest first; none if the log cannot be read."""
        try:
            if self._refreshes is None and (table := self._log(self._location)) is not None:
                self._refreshes = LastCommits(table, partial(refresh_of, self._id))
            return () if self._refreshes is None else self._refreshes.read()
        except _UNREADABLE:
            return ()

    def look(self) -> TableState:
        """Return the state of the view's table now."""
        try:
            table = self._log(self._location)
            if table is None:
                return TableState()
            newest = table.newest()
            if newest is None:
                self._state = TableState(problem=_GONE.format(table.location))
            elif self._state.state is None or self._state.state.version != newest:
                self._state = self._read(table, newest)
            return self._state
        except _UNREADABLE as error:
            return TableState(problem=f"The log of the view's table cannot be read: {reason_of(error)}")

    def _read(self, table: CommitLog, newest: int) -> TableState:
        if table.table_id(newest) not in (self._table_id, None):
            return TableState(problem=_REPLACED)
        state = state_in(table.actions, self._id, newest)
        info = None if state.last is None else table.info(state.last.version)
        last = None if state.last is None or info is None else refresh_of(self._id, state.last.version, info)
        return TableState(state, last)

    def sources(self, versions: Mapping[str, SourceVersion]) -> tuple[SourceView, ...]:
        """Return the sources, each with the version that the view has and the newest one."""
        return tuple(self._source(name, version) for name, version in versions.items())

    def _source(self, name: str, version: SourceVersion) -> SourceView:
        shown = SourceView(name, version.version)
        try:
            log = self._log(version.location) if version.location else None
            return shown if log is None else _compared(shown, version, log)
        except _UNREADABLE as error:
            return replace(shown, problem=f"Its log cannot be read: {reason_of(error)}")

    def _log(self, location: str) -> CommitLog | None:
        if location not in self._logs:
            folder = self._open(location)
            if folder is None:
                return None
            self._logs[location] = CommitLog(folder)
        return self._logs[location]


def _compared(shown: SourceView, version: SourceVersion, log: CommitLog) -> SourceView:
    """Compare the version of a source that a view has with the newest one."""
    newest = log.newest()
    if newest is None:
        return replace(shown, problem=_GONE.format(log.location))
    if newest < version.version or log.table_id(newest) not in (version.id, None):
        return replace(shown, newest=newest, problem=_REPLACED)
    return replace(shown, newest=newest, behind_since=log.committed_at(version.version + 1) if newest > version.version else None)


def refresh_of(view_id: str, version: int, info: Mapping[str, Any]) -> RefreshView | None:
    """Return the refresh that made a commit; None if the commit is no refresh of this view."""
    report = report_in(info, view_id, version)
    try:
        at = time_of(info)
    except (ValueError, KeyError, TypeError):
        return None
    if report is None:
        return None
    return RefreshView(
        version=version,
        at=at,
        done=report.done,
        because=report.because,
        rows_in=_counted(report.rows_in),
        rows_deleted=_counted(report.rows_deleted),
        rows_inserted=_counted(report.rows_inserted),
        seconds=report.seconds,
        read=report.read,
    )


def _counted(rows: int) -> int | None:
    return rows if rows >= 0 else None


# The page's values, of live and of stored views.


def view_summary(row: ViewRow, log: ViewLog, show: Redaction) -> ViewSummary:
    """Return a view's entry in the overview.

    Args:
        row: the view, as SHOW MATERIALIZED VIEWS has it.
        log: of the view.
        show: redacts what messages and paths may contain.
    """
    spec, status, found = row.record.spec, row.status, log.look()
    versions = {} if found.state is None or found.state.last is None else found.state.last.sources
    return ViewSummary(
        id=spec.id,
        name=row.name,
        target=".".join(spec.name),
        status=row.state,
        policy=spec.policy.value,
        schedule=schedule_text(spec.schedule) or "",
        last=None if found.last is None else _shown_refresh(found.last, show),
        sources=tuple(
            replace(each, name=show.message(each.name), problem=show.message(each.problem)) for each in log.sources(versions)
        ),
        error=show.message(status.error or found.problem),
        next_try=status.next_try,
        note=_note(spec, found.state),
    )


def view_detail(row: ViewRow, log: ViewLog, show: Redaction) -> ViewDetail:
    """Return a view's page; the arguments are those of `view_summary`."""
    return ViewDetail(
        summary=view_summary(row, log, show),
        query=shown_view(row.record.spec, show).query,
        since=row.record.since,
        refreshes=tuple(_shown_refresh(each, show) for each in log.refreshes()),
    )


def _shown_refresh(refresh: RefreshView, show: Redaction) -> RefreshView:
    return replace(refresh, because=show.message(refresh.because))


def _note(spec: ViewSpec, state: ViewState | None) -> str:
    """Return a remark on a view: what binds it to its process, and who else has changed its rows."""
    said = [f"can be refreshed only by its own process: reads {', '.join(spec.session_bound)}"] if spec.session_bound else []
    if state is not None and state.foreign:
        said.append(f"{state.foreign} of the view's table is not a refresh: the next refresh is in full")
    return "; ".join(said)
