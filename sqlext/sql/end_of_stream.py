"""GLOBAL WINDOW END OF STREAM: queries that read what their sources hold at the start, and end (FLIP-331, FLIP-140).

Each such query becomes the table argument of a function, `SELECT * FROM __sqlext_end_of_stream(TABLE(query), 'sorted')`, whose
plan `spark/sorted_plan.py` makes. So it can be used wherever a query can, and nothing runs before the statement around it.

If the statement also has streams outside of such queries, each of these queries is cut out as a prerequisite instead: its result
is a table before the streams start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.options import is_option_key
from sqlext.plan.job_graph import PREREQUISITE_PREFIX
from sqlext.quoting import fold
from sqlext.sql.ctes import cte_of, ctes_around, with_needed
from sqlext.sql.nodes import Stream, StreamOption, TableArgument
from sqlext.sql.source_text import position_of
from sqlext.sql.statements import Query
from sqlext.sql.trees import function_name, is_end_of_stream

END_OF_STREAM = "__sqlext_end_of_stream"
"""The table function whose argument is a bounded query."""
SORTED, UNSORTED = "sorted", "unsorted"

_RATE_LIMITS = frozenset(
    "maxfilespertrigger maxbytespertrigger maxoffsetspertrigger minoffsetspertrigger maxtriggerdelay maxfileage".split()
)
"""Options of Spark's sources that limit the size of a micro-batch; a bounded query reads everything."""
_BY_CHANCE = frozenset("monotonically_increasing_id rand randn random randstr shuffle uniform uuid".split())
"""Spark's functions whose values differ between two evaluations."""
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


def called(tree: exp.Query, is_sorted: bool, source: str) -> exp.Query:
    """Return a copy in which each query with the clause is a call instead, without the clause.

    Raises:
        UnsupportedError: the WITH queries that one of them reads would mean something else there.
    """
    tree = tree.copy()
    found = outermost(tree)
    _check_read_once(tree, found, source)
    for query in found:
        call = _call(called(_without_clause(query, source), is_sorted, source), is_sorted)
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


def cut_prerequisites(tree: exp.Query, source: str) -> tuple[exp.Query, tuple[PrerequisiteQuery, ...]]:
    """Replace each outermost query with the clause by a relation.

    Returns:
        A copy of the tree, and the queries that were cut out, each after the ones that it reads.

    Raises:
        UnsupportedError: the WITH queries that one of them reads would mean something else there.
    """
    tree = tree.copy()
    prerequisites: list[PrerequisiteQuery] = []
    found = outermost(tree)
    _check_read_once(tree, found, source)
    for number, query in enumerate(found, 1):
        name = f"{PREREQUISITE_PREFIX}{number}"
        alone = _alone(query, source)
        read = _names(alone)
        prerequisites.append(PrerequisiteQuery(name, alone, tuple(each.name for each in prerequisites if each.name in read)))
        query.replace(exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.to_table(name))))
    return tree, tuple(prerequisites)


def _without_clause(query: exp.Query, source: str) -> exp.Query:
    alone = _alone(query, source)
    alone.set("end_of_stream", None)
    return alone


def _alone(query: exp.Query, source: str) -> exp.Query:
    """Return a self-contained copy of a query: with the CTEs around it that it reads."""
    alone = query.copy()
    with_needed(alone, ctes_around(query), source)
    return alone


def _check_read_once(tree: exp.Query, alone: Sequence[exp.Query], source: str) -> None:
    """See that no CTE with values by chance is read in two of the parts that run alone, or in one and in the rest.

    Spark evaluates such a CTE once for a query; each part would have a sample of its own.
    """
    parts = [_read_in(query, ()) for query in alone] + [_read_in(tree, alone)]
    for cte in tree.find_all(exp.CTE):
        if sum(id(cte) in part for part in parts) > 1 and (chance := _by_chance(cte)):
            raise UnsupportedError(
                f"`{cte.alias}` has values by chance ({chance}) and is read by a query with GLOBAL WINDOW END OF STREAM and "
                "outside of it, and each would see others. Keep it in a table, and read that.",
                position_of(cte, source),
            )


def _read_in(query: exp.Query, without: Sequence[exp.Query]) -> set[int]:
    """Return the ids of the CTEs that a query reads, directly or through others, apart from some parts of it."""

    def is_apart(node: exp.Expr) -> bool:
        return isinstance(node, exp.With) or any(node is each for each in without)

    found: set[int] = set()
    reading: list[exp.Expr] = [query]
    while reading:
        for node in reading.pop().walk(prune=is_apart):
            cte = cte_of(node) if isinstance(node, exp.Table) else None
            if cte is not None and id(cte) not in found:
                found.add(id(cte))
                reading.append(cte.this)
    return found


def _by_chance(cte: exp.CTE) -> str:
    """Return the name of what gives a CTE other values each time it is evaluated; an empty string if nothing does."""
    if any(sample.args.get("seed") is None for sample in cte.find_all(exp.TableSample)):
        return "TABLESAMPLE"
    names = {function_name(call) for call in cte.find_all(exp.Func)}
    return next(iter(sorted(names & _BY_CHANCE)), "")


def _call(query: exp.Query, is_sorted: bool) -> exp.Select:
    arguments = [TableArgument(this=query), exp.Literal.string(SORTED if is_sorted else UNSORTED)]
    function = exp.Table(this=exp.Anonymous(this=END_OF_STREAM, expressions=arguments))
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=function))


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
