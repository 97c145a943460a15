"""Which parts of a job are to be run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.errors import JobError
from sqlext.execution.jobs.execution_graph import ExecutionGraph, ExecutionVertex, JobVertex, Progress, VertexCounts, VertexKind

# Two sources, a join of them by bucket, a sink.
JOIN = ExecutionGraph(
    (
        JobVertex(0, VertexKind.SOURCE, "scan a", buckets=4),
        JobVertex(1, VertexKind.SOURCE, "scan b", buckets=4),
        JobVertex(2, VertexKind.BUCKETS, "join", (0, 1)),
        JobVertex(3, VertexKind.SINK, "insert", (2,)),
    )
)


def finished(*parts: tuple[int, int]) -> set[ExecutionVertex]:
    return {ExecutionVertex(*part) for part in parts}


def ids(progress: Progress, *started: int) -> list[int]:
    return [vertex.id for vertex in progress.ready(started)]


def test_sources_run_first_and_side_by_side() -> None:
    progress = Progress(JOIN)
    assert ids(progress) == [0, 1]
    assert ids(progress, 0) == [1]


def test_a_vertex_runs_when_all_parts_below_it_have_finished() -> None:
    progress = Progress(JOIN, {0: 2, 1: 1}, finished((0, 0), (1, 0)))
    assert ids(progress, 0) == []
    progress.finished.add(ExecutionVertex(0, 1))
    assert ids(progress) == [2]


def test_what_is_missing_of_a_vertex() -> None:
    progress = Progress(JOIN, {0: 3}, finished((0, 1)))
    assert list(progress.missing(0)) == [ExecutionVertex(0, 0), ExecutionVertex(0, 2)]
    assert not progress.is_finished(0)
    assert not progress.is_finished(1), "nobody has decided its parallelism"


def test_how_far_a_job_is() -> None:
    progress = Progress(JOIN, {0: 2, 1: 2}, finished((0, 0), (0, 1), (1, 0)), frozenset(finished((0, 0))))
    assert progress.counts() == VertexCounts(done=1, running=1, left=2, parts=3, skipped=1)
    assert progress.summary() == "1: 1 of 2"


def test_a_finished_result_hides_what_is_below_it() -> None:
    """The tables of the sources are gone; the join's is there, and the sink needs nothing else."""
    progress = Progress(JOIN, {2: 1}, finished((2, 0)))
    assert ids(progress) == [3]


def test_a_lost_result_brings_back_what_it_was_made_of() -> None:
    progress = Progress(JOIN, {0: 1, 1: 1, 2: 2}, finished((0, 0), (2, 0)))
    assert ids(progress) == [1]


def test_a_finished_job_needs_nothing() -> None:
    assert ids(Progress(JOIN, {3: 1}, finished((3, 0)))) == []


@pytest.mark.parametrize(
    ("vertices", "message"),
    [
        ((JobVertex(1, VertexKind.SINK, "sink"),), "cannot be at position 0"),
        ((JobVertex(0, VertexKind.SINK, "sink", (0,)),), "cannot be at position 0"),
        ((JobVertex(0, VertexKind.SOURCE, "scan"),), "must be its sink"),
        ((), "must be its sink"),
    ],
)
def test_graphs_that_are_none(vertices: tuple[JobVertex, ...], message: str) -> None:
    with pytest.raises(JobError, match=message):
        ExecutionGraph(vertices)


@st.composite
def graphs(draw: st.DrawFn) -> ExecutionGraph:
    size = draw(st.integers(1, 7))
    vertices = []
    for at in range(size):
        inputs = tuple(sorted(draw(st.sets(st.integers(0, at - 1))))) if at else ()
        kind = VertexKind.SINK if at == size - 1 else VertexKind.BUCKETS
        vertices.append(JobVertex(at, kind, "", inputs))
    return ExecutionGraph(tuple(vertices))


@given(graphs(), st.data())
def test_running_what_is_ready_ends_at_the_sink_and_runs_nothing_twice(graph: ExecutionGraph, data: st.DataObject) -> None:
    parts = {vertex.id: data.draw(st.integers(1, 3)) for vertex in graph.vertices}
    every = [ExecutionVertex(vertex, part) for vertex, count in parts.items() for part in range(count)]
    before = frozenset(data.draw(st.sets(st.sampled_from(every))))
    progress = Progress(graph, dict(parts), set(before), before)
    ran: list[ExecutionVertex] = []
    while ready := progress.ready(()):
        vertex = data.draw(st.sampled_from(ready))
        assert all(progress.is_finished(below) for below in vertex.inputs)
        missing = list(progress.missing(vertex.id))
        assert missing
        ran.extend(missing)
        progress.finished.update(missing)
    assert progress.is_finished(graph.sink.id)
    assert len(ran) == len(set(ran))
    assert not before & set(ran)
