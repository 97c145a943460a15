"""Snapshots made by hand, for tests of the page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlext.errors import NotFoundError
from sqlext.page.metrics import ProcessFigures
from sqlext.page.snapshot import (
    FlowDetail,
    FlowSummary,
    FlushView,
    JobDetail,
    JobSummary,
    LiveFigures,
    Overview,
    RefreshView,
    SourceView,
    Span,
    Trace,
    VertexView,
    ViewDetail,
    ViewSummary,
)
from sqlext.page.trace import trace
from sqlext.spark.process import JavaFigures

HOSTILE = "\"><script>alert('x')</script><img src=x onerror=alert(1)>{{ 7*7 }}"
NINE = datetime(2024, 5, 1, 9, tzinfo=UTC)
STATEMENT = f"""CREATE STREAMING TABLE views TBLPROPERTIES ('execution.flush.max-interval' = '2 minutes')
AS SELECT page, count(DISTINCT visitor) AS visitors, max('{HOSTILE.replace("'", "")}') AS hostile
FROM STREAM hits GROUP BY page HAVING count(*) > 2"""

FIGURES = LiveFigures(
    phase="backlog",
    lag=timedelta(seconds=75),
    rows_in=1_234_567,
    micro_batches=30,
    buffered_batches=2,
    buffered_rows=712,
    oldest_arrival=NINE,
    flushes=4,
    batches_flushed=28,
    last_flush=NINE,
    last_reason="interval",
    last_flush_seconds=1.94,
)
VIEWS = FlowSummary("f1", "views", "spark_catalog.default.views", "RUNNING", FIGURES)
HOSTILE_FLOW = FlowSummary("f2", HOSTILE, f"a.b.{HOSTILE}", HOSTILE, error=HOSTILE, note=HOSTILE)
FLUSHES = (
    FlushView(1, NINE, "interval", 0, 6, 1, 225, 35, 1.25, timedelta(seconds=125)),
    FlushView(2, NINE + timedelta(minutes=2), HOSTILE, 7, 7, 2, violations={"positive": 1_234, HOSTILE: 1}),
)
REFRESHES = (
    RefreshView(0, NINE, "full", "first refresh", rows_inserted=1_200, seconds=8.5),
    RefreshView(1, NINE + timedelta(minutes=10), "merge groups", "by region", 1_240, 3, 4, 2.25),
    RefreshView(3, NINE + timedelta(minutes=20), "append", HOSTILE, 90, 0, 90, 1.5),
    RefreshView(4, NINE + timedelta(minutes=31), "full", "FULL was requested", rows_inserted=1_291, seconds=9.125),
)
SOURCES = (
    SourceView("spark_catalog.default.orders", 10, 12, NINE + timedelta(minutes=40)),
    SourceView("spark_catalog.default.customers", 7, 7),
)
TOTALS = ViewSummary(
    "v1",
    "region_totals",
    "spark_catalog.default.region_totals",
    "FAILED",
    "AUTO",
    "EVERY 10 MINUTES",
    REFRESHES[-1],
    SOURCES,
    error="The view has too few columns.",
    next_try=NINE + timedelta(minutes=43),
)
HOSTILE_VIEW = ViewSummary(
    "v2",
    HOSTILE,
    f"a.b.{HOSTILE}",
    HOSTILE,
    HOSTILE,
    HOSTILE,
    REFRESHES[2],
    (SourceView(HOSTILE, 1, problem=HOSTILE),),
    error=HOSTILE,
    note=HOSTILE,
)
JOB = JobSummary("j00ff", "spark_catalog.default.totals", "FINISHED", NINE, NINE + timedelta(seconds=20), 12, 5, seconds=7.5)


def hostile_job() -> JobDetail:
    """A job of whose parts a resume has skipped some, with hostile names."""
    summary = JobSummary("j00ff", HOSTILE, "FAILED", parts=3, skipped=1, running=HOSTILE, error=HOSTILE)
    spans = (Span(f"0 {HOSTILE}", 1, 0.0, 2.0, 1, True), Span("1 Sort", 2, 2.0, 4.5, 2, False))
    vertices = (VertexView(0, HOSTILE, (), 1, 1, 1, 10, 100), VertexView(1, "Sort", (0,), 4, 2))
    return JobDetail(summary, HOSTILE, 2, vertices, spans, (HOSTILE,), Trace(HOSTILE))


class MadePages:
    """A source of the snapshots above; counts how often it was asked."""

    def __init__(self, overview: Overview | None = None) -> None:
        self.made = overview or Overview(
            NINE + timedelta(minutes=42), "process 1", (VIEWS, HOSTILE_FLOW), (TOTALS, HOSTILE_VIEW), (JOB,)
        )
        self.error: Exception | None = None

    def overview(self) -> Overview:
        if self.error is not None:
            raise self.error
        return self.made

    def process(self) -> ProcessFigures:
        if self.error is not None:
            raise self.error
        return ProcessFigures("0.1.0", NINE, JavaFigures(300_000_000, 2_000_000_000, 80), 12)

    def flow(self, flow_id: str) -> FlowDetail:
        found: Mapping[str, FlowDetail] = {
            "f1": FlowDetail(VIEWS, STATEMENT, NINE.isoformat(), 2, "for at most 2 minutes", FLUSHES, trace=trace(STATEMENT)),
            "f2": FlowDetail(
                HOSTILE_FLOW,
                HOSTILE,
                prerequisites=((HOSTILE, HOSTILE),),
                sources=((HOSTILE, HOSTILE),),
                switches=(HOSTILE,),
                queries=((HOSTILE, HOSTILE),),
                options=((HOSTILE, HOSTILE, HOSTILE),),
            ),
        }
        if flow_id not in found:
            raise NotFoundError("There is no such flow.")
        return found[flow_id]

    def view(self, view_id: str) -> ViewDetail:
        query = f"SELECT region, count(*) AS n, '{HOSTILE}' AS hostile FROM orders JOIN customers USING (cid) GROUP BY region"
        found = {
            "v1": ViewDetail(TOTALS, query, NINE.isoformat(), REFRESHES),
            "v2": ViewDetail(HOSTILE_VIEW, HOSTILE),
        }
        if view_id not in found:
            raise NotFoundError("There is no such materialized view.")
        return found[view_id]

    def job(self, job_id: str) -> JobDetail:
        return hostile_job()

    def trace(self, text: str) -> Trace:
        return trace(text)


def no_drawing(request: Mapping[str, Any], width: int) -> str:
    """Stands for the process that draws."""
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"><title>{len(request["rows"])} rows</title></svg>'
