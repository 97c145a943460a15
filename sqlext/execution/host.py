"""The flows of this process: made, resumed, watched, stopped.

One host a Spark application. Statements call it from any thread; the lock makes those that change a flow take turns. The
dict of flows is never changed, only replaced, so that the ticker, which looks at every flow ten times a second, need not
wait for a statement that takes long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from sqlext.clock import Clock, SystemClock
from sqlext.errors import FlowError, NotFoundError, OptionError, SqlextError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import target
from sqlext.execution.flows import faults, prerequisites, source_changes
from sqlext.execution.flows.creation import FlowRequest, backlog_of
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.making import FlowMaker
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRecord, FlowRegistry, FlowState, Records, find, find_table
from sqlext.execution.flows.retries import Retries
from sqlext.execution.flows.status import FlowPhase, PrerequisiteStatus
from sqlext.execution.flows.views import FlowView, FlowViews, LocalView
from sqlext.execution.jobs.host import JobHost
from sqlext.execution.state.buffer import is_lost
from sqlext.options import STATE_BACKEND, Options, resolve
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import jvm, sessions
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1


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
        self._busy: Flow | None = None
        self._retries = Retries(self._clock)
        self._views = FlowViews(self._registry, self._lease, self._retries, lambda: self._flows)
        self._reported: set[str] = set()
        self._changes_seen: dict[str, str] = {}  # the last change of a source that each flow was started again for
        self._closing = threading.Event()  # flows are no longer looked at
        self._closed = threading.Event()  # and this host gives no more sign of life
        self._ticker = threading.Thread(target=self._tick_until_closed, name="sqlext-flows", daemon=True)
        self._ticker.start()

    @property
    def home(self) -> str:
        return self._home.location

    # Life of the host.

    def resume(self) -> list[str]:
        """Resume the flows that ran when their host ended, or waited for their next try. One that cannot start is marked failed,
        or tried again when what keeps it may pass; the others go on.

        Returns:
            The names of the flows that run again.
        """
        self._maker.sweep()
        active = [record for record in self._registry.read().values() if record.is_active]
        return [each.spec.name for each in active if not self._lease.is_alive(each.host) and self._resume(each.spec)]

    def _resume(self, spec: FlowSpec) -> bool:
        with self._lock:
            try:
                if spec.session_bound:
                    raise FlowError(
                        f"Flow `{spec.name}` reads {', '.join(spec.session_bound)}, which ended with the session that made it. "
                        "DROP FLOW it and make it again."
                    )
                self.run(spec, sessions.restored_session(self._spark, spec))
            except Exception as error:  # noqa: BLE001  # one flow's trouble must not stop the others
                self._note_anyhow("cannot be taken up", spec, error)
                return False
            return True

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
            return f"flow {record.spec.name} {'started again' if self.start_record(record) else 'goes on'}"

    def record_of_table(self, name: tuple[str, ...]) -> FlowRecord:
        """The record of the flow that made the streaming table of a qualified name; NotFoundError when none did."""
        return find_table(self._registry.read(), name)

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
        if record.is_active and self._lease.is_elsewhere(record.host):
            raise FlowError(f"Flow `{record.spec.name}` runs in another process. STOP it there first.")
        session = flow.session if flow is not None else sessions.restored_session(self._spark, record.spec)
        self.run(record.spec, session)
        return True

    def stop(self, name: tuple[str, ...], canceled: threading.Event | None = None) -> str:
        """Stop a flow, flushed; it stays stopped until START FLOW.

        A flow that is just being started or stopped, which may take long, is interrupted.

        Args:
            canceled: set when the client waits no longer; its last flush is then interrupted.
        """
        record = find(self._registry.read(), name)
        busy = self._busy
        if busy is not None and busy.spec.id == record.spec.id:
            busy.interrupt()
        with self._lock:
            record = find(self._registry.read(), name)
            flow = self.here(record)
            if flow is not None:
                with self._busy_with(flow):
                    flow.stop(canceled)
                flow.forgive()
            self._retries.drop(record.spec.id)
            self._record(record.spec.id, EventKind.STOPPED, epoch=record.epoch)  # also of a start that has failed
            is_partial = flow is not None and flow.work.is_interrupted
            late = "; its last flush was interrupted, and what it held comes with the next start" if is_partial else ""
            return f"flow {record.spec.name} stopped{late}"

    @contextmanager
    def _busy_with(self, flow: Flow) -> Iterator[None]:
        """While it is started or stopped, STOP FLOW can interrupt a flow. The lock is held."""
        self._busy = flow
        try:
            yield
        finally:
            self._busy = None

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

    def records(self) -> Records:
        """The record of each flow of the home, by id."""
        return self._registry.read()

    def views(self) -> list[FlowView]:
        """All flows of the home, by name."""
        return self._views.all()

    def view(self, name: tuple[str, ...]) -> FlowView:
        """The flow of a qualified name."""
        return self._views.one(name)

    def local_views(self) -> list[LocalView]:
        """The flows of this process; asks no storage, so it may be called often."""
        return self._views.local()

    def prerequisites_of(self, view: FlowView) -> tuple[PrerequisiteStatus, ...]:
        """The prerequisites of a flow, also of one that does not run here."""
        if view.progress is not None:
            return view.progress.prerequisites
        home = self._home.child("flows", view.record.spec.id)
        return tuple(prerequisites.recorded(self._spark, home, each.name) for each in view.record.spec.prerequisites)

    def options_of(self, spec: FlowSpec) -> Options:
        return resolve(spec.levels(), lambda text: jvm.parse_duration(self._spark, text))

    def end(self, flow: Flow | None) -> None:
        """Stop a flow whose rows nobody wants any more, or that starts anew and finds them; its last flush may fail."""
        try:
            if flow is not None:
                flow.stop()
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.warning("flow %s did not stop cleanly: %s", flow.spec.name if flow else "", jvm.reason_of(error))

    def forget(self, spec: FlowSpec) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if key != spec.id}
        self._retries.drop(spec.id)
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
        if (changed := source_changes.evolved(session, spec, options)) is not spec:
            spec = changed
            self._registry.append(FlowEvent(spec.id, EventKind.ALTERED, spec=spec.to_json()))
        flow = Flow(spec, options, backlog_of(self._spark, spec), records[spec.id].epoch, home, session, self._clock)
        try:
            with self._busy_with(flow):
                flow.start()
        except BaseException as error:
            self._note_failure(spec, error, flow.epoch)
            if flow.is_running:
                self.end(flow)
            raise
        self._flows = {**self._flows, spec.id: flow}
        self._retries.note_running(spec.id)
        self._reported.discard(spec.id)

    def _note_failure(self, spec: FlowSpec, error: BaseException, epoch: int) -> None:
        """Record that a flow has failed: for good, or until its next try."""
        reason = faults.message_of(error)
        if not faults.may_pass(error):
            self._retries.drop(spec.id)
            self._record(spec.id, EventKind.FAILED, reason, epoch)
        elif spec.id not in self._retries.planned():
            retry = self._retries.plan(spec, reason)
            logger.warning("flow %s is tried again at %s: %s", spec.name, retry.at.astimezone().strftime("%H:%M:%S"), reason)
            self._record(spec.id, EventKind.RETRYING, reason, epoch, retry.at.isoformat())

    def _note_anyhow(self, what: str, spec: FlowSpec, error: Exception) -> None:
        """The same of any error, a bug too: one flow's trouble must never stop the others. It does not raise."""
        logger.error("flow %s %s: %s", spec.name, what, faults.message_of(error), exc_info=not faults.is_told(error))
        try:
            if (record := self._registry.read().get(spec.id)) is not None:  # somebody may have dropped it
                self._note_failure(spec, error, record.epoch)
        except Exception as problem:  # the registry itself may be what fails
            logger.exception("flow %s: its failure cannot be recorded: %s", spec.name, jvm.reason_of(problem))
            if faults.may_pass(problem) and spec.id not in self._retries.planned():
                self._retries.plan(spec, faults.message_of(error))

    def _started(self, spec: FlowSpec, records: Records) -> FlowEvent:
        """The next epoch fences the driver before; a flow that lives elsewhere is not taken."""
        record = records[spec.id]
        if record.is_active and self._lease.is_elsewhere(record.host):
            raise FlowError(f"Flow `{spec.name}` runs in another process.")
        complete = spec.to_json() if record.state is FlowState.RESERVED else ""
        return FlowEvent(spec.id, EventKind.STARTED, epoch=record.epoch + 1, host=self._lease.host_id, spec=complete)

    def _record(self, flow_id: str, kind: EventKind, detail: str = "", epoch: int | None = None, next_try: str = "") -> None:
        if epoch is None:
            epoch = self._flows[flow_id].epoch if flow_id in self._flows else 0
        self._registry.append(FlowEvent(flow_id, kind, epoch=epoch, host=self._lease.host_id, detail=detail, next_try=next_try))

    def running(self, flow_id: str) -> Flow | None:
        """The flow of this process, whatever its phase."""
        return self._flows.get(flow_id)

    def here(self, record: FlowRecord) -> Flow | None:
        """The flow in this process; an error when another live process runs it."""
        if record.is_active and self._lease.is_elsewhere(record.host):
            raise FlowError(f"Flow `{record.spec.name}` runs in another process. Send the statement there.")
        return self._flows.get(record.spec.id)

    def _running(self, name: tuple[str, ...]) -> Flow:
        record = find(self._registry.read(), name)
        with self._lock:
            flow = self.here(record)
        if flow is None or (flow.status()[0] is FlowPhase.STOPPED):
            because = f" ({record.error})" if record.error else ""
            advice = "START FLOW it first."
            if record.next_try is not None:
                advice = f"It is tried again at {record.next_try.astimezone():%H:%M:%S}; START FLOW tries it now."
            raise FlowError(f"Flow `{record.spec.name}` does not run: it is {record.state.lower()}{because}. {advice}")
        return flow

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
            for retry in [] if self._closing.is_set() else self._retries.take_due():
                self._on_thread(partial(self._try_again, retry.spec), retry.spec)
            if self._lease.has_begun:  # also while the first flow is still being made, or the last flushes run
                self._guarded(self._lease.beat)

    def _report_failure(self, flow: Flow) -> None:
        phase, _, _ = flow.status()
        error = flow.error
        if phase is not FlowPhase.FAILED or flow.spec.id in self._reported or error is None:
            return
        self._reported.add(flow.spec.id)
        change = faults.message_of(error) if faults.is_schema_change(error) else ""
        if is_lost(error) or (change and self._changes_seen.get(flow.spec.id) != change):
            why = "a source has other columns" if change else "an executor was lost with buffered rows"
            logger.warning("flow %s: %s; starting again", flow.spec.name, why)
            self._changes_seen[flow.spec.id] = change  # the same change twice is one that no start takes in
            self._on_thread(partial(self._resume_failed, flow), flow.spec)
        else:
            self._note_failure(flow.spec, error, flow.epoch)

    def _report_switches(self, flow: Flow) -> None:
        """Each change between live and backlog is an event of the flow's log."""
        for switch in flow.new_switches():
            self._record(flow.spec.id, EventKind.PHASE, f"{switch.phase.value} at {switch.at.isoformat()}: {switch.because}")

    def _on_thread(self, action: Callable[[], None], spec: FlowSpec) -> None:
        """Start a flow again beside the ticker: it takes seconds."""
        threading.Thread(target=self._guarded, args=(action,), name=f"sqlext-end-{spec.name}", daemon=True).start()

    def _resume_failed(self, flow: Flow) -> None:
        """A new start brings back what the flow has lost, or lets it see its sources as they are now."""
        with self._lock:
            if self._flows.get(flow.spec.id) is flow and not self._closing.is_set():
                self._run_or_note(flow.spec, flow.session, flow.options)

    def _try_again(self, spec: FlowSpec) -> None:
        """The next try of a flow that failed by what may pass, unless somebody has started, stopped or dropped it meanwhile."""
        with self._lock:
            try:
                record = self._registry.read().get(spec.id)
                flow = self._flows.get(spec.id)
                is_mine = record is not None and record.is_active and record.host == self._lease.host_id
                if record is None or not is_mine or self._closing.is_set() or (flow is not None and flow.is_running):
                    return
                session = flow.session if flow is not None else sessions.restored_session(self._spark, record.spec)
                self._run_or_note(record.spec, session)
            except Exception as error:  # noqa: BLE001  # the registry or the catalog does not answer, or there is a bug
                self._note_anyhow("could not be tried again", spec, error)

    def _run_or_note(self, spec: FlowSpec, session: SparkSession, options: Options | None = None) -> None:
        try:
            self.run(spec, session, options)
        except Exception as error:  # noqa: BLE001  # also where it did not come to start
            self._note_anyhow("could not be started again", spec, error)

    def _guarded(self, action: Callable[[], None], flow: Flow | None = None) -> None:
        """One flow's trouble must not end the ticker of all."""
        try:
            action()
        except Exception:
            if not self._closing.is_set():
                logger.exception("%s: the ticker failed", f"flow {flow.spec.name}" if flow else "sign of life")
