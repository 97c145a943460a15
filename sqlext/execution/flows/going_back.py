"""Savepoints of the flows of one process, made, listed and dropped by statements, and flows set back to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pyspark.sql import SparkSession

from sqlext.clock import Clock
from sqlext.errors import FlowError, StatementCanceledError, UnsupportedError
from sqlext.execution.coordination.fence import Fence
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import target
from sqlext.execution.flows import alteration, replay, restoration
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.live_flows import LiveFlows, resumed_if_undone
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRecord, FlowRegistry, FlowState, Records, current, find
from sqlext.execution.flows.savepoints import (
    SavepointStore,
    clear_earlier,
    content_of,
    has_buffered,
    refuse_changed_state,
    refuse_placed_state,
)
from sqlext.execution.flows.status import FlowPhase
from sqlext.moments import Moment, announce
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.savepoint import Savepoint
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)


class Flows(Protocol):
    """The flows of this process, as their savepoints need them; `FlowManager` is that."""

    def run(self, spec: FlowSpec, session: SparkSession, options: FlowOptions) -> None:
        """Start a flow."""

    def here(self, record: FlowRecord) -> Flow | None:
        """Return a flow of this process; raise FlowError if another live process runs it."""

    def end(self, flow: Flow | None) -> None:
        """Stop a flow, even if its last flush fails."""

    def let_go(self, flow_id: str) -> None:
        """Forget what this process has of a flow, which has ended."""

    def fence(self, spec: FlowSpec, epoch: int) -> Fence:
        """Return the fence of a flow, as the driver with an epoch sees it."""

    def options_of(self, spec: FlowSpec) -> FlowOptions:
        """Return a flow's options, resolved from its record."""

    def session_of(self, spec: FlowSpec) -> SparkSession:
        """Return a session like the flow's own."""

    def session_for_start(self, spec: FlowSpec) -> SparkSession:
        """Return the session that a flow had here, or one like it."""


class FlowSavepoints:
    """See the module's docstring.

    Args:
        home: where the flows' folders lie.
        registry, lease: of this process.
        flows, live: of this process.
        clock: for the times of savepoints.
    """

    def __init__(
        self, home: HadoopPath, registry: FlowRegistry, lease: Lease, flows: Flows, live: LiveFlows, clock: Clock
    ) -> None:
        self._home = home
        self._registry = registry
        self._lease = lease
        self._flows = flows
        self._live = live
        self._clock = clock

    def of(self, spec: FlowSpec) -> list[Savepoint]:
        """Return the savepoints of a flow, oldest first."""
        return self._store(spec).all()

    def listed(self, name: tuple[str, ...]) -> list[tuple[FlowSpec, Savepoint]]:
        """Return savepoints with their flows.

        Args:
            name: of a flow, qualified; empty: all flows.
        """
        records = self._registry.read()
        chosen = [find(records, name)] if name else current(records)
        return [(record.spec, each) for record in chosen for each in self.of(record.spec)]

    def make(self, name: tuple[str, ...], wanted: str, canceled: threading.Event) -> str:
        """Make a savepoint of a flow, which pauses meanwhile.

        Args:
            name: of the flow, qualified.
            wanted: the savepoint's name; empty: one is made of the time.
            canceled: set when the client waits no longer.

        Raises:
            SqlextError, PySparkException: there is no savepoint, and the flow runs as before.
        """
        with self._live.turn_of(name) as record:
            records = self._registry.read()
            spec, flow = record.spec, self._flows.here(record)
            session, store = self._flows.session_of(spec), self._store(spec)
            restoration.refuse_savepoints(session, spec, records)
            target.check_same_table(session, spec)
            now = self._clock.now()
            savepoint = store.free_name(wanted, now)
            _refuse_phase(record, flow)
            alteration.refuse_begun(self._home_of(spec), spec)
            self._lease.beat()  # from here on, so that nobody takes what is being made for what a crash has left
            store.clear_leftovers(self._lease.is_elsewhere)
            with self._paused(record, flow, canceled):
                replay.finish_all(session, spec)
                replayed = replay.transactions(session, spec)
                content = content_of(self._home_of(spec), spec)
                refuse_placed_state(spec, content)
                refuse_changed_state(session, spec, content)
                if has_buffered(session, spec, content):
                    raise FlowError(
                        f"Flow `{spec.name}` has rows in its buffer that its last flush has not brought into its table. START "
                        "FLOW it first; a flow that runs may have savepoints, too."
                    )

                def check() -> None:
                    self._check_same(record, self._registry.read())
                    refuse_changed_state(session, spec, content)
                    if replay.transactions(session, spec) != replayed:
                        raise FlowError(f"Rows of flow `{spec.name}` were replayed meanwhile by another process. Try again.")

                made = store.make(session, spec, savepoint, now, self._lease.host_id, check)
            logger.info("flow %s: savepoint %s, %d bytes", spec.name, made.name, made.bytes)
            return f"savepoint {made.name} of flow {spec.name}: version {made.target_version} of {'.'.join(spec.target)}"

    def drop(self, name: tuple[str, ...], wanted: str, if_exists: bool) -> str:
        """Delete a savepoint of a flow."""
        with self._live.turn_of(name) as record:
            store = self._store(record.spec)
            there = {each.name.lower() for each in store.all()}
            if if_exists and wanted.lower() not in there:
                return f"there is no savepoint {wanted} of flow {record.spec.name}"
            found = store.one(wanted)
            restoration.check_still_there(found, record.spec)
            store.drop(found)
            store.clear_leftovers(self._lease.is_elsewhere)
            return f"savepoint {found.name} of flow {record.spec.name} dropped"

    def restore(self, name: tuple[str, ...], wanted: str, canceled: threading.Event) -> str:
        """Set a flow and its table back to a savepoint, as `restoration` has it; it runs on if it ran.

        Args:
            name: of the flow, qualified.
            wanted: the savepoint's name.
            canceled: set when the client waits no longer; ends this before anything has changed.

        Raises:
            SqlextError, PySparkException: before step 3, the flow runs as before; after it, the next start goes on.
        """
        with self._live.turn_of(name) as record:
            records = self._registry.read()
            flow, store, home = self._flows.here(record), self._store(record.spec), self._home_of(record.spec)
            savepoint = store.one(wanted)
            alteration.refuse_begun(home, record.spec)
            spec = restoration.restored(savepoint, record.spec)
            options = self._flows.options_of(spec)
            check = self._flows.session_of(spec)
            restoration.check_restorable(check, store, savepoint, record.spec, records, home)  # 1
            others = restoration.changed_by_others(check, record.spec, savepoint)
            session = self._flows.session_for_start(spec)
            with resumed_if_undone(self._flows.run, record, flow):
                self._flows.end(flow)
                if canceled.is_set():
                    raise StatementCanceledError("The statement was canceled.")
                replay.finish_all(check, record.spec)
                restoration.prepare(check, store, savepoint, spec, home, self._clock.now())  # 2
                store.by_id(savepoint.id)  # as long as it is on record, all of it was there to be copied
                announce(Moment.RESTORE_PREPARED, spec.name)
                restoration.refuse_rows_of_others(check, record.spec, savepoint)  # who have written while it was prepared
                epoch = self._decide(record, spec)  # 3
            self._flows.let_go(spec.id)
            announce(Moment.RESTORE_DECIDED, spec.name)
            if record.is_active:
                self._flows.run(spec, session, options)
            else:
                self.finished(spec, epoch)
            how = "" if record.is_active else "; it is stopped: START FLOW goes on from there"
            return f"flow {spec.name} restored to savepoint {savepoint.name}{others}{how}"

    def finished(self, spec: FlowSpec, epoch: int) -> FlowSpec:
        """Return a flow whose table is set back, if that was to be done (steps 4 and 5).

        Args:
            spec: the flow, which does not run.
            epoch: of this driver.
        """
        if not spec.restoring:
            return spec
        home, store = self._home_of(spec), self._store(spec)
        fence = self._flows.fence(spec, epoch)
        fence.take()
        own = self._flows.session_of(spec)
        restoration.set_table_back(own, store, spec, epoch, fence.check)  # 4
        announce(Moment.RESTORE_COMMITTED, spec.name)
        done = restoration.completed(spec)

        def event(records: Records) -> FlowEvent:
            if spec.id not in records or records[spec.id].spec.application != spec.application:
                raise FlowError(f"Another driver has set flow `{spec.name}` back meanwhile, or dropped it.")
            return FlowEvent(spec.id, EventKind.ALTERED, spec=done.to_json())

        self._registry.append(event)  # 5
        clear_earlier(home, done)
        return done

    def _decide(self, record: FlowRecord, spec: FlowSpec) -> int:
        """Record that a flow is set back, and return the epoch of this driver."""

        def event(records: Records) -> FlowEvent:
            self._check_same(record, records)
            restoration.refuse_records(record.spec, records)
            return FlowEvent(spec.id, EventKind.RESTORED, epoch=record.epoch + 1, host=self._lease.host_id, spec=spec.to_json())

        return self._registry.append(event)[spec.id].epoch

    def _check_same(self, record: FlowRecord, records: Records) -> None:
        """See that no other driver has had a flow since its record was read."""
        now = records.get(record.spec.id)
        if now is None or now.epoch != record.epoch:
            raise FlowError(f"Another driver has taken, changed or dropped flow `{record.spec.name}` meanwhile. Try again.")

    @contextmanager
    def _paused(self, record: FlowRecord, flow: Flow | None, canceled: threading.Event) -> Iterator[None]:
        """Stop a flow, flushed, for the time of the `with` block."""
        if flow is None or not flow.is_running:
            yield
            return
        try:
            flow.stop(canceled)
            if flow.work.is_interrupted:
                raise StatementCanceledError("The statement was canceled.")
            yield
        finally:
            if flow.error is None:  # one whose last flush has failed is its supervisor's
                with jvm.outside_of_any_query(flow.session):
                    self._flows.run(record.spec, flow.session, flow.options)

    def _home_of(self, spec: FlowSpec) -> HadoopPath:
        return self._home.child("flows", spec.id)

    def _store(self, spec: FlowSpec) -> SavepointStore:
        return SavepointStore(self._home_of(spec))


def _refuse_phase(record: FlowRecord, flow: Flow | None) -> None:
    """Refuse a savepoint of a flow that neither runs nor was stopped."""
    phase = None if flow is None else flow.phase
    if phase is FlowPhase.PREREQUISITES:
        raise UnsupportedError(f"Flow `{record.spec.name}` has no rows yet: its bounded stages run. WAIT FLOW it first.")
    is_at_rest = record.state is FlowState.STOPPED and not record.spec.restoring
    if not (phase is FlowPhase.RUNNING or is_at_rest):
        state = record.state.lower() if phase is None else phase.lower()
        raise FlowError(
            f"Flow `{record.spec.name}` is {state}: what it has done last may not be in its table. START FLOW it first."
        )
