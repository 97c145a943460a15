"""GLOBAL WINDOW END OF STREAM: queries that run over what their sources hold at the start, and end (FLIP-331, FLIP-140).

Each such query becomes the table argument of a function, `SELECT * FROM __sqlext_end_of_stream(TABLE(query), 'sorted')`, whose
plan `spark/sorted_plan.py` makes. So it may stand wherever a query can, and nothing runs before the statement around it.

Where streams are left outside of such queries, each of these is cut out as a prerequisite instead: its result is there, as a
table, before the streams start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.options import is_option_key
from sqlext.plan.job_graph import PREREQUISITE_PREFIX
from sqlext.quoting import fold
from sqlext.sql.dialect import position_of
from sqlext.sql.nodes import Stream, StreamOption, TableArgument
from sqlext.sql.statements import Query
from sqlext.sql.trees import is_end_of_stream

END_OF_STREAM = "__sqlext_end_of_stream"
"""The table function that a bounded query becomes the argument of."""
SORTED, UNSORTED = "sorted", "unsorted"

_RATE_LIMITS = frozenset(
    "maxfilespertrigger maxbytespertrigger maxoffsetspertrigger minoffsetspertrigger maxtriggerdelay maxfileage".split()
)
"""Options of Spark's sources that say how much a micro-batch takes; a bounded query takes all."""
_STARTS = frozenset("startingversion startingtimestamp".split())


@dataclass(frozen=True)
class PrerequisiteQuery:
    """A query with the clause that was cut out of another one.

    Attributes:
        name: of the relation that stands in its place.
        tree: itself, with its clause, and with the CTEs that it reads.
        after: the prerequisites that it reads.
    """

    name: str
    tree: exp.Query
    after: tuple[str, ...]


def is_bounded(query: Query) -> bool:
    """Whether a query holds the clause, and no stream outside of the queries that have it."""
    found = outermost(query.tree)
    return bool(found) and all(_is_in(stream, found) for stream in query.tree.find_all(Stream))


def with_bounded_streams(query: Query) -> Query:
    """The query with its streams below the clause marked: they are read up to where they are now."""
    tree = query.tree.copy()
    found = outermost(tree)
    for stream in [each for each in tree.find_all(Stream) if _is_in(each, found)]:
        options = stream.args.get("options") or []
        if (identified := stream.args.get("identified")) is not None:
            raise UnsupportedError(
                f"`{identified.this}` names a stream in a checkpoint, and a query that reads to the end of a stream has none. "
                "Leave it out.",
                position_of(stream, query.source),
            )
        stream.set("options", [option for option in options if _is_kept(option, query.source)] or None)
        stream.set("is_bounded", True)
    return Query(tree, query.source)


def outermost(tree: exp.Query) -> list[exp.Query]:
    """The queries with the clause that stand inside no other one, in the order of the text."""
    found = tree.dfs(prune=is_end_of_stream)
    return [node for node in found if isinstance(node, exp.Query) and is_end_of_stream(node)]


def called(tree: exp.Query, is_sorted: bool) -> exp.Query:
    """A copy in which each query with the clause is a call; the clause itself is gone."""
    tree = tree.copy()
    for query in outermost(tree):
        call = _call(called(without_clause(query), is_sorted), is_sorted)
        if query is tree:
            return call
        query.replace(call)
    return tree


def without_clauses(tree: exp.Query) -> exp.Query:
    """A copy in which no query has the clause."""
    tree = tree.copy()
    for query in list(tree.find_all(exp.Query)):
        query.set("end_of_stream", None)
    return tree


def cut_prerequisites(tree: exp.Query) -> tuple[exp.Query, tuple[PrerequisiteQuery, ...]]:
    """Put a relation in the place of each outermost query with the clause.

    Returns:
        A copy of the tree, and what was cut out, in an order in which each stands behind those that it reads.
    """
    tree = tree.copy()
    prerequisites: list[PrerequisiteQuery] = []
    for number, query in enumerate(outermost(tree), 1):
        name = f"{PREREQUISITE_PREFIX}{number}"
        alone = _alone(query)
        read = _names(alone)
        prerequisites.append(PrerequisiteQuery(name, alone, tuple(each.name for each in prerequisites if each.name in read)))
        query.replace(exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.to_table(name))))
    return tree, tuple(prerequisites)


def without_clause(query: exp.Query) -> exp.Query:
    """A copy of a query that stands by itself: without its clause, and with the CTEs around it that it reads."""
    alone = _alone(query)
    alone.set("end_of_stream", None)
    return alone


def _alone(query: exp.Query) -> exp.Query:
    visible = {fold(cte.alias): cte for cte in _visible_ctes(query)}
    alone = query.copy()
    needed = [cte.copy() for cte in _read_ctes(alone, visible)]
    if needed:
        own = alone.args.get("with_")
        is_recursive = bool(own and own.args.get("recursive"))
        alone.set("with_", exp.With(expressions=[*needed, *(own.expressions if own else [])], recursive=is_recursive))
    return alone


def _call(query: exp.Query, is_sorted: bool) -> exp.Select:
    arguments = [TableArgument(this=query), exp.Literal.string(SORTED if is_sorted else UNSORTED)]
    function = exp.Table(this=exp.Anonymous(this=END_OF_STREAM, expressions=arguments))
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=function))


def _visible_ctes(query: exp.Query) -> Iterator[exp.CTE]:
    """The CTEs of the queries around `query` that its names can mean, outer ones first."""
    below: exp.Expr = query
    scopes: list[list[exp.CTE]] = []
    while (above := below.parent) is not None:
        with_ = above.args.get("with_") if isinstance(above, exp.Query) else None
        if with_ is not None and below is not with_:
            scopes.append(list(with_.expressions))
        elif isinstance(above, exp.With):
            scopes.append(above.expressions[: above.expressions.index(below)])
        below = above
    for scope in reversed(scopes):
        yield from scope


def _read_ctes(query: exp.Query, visible: dict[str, exp.CTE]) -> list[exp.CTE]:
    """Those of `visible` that a query reads, directly or through others, in their own order."""
    names = _names(query)
    for name, cte in reversed(visible.items()):
        if name in names:
            names |= _names(cte)
    return [cte for name, cte in visible.items() if name in names]


def _names(node: exp.Expr) -> set[str]:
    return {fold(table.name) for table in node.find_all(exp.Table) if not table.db}


def _is_in(node: exp.Expr, queries: Sequence[exp.Query]) -> bool:
    above: exp.Expr | None = node
    while above is not None:
        if any(above is query for query in queries):
            return True
        above = above.parent
    return False


def _is_kept(option: StreamOption, source: str) -> bool:
    key = option.name.lower()
    if key in _STARTS:
        raise UnsupportedError(
            f"`{option.name}` has no meaning here: a query with GLOBAL WINDOW END OF STREAM reads all that the table holds now. "
            "Leave it out, or filter the rows.",
            position_of(option, source),
        )
    return key not in _RATE_LIMITS and not is_option_key(option.name)
