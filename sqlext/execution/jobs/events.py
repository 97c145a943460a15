"""The events of a job, as its event store keeps them (FLIP-383's JobEvent).

Each event is a line of JSON with its version. An event of another version is refused, not guessed at. A torn line is ignored:
the work that it recorded is run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlext.errors import JobError
from sqlext.execution.jobs.execution_graph import ExecutionVertex

VERSION = 1
"""The version of the format."""


@dataclass(frozen=True)
class ExecutionJobVertexInitialized:
    """The decision how a job vertex is divided into parts.

    Attributes:
        vertex: the job vertex's id.
        parts: the vertex's parallelism.
        division: for each part, the numbers of the files or buckets that it reads.
        table: the folder of the vertex's results, relative to the job's.
        epoch: the epoch of the driver that decided.
        name: a description of the vertex, for people.
        inputs: the ids of the vertices that it reads.
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
    """The end of a part; the event is stored in the commit of the part's output.

    Attributes:
        vertex: the id of the part's job vertex.
        part: the part's number.
        epoch: the epoch of the driver that ran it.
        seconds: the part's run time.
        metrics: its I/O: rows and bytes, read and written.
        accumulators: other counts of its tasks.
    """

    vertex: int
    part: int
    epoch: int = 0
    seconds: float = 0.0
    metrics: Mapping[str, int] = field(default_factory=dict)
    accumulators: Mapping[str, int] = field(default_factory=dict)

    @property
    def execution_vertex(self) -> ExecutionVertex:
        """The part as an execution vertex."""
        return ExecutionVertex(self.vertex, self.part)


@dataclass(frozen=True)
class CoordinatorSnapshot:
    """A snapshot of the driver's own state: the progress of a running job, written at most once per `snapshot.min-pause`.

    Attributes:
        epoch: the driver's epoch.
        finished: the number of finished parts, by job vertex.
        at: the time of the snapshot, ISO 8601.
    """

    epoch: int
    finished: Mapping[str, int]
    at: str


JobEvent = ExecutionJobVertexInitialized | ExecutionVertexFinished | CoordinatorSnapshot

_KINDS: Mapping[str, type[JobEvent]] = {
    each.__name__: each for each in (ExecutionJobVertexInitialized, ExecutionVertexFinished, CoordinatorSnapshot)
}


class TornEventError(JobError):
    """A line that is not a complete event."""


def to_json(event: JobEvent) -> str:
    """Write an event as one line of JSON."""
    return json.dumps({"version": VERSION, "type": type(event).__name__, **asdict(event)}, separators=(",", ":"))


def from_json(line: str) -> JobEvent:
    """Read an event back.

    Raises:
        TornEventError: the line is incomplete.
        JobError: another version of sqlext wrote the line.
    """
    try:
        data = dict(json.loads(line))
    except (ValueError, TypeError):
        raise TornEventError(f"An event of the job is torn: {line[:80]!r}.") from None
    version, kind = data.pop("version", None), data.pop("type", None)
    if version != VERSION:
        raise JobError(
            f"An event of the job has version {version}; this sqlext reads version {VERSION}. Resume the job with the sqlext "
            "that wrote it."
        )
    if kind not in _KINDS:
        raise JobError(
            f"An event of the job is a {kind}, which this sqlext does not know. Resume the job with the sqlext that wrote it."
        )
    try:
        return _KINDS[kind](**{key: _frozen(value) for key, value in data.items()})
    except TypeError as error:
        raise TornEventError(f"An event of the job is torn: {error}.") from None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
