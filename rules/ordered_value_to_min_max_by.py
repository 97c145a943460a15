"""first_value(v ORDER BY ts) and last_value(v ORDER BY ts): Spark's own use arrival order and do not parse ORDER BY there."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.first_rows import first_by, is_null
from sqlext.sql.trees import function_name, is_aggregate_call

_FIRST = ("first", "first_value")
_LAST = ("last", "last_value")


def ordered_value_to_min_max_by(query: exp.Query) -> exp.Query:
    """Rewrite first_value and last_value with ORDER BY into min_by and max_by.

    The sort columns are put into a struct: min_by and max_by skip a row whose sort value is null, and a struct never is. Its
    fields compare as ORDER BY does, nulls lowest.

    SELECT k, last_value(v ORDER BY ts) AS v FROM STREAM t GROUP BY k
    -> SELECT k, MAX_BY(v, `STRUCT`(ts)) AS v FROM STREAM t GROUP BY k
    """
    for call in list(query.find_all(exp.Func)):
        if function_name(call) in (*_FIRST, *_LAST) and is_aggregate_call(call):
            nulls = call.this if isinstance(call.this, (exp.IgnoreNulls, exp.RespectNulls)) else None
            order = nulls.this if nulls else call.this
            if isinstance(order, exp.Order):
                _replace(call, order, ignore_nulls=isinstance(nulls, exp.IgnoreNulls))
    return query


def _replace(call: exp.Expr, order: exp.Order, ignore_nulls: bool) -> None:
    name = function_name(call)
    found = first_by(order.this.copy(), order.expressions, call, name, is_last=name in _LAST)
    whole: exp.Expr = call
    conditions: list[exp.Expr] = []
    while isinstance(whole.parent, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)):
        whole = whole.parent
        if isinstance(whole, exp.Filter):
            conditions.append(whole.expression.this.copy())
        ignore_nulls = ignore_nulls or isinstance(whole, exp.IgnoreNulls)
    if ignore_nulls:
        conditions.append(exp.Not(this=is_null(order.this)))
    if conditions:
        found = exp.Filter(this=found, expression=exp.Where(this=exp.and_(*conditions)))
    whole.replace(found)
