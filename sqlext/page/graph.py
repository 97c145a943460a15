"""The graph of tables as the page draws it: layers from left to right, what is joined near one another.

Within a layer, nodes are ordered by the middle of their neighbours, back and forth a few times (Sugiyama et al., 1981).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlext.page.drawn_graph import Graph, GraphEdge, GraphNode
from sqlext.page.snapshot import FlowSummary, ViewSummary
from sqlext.plan.lineage import Lineage, Node, NodeKind

WIDTH, HEIGHT = 190, 56
_GAP, _ROW = 90, 74
_MARGIN = 4
_SWEEPS = 6
_LONGEST = 19
"""The characters of a name that fit into a node."""
_ON_THE_LINE = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8)
"""Where a number may stand on its line, from the source to what is made of it; the first place that is free."""
_DIGIT, _LINE = 7, 14
"""The width of a digit and the height of a line, in pixels."""


def graph_of(lineage: Lineage, flows: Iterable[FlowSummary], views: Iterable[ViewSummary], at: datetime) -> Graph | None:
    """Return the graph of tables; None: nothing is kept.

    Args:
        lineage: the graph.
        flows, views: what is known of each.
        at: the time.
    """
    if not any(node.id for node in lineage.nodes.values()):
        return None
    places = _places(lineage)
    kept: dict[str, FlowSummary | ViewSummary] = {each.id: each for each in flows}
    kept |= {each.id: each for each in views}
    nodes = tuple(_node(node, kept.get(node.id), *places[key], at) for key, node in lineage.nodes.items())
    edges = _edges(lineage, kept, places)
    width = max(x for x, _ in places.values()) + WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + HEIGHT + _MARGIN
    return Graph(nodes, edges, width, height, WIDTH, HEIGHT)


def _node(node: Node, kept: FlowSummary | ViewSummary | None, x: int, y: int, at: datetime) -> GraphNode:
    name = node.shown
    short = name if len(name) <= _LONGEST else node.name[-1]  # without its schema
    short = short if len(short) <= _LONGEST else f"{short[: _LONGEST - 1]}…"
    folder = {FlowSummary: "flows", ViewSummary: "views"}
    path = "" if kept is None else f"/{folder[type(kept)]}/{kept.id}"
    status = "" if kept is None else kept.status
    return GraphNode(short, name, node.kind.value, status, _freshness(kept, at), path, x, y)


def _freshness(kept: FlowSummary | ViewSummary | None, at: datetime) -> str:
    """Return how far a table is behind what it is made of."""
    if isinstance(kept, ViewSummary):
        if kept.behind is None:
            return "not known"
        return "up to date" if not kept.behind else f"{_short(at - kept.behind_since)} behind" if kept.behind_since else "behind"
    if kept is None or kept.live is None or kept.live.lag is None:
        return "" if kept is None else "lag not known"
    return f"{_short(kept.live.lag)} behind" if kept.live.lag else "up to date"


def _short(age: timedelta) -> str:
    """Return an age in its largest unit.

    >>> _short(timedelta(seconds=75)), _short(timedelta(days=3, hours=5))
    ('1 min', '3 d')
    """
    seconds = max(age.total_seconds(), 0.0)
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    return next((f"{seconds // length:.0f} {unit}" for length, unit in units if seconds >= length), f"{seconds:.0f} s")


def _edges(
    lineage: Lineage, kept: Mapping[str, FlowSummary | ViewSummary], places: Mapping[str, tuple[int, int]]
) -> tuple[GraphEdge, ...]:
    edges = []
    taken = [_Box(x, y, x + WIDTH, y + HEIGHT) for x, y in places.values()]
    for key, node in lineage.nodes.items():
        if node.kind is NodeKind.SOURCE:
            continue
        summary = kept.get(node.id)
        last = summary.last if isinstance(summary, ViewSummary) else None
        for read in node.inputs:
            curve = _Curve.between(places[lineage.key_of(read)], places[key])
            rows = None if last is None else last.read.get(".".join(read.name))
            x, y = curve.at(_ON_THE_LINE[0])
            if rows is not None:
                box = _free_place(curve, len(f"{rows:,}") * _DIGIT, taken)
                taken.append(box)
                x, y = box.middle
            edges.append(GraphEdge(curve.path, rows, x, y + _LINE // 3, read.is_stream))
    return tuple(edges)


@dataclass(frozen=True)
class _Box:
    """A rectangle, in pixels."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def middle(self) -> tuple[int, int]:
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2

    def overlaps(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True)
class _Curve:
    """A line from the right side of one node to the left side of another: a cubic Bezier curve that begins and ends level."""

    x1: int
    y1: int
    x2: int
    y2: int

    @classmethod
    def between(cls, source: tuple[int, int], target: tuple[int, int]) -> _Curve:
        return cls(source[0] + WIDTH, source[1] + HEIGHT // 2, target[0], target[1] + HEIGHT // 2)

    @property
    def bend(self) -> int:
        return max((self.x2 - self.x1) // 2, _GAP // 2)

    @property
    def path(self) -> str:
        """The curve, as an SVG path."""
        controls = f"{self.x1 + self.bend} {self.y1} {self.x2 - self.bend} {self.y2}"
        return f"M{self.x1} {self.y1}C{controls} {self.x2} {self.y2}"

    def at(self, share: float) -> tuple[int, int]:
        """Return the point after a share of the curve's parameter."""
        rest = 1 - share
        weights = (rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3)
        xs = (self.x1, self.x1 + self.bend, self.x2 - self.bend, self.x2)
        ys = (self.y1, self.y1, self.y2, self.y2)
        x, y = (sum(weight * end for weight, end in zip(weights, ends, strict=True)) for ends in (xs, ys))
        return round(x), round(y)


def _free_place(curve: _Curve, width: int, taken: Sequence[_Box]) -> _Box:
    """Return a place for a number on its line where nothing else stands; where there is none, the middle of the line."""
    boxes = []
    for share in _ON_THE_LINE:
        x, y = curve.at(share)
        boxes.append(_Box(x - width // 2, y - _LINE // 2, x + width // 2, y + _LINE // 2))
    return next((box for box in boxes if not any(box.overlaps(each) for each in taken)), boxes[0])


def _places(lineage: Lineage) -> dict[str, tuple[int, int]]:
    """Return the upper left corner of each node."""
    layers: dict[int, list[str]] = {}
    for key, layer in lineage.layers.items():
        layers.setdefault(layer, []).append(key)
    for sweep in range(_SWEEPS):
        is_forward = sweep % 2 == 0
        for layer in sorted(layers, reverse=not is_forward):
            rank = {key: at / max(len(keys), 1) for keys in layers.values() for at, key in enumerate(keys)}
            near = lineage.inputs if is_forward else lineage.readers
            layers[layer].sort(key=lambda key: _middle([rank[each] for each in near(key)], rank[key]))
    tallest = max(len(keys) for keys in layers.values())
    return {
        key: (_MARGIN + layer * (WIDTH + _GAP), _MARGIN + round((row + (tallest - len(keys)) / 2) * _ROW))
        for layer, keys in layers.items()
        for row, key in enumerate(keys)
    }


def _middle(ranks: list[float], own: float) -> float:
    return sum(ranks) / len(ranks) if ranks else own
