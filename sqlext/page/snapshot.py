"""What the page shows, as values: taken at one moment, and free of Spark, so that tests make them by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlext.plan.explain import Section
from sqlext.plan.job_graph import Firing


@dataclass(frozen=True)
class FlushView:
    """A flush: one commit on a flow's target, as the commit's own metadata tells.

    Attributes:
        version: of the table.
        at: when it was committed.
        first_batch, last_batch: its micro-batches.
        buffered: changed groups or new rows that the buffer held; None: a driver before this one counted them.
        changed: rows inserted, updated and deleted in the table; None: the commit does not tell.
        seconds: what Delta's command took; None: the commit does not tell.
        waited: from the arrival of the oldest row to the commit.
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

    @property
    def micro_batches(self) -> int:
        return self.last_batch - self.first_batch + 1


@dataclass(frozen=True)
class LiveFigures:
    """What only the process that runs a flow knows of it; see `FlowProgress`."""

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
    watermark: str | None = None

    @property
    def batches_per_flush(self) -> float | None:
        return self.batches_flushed / self.flushes if self.flushes else None


@dataclass(frozen=True)
class FlowSummary:
    """A flow in the overview.

    Attributes:
        live: None unless it runs in this process.
        note: what else there is to know, such as that it runs elsewhere.
    """

    id: str
    name: str
    target: str
    status: str
    live: LiveFigures | None = None
    error: str = ""
    note: str = ""


@dataclass(frozen=True)
class OperatorView:
    """A node of a statement's graph.

    Attributes:
        inputs: ids of the operators that it reads.
        attributes: those that hold, by name (FLIP-331, FLIP-365).
        stage: that it runs in; None: not known.
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
    """Operators that run together; a blocking stage ends before those that read it start."""

    id: int
    kinds: tuple[str, ...]
    is_blocking: bool


@dataclass(frozen=True)
class GraphView:
    """A statement's graph: inputs before those that read them, the last operator feeds the sink.

    Attributes:
        problem: why attributes and stages are not known; empty when they are.
    """

    sink: str
    operators: tuple[OperatorView, ...] = ()
    stages: tuple[StageView, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Trace:
    """What sqlext makes of a statement, found out without running it or looking at any table.

    Attributes:
        note: what to know of the kind of statement.
        error: why it is refused; `line` and `column` say where, both 1-based, and 0 when there is no place.
        sections: other parts of EXPLAIN.
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
    """A flow's own page.

    Attributes:
        flushes: the newest ones, oldest first.
        prerequisites: name and state.
        sources: what is seen of each stream.
        switches: changes between live and backlog, oldest first.
        queries: what Spark runs: a name, which may be empty, and SQL.
        options: key, value as written, and where it was given.
        trace: of its statement.
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
class JobSummary:
    """A job in the overview; what is None is not known any more, or not yet.

    Attributes:
        parts: that have finished, in all.
        skipped: those of them that a driver before the last one had finished, and a resume need not run again.
        running: the vertices that run, with how many of their parts have finished.
        seconds: of the driver that finished it.
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
    """A job vertex, as its events tell it.

    Attributes:
        parts: its parallelism.
        done: how many of them have finished.
        skipped: those of them that a driver before the last one had.
        rows, bytes: written; None: no event tells.
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
    """When a driver worked on a vertex, in seconds of drivers' work on the job: the time between two drivers is left out.

    Attributes:
        vertex: what the row is called.
        driver: 1 for the first.
        parts: that finished in it.
        is_skipped: whether a later driver took these parts over.
    """

    vertex: str
    driver: int
    start: float
    end: float
    parts: int
    is_skipped: bool


@dataclass(frozen=True)
class JobDetail:
    """A job's own page."""

    summary: JobSummary
    text: str
    drivers: int = 1
    vertices: tuple[VertexView, ...] = ()
    spans: tuple[Span, ...] = ()
    inputs: tuple[str, ...] = ()
    trace: Trace = field(default_factory=lambda: Trace(""))


@dataclass(frozen=True)
class Overview:
    """All flows and jobs.

    Attributes:
        taken_at: when this was seen.
        place: of what: a process, or a warehouse.
        is_live: whether it is the hosting process that tells.
    """

    taken_at: datetime
    place: str
    flows: tuple[FlowSummary, ...] = ()
    jobs: tuple[JobSummary, ...] = ()
    is_live: bool = True
