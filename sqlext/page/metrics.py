"""The figures of a process as Prometheus reads them, at /metrics: names and units are by Prometheus' conventions.

All figures are those of the overview, so a scrape costs what a look at the page does: no Spark job, and at most one snapshot a
second for all readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from sqlext.page.snapshot import FlowSummary, JobSummary, LiveFigures, Overview, ViewSummary
from sqlext.spark.process import JavaFigures

M = TypeVar("M", GaugeMetricFamily, CounterMetricFamily)


@dataclass(frozen=True)
class ProcessFigures:
    """The figures of the process itself.

    Attributes:
        version: of sqlext.
        started: when the host did.
        java: the figures of its Java.
        threads: the number of its threads in Python.
    """

    version: str
    started: datetime
    java: JavaFigures
    threads: int


def exposition(overview: Overview, process: ProcessFigures, accepted: str = "") -> tuple[bytes, str]:
    """Return all figures as text, and the text's content type.

    Args:
        accepted: the formats that the reader takes, as HTTP's Accept; by default, Prometheus' text format.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(overview, process))
    encode, content_type = choose_encoder(accepted)
    return encode(registry), content_type


class _Figures(Collector):
    """The figures of one moment."""

    def __init__(self, overview: Overview, process: ProcessFigures) -> None:
        self._overview = overview
        self._process = process

    def collect(self) -> Iterator[Metric]:
        overview = self._overview
        yield from _process(self._process)
        yield from _statuses(overview)
        yield from _flows([(each.full_name, each.live) for each in overview.flows if each.live is not None], overview.taken_at)
        yield from _retries(overview.flows)
        yield from _views(overview.views, overview.taken_at)
        yield from _jobs(overview.jobs)


def _process(process: ProcessFigures) -> Iterator[Metric]:
    yield InfoMetricFamily("sqlext", "The version of sqlext.", {"version": process.version})
    yield _gauge("sqlext_start_time_seconds", "When the host started, in seconds since 1970.", process.started.timestamp())
    yield _gauge("sqlext_jvm_heap_used_bytes", "The bytes of Java's heap in use.", process.java.heap_used)
    yield _gauge("sqlext_jvm_heap_max_bytes", "The bytes that Java's heap may have.", process.java.heap_most)
    threads = GaugeMetricFamily("sqlext_threads", "The threads of the process.", labels=["runtime"])
    threads.add_metric(["java"], process.java.threads)
    threads.add_metric(["python"], process.threads)
    yield threads


def _statuses(overview: Overview) -> Iterator[Metric]:
    kinds: Sequence[tuple[str, str, Iterable[FlowSummary | ViewSummary | JobSummary]]] = (
        ("flow", "The status of a flow, as SHOW FLOWS has it: 1.", overview.flows),
        ("view", "The status of a materialized view, as SHOW MATERIALIZED VIEWS has it: 1.", overview.views),
        ("job", "The status of a job, as SHOW JOBS has it: 1.", overview.jobs),
    )
    for kind, meaning, summaries in kinds:
        family = GaugeMetricFamily(f"sqlext_{kind}_status", meaning, labels=[kind, "target", "status"])
        for each in summaries:
            name = each.full_name if isinstance(each, FlowSummary) else each.target if isinstance(each, ViewSummary) else each.id
            family.add_metric([name, each.target, each.status], 1)
        yield family


# Flows of this process.


def _flows(flows: Sequence[tuple[str, LiveFigures]], at: datetime) -> Iterator[Metric]:
    yield from _flow_input(flows, at)
    yield from _flow_flushes(flows)
    yield from _flow_state(flows)
    violations = CounterMetricFamily(
        "sqlext_flow_constraint_violations", "Rows that violated a constraint.", labels=["flow", "constraint"]
    )
    for name, live in flows:
        for constraint, rows in live.violations.items():
            violations.add_metric([name, constraint], rows)
    yield violations


def _flow_input(flows: Sequence[tuple[str, LiveFigures]], at: datetime) -> Iterator[Metric]:
    def gauge(name: str, meaning: str, values: Iterable[tuple[str, float | None]]) -> GaugeMetricFamily:
        return _by(GaugeMetricFamily(f"sqlext_flow_{name}", meaning, labels=["flow"]), values)

    def counter(name: str, meaning: str, values: Iterable[tuple[str, float | None]]) -> CounterMetricFamily:
        return _by(CounterMetricFamily(f"sqlext_flow_{name}", meaning, labels=["flow"]), values)

    yield counter("input_rows", "Rows read since the flow started here.", ((n, f.rows_in) for n, f in flows))
    yield counter("micro_batches", "Micro-batches since the flow started here.", ((n, f.micro_batches) for n, f in flows))
    yield gauge("buffered_rows", "Changed groups or new rows that wait for a flush.", ((n, f.buffered_rows) for n, f in flows))
    ages = ((n, None if f.oldest_arrival is None else _seconds(at, f.oldest_arrival)) for n, f in flows)
    yield gauge("oldest_buffered_age_seconds", "For how long the oldest of them has waited.", ages)
    lags = ((n, None if f.lag is None else f.lag.total_seconds()) for n, f in flows)
    yield gauge("lag_seconds", "How far the flow is behind its sources.", lags)
    yield gauge("backlog", "Whether the flow is in backlog: 1 or 0.", ((n, float(f.phase == "backlog")) for n, f in flows))


def _flow_flushes(flows: Sequence[tuple[str, LiveFigures]]) -> Iterator[Metric]:
    rows = CounterMetricFamily("sqlext_flow_flushed_rows", "Changed groups or new rows of all flushes.", labels=["flow"])
    yield _by(rows, ((name, live.rows_flushed) for name, live in flows))
    seconds = HistogramMetricFamily(
        "sqlext_flow_flush_duration_seconds", "The time of each flush; each is a commit on the target.", labels=["flow"]
    )
    for name, live in flows:
        seconds.add_metric([name], live.flush_durations.buckets, live.flush_durations.seconds)
    yield seconds
    last = GaugeMetricFamily(
        "sqlext_flow_last_flush_timestamp_seconds", "When the last flush ended, in seconds since 1970.", labels=["flow"]
    )
    yield _by(last, ((name, None if live.last_flush is None else live.last_flush.timestamp()) for name, live in flows))


def _flow_state(flows: Sequence[tuple[str, LiveFigures]]) -> Iterator[Metric]:
    """Return the size of state as of the last flush or micro-batch; nothing is listed or read for it."""
    labels = ["flow", "backend"]
    rows = GaugeMetricFamily("sqlext_flow_state_rows", "The rows of a flow's state, such as groups.", labels=labels)
    size = GaugeMetricFamily(
        "sqlext_flow_state_bytes", "The bytes of a flow's state: of Delta's files, or of RocksDB's memory.", labels=labels
    )
    for name, live in flows:
        for backend, state in live.state.items():
            for family, value in ((rows, state.rows), (size, state.bytes)):
                if value is not None:
                    family.add_metric([name, backend], value)
    yield rows
    yield size


def _retries(flows: Sequence[FlowSummary]) -> Iterator[Metric]:
    tries = GaugeMetricFamily("sqlext_flow_failed_starts", "The failed tries of a flow that is RETRYING.", labels=["flow"])
    yield _by(tries, ((each.full_name, each.failed_starts or None) for each in flows))


# Views and jobs.


def _views(views: Sequence[ViewSummary], at: datetime) -> Iterator[Metric]:
    def gauge(name: str, meaning: str, values: Iterable[tuple[str, float | None]]) -> GaugeMetricFamily:
        return _by(GaugeMetricFamily(f"sqlext_view_{name}", meaning, labels=["view"]), values)

    refreshed = [(each.target, each.last) for each in views if each.last is not None]
    yield gauge("behind_versions", "The versions of its sources that a view lacks.", ((v.target, v.behind) for v in views))
    yield gauge("lag_seconds", "The age of the oldest of these; 0: it lacks none.", ((v.target, _behind(v, at)) for v in views))
    times = ((name, last.at.timestamp()) for name, last in refreshed)
    yield gauge("last_refresh_timestamp_seconds", "When the last refresh was committed, in seconds since 1970.", times)
    yield gauge(
        "last_refresh_duration_seconds", "The time of the last refresh.", ((name, last.seconds) for name, last in refreshed)
    )
    rows = ((name, last.rows_in) for name, last in refreshed)
    yield gauge("last_refresh_input_rows", "The changed rows of its sources that it read.", rows)
    is_full = ((name, float(last.is_full)) for name, last in refreshed)
    yield gauge("last_refresh_full", "Whether it computed the query in full: 1 or 0.", is_full)


def _behind(view: ViewSummary, at: datetime) -> float | None:
    if view.behind is None:
        return None
    return 0.0 if view.behind_since is None else _seconds(at, view.behind_since)


def _jobs(jobs: Sequence[JobSummary]) -> Iterator[Metric]:
    parts = GaugeMetricFamily(
        "sqlext_job_parts", "The finished parts of a job; skipped: by an earlier driver.", labels=["job", "by"]
    )
    for each in jobs:
        if each.parts is not None:
            parts.add_metric([each.id, "this driver"], each.parts - (each.skipped or 0))
            parts.add_metric([each.id, "an earlier driver"], each.skipped or 0)
    yield parts


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


def _by(family: M, values: Iterable[tuple[str, float | None]]) -> M:
    """Add those values that are known, each with its flow's or view's name."""
    for name, value in values:
        if value is not None:
            family.add_metric([name], value)
    return family


def _seconds(at: datetime, since: datetime) -> float:
    return max((at - since).total_seconds(), 0.0)
