"""The flows of this process: made, taken up again, watched, stopped.

One host a Spark application. Statements call it from any thread; the lock makes those that change a flow take turns. The
dict of flows is never changed, only replaced, so that the ticker, which looks at every flow ten times a second, need not
wait for a statement that takes long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from sqlext import jvm
from sqlext.clock import Clock, SystemClock
from sqlext.errors import FlowError, NotFoundError, OptionError, SqlextError
from sqlext.execution import sessions, stages, target
from sqlext.execution.backlog.pacer import BacklogSettings
from sqlext.execution.creation import FLOW_PROPERTY, FlowRequest
from sqlext.execution.flow import Flow
from sqlext.execution.jobs.host import JobHost
from sqlext.execution.lease import Lease
from sqlext.execution.making import FlowMaker
from sqlext.execution.registry import (
    EventKind,
    FlowEvent,
    FlowRecord,
    FlowRegistry,
    FlowState,
    Records,
    find,
    find_table,
    shown_names,
)
from sqlext.execution.spec import FlowSpec
from sqlext.execution.status import FlowPhase, FlowProgress, StageStatus
from sqlext.options import BACKLOG_LAG_THRESHOLD, CHECKPOINT_INTERVAL_DURING_BACKLOG, STATE_BACKEND, Options, resolve
from sqlext.storage import HadoopPath

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1


@dataclass(frozen=True)
class FlowView:
    """A flow as SHOW and DESCRIBE tell it.

    Attributes:
        progress: only of flows of this process.
        name: with as much of its schema as tells it from others.
    """

    record: FlowRecord
    status: str
    progress: FlowProgress | None
    error: str
    is_here: bool
    name: str


class FlowHost:
    """See the module's docstring.

    Args:
        spark: any session of the application.
        home: where checkpoints, buffers and the registry lie.
        clock: for flush intervals.
    """

    def __init__(self, spark: SparkSession, home: str, clock: Clock | None = None) -> None:
        self._spark = jvm.clone_session(spark)
        self._clock = clock or SystemClock()
        self._home = HadoopPath(self._spark, home)
        self._registry = FlowRegistry(self._home)
        self._lease = Lease(self._home)
        self.jobs = JobHost(self._spark, self._home, self._lease)
        self._maker = FlowMaker(self._spark, self._home, self._registry, self._lease, self)
        self._lock = threading.RLock()
        self._flows: Mapping[str, Flow] = {}
        self._reported: set[str] = set()
        self._closing = threading.Event()  # flows are no longer looked at
        self._closed = threading.Event()  # and this host gives no more sign of life
        self._ticker = threading.Thread(target=self._tick_until_closed, name="sqlext-flows", daemon=True)
        self._ticker.start()

    @property
    def home(self) -> str:
        return self._home.location

    # Life of the host.

    def take_up(self) -> list[str]:
        """Start the flows that ran when their host ended. One that cannot start is marked failed; the others go on.

        Returns:
            The names of the flows that run again.
        """
        taken: list[str] = []
        self._maker.sweep()
        for record in self._registry.read().values():
            if record.state is not FlowState.RUNNING or self._lease.is_alive(record.host):
                continue
            try:
                if record.spec.session_bound:
                    raise FlowError(
                        f"Flow `{record.spec.name}` reads {', '.join(record.spec.session_bound)}, which ended with the session "
                        "that made it. DROP FLOW it and make it again."
                    )
                with self._lock:
                    self.run(record.spec, sessions.restored_session(self._spark, record.spec))
                taken.append(record.spec.name)
            except (SqlextError, *target.SPARK_ERRORS) as error:
                logger.error("flow %s cannot be taken up: %s", record.spec.name, jvm.reason_of(error))
                self._record(record.spec.id, EventKind.FAILED, detail=jvm.reason_of(error))
        return taken

    def close(self) -> None:
        """Stop all flows of this process, flushed; the registry keeps them as running, for the next host."""
        self._closing.set()
        self.jobs.close()
        with self._lock:
            for flow in self._flows.values():
                try:
                    flow.stop()
                except (SqlextError, *target.SPARK_ERRORS) as error:
                    logger.error("flow %s did not stop cleanly: %s", flow.spec.name, jvm.reason_of(error))
            # they stay in sight: `local_views` tells what the last flushes did
        self._closed.set()
        if threading.current_thread() is not self._ticker:
            self._ticker.join(timeout=60)
        if self._lease.has_begun:
            self._lease.end()

    # What statements do.

    def create(
        self, session: SparkSession, request: FlowRequest, options: Options, canceled: threading.Event | None = None
    ) -> str:
        """Make a flow and start it.

        Args:
            canceled: set when the client has taken the statement back; what was made is then undone.

        Returns:
            A sentence with its name and id.

        Raises:
            SqlextError, PySparkException: nothing was made then, and nothing that was there is gone.
        """
        with self._lock:
            return self._maker.create(session, request, options, canceled)

    def refresh(self, name: tuple[str, ...]) -> str:
        """Start the flow of a streaming table, unless it runs."""
        with self._lock:
            record = self.record_of_table(name)
            started = self.start_record(record)
            return f"flow {record.spec.name} {'started again' if started else 'goes on'}"

    def record_of_table(self, name: tuple[str, ...]) -> FlowRecord:
        """The record of the flow that made a streaming table.

        Args:
            name: of the table, qualified.

        Raises:
            NotFoundError: no flow did.
        """
        return find_table(self._registry.read(), name)

    def properties_of(self, spec: FlowSpec) -> dict[str, str]:
        """The properties of a streaming table that are neither Delta's nor sqlext's; none of one that is gone."""
        there = target.describe(self._spark, spec.target).properties if target.exists(self._spark, spec.target) else {}
        return {key: value for key, value in there.items() if not key.startswith("delta.") and key != FLOW_PROPERTY}

    def session_of(self, spec: FlowSpec) -> SparkSession:
        """A session like the flow's own."""
        flow = self._flows.get(spec.id)
        return jvm.clone_session(flow.session) if flow is not None else sessions.restored_session(self._spark, spec)

    def start(self, name: tuple[str, ...]) -> str:
        """Start a flow that was stopped or has failed."""
        with self._lock:
            record = find(self._registry.read(), name)
            if not self.start_record(record):
                return f"flow {record.spec.name} runs already"
            return f"flow {record.spec.name} ({record.spec.id}) started"

    def start_record(self, record: FlowRecord) -> bool:
        """Start a flow; False: it runs already."""
        flow = self._flows.get(record.spec.id)
        if flow is not None and flow.is_running:
            return False
        if record.state is FlowState.RUNNING and flow is None and self._lease.is_alive(record.host):
            raise FlowError(f"Flow `{record.spec.name}` runs in another process. STOP it there first.")
        session = flow.session if flow is not None else sessions.restored_session(self._spark, record.spec)
        self.run(record.spec, session)
        return True

    def stop(self, name: tuple[str, ...]) -> str:
        """Stop a flow, flushed; it stays stopped until START FLOW."""
        with self._lock:
            record = find(self._registry.read(), name)
            flow = self.here(record)
            if flow is not None:
                flow.stop()
                flow.forgive()
            self._record(record.spec.id, EventKind.STOPPED)
            return f"flow {record.spec.name} stopped"

    def flush(self, name: tuple[str, ...]) -> str:
        """Flush a flow of this process now."""
        flow = self._running(name)
        flow.flush()
        return f"flow {flow.spec.name} flushed"

    def wait(self, name: tuple[str, ...], timeout: timedelta) -> str:
        """Return when all that had arrived is in the target."""
        flow = self._running(name)
        flow.wait(timeout)
        return f"flow {flow.spec.name} is up to date"

    def drop(self, name: tuple[str, ...], if_exists: bool) -> str:
        """Stop a flow and forget it; its target stays."""
        with self._lock:
            try:
                record = find(self._registry.read(), name)
            except NotFoundError:
                if if_exists:
                    return f"there is no flow {'.'.join(name)}"
                raise
            self.end(self.here(record))
            self.forget(record.spec)
            return f"flow {record.spec.name} dropped; its target {'.'.join(record.spec.target)} stays"

    def alter(self, name: tuple[str, ...], properties: Mapping[str, str]) -> str:
        """Set options; a flow that runs here goes on with them at once."""
        with self._lock:
            record = find(self._registry.read(), name)
            if STATE_BACKEND.key in properties:
                raise OptionError(
                    f"The state of flow `{record.spec.name}` stays where it is: `{STATE_BACKEND.key}` is for new flows. "
                    "CREATE OR REPLACE its streaming table with it."
                )
            spec = record.spec.with_properties(properties)
            self.alter_record(record, spec, self.options_of(spec))  # which refuses what is unknown or out of range
            return f"flow {spec.name} altered: {', '.join(sorted(properties))}"

    def alter_record(self, record: FlowRecord, spec: FlowSpec, options: Options) -> None:
        """Record a flow's options, and let it go on with them."""
        flow = self.here(record)
        was_running = flow is not None and flow.is_running
        goes_on = flow is not None and was_running and flow.set_options(spec, options)
        if flow is not None and was_running and not goes_on:
            flow.stop()
        self._registry.append(FlowEvent(spec.id, EventKind.ALTERED, spec=spec.to_json()))
        if flow is not None and was_running and not goes_on:
            self.run(spec, flow.session, options)

    def views(self) -> list[FlowView]:
        """All flows of the home, by name."""
        records = self._registry.read()
        names = shown_names(record.spec for record in records.values())
        views = [self._view(record, names[record.spec.id]) for record in records.values()]
        return sorted(views, key=lambda view: view.name.lower())

    def view(self, name: tuple[str, ...]) -> FlowView:
        records = self._registry.read()
        record = find(records, name)
        return self._view(record, shown_names(each.spec for each in records.values())[record.spec.id])

    def stages(self, view: FlowView) -> tuple[StageStatus, ...]:
        """The bounded stages of a flow, also of one that does not run here."""
        if view.progress is not None:
            return view.progress.stages
        home = self._home.child("flows", view.record.spec.id)
        return tuple(stages.recorded(self._spark, home, stage.name) for stage in view.record.spec.stages)

    def local_views(self) -> list[tuple[str, FlowPhase, FlowProgress, str, tuple[str, ...]]]:
        """Name, phase, progress, error and qualified name of each flow of this process; asks no storage, so it may be called
        often."""
        flows = list(self._flows.values())
        names = shown_names(flow.spec for flow in flows)
        return [(names[flow.spec.id], *flow.status(), flow.spec.qualified_name) for flow in flows]

    def options_of(self, spec: FlowSpec) -> Options:
        return resolve(spec.levels(), lambda text: jvm.parse_duration(self._spark, text))

    def backlog_of(self, spec: FlowSpec) -> dict[str, BacklogSettings]:
        found: dict[str, BacklogSettings] = {}
        for source in spec.sources:
            options = resolve(spec.levels_of(source), lambda text: jvm.parse_duration(self._spark, text))
            interval, threshold = options[CHECKPOINT_INTERVAL_DURING_BACKLOG], options[BACKLOG_LAG_THRESHOLD]
            found[source.alias] = BacklogSettings(interval, threshold)
        return found

    def end(self, flow: Flow | None) -> None:
        """Stop a flow whose rows nobody wants any more, or that starts anew and finds them; its last flush may fail."""
        try:
            if flow is not None:
                flow.stop()
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.warning("flow %s did not stop cleanly: %s", flow.spec.name if flow else "", jvm.reason_of(error))

    def forget(self, spec: FlowSpec) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if key != spec.id}
        self._record(spec.id, EventKind.DROPPED)
        self._home.child("flows", spec.id).delete()

    # Running.

    def run(self, spec: FlowSpec, session: SparkSession, options: Options | None = None) -> None:
        self._lease.beat()
        records = self._registry.append(partial(self._started, spec))
        self.end(self._flows.get(spec.id))
        sessions.prepare(session, self._home.location)
        home = self._home.child("flows", spec.id)
        options = options or self.options_of(spec)
        flow = Flow(spec, options, self.backlog_of(spec), records[spec.id].epoch, home, session, self._clock)
        try:
            flow.start()
        except BaseException as error:
            self._record(spec.id, EventKind.FAILED, jvm.reason_of(error), flow.epoch)
            raise
        self._flows = {**self._flows, spec.id: flow}
        self._reported.discard(spec.id)

    def _started(self, spec: FlowSpec, records: Records) -> FlowEvent:
        """The next epoch fences the driver before; a flow that lives elsewhere is not taken."""
        record = records[spec.id]
        if record.state is FlowState.RUNNING and record.host != self._lease.host_id and self._lease.is_alive(record.host):
            raise FlowError(f"Flow `{spec.name}` runs in another process.")
        complete = spec.to_json() if record.state is FlowState.RESERVED else ""
        return FlowEvent(spec.id, EventKind.STARTED, epoch=record.epoch + 1, host=self._lease.host_id, spec=complete)

    def _record(self, flow_id: str, kind: EventKind, detail: str = "", epoch: int | None = None) -> None:
        if epoch is None:
            epoch = self._flows[flow_id].epoch if flow_id in self._flows else 0
        self._registry.append(FlowEvent(flow_id, kind, epoch=epoch, host=self._lease.host_id, detail=detail))

    def running(self, flow_id: str) -> Flow | None:
        """The flow of this process, whatever its phase."""
        return self._flows.get(flow_id)

    def here(self, record: FlowRecord) -> Flow | None:
        """The flow in this process; an error when another live process runs it."""
        is_elsewhere = record.state is FlowState.RUNNING and record.host != self._lease.host_id
        if is_elsewhere and self._lease.is_alive(record.host):
            raise FlowError(f"Flow `{record.spec.name}` runs in another process. Send the statement there.")
        return self._flows.get(record.spec.id)

    def _running(self, name: tuple[str, ...]) -> Flow:
        record = find(self._registry.read(), name)
        with self._lock:
            flow = self.here(record)
        if flow is None or (flow.status()[0] is FlowPhase.STOPPED):
            because = f" ({record.error})" if record.error else ""
            raise FlowError(
                f"Flow `{record.spec.name}` does not run: it is {record.state.lower()}{because}. START FLOW it first."
            )
        return flow

    def _view(self, record: FlowRecord, name: str) -> FlowView:
        flow = self._flows.get(record.spec.id)
        if flow is None:
            is_elsewhere = record.state is FlowState.RUNNING and self._lease.is_alive(record.host)
            is_lost = record.state is FlowState.RUNNING and not is_elsewhere
            return FlowView(record, "LOST" if is_lost else record.state.value, None, record.error, False, name)
        phase, progress, error = flow.status()
        return FlowView(record, phase.value, progress, error, True, name)

    # The ticker.

    def _tick_until_closed(self) -> None:
        while not self._closed.wait(TICK_SECONDS):
            if self._spark.sparkContext._jsc is None:  # noqa: SLF001  # Spark was stopped under us; there is no public way to ask
                return
            flows = [] if self._closing.is_set() else list(self._flows.values())
            for flow in flows:
                self._guarded(flow.tick, flow)
                self._guarded(partial(self._report_failure, flow), flow)
                self._guarded(partial(self._report_switches, flow), flow)
            if self._lease.has_begun:  # also while the first flow is still being made, or the last flushes run
                self._guarded(self._lease.beat)

    def _report_failure(self, flow: Flow) -> None:
        phase, _, error = flow.status()
        if phase is not FlowPhase.FAILED or flow.spec.id in self._reported:
            return
        self._reported.add(flow.spec.id)
        if flow.has_lost_rows:
            threading.Thread(target=self._start_again, args=(flow,), name=f"sqlext-end-{flow.spec.name}", daemon=True).start()
        else:
            self._record(flow.spec.id, EventKind.FAILED, error)

    def _report_switches(self, flow: Flow) -> None:
        """Each change between live and backlog is an event of the flow's log."""
        for switch in flow.new_switches():
            self._record(flow.spec.id, EventKind.PHASE, f"{switch.phase.value} at {switch.at.isoformat()}: {switch.because}")

    def _start_again(self, flow: Flow) -> None:
        """An executor took buffered rows with it: a new start brings them back. On a thread of its own: it takes seconds."""
        logger.warning("flow %s: an executor was lost with buffered rows; starting again to get them back", flow.spec.name)
        try:
            with self._lock:
                if self._flows.get(flow.spec.id) is flow and not self._closing.is_set():
                    self.run(flow.spec, flow.session, flow.options)
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.error("flow %s could not be started again: %s", flow.spec.name, jvm.reason_of(error))

    def _guarded(self, action: Callable[[], None], flow: Flow | None = None) -> None:
        """One flow's trouble must not end the ticker of all."""
        try:
            action()
        except Exception:
            if not self._closing.is_set():
                logger.exception("%s: the ticker failed", f"flow {flow.spec.name}" if flow else "sign of life")
