"""The execution graph of a bounded job: its parts, and which of them are still to be run.

Modeled on Flink's ExecutionGraph: a job vertex is a piece of the query's plan, and an execution vertex is that piece over one
part of its input. Results are blocking: a vertex runs once all parts of the vertices it reads have finished. This module does
not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlext.errors import JobError


class VertexKind(StrEnum):
    """The way in which a job vertex is divided into parts."""

    SOURCE = "source"  # into slices of one input's files
    BUCKETS = "buckets"  # into groups of the buckets that the vertices below it have written
    SINGLE = "single"  # not divided
    SINK = "sink"  # not divided; it writes the job's table


@dataclass(frozen=True)
class JobVertex:
    """A piece of the plan between two exchanges.

    Attributes:
        id: its position in the graph, from 0; it reads only vertices with smaller ids.
        kind: the way in which it is divided into parts.
        name: a description, for people.
        inputs: the ids of the vertices that it reads.
        buckets: the number of buckets of its result.
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
    """The graph of a job's vertices.

    Attributes:
        vertices: the job vertices, each after those that it reads; the last one is the sink.
        above: the ids of the vertices that read a vertex, by its id.

    Raises:
        JobError: a vertex is placed before one that it reads, or the last vertex is not a sink.
    """

    vertices: tuple[JobVertex, ...]
    above: Mapping[int, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        for at, vertex in enumerate(self.vertices):
            if vertex.id != at or any(below >= at for below in vertex.inputs):
                raise JobError(f"Job vertex {vertex.id} cannot be at position {at} of its graph.")
        if not self.vertices or self.vertices[-1].kind is not VertexKind.SINK:
            raise JobError("The last vertex of a job must be its sink.")
        readers = {v.id: tuple(r.id for r in self.vertices if v.id in r.inputs) for v in self.vertices}
        object.__setattr__(self, "above", readers)

    @property
    def sink(self) -> JobVertex:
        """The vertex that writes the job's table."""
        return self.vertices[-1]

    def needed(self, is_finished: Mapping[int, bool]) -> tuple[int, ...]:
        """Return the ids of the vertices still to be run, ascending: the sink, and upstream of it those with missing results.

        Args:
            is_finished: whether a vertex has finished, by its id; a vertex that is not in it has not.
        """
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
    """The progress of a job in numbers.

    Attributes:
        done, running, left: numbers of job vertices that have finished, are running, and are not yet started.
        parts: the number of execution vertices that have finished.
        skipped: the number of those that an earlier driver ran.
    """

    done: int
    running: int
    left: int
    parts: int
    skipped: int


@dataclass
class Progress:
    """The progress of a job: which parts of it have finished. One thread changes it; any thread may read it.

    Attributes:
        graph: the job's vertices.
        parallelism: the number of parts of each vertex that is initialized, by vertex id.
        finished: the parts that have finished.
        skipped: those that had finished when this driver took over the job.
    """

    graph: ExecutionGraph
    parallelism: dict[int, int] = field(default_factory=dict)
    finished: set[ExecutionVertex] = field(default_factory=set)
    skipped: frozenset[ExecutionVertex] = frozenset()

    def is_finished(self, vertex: int) -> bool:
        """Return whether all parts of a job vertex have finished."""
        parts = self.parallelism.get(vertex)
        if parts is None:
            return False
        # From the last part, which usually ends last: this runs after each part.
        return all(ExecutionVertex(vertex, part) in self.finished for part in reversed(range(parts)))

    def missing(self, vertex: int) -> Iterator[ExecutionVertex]:
        """Yield the parts of an initialized vertex that have not finished."""
        for part in range(self.parallelism[vertex]):
            if (found := ExecutionVertex(vertex, part)) not in self.finished:
                yield found

    def counts(self) -> VertexCounts:
        """Count the vertices and parts by their progress."""
        done = sum(self.is_finished(vertex.id) for vertex in self.graph.vertices)
        running = len(self.parallelism) - done
        return VertexCounts(done, running, len(self.graph.vertices) - done - running, len(self.finished), len(self.skipped))

    def summary(self) -> str:
        """Return the running vertices, each with the number of its finished parts: `1: 3 of 8`."""
        begun = [vertex for vertex in sorted(self.parallelism) if not self.is_finished(vertex)]
        done = {vertex: sum(part.vertex == vertex for part in list(self.finished)) for vertex in begun}
        return ", ".join(f"{vertex}: {done[vertex]} of {self.parallelism[vertex]}" for vertex in begun)

    def ready(self, started: Collection[int]) -> Sequence[JobVertex]:
        """Return the vertices that are needed, can run now, and have not been started.

        Args:
            started: the ids of the vertices that have been started.
        """
        done = {vertex.id: self.is_finished(vertex.id) for vertex in self.graph.vertices}
        needed = self.graph.needed(done)
        return [
            vertex
            for vertex in self.graph.vertices
            if vertex.id in needed and vertex.id not in started and all(done[below] for below in vertex.inputs)
        ]
