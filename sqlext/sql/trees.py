"""Properties of a query's tree for rules and the planner: which parts stream, which aggregate, which names they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from sqlext.functions.partition import OPERATORS
from sqlext.functions.scalar import AGGREGATES, FUNCTIONS
from sqlext.options import HINTS
from sqlext.plan.job_graph import INTERNAL_PREFIX, References
from sqlext.quoting import fold
from sqlext.sql.nodes import HintCall, Stream

_SPARKS_NAMES = {
    "approx_quantile": "percentile_approx",
    "bitwise_and_agg": "bit_and",
    "bitwise_or_agg": "bit_or",
    "bitwise_xor_agg": "bit_xor",
    "quantile": "percentile",
}
"""Spark's names of functions for which sqlglot has another name."""


def function_name(node: exp.Expr) -> str:
    """Return a call's name in lower case, as in Spark; an empty string for a node that is not a call."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    if isinstance(node, exp.Any):  # `= ANY (..)` to sqlglot; by itself it is the aggregate
        return "" if isinstance(node.parent, exp.Binary) and node.parent.expression is node else "any"
    if isinstance(node, exp.Func):
        known = [_SPARKS_NAMES.get(name.lower(), name.lower()) for name in node.sql_names()]
        return next((name for name in known if name in AGGREGATES), known[0] if known else "")
    return ""


def is_aggregate_call(node: exp.Expr) -> bool:
    """Return whether a node is the call of an aggregate function that is not used as a window function."""
    if not (name := function_name(node)):
        return False
    python = FUNCTIONS.find(name)
    if not (isinstance(node, exp.AggFunc) or name in AGGREGATES or (python and python.is_aggregate)):
        return False
    below, above = node, node.parent
    while isinstance(above, (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)):
        below, above = above, above.parent
    return not (isinstance(above, exp.Window) and above.this is below)


def aggregate_calls(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the aggregate calls of a select itself: in its list and HAVING, not in subqueries."""
    having = select.args.get("having")
    for part in (*select.expressions, *([having] if having else [])):
        for node in part.walk(prune=lambda node: isinstance(node, exp.Query)):
            if is_aggregate_call(node):
                yield node


def window_calls(select: exp.Select) -> Iterator[exp.Window]:
    """Yield the window functions in a select's own list."""
    for item in select.expressions:
        for node in item.walk(prune=lambda node: isinstance(node, exp.Query)):
            if isinstance(node, exp.Window):
                yield node


def is_aggregation(select: exp.Select) -> bool:
    """Return whether a select groups rows: by GROUP BY, DISTINCT, or aggregate functions."""
    return bool(select.args.get("group") or select.args.get("distinct")) or any(True for _ in aggregate_calls(select))


def selects_of(query: exp.Query) -> list[exp.Select]:
    """Return the selects that a query's own rows come from: itself, or the branches of its set operations."""
    if isinstance(query, exp.Select):
        return [query]
    if isinstance(query, exp.Subquery):
        return selects_of(query.this)
    if isinstance(query, exp.SetOperation):
        return selects_of(query.this) + selects_of(query.expression)
    return []


def streaming_ctes(query: exp.Query) -> set[str]:
    """Return the names of the CTEs, anywhere in `query`, that read a stream, directly or through other CTEs."""
    names: set[str] = set()
    ctes = list(query.find_all(exp.CTE))
    while found := {fold(cte.alias) for cte in ctes if reads_stream(cte.this, names)} - names:
        names |= found  # the walk may reach a CTE before one that it reads
    return names


def reads_stream(node: exp.Expr, ctes: set[str]) -> bool:
    """Return whether `node` reads a stream that does not end, or one of the streaming `ctes`."""
    if any(not stream.args.get("is_bounded") for stream in node.find_all(Stream)):
        return True
    return any(not table.db and fold(table.name) in ctes for table in node.find_all(exp.Table))


def streaming_selects(query: exp.Query) -> list[exp.Select]:
    """Return all selects of `query`, at any depth, whose rows come from a stream."""
    ctes = streaming_ctes(query)
    return [select for select in query.find_all(exp.Select) if _reads_directly(select, ctes)]


def _reads_directly(select: exp.Select, ctes: set[str]) -> bool:
    from_ = select.args.get("from_")
    relations = ([from_] if from_ else []) + list(select.args.get("joins") or [])
    return any(reads_stream(relation, ctes) for relation in relations)


def relations_of(select: exp.Select) -> list[exp.Expr]:
    """Return the relations in FROM, JOIN and LATERAL VIEW."""
    from_ = select.args.get("from_")
    joined = [join.this for join in select.args.get("joins") or ()]
    return [*([from_.this] if from_ else []), *joined, *(select.args.get("laterals") or ())]


def named_relations(relation: exp.Expr) -> Iterator[exp.Expr]:
    """Yield a relation and those joined to it, also inside brackets: FROM (a JOIN b)."""
    if isinstance(relation, exp.Subquery) and not isinstance(relation.this, exp.Query):
        yield from named_relations(relation.this)
    yield relation
    for join in relation.args.get("joins") or ():
        yield from named_relations(join.this)


def relation_names(select: exp.Select) -> frozenset[str]:
    """Return the names that a select can use for its relations, folded."""
    named = [each for relation in relations_of(select) for each in named_relations(relation)]
    names = [each.alias or each.this.name if isinstance(each, Stream) else each.alias_or_name for each in named]
    return frozenset(fold(name) for name in names if name)


def streaming_aggregates(query: exp.Query) -> list[exp.Expr]:
    """Return the aggregate calls, at any depth, of the selects whose rows come from a stream; inner calls after outer ones."""
    return [
        call
        for select in streaming_selects(query)
        for call in select.find_all(exp.Func)
        if is_aggregate_call(call) and call.parent_select is select
    ]


def argument_of(call: exp.Expr) -> exp.Expr:
    """Return a call's first argument, however sqlglot stores it; the call itself when it has none."""
    if isinstance(call, exp.Anonymous):
        return call.expressions[0] if call.expressions else call
    return call.this if isinstance(call.this, exp.Expr) else call


def with_filter(call: exp.Expr, collected: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    """Return the node to replace when a rule puts a scalar function over an aggregate, and the aggregate with the call's FILTER.

    A scalar function takes no FILTER, so `f(v) FILTER (WHERE c)` is replaced as a whole, by `g(collected FILTER (WHERE c))`.

    Args:
        call: the call that is replaced.
        collected: the aggregate that takes its place inside the scalar function.
    """
    if isinstance(call.parent, exp.Filter):
        return call.parent, exp.Filter(this=collected, expression=call.parent.expression.copy())
    return call, collected


def struct_of(parts: Sequence[exp.Expr]) -> exp.Expr:
    """Return a struct of values, in the form that rules use.

    The name is in backticks: after the bare word STRUCT, Spark's lexer would take a later `>>` for the ends of two types.
    """
    return exp.Anonymous(this=exp.to_identifier("STRUCT", quoted=True), expressions=[part.copy() for part in parts])


def drop_cte(cte: exp.CTE) -> None:
    """Remove a WITH query from its WITH, and that when it is the last one."""
    with_ = cte.parent
    cte.pop()
    if isinstance(with_, exp.With) and not with_.expressions:
        with_.pop()


def references_of(query: exp.Query) -> References:
    """Return what of a query depends on its session: unqualified names at any depth, without CTEs and sqlext's internal names."""
    ctes = {fold(cte.alias) for cte in query.find_all(exp.CTE)}
    relations = {fold(table.name) for table in query.find_all(exp.Table) if not table.args.get("db")} - ctes
    functions = {function_name(call) for call in query.find_all(exp.Func)} - {""}
    columns = {fold(column.name) for column in query.find_all(exp.Column) if not column.table}

    def users(names: set[str]) -> tuple[str, ...]:
        ours = {"", *OPERATORS}  # a table function's table has no name; the operators exist in every session
        return tuple(sorted(name for name in names - ours if not name.startswith(INTERNAL_PREFIX)))

    names_streams = any(stream.args.get("identified") is not None for stream in query.find_all(Stream))
    return References(users(relations), users(functions), users(columns), names_streams)


def total_of(tree: exp.Query, number_of: Callable[[exp.Expr], int]) -> int:
    """Sum a number over the nodes of a query, counting the nodes of a WITH query once for each use of it.

    Args:
        number_of: the number of a single node; the name of a WITH query counts as the sum of that query.
    """
    definitions = {fold(cte.alias): cte for cte in tree.find_all(exp.CTE)}
    totals: dict[str, int] = {}

    def total(node: exp.Expr, within: frozenset[str]) -> int:
        found = 0
        for each in node.walk(prune=lambda each: isinstance(each, exp.With)):
            name = fold(each.name) if isinstance(each, exp.Table) else ""
            found += of(name, within) if name in definitions and name not in within else number_of(each)
        return found

    def of(name: str, within: frozenset[str]) -> int:
        if name not in totals:
            totals[name] = total(definitions[name].this, within | {name})
        return totals[name]

    return total(tree, frozenset())


def our_hints(tree: exp.Expr) -> list[HintCall]:
    """Return our hints in a tree."""
    return [hint for hint in tree.find_all(HintCall) if hint.name in HINTS]


def is_end_of_stream(query: exp.Expr) -> bool:
    """Return whether a query itself has GLOBAL WINDOW END OF STREAM."""
    return bool(query.args.get("end_of_stream"))


def with_aliases_expanded(condition: exp.Expr, select: exp.Select) -> exp.Expr:
    """Replace aliases of the select list in a HAVING condition by their expressions.

    HAVING resolves a name as such an alias first, and then as a column of the input; a column of the select list does not.
    """
    aliases = {fold(item.alias): item.this for item in select.expressions if isinstance(item, exp.Alias)}

    def expand(node: exp.Expr) -> exp.Expr:
        expands = isinstance(node, exp.Column) and not node.table and fold(node.name) in aliases
        if not expands or in_aggregate(node) or node.find_ancestor(exp.Query):  # a subquery's columns are its own
            return node
        return exp.Paren(this=aliases[fold(node.name)].copy())

    return condition.transform(expand)


def in_aggregate(node: exp.Expr) -> bool:
    """Return whether a node is inside the arguments of an aggregate call."""
    above = node.parent
    while above is not None:
        if is_aggregate_call(above):
            return True
        above = above.parent
    return False
