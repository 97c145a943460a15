"""sum(DISTINCT ..), avg(DISTINCT ..) and the like over a stream: Spark keeps the set and applies its own function to it."""

from __future__ import annotations

from sqlglot import exp

from sqlext.functions.scalar import AGGREGATE_SET, AGGREGATES_OF_SETS
from sqlext.sql.trees import argument_of, function_name, streaming_aggregates, with_filter


def aggregate_distinct_to_set(query: exp.Query) -> exp.Query:
    """Apply the function to the members of the set; types, nulls and overflows are the function's own.

    SELECT k, sum(DISTINCT v) AS s FROM STREAM t GROUP BY k
    -> SELECT k, __sqlext_aggregate_set('sum', COLLECT_SET(v)) AS s FROM STREAM t GROUP BY k
    """
    for call in streaming_aggregates(query):
        name = function_name(call)
        if name not in AGGREGATES_OF_SETS:
            continue
        distinct = argument_of(call)
        if isinstance(distinct, exp.Distinct) and len(distinct.expressions) == 1:
            members = exp.Anonymous(this="COLLECT_SET", expressions=[distinct.expressions[0].copy()])
            whole, collected = with_filter(call, members)
            whole.replace(exp.Anonymous(this=AGGREGATE_SET, expressions=[exp.Literal.string(name), collected]))
    return query
