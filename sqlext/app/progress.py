"""The progress of this process's flows and jobs: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from rich import box
from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from sqlext.app.output import Printer
from sqlext.execution.backlog.status import BacklogStatus
from sqlext.execution.flows.status import FlowPhase, FlowProgress
from sqlext.execution.jobs.execution_graph import VertexCounts
from sqlext.execution.streaming.pace import Phase

_STYLES = {
    FlowPhase.RUNNING: "green",
    FlowPhase.STARTING: "yellow",
    FlowPhase.PREREQUISITES: "yellow",
    FlowPhase.STOPPED: "dim",
    FlowPhase.RETRYING: "yellow",
    FlowPhase.FAILED: "bold red",
    FlowPhase.FENCED: "bold red",
}
_LINE_SECONDS = 2.0  # the least time between two plain lines of a flow
_POLL_SECONDS = 0.05
_TASKS_SECONDS = 0.5  # asking Spark for its tasks takes several calls


@dataclass(frozen=True)
class FlowStatus:
    """The state of a flow at one moment.

    Attributes:
        name: the name that users see.
        full_name: the name with catalog and database.
    """

    name: str
    phase: FlowPhase
    progress: FlowProgress
    error: str
    full_name: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether the flow has failed or was fenced."""
        return self.phase in (FlowPhase.FAILED, FlowPhase.FENCED)

    @property
    def is_running(self) -> bool:
        """Whether the flow runs, or will at its next try."""
        return self.phase in (FlowPhase.STARTING, FlowPhase.PREREQUISITES, FlowPhase.RUNNING, FlowPhase.RETRYING)


@dataclass(frozen=True)
class JobStatus:
    """The state, at one moment, of a job that survives its driver.

    Attributes:
        table: the table that the job fills.
        running: the running vertices, each with the number of its finished parts.
    """

    table: str
    counts: VertexCounts
    running: str


@dataclass(frozen=True)
class TaskCounts:
    """The numbers of Spark's tasks for the running statement; `all` grows as Spark plans more of them."""

    done: int = 0
    all: int = 0


@dataclass(frozen=True)
class Statuses:
    """The functions from which a display gets the state of all that runs in this process."""

    flows: Callable[[], list[FlowStatus]]
    jobs: Callable[[], list[JobStatus]]
    tasks: Callable[[], TaskCounts] = TaskCounts


class Display(Protocol):
    """A display of flows and jobs during a wait."""

    def watch(self, doing: str, is_over: Callable[[], bool]) -> None:
        """Show the flows and jobs until `is_over`, which is called several times a second, on this thread.

        Args:
            doing: what is waited for, shown on a terminal.
        """


def display(printer: Printer, statuses: Statuses) -> Display:
    """Return the display that suits the output."""
    return LiveDisplay(printer, statuses) if printer.is_live else LineDisplay(printer, statuses)


class LiveDisplay:
    """A live table, removed when the wait is over."""

    def __init__(self, printer: Printer, statuses: Statuses) -> None:
        self._printer = printer
        self._statuses = statuses

    def watch(self, doing: str, is_over: Callable[[], bool]) -> None:
        spinner, began, due = Spinner("dots"), time.monotonic(), 0.0
        with Live(console=self._printer.console, refresh_per_second=8, transient=True) as live:
            while not is_over():
                if time.monotonic() >= due:
                    due = time.monotonic() + _TASKS_SECONDS
                    spinner.update(text=Text(self._doing(doing, time.monotonic() - began), "dim"))
                flows = self._statuses.flows()
                jobs = [Text(line_of_job(job)) for job in self._statuses.jobs()]
                live.update(Group(*([_table(flows)] if flows else []), *jobs, spinner))
                time.sleep(_POLL_SECONDS)

    def _doing(self, doing: str, seconds: float) -> str:
        tasks = self._statuses.tasks()
        return f"{doing}, {seconds:.0f} s" + (f", {tasks.done:,} of {tasks.all:,} tasks" if tasks.all else "")


class LineDisplay:
    """A plain line for each flow or job that has changed."""

    def __init__(self, printer: Printer, statuses: Statuses) -> None:
        self._printer = printer
        self._statuses = statuses
        self._shown: dict[str, str] = {}
        self._due = 0.0

    def watch(self, doing: str, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._show_when_due()
            time.sleep(_POLL_SECONDS)
        self._show()

    def _show_when_due(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_SECONDS
            self._show()

    def _show(self) -> None:
        lines = {flow.name: line_of(flow) for flow in self._statuses.flows()}
        lines |= {f"job into {job.table}": line_of_job(job) for job in self._statuses.jobs()}
        for name, text in lines.items():
            if self._shown.get(name) != text:
                self._shown[name] = text
                self._printer.line(f"{datetime.now().astimezone():%H:%M:%S}  {text}")


def status_line(phases: Sequence[str], buffered_rows: int, jobs: int) -> str:
    """Describe what runs, in one line; empty if nothing does.

    Args:
        phases: the phase of each flow.
        buffered_rows: the rows in the flows' buffers.
        jobs: the number of running jobs.
    """
    counted = ", ".join(f"{count} {phase.lower()}" for phase, count in sorted(Counter(map(str, phases)).items()))
    parts = [f"flows: {counted}"] if counted else []
    parts += [f"{buffered_rows:,} rows buffered"] if buffered_rows else []
    parts += [f"{jobs} {'job' if jobs == 1 else 'jobs'} running"] if jobs else []
    return "  ".join(parts)


def line_of_job(job: JobStatus) -> str:
    """Describe a job in one line."""
    c = job.counts
    parts = [
        f"job into {job.table}: vertices {c.done} done, {c.running} running" + (f" ({job.running})" if job.running else ""),
        f"{c.left} left",
        f"parts {c.parts:,} done",
    ]
    return ", ".join(parts) + (f" ({c.skipped:,} of them by an earlier driver)" if c.skipped else "")


def line_of(flow: FlowStatus) -> str:
    """Describe a flow in one line."""
    p = flow.progress
    parts = [
        f"{flow.name} {flow.phase}",
        f"rows in {p.rows_in:,}",
        f"micro-batches {p.micro_batches:,}",
        f"buffered {p.buffered_rows:,}" + (f" since {_time(p.oldest_arrival)}" if p.oldest_arrival else ""),
        f"flushes {p.flushes:,}",
        f"rows flushed {p.rows_flushed:,}",
    ]
    if p.last_flush is not None:
        parts.append(f"last flush {_time(p.last_flush)} ({p.last_reason})")
        parts.append(f"{p.batches_flushed / max(p.flushes, 1):.1f} micro-batches per flush")
    if p.backlog.phase is Phase.BACKLOG:
        parts.insert(1, _backlog(p.backlog))
    if flow.error:
        parts.append(f"error: {' '.join(flow.error.split())}")
    return ", ".join(parts)


def _backlog(backlog: BacklogStatus) -> str:
    """Describe the backlog phase, and how long it will take."""
    lag = f", lag {backlog.lag.total_seconds():.0f} s" if backlog.lag is not None else ""
    left = f", {backlog.catch_up.total_seconds():.0f} s to catch up" if backlog.catch_up is not None else ""
    return f"in backlog{lag}{left}"


def print_summary(printer: Printer, flows: Iterable[FlowStatus]) -> None:
    """Print the final state of the flows, with the full error of each that has failed."""
    flows = list(flows)
    if not flows:
        return
    if printer.is_live:
        printer.console.print(_table(flows))
    else:
        for flow in flows:
            printer.line(line_of(flow))
    for flow in flows:
        if flow.has_failed:
            printer.error(f"flow {flow.name} has failed: {flow.error}")


def _table(flows: Iterable[FlowStatus]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("flow", no_wrap=True)
    table.add_column("status")
    for name in ("rows in", "micro-batches", "buffered", "since", "flushes", "per flush", "rows flushed"):
        table.add_column(name, justify="right")
    table.add_column("last flush")
    for flow in flows:
        p = flow.progress
        since = _time(p.oldest_arrival) if p.oldest_arrival else ""
        a_flush = f"{p.batches_flushed / p.flushes:.1f}" if p.flushes else ""
        last = f"{_time(p.last_flush)} {p.last_reason} {p.last_flush_seconds:.1f} s" if p.last_flush else ""
        table.add_row(
            Text(flow.name),
            Text(flow.phase, _STYLES[flow.phase]).append(f" {_backlog(p.backlog)}" if p.backlog.phase is Phase.BACKLOG else ""),
            *(f"{number:,}" for number in (p.rows_in, p.micro_batches, p.buffered_rows)),
            since,
            f"{p.flushes:,}",
            a_flush,
            f"{p.rows_flushed:,}",
            Text(" ".join(flow.error.split()), "red", overflow="ellipsis", no_wrap=True) if flow.error else last,
        )
    return table


def _time(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"
