"""What happens to a job, as its event store keeps it (FLIP-383's JobEvent).

Each event is a line of JSON with its version. What another version has written is refused, not guessed at; a torn line is left
out: what it told is then simply not known, and run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlext.errors import JobError
from sqlext.execution.jobs.execution_graph import ExecutionVertex

VERSION = 1
"""Of the format."""


@dataclass(frozen=True)
class ExecutionJobVertexInitialized:
    """How a job vertex is divided has been decided.

    Attributes:
        vertex: its id.
        parts: its parallelism.
        division: what each part reads: the numbers of buckets, or of slices.
        table: the folder its results go to, under the job's.
        epoch: of the driver that decided.
        name: what the vertex does, for people.
        inputs: the vertices that it reads.
    """

    vertex: int
    parts: int
    division: tuple[tuple[int, ...], ...] = ()
    table: str = ""
    epoch: int = 0
    name: str = ""
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExecutionVertexFinished:
    """A part has finished; the event stands in the commit of its output.

    Attributes:
        vertex: its job vertex.
        part: its number.
        epoch: of the driver that ran it.
        seconds: how long it ran.
        metrics: its IO: rows and bytes, read and written.
        accumulators: what else its tasks counted.
    """

    vertex: int
    part: int
    epoch: int = 0
    seconds: float = 0.0
    metrics: Mapping[str, int] = field(default_factory=dict)
    accumulators: Mapping[str, int] = field(default_factory=dict)

    @property
    def execution_vertex(self) -> ExecutionVertex:
        return ExecutionVertex(self.vertex, self.part)


@dataclass(frozen=True)
class CoordinatorSnapshot:
    """What the driver itself knew of a running job: its progress, at most once each `snapshot.min-pause`.

    Attributes:
        epoch: of the driver.
        finished: how many parts had finished, by job vertex.
        at: when, ISO 8601.
    """

    epoch: int
    finished: Mapping[str, int]
    at: str


JobEvent = ExecutionJobVertexInitialized | ExecutionVertexFinished | CoordinatorSnapshot

_KINDS: Mapping[str, type[JobEvent]] = {
    each.__name__: each for each in (ExecutionJobVertexInitialized, ExecutionVertexFinished, CoordinatorSnapshot)
}


class TornEventError(JobError):
    """A line that is no whole event."""


def to_json(event: JobEvent) -> str:
    """An event as one line."""
    return json.dumps({"version": VERSION, "type": type(event).__name__, **asdict(event)}, separators=(",", ":"))


def from_json(line: str) -> JobEvent:
    """An event as it was written.

    Raises:
        TornEventError: the line is not whole.
        JobError: it was written by another version of sqlext.
    """
    try:
        data = dict(json.loads(line))
    except (ValueError, TypeError):
        raise TornEventError(f"An event of the job is torn: {line[:80]!r}.") from None
    version, kind = data.pop("version", None), data.pop("type", None)
    if version != VERSION:
        raise JobError(f"An event of the job has version {version}; this sqlext reads version {VERSION}. Resume it with its own.")
    if kind not in _KINDS:
        raise JobError(f"An event of the job is a {kind}, which this sqlext does not know. Resume it with its own.")
    try:
        return _KINDS[kind](**{key: _frozen(value) for key, value in data.items()})
    except TypeError as error:
        raise TornEventError(f"An event of the job is torn: {error}.") from None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
