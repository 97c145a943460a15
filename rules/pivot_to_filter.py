"""PIVOT over a stream: one aggregate with FILTER for each of its values."""

from __future__ import annotations

from sqlglot import exp

from sqlext.names import fold
from sqlext.shape import function_name, reads_stream, streaming_ctes

_NULL_OF_NOTHING = frozenset("avg max mean min stddev stddev_pop stddev_samp sum var_pop var_samp variance".split())
_COUNTS = frozenset(("count", "count_if"))  # of a group without rows of a value, PIVOT gives null and FILTER 0


def pivot_to_filter(query: exp.Query) -> exp.Query:
    """Group by the columns that PIVOT does not name, and aggregate the rows of each value by themselves.

    Which columns are grouped by must be seen in the query, so PIVOT stands behind a subquery with named columns. What else PIVOT
    can do is left alone, and refused later.

    SELECT * FROM (SELECT c, v FROM STREAM t) PIVOT (sum(v) FOR c IN (1))
    -> SELECT * FROM (SELECT SUM(v) FILTER(WHERE c IS NOT DISTINCT FROM 1) AS `1` FROM (SELECT c, v FROM STREAM t))
    """
    ctes = streaming_ctes(query)
    for relation in list(query.find_all(exp.Subquery)):
        pivots = relation.args.get("pivots") or []
        if len(pivots) == 1 and not pivots[0].args.get("unpivot") and reads_stream(relation.this, ctes):
            aggregated = _aggregated(relation, pivots[0])
            if aggregated is not None:
                relation.replace(exp.Subquery(this=aggregated, alias=pivots[0].args.get("alias")))
    return query


def _aggregated(relation: exp.Subquery, pivot: exp.Pivot) -> exp.Select | None:
    """The aggregate that a pivoted subquery is; None when it is none of the simple kind."""
    names, calls, values = _names(relation.this), _calls(pivot), _values(pivot)
    if not names or not calls or values is None:
        return None
    column, literals = values
    read = {fold(each.name) for call, _ in calls for each in call.find_all(exp.Column)} | {fold(column.name)}
    keys = [name for name in names if fold(name) not in read]
    items: list[exp.Expr] = [exp.column(name) for name in keys]
    for literal, value in literals:
        for call, suffix in calls:
            items.append(exp.alias_(_of_value(call, column, literal), value + suffix, quoted=True))
    below = relation.copy()
    below.set("pivots", None)
    select = exp.Select(expressions=items, from_=exp.From(this=below))
    if keys:
        select.set("group", exp.Group(expressions=[exp.column(name) for name in keys]))
    return select


def _names(query: exp.Expr) -> list[str]:
    """The columns of a query, as far as all are named in it."""
    items = query.expressions if isinstance(query, exp.Select) else []
    are_named = all(isinstance(item, (exp.Alias, exp.Column)) and not item.is_star for item in items)
    return [item.alias_or_name for item in items] if are_named else []


def _calls(pivot: exp.Pivot) -> list[tuple[exp.Expr, str]]:
    """Each aggregate call of PIVOT, and what its columns' names end in; nothing when one is of another kind."""
    found: list[tuple[exp.Expr, str]] = []
    for each in pivot.expressions:
        is_named = isinstance(each, exp.Alias)
        found.append((each.this if is_named else each, f"_{each.alias}" if is_named else ""))
    if len(found) == 1:
        found = [(found[0][0], "")]
    elif any(not suffix for _, suffix in found):
        return []
    kinds = {function_name(call) for call, _ in found}
    return found if kinds <= _NULL_OF_NOTHING or kinds <= _COUNTS else []


def _values(pivot: exp.Pivot) -> tuple[exp.Column, list[tuple[exp.Expr, str]]] | None:
    """The column that PIVOT is FOR; and each literal of its IN list, with what its columns are called."""
    fields = pivot.args.get("fields") or []
    if len(fields) != 1 or not isinstance(fields[0], exp.In) or not isinstance(fields[0].this, exp.Column):
        return None
    found: list[tuple[exp.Expr, str]] = []
    for each in fields[0].expressions:
        literal = each.this if isinstance(each, exp.PivotAlias) else each
        if not isinstance(literal, exp.Literal) or not (literal.is_string or literal.is_int):
            return None
        found.append((literal, each.alias if isinstance(each, exp.PivotAlias) else literal.name))
    return (fields[0].this, found) if found else None


def _of_value(call: exp.Expr, column: exp.Column, literal: exp.Expr) -> exp.Expr:
    condition = exp.NullSafeEQ(this=column.copy(), expression=literal.copy())
    filtered = exp.Filter(this=call.copy(), expression=exp.Where(this=condition))
    if function_name(call) not in _COUNTS:
        return filtered
    some = exp.GT(this=exp.Anonymous(this="COUNT_IF", expressions=[condition.copy()]), expression=exp.Literal.number(0))
    return exp.Case(ifs=[exp.If(this=some, true=filtered)])
