"""Snapshots of the flows, views and jobs in a warehouse folder, which may be in use: read with Python alone, without Java."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sqlext.errors import NotFoundError, SetupError, did_you_mean
from sqlext.execution.coordination import lease
from sqlext.execution.flows import registry
from sqlext.execution.flows.registry import FlowRecord, FlowRegistry
from sqlext.execution.flows.views import FlowView
from sqlext.execution.jobs import registry as job_registry
from sqlext.execution.jobs.registry import JobRecord, JobRegistry, JobState
from sqlext.execution.views import registry as view_registry
from sqlext.execution.views.graph import lineage_of
from sqlext.execution.views.registry import ViewRecord, ViewRegistry
from sqlext.execution.views.rows import ViewRow, state_of
from sqlext.execution.views.status import StatusFiles
from sqlext.options import HOME_KEY, OPTIONS, Level
from sqlext.page.collect import buffering_of, flow_summary, job_detail, job_summary, queries_of, trace_of_flow
from sqlext.page.files import LocalFolder, folder_at
from sqlext.page.flushes import FlushLog
from sqlext.page.graph import graph_of
from sqlext.page.joblog import JobLog
from sqlext.page.shown import shown_flow, shown_job
from sqlext.page.snapshot import FlowDetail, JobDetail, Overview, ViewDetail
from sqlext.page.trace import trace
from sqlext.page.viewlog import ViewLog, view_detail, view_summary
from sqlext.redaction import Redaction


class StoredHome:
    """The flows, views and jobs of one warehouse folder. Not thread-safe.

    Args:
        warehouse: the folder.
        given: the home, if it is not in the warehouse, as `spark.sqlext.home` has it.

    Raises:
        SetupError: there is no warehouse or home.
    """

    def __init__(self, warehouse: Path, given: str = "") -> None:
        home = _local(given) if given else warehouse.absolute() / "_sqlext"
        if not home.is_dir():
            what, option = (f"home in {home}", "--conf") if given else (f"warehouse in {warehouse}", "--warehouse")
            raise SetupError(f"There is no {what}: no flow, view or job was created there. Choose one with {option}.")
        if not os.access(home, os.R_OK | os.X_OK):
            raise SetupError(f"The home in {home} belongs to another user: only its owner may read it.")
        self._warehouse = warehouse
        self._home = LocalFolder(str(home))
        self._show = Redaction()
        show, flows, jobs = self._show, FlowRegistry(self._home).read(), JobRegistry(self._home).read()
        self._flows: Mapping[str, FlowRecord] = {
            key: replace(record, spec=shown_flow(record.spec, show)) for key, record in flows.items()
        }
        self._names = registry.shown_names(record.spec for record in self._flows.values())
        self._views: Mapping[str, ViewRecord] = view_registry.created(ViewRegistry(self._home).read())
        self._view_names = view_registry.shown_names(record.spec for record in self._views.values())
        self._statuses = StatusFiles(self._home)
        self._jobs: Mapping[str, JobRecord] = {key: shown_job(record, show) for key, record in jobs.items()}

    def overview(self) -> Overview:
        """Return all flows, views and jobs."""
        flows = [flow_summary(self._flow_view(record)) for record in self._flows.values()]
        views = [view_summary(self._view_row(record), _log_of(record), self._show) for record in self._views.values()]
        jobs = [job_summary(record, self._status(record)) for record in reversed(list(self._jobs.values()))]
        now = datetime.now(UTC)
        return Overview(
            taken_at=now,
            place=f"warehouse {self._warehouse.name}",
            flows=tuple(sorted(flows, key=lambda flow: flow.name.lower())),
            views=tuple(sorted(views, key=lambda view: view.name.lower())),
            jobs=tuple(jobs),
            is_live=False,
            graph=graph_of(lineage_of(self._flows, self._views), flows, views, now),
        )

    def detail(self, name: str) -> FlowDetail | ViewDetail | JobDetail:
        """Return the flow or the materialized view of a name, or the job of an id or of the beginning of an id.

        Raises:
            NotFoundError: there is none; the message suggests the nearest name.
        """
        flows, views = registry.all_by_end(self._flows, name), self._views_named(name)
        if len(flows) + len(views) > 1:
            found = [record.spec.qualified_name for record in flows] + [record.spec.name for record in views]
            names = [f"`{'.'.join(each)}`" for each in found]
            raise NotFoundError(f"There are several flows or views `{name}`: {', '.join(names)}. Give the schema too.")
        if flows:
            return self._flow(flows[0])
        if views:
            return view_detail(self._view_row(views[0]), _log_of(views[0]), self._show)
        try:
            return self._job(job_registry.find(self._jobs, name))
        except NotFoundError:
            known = [record.spec.name for record in self._flows.values()] + [*self._view_names.values(), *self._jobs]
            there = f"There are {', '.join(f'`{each}`' for each in known[:10])}." if known else "The warehouse has none."
            advice = did_you_mean(name, known) or f" {there}"
            raise NotFoundError(
                f"There is no flow or view `{name}`, and no single job whose id begins with it.{advice}"
            ) from None

    def _views_named(self, name: str) -> list[ViewRecord]:
        """Return the views whose qualified names end with a name."""
        end = registry.without_case(name.split("."))
        return [record for record in self._views.values() if registry.without_case(record.spec.name)[-len(end) :] == end]

    def _view_row(self, record: ViewRecord) -> ViewRow:
        status = self._statuses.read(record.spec.id)
        state = state_of(record, status, is_running=False, is_host_alive=self._is_alive(record.host))
        return ViewRow(record, self._view_names[record.spec.id], state, status, None)

    def _flow_view(self, record: FlowRecord) -> FlowView:
        status = "LOST" if record.is_active and not self._is_alive(record.host) else record.state.value
        return FlowView(record, status, None, record.error, False, self._names[record.spec.id])

    def _status(self, record: JobRecord) -> str:
        is_running = record.state is JobState.RUNNING
        return "LOST" if is_running and not self._is_alive(record.host) else str(record.state)

    def _is_alive(self, host: str) -> bool:
        return lease.is_alive(self._home.child("hosts"), host)

    def _flow(self, record: FlowRecord) -> FlowDetail:
        spec = record.spec
        folder, options = folder_at(spec.target_location, None), _options(spec.given)
        return FlowDetail(
            summary=flow_summary(self._flow_view(record)),
            text=spec.text,
            since=record.since,
            epoch=record.epoch,
            buffering=buffering_of(spec, options),
            flushes=FlushLog(folder, spec.id).read() if folder is not None else (),
            queries=queries_of(spec),
            options=options,
            trace=trace_of_flow(spec),
        )

    def _job(self, record: JobRecord) -> JobDetail:
        log = JobLog(self._home.child("jobs", record.spec.id))
        traced = trace(record.spec.text, is_batch=True)
        return job_detail(job_summary(record, self._status(record)), record, log, {}, traced)


def _local(home: str) -> Path:
    """Return the folder of a home.

    Raises:
        SetupError: it is not on this machine.
    """
    folder = folder_at(home, None)
    if not isinstance(folder, LocalFolder):
        raise SetupError(
            f"`{HOME_KEY}` is `{home}`, which is no folder of this machine: `sqlext report` starts no Spark to read it. The page "
            "of a process that runs with this home (--page) shows the same."
        )
    return folder.path.absolute()


def _log_of(record: ViewRecord) -> ViewLog:
    return ViewLog(record.spec, lambda location: folder_at(location, None))


def _options(given: Mapping[str, Mapping[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Return the options that were set, each at its level of the highest precedence."""
    rows = []
    for key in OPTIONS:
        found = ((level, given.get(level.name, {}).get(key)) for level in Level)
        rows += [(key, value, level.value) for level, value in found if value is not None][:1]
    return tuple(rows)
