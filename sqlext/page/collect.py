"""Snapshots of what this process knows: from its managers of flows, views and jobs, and from small files.

No Spark job runs. A snapshot is kept for a second, so that many readers cost no more than one. The trace of a statement is
made once for each flow and job.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import TypeVar, cast

from pyspark.sql import SparkSession

from sqlext.clock import Clock, SystemClock
from sqlext.commands.option_levels import session_levels
from sqlext.errors import NotFoundError, SqlextError
from sqlext.execution.backlog.status import describe
from sqlext.execution.flows.status import FlowProgress
from sqlext.execution.flows.views import FlowView
from sqlext.execution.host import Host
from sqlext.execution.jobs.manager import JobView
from sqlext.execution.jobs.registry import JobRecord, JobState
from sqlext.execution.views.rows import ViewRow
from sqlext.options import FLUSH_MAX_INTERVAL
from sqlext.page.files import folder_at
from sqlext.page.flushes import FlushLog
from sqlext.page.graph import graph_of
from sqlext.page.joblog import SINK, JobLog, spans_of, vertices_of
from sqlext.page.metrics import ProcessFigures
from sqlext.page.shown import shown_flow, shown_job
from sqlext.page.snapshot import (
    FlowDetail,
    FlowSummary,
    FlushView,
    JobDetail,
    JobSummary,
    LiveFigures,
    Overview,
    Trace,
    VertexView,
    ViewDetail,
    ViewSummary,
)
from sqlext.page.trace import SessionOptions, recorded_graph, trace
from sqlext.page.tracer import Tracer
from sqlext.page.viewlog import ViewLog, view_detail, view_summary
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import jvm
from sqlext.spark.jvm import are_names_case_sensitive, parse_duration
from sqlext.spark.process import java_figures
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)
T = TypeVar("T")

_KEPT_SECONDS = 1.0


class Collector:
    """The collector of snapshots. Any thread may call any method; the lock makes them take turns.

    Args:
        spark: a session of the application.
        host: the host of its flows, views and jobs.
    """

    def __init__(self, spark: SparkSession, host: Host, clock: Clock | None = None) -> None:
        self._spark = spark
        self._host = host
        self._clock = clock or SystemClock()
        self._tracer = Tracer()
        self._lock = threading.Lock()  # guards all below
        self._kept: dict[Hashable, tuple[float, object]] = {}
        self._traces: dict[str, tuple[str, Trace]] = {}
        self._flushes: dict[str, FlushLog] = {}
        self._views: dict[str, ViewLog] = {}
        self._jobs: dict[str, JobLog] = {}
        self._names: dict[str, dict[int, str]] = {}

    def overview(self) -> Overview:
        """Return all flows, views and jobs."""
        return self._recent("overview", self._overview)

    def flow(self, flow_id: str) -> FlowDetail:
        """Return one flow; raise NotFoundError if there is none of that id."""
        return self._recent(("flow", flow_id), lambda: self._flow(flow_id))

    def view(self, view_id: str) -> ViewDetail:
        """Return one materialized view; raise NotFoundError if there is none of that id."""
        return self._recent(("view", view_id), lambda: self._view(view_id))

    def job(self, job_id: str) -> JobDetail:
        """Return one job; raise NotFoundError if there is none of that id."""
        return self._recent(("job", job_id), lambda: self._job(job_id))

    def trace(self, text: str) -> Trace:
        """Trace a statement with the settings of the application's session."""
        spark = self._spark
        options = SessionOptions(session_levels(spark), partial(parse_duration, spark), are_names_case_sensitive(spark))
        return self._tracer.trace(text, options)

    def process(self) -> ProcessFigures:
        """Return the figures of the process itself."""
        return self._recent("process", self._process)

    def close(self) -> None:
        """End the process that traces statements."""
        self._tracer.close()

    def _recent(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            now = self._clock.monotonic()
            self._kept = {each: found for each, found in self._kept.items() if now - found[0] < _KEPT_SECONDS}
            if key not in self._kept:
                self._kept[key] = (now, make())
            return cast(T, self._kept[key][1])

    def _overview(self) -> Overview:
        flows, views, jobs = self._host.flows.views(), self._host.views.views(looks=False), self._host.jobs.views()
        ids = [each.record.spec.id for each in flows] + [each.record.spec.id for each in views]
        self._forget_others({*ids, *(each.record.spec.id for each in jobs)})
        at, flow_rows = self._clock.now(), tuple(flow_summary(view) for view in flows)
        view_rows = tuple(self._view_summary(row) for row in views)
        return Overview(
            taken_at=at,
            place=f"process {os.getpid()}",
            flows=flow_rows,
            views=view_rows,
            jobs=tuple(self._job_summary(view) for view in jobs),
            graph=graph_of(self._host.views.lineage(), flow_rows, view_rows, at),
        )

    def _process(self) -> ProcessFigures:
        java = java_figures(self._spark)
        return ProcessFigures(version("sqlext"), self._host.started, java, threading.active_count())

    def _forget_others(self, ids: set[str]) -> None:
        """Drop what was kept of flows, views and jobs that no longer exist."""
        for kept in (self._traces, self._flushes, self._views, self._jobs, self._names):
            for gone in kept.keys() - ids:
                del cast(dict[str, object], kept)[gone]

    # Flows.

    def _flow(self, flow_id: str) -> FlowDetail:
        view = next((each for each in self._host.flows.views() if each.record.spec.id == flow_id), None)
        if view is None:
            raise NotFoundError("There is no such flow.")
        spec, progress = shown_flow(view.record.spec, jvm.redaction(self._spark)), view.progress
        backlog = progress.backlog if progress is not None else None
        options = tuple(self._host.flows.options_of(spec).flow.as_rows())
        return FlowDetail(
            summary=flow_summary(view),
            text=spec.text,
            since=view.record.since,
            epoch=view.record.epoch,
            buffering=buffering_of(spec, options),
            flushes=self._last_flushes(spec),
            prerequisites=tuple((each.name, str(each)) for each in self._host.flows.prerequisites_of(view)),
            sources=tuple((name, describe(each.look)) for name, each in backlog.sources.items()) if backlog else (),
            switches=tuple(
                f"{each.phase.value} at {each.at.astimezone():%Y-%m-%d %H:%M:%S}: {each.because}"
                for each in (backlog.switches if backlog else ())
            ),
            queries=queries_of(spec),
            options=options,
            trace=self._trace_of_flow(spec),
        )

    def _trace_of_flow(self, spec: FlowSpec) -> Trace:
        known = self._traces.get(spec.id)
        if known is None or known[0] != spec.text:
            known = (spec.text, trace_of_flow(spec))
            self._traces[spec.id] = known
        return known[1]

    def _last_flushes(self, spec: FlowSpec) -> tuple[FlushView, ...]:
        if spec.id not in self._flushes:
            folder = folder_at(spec.target_location, self._spark)
            if folder is None:
                return ()
            self._flushes[spec.id] = FlushLog(folder, spec.id)
        try:
            return self._flushes[spec.id].read()
        except SqlextError as error:
            logger.warning("the log of flow %s's table cannot be read: %s", spec.name, error)
            return ()

    # Views.

    def _view(self, view_id: str) -> ViewDetail:
        row = next((each for each in self._host.views.views(looks=False) if each.record.spec.id == view_id), None)
        if row is None:
            raise NotFoundError("There is no such materialized view.")
        return view_detail(row, self._view_log(row), jvm.redaction(self._spark))

    def _view_summary(self, row: ViewRow) -> ViewSummary:
        return view_summary(row, self._view_log(row), jvm.redaction(self._spark))

    def _view_log(self, row: ViewRow) -> ViewLog:
        spec = row.record.spec
        if spec.id not in self._views:
            self._views[spec.id] = ViewLog(spec, lambda location: folder_at(location, self._spark))
        return self._views[spec.id]

    # Jobs.

    def _job_summary(self, view: JobView) -> JobSummary:
        summary = job_summary(view.record, view.status)
        if (progress := view.progress) is None:
            return summary
        counts = progress.counts()
        self._names[view.record.spec.id] = {vertex.id: vertex.name for vertex in progress.graph.vertices}
        return replace(
            summary,
            parts=counts.parts,
            skipped=counts.skipped,
            vertices_done=counts.done,
            vertices=counts.done + counts.running + counts.left,
            running=progress.summary(),
        )

    def _job(self, job_id: str) -> JobDetail:
        view = next((each for each in self._host.jobs.views() if each.record.spec.id == job_id), None)
        if view is None:
            raise NotFoundError("There is no such job.")
        if job_id not in self._jobs:
            folder = folder_at(self._host.home, self._spark)
            home = folder if folder is not None else HadoopPath(self._spark, self._host.home)
            self._jobs[job_id] = JobLog(home.child("jobs", job_id))
        record = shown_job(view.record, jvm.redaction(self._spark))
        if job_id not in self._traces:
            self._traces[job_id] = ("", trace(record.spec.text, is_batch=True))
        summary = self._job_summary(view)
        return job_detail(summary, record, self._jobs[job_id], self._names.get(job_id, {}), self._traces[job_id][1])


# Views of records, shared with `stored`.


def flow_summary(view: FlowView) -> FlowSummary:
    """Return a flow's entry in the overview."""
    spec = view.record.spec
    bound = f"ends with its session: reads {', '.join(spec.session_bound)}" if spec.session_bound else ""
    return FlowSummary(
        id=spec.id,
        name=view.name,
        target=".".join(spec.target),
        status=view.status,
        live=_figures(view.progress) if view.progress is not None else None,
        error=view.error,
        note=bound or ("" if view.is_here or view.status != "RUNNING" else "runs in another process"),
        full_name=".".join(spec.qualified_name),
        failed_starts=view.failed_starts,
    )


def _figures(progress: FlowProgress) -> LiveFigures:
    return LiveFigures(
        phase=progress.backlog.phase.value,
        lag=progress.backlog.lag,
        catch_up=progress.backlog.catch_up,
        rows_in=progress.rows_in,
        micro_batches=progress.micro_batches,
        buffered_batches=progress.buffered_batches,
        buffered_rows=progress.buffered_rows,
        oldest_arrival=progress.oldest_arrival,
        flushes=progress.flushes,
        rows_flushed=progress.rows_flushed,
        batches_flushed=progress.batches_flushed,
        last_flush=progress.last_flush,
        last_reason=progress.last_reason,
        last_flush_seconds=progress.last_flush_seconds,
        flush_durations=progress.flush_durations,
        violations=progress.violations,
        watermark=progress.watermark,
        state={backend.value: size for backend, size in progress.state.items()},
    )


def trace_of_flow(spec: FlowSpec) -> Trace:
    """Trace a flow's statement; if the statement can no longer be planned, return the recorded graph."""
    found = trace(spec.text)
    if found.graph is None:
        problem = f"The statement can no longer be planned, so attributes and stages are not known: {found.error or found.note}"
        return Trace(spec.text, graph=recorded_graph(spec, problem))
    return Trace(spec.text, graph=found.graph, firings=found.firings)


def buffering_of(spec: FlowSpec, options: Iterable[tuple[str, str, str]]) -> str:
    """Describe whether a flow buffers, and if not, why.

    Args:
        options: the options in force: key, value and level of each.
    """
    if because := spec.one_commit_a_batch_because:
        return f"no, one commit per micro-batch: {because}"
    interval = next((value for key, value, _ in options if key == FLUSH_MAX_INTERVAL.key), "null")
    is_null = interval.strip().lower() in ("", "null")
    return f"no, one commit per micro-batch: {FLUSH_MAX_INTERVAL.key} is not set" if is_null else f"for at most {interval}"


def queries_of(spec: FlowSpec) -> tuple[tuple[str, str], ...]:
    """Return the queries that Spark runs for a flow: name and SQL of each."""
    streams = [(stream.relation, stream.sql) for stream in spec.streams]
    above = [("above, at each flush", spec.above)] if spec.above else []
    return (*((each.name, each.sql) for each in spec.prerequisites), *streams, *above)


def job_summary(record: JobRecord, status: str) -> JobSummary:
    """Return a job's entry in the overview, from its registry record."""
    has_finished = record.state is JobState.FINISHED
    counted = json.loads(record.detail) if has_finished and record.detail else {}
    return JobSummary(
        id=record.spec.id,
        target=".".join(record.spec.target),
        status=status,
        submitted=_time(record.submitted),
        ended=_time(record.ended),
        parts=counted["parts"] + counted["skipped"] if counted else None,
        skipped=counted.get("skipped"),
        seconds=counted.get("seconds"),
        error=record.detail if record.state is JobState.FAILED else "",
    )


def job_detail(summary: JobSummary, record: JobRecord, log: JobLog, names: dict[int, str], traced: Trace) -> JobDetail:
    """Return a job's page, from its registry record and its events."""
    error = ""
    try:
        log.read()
    except SqlextError as problem:
        error = str(problem)
    known = {number: vertex.name for number, vertex in log.vertices.items() if vertex.name} | names
    has_finished = summary.ended is not None and record.state is JobState.FINISHED
    vertices = vertices_of(log, record.epoch, known)
    begun = {vertex.id for vertex in vertices}
    waiting = tuple(VertexView(number, name) for number, name in sorted(names.items()) if number not in begun)
    if has_finished:  # parts without an event were run by the sink, with its own work
        left = (summary.parts or 0) - len(log.parts)
        waiting = (VertexView(max(begun) + 1, SINK, parts=left, done=left),) if begun and left > 0 else ()
    detail = JobDetail(
        summary=replace(summary, error=error) if error else summary,
        text=record.spec.text,
        drivers=max(record.epoch, 1),
        vertices=(*vertices, *waiting),
        spans=spans_of(
            log.parts.values(),
            record.epoch,
            known,
            summary.ended if has_finished and log.parts else None,
            summary.seconds or 0.0,
        ),
        inputs=tuple(f"{pin.name}, version {pin.version}" if pin.version >= 0 else pin.name for pin in record.spec.pins),
        trace=traced,
    )
    return _counted(detail, log)


def _counted(detail: JobDetail, log: JobLog) -> JobDetail:
    """Add counts from the events if no other source has them."""
    summary = detail.summary
    if summary.parts is not None or not log.vertices:
        return detail
    done = sum(vertex.parts == vertex.done for vertex in detail.vertices)
    counted = replace(
        summary,
        parts=len(log.parts),
        skipped=sum(vertex.skipped for vertex in detail.vertices),
        vertices_done=done,
    )
    return replace(detail, summary=counted)


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
