"""Properties of a query's tree for rules and the planner: which parts stream, which aggregate, which names they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from sqlext.functions.partition import OPERATORS
from sqlext.functions.scalar import AGGREGATES, FUNCTIONS
from sqlext.options import HINTS
from sqlext.plan.job_graph import INTERNAL_PREFIX, References
from sqlext.quoting import fold
from sqlext.sql.ctes import cte_of
from sqlext.sql.nodes import HintCall, Stream, VerbatimText
from sqlext.sql.references import references_in

_SPARKS_NAMES = {
    "approx_quantile": "percentile_approx",
    "bitwise_and_agg": "bit_and",
    "bitwise_or_agg": "bit_or",
    "bitwise_xor_agg": "bit_xor",
    "quantile": "percentile",
}
"""Spark's names of functions for which sqlglot has another name."""

SUBTOTALS = (exp.Rollup, exp.Cube, exp.GroupingSets)


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
        yield from aggregate_calls_in(part)


def aggregate_calls_in(expression: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the aggregate calls in an expression, without those of its subqueries."""
    for node in expression.walk(prune=lambda node: isinstance(node, exp.Query)):
        if is_aggregate_call(node):
            yield node


def has_rows() -> exp.Expr:
    """Return the condition, an aggregate, that there are rows: COUNT(*) > 0."""
    return exp.GT(this=exp.Count(this=exp.Star(), big_int=True), expression=exp.Literal.number(0))


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
    """Return what of a query depends on its session: unqualified names at any depth, without CTEs and sqlext's internal names.

    The columns are all names that may be variables of the session: also `v` of `session.v`, and of `v.field`.
    """
    tables = query.find_all(exp.Table)
    relations = {fold(table.name) for table in tables if not table.args.get("db") and cte_of(table) is None}
    functions = {function_name(call) for call in query.find_all(exp.Func)} - {""}
    columns = {name for column in query.find_all(exp.Column) for name in _possible_variables(column)}
    for text in query.find_all(VerbatimText):
        if text.arg_key != "identified":  # a stream's name is no expression
            found = references_in(text.this)
            functions.update(found.functions)
            columns.update(found.columns)

    def users(names: set[str]) -> tuple[str, ...]:
        ours = {"", *OPERATORS}  # a table function's table has no name; the operators exist in every session
        return tuple(sorted(name for name in names - ours if not name.startswith(INTERNAL_PREFIX)))

    names_streams = any(stream.args.get("identified") is not None for stream in query.find_all(Stream))
    return References(users(relations), users(functions), users(columns), names_streams)


def _possible_variables(column: exp.Column) -> set[str]:
    """Return the names of session variables that a column may be, or be a field of."""
    names = [fold(part.name) for part in column.parts]
    found = {names[0]}
    for qualifier in (["session"], ["system", "session"]):
        length = len(qualifier)
        if len(names) > length and [name.lower() for name in names[:length]] == qualifier:
            found.add(names[length])
    return found


def total_of(tree: exp.Query, number_of: Callable[[exp.Expr], int]) -> int:
    """Sum a number over the nodes of a query, counting the nodes of a WITH query once for each use of it.

    Args:
        number_of: the number of a single node; the name of a WITH query counts as the sum of that query.
    """
    totals: dict[int, int] = {}

    def total(node: exp.Expr, within: frozenset[int]) -> int:
        found = 0
        for each in node.walk(prune=lambda each: isinstance(each, exp.With)):
            cte = cte_of(each) if isinstance(each, exp.Table) else None
            found += number_of(each) if cte is None or id(cte) in within else of(cte, within)
        return found

    def of(cte: exp.CTE, within: frozenset[int]) -> int:
        if id(cte) not in totals:
            totals[id(cte)] = total(cte.this, within | {id(cte)})
        return totals[id(cte)]

    return total(tree, frozenset())


def our_hints(tree: exp.Expr) -> list[HintCall]:
    """Return our hints in a tree."""
    return [hint for hint in tree.find_all(HintCall) if hint.name in HINTS]


def is_end_of_stream(query: exp.Expr) -> bool:
    """Return whether a query itself has GLOBAL WINDOW END OF STREAM."""
    return bool(query.args.get("end_of_stream"))


def reads_parameter(node: exp.Expr) -> bool:
    """Return whether an expression reads a parameter of a lambda around it: `e.k` and `lower(e)` in `e -> e.k = lower(e)`."""

    def is_value(name: exp.Identifier) -> bool:
        is_field = isinstance(name.parent, exp.Dot) and name.arg_key == "expression"
        return not is_field and not isinstance(name.parent, exp.Column)

    return any(is_value(name) and _is_of_lambda_around(name, node) for name in node.find_all(exp.Identifier))


def _is_of_lambda_around(name: exp.Identifier, node: exp.Expr) -> bool:
    """Return whether a name in `node` is the parameter of a lambda that `node` is in, and of none within `node`."""
    above: exp.Expr | None = name
    is_within = True
    while above is not None:
        if isinstance(above, exp.Lambda) and fold(name.name) in {fold(each.name) for each in above.expressions}:
            return not is_within
        is_within = is_within and above is not node
        above = above.parent
    return False


def grouping_leaves(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the grouping expressions of a GROUP BY, also those inside ROLLUP, CUBE and GROUPING SETS, in their order."""
    parts = [*node.expressions, *(part for arg in ("rollup", "cube", "grouping_sets") for part in node.args.get(arg) or ())]
    for part in parts:
        is_list = not isinstance(node, exp.Group) and isinstance(part, exp.Tuple)
        if isinstance(part, SUBTOTALS) or is_list:
            yield from grouping_leaves(part)
        else:
            yield part


def with_aliases_expanded(condition: exp.Expr, select: exp.Select) -> exp.Expr:
    """Replace aliases of the select list in a HAVING condition, which is changed, by their expressions.

    HAVING resolves an expression as a grouping expression first, then a name as such an alias, and then as a column of the input;
    a column of the select list does not.
    """
    aliases = {fold(item.alias): (at, item.this) for at, item in enumerate(select.expressions) if isinstance(item, exp.Alias)}
    relations = relation_names(select)
    keys = [_comparable(key, relations) for key in _keys_of(select)]
    root = exp.Paren(this=condition)

    def is_closed(node: exp.Expr) -> bool:
        if isinstance(node, (exp.Query, exp.Filter, exp.WithinGroup)) or is_aggregate_call(node):
            return True  # a subquery's columns are its own, and those that are aggregated are the input's
        comparable = _comparable(node, relations)
        return any(comparable == key or (isinstance(node, exp.Column) and _is_field(comparable, key)) for key in keys)

    left: list[tuple[exp.Expr, int]] = [(root, len(select.expressions))]
    while left:
        place, before = left.pop()  # an item may read the aliases of those before it
        for node in list(place.walk(prune=is_closed)):
            if (
                not isinstance(node, exp.Column)
                or is_closed(node)
                or any(fold(part.name) in relations for part in node.parts[:-1])
            ):
                continue
            name, *fields = node.parts  # `s.v` is a field of the alias s
            at, meant = aliases.get(fold(name.name), (before, name))
            if at < before and not (fields and function_name(meant) == fold(name.name)):  # window.start is a column by itself
                whole = exp.Paren(this=meant.copy())
                node.replace(exp.Dot.build([whole, *(field.copy() for field in fields)]) if fields else whole)
                left.append((whole, at))
    expanded: exp.Expr = root.this
    return expanded.pop()


def _keys_of(select: exp.Select) -> list[exp.Expr]:
    """Return the grouping expressions of a select as HAVING may write them: with ALL, places and aliases resolved."""
    group = select.args.get("group")
    items = [item.unalias() for item in select.expressions]
    if group is None:
        return []
    if group.args.get("all"):
        return [item for item in items if not any(is_aggregate_call(node) for node in item.walk())]
    return [_meant(leaf.unnest(), select) for leaf in grouping_leaves(group)]


def _meant(key: exp.Expr, select: exp.Select) -> exp.Expr:
    """Return what GROUP BY means by an expression: an item, by its place or alias, or the expression itself.

    An alias is not meant where there must be a column of the name: another item shows it, or the item of the alias reads it or
    cannot be grouped by.
    """
    items: list[exp.Expr] = select.expressions
    if isinstance(key, exp.Literal) and key.is_int and 1 <= int(key.name) <= len(items):
        return items[int(key.name) - 1].unalias()
    relations = relation_names(select)
    if any(_comparable(item.unalias(), relations) == _comparable(key, relations) for item in items):
        return key
    for item in items if isinstance(key, exp.Column) and not key.table else ():
        reads = {fold(part.name) for column in item.find_all(exp.Column) for part in column.parts}
        is_named = isinstance(item, exp.Alias) and fold(item.alias) == fold(key.name) and fold(key.name) not in reads
        if is_named and not any(is_aggregate_call(node) or isinstance(node, exp.Window) for node in item.walk()):
            return item.unalias()
    return key


def _comparable(node: exp.Expr, relations: frozenset[str]) -> exp.Expr:
    """Return an expression without brackets and relations' names, and with folded names: equal where Spark may find the same."""

    def plain(each: exp.Expr) -> exp.Expr:
        if isinstance(each, exp.Column):
            *above, name = (fold(part.name) for part in each.parts)
            return exp.Tuple(expressions=[exp.Literal.string(part) for part in (*(a for a in above if a not in relations), name)])
        return each.unnest() if isinstance(each, exp.Paren) else each

    found: exp.Expr = node.copy().transform(plain)
    return found


def _is_field(node: exp.Expr, column: exp.Expr) -> bool:
    """Return whether a comparable column is a field of another."""
    return isinstance(column, exp.Tuple) and node.expressions[: len(column.expressions)] == column.expressions
