"""The graph of tables as it is drawn: where each node and each line is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphNode:
    """A table.

    Attributes:
        name: short enough to fit.
        full_name: as it is.
        kind: what keeps it.
        status: of what keeps it; empty: nobody does.
        freshness: how far it is behind, for people.
        path: of its page; empty: it has none.
        x, y: its upper left corner, in pixels.
    """

    name: str
    full_name: str
    kind: str
    status: str
    freshness: str
    path: str
    x: int
    y: int


@dataclass(frozen=True)
class GraphEdge:
    """What one table reads of another.

    Attributes:
        line: the line, as an SVG path.
        rows: the changed rows that the last refresh has read along it; None: not counted.
        x, y: the place of that number.
        is_stream: whether it is read as a stream.
    """

    line: str
    rows: int | None
    x: int
    y: int
    is_stream: bool


@dataclass(frozen=True)
class Graph:
    """The graph, with its size and that of each node, in pixels."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    width: int
    height: int
    node_width: int
    node_height: int
