"""The source text of each node of a tree, so that text which no rule has changed is written as the user wrote it.

An unchanged node is written as its source text. So is a node with replaced parts, with the new text spliced in for the old:
sqlglot would write `log10(x)` as `LOG(10, x)` and leave out the format of `to_date`, so its output is never used for the
unchanged rest. sqlglot's generator writes only queries and the nodes that rules make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sqlglot import exp

from sqlext.errors import Position

_ORIGIN = "sqlext_origin"
_NEEDS_BRACKETS = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Connector)
_NEEDS_NONE = (exp.Paren, exp.Dot)
_SET_APART = (exp.Paren, exp.Alias, exp.AggFunc, exp.Anonymous)  # their parts are delimited by brackets or commas
Render = Callable[[exp.Expr], str]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The span that a node was parsed from.

    Attributes:
        start: the 0-based offset of its first character in the statement.
        stop: the 0-based offset after its last character.
        fingerprint: the node's hash when it was parsed; a node that has changed since has a different hash.
        node: the node as the parser left it, in a tree that nothing changes; None while the parser is at work.
    """

    start: int
    stop: int
    fingerprint: int
    node: exp.Expr | None = None

    def __deepcopy__(self, memo: Any) -> Origin:
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the span covers the whole node: the parser may have added to the node after the span was recorded."""
        return self.node is not None and hash(self.node) == self.fingerprint


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    stop: int
    text: str


def note(node: exp.Expr, start: int, stop: int) -> None:
    """Record the span of a node that was just parsed."""
    node.meta[_ORIGIN] = Origin(start, stop, hash(node))


def freeze(tree: exp.Expr) -> None:
    """Store a copy of a parsed tree in the origins of its nodes, to compare the nodes with later."""
    for node, kept in zip(tree.walk(), tree.copy().walk(), strict=True):
        if (origin := origin_of(node)) is not None:
            node.meta[_ORIGIN] = Origin(origin.start, origin.stop, origin.fingerprint, kept)
            kept.meta[_ORIGIN] = node.meta[_ORIGIN]


def origin_of(node: exp.Expr) -> Origin | None:
    """Return the origin of a node; None for a node that a rule made."""
    meta = node._meta  # noqa: SLF001  # `node.meta` would create a dict for each node
    return meta.get(_ORIGIN) if meta else None


def text_of(node: exp.Expr, source: str, render: Render) -> str | None:
    """Return a node's text in `source`, with new text in place of the parts that were replaced.

    Args:
        render: a function that returns the SQL of a replaced part.

    Returns:
        None when a rule made the node, or it has changed other than by the replacement of parts.
    """
    origin = origin_of(node)
    if origin is None:
        return None
    if hash(node) == origin.fingerprint:
        return source[origin.start : origin.stop]
    if isinstance(node, (exp.Query, exp.CTE, exp.Table)) or not origin.is_whole or origin.node is None:
        return None
    edits = _edits(origin.node, node, render)
    return None if edits is None else _spliced(source, origin, edits)


def _edits(before: exp.Expr, now: exp.Expr, render: Render) -> list[_Edit] | None:
    """Return the edits that turn the text of `before` into that of `now`; None when replacing parts is not enough."""
    if type(before) is not type(now):
        return None
    found: list[_Edit] = []
    for one, other in _pairs(before, now):
        if not isinstance(one, exp.Expr) or not isinstance(other, exp.Expr):
            if (one or None) != (other or None):
                return None
        elif one == other and origin_of(other) in (None, origin_of(one)):
            continue
        elif (edits := _edits_of_child(one, other, render)) is not None:
            found += edits
        else:
            return None
    return found


def _pairs(before: exp.Expr, now: exp.Expr) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments of two nodes in pairs."""
    for name in {**before.args, **now.args}:
        one, other = before.args.get(name), now.args.get(name)
        if isinstance(one, list) and isinstance(other, list):
            yield from zip_longest(one, other)
        else:
            yield one, other


def _edits_of_child(before: exp.Expr, now: exp.Expr, render: Render) -> list[_Edit] | None:
    origin = origin_of(before)
    if origin is None or not origin.is_whole:
        return _edits(before, now, render)
    around = origin_of(before.parent) if isinstance(before.parent, exp.Cast) else None
    if around is not None and (around.start, around.stop) == (origin.start, origin.stop):
        return None  # `1L`, which is CAST(1 AS BIGINT) to sqlglot
    text = render(now)
    is_itself = origin_of(now) is origin
    return [_Edit(origin.start, origin.stop, text if is_itself else _in_brackets(before, now, text))]


def _in_brackets(before: exp.Expr, now: exp.Expr, text: str) -> str:
    """Add brackets to the text of a replacement where it would bind less tightly than the part it replaces."""
    is_loose = isinstance(now, _NEEDS_BRACKETS) and not isinstance(now, _NEEDS_NONE)
    stands_alone = isinstance(before.parent, _SET_APART) or isinstance(before, _NEEDS_BRACKETS)
    return f"({text})" if is_loose and not stands_alone else text


def _spliced(source: str, origin: Origin, edits: list[_Edit]) -> str | None:
    """Apply edits to a span of `source`; return None when two of them overlap."""
    parts: list[str] = []
    at = origin.start
    for edit in sorted(set(edits), key=lambda each: each.start):  # an argument that the parser has added twice is edited once
        if edit.start < at:
            return None
        parts += [source[at : edit.start], edit.text]
        at = edit.stop
    return None if at > origin.stop else "".join([*parts, source[at : origin.stop]])


def position_of(node: exp.Expr, source: str) -> Position | None:
    """Return the position in `source` of a node, or of its first part that has a known position."""
    for part in node.walk():
        if (origin := origin_of(part)) is not None:
            return Position.of(source, origin.start, origin.stop)
        if "start" in part.meta:
            return Position.of(source, part.meta["start"], part.meta["end"] + 1)
    return None
