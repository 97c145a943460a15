"""What becomes of flows that fail: recorded, tried again later, or resumed at once where a new start heals.

The host's ticker looks at every flow ten times a second. What takes long, a new start, has a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.errors import FlowError, NewColumnsError, RunsElsewhereError, SqlextError
from sqlext.execution.coordination.fence import FencedError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.flows import faults, file_columns
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.live_flows import LiveFlows
from sqlext.execution.flows.registry import EventKind, FlowRecord, FlowRegistry
from sqlext.execution.flows.retries import Retries
from sqlext.execution.flows.status import FlowPhase
from sqlext.execution.state.buffer import is_lost
from sqlext.logs import about, carried
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import failures
from sqlext.spark.cancellation import wait_for
from sqlext.spark.failures import SPARK_ERRORS

logger = logging.getLogger(__name__)


class SupervisedFlows(Protocol):
    """The flows of this process, as their supervisor needs them; `FlowManager` is that."""

    @property
    def all(self) -> Mapping[str, Flow]:
        """By id."""

    def run(self, spec: FlowSpec, session: SparkSession, options: FlowOptions) -> None:
        """Start a flow."""

    def options_of(self, spec: FlowSpec) -> FlowOptions:
        """Return a flow's options, resolved from its record."""

    def session_for_start(self, spec: FlowSpec) -> SparkSession:
        """Return the session that a flow had here, or one like it."""

    def record(self, flow_id: str, kind: EventKind, detail: str = "", epoch: int | None = None, next_try: str = "") -> None:
        """Write an event of a flow into the registry."""


class FlowSupervisor:
    """See the module's docstring. `tick` is for one thread; any thread may call the rest.

    Args:
        flows: of this process.
        registry, lease: of this process.
        retries: the tries that are planned.
        live: of this process; who starts a flow has the turn at its table.
    """

    def __init__(self, flows: SupervisedFlows, registry: FlowRegistry, lease: Lease, retries: Retries, live: LiveFlows) -> None:
        self._flows = flows
        self._registry = registry
        self._lease = lease
        self._retries = retries
        self._live = live
        self._reported: WeakSet[Flow] = WeakSet()  # not their ids: a flow that replaces a failed one has the same
        self._changes_seen: dict[str, str] = {}  # the last change of a source that each flow was started again for
        self._restarts: WeakKeyDictionary[Flow, threading.Event] = WeakKeyDictionary()
        self._closing = threading.Event()

    def close(self) -> None:
        """Look at no flow any more, and start none."""
        self._closing.set()
        for restart in [*self._restarts.values()]:
            restart.set()

    def tick(self) -> None:
        """Look at each flow, report what has failed, and begin the tries that are due; nothing once this is closed."""
        flows = () if self._closing.is_set() else tuple(self._flows.all.values())
        for flow in (each for each in flows if not each.is_idle):
            with about(**flow.subject):
                self._guarded(flow.tick, flow.spec)
                self._guarded(partial(self._report_failure, flow), flow.spec)
                self._guarded(partial(self.note_done, flow), flow.spec)
                self._guarded(partial(self._report_switches, flow), flow.spec)
        for retry in () if self._closing.is_set() else self._retries.take_due():
            self._on_thread(partial(self._try_again, retry.spec), retry.spec)

    def resume(self, found: FlowRecord) -> bool:
        """Resume a flow of a host that has ended, unless somebody has started, stopped or changed it since its record was read.

        Returns:
            Whether it runs. One that cannot start is marked as failed, or retried if the fault may pass.
        """
        spec = found.spec
        with self._live.turn_at(spec.target):
            try:
                if self._registry.read().get(spec.id) != found:
                    return False
                if spec.session_bound:
                    raise FlowError(
                        f"Flow `{spec.name}` reads {', '.join(spec.session_bound)}, which ended with the session that made it. "
                        "DROP FLOW it and make it again."
                    )
                self._flows.run(spec, self._flows.session_for_start(spec), self._flows.options_of(spec))
            except Exception as error:  # noqa: BLE001  # one flow's trouble must not stop the others
                self.note_anyhow("cannot be resumed", spec, error)
                return False
            return True

    def note_running(self, flow_id: str) -> None:
        """Note that a flow has started, so no try is planned for it any more."""
        self._retries.note_running(flow_id)

    def note_failure(self, spec: FlowSpec, error: BaseException, epoch: int) -> None:
        """Record that a flow has failed: for good, or until its next try."""
        reason = faults.message_of(error)
        if not faults.may_pass(error):
            self._retries.drop(spec.id)
            self._flows.record(spec.id, EventKind.FAILED, reason, epoch)
        elif spec.id not in self._retries.planned():
            retry = self._retries.plan(spec, reason)
            logger.warning("flow %s is tried again at %s: %s", spec.name, retry.at.astimezone().strftime("%H:%M:%S"), reason)
            self._flows.record(spec.id, EventKind.RETRYING, reason, epoch, retry.at.isoformat())

    def note_anyhow(self, what: str, spec: FlowSpec, error: Exception) -> None:
        """Record a flow's failure by any error, even a bug. Never raises: one flow's failure must not stop the others."""
        with about(flow=".".join(spec.qualified_name)):  # of no epoch: it may have failed before it had one
            self._note_anyhow(what, spec, error)

    def _note_anyhow(self, what: str, spec: FlowSpec, error: Exception) -> None:
        if isinstance(error, (FencedError, RunsElsewhereError)):  # it has not failed: another process was faster
            logger.info("flow %s %s: %s", spec.name, what, error)
            return
        logger.error("flow %s %s: %s", spec.name, what, faults.message_of(error), exc_info=not faults.is_told(error))
        try:
            if (record := self._registry.read().get(spec.id)) is not None:  # somebody may have dropped it
                self.note_failure(spec, error, record.epoch)
        except Exception as problem:  # noqa: BLE001  # the registry itself may be what fails
            self._note_unrecorded(spec, error, problem)

    def _note_unrecorded(self, spec: FlowSpec, error: BaseException, problem: Exception) -> None:
        """Plan a try of a flow whose failure could not be recorded: unless it runs then, its failure is recorded then."""
        logger.error("flow %s: its failure cannot be recorded: %s", spec.name, failures.reason_of(problem), exc_info=problem)
        if faults.may_pass(problem) and spec.id not in self._retries.planned():
            self._retries.plan(spec, faults.message_of(error))

    def _report_failure(self, flow: Flow) -> None:
        if flow.phase is not FlowPhase.FAILED or flow in self._reported or (error := flow.error) is None:
            return
        self._reported.add(flow)
        change = faults.message_of(error) if faults.is_schema_change(error) else ""
        is_new = bool(change) and self._changes_seen.get(flow.spec.id) != change
        if is_lost(error) or is_new or isinstance(error, NewColumnsError):
            why = "an executor was lost with buffered rows" if is_lost(error) else "a source has other columns"
            logger.warning("flow %s: %s; restarting", flow.spec.name, why)
            self._changes_seen[flow.spec.id] = change  # the same change twice is one that no start takes in
            self._on_thread(partial(self._resume_failed, flow), flow.spec)
        else:
            try:
                self.note_failure(flow.spec, error, flow.epoch)
            except Exception as problem:  # noqa: BLE001  # as above
                self._note_unrecorded(flow.spec, error, problem)

    def note_done(self, flow: Flow) -> None:
        """Record that a flow has run once, if it has and that is not recorded, and end its threads."""
        if flow.spec.runs_once and flow not in self._reported and flow.phase is FlowPhase.DONE:
            self._reported.add(flow)
            try:
                self._flows.record(flow.spec.id, EventKind.DONE, epoch=flow.epoch)
            except Exception:  # the next tick tries again
                self._reported.discard(flow)
                raise
            flow.stop()

    def _report_switches(self, flow: Flow) -> None:
        """Record each change between live and backlog as an event."""
        for switch in flow.new_switches():
            self._flows.record(
                flow.spec.id, EventKind.PHASE, f"{switch.phase.value} at {switch.at.isoformat()}: {switch.because}"
            )

    def _on_thread(self, action: Callable[[], None], spec: FlowSpec) -> None:
        """Restart a flow on a thread of its own: that takes seconds."""
        threading.Thread(target=carried(self._guarded), args=(action, spec), name=f"sqlext-end-{spec.name}", daemon=True).start()

    def _resume_failed(self, flow: Flow) -> None:
        """Restart a failed flow, which restores what it has lost, or analyses its changed sources."""
        try:
            with self._live.turn_at(flow.spec.target):
                if self._flows.all.get(flow.spec.id) is flow and not self._closing.is_set():
                    self._start_again(flow)
        finally:
            self._restart_of(flow).set()

    def _start_again(self, flow: Flow) -> None:
        """Start a flow again by its record, since its options may have changed: with the columns that its files have, if new.

        1. The start adds the columns to the table, and records them. A crash before that leaves the flow as it was.
        2. The query with the columns is recorded, also where the start had nothing to add. After a crash before that, the
           micro-batch is looked at once more, and has the same columns.
        """
        try:
            record = self._registry.read().get(flow.spec.id)
            if record is None or not record.is_active:  # somebody has dropped or stopped it
                return
            spec, options = record.spec, self._flows.options_of(record.spec)
            is_new = isinstance(flow.error, NewColumnsError)
            if is_new and file_columns.may_grow(spec, options.flow):
                spec = file_columns.widened(spec, flow.error)
            self._run_or_note(spec, flow.session, options)
            if is_new and (now := self._flows.all.get(spec.id)) is not None and now is not flow:
                self._registry.alter(now.spec)
        except Exception as error:  # noqa: BLE001  # the registry does not answer, or there is a bug
            self.note_anyhow("could not be restarted", flow.spec, error)

    def _restart_of(self, flow: Flow) -> threading.Event:
        """Return what is set when a failed flow has been started again, or could not be."""
        return self._restarts.setdefault(flow, threading.Event())

    def wait(self, flow: Flow, timeout: timedelta) -> Flow:
        """Wait for all that had arrived to be in a flow's table; one whose files have new columns is started again meanwhile.

        Returns:
            The flow that has taken it in.

        Raises:
            SqlextError, PySparkException: as `Flow.wait` does; FlowError too, if it could not be started again.
        """
        deadline = Deadline(timeout.total_seconds())
        while True:
            try:
                flow.wait(timedelta(seconds=deadline.left))
                return flow
            except (SqlextError, *SPARK_ERRORS):
                flow.tick()  # which finds out why
                if not isinstance(flow.error, NewColumnsError):
                    raise
                if not wait_for(flow.session, self._restart_of(flow).wait, deadline.left):
                    raise
            successor = self._flows.all.get(flow.spec.id)
            if successor is None or successor is flow:
                record = self._registry.read().get(flow.spec.id)
                raise FlowError(f"Flow `{flow.spec.name}` has failed: {'' if record is None else record.error}")
            flow = successor

    def _try_again(self, spec: FlowSpec) -> None:
        """Retry a flow, unless somebody has started, stopped or dropped it meanwhile."""
        with self._live.turn_at(spec.target):
            try:
                record = self._registry.read().get(spec.id)
                flow = self._flows.all.get(spec.id)
                is_mine = record is not None and record.is_active and record.host == self._lease.host_id
                if record is None or not is_mine or self._closing.is_set() or (flow is not None and flow.is_running):
                    return
                session, options = self._flows.session_for_start(record.spec), self._flows.options_of(record.spec)
                self._run_or_note(record.spec, session, options)
            except Exception as error:  # noqa: BLE001  # the registry or the catalog does not answer, or there is a bug
                self.note_anyhow("could not be retried", spec, error)

    def _run_or_note(self, spec: FlowSpec, session: SparkSession, options: FlowOptions) -> None:
        try:
            self._flows.run(spec, session, options)
        except Exception as error:  # noqa: BLE001  # also where it did not come to start
            self.note_anyhow("could not be restarted", spec, error)

    def _guarded(self, action: Callable[[], None], spec: FlowSpec) -> None:
        """Do something for one flow; its trouble must not end the ticker of all."""
        try:
            action()
        except Exception:
            if not self._closing.is_set():
                logger.exception("flow %s: the ticker failed", spec.name)
