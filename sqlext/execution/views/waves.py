"""The waves of the views of one process, and the graph along which they go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from pyspark.sql import SparkSession

from sqlext.errors import WaitTimeoutError
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.registry import FlowState
from sqlext.execution.views.graph import lineage_of, node_of_view
from sqlext.execution.views.live import LiveView
from sqlext.execution.views.needs import asked_elsewhere, needs_of_views
from sqlext.execution.views.registry import Records, ViewRegistry, created
from sqlext.execution.views.scheduler import unqueue
from sqlext.execution.views.status import ViewStatus
from sqlext.execution.views.wave import Pins, Refresh, Wave, process_ends
from sqlext.execution.views.workers import Workers
from sqlext.plan.lineage import Input, Lineage, Node, NodeKind, shown
from sqlext.plan.view_spec import RefreshReport, ViewSpec

Live = Callable[[ViewSpec], LiveView]
"""Returns a view of this process; raises ViewError if another one has its session."""
DEADLINE_SECONDS = 24 * 3600.0
"""How long a statement waits for a wave; the client may cancel it at any time."""


class Waves:
    """See the module's docstring. Any thread may call it.

    Args:
        spark: the host's own session.
        registry: of the views.
        flows: of the process.
        workers: refresh views.

    Attributes:
        lineage: the graph, as of the last look at the registries; it is only replaced.
        needs: how soon views are needed by target lags, as of then, in seconds, by their ids.
    """

    def __init__(self, spark: SparkSession, registry: ViewRegistry, flows: FlowManager, workers: Workers) -> None:
        self._spark = spark
        self._registry = registry
        self._flows = flows
        self._workers = workers
        self.lineage = Lineage(())
        self.needs: dict[str, float] = {}

    def look(self) -> Lineage:
        """Look at the registries, and return the graph."""
        records = self._registry.read()
        self.lineage = lineage_of(self._flows.records(), records)
        self.needs = needs_of_views(self.lineage, records)
        return self.lineage

    def asked_elsewhere(self, records: Records, host: str) -> dict[str, float]:
        """See `needs.asked_elsewhere`; as of the last look."""
        return asked_elsewhere(self.lineage, records, self.needs, host)

    def scheduled(self, views: Mapping[str, LiveView]) -> Wave:
        """Make a wave of views, by their keys, that were queued for being due."""

        def refresh(view: LiveView, pins: Pins) -> RefreshReport | None:
            try:
                return view.refresh_by_itself(pins=pins)
            finally:
                unqueue([view])

        lineage, end = self.lineage, partial(unqueue, views.values())
        keys = [key for key in lineage.upstream(views) if any(views[each].spec.id in self.needs for each in views)]
        flush = [partial(self._flows.flush_for_lag, each) for key in keys for each, _ in lineage.nodes[key].keepers]
        return Wave(self._spark, lineage, views, refresh, self._workers, self._free, end, flush)

    def needed_by(self, name: tuple[str, ...], inputs: tuple[Input, ...], lag: float) -> list[tuple[str, float]]:
        """Return the views below one with a target lag, and the seconds within which they would be refreshed for it.

        Args:
            name: of that view, which need not exist.
            inputs: what it reads.
            lag: its target lag, in seconds.
        """
        records = self._registry.read()
        kept = [node for node in lineage_of(self._flows.records(), records).nodes.values() if node.id]
        own = Node(Input(name).key, name, NodeKind.VIEW, inputs, id="new")
        lineage = Lineage([*(node for node in kept if node.shown.lower() != own.shown.lower()), own])
        needs = needs_of_views(lineage, records, {own.key: lag})
        below = {node.id: node.shown for node in map(lineage.nodes.__getitem__, lineage.upstream([own.key]))}
        return [(below[key], seconds) for key, seconds in needs.items() if key in below]

    def seconds_of(self, spec: ViewSpec, status: Callable[[str], ViewStatus]) -> float:
        """Return how long the last refreshes of a view and of the views that it reads took, together."""
        key = node_of_view(spec).key
        ids = [self.lineage.nodes[each].id for each in (*self.lineage.upstream([key]), key) if each in self.lineage.nodes]
        reports = [status(each).report for each in ids if each in self.needs]
        return sum(report.seconds for report in reports if report is not None)

    def begin(self, view: LiveView, is_full: bool) -> None:
        """Begin to refresh a view alone; a failure is noted. Raises ViewError if the process ends."""
        if not self._workers.submit(partial(view.refresh_by_itself, is_full)):
            raise process_ends(view.spec)

    def begin_chain(self, spec: ViewSpec, live: Live, is_full: bool) -> None:
        """Begin to refresh a view, the views that it reads, and those that read it, in one wave; failures are noted.

        Raises:
            ViewError: one of them cannot be refreshed in this process, or the process ends; nothing was done.
        """

        def refresh(view: LiveView, pins: Pins) -> RefreshReport | None:
            return view.refresh_by_itself(is_full and view.spec.id == spec.id, pins)

        self._begun(spec, live, True, refresh)

    def refresh_chain(
        self,
        spec: ViewSpec,
        live: Live,
        is_full: bool = False,
        with_readers: bool = False,
        canceled: threading.Event | None = None,
        seconds: float = DEADLINE_SECONDS,
    ) -> list[tuple[ViewSpec, RefreshReport]]:
        """Refresh a view and the views that it reads, in one wave.

        Args:
            spec: the view.
            live: returns a view of this process.
            is_full: whether to compute the view itself in full.
            with_readers: whether to refresh the views that read it, too.
            canceled: set when the client takes the statement back.
            seconds: how long to wait; the wave goes on.

        Returns:
            What was done, in the order of the graph.

        Raises:
            ViewError: one of them cannot be refreshed in this process, or the process ends.
            WaitTimeoutError: the wave has not ended in time.
            SqlextError, PySparkException: one has failed; what does not read it was refreshed.
        """

        def refresh(view: LiveView, pins: Pins) -> RefreshReport:
            return view.refresh(is_full and view.spec.id == spec.id, canceled, pins)

        wave, views = self._begun(spec, live, with_readers, refresh)
        if not wave.wait(canceled, seconds):
            raise WaitTimeoutError(
                f"The refresh of the materialized view {shown(spec.name)} has not ended after {seconds:.0f} s. It goes on; SHOW "
                "MATERIALIZED VIEWS tells what becomes of it, and WAIT FLOW .. TIMEOUT 1 hour waits longer."
            )
        for error in wave.errors.values():
            raise error
        return [(view.spec, wave.reports[each]) for each, view in views.items() if each in wave.reports]

    def _begun(self, spec: ViewSpec, live: Live, with_readers: bool, refresh: Refresh) -> tuple[Wave, Mapping[str, LiveView]]:
        """Begin the wave of a view's chain; return it, and its views by their keys, in the order of the graph."""
        lineage, key = self.look(), node_of_view(spec).key
        chain = {key, *lineage.upstream([key]), *(lineage.downstream([key]) if with_readers else ())}
        records = created(self._registry.read())
        nodes = [node for each, node in lineage.nodes.items() if each in chain and node.id in records]
        views = {node.key: live(records[node.id].spec) for node in nodes}
        wave = Wave(self._spark, lineage, views, refresh, self._workers, self._free)
        if not self._workers.submit(wave.begin):
            raise process_ends(spec)
        return wave, views

    def waits_for(self, failed: AbstractSet[str]) -> dict[str, str]:
        """See `Lineage.waits_for`.

        Args:
            failed: the ids of views that have failed; those of flows are known.
        """
        flows = {key for key, record in self._flows.records().items() if record.has_failed}
        return self.look().waits_for(failed | flows)

    def _free(self, keys: Iterable[str]) -> set[str]:
        """Return those of some tables that are kept by what does not run by itself: their age holds no reader back."""
        views, flows = created(self._registry.read()), self._flows.records()
        found: set[str] = set()
        for node in (self.lineage.nodes[key] for key in keys if key in self.lineage.nodes):
            view, keepers = views.get(node.id), [flows[each] for each, _ in node.keepers if each in flows]
            are_stopped = bool(keepers) and all(flow.state in (FlowState.STOPPED, FlowState.DONE) for flow in keepers)
            if are_stopped or (view is not None and view.spec.schedule.is_by_hand):
                found.add(node.key)
        return found
