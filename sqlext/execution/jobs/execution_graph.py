"""The execution graph of a bounded job: which parts of it exist, and which of them are still to be run.

After Flink's ExecutionGraph: a job vertex is a piece of the query's plan, and an execution vertex is that piece over one part
of its input. The results of a vertex are blocking: a vertex above runs when all parts of those below it have finished. Knows no
Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlext.errors import JobError


class VertexKind(StrEnum):
    """How a job vertex is divided into parts."""

    SOURCE = "source"  # slices of the files of one input
    BUCKETS = "buckets"  # groups of the buckets that the vertices below it have written
    SINGLE = "single"  # not at all
    SINK = "sink"  # not at all: it writes the job's table


@dataclass(frozen=True)
class JobVertex:
    """A piece of the plan between two exchanges.

    Attributes:
        id: its place in the graph, from 0; it reads only vertices with smaller ones.
        kind: how it is divided.
        name: what it does, for people.
        inputs: the vertices that it reads.
        buckets: into how many its result is divided.
    """

    id: int
    kind: VertexKind
    name: str
    inputs: tuple[int, ...] = ()
    buckets: int = 1


@dataclass(frozen=True, order=True)
class ExecutionVertex:
    """One part of a job vertex; both numbers count from 0."""

    vertex: int
    part: int

    def __str__(self) -> str:
        return f"{self.vertex}/{self.part}"


@dataclass(frozen=True)
class ExecutionGraph:
    """The job vertices, each behind those that it reads; the last one is the sink.

    Raises:
        JobError: a vertex reads one that does not stand before it, or the last one is no sink.
    """

    vertices: tuple[JobVertex, ...]
    above: Mapping[int, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        for at, vertex in enumerate(self.vertices):
            if vertex.id != at or any(below >= at for below in vertex.inputs):
                raise JobError(f"The job vertex {vertex.id} cannot stand at place {at} of its graph.")
        if not self.vertices or self.vertices[-1].kind is not VertexKind.SINK:
            raise JobError("A job graph ends with its sink.")
        readers = {v.id: tuple(r.id for r in self.vertices if v.id in r.inputs) for v in self.vertices}
        object.__setattr__(self, "above", readers)

    @property
    def sink(self) -> JobVertex:
        return self.vertices[-1]

    def needed(self, is_finished: Mapping[int, bool]) -> tuple[int, ...]:
        """The vertices of which something is still to be run, in order: from the sink upstream, as far as results are missing."""
        found: set[int] = set()

        def visit(vertex: JobVertex) -> None:
            if vertex.id in found or is_finished.get(vertex.id, False):
                return
            found.add(vertex.id)
            for below in vertex.inputs:
                visit(self.vertices[below])

        visit(self.sink)
        return tuple(sorted(found))


@dataclass(frozen=True)
class VertexCounts:
    """How far a job is.

    Attributes:
        done, running, left: job vertices.
        parts: the execution vertices that have finished.
        skipped: those of them that an earlier driver has run.
    """

    done: int
    running: int
    left: int
    parts: int
    skipped: int


@dataclass
class Progress:
    """Which parts of a job have finished. One thread changes it; others may ask how far it is.

    Attributes:
        parallelism: in how many parts each vertex runs, once that is decided.
        finished: the parts that have finished.
        skipped: those of them that had finished when this driver took the job.
    """

    graph: ExecutionGraph
    parallelism: dict[int, int] = field(default_factory=dict)
    finished: set[ExecutionVertex] = field(default_factory=set)
    skipped: frozenset[ExecutionVertex] = frozenset()

    def is_finished(self, vertex: int) -> bool:
        """Whether all parts of a job vertex have."""
        parts = self.parallelism.get(vertex)
        if parts is None:
            return False
        # From the last one, which mostly ends last: this is asked after each part.
        return all(ExecutionVertex(vertex, part) in self.finished for part in reversed(range(parts)))

    def missing(self, vertex: int) -> Iterator[ExecutionVertex]:
        """The parts of an initialized vertex that have not finished."""
        for part in range(self.parallelism[vertex]):
            if (found := ExecutionVertex(vertex, part)) not in self.finished:
                yield found

    def counts(self) -> VertexCounts:
        """How far the job is."""
        done = sum(self.is_finished(vertex.id) for vertex in self.graph.vertices)
        running = len(self.parallelism) - done
        return VertexCounts(done, running, len(self.graph.vertices) - done - running, len(self.finished), len(self.skipped))

    def summary(self) -> str:
        """The vertices that have begun and not ended, with how many of their parts have: `1: 3 of 8`."""
        begun = [vertex for vertex in sorted(self.parallelism) if not self.is_finished(vertex)]
        done = {vertex: sum(part.vertex == vertex for part in list(self.finished)) for vertex in begun}
        return ", ".join(f"{vertex}: {done[vertex]} of {self.parallelism[vertex]}" for vertex in begun)

    def ready(self, started: Collection[int]) -> Sequence[JobVertex]:
        """The vertices that are needed, can run now, and are not among those that have started."""
        done = {vertex.id: self.is_finished(vertex.id) for vertex in self.graph.vertices}
        needed = self.graph.needed(done)
        return [
            vertex
            for vertex in self.graph.vertices
            if vertex.id in needed and vertex.id not in started and all(done[below] for below in vertex.inputs)
        ]
