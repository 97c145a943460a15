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
from sqlext.errors import FlowError, NotFoundError, OptionError, SqlextError, StatementCanceledError
from sqlext.execution import queries, sessions, stages, target
from sqlext.execution.backlog.pacer import BacklogSettings
from sqlext.execution.creation import (
    FLOW_PROPERTY,
    FlowRequest,
    check_free,
    check_query,
    check_state,
    check_table,
    existing,
    no_delta_state,
    reserve,
    with_table,
)
from sqlext.execution.flow import Flow
from sqlext.execution.jobs.host import JobHost
from sqlext.execution.lease import Lease
from sqlext.execution.registry import (
    EventKind,
    FlowEvent,
    FlowRecord,
    FlowRegistry,
    FlowState,
    Records,
    find,
)
from sqlext.execution.spec import FlowSpec
from sqlext.execution.status import FlowPhase, FlowProgress, StageStatus
from sqlext.names import quote_parts
from sqlext.options import BACKLOG_LAG_THRESHOLD, CHECKPOINT_INTERVAL_DURING_BACKLOG, STATE_BACKEND, Options, resolve
from sqlext.storage import HadoopPath

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1


@dataclass(frozen=True)
class FlowView:
    """A flow as SHOW and DESCRIBE tell it; progress is there only for flows of this process."""

    record: FlowRecord
    status: str
    progress: FlowProgress | None
    error: str
    is_here: bool


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
        self._sweep()
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
                    self._run(record.spec, sessions.restored_session(self._spark, record.spec))
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
            SqlextError, PySparkException: nothing was made then.
        """
        with self._lock:
            self._sweep()
            name = target.qualified(session, request.table)
            records = self._registry.read()
            there = existing(records, request, name)
            if there is not None and request.if_not_exists:
                return f"flow {there.spec.name} ({there.spec.id}) exists already, and stays as it is"
            replaced = there if request.refresh else None
            check_free(records, request.name, name, replaced)
            own = sessions.session_for(session, request.plan.references)
            check_query(own, request.plan, records, options)
            check_table(own, request, name)
            reserved = reserve(own, request, name)
            lags = any(each.interval is not None for each in self._backlog_of(reserved).values())
            rocksdb_because = no_delta_state(options, bool(reserved.hybrids) or lags)
            check_state(queries.analyse(own, request.plan).streams, request.plan.output_mode, options, rocksdb_because)
            self._lease.beat()
            self._registry.append(partial(self._reserved, reserved, replaced))
            try:
                if replaced is not None:
                    self._retire(replaced)
                home = self._home.child("flows", reserved.id)
                spec = with_table(own, reserved, request, home, rocksdb_because)
                self._run(spec, own, options)
                if canceled is not None and canceled.is_set() and replaced is None:  # else there is nothing to go back to
                    raise StatementCanceledError("The statement was canceled.")
            except BaseException:
                with jvm.outside_of_any_query(self._spark):  # a statement that was canceled leaves nothing behind either
                    self._end(self._flows.get(reserved.id))
                    self._undo(reserved)
                raise
            bound = f"; it reads {', '.join(spec.session_bound)} and so ends with this session" if spec.session_bound else ""
            state = f"; its state lives in RocksDB: {spec.rocksdb_because.rstrip('.')}" if spec.rocksdb_because else ""
            return f"flow {spec.name} ({spec.id}) started into {'.'.join(name)}{state}{bound}"

    def start(self, name: str) -> str:
        """Start a flow that was stopped or has failed."""
        with self._lock:
            record = find(self._registry.read(), name)
            flow = self._flows.get(record.spec.id)
            if flow is not None and flow.is_running:
                return f"flow {record.spec.name} runs already"
            if record.state is FlowState.RUNNING and flow is None and self._lease.is_alive(record.host):
                raise FlowError(f"Flow `{record.spec.name}` runs in another process. STOP it there first.")
            session = flow.session if flow is not None else sessions.restored_session(self._spark, record.spec)
            self._run(record.spec, session)
            return f"flow {record.spec.name} ({record.spec.id}) started"

    def stop(self, name: str) -> str:
        """Stop a flow, flushed; it stays stopped until START FLOW."""
        with self._lock:
            record = find(self._registry.read(), name)
            flow = self._here(record)
            if flow is not None:
                flow.stop()
                flow.forgive()
            self._record(record.spec.id, EventKind.STOPPED)
            return f"flow {record.spec.name} stopped"

    def flush(self, name: str) -> str:
        """Flush a flow of this process now."""
        flow = self._running(name)
        flow.flush()
        return f"flow {flow.spec.name} flushed"

    def wait(self, name: str, timeout: timedelta) -> str:
        """Return when all that had arrived is in the target."""
        flow = self._running(name)
        flow.wait(timeout)
        return f"flow {flow.spec.name} is up to date"

    def drop(self, name: str, if_exists: bool) -> str:
        """Stop a flow and forget it; its target stays."""
        with self._lock:
            try:
                record = find(self._registry.read(), name)
            except NotFoundError:
                if if_exists:
                    return f"there is no flow {name}"
                raise
            self._end(self._here(record))
            self._forget(record.spec)
            return f"flow {record.spec.name} dropped; its target {'.'.join(record.spec.target)} stays"

    def alter(self, name: str, properties: Mapping[str, str]) -> str:
        """Set options; a flow that runs here goes on with them at once."""
        with self._lock:
            record = find(self._registry.read(), name)
            if STATE_BACKEND.key in properties:
                raise OptionError(
                    f"The state of flow `{record.spec.name}` stays where it is: `{STATE_BACKEND.key}` is for new flows. "
                    "CREATE OR REFRESH its streaming table with it."
                )
            spec = record.spec.with_properties(properties)
            flow = self._here(record)
            was_running = flow is not None and flow.is_running
            options = self.options_of(spec)  # refuses what is unknown or out of range
            goes_on = flow is not None and was_running and flow.set_options(spec, options)
            if flow is not None and was_running and not goes_on:
                flow.stop()
            self._registry.append(FlowEvent(spec.id, EventKind.ALTERED, spec=spec.to_json()))
            if flow is not None and was_running and not goes_on:
                self._run(spec, flow.session, options)
            return f"flow {spec.name} altered: {', '.join(sorted(properties))}"

    def views(self) -> list[FlowView]:
        """All flows of the home, by name."""
        views = [self._view(record) for record in self._registry.read().values()]
        return sorted(views, key=lambda view: view.record.spec.name.lower())

    def view(self, name: str) -> FlowView:
        return self._view(find(self._registry.read(), name))

    def stages(self, view: FlowView) -> tuple[StageStatus, ...]:
        """The bounded stages of a flow, also of one that does not run here."""
        if view.progress is not None:
            return view.progress.stages
        home = self._home.child("flows", view.record.spec.id)
        return tuple(stages.recorded(self._spark, home, stage.name) for stage in view.record.spec.stages)

    def local_views(self) -> list[tuple[str, FlowPhase, FlowProgress, str]]:
        """Name, phase, progress and error of each flow of this process; asks no storage, so it may be called often."""
        return [(flow.spec.name, *flow.status()) for flow in self._flows.values()]

    def options_of(self, spec: FlowSpec) -> Options:
        return resolve(spec.levels(), lambda text: jvm.parse_duration(self._spark, text))

    def _backlog_of(self, spec: FlowSpec) -> dict[str, BacklogSettings]:
        found: dict[str, BacklogSettings] = {}
        for source in spec.sources:
            options = resolve(spec.levels_of(source), lambda text: jvm.parse_duration(self._spark, text))
            interval, threshold = options[CHECKPOINT_INTERVAL_DURING_BACKLOG], options[BACKLOG_LAG_THRESHOLD]
            found[source.alias] = BacklogSettings(interval, threshold)
        return found

    # Making.

    def _reserved(self, spec: FlowSpec, replaced: FlowRecord | None, records: Records) -> FlowEvent:
        check_free(records, spec.name, spec.target, replaced)
        return FlowEvent(spec.id, EventKind.RESERVED, host=self._lease.host_id, spec=spec.to_json())

    def _sweep(self) -> None:
        """Undo what processes that died left half made."""
        for record in self._registry.read().values():
            if record.state is FlowState.RESERVED and not self._lease.is_alive(record.host):
                logger.warning("flow %s was not finished by the process that made it, and is undone", record.spec.name)
                self._undo(record.spec)

    def _undo(self, spec: FlowSpec) -> None:
        """Leave nothing of a flow that could not be made, `spec` being its reservation: its table goes, if the flow made it."""
        try:
            if target.exists(self._spark, spec.target):
                table = target.describe(self._spark, spec.target)
                if table.properties.get(FLOW_PROPERTY) == spec.id and not spec.replaces_table:
                    self._spark.sql(f"DROP TABLE {quote_parts(spec.target)}")
            elif spec.target_location:
                HadoopPath(self._spark, spec.target_location).delete()  # files of a table that never got into the catalog
            self._forget(spec)
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.error("flow %s could not be undone: %s", spec.name, jvm.reason_of(error))

    def _retire(self, record: FlowRecord) -> None:
        self._end(self._here(record))
        self._forget(record.spec)

    def _end(self, flow: Flow | None) -> None:
        """Stop a flow whose rows nobody wants any more, or that starts anew and finds them; its last flush may fail."""
        try:
            if flow is not None:
                flow.stop()
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.warning("flow %s did not stop cleanly: %s", flow.spec.name if flow else "", jvm.reason_of(error))

    def _forget(self, spec: FlowSpec) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if key != spec.id}
        self._record(spec.id, EventKind.DROPPED)
        self._home.child("flows", spec.id).delete()

    # Running.

    def _run(self, spec: FlowSpec, session: SparkSession, options: Options | None = None) -> None:
        self._lease.beat()
        records = self._registry.append(partial(self._started, spec))
        self._end(self._flows.get(spec.id))
        sessions.prepare(session, self._home.location)
        home = self._home.child("flows", spec.id)
        options = options or self.options_of(spec)
        flow = Flow(spec, options, self._backlog_of(spec), records[spec.id].epoch, home, session, self._clock)
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

    def _here(self, record: FlowRecord) -> Flow | None:
        """The flow in this process; an error when another live process runs it."""
        is_elsewhere = record.state is FlowState.RUNNING and record.host != self._lease.host_id
        if is_elsewhere and self._lease.is_alive(record.host):
            raise FlowError(f"Flow `{record.spec.name}` runs in another process. Send the statement there.")
        return self._flows.get(record.spec.id)

    def _running(self, name: str) -> Flow:
        record = find(self._registry.read(), name)
        with self._lock:
            flow = self._here(record)
        if flow is None or (flow.status()[0] is FlowPhase.STOPPED):
            because = f" ({record.error})" if record.error else ""
            raise FlowError(
                f"Flow `{record.spec.name}` does not run: it is {record.state.lower()}{because}. START FLOW it first."
            )
        return flow

    def _view(self, record: FlowRecord) -> FlowView:
        flow = self._flows.get(record.spec.id)
        if flow is None:
            is_elsewhere = record.state is FlowState.RUNNING and self._lease.is_alive(record.host)
            is_lost = record.state is FlowState.RUNNING and not is_elsewhere
            return FlowView(record, "LOST" if is_lost else record.state.value, None, record.error, False)
        phase, progress, error = flow.status()
        return FlowView(record, phase.value, progress, error, True)

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
                    self._run(flow.spec, flow.session, flow.options)
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.error("flow %s could not be started again: %s", flow.spec.name, jvm.reason_of(error))

    def _guarded(self, action: Callable[[], None], flow: Flow | None = None) -> None:
        """One flow's trouble must not end the ticker of all."""
        try:
            action()
        except Exception:
            if not self._closing.is_set():
                logger.exception("%s: the ticker failed", f"flow {flow.spec.name}" if flow else "sign of life")
