"""The materialized views of one process: made, refreshed by statements and by their schedules, shown, dropped.

Each view has one refresh at a time, in this process by its turn (`live.py`), over processes by the transaction of its commits.
Only the process that a view's record names refreshes it by its schedule. The dict of views is never changed, only replaced, so
that the host's ticker need not wait for anybody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from sqlext.clock import Clock, Deadline
from sqlext.errors import NotFoundError, ViewError, WaitTimeoutError
from sqlext.execution.coordination.lease import DEAD_AFTER_SECONDS, Lease
from sqlext.execution.delta import delta_log, target
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.views.creation import ViewRequest
from sqlext.execution.views.graph import node_of_view
from sqlext.execution.views.leftovers import drop_left
from sqlext.execution.views.listing import Listing
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.making import ViewMaker
from sqlext.execution.views.ownership import is_table_of, refuse_as_target
from sqlext.execution.views.registry import (
    Records,
    ViewEvent,
    ViewEventKind,
    ViewRecord,
    ViewRegistry,
    created,
    find,
    of_name,
)
from sqlext.execution.views.rows import ViewRow, sentence
from sqlext.execution.views.scheduler import Scheduler
from sqlext.execution.views.shared_changes import SharedChanges
from sqlext.execution.views.status import StatusFiles
from sqlext.execution.views.takeover import Takeover
from sqlext.execution.views.waves import Waves
from sqlext.execution.views.workers import Workers
from sqlext.plan.lineage import Input, Lineage, shown
from sqlext.plan.view_spec import RefreshPolicy, RefreshReport, Schedule, ViewSpec
from sqlext.quoting import quote_parts
from sqlext.spark import jvm, sessions
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_MOST_WORKERS = 8
_SYNC_SECONDS = 5.0
_CLOSE_SECONDS = 60.0
_STEP_SECONDS = 0.1


class ViewManager:
    """See the module's docstring. Any thread may call it; `tick` is for the host's ticker. The lock guards views and `resumed`.

    Args:
        spark: the host's own session.
        home: where the registry lies.
        lease: of this process.
        clock: for schedules.
        flows: of the process.
        logs: the logs of tables, for the looks at sources.

    Attributes:
        resumed: the names of the views that this process has taken over.
    """

    def __init__(
        self, spark: SparkSession, home: HadoopPath, lease: Lease, clock: Clock, flows: FlowManager, logs: TableLogs
    ) -> None:
        self._spark = spark
        self._logs = logs
        self._home = home
        self._lease = lease
        self._clock = clock
        self._registry = ViewRegistry(home)
        self._files = StatusFiles(home)
        self._shared = SharedChanges(clock)
        self._maker = ViewMaker(spark, home, self._registry, lease, self, flows.records)
        self._lock = threading.Lock()
        self._takeover = Takeover(self._registry, lease, self._maker, flows.records)
        self._live: Mapping[str, LiveView] = {}
        self._scheduled: frozenset[str] = frozenset()  # the ids of those that this process refreshes by their schedules
        cores = int(spark.sparkContext.defaultParallelism)
        self._workers = Workers(min(max(cores, 2), _MOST_WORKERS), "sqlext-view")
        self._waves = Waves(spark, self._registry, flows, self._workers)
        self._listing = Listing(spark, self._registry, self._files, lease, clock, logs, self._waves)
        self._scheduler = Scheduler(self._workers, self._waves.scheduled)
        self._closing = threading.Event()
        self._synced = float("-inf")
        self._took_over: float | None = None  # when this process has last looked for views whose process is gone
        self.resumed: tuple[str, ...] = ()

    # What statements do.

    def create(self, request: ViewRequest, canceled: threading.Event | None = None) -> str:
        """Make a view, and compute it.

        Args:
            request: what the statement wants.
            canceled: set when the client has taken the statement back; what was made is then undone.

        Returns:
            A sentence with its name and number of rows.

        Raises:
            SqlextError, PySparkException: nothing was made then, and nothing that was there is gone.
        """
        said = self._maker.create(request, canceled)
        self._sync()
        return said

    def check(self, request: ViewRequest) -> None:
        """See whether a query can be a view's; raise what `create` raises about it. Nothing is made."""
        with jvm.names_as_in(request.session):
            self._maker.check(request, self._registry.read())

    def refresh(
        self,
        name: tuple[str, ...],
        is_full: bool,
        waits: bool,
        canceled: threading.Event | None = None,
        cascade: bool = False,
    ) -> str:
        """Bring a view up to date.

        Args:
            name: qualified.
            is_full: whether to compute it in full.
            waits: whether to return when it is up to date, and not at once.
            canceled: set when the client takes the statement back.
            cascade: whether to refresh all views that it reads, and all that read it, in one wave with it.

        Returns:
            A sentence with what was done, for each view.

        Raises:
            NotFoundError: there is no such view.
            ViewError: it cannot be refreshed in this process, or the process ends.
            SqlextError, PySparkException: the refresh failed; the view is as it was, and so is what reads it.
        """
        spec = find(self._registry.read(), name).spec
        live = self.live(spec)
        self._lease.beat()
        if not waits:
            if cascade:
                self._waves.begin_chain(spec, self.live, is_full)
            else:
                self._waves.begin(live, is_full)
            return f"materialized view {shown(name)}: the refresh begins; SHOW MATERIALIZED VIEWS tells what became of it"
        if cascade:
            done = self._waves.refresh_chain(spec, self.live, is_full, with_readers=True, canceled=canceled)
            return "; ".join(sentence(each, report) for each, report in done)
        return sentence(spec, live.refresh(is_full, canceled))

    def wait(self, name: tuple[str, ...], seconds: float, canceled: threading.Event) -> str:
        """Refresh a view and the views that it reads, and wait for that; at the deadline the wait ends, and the refresh goes on.

        Args:
            name: qualified.
            seconds: how long to wait.
            canceled: set when the client takes the statement back; the refresh then commits nothing.

        Raises:
            WaitTimeoutError: the refresh has not ended in time.
            NotFoundError, ViewError, SqlextError, PySparkException: see `refresh`.
        """
        spec = find(self._registry.read(), name).spec
        self._lease.beat()
        done = self._waves.refresh_chain(spec, self.live, canceled=canceled, seconds=seconds)
        return next(sentence(each, report) for each, report in done if each.id == spec.id)

    def lineage(self) -> Lineage:
        """Return the graph of all flows and views of the home."""
        return self._waves.look()

    def needed_by(self, name: tuple[str, ...], inputs: tuple[Input, ...], lag: float) -> list[tuple[str, float]]:
        """Return the views below one with a target lag, and the seconds within which they would be refreshed for it."""
        return self._waves.needed_by(name, inputs, lag)

    def is_lagging(self, spec: ViewSpec, report: RefreshReport) -> bool:
        """Return whether a refresh must begin now for a view's target lag to be kept."""
        return self._listing.is_lagging(spec, report)

    def note_reads(self, spec: ViewSpec, reads: tuple[Input, ...]) -> None:
        """Note what a view's query reads now; raise UnsupportedError if it would read itself."""
        if reads != spec.reads:
            self.lineage().refuse_cycle(node_of_view(replace(spec, reads=reads)))
            self._registry.append(partial(self._changed, spec.id, lambda spec: replace(spec, reads=reads)))

    def drop(self, session: SparkSession, name: tuple[str, ...], if_exists: bool) -> str:
        """Drop a view: first its record, then its table, if that still is the view's.

        After a crash in between, the table is left; the same statement drops it.

        Args:
            session: of the client, which knows the table's catalog.
            name: qualified.
            if_exists: whether it is no error that there is none.

        Raises:
            NotFoundError: there is no such view.
            UnsupportedError: the table of that name is no view.
        """
        record = of_name(self._registry.read(), name)
        if record is None:
            return drop_left(session, self._registry, name, if_exists)
        self._registry.append(ViewEvent(record.spec.id, ViewEventKind.DROPPED, host=self._lease.host_id))
        live = self._live.get(record.spec.id)
        self.forget(record.spec.id)
        if live is not None:
            try:
                with live.held(seconds=_CLOSE_SECONDS):
                    pass
            except WaitTimeoutError as error:
                logger.warning("%s It commits nothing.", error)
        text = shown(record.spec.name)
        if is_table_of(session, record.spec):
            session.sql(f"DROP TABLE {quote_parts(record.spec.name)}")
        elif target.exists(session, record.spec.name):
            return f"materialized view {text} dropped; the table {text} stays: it is not the view's. DROP TABLE drops it"
        return f"materialized view {text} dropped"

    def alter(self, name: tuple[str, ...], schedule: Schedule | None = None, policy: RefreshPolicy | None = None) -> str:
        """Change the schedule or the policy of a view; the process that refreshes it learns of it within seconds.

        Raises:
            NotFoundError: there is no such view.
        """
        record = find(self._registry.read(), name)
        changed = [what for what, given in (("schedule", schedule), ("refresh policy", policy)) if given is not None]

        def altered(spec: ViewSpec) -> ViewSpec:
            return replace(spec, schedule=schedule or spec.schedule, policy=policy or spec.policy)

        self._lease.beat()
        self._registry.append(partial(self._changed, record.spec.id, altered))
        if not record.spec.session_bound and self._lease.is_dead(record.host):
            self._registry.append(ViewEvent(record.spec.id, ViewEventKind.TAKEN, host=self._lease.host_id))
        self._sync()
        return f"materialized view {shown(record.spec.name)} altered: {', '.join(changed)}"

    def _changed(self, view_id: str, change: Callable[[ViewSpec], ViewSpec], records: Records) -> ViewEvent:
        record = records.get(view_id)
        if record is None:
            raise NotFoundError("The materialized view was dropped meanwhile.")
        return ViewEvent(view_id, ViewEventKind.ALTERED, host=record.host, spec=change(record.spec).to_json())

    def suspend(self, name: tuple[str, ...], is_stopped: bool) -> str:
        """Stop the refreshes of a view by its schedule, or start them again.

        Raises:
            NotFoundError: there is no such view.
            ViewError: it has no schedule.
        """
        schedule = self.record(name).spec.schedule
        if replace(schedule, is_stopped=False).is_by_hand:
            raise ViewError(
                f"The materialized view {shown(name)} has no schedule: REFRESH MATERIALIZED VIEW refreshes it, and ALTER "
                "MATERIALIZED VIEW .. ADD SCHEDULE gives it one."
            )
        self.alter(name, replace(schedule, is_stopped=is_stopped))
        return f"materialized view {shown(name)} {'stopped' if is_stopped else 'started'}"

    def refuse_as_target(self, session: SparkSession, name: tuple[str, ...]) -> None:
        """Raise NameTakenError if a table that a statement is to write is that of a view; `name` is qualified."""
        refuse_as_target(session, self._registry.read(), name)

    def has(self, name: tuple[str, ...]) -> bool:
        """Return whether there is a view of a qualified name."""
        return of_name(created(self._registry.read()), name) is not None

    def record(self, name: tuple[str, ...]) -> ViewRecord:
        """Return the record of the view of a qualified name; raise NotFoundError if there is none."""
        return find(self._registry.read(), name)

    def views(self, looks: bool = True) -> list[ViewRow]:
        """Return all views of the home, by name.

        Args:
            looks: whether to look at their sources, to say which views are behind.
        """
        return self._listing.rows(self._live, self._is_behind if looks else None)

    def _is_behind(self, spec: ViewSpec) -> bool | None:
        try:
            return self.live(spec).is_behind()
        except ViewError:
            return None  # its session is another process's

    # Life of the process.

    @property
    def has_scheduled(self) -> bool:
        """Whether this process refreshes views by their schedules."""
        return bool(self._scheduled)

    def tick(self) -> None:
        """Hand out what is due, without waiting for anything; the host's ticker calls it. Never raises."""
        try:
            if not self._closing.is_set():
                self._tick()
        except Exception:  # it must not end the ticker of all
            if not self._closing.is_set():
                logger.exception("materialized views: the ticker failed")

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._shared.free_idle()
        live = self._live
        for each in live.values():
            each.cancel_if_asked()
        self._scheduler.hand_out({key: live[key] for key in self._scheduled if key in live}, self._waves.lineage, now)
        if self._took_over is None or now - self._took_over >= DEAD_AFTER_SECONDS:
            self._workers.submit(partial(self.resume, waits=False))
            self._took_over = self._synced = now
        elif live and now - self._synced >= _SYNC_SECONDS:
            self._synced = now
            self._workers.submit(self._sync)

    def resume(self, waits: bool = True) -> list[str]:
        """Undo what a process that is gone has left half created, and take over its views with schedules; see `Takeover`.

        Returns:
            The names of the views.
        """
        taken = [] if self._closing.is_set() else self._takeover.take_over(waits)
        if taken:
            with self._lock:
                self.resumed = (*self.resumed, *taken)
            self._sync()
        return taken

    def _sync(self) -> None:
        """Take in what statements of other processes have changed."""
        records = created(self._registry.read())
        for key, live in self._live.items():
            if (record := records.get(key)) is not None and record.spec != live.spec:
                live.set_spec(record.spec)
            elif record is None and not live.is_running and key not in self._registry.read():
                self.forget(key)
        self._waves.look()
        needs, asked = self._waves.needs, self._waves.asked_elsewhere(records, self._lease.host_id)
        mine = [r.spec for r in records.values() if r.host == self._lease.host_id]
        mine = [spec for spec in mine if not spec.schedule.is_by_hand or spec.id in needs]
        for spec in mine:
            if spec.id in self._live or not spec.session_bound:
                self.live(spec).set_asked(asked.get(spec.id))
        with self._lock:
            self._scheduled = frozenset(spec.id for spec in mine)

    def close(self) -> None:
        """End the refreshes; the next host takes the views over. What runs commits nothing more."""
        self._closing.set()
        self._end(_CLOSE_SECONDS)

    def freeze(self) -> None:
        """Look at no view any more."""
        self._closing.set()

    def abandon(self, timeout: float) -> None:
        """End the refreshes as a killed process would: nothing is recorded; see `Host.abandon`."""
        self._closing.set()
        self._end(timeout)

    def _end(self, timeout: float) -> None:
        live, deadline = tuple(self._live.values()), Deadline(timeout)
        for each in live:
            each.stop()
        while any(each.is_running for each in live) and not deadline.has_passed:
            for each in live:
                each.cancel_if_asked()  # a refresh may begin the next of its jobs
            time.sleep(_STEP_SECONDS)
        self._workers.close(deadline.left)
        self._shared.free_idle(is_all=True)

    # The views of this process.

    def live(self, spec: ViewSpec, session: SparkSession | None = None) -> LiveView:
        """Return a view of this process.

        Args:
            spec: the view.
            session: its session, where it is just being made.

        Raises:
            ViewError: it needs the session of another process.
        """
        with self._lock:
            found = self._live.get(spec.id)
            if found is None:
                if session is None and spec.session_bound:
                    raise ViewError(
                        f"The materialized view {shown(spec.name)} reads {', '.join(spec.session_bound)}, which only the process "
                        "that created it has. Refresh it there, or CREATE OR REPLACE it."
                    )
                make, place = partial(self._session, session), self._partials(spec.id)
                found = LiveView(spec, make, self._files, self._clock, self, self._logs, place, self._shared)
                self._live = {**self._live, spec.id: found}
        if found.spec != spec:
            found.set_spec(spec)
        return found

    def known(self, view_id: str) -> LiveView | None:
        """Return a view of this process, if it was refreshed here."""
        return self._live.get(view_id)

    def forget(self, view_id: str) -> None:
        """Refresh a view no more, and remove its status and its partial results."""
        with self._lock:
            live = self._live.get(view_id)
            self._live = {key: each for key, each in self._live.items() if key != view_id}
            self._scheduled = self._scheduled - {view_id}
        if live is not None:
            live.stop()
        self._files.delete(view_id)
        self._shared.forget(view_id)
        self._partials(view_id).delete()

    def _partials(self, view_id: str) -> HadoopPath:
        return self._home.child("views", "partials", view_id)

    def _session(self, made: SparkSession | None, spec: ViewSpec) -> SparkSession:
        session = made if made is not None else sessions.restored_session(self._spark, spec)
        sessions.prepare(session, self._home.location, partial(delta_log.number_of_files, session, spec.location))
        return session

    def may_commit(self, spec: ViewSpec) -> None:
        """Raise ViewError if this process must not commit to a view: it was dropped, or is being replaced."""
        records = self._registry.read()
        if spec.id not in records:
            raise ViewError(f"The materialized view {shown(spec.name)} was dropped or replaced.")
        if any(each.is_reserved and each.replaces == spec.id for each in records.values()):
            raise ViewError(f"The materialized view {shown(spec.name)} is just being replaced.")
