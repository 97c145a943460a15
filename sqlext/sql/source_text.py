"""Where each node of a tree was read, so that text which no rule has changed is given back as written.

A node that is unchanged is its text. A node inside of which something was replaced is its text too, with the new text spliced
into the place of the old: sqlglot writes `log10(x)` as `LOG(10, x)` and leaves the format of `to_date` out, so what it would
write for the unchanged rest is never asked for. Only nodes that rules make, and queries, are written by sqlglot's generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from sqlglot import exp

_ORIGIN = "sqlext_origin"
_NEEDS_BRACKETS = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Connector)
_NEEDS_NONE = (exp.Paren, exp.Dot)
_SET_APART = (exp.Paren, exp.Alias, exp.AggFunc, exp.Anonymous)  # whose parts stand between brackets or commas
Render = Callable[[exp.Expr], str]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a node was read.

    Attributes:
        start, stop: 0-based offsets in the statement.
        fingerprint: the node's hash as it was read: a node that changed since has another one.
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
        """Whether the span holds all of the node: the parser may have put more into it after the span was noted."""
        return self.node is not None and hash(self.node) == self.fingerprint


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    stop: int
    text: str


def note(node: exp.Expr, start: int, stop: int) -> None:
    """Note where a node that was just read stands."""
    node.meta[_ORIGIN] = Origin(start, stop, hash(node))


def freeze(tree: exp.Expr) -> None:
    """Keep a copy of a parsed tree with the origins of its nodes, to compare them with later."""
    for node, kept in zip(tree.walk(), tree.copy().walk(), strict=True):
        if (origin := origin_of(node)) is not None:
            node.meta[_ORIGIN] = Origin(origin.start, origin.stop, origin.fingerprint, kept)
            kept.meta[_ORIGIN] = node.meta[_ORIGIN]


def origin_of(node: exp.Expr) -> Origin | None:
    """Where a node was read; None for one that a rule made."""
    meta = node._meta  # noqa: SLF001  # `node.meta` would create a dict for each node it is asked of
    return meta.get(_ORIGIN) if meta else None


def text_of(node: exp.Expr, source: str, render: Render) -> str | None:
    """A node's text in `source`, with the text of what was replaced in it in the place of the old.

    Args:
        render: gives the SQL of a part that was replaced.

    Returns:
        None when the node is a rule's, or has changed otherwise than by replacing parts.
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
    """What to put where to make the text of `before` that of `now`; None when replacing parts is not enough."""
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
    """Arguments of two nodes, one for one."""
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
    """What replaces a part binds as the part did."""
    is_loose = isinstance(now, _NEEDS_BRACKETS) and not isinstance(now, _NEEDS_NONE)
    stands_alone = isinstance(before.parent, _SET_APART) or isinstance(before, _NEEDS_BRACKETS)
    return f"({text})" if is_loose and not stands_alone else text


def _spliced(source: str, origin: Origin, edits: list[_Edit]) -> str | None:
    """A span of `source` with edits; None when two of them touch the same text."""
    parts: list[str] = []
    at = origin.start
    for edit in sorted(set(edits), key=lambda each: each.start):  # an argument that the parser has put in twice is edited once
        if edit.start < at:
            return None
        parts += [source[at : edit.start], edit.text]
        at = edit.stop
    return None if at > origin.stop else "".join([*parts, source[at : origin.stop]])
