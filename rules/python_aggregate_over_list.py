"""Aggregates written in Python over a stream: Spark keeps the list of a group's values, the function makes one of it."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import SchemaError
from sqlext.functions import FUNCTIONS
from sqlext.shape import streaming_selects


def python_aggregate_over_list(query: exp.Query) -> exp.Query:
    """Call the function on the collected list.

    SELECT k, geometric_mean(v) AS g FROM STREAM t GROUP BY k
    -> SELECT k, __sqlext_geometric_mean_of_list(COLLECT_LIST(v)) AS g FROM STREAM t GROUP BY k
    """
    for select in streaming_selects(query):
        for call in list(select.find_all(exp.Anonymous)):
            function = FUNCTIONS.get(call.name)
            if function is None or not function.is_aggregate or call.parent_select is not select:
                continue
            if len(call.expressions) != 1:
                raise SchemaError(f"The aggregate {function.name} takes one argument, not {len(call.expressions)}.")
            collected: exp.Expr = exp.Anonymous(this="COLLECT_LIST", expressions=[call.expressions[0].copy()])
            whole: exp.Expr = call
            if isinstance(call.parent, exp.Filter):
                whole = call.parent
                collected = exp.Filter(this=collected, expression=whole.expression.copy())
            whole.replace(exp.Anonymous(this=function.over_list_name, expressions=[collected]))
    return query
