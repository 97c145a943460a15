"""GLOBAL WINDOW END OF STREAM: queries that read what their sources hold at the start, and end (FLIP-331, FLIP-140).

Each such query becomes the table argument of a function, `SELECT * FROM __sqlext_end_of_stream(TABLE(query), 'sorted')`, whose
plan `spark/sorted_plan.py` makes. So it can be used wherever a query can, and nothing runs before the statement around it.

If the statement also has streams outside of such queries, each of these queries is cut out as a prerequisite instead: its result
is a table before the streams start.
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
"""The table function whose argument is a bounded query."""
SORTED, UNSORTED = "sorted", "unsorted"

_RATE_LIMITS = frozenset(
    "maxfilespertrigger maxbytespertrigger maxoffsetspertrigger minoffsetspertrigger maxtriggerdelay maxfileage".split()
)
"""Options of Spark's sources that limit the size of a micro-batch; a bounded query reads everything."""
_STARTS = frozenset("startingversion startingtimestamp".split())


@dataclass(frozen=True)
class PrerequisiteQuery:
    """A query with the clause, cut out of another query.

    Attributes:
        name: the name of the relation that replaces the query.
        tree: the query, with its clause and with the CTEs that it reads.
        after: the names of the prerequisites that it reads.
    """

    name: str
    tree: exp.Query
    after: tuple[str, ...]


def is_bounded(query: Query) -> bool:
    """Return whether a query holds the clause, and no stream outside of the queries with the clause."""
    found = outermost(query.tree)
    return bool(found) and all(_is_in(stream, found) for stream in query.tree.find_all(Stream))


def with_bounded_streams(query: Query) -> Query:
    """Return the query with its streams below the clause marked as bounded: they are read up to their current end."""
    tree = query.tree.copy()
    found = outermost(tree)
    for stream in [each for each in tree.find_all(Stream) if _is_in(each, found)]:
        options = stream.args.get("options") or []
        if (identified := stream.args.get("identified")) is not None:
            raise UnsupportedError(
                f"`{identified.this}` names a stream in a checkpoint, but a query with GLOBAL WINDOW END OF STREAM has no "
                "checkpoint. Leave it out.",
                position_of(stream, query.source),
            )
        stream.set("options", [option for option in options if _is_kept(option, query.source)] or None)
        stream.set("is_bounded", True)
    return Query(tree, query.source)


def outermost(tree: exp.Query) -> list[exp.Query]:
    """Return the queries with the clause that are not inside another such query, in the order of the text."""
    found = tree.dfs(prune=is_end_of_stream)
    return [node for node in found if isinstance(node, exp.Query) and is_end_of_stream(node)]


def called(tree: exp.Query, is_sorted: bool) -> exp.Query:
    """Return a copy in which each query with the clause is a call instead, without the clause."""
    tree = tree.copy()
    for query in outermost(tree):
        call = _call(called(without_clause(query), is_sorted), is_sorted)
        if query is tree:
            return call
        query.replace(call)
    return tree


def without_clauses(tree: exp.Query) -> exp.Query:
    """Return a copy in which no query has the clause."""
    tree = tree.copy()
    for query in list(tree.find_all(exp.Query)):
        query.set("end_of_stream", None)
    return tree


def cut_prerequisites(tree: exp.Query) -> tuple[exp.Query, tuple[PrerequisiteQuery, ...]]:
    """Replace each outermost query with the clause by a relation.

    Returns:
        A copy of the tree, and the queries that were cut out, each after the ones that it reads.
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
    """Return a self-contained copy of a query: without its clause, and with the CTEs around it that it reads."""
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
    """Yield the CTEs of the queries around `query` that are in its scope, outer ones first."""
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
    """Return the CTEs of `visible` that a query reads, directly or through others, in their own order."""
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
