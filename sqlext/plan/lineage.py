"""The graph of what is kept up to date: which table each flow and each materialized view makes of which relations.

Tables are known by the folder of their files, whatever they are called; other relations by their names. Knows no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from sqlext.errors import Position, UnsupportedError

Keeper = tuple[str, tuple[str, ...]]
"""The id and the qualified name of a flow or view."""


class NodeKind(StrEnum):
    """What a node of the graph is: a relation that nothing here keeps, or what keeps one."""

    SOURCE = "source"
    STREAMING_TABLE = "streaming table"
    INSERT = "insert into"
    VIEW = "materialized view"


@dataclass(frozen=True)
class Input:
    """A relation that a flow or a materialized view reads.

    Attributes:
        name: catalog, database and table; of what has no such name, one text: a path, or what Spark calls the source.
        location: the folder of the table's files; empty: it has none, or it is not known.
        is_stream: whether it is read as a stream.
    """

    name: tuple[str, ...]
    location: str = ""
    is_stream: bool = False

    @property
    def key(self) -> str:
        """What the relation is known by."""
        return place(self.location) or shown(self.name).lower()


@dataclass(frozen=True)
class Node:
    """A table of the graph.

    Attributes:
        key: what it is known by.
        name: catalog, database and table, as far as it has them.
        kind: what keeps it.
        inputs: what that reads; none of a source.
        id: of the flow or view that keeps it; empty: a source.
        keeper: the qualified name of that flow or view, by which statements find it.
        others: the ids and qualified names of other flows that append to it.
    """

    key: str
    name: tuple[str, ...]
    kind: NodeKind = NodeKind.SOURCE
    inputs: tuple[Input, ...] = ()
    id: str = ""
    keeper: tuple[str, ...] = ()
    others: tuple[Keeper, ...] = ()

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        """The ids and qualified names of all flows that write it, or of the view; none of a source."""
        return ((self.id, self.keeper), *self.others) if self.id else ()

    @property
    def shown(self) -> str:
        """The name for people."""
        return shown(self.name)


def place(location: str) -> str:
    """Return a folder in one form, whichever of Spark's interfaces has named it.

    >>> place("file:///tmp/t/") == place("file:/tmp/t") == "file:/tmp/t"
    True
    """
    return location.replace("file:///", "file:/", 1).rstrip("/")


def shown(name: Iterable[str]) -> str:
    """Return a qualified name as messages have it: without Spark's own catalog."""
    parts = tuple(name)
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] == "spark_catalog" else parts)


def inputs_from(records: Iterable[Mapping[str, Any]]) -> tuple[Input, ...]:
    """Return inputs from their fields as JSON has them."""
    return tuple(Input(**{**each, "name": tuple(each["name"])}) for each in records)


class Lineage:
    """The graph. Whoever keeps a table is its node; relations that nobody keeps are nodes without inputs.

    Args:
        kept: the nodes of flows and materialized views; those of several flows into one table become one.
    """

    def __init__(self, kept: Iterable[Node]) -> None:
        self._kept: dict[str, Node] = {}
        for node in kept:
            there = self._kept.get(node.key)
            self._kept[node.key] = node if there is None else _together(there, node)
        self._by_name = {shown(node.name).lower(): node.key for node in self._kept.values()}

    def key_of(self, read: Input) -> str:
        """Return the key of the node that a relation is: by its folder, or by its name where it was not told which folder."""
        return read.key if read.key in self._kept else self._by_name.get(shown(read.name).lower(), read.key)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by their keys, those before others that these read."""
        found = dict(self._kept)
        for node in self._kept.values():
            for read in node.inputs:
                found.setdefault(self.key_of(read), Node(self.key_of(read), read.name))
        return {key: found[key] for key in _ordered(found, lambda key: self._read_by(found[key]))}

    def node_of(self, name: Sequence[str]) -> Node | None:
        """Return the node of a qualified name, whatever its case; None if there is none."""
        wanted = shown(name).lower()
        return next((node for node in self.nodes.values() if node.shown.lower() == wanted), None)

    def kept_by(self, keeper: Sequence[str]) -> Node | None:
        """Return the node that the flow or view of a qualified name keeps, whatever its case; None if it keeps none."""
        wanted = shown(keeper).lower()
        found = (node for node in self.nodes.values() for _, name in node.keepers if shown(name).lower() == wanted)
        return next(found, None)

    def inputs(self, key: str) -> tuple[str, ...]:
        """Return the keys of what a node reads, each once."""
        return self._read_by(self.nodes[key])

    @cached_property
    def _readers(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = dict.fromkeys(self.nodes, ())
        for key in self.nodes:
            for read in self.inputs(key):
                found[read] = (*found[read], key)
        return found

    def readers(self, key: str) -> tuple[str, ...]:
        """Return the keys of the nodes that read a node."""
        return self._readers[key]

    def upstream(self, keys: Iterable[str]) -> list[str]:
        """Return the keys of all that some nodes read, directly or through others, in the order of the graph."""
        return self._closure(keys, self.inputs)

    def downstream(self, keys: Iterable[str]) -> list[str]:
        """Return the keys of all that reads some nodes, directly or through others, in the order of the graph."""
        return self._closure(keys, self.readers)

    def waits_for(self, failed: Set[str]) -> dict[str, str]:
        """Return the name of a table that could not be brought up to date, for each flow or view above it, by id.

        Args:
            failed: the ids of the flows and views that have failed.
        """
        broken = {node.key for node in self.nodes.values() if any(key in failed for key, _ in node.keepers)}
        found: dict[str, str] = {}
        for key, node in self.nodes.items():
            above = [each for each in self.upstream([key]) if each in broken and each != key]
            found |= {each: self.nodes[above[-1]].shown for each, _ in node.keepers if above}
        return found

    @cached_property
    def layers(self) -> Mapping[str, int]:
        """The layer of each node: 0 of what nobody keeps, else one more than the highest layer that it reads."""
        found: dict[str, int] = {}
        for key, node in self.nodes.items():
            least = 0 if node.kind is NodeKind.SOURCE else 1
            found[key] = max((found.get(read, 0) + 1 for read in self.inputs(key)), default=least)
        return found

    def refuse_cycle(self, node: Node, position: Position | None = None) -> None:
        """Raise UnsupportedError if a table would be made of itself.

        Args:
            node: what would keep it; the graph may have it already.
            position: of the statement.
        """
        way = self._way_back(node)
        if way is not None:
            what = "flow" if node.kind is NodeKind.INSERT else node.kind.value
            raise UnsupportedError(
                f"A {what} cannot read itself: {' reads '.join(way)}. Read another table in its place.", position
            )

    def _way_back(self, start: Node) -> list[str] | None:
        """Return the names on the way from a node through what it reads to itself; None: there is none."""
        paths = [[self.key_of(read)] for read in start.inputs]
        seen: set[str] = set()
        while paths:
            path = paths.pop(0)
            if path[-1] == start.key:
                return [start.shown, *(self.nodes[each].shown if each in self.nodes else start.shown for each in path)]
            if path[-1] in self.nodes and path[-1] not in seen:
                seen.add(path[-1])
                paths += [[*path, each] for each in self.inputs(path[-1])]
        return None

    def _read_by(self, node: Node) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.key_of(read) for read in node.inputs))

    def _closure(self, keys: Iterable[str], step: Callable[[str], Iterable[str]]) -> list[str]:
        found: set[str] = set()
        left = [key for key in keys if key in self.nodes]
        while left:
            new = [each for each in step(left.pop()) if each not in found]
            found.update(new)
            left += new
        return [key for key in self.nodes if key in found]


def _together(one: Node, other: Node) -> Node:
    """Return the node of a table that several flows write: that of the flow which made it, if one did."""
    main, added = (other, one) if other.kind is NodeKind.STREAMING_TABLE else (one, other)
    inputs = tuple(dict.fromkeys((*main.inputs, *added.inputs)))
    return replace(main, inputs=inputs, others=(*main.others, *added.keepers))


def _ordered(keys: Iterable[str], inputs: Callable[[str], Iterable[str]]) -> list[str]:
    """Return keys, each after its inputs; a cycle is cut where it is met first."""
    found: dict[str, None] = {}
    begun: set[str] = set()
    for start in keys:
        stack = [(start, False)]
        while stack:
            key, is_done = stack.pop()
            if is_done:
                found.setdefault(key)
            elif key not in begun:
                begun.add(key)
                stack.append((key, True))
                stack += [(each, False) for each in inputs(key)]
    return [*found]
