"""Whether two expressions of one select are the same.

Expressions are compared by their tokens, so when in doubt they differ: that may cause a query to be refused or computed twice,
but never a wrong result. White space, comments, brackets around the whole, and the case of keywords and functions do not matter;
string literals and the fields of VARIANT values are compared exactly. A name may be qualified in one of the two and not in the
other, where that cannot mean another column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from sqlext.quoting import fold
from sqlext.sql.dialect import to_sql
from sqlext.sql.nodes import Stream
from sqlext.sql.tokens import Token, tokens, words_of_paths
from sqlext.sql.trees import named_relations, relations_of

_KEYWORDS = frozenset(
    """
    ALL AND ANY ARRAY AS ASC BETWEEN BOTH BY CASE CAST CURRENT DATE DESC DISTINCT DIV ELSE END ESCAPE EXISTS EXTRACT FALSE FILTER
    FIRST FOLLOWING FOR FROM GROUP IGNORE ILIKE IN INTERVAL IS LAST LEADING LIKE MAP NOT NULL NULLS OF OR ORDER OVER PARTITION
    PRECEDING RANGE REGEXP RESPECT RLIKE ROW ROWS SELECT SOME STRUCT THEN TIMESTAMP TIMESTAMP_LTZ TIMESTAMP_NTZ TO TRAILING TRUE
    TRY_CAST UNBOUNDED USING WHEN WHERE WITHIN
    """.split()
)
_ALSO_COLUMNS = frozenset("ARRAY CURRENT DATE FIRST LAST MAP RANGE ROW ROWS STRUCT TIMESTAMP TIMESTAMP_LTZ TIMESTAMP_NTZ".split())
"""Keywords that are also names of columns."""
_NAMES = (exp.Column, exp.Dot)
_LEFT_FIRST = frozenset(("", "INNER", "LEFT", "CROSS"))  # joins whose common columns come from the left side


@dataclass(frozen=True)
class Chain:
    """A dotted name in the form in which names are compared.

    Attributes:
        relation: the number of the relation that qualifies it; None: it is unqualified.
        parts: the column, and the fields of it.
    """

    relation: int | None
    parts: tuple[str, ...]


Piece = str | Chain


class Sameness:
    """A comparison of the expressions of one select.

    Args:
        select: the select, as it was parsed or rewritten.
        source: the text that it was parsed from.
    """

    def __init__(self, select: exp.Select, source: str) -> None:
        self._source = source
        self._kept: dict[int, tuple[exp.Expr, list[Piece]]] = {}
        relations = [each for relation in relations_of(select) for each in named_relations(relation)]
        self._qualifiers = {name: number for number, each in enumerate(relations) for name in _names_of(each)}
        self._is_single = len(relations) == 1
        joins: list[exp.Join] = [
            join for each in (select, *relations) for join in each.args.get("joins") or () if isinstance(join, exp.Join)
        ]
        self._common = {fold(name.name) for join in joins for name in join.args.get("using") or ()}
        self._is_natural = any(join.args.get("method") == "NATURAL" for join in joins)
        self._is_left_first = all((join.side or join.kind or "").upper() in _LEFT_FIRST for join in joins)

    def keep(self, node: exp.Expr) -> None:
        """Read an expression, which nothing changes from now on, once for all its comparisons."""
        self._kept[id(node)] = (node, self._pieces(node))

    def same(self, one: exp.Expr, other: exp.Expr) -> bool:
        """Return whether two expressions certainly mean the same."""
        return self._agree(one, other, self._are_one)

    def may_be_same(self, one: exp.Expr, other: exp.Expr) -> bool:
        """Return whether two expressions mean the same, unless a name in them is a field of a struct named like a relation.

        With several relations, `b.x` may be such a field and differ from `x`: Spark looks for a column of the relation `b` first,
        and then for a field of a column `b`. A decision based on this must be checked against Spark's analysis.
        """
        return self._agree(one, other, self._may_be_one)

    def _agree(self, one: exp.Expr, other: exp.Expr, are_one: Callable[[Piece, Piece], bool]) -> bool:
        one, other = one.unnest(), other.unnest()
        if type(one) is not type(other) and not (isinstance(one, _NAMES) and isinstance(other, _NAMES)):
            return False
        left, right = self._pieces(one), self._pieces(other)
        if len(left) != len(right):
            return False
        unlike = [(a, b) for a, b in zip(left, right, strict=True) if a != b]
        if not all(are_one(a, b) for a, b in unlike):
            return False
        return not unlike or one.find(exp.Query) is None  # a name in a subquery may belong to another relation

    def fields_below(self, node: exp.Expr, column: exp.Expr) -> tuple[str, ...]:
        """Return the path of fields of `column` that `node` names; empty when it is not a field of that column."""
        whole, outer = self._pieces(node.unnest()), self._pieces(column.unnest())
        if len(whole) != 1 or len(outer) != 1 or not isinstance(whole[0], Chain) or not isinstance(outer[0], Chain):
            return ()
        length = len(outer[0].parts)
        head = Chain(whole[0].relation, whole[0].parts[:length])
        return whole[0].parts[length:] if head == outer[0] or self._may_be_one(head, outer[0]) else ()

    def is_column(self, node: exp.Expr, name: str) -> bool:
        """Return whether an expression is the column of that name, not a field."""
        pieces = self._pieces(node)
        return len(pieces) == 1 and isinstance(pieces[0], Chain) and pieces[0].parts == (fold(name),)

    def reads_column(self, node: exp.Expr, name: str) -> bool:
        """Return whether a name in an expression is the column of that name, or a field of it."""
        chains = (piece for column in node.find_all(exp.Column) for piece in self._pieces(column))
        return any(isinstance(each, Chain) and each.parts[0] == fold(name) for each in chains)

    def is_field(self, node: exp.Expr, name: str) -> bool:
        """Return whether an expression is a field of that name, and not a column with its relation's name."""
        pieces = self._pieces(node)
        chain = pieces[0] if len(pieces) == 1 else None
        return isinstance(chain, Chain) and chain.relation is None and len(chain.parts) > 1 and chain.parts[-1] == fold(name)

    def _are_one(self, one: Piece, other: Piece) -> bool:
        """Return whether two names, one of them qualified, are certainly the same."""
        if not isinstance(one, Chain) or not self._may_be_one(one, other):
            return False
        return self._is_single or (one.parts[0] in self._common and not self._is_natural)

    def _may_be_one(self, one: Piece, other: Piece) -> bool:
        """Return whether two names, one qualified, are the same unless one is a field of a struct named like a relation."""
        if not isinstance(one, Chain) or not isinstance(other, Chain) or one.parts != other.parts:
            return False
        qualified = {each.relation for each in (one, other)} - {None}
        if len(qualified) != 1:
            return False
        (relation,) = qualified
        if self._is_single:
            return True
        if self._is_natural or one.parts[0] in self._common:
            return self._is_left_first and relation == 0
        return True  # a column of two relations would be ambiguous without its qualifier, and Spark says so

    def _pieces(self, node: exp.Expr) -> list[Piece]:
        kept = self._kept.get(id(node))
        return kept[1] if kept else list(self._read(tokens(to_sql(node, self._source))))

    def _read(self, found: list[Token]) -> Iterator[Piece]:
        at = 0
        of_paths = words_of_paths(found)
        while at < len(found):
            token = found[at]
            if not _is_name(token):
                yield token.text
                at += 1
                continue
            if at in of_paths:  # a field of a VARIANT, whose case matters
                yield _unquoted(token)
                at += 1
                continue
            stop = _end_of_chain(found, at)
            is_call = stop < len(found) and found[stop].text == "("
            is_field = at > 0 and found[at - 1].text == "."
            parts = tuple(_unquoted(each) for each in found[at:stop:2])
            if is_call or (len(parts) == 1 and token.upper in _KEYWORDS and not is_field):
                may_be_column = not is_call and token.upper in _ALSO_COLUMNS
                yield fold(parts[0]) if may_be_column else ".".join(parts).lower()
            else:
                yield self._chain(tuple(fold(part) for part in parts), is_field)
            at = stop

    def _chain(self, parts: tuple[str, ...], is_field: bool) -> Chain:
        for length in range(min(len(parts) - 1, 3), 0, -1):
            if not is_field and (number := self._qualifiers.get(parts[:length])) is not None:
                return Chain(number, parts[length:])
        return Chain(None, parts)


def _names_of(relation: exp.Expr) -> Iterator[tuple[str, ...]]:
    """Yield the qualifiers that a column of a relation may have."""
    if alias := relation.alias:
        yield (fold(alias),)
        return
    table: Any = relation.this if isinstance(relation, Stream) else relation
    parts = tuple(fold(part.name) for part in table.parts) if isinstance(table, exp.Table) else ()
    for length in range(1, len(parts) + 1):
        yield parts[-length:]


def _is_name(token: Token) -> bool:
    return token.kind == "quoted" or (token.kind == "word" and not token.text[0].isdigit())


def _end_of_chain(found: list[Token], at: int) -> int:
    """Return the index after the dotted name, such as `a.b.c`, that begins at `at`."""
    at += 1
    while at + 1 < len(found) and found[at].text == "." and _is_name(found[at + 1]):
        at += 2
    return at


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text
