"""The values that the page shows, taken at one moment. They need no Spark, so tests create them by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlext.page.drawn_graph import Graph
from sqlext.plan.durations import Durations
from sqlext.plan.explain import Section
from sqlext.plan.job_graph import Firing
from sqlext.spark.state_size import StateSize


@dataclass(frozen=True)
class FlushView:
    """A flush: one commit on a flow's target, from the commit's own metadata.

    Attributes:
        version: the table's version.
        at: the time of the commit.
        first_batch, last_batch: the numbers of its first and last micro-batch.
        buffered: the number of changed groups or new rows in the buffer; None: an earlier driver counted them.
        changed: the number of rows inserted, updated and deleted in the table; None: the commit does not say.
        seconds: the time, in seconds, that Delta's command took; None: the commit does not say.
        waited: the time from the arrival of the oldest row to the commit.
        violations: the number of its rows that violate each constraint; None: there are no constraints.
    """

    version: int
    at: datetime
    reason: str
    first_batch: int
    last_batch: int
    epoch: int = 0
    buffered: int | None = None
    changed: int | None = None
    seconds: float | None = None
    waited: timedelta | None = None
    violations: Mapping[str, int] | None = None

    @property
    def all_violations(self) -> int | None:
        """The number of violations of all constraints; None: there are no constraints."""
        return None if self.violations is None else sum(self.violations.values())

    @property
    def micro_batches(self) -> int:
        """The number of its micro-batches."""
        return self.last_batch - self.first_batch + 1


@dataclass(frozen=True)
class LiveFigures:
    """The figures of a flow that only its own process knows; see `FlowProgress`."""

    phase: str = "live"
    lag: timedelta | None = None
    catch_up: timedelta | None = None
    rows_in: int = 0
    micro_batches: int = 0
    buffered_batches: int = 0
    buffered_rows: int = 0
    oldest_arrival: datetime | None = None
    flushes: int = 0
    rows_flushed: int = 0
    batches_flushed: int = 0
    last_flush: datetime | None = None
    last_reason: str = ""
    last_flush_seconds: float = 0.0
    flush_durations: Durations = field(default_factory=Durations)
    violations: Mapping[str, int] = field(default_factory=dict)
    watermark: str | None = None
    state: Mapping[str, StateSize] = field(default_factory=dict)

    @property
    def batches_per_flush(self) -> float | None:
        """The mean number of micro-batches per flush; None: there was no flush."""
        return self.batches_flushed / self.flushes if self.flushes else None


@dataclass(frozen=True)
class FlowSummary:
    """A flow in the overview.

    Attributes:
        live: the live figures; None: the flow does not run in this process.
        note: a remark, such as that the flow runs in another process.
        full_name: the name with catalog and schema.
        failed_starts: the number of failed tries in a row, of a flow that is RETRYING.
    """

    id: str
    name: str
    target: str
    status: str
    live: LiveFigures | None = None
    error: str = ""
    note: str = ""
    full_name: str = ""
    failed_starts: int = 0


@dataclass(frozen=True)
class OperatorView:
    """A node of a statement's graph.

    Attributes:
        inputs: the ids of the operators that it reads.
        attributes: the names of the attributes that hold (FLIP-331, FLIP-365).
        stage: the id of its stage; None: not known.
    """

    id: int
    kind: str
    detail: str
    inputs: tuple[int, ...] = ()
    attributes: tuple[str, ...] = ()
    stage: int | None = None
    is_stream: bool = False


@dataclass(frozen=True)
class StageView:
    """Operators that run together; a blocking stage ends before the stages that read it start."""

    id: int
    kinds: tuple[str, ...]
    is_blocking: bool


@dataclass(frozen=True)
class GraphView:
    """A statement's graph: operators after their inputs; the last one feeds the sink.

    Attributes:
        problem: why attributes and stages are not known; empty: they are known.
    """

    sink: str
    operators: tuple[OperatorView, ...] = ()
    stages: tuple[StageView, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Trace:
    """The plan and the rewrites of a statement, made without running it or reading any table.

    Attributes:
        note: a remark on the kind of statement.
        error: why the statement is refused; empty: it is not.
        line, column: the place of the error, 1-based; 0: the error has no place.
        sections: the other sections of EXPLAIN.
    """

    text: str
    note: str = ""
    error: str = ""
    line: int = 0
    column: int = 0
    graph: GraphView | None = None
    firings: tuple[Firing, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True)
class FlowDetail:
    """The content of a flow's page.

    Attributes:
        flushes: the newest flushes, oldest first.
        prerequisites: name and state of each.
        sources: name and backlog state of each stream.
        switches: the changes between live and backlog, oldest first.
        queries: the queries that Spark runs: a name, which may be empty, and SQL.
        options: key, value as written, and the level at which it was set.
        trace: the trace of its statement.
    """

    summary: FlowSummary
    text: str
    since: str = ""
    epoch: int = 0
    buffering: str = ""
    flushes: tuple[FlushView, ...] = ()
    prerequisites: tuple[tuple[str, str], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    switches: tuple[str, ...] = ()
    queries: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str, str], ...] = ()
    trace: Trace = field(default_factory=lambda: Trace(""))


@dataclass(frozen=True)
class RefreshView:
    """A refresh: one commit on a materialized view, from the commit's own metadata; see `RefreshReport`.

    Attributes:
        version: the version of the view after it.
        at: the time of the commit.
        rows_in: the number of changed rows of the sources; None: not counted, as in full.
        rows_deleted, rows_inserted: the number of rows of the view; None: not counted.
        seconds: the time, in seconds, that it took.
        read: the number of changed rows of each source that it has read, by name.
    """

    version: int
    at: datetime
    done: str
    because: str = ""
    rows_in: int | None = None
    rows_deleted: int | None = None
    rows_inserted: int | None = None
    seconds: float = 0.0
    read: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether the query was computed in full."""
        return self.done == "full"


@dataclass(frozen=True)
class SourceView:
    """A table that a materialized view reads.

    Attributes:
        version: the version that the view has.
        newest: the table's newest version; None: not known.
        behind_since: when the oldest version that the view lacks was committed; None: it lacks none, or that is not known.
        problem: what is wrong with the table, such as that it was dropped; empty: nothing.
    """

    name: str
    version: int
    newest: int | None = None
    behind_since: datetime | None = None
    problem: str = ""

    @property
    def behind(self) -> int | None:
        """The number of versions that the view lacks; None: not known."""
        return None if self.newest is None or self.problem else self.newest - self.version


@dataclass(frozen=True)
class ViewSummary:
    """A materialized view in the overview.

    Attributes:
        policy: how it may be refreshed.
        schedule: when it is refreshed; empty: by REFRESH only.
        last: the last refresh; None: not known.
        sources: the Delta tables that it reads.
        error: why the last refresh failed, or what is wrong with the view's table.
        next_try: when a failed refresh is tried again.
        note: a remark, such as that it can be refreshed only while its process lives.
    """

    id: str
    name: str
    target: str
    status: str
    policy: str = ""
    schedule: str = ""
    last: RefreshView | None = None
    sources: tuple[SourceView, ...] = ()
    error: str = ""
    next_try: datetime | None = None
    note: str = ""

    @property
    def behind(self) -> int | None:
        """The number of versions of its sources that it lacks; None: not known, or it reads no Delta table."""
        counts = [count for source in self.sources if (count := source.behind) is not None]
        return sum(counts) if counts and len(counts) == len(self.sources) else None

    @property
    def behind_since(self) -> datetime | None:
        """When the oldest of these versions was committed; None: it lacks none, or that is not known."""
        return min((source.behind_since for source in self.sources if source.behind_since is not None), default=None)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with its sources."""
        return tuple(f"{source.name}: {source.problem}" for source in self.sources if source.problem)


@dataclass(frozen=True)
class ViewDetail:
    """The content of a materialized view's page.

    Attributes:
        query: the query of its statement.
        since: when it was created.
        refreshes: the newest refreshes, oldest first.
    """

    summary: ViewSummary
    query: str
    since: str = ""
    refreshes: tuple[RefreshView, ...] = ()


@dataclass(frozen=True)
class JobSummary:
    """A job in the overview; None means not known yet, or no longer.

    Attributes:
        parts: the number of finished parts.
        skipped: the number of these that an earlier driver had finished, so that the last one skipped them.
        running: the running vertices, each with the number of its finished parts.
        seconds: the time, in seconds, that the driver which finished the job took.
    """

    id: str
    target: str
    status: str
    submitted: datetime | None = None
    ended: datetime | None = None
    parts: int | None = None
    skipped: int | None = None
    vertices_done: int | None = None
    vertices: int | None = None
    running: str = ""
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class VertexView:
    """A job vertex, from its events.

    Attributes:
        parts: the number of its parts, which is its parallelism; None: it has not started.
        done: the number of finished parts.
        skipped: the number of these that an earlier driver had finished.
        rows, bytes: the rows and bytes written; None: no event says.
    """

    id: int
    name: str
    inputs: tuple[int, ...] = ()
    parts: int | None = None
    done: int = 0
    skipped: int = 0
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Span:
    """The span of a driver's work on a vertex, in seconds of drivers' work: the time between two drivers is left out.

    Attributes:
        vertex: the label of the vertex.
        driver: the driver's number; 1: the first.
        parts: the number of parts that finished in the span.
        is_skipped: whether a later driver skipped these parts.
    """

    vertex: str
    driver: int
    start: float
    end: float
    parts: int
    is_skipped: bool


@dataclass(frozen=True)
class JobDetail:
    """The content of a job's page."""

    summary: JobSummary
    text: str
    drivers: int = 1
    vertices: tuple[VertexView, ...] = ()
    spans: tuple[Span, ...] = ()
    inputs: tuple[str, ...] = ()
    trace: Trace = field(default_factory=lambda: Trace(""))


@dataclass(frozen=True)
class Overview:
    """All flows, materialized views and jobs.

    Attributes:
        taken_at: the time of the snapshot.
        place: what it shows: a process, or a warehouse.
        is_live: whether the snapshot is from the host.
        graph: of what is kept; None: nothing is.
    """

    taken_at: datetime
    place: str
    flows: tuple[FlowSummary, ...] = ()
    views: tuple[ViewSummary, ...] = ()
    jobs: tuple[JobSummary, ...] = ()
    is_live: bool = True
    graph: Graph | None = None
