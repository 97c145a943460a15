"""The flows of one process: made, resumed, watched, stopped.

Statements call the manager from any thread; those that change the flows of one table take turns (`live_flows.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from sqlext.clock import Clock, Deadline
from sqlext.errors import FlowError, NotFoundError, OptionError, RunsElsewhereError, SqlextError, UnsupportedError
from sqlext.execution.coordination.fence import Fence
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import target
from sqlext.execution.flows import alteration, file_columns, prerequisites, redefinition, replay, runs, source_changes
from sqlext.execution.flows.creation import FlowRequest, create_quarantines, same_name
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.going_back import FlowSavepoints
from sqlext.execution.flows.live_flows import LiveFlows, resumed_if_undone
from sqlext.execution.flows.making import FlowMaker
from sqlext.execution.flows.registry import (
    EventKind,
    FlowEvent,
    FlowRecord,
    FlowRegistry,
    FlowState,
    Records,
    current,
    find,
    find_table,
    still_there,
)
from sqlext.execution.flows.retries import Retries
from sqlext.execution.flows.savepoints import content_of
from sqlext.execution.flows.state_choice import FIXED
from sqlext.execution.flows.status import FlowPhase, PrerequisiteStatus
from sqlext.execution.flows.supervisor import FlowSupervisor
from sqlext.execution.flows.views import FlowView, FlowViews, LocalView
from sqlext.execution.streaming.source_watch import SourceWatch
from sqlext.logs import about
from sqlext.options import TARGET_LAG
from sqlext.plan.constraints import Constraint
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import failures, jvm, sessions
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_FLUSH_PATIENCE = timedelta(minutes=10)


class FlowManager:
    """See the module's docstring.

    Args:
        spark: the host's own session.
        home: where checkpoints, buffers and the registry lie.
        lease: of this process.
        clock: for flush intervals, and the next tries of flows that failed.
    """

    def __init__(self, spark: SparkSession, home: HadoopPath, lease: Lease, clock: Clock, watch: SourceWatch) -> None:
        self._watch = watch
        self._spark = spark
        self._home = home
        self._lease = lease
        self._clock = clock
        self._registry = FlowRegistry(home, runs.written)
        self._live = LiveFlows(self._registry)
        self.turn_at = self._live.turn_at
        self._maker = FlowMaker(spark, home, self._registry, lease, self, self._live)
        self._retries = Retries(clock)
        self.savepoints = FlowSavepoints(home, self._registry, lease, self, self._live, clock)
        self._views = FlowViews(self._registry, lease, self._retries, lambda: self._live.all)
        self._supervisor = FlowSupervisor(self, self._registry, lease, self._retries, self._live)
        self._closing = threading.Event()

    # Life of the process.

    def resume(self) -> list[str]:
        """Resume the flows that were running or waiting for a retry when their host ended, and return their names.

        A flow that cannot start is marked as failed, or retried if the fault may pass; the others are not affected.
        """
        self._maker.sweep()
        active = [record for record in self._registry.read().values() if record.is_active]
        dead = {host for host in {record.host for record in active} if self._lease.is_dead(host)}
        return [each.spec.name for each in active if each.host in dead and self._supervisor.resume(each)]

    def close(self) -> None:
        """Stop all flows of this process, flushed; the registry keeps them as running, for the next host."""
        self._supervisor.close()
        self._closing.set()
        stopped: set[Flow] = set()
        while left := [flow for flow in self._live.all.values() if flow not in stopped]:  # and what statements start meanwhile
            for flow in left:
                with self._live.turn_at(flow.spec.target):
                    self._close(flow)
                stopped.add(flow)

    def _close(self, flow: Flow) -> None:
        """Stop a flow that stays in sight: `local_views` shows what its last flush did."""
        try:
            flow.stop()
        except (SqlextError, *failures.SPARK_ERRORS) as error:
            logger.error("flow %s did not stop cleanly: %s", flow.spec.name, failures.reason_of(error))

    def freeze(self) -> None:
        """Look at no flow any more; their streams go on."""
        self._supervisor.close()

    def abandon(self, timeout: float) -> None:
        """End the flows' threads as a killed process would; see `Host.abandon`."""
        for flow in self._live.all.values():
            flow.abandon(timeout)

    # What statements do.

    def create(self, request: FlowRequest, canceled: threading.Event | None = None) -> str:
        """Make a flow and start it.

        Args:
            canceled: set when the client has taken the statement back; what was made is then undone.

        Returns:
            A sentence with its name and id.

        Raises:
            SqlextError, PySparkException: nothing was made then, and nothing that was there is gone.
        """
        with jvm.names_as_in(request.session):
            name = target.qualified(request.session, request.table)
            with self._live.turn_at(name):
                return self._maker.create(request, name, canceled)

    def refresh(self, name: tuple[str, ...]) -> str:
        """Start the flow of a streaming table, unless it runs."""
        with self._live.turn_at(name):
            record = self.record_of_table(name)
            return f"flow {record.spec.name} {'restarted' if self.start_record(record) else 'keeps running'}"

    def record_of_table(self, name: tuple[str, ...]) -> FlowRecord:
        """Return the record of the flow that created a streaming table, by qualified name; raise NotFoundError if none did."""
        return find_table(self._registry.read(), name)

    def session_of(self, spec: FlowSpec) -> SparkSession:
        """Return a session like the flow's own."""
        return jvm.clone_session(self.session_for_start(spec))

    def start(self, name: tuple[str, ...]) -> str:
        """Start a flow that was stopped or has failed."""
        with self._live.turn_of(name) as record:
            if not self.start_record(record):
                return f"flow {record.spec.name} runs already"
            return f"flow {record.spec.name} ({record.spec.id}) started"

    def start_record(self, record: FlowRecord) -> bool:
        """Start a flow; False: it runs already."""
        flow = self._live.get(record.spec.id)
        if flow is not None and flow.is_running:
            return False
        if record.is_active and self._lease.is_elsewhere(record.host):
            raise RunsElsewhereError(f"Flow `{record.spec.name}` runs in another process. STOP it there first.")
        self.run(record.spec, self.session_for_start(record.spec), self.options_of(record.spec))
        return True

    def stop(self, name: tuple[str, ...], canceled: threading.Event | None = None) -> str:
        """Stop a flow, flushed; it stays stopped until START FLOW.

        A flow that is just being started or stopped, which may take long, is interrupted.

        Args:
            canceled: set when the client waits no longer; its last flush is then interrupted.
        """
        self._live.interrupt(find(self._registry.read(), name).spec.id)
        with self._live.turn_of(name) as record:
            flow = self.here(record)
            if flow is not None:
                with self._live.busy_with(flow):
                    flow.stop(canceled)
                flow.forgive()
            self._retries.drop(record.spec.id)
            self._note_stopped(record)  # also of a start that has failed
            is_partial = flow is not None and flow.work.is_interrupted
            late = "; its last flush was interrupted, and what it held comes with the next start" if is_partial else ""
            return f"flow {record.spec.name} stopped{late}"

    def _note_stopped(self, record: FlowRecord) -> None:
        if record.is_active and record.host != self._lease.host_id:  # its host is taken for dead, but may only be paused
            self._take_stopped(record.spec)
        else:
            self.record(record.spec.id, EventKind.STOPPED, epoch=record.epoch)

    def _take_stopped(self, spec: FlowSpec) -> FlowRecord:
        taken = self._registry.append(partial(self._taken, EventKind.STOPPED, spec))[spec.id]
        self.fence(spec, taken.epoch).take()
        return taken

    def flush(self, name: tuple[str, ...]) -> str:
        """Flush a flow of this process now."""
        flow = self._running(name, _FLUSH_PATIENCE)
        flow.flush()
        return f"flow {flow.spec.name} flushed"

    def wait(self, name: tuple[str, ...], timeout: timedelta) -> str:
        """Return when all that had arrived is in the target."""
        record = find(self._registry.read(), name)
        if record.state is FlowState.DONE:
            return f"flow {record.spec.name} is done"
        deadline = Deadline(timeout.total_seconds())
        flow = self._supervisor.wait(self._running(name, timeout), timedelta(seconds=deadline.left))
        self._supervisor.note_done(flow)  # now, and not with the next tick: after a crash it is not run again
        return f"flow {flow.spec.name} is up to date"

    def flush_for_lag(self, flow_id: str, deadline: Deadline) -> None:
        """Bring what has arrived into a flow's table, if it runs in this process and has a target lag; others keep their pace.

        Raises:
            SqlextError, PySparkException: it could not.
        """
        flow = self._live.get(flow_id)
        if flow is not None and flow.is_running and flow.options.flow[TARGET_LAG] is not None:
            flow.wait(timedelta(seconds=deadline.left))

    def drop(self, name: tuple[str, ...], if_exists: bool) -> str:
        """Stop a flow and remove its record; its target stays."""
        try:
            find(self._registry.read(), name)
        except NotFoundError:
            if if_exists:
                return f"there is no flow {'.'.join(name)}"
            raise
        with self._live.turn_of(name) as record:
            self.end(self.here(record))
            self.forget(record.spec)
            return f"flow {record.spec.name} dropped; its target {'.'.join(record.spec.target)} stays"

    def alter(self, name: tuple[str, ...], properties: Mapping[str, str], first: Callable[[], object] = lambda: None) -> str:
        """Set options, after `first`, which may be refused, too; they apply at once to a flow that runs here."""
        with self._live.turn_of(name) as record:
            if (key := next((each for each in FIXED if each in properties), None)) is not None:
                raise OptionError(
                    f"The state of flow `{record.spec.name}` stays as it is: `{key}` is for new flows. CREATE OR REPLACE its "
                    "streaming table with it."
                )
            spec = record.spec.with_properties(properties)
            self.alter_record(record, spec, self.options_of(spec), first)  # which refuses what is unknown or out of range
            return f"flow {spec.name} altered: {', '.join(sorted(properties))}"

    def change_query(self, name: tuple[str, ...], request: FlowRequest, canceled: threading.Event) -> str:
        """Give the flow of a streaming table another query, in place.

        Args:
            name: of the flow, qualified.
            request: with the new query, analysed in a session like the flow's.
            canceled: set when the client waits no longer.
        """
        with self._live.turn_of(name) as record:
            try:
                said = self._maker.change_query(record, request, canceled)
            except UnsupportedError as error:
                raise redefinition.refusal(record.spec, error) from None
            return f"flow {record.spec.name} ({record.spec.id}) altered: {said}"

    def constrain(self, table: tuple[str, ...], constraints: tuple[Constraint, ...]) -> None:
        """Give all flows into a table, by its qualified name, other constraints on its rows; those that run are restarted."""
        with self._live.turn_at(table):
            # the table's own flow comes last: as long as it has others, the statement that a crash has interrupted goes on
            for record in sorted(current(self._registry.read()), key=lambda each: each.spec.owns_target):
                if same_name(record.spec.target, table) and record.spec.constraints != constraints:
                    spec = record.spec.with_constraints(constraints)
                    create_quarantines(self.session_of(spec), spec)
                    self.alter_record(record, spec, self.options_of(spec))

    def alter_record(
        self, record: FlowRecord, spec: FlowSpec, options: FlowOptions, first: Callable[[], object] = lambda: None
    ) -> None:
        """Record a flow's options, and apply them to the running flow; `first` as for `alter`."""
        flow = self.here(record)
        alteration.refuse_begun(self._home.child("flows", spec.id), spec)
        file_columns.check(self.session_of, spec, options.flow)
        first()
        if flow is None or not flow.is_running or flow.set_options(spec, options):
            self._registry.alter(spec)
            return
        with resumed_if_undone(self.run, record, flow):
            flow.stop()
            self._registry.alter(spec)
        self.run(spec, flow.session, options)

    def records(self) -> Records:
        """Return the record of each flow of the home, by id."""
        return self._registry.read()

    def views(self) -> list[FlowView]:
        """Return all flows of the home, by name."""
        return self._views.all()

    def view(self, name: tuple[str, ...]) -> FlowView:
        """Return the flow of a qualified name."""
        return self._views.one(name)

    def local_views(self) -> list[LocalView]:
        """Return the flows of this process. Nothing is read from storage, so this may be called often."""
        return self._views.local()

    def prerequisites_of(self, view: FlowView) -> tuple[PrerequisiteStatus, ...]:
        """Return the prerequisites of a flow, even if it does not run here."""
        if view.progress is not None:
            return view.progress.prerequisites
        home = content_of(self._home.child("flows", view.record.spec.id), view.record.spec)
        return tuple(prerequisites.recorded(self._spark, home, each.name) for each in view.record.spec.prerequisites)

    def options_of(self, spec: FlowSpec) -> FlowOptions:
        """Return a flow's options, resolved from its record."""
        return FlowOptions.of_spec(spec, partial(jvm.parse_duration, self._spark))

    def end(self, flow: Flow | None) -> None:
        """Stop a flow whose buffered rows are not needed, or are found again by the next start; its last flush may fail."""
        try:
            if flow is not None:
                flow.stop()
        except (SqlextError, *failures.SPARK_ERRORS) as error:
            logger.warning("flow %s did not stop cleanly: %s", flow.spec.name if flow else "", failures.reason_of(error))

    def let_go(self, flow_id: str) -> None:
        """Forget what this process has of a flow, which has ended."""
        self._live.let_go(flow_id)
        self._retries.drop(flow_id)

    def forget(self, spec: FlowSpec) -> None:
        self.let_go(spec.id)
        self.record(spec.id, EventKind.DROPPED)
        self._home.child("flows", spec.id).delete()

    # Running.

    def run(self, spec: FlowSpec, session: SparkSession, options: FlowOptions) -> None:
        """Start a flow, as the next driver of it, in the turn at its table.

        Raises:
            FlowError: this process is ending.
        """
        if self._closing.is_set():
            raise FlowError(f"Flow `{spec.name}` is not started: this process is ending.")
        home = self._home.child("flows", spec.id)
        if (note := alteration.note_in(home)) is not None and self._lease.is_elsewhere(note.host):
            raise FlowError(f"Another process is altering the query of flow `{spec.name}`. START FLOW it when that has ended.")
        self._lease.beat()
        records = self._registry.append(partial(self._taken, EventKind.STARTED, spec))
        self.end(self._live.get(spec.id))
        epoch = records[spec.id].epoch
        with about(flow=".".join(spec.qualified_name), epoch=epoch):  # also on the threads that the flow makes
            try:
                self._run(spec, session, options, epoch, note)
            except BaseException as error:
                self._supervisor.note_failure(spec, error, epoch)
                raise

    def _run(self, spec: FlowSpec, session: SparkSession, options: FlowOptions, epoch: int, note: alteration.Note | None) -> None:
        home = self._home.child("flows", spec.id)
        if note is not None:  # a dead process has begun another query
            self.fence(spec, epoch).take()
            own, here = jvm.clone_session(self._spark), self._lease.host_id
            settled = alteration.settled(own, home, spec, self._registry.alter, here)
            if settled is not spec:
                spec, options, session = settled, self.options_of(settled), sessions.restored_session(self._spark, settled)
        spec = self.savepoints.finished(spec, epoch)
        replay.finish_at_start(session, spec)
        sessions.prepare(session, self._home.location, partial(source_changes.most_files, session, spec))
        if (changed := source_changes.evolved(session, spec, options.flow)) is not spec:
            spec = changed
            self._registry.alter(spec)
        flow = Flow(spec, options, epoch, home, session, self._clock, self._watch)
        try:
            with self._live.busy_with(flow):
                flow.start()
        except BaseException:
            if flow.is_running:
                self.end(flow)
            raise
        self._live.put(flow)
        if self._closing.is_set():  # whoever closes this process may not have seen the flow
            self.end(flow)
        self._supervisor.note_running(spec.id)

    def fence(self, spec: FlowSpec, epoch: int) -> Fence:
        """Return the fence of a flow, as the driver with an epoch sees it."""
        return Fence(self._home.child("flows", spec.id), f"flow `{spec.name}`", epoch)

    def taken_at_rest(self, record: FlowRecord) -> FlowRecord:
        """Return the record of a flow, taken by this process if it was stopped: drivers before commit no more."""
        return self._take_stopped(record.spec) if record.state is FlowState.STOPPED else record

    def _taken(self, kind: EventKind, spec: FlowSpec, records: Records) -> FlowEvent:
        """Return the event of a start or stop whose epoch fences the driver before; a flow of a live process is not taken."""
        record = still_there(records, spec)
        if record.is_active and self._lease.is_elsewhere(record.host):
            raise RunsElsewhereError(f"Flow `{spec.name}` runs in another process.")
        complete = spec.to_json() if record.state is FlowState.RESERVED else ""
        return FlowEvent(spec.id, kind, epoch=record.epoch + 1, host=self._lease.host_id, spec=complete)

    def record(self, flow_id: str, kind: EventKind, detail: str = "", epoch: int | None = None, next_try: str = "") -> None:
        """Write an event of a flow into the registry; without an epoch, that of the flow here."""
        if epoch is None:
            epoch = flow.epoch if (flow := self._live.get(flow_id)) is not None else 0
        self._registry.append(FlowEvent(flow_id, kind, epoch=epoch, host=self._lease.host_id, detail=detail, next_try=next_try))

    def here(self, record: FlowRecord) -> Flow | None:
        """Return a flow of this process; raise FlowError if another live process runs it."""
        if record.is_active and self._lease.is_elsewhere(record.host):
            raise RunsElsewhereError(f"Flow `{record.spec.name}` runs in another process. Send the statement there.")
        return self._live.get(record.spec.id)

    def _running(self, name: tuple[str, ...], patience: timedelta) -> Flow:
        """Return a flow that runs here; one that is just being started or changed is waited for."""
        self._live.wait_for_others(self._spark, find(self._registry.read(), name).spec.target, patience.total_seconds())
        record = find(self._registry.read(), name)
        flow = self.here(record)
        if flow is None or flow.phase is FlowPhase.STOPPED:
            because = f" ({record.error})" if record.error else ""
            advice = "START FLOW it first."
            if record.next_try is not None:
                advice = f"It is tried again at {record.next_try.astimezone():%H:%M:%S}; START FLOW tries it now."
            raise FlowError(f"Flow `{record.spec.name}` does not run: it is {record.state.lower()}{because}. {advice}")
        return flow

    @property
    def all(self) -> Mapping[str, Flow]:
        """The flows of this process by id; the dict never changes."""
        return self._live.all

    def session_for_start(self, spec: FlowSpec) -> SparkSession:
        """Return the session that a flow had here, or one like it."""
        flow = self._live.get(spec.id)
        return flow.session if flow is not None else sessions.restored_session(self._spark, spec)

    def tick(self) -> None:
        """Look at each flow; the host's ticker calls it."""
        self._supervisor.tick()
