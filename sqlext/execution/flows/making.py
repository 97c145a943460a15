"""Flows made by statements, anew, in the place of others, or found there already; and what a crash left of that, undone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from sqlext.errors import FlowError, StatementCanceledError, UnsupportedError
from sqlext.execution.coordination.fence import Fence, FencedError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import quarantine, target
from sqlext.execution.flows import alteration, constraint_checks, definition, source_changes, state_choice, succession
from sqlext.execution.flows.added_streams import widened
from sqlext.execution.flows.alteration import Alteration
from sqlext.execution.flows.analysis import analyse_flow
from sqlext.execution.flows.creation import (
    FlowRequest,
    check_cycle,
    check_free,
    check_sources,
    create_quarantines,
    existing,
    reserve,
    same_name,
    with_table,
)
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.live_flows import LiveFlows
from sqlext.execution.flows.preparation import prepare, try_table
from sqlext.execution.flows.redefinition import redefined
from sqlext.execution.flows.registry import (
    EventKind,
    FlowEvent,
    FlowRecord,
    FlowRegistry,
    FlowState,
    Records,
    current,
    still_there,
)
from sqlext.execution.streaming import queries
from sqlext.moments import Moment, announce
from sqlext.plan.constraints import Constraint
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import failures, jvm, sessions
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)


class Flows(Protocol):
    """The flows of this process, as what makes them needs them; `FlowManager` is that."""

    def run(self, spec: FlowSpec, session: SparkSession, options: FlowOptions) -> None:
        """Start a flow."""

    def here(self, record: FlowRecord) -> Flow | None:
        """Return a flow of this process; raise FlowError if another live process runs it."""

    def end(self, flow: Flow | None) -> None:
        """Stop a flow, even if its last flush fails."""

    def forget(self, spec: FlowSpec) -> None:
        """Remove a flow from the registry, and its folder."""

    def start_record(self, record: FlowRecord) -> bool:
        """Start a flow; False: it runs already."""

    def alter_record(self, record: FlowRecord, spec: FlowSpec, options: FlowOptions) -> None:
        """Record a flow's options, and apply them to the running flow."""

    def fence(self, spec: FlowSpec, epoch: int) -> Fence:
        """Return the fence of a flow, as the driver with an epoch sees it."""

    def taken_at_rest(self, record: FlowRecord) -> FlowRecord:
        """Return the record of a flow, taken by this process if it was stopped: drivers before commit no more."""

    def options_of(self, spec: FlowSpec) -> FlowOptions:
        """Return a flow's options, resolved from its record."""

    def session_of(self, spec: FlowSpec) -> SparkSession:
        """Return a session like a flow's own."""

    def constrain(self, table: tuple[str, ...], constraints: tuple[Constraint, ...]) -> None:
        """Give all flows into a table other constraints on its rows."""


class FlowMaker:
    """See the module's docstring. Its caller has the turn at the table of the flow.

    Args:
        spark: any session of the application.
        home: where the flows' folders lie.
        registry, lease: of this process.
        flows, live: of this process.
    """

    def __init__(
        self, spark: SparkSession, home: HadoopPath, registry: FlowRegistry, lease: Lease, flows: Flows, live: LiveFlows
    ) -> None:
        self._spark = spark
        self._home = home
        self._registry = registry
        self._lease = lease
        self._flows = flows
        self._live = live

    def create(self, request: FlowRequest, name: tuple[str, ...], canceled: threading.Event | None = None) -> str:
        """Make a flow and start it; see `FlowManager.create`.

        Args:
            name: of its table, qualified.
        """
        self.sweep()
        session = request.session
        full_name = target.qualified(session, request.name)
        records = self._registry.read()
        self._registry.refuse_unread(full_name)
        self._registry.refuse_unread(name)
        there = existing(records, request, full_name, name)
        if there is not None and request.if_not_exists:
            return f"flow {there.spec.name} ({there.spec.id}) exists already, and stays as it is"
        is_table_there = there is not None and there.spec.owns_target and target.exists(session, name)
        if there is not None and request.refresh and is_table_there:
            return self._refresh(there, request, records)
        is_replaced = request.replace or (request.refresh and there is not None and there.spec.owns_target)
        replaced = there if is_replaced else None
        check_free(records, full_name, name, request.appends, replaced)
        flow = None if replaced is None else self._flows.here(replaced)
        destination = prepare(request, name, records)
        reserved = reserve(request, full_name, name, constraint_checks.recorded(request), replaced)
        home = self._home_of(reserved)
        if reserved.replaces_table:
            try_table(request, home)
        self._lease.beat()
        was_running = False
        try:
            self._registry.append(partial(self._reserved, reserved, request.appends, replaced))
            was_running = flow is not None and flow.is_running
            self._flows.end(flow)
            spec = with_table(reserved, request, destination, home)
            announce(Moment.TABLE_MADE, spec.name)
            self._flows.run(spec, session, request.flow.options)
            if canceled is not None and canceled.is_set():
                raise StatementCanceledError("The statement was canceled.")
        except BaseException:
            with jvm.outside_of_any_query(self._spark):  # a statement that was canceled leaves nothing behind either
                self._flows.end(self._live.get(reserved.id))
                self._undo(reserved)
                if flow is not None and was_running:
                    self._run_again(flow)
            raise
        if replaced is not None:
            self._end_succession(spec, replaced.spec)
        bound = f"; it reads {', '.join(spec.session_bound)} and so ends with this session" if spec.session_bound else ""
        state = f"; its state lives in RocksDB: {spec.rocksdb_because.rstrip('.')}" if spec.rocksdb_because else ""
        return f"flow {spec.name} ({spec.id}) started into {'.'.join(name)}{state}{bound}"

    def _refresh(self, record: FlowRecord, request: FlowRequest, records: Records) -> str:
        """Bring a flow up to date with a statement of the same definition; nothing that it has written is touched.

        Raises:
            NameTakenError: the definition is another one.
        """
        session, done = request.session, list[str]()
        if alteration.note_in(self._home_of(record.spec)) is not None and self._flows.start_record(record):
            record, done = still_there(self._registry.read(), record.spec), ["restarted"]
        spec = record.spec
        target.check_same_table(session, spec)
        change = definition.update(spec, request, target.describe(session, spec.target).properties)
        options = self._flows.options_of(change.spec)  # refuses what is unknown or out of range
        of_state = state_choice.changes(self._flows.options_of(spec), options)
        changed = definition.differences(session, spec, request, of_state)
        if changed == [definition.QUERY]:
            record, said = self._with_query(record, request)
            spec, done = record.spec, [*done, said]
            change = definition.update(spec, request, target.describe(session, spec.target).properties)
        else:
            definition.check_same(spec, request, changed)
        if change.spec.constraints != spec.constraints:
            constraint_checks.check(request, spec.target, spec.streams[0].columns, records)
            self._check_others(spec, [each for each in change.spec.constraints if each not in spec.constraints])
            create_quarantines(session, change.spec)
        is_elsewhere = record.is_active and self._lease.is_elsewhere(record.host)
        if is_elsewhere and change.spec == spec and not change.names():
            return f"flow {spec.name} ({spec.id}) runs in another process"
        done += [f"altered: {', '.join(change.names())}"] if change.names() else []
        if change.spec.constraints != spec.constraints:
            self._flows.constrain(spec.target, change.spec.constraints)  # others may write the table, too
        if change.spec != spec:
            self._flows.alter_record(record, change.spec, options)
        target.alter(session, spec.target, change.set, change.unset, change.comment)
        if self._flows.start_record(replace(record, spec=change.spec)):
            done.append("restarted")
        return f"flow {spec.name} ({spec.id}) keeps running{'; ' if done else ''}{', '.join(done)}"

    def _check_others(self, spec: FlowSpec, added: list[Constraint]) -> None:
        """See that constraints which a flow's table gets can be checked for the rows of other flows into it, too."""
        records = self._registry.read()
        into_it = [each.spec for each in current(records) if same_name(each.spec.target, spec.target)]
        for other in (each for each in into_it if each.id != spec.id):
            session = self._flows.session_of(other)
            for constraint in added:
                constraint_checks.check_of_flow(session, other, constraint, records)

    def _with_query(self, record: FlowRecord, request: FlowRequest) -> tuple[FlowRecord, str]:
        """Give a flow the query of CREATE OR REFRESH, in a session like the flow's, and not that of the statement."""
        spec, plan = record.spec, request.plan
        own = sessions.session_for(self._flows.session_of(spec), plan.references)
        try:
            flow = analyse_flow(own, plan, request.flow.options, queries.analyse(own, plan), makes_table=True)
            said = self.change_query(record, replace(request, flow=flow), threading.Event())
        except UnsupportedError as error:
            definition.check_same(spec, request, [definition.QUERY], error.message)
            raise
        return still_there(self._registry.read(), spec), said

    def change_query(self, record: FlowRecord, request: FlowRequest, canceled: threading.Event) -> str:
        """Give a flow another query, in place; see `alteration.py`.

        Args:
            request: with the new query, analysed in a session like the flow's.

        Returns:
            A sentence on what becomes of each column.

        Raises:
            UnsupportedError: it cannot be changed in place; the message is the reason. The flow is as it was.
            FlowError: the flow has failed, or is altered elsewhere.
        """
        spec, session, home = record.spec, request.session, self._home_of(record.spec)
        target.check_same_table(session, spec)
        if (wider := widened(spec, request)) is not None:
            check_sources(request, self._registry.read())
            check_cycle(request)
            self._while_at_rest(record, session, partial(self._widened, spec=wider.spec), canceled)
            return str(wider)
        table = target.describe(session, spec.target)
        change = redefined(spec, request, table)
        constraint_checks.check(request, spec.target, None, self._registry.read())

        def change_it(record: FlowRecord) -> FlowSpec:
            check = self._flows.fence(record.spec, record.epoch).check
            new = Alteration(session, home, spec, request, change, record.epoch, check).run(self._lease.host_id, canceled)
            check()
            self._registry.alter(new)
            announce(Moment.ALTERATION_RECORDED, spec.name)
            check()
            alteration.finish(home, new)
            return new

        new = self._while_at_rest(record, session, change_it, canceled)
        is_moved = [column.target for column in new.columns] != [*table.columns]
        return "; ".join(map(str, change.changes)) or f"the columns have {'another' if is_moved else 'the same'} order"

    def _widened(self, record: FlowRecord, spec: FlowSpec) -> FlowSpec:
        self._flows.fence(record.spec, record.epoch).check()
        self._registry.alter(spec)
        return spec

    def _while_at_rest(
        self, record: FlowRecord, session: SparkSession, change: Callable[[FlowRecord], FlowSpec], canceled: threading.Event
    ) -> FlowSpec:
        """Stop a flow if it runs, change it, and let it run again, in a session for its new query.

        Args:
            change: takes the flow's record, and returns the changed flow.

        Raises:
            FlowError: not all that it has read is in its table.
        """
        spec, home, flow = record.spec, self._home_of(record.spec), self._flows.here(record)
        was_running = flow is not None and flow.is_running
        if not was_running and (record.state is not FlowState.STOPPED or not alteration.is_at_rest(home, spec)):
            raise FlowError(
                f"Flow `{spec.name}` does not run, and not all that it has read is in its table. START FLOW it first."
            )
        sessions.prepare(session, self._home.location, partial(source_changes.most_files, session, spec))
        self._lease.beat()  # from here on, so that nobody takes what is being made for what a crash has left
        try:
            if flow is not None and was_running:
                flow.stop(canceled)
                if flow.has_buffered:
                    raise FlowError(f"Flow `{spec.name}` could not flush all that it has read. Try again.")
            new = change(record if was_running else self._flows.taken_at_rest(record))
        except BaseException as error:
            with jvm.outside_of_any_query(self._spark):
                self._after_failure(record, was_running and not isinstance(error, FencedError))
            raise
        if was_running:
            self._flows.run(new, session, self._flows.options_of(new))
        return new

    def _after_failure(self, record: FlowRecord, is_restarted: bool) -> None:
        """Undo a change of a query that has failed, or bring it to its end, if its commit was made; restart the flow."""
        home, note = self._home_of(record.spec), alteration.note_in(self._home_of(record.spec))
        now = still_there(self._registry.read(), record.spec).spec
        if note is not None and note.host == self._lease.host_id:  # else another driver has seen to it
            now = alteration.settled(jvm.clone_session(self._spark), home, now, self._registry.alter, self._lease.host_id)
        if is_restarted:
            self._flows.fence(record.spec, record.epoch).check()
            self._flows.run(now, self._flows.session_of(now), self._flows.options_of(now))

    def _home_of(self, spec: FlowSpec) -> HadoopPath:
        return self._home.child("flows", spec.id)

    def _reserved(self, spec: FlowSpec, appends: bool, replaced: FlowRecord | None, records: Records) -> FlowEvent:
        check_free(records, spec.qualified_name, spec.target, appends, replaced)
        return FlowEvent(spec.id, EventKind.RESERVED, host=self._lease.host_id, spec=spec.to_json())

    def sweep(self) -> None:
        """Undo flows that were left half created, and complete replacements that a dead process left half done.

        This process leaves one where undoing it has failed. What another thread of it is about is left to that thread: whoever
        has a turn waits for no other one.
        """
        for record in self._registry.read().values():
            if self._is_in_question(record):
                try:
                    with self._live.turn_at(record.spec.target, patience=0.0) as has_turn:
                        if has_turn:
                            self._sweep(record.spec.id, self._registry.read())
                except Exception:  # one flow's trouble must not stop the others
                    logger.exception("flow %s: what was left of its creation cannot be cleared away", record.spec.name)

    def _is_in_question(self, record: FlowRecord) -> bool:
        if record.state is FlowState.RESERVED:  # of this process too: who has the turn knows that nobody is making it
            return not self._lease.is_elsewhere(record.host)
        return bool(record.spec.replaces) and (record.has_succeeded or self._lease.is_dead(record.host))

    def _sweep(self, flow_id: str, records: Records) -> None:
        record = records.get(flow_id)
        if record is None or not self._is_in_question(record):
            return
        if succession.is_half_made(record, records):
            logger.warning("flow %s was not made to its end, and is undone", record.spec.name)
            self._undo(record.spec)
        elif record.spec.replaces in records:
            self._end_succession(record.spec, records[record.spec.replaces].spec)

    def _end_succession(self, spec: FlowSpec, replaced: FlowSpec) -> None:
        """Record that a flow runs in the place of another: it is not undone any more, and the other one is removed."""
        self._registry.append(FlowEvent(spec.id, EventKind.SUCCEEDED, host=self._lease.host_id))
        for name in replaced.quarantine_tables:
            quarantine.forget(jvm.clone_session(self._spark), name, replaced.id)
        self._flows.forget(replaced)

    def _undo(self, spec: FlowSpec) -> None:
        """Undo the creation of a flow, given its reservation; nothing was made of one that is not on record.

        Its table is dropped if the flow created it, and the table that it replaced is restored.
        """
        try:
            records = self._registry.read()
            if spec.id in records:
                succession.undo_table(jvm.clone_session(self._spark), spec, records)
                self._flows.forget(spec)
        except Exception as error:  # what kept the flow from being made is what the user is to see
            logger.exception("flow %s could not be undone: %s", spec.name, failures.reason_of(error))

    def _run_again(self, flow: Flow) -> None:
        """Restart a flow that could not be replaced."""
        try:
            self._flows.run(flow.spec, flow.session, flow.options)
        except Exception as error:
            logger.exception("flow %s could not be restarted: %s", flow.spec.name, failures.reason_of(error))
