"""The flows of this process: made, taken up again, watched, stopped.

One host a Spark application. Statements call it from any thread; the lock makes those that change a flow take turns. The
dict of flows is never changed, only replaced, so that the ticker, which looks at every flow ten times a second, need not
wait for a statement that takes long.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from sqlext import jvm
from sqlext.clock import Clock, SystemClock
from sqlext.errors import FlowError, NameTakenError, NotFoundError, SqlextError, UnsupportedError
from sqlext.execution import target
from sqlext.execution.flow import Flow, FlowPhase, FlowProgress
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
from sqlext.execution.spec import Column, FlowSpec, key_columns
from sqlext.jvm import HadoopPath
from sqlext.names import quote_parts
from sqlext.options import Options, resolve
from sqlext.plan import QUALIFIES, FlowPlan, OutputMode, TableDefinition

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1

_FLOW_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.pollingDelay": "100ms",  # how often an idle source is asked; Spark's own 10 ms keep a core busy
    "spark.databricks.delta.merge.materializeSource": "none",  # a flush's source is files that nobody changes
}


@dataclass(frozen=True)
class FlowRequest:
    """What a statement wants: a flow into a table.

    Attributes:
        name: of the flow.
        table: as written; the current catalog and database complete it.
        definition: of the table to create; None: the table exists.
        columns, by_name: of INSERT INTO.
        given: options, by level and key.
    """

    name: str
    table: tuple[str, ...]
    plan: FlowPlan
    statement: str
    given: Mapping[str, Mapping[str, str]]
    definition: TableDefinition | None = None
    properties: Mapping[str, str] | None = None
    columns: tuple[str, ...] = ()
    by_name: bool = False
    refresh: bool = False
    if_not_exists: bool = False


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
        self._registry = FlowRegistry(self._spark, self._home)
        self._lease = Lease(self._home)
        self._lock = threading.RLock()
        self._flows: Mapping[str, Flow] = {}
        self._reported: set[str] = set()
        self._closing = threading.Event()
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
                    self._run(record.spec, self._new_session(record.spec))
                taken.append(record.spec.name)
            except (SqlextError, *target.SPARK_ERRORS) as error:
                logger.error("flow %s cannot be taken up: %s", record.spec.name, jvm.reason_of(error))
                self._record(record.spec.id, EventKind.FAILED, detail=jvm.reason_of(error))
        return taken

    def close(self) -> None:
        """Stop all flows of this process, flushed; the registry keeps them as running, for the next host."""
        self._closing.set()
        if threading.current_thread() is not self._ticker:
            self._ticker.join(timeout=60)
        with self._lock:
            for flow in self._flows.values():
                try:
                    flow.stop()
                except (SqlextError, *target.SPARK_ERRORS) as error:
                    logger.error("flow %s did not stop cleanly: %s", flow.spec.name, jvm.reason_of(error))
            if self._flows:
                self._lease.end()
            self._flows = {}

    # What statements do.

    def create(self, session: SparkSession, request: FlowRequest, options: Options) -> str:
        """Make a flow and start it.

        Returns:
            A sentence with its name and id.

        Raises:
            SqlextError, PySparkException: nothing was made then.
        """
        with self._lock:
            name = target.qualified(session, request.table)
            records = self._registry.read()
            there = next((r for r in records.values() if r.spec.name.lower() == request.name.lower()), None)
            if there is not None and request.if_not_exists:
                return f"flow {there.spec.name} ({there.spec.id}) exists already, and stays as it is"
            replaced = there if request.refresh and there is not None and _same(there.spec.target, name) else None
            self._check_free(records, request.name, name, replaced)
            own = jvm.clone_session(session)
            self._check_query(own, request.plan, records)
            if replaced is not None:
                self._retire(replaced)
            spec = self._make_spec(session, own, request, name, replaced is not None)
            try:
                self._registry.append(lambda now: self._created(spec, now))
                self._run(spec, own, options)
            except BaseException:
                self._undo(spec, drop_table=request.definition is not None)
                raise
            bound = f"; it reads {', '.join(spec.session_bound)} and so ends with this session" if spec.session_bound else ""
            return f"flow {spec.name} ({spec.id}) started into {'.'.join(name)}{bound}"

    def start(self, name: str) -> str:
        """Start a flow that was stopped or has failed."""
        with self._lock:
            record = find(self._registry.read(), name)
            flow = self._flows.get(record.spec.id)
            if flow is not None and flow.status()[0] is FlowPhase.RUNNING:
                return f"flow {record.spec.name} runs already"
            if record.state is FlowState.RUNNING and flow is None and self._lease.is_alive(record.host):
                raise FlowError(f"Flow `{record.spec.name}` runs in another process. STOP it there first.")
            session = flow.session if flow is not None else self._new_session(record.spec)
            self._run(record.spec, session)
            return f"flow {record.spec.name} ({record.spec.id}) started"

    def stop(self, name: str) -> str:
        """Stop a flow, flushed; it stays stopped until START FLOW."""
        with self._lock:
            record = find(self._registry.read(), name)
            flow = self._here(record)
            if flow is not None:
                flow.stop()
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
            flow = self._here(record)
            if flow is not None:
                flow.stop()
            self._forget(record.spec)
            return f"flow {record.spec.name} dropped; its target {'.'.join(record.spec.target)} stays"

    def alter(self, name: str, properties: Mapping[str, str]) -> str:
        """Set options; a flow that runs here goes on with them at once."""
        with self._lock:
            record = find(self._registry.read(), name)
            spec = record.spec.with_properties(properties)
            self.options_of(spec)  # refuses what is unknown or out of range
            flow = self._here(record)
            was_running = flow is not None and flow.status()[0] is FlowPhase.RUNNING
            if flow is not None and was_running:
                flow.stop()
            self._registry.append(FlowEvent(spec.id, EventKind.ALTERED, spec=spec.to_json()))
            if flow is not None and was_running:
                self._run(spec, flow.session)
            return f"flow {spec.name} altered: {', '.join(sorted(properties))}"

    def views(self) -> list[FlowView]:
        """All flows of the home, by name."""
        views = [self._view(record) for record in self._registry.read().values()]
        return sorted(views, key=lambda view: view.record.spec.name.lower())

    def view(self, name: str) -> FlowView:
        return self._view(find(self._registry.read(), name))

    def local_views(self) -> list[tuple[str, FlowPhase, FlowProgress, str]]:
        """Name, phase, progress and error of each flow of this process; asks no storage, so it may be called often."""
        return [(flow.spec.name, *flow.status()) for flow in self._flows.values()]

    def options_of(self, spec: FlowSpec) -> Options:
        return resolve(spec.levels(), lambda text: jvm.parse_duration(self._spark, text))

    # Making.

    def _check_free(self, records: Records, name: str, table: tuple[str, ...], replaced: FlowRecord | None) -> None:
        for record in records.values():
            if replaced is not None and record.spec.id == replaced.spec.id:
                continue
            if record.spec.name.lower() == name.lower():
                raise NameTakenError(
                    f"There is a flow `{record.spec.name}` already, into {'.'.join(record.spec.target)}. Choose another name, or "
                    "DROP FLOW it."
                )
            if _same(record.spec.target, table):
                raise NameTakenError(
                    f"The flow `{record.spec.name}` writes to {'.'.join(table)} already. Two flows into one target would undo "
                    "each other's rows; choose another target, or DROP FLOW it."
                )

    def _check_query(self, session: SparkSession, plan: FlowPlan, records: Records) -> None:
        for source in plan.graph.streams:
            name = target.qualified(session, source.name)
            maker = next((r.spec for r in records.values() if _same(r.spec.target, name)), None)
            if maker is not None and maker.output_mode is OutputMode.UPDATE:
                raise UnsupportedError(
                    f"The stream {'.'.join(name)} is kept up to date by flow `{maker.name}`, which changes rows; a stream of it "
                    "would see only appends and fail at the first change. Read its change feed: set delta.enableChangeDataFeed "
                    "on it and make a streaming view over readStream with readChangeFeed, or query the table without STREAM."
                )
        frame = session.sql(plan.sql)
        if not frame.isStreaming:
            raise UnsupportedError("The query reads no stream. Write FROM STREAM t to read t as one.")
        jvm.check_streaming(frame, plan.output_mode)

    def _make_spec(
        self, session: SparkSession, own: SparkSession, request: FlowRequest, name: tuple[str, ...], replace: bool
    ) -> FlowSpec:
        plan = request.plan
        frame = own.sql(plan.sql)
        flow_id = uuid.uuid4().hex
        given = dict(request.given)
        if request.definition is None:
            table = target.describe(session, name)
            columns = target.map_columns(frame, table, request.by_name, request.columns)
        else:
            if target.exists(session, name) and not replace:
                raise NameTakenError(
                    f"There is a table {'.'.join(name)} already. DROP TABLE it, choose another name, or feed it with INSERT INTO."
                )
            output = frame.drop(QUALIFIES).schema
            properties = {**(request.properties or {}), "sqlext.flow": flow_id}
            table = target.create(session, name, output, request.definition, properties, replace)
            columns = tuple(Column(column, column, kind) for column, kind in table.columns.items())
        return FlowSpec(
            id=flow_id,
            name=request.name,
            target=table.name,
            target_location=table.location,
            target_id=table.table_id,
            statement=request.statement,
            sql=plan.sql,
            output_mode=plan.output_mode,
            key=key_columns(plan.key, columns) if plan.output_mode is OutputMode.UPDATE else (),
            columns=columns,
            has_qualifies=QUALIFIES in frame.columns,
            not_idempotent_because=plan.not_idempotent_because,
            given=given,
            catalog=session.catalog.currentCatalog(),
            database=session.catalog.currentDatabase(),
            settings=dict(jvm.session_settings(session)),
            session_bound=tuple(
                s.name[0] for s in plan.graph.sources if len(s.name) == 1 and jvm.is_temporary_view(own, s.name[0])
            ),
        )

    def _undo(self, spec: FlowSpec, drop_table: bool) -> None:
        """Leave nothing of a flow that could not be made."""
        try:
            self._forget(spec)
            if drop_table:
                self._spark.sql(f"DROP TABLE IF EXISTS {quote_parts(spec.target)}")
        except (SqlextError, *target.SPARK_ERRORS) as error:
            logger.error("flow %s could not be undone: %s", spec.name, jvm.reason_of(error))

    def _retire(self, record: FlowRecord) -> None:
        flow = self._here(record)
        if flow is not None:
            flow.stop()
        self._forget(record.spec)

    def _forget(self, spec: FlowSpec) -> None:
        self._flows = {key: flow for key, flow in self._flows.items() if key != spec.id}
        self._record(spec.id, EventKind.DROPPED)
        self._home.child("flows", spec.id).delete()

    # Running.

    def _run(self, spec: FlowSpec, session: SparkSession, options: Options | None = None) -> None:
        self._lease.beat()
        records = self._registry.append(lambda now: self._started(spec, now))
        if (before := self._flows.get(spec.id)) is not None:
            before.stop()
        for key, value in _FLOW_SETTINGS.items():
            session.conf.set(key, value)
        home = self._home.child("flows", spec.id)
        flow = Flow(spec, options or self.options_of(spec), records[spec.id].epoch, home, session, self._clock)
        try:
            flow.start()
        except BaseException as error:
            self._record(spec.id, EventKind.FAILED, detail=jvm.reason_of(error))
            raise
        self._flows = {**self._flows, spec.id: flow}
        self._reported.discard(spec.id)

    def _created(self, spec: FlowSpec, records: Records) -> FlowEvent:
        self._check_free(records, spec.name, spec.target, None)
        return FlowEvent(spec.id, EventKind.CREATED, spec=spec.to_json())

    def _started(self, spec: FlowSpec, records: Records) -> FlowEvent:
        """The next epoch fences the driver before; a flow that lives elsewhere is not taken."""
        record = records[spec.id]
        if record.state is FlowState.RUNNING and record.host != self._lease.host_id and self._lease.is_alive(record.host):
            raise FlowError(f"Flow `{spec.name}` runs in another process.")
        return FlowEvent(spec.id, EventKind.STARTED, epoch=record.epoch + 1, host=self._lease.host_id)

    def _new_session(self, spec: FlowSpec) -> SparkSession:
        """A session like the one that made the flow."""
        session = jvm.clone_session(self._spark)
        for key, value in spec.settings.items():
            if session.conf.isModifiable(key):
                session.conf.set(key, value)
        session.catalog.setCurrentCatalog(spec.catalog)
        session.catalog.setCurrentDatabase(spec.database)
        return session

    def _record(self, flow_id: str, kind: EventKind, detail: str = "") -> None:
        self._registry.append(FlowEvent(flow_id, kind, host=self._lease.host_id, detail=detail))

    def _here(self, record: FlowRecord) -> Flow | None:
        """The flow in this process; an error when another live process runs it."""
        flow = self._flows.get(record.spec.id)
        if flow is None and record.state is FlowState.RUNNING and self._lease.is_alive(record.host):
            raise FlowError(f"Flow `{record.spec.name}` runs in another process. Send the statement there.")
        return flow

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
        while not self._closing.wait(TICK_SECONDS):
            if self._spark.sparkContext._jsc is None:  # noqa: SLF001  # Spark was stopped under us; there is no public way to ask
                return
            flows = list(self._flows.values())
            for flow in flows:
                self._guarded(flow.tick, flow)
                self._guarded(partial(self._report_failure, flow), flow)
            if flows:
                self._guarded(self._lease.beat, flows[0])

    def _report_failure(self, flow: Flow) -> None:
        phase, _, error = flow.status()
        if phase is FlowPhase.FAILED and flow.spec.id not in self._reported:
            self._reported.add(flow.spec.id)
            self._record(flow.spec.id, EventKind.FAILED, error)

    def _guarded(self, action: Callable[[], None], flow: Flow) -> None:
        """One flow's trouble must not end the ticker of all."""
        try:
            action()
        except Exception:
            if not self._closing.is_set():
                logger.exception("flow %s: the ticker failed on it", flow.spec.name)


def _same(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return [part.lower() for part in one] == [part.lower() for part in other]
