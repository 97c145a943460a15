"""Aggregates written in Python over a stream: Spark keeps the list of a group's values, the function aggregates the list."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import SchemaError
from sqlext.functions.scalar import FUNCTIONS
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import function_name, streaming_aggregates, with_filter


def python_aggregate_over_list(query: exp.Query) -> exp.Query:
    """Rewrite an aggregate written in Python into a scalar function over the collected list.

    SELECT k, geometric_mean(v) AS g FROM STREAM t GROUP BY k
    -> SELECT k, __sqlext_geometric_mean_of_list(COLLECT_LIST(v)) AS g FROM STREAM t GROUP BY k
    """
    for call in streaming_aggregates(query):
        function = FUNCTIONS.find(function_name(call))
        if function is None or not isinstance(call, exp.Anonymous):
            continue
        if len(call.expressions) != 1:
            message = f"The aggregate {function.name} takes one argument, not {len(call.expressions)}."
            raise RefusalError(SchemaError(message), call)
        values = exp.Anonymous(this="COLLECT_LIST", expressions=[call.expressions[0].copy()])
        whole, collected = with_filter(call, values)
        whole.replace(exp.Anonymous(this=function.over_list_name, expressions=[collected]))
    return query
