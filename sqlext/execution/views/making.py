"""Materialized views made by statements, anew or in the place of others; and what a crash left of that, undone.

1. All checks pass (`creation.py`): the query, the names of its columns, the view's name, that it does not read itself, and, where
   a table is to be replaced, that Delta takes the new definition: an empty table that has it is made in the home, until step 5.
2. The view is reserved in the registry, with the id of the view that it replaces. From here to step 5, a failure is undone at
   once, and a crash by another host: a new table is dropped, a replaced one is restored, the reservation is taken back, and the
   view before is as it was.
3. A new table is created, empty.
4. The first refresh computes the view in full. Where there is a table to replace, its commit brings rows and definition at once:
   until then readers see the old ones, and a view that is replaced is not refreshed.
5. The view is recorded as created; the same event removes the view that it replaces.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from sqlext.errors import NameTakenError, ViewError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import target
from sqlext.execution.flows.registry import FlowRecord
from sqlext.execution.views.creation import (
    ViewRequest,
    check_cycle,
    check_free,
    check_policy,
    check_query,
    modelled,
    reserve,
    undo_table,
    with_table,
)
from sqlext.execution.views.graph import lineage_of
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.registry import Records, ViewEvent, ViewEventKind, ViewRecord, ViewRegistry, of_name
from sqlext.execution.views.writing import Replacement
from sqlext.plan.lineage import shown
from sqlext.plan.view_spec import RefreshReport, ViewSpec
from sqlext.spark import failures, jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

Flows = Callable[[], Mapping[str, FlowRecord]]
"""Returns the flows of the home, by id."""


class Views(Protocol):
    """The views of this process, as what makes them needs them; `ViewManager` is that."""

    def live(self, spec: ViewSpec, session: SparkSession | None = None) -> LiveView:
        """Return a view of this process.

        Args:
            spec: the view.
            session: its session, where it is just being made.
        """

    def known(self, view_id: str) -> LiveView | None:
        """Return a view of this process, if it was refreshed here."""

    def forget(self, view_id: str) -> None:
        """Refresh a view no more, and remove its status."""


class ViewMaker:
    """See the module's docstring. Any thread may call it: two statements about one name meet in the registry.

    Args:
        spark: any session of the application.
        home: where the registry lies.
        registry, lease: of this process.
        views: of this process.
        flows: of this process, whose tables are theirs.
    """

    def __init__(
        self,
        spark: SparkSession,
        home: HadoopPath,
        registry: ViewRegistry,
        lease: Lease,
        views: Views,
        flows: Flows,
    ) -> None:
        self._spark = spark
        self._home = home
        self._registry = registry
        self._lease = lease
        self._views = views
        self._flows = flows
        self._sweeping = threading.Lock()  # a start sweeps from two threads, and a restored table is not restored again
        self._making: set[str] = set()  # the ids of the views that this process is making now

    def create(self, request: ViewRequest, canceled: threading.Event | None = None) -> str:
        """Make a view; see `ViewManager.create`."""
        with jvm.names_as_in(request.session):
            return self._create(request, canceled)

    def _create(self, request: ViewRequest, canceled: threading.Event | None) -> str:
        self.sweep()
        records = self._registry.read()
        self._registry.refuse_unread(request.name)
        name = shown(request.name)
        if of_name(records, request.name) is not None and request.if_not_exists:
            return f"there is a materialized view {name} already, and it stays as it is"
        replaced = check_free(request, records, self._flows())
        self.check(request, records)
        spec = reserve(request)
        self._lease.beat()
        self._home.child("views").make_private()
        if not target.exists(request.session, request.name):
            report = self._make(request, spec, replaced, None, canceled)
            return _sentence(spec, report, replaced is not None)
        with modelled(spec, request, self._model_place(spec.id)) as (complete, replacement):
            report = self._make(request, complete, replaced, replacement, canceled)
        return _sentence(spec, report, is_replaced=True)

    def check(self, request: ViewRequest, records: Records) -> None:
        """See whether a query can be a view's.

        Raises:
            UnsupportedError, SchemaError: it cannot.
        """
        check_query(request)
        check_policy(request.session, request.name, request.query, request.policy)
        check_cycle(request, lineage_of(self._flows(), records))

    def _make(
        self,
        request: ViewRequest,
        spec: ViewSpec,
        replaced: ViewRecord | None,
        replacement: Replacement | None,
        canceled: threading.Event | None,
    ) -> RefreshReport:
        """Reserve a view, compute it, and record it; steps 2 to 5.

        Args:
            request: what the statement wants.
            spec: the view, complete if there is a table that it replaces.
            replaced: the view that it replaces.
            replacement: the table that it replaces.
            canceled: set when the client takes the statement back.
        """
        before = None if replaced is None else self._views.known(replaced.spec.id)
        self._making.add(spec.id)
        try:
            made = self._registry.append(partial(self._reserved, request, spec, replaced, replacement is not None))[spec.id]
            try:
                with nullcontext() if before is None else before.held(canceled):
                    report = self._compute(request, spec, replacement, canceled)
            except BaseException:
                with jvm.outside_of_any_query(self._spark):  # a statement that was canceled leaves nothing behind either
                    self._undo(made)
                raise
        finally:
            self._making.discard(spec.id)
        if replaced is not None:
            self._views.forget(replaced.spec.id)
        return report

    def _compute(
        self, request: ViewRequest, spec: ViewSpec, replacement: Replacement | None, canceled: threading.Event | None
    ) -> RefreshReport:
        """Compute a view that is reserved, and record it; steps 3 to 5."""
        made = with_table(spec, request) if replacement is None else spec
        report = self._views.live(made, request.session).make(replacement, canceled)
        self._registry.append(partial(self._created, made))
        return report

    def _model_place(self, view_id: str) -> HadoopPath:
        return self._home.child("views", "models", view_id)

    def _reserved(
        self, request: ViewRequest, spec: ViewSpec, replaced: ViewRecord | None, replaces_table: bool, records: Records
    ) -> ViewEvent:
        found = check_free(request, records, {})
        if (found and found.spec.id) != (replaced and replaced.spec.id):
            raise NameTakenError(
                f"The materialized view {shown(request.name)} was made, replaced or dropped by another statement just now. Send "
                "this one again if it still is to be made.",
                request.position,
            )
        return ViewEvent(
            spec.id,
            ViewEventKind.RESERVED,
            host=self._lease.host_id,
            spec=spec.to_json(),
            replaces="" if replaced is None else replaced.spec.id,
            replaces_table=replaces_table,
        )

    def _created(self, spec: ViewSpec, records: Records) -> ViewEvent:
        if spec.id not in records:
            raise ViewError(
                f"The materialized view {shown(spec.name)} was not made: this process gave no sign of life for so long that "
                "another one took it for dead, and undid what it had begun. Send the statement again."
            )
        return ViewEvent(spec.id, ViewEventKind.CREATED, host=self._lease.host_id, spec=spec.to_json())

    def sweep(self) -> None:
        """Undo views that a dead process left half created, or this one, where it could not undo them at once."""
        with self._sweeping:
            for record in self._registry.read().values():
                if record.is_reserved and self._is_left(record):
                    logger.warning("materialized view %s was not finished by the process that made it", shown(record.spec.name))
                    self._undo(record)

    def _is_left(self, record: ViewRecord) -> bool:
        if record.host == self._lease.host_id:
            return record.spec.id not in self._making
        return self._lease.is_dead(record.host)

    def _undo(self, reserved: ViewRecord) -> None:
        """Undo the creation of a view, given its reservation, which another process may have taken back already."""
        view_id = reserved.spec.id
        try:
            record = self._registry.read().get(view_id)
            if record is not None and not record.is_reserved:
                return
            self._views.forget(view_id)
            undo_table(self._spark, reserved if record is not None else _without_place(reserved))
            self._model_place(view_id).delete()
            if record is not None:
                self._registry.append(ViewEvent(view_id, ViewEventKind.DROPPED, host=self._lease.host_id))
        except Exception as error:  # what kept the view from being made is what the user is to see
            logger.exception("materialized view %s could not be undone: %s", view_id, failures.reason_of(error))


def _without_place(record: ViewRecord) -> ViewRecord:
    """Return a record without the place that its table was to have: since it was given up, others may have files there."""
    return replace(record, spec=replace(record.spec, location=""))


def _sentence(spec: ViewSpec, report: RefreshReport, is_replaced: bool) -> str:
    """Return the sentence that tells the user of a view that was made."""
    rows = f": {report.rows_inserted:,} rows" if report.rows_inserted >= 0 else ""
    bound = ""
    if spec.session_bound:
        bound = f"; it reads {', '.join(spec.session_bound)} and so can be refreshed only while this session's process lives"
    return f"materialized view {shown(spec.name)} {'replaced' if is_replaced else 'created'}{rows}{bound}"
