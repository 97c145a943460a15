"""The vertices of a job and their times, from the job's events and the commits of the vertices' results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlext.errors import JobError
from sqlext.execution.coordination.event_log import EventLog, Folder
from sqlext.execution.jobs.events import ExecutionJobVertexInitialized, ExecutionVertexFinished, from_json
from sqlext.execution.jobs.store import read_events
from sqlext.page.snapshot import Span, VertexView
from sqlext.plan.records import lines_of

SINK = "into the table"


@dataclass(frozen=True)
class FinishedPart:
    """A finished part, with the time of its output's commit."""

    event: ExecutionVertexFinished
    at: datetime

    @property
    def began(self) -> datetime:
        """The time at which the part started."""
        return self.at - timedelta(seconds=self.event.seconds)


class JobLog:
    """The reader of a job's events: it reads all of them once, and later only new ones. Not thread-safe.

    Args:
        folder: the job's folder.

    Attributes:
        vertices: the events of the vertices, by number.
        parts: the finished parts, by vertex and part.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._events = EventLog(folder.child("events"))
        self._tables: dict[str, EventLog] = {}
        self.vertices: dict[int, ExecutionJobVertexInitialized] = {}
        self.parts: dict[tuple[int, int], FinishedPart] = {}

    def read(self) -> None:
        """Read new events; what was read stays, even if its files are gone, such as the folder of a finished job.

        Raises:
            JobError: another version of sqlext wrote an event.
        """
        for event in read_events(self._events.read_new()):
            if isinstance(event, ExecutionJobVertexInitialized):
                known = self.vertices.get(event.vertex)
                if known is None or known.epoch <= event.epoch:
                    self.vertices[event.vertex] = event
        for vertex in self.vertices.values():
            log = self._tables.setdefault(vertex.table, EventLog(self._folder.child(vertex.table, "_delta_log"), first=0))
            for part in finished_parts(log.read_new()):
                key = (part.event.vertex, part.event.part)
                if key not in self.parts or self.parts[key].event.epoch <= part.event.epoch:
                    self.parts[key] = part


def finished_parts(commits: Iterable[str]) -> Iterator[FinishedPart]:
    """Yield the finished parts that the commits of a vertex's result record; torn commits are skipped."""
    for text in commits:
        try:
            info = next(json.loads(line)["commitInfo"] for line in lines_of(text) if line.startswith('{"commitInfo"'))
            event = from_json(info["userMetadata"]) if "userMetadata" in info else None
            at = datetime.fromtimestamp(int(info["timestamp"]) / 1000, UTC)
        except (StopIteration, ValueError, KeyError, TypeError, JobError):
            continue
        if isinstance(event, ExecutionVertexFinished):
            yield FinishedPart(event, at)


def vertices_of(log: JobLog, epoch: int, names: Mapping[int, str]) -> tuple[VertexView, ...]:
    """Return the vertices that have started, in order.

    Args:
        epoch: the last driver's epoch; parts that an earlier driver finished were skipped.
        names: the vertices' names that are known; events have none.
    """
    found = []
    for number, vertex in sorted(log.vertices.items()):
        parts = [part.event for (of, _), part in log.parts.items() if of == number]
        found.append(
            VertexView(
                id=number,
                name=names.get(number, ""),
                parts=vertex.parts,
                done=len(parts),
                skipped=sum(part.epoch < epoch for part in parts),
                rows=sum(part.metrics.get("rows_written", 0) for part in parts),
                bytes=sum(part.metrics.get("bytes_written", 0) for part in parts),
            )
        )
    return tuple(found)


def spans_of(
    parts: Iterable[FinishedPart], epoch: int, names: Mapping[int, str], ended: datetime | None = None, seconds: float = 0.0
) -> tuple[Span, ...]:
    """Return the span of each driver's work on each vertex.

    Args:
        epoch: the last driver's epoch.
        ended: the time at which the job finished; None: it has not.
        seconds: the time, in seconds, that the last driver of a finished job took.
    """
    by_driver: dict[int, dict[int, list[FinishedPart]]] = {}
    for part in parts:
        by_driver.setdefault(part.event.epoch, {}).setdefault(part.event.vertex, []).append(part)
    if ended is not None:
        by_driver.setdefault(epoch, {})
    spans: list[Span] = []
    offset = 0.0
    for driver, (of_epoch, vertices) in enumerate(sorted(by_driver.items()), 1):
        everything = [part for each in vertices.values() for part in each]
        is_last = of_epoch == epoch
        begins = [part.began for part in everything]
        begins += [ended - timedelta(seconds=seconds)] if ended is not None and is_last else []
        zero = min(begins)
        for vertex, of_vertex in sorted(vertices.items()):
            start, end = min(p.began for p in of_vertex), max(p.at for p in of_vertex)
            name = f"{vertex} {names.get(vertex, '')}".strip()
            spans.append(Span(name, driver, offset + _s(start - zero), offset + _s(end - zero), len(of_vertex), not is_last))
        latest = max((part.at for part in everything), default=zero)
        if ended is not None and is_last:
            spans.append(Span(SINK, driver, offset + _s(latest - zero), offset + _s(max(ended, latest) - zero), 1, False))
            latest = max(ended, latest)
        offset += _s(latest - zero)
    return tuple(spans)


def _s(span: timedelta) -> float:
    return round(span.total_seconds(), 3)
