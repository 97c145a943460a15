"""HAVING over a stream: a group that stops qualifying must leave the target, so the condition travels as a column."""

from __future__ import annotations

from sqlglot import exp

from sqlext.plan import QUALIFIES
from sqlext.shape import is_aggregate_call, is_aggregation, streaming_selects


def having_to_column(query: exp.Query) -> exp.Query:
    """Turn the condition into a column that the flush reads.

    SELECT k, count(*) AS n FROM STREAM t GROUP BY k HAVING n > 1
    -> SELECT k, count(*) AS n, COALESCE((count(*)) > 1, FALSE) AS __sqlext_qualifies FROM STREAM t GROUP BY k
    """
    for select in streaming_selects(query):
        having = select.args.get("having")
        if having is None or select is not query or not is_aggregation(select):
            continue
        condition = _with_aliases_expanded(having.this.copy(), select)
        qualifies = exp.Coalesce(this=condition, expressions=[exp.false()])
        select.set("having", None)
        select.append("expressions", exp.alias_(qualifies, QUALIFIES))
    return query


def _with_aliases_expanded(condition: exp.Expr, select: exp.Select) -> exp.Expr:
    """HAVING sees the select list's aliases before the input's columns; a column of the select list does not."""
    aliases = {item.alias.lower(): item.this for item in select.expressions if isinstance(item, exp.Alias)}

    def expand(node: exp.Expr) -> exp.Expr:
        expands = isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases
        if not expands or _in_aggregate(node) or node.find_ancestor(exp.Query):  # a subquery's columns are its own
            return node
        return exp.Paren(this=aliases[node.name.lower()].copy())

    return condition.transform(expand)


def _in_aggregate(node: exp.Expr) -> bool:
    above = node.parent
    while above is not None:
        if is_aggregate_call(above):
            return True
        above = above.parent
    return False
