"""collect_list(DISTINCT ..) over a stream: Spark's streaming rejects DISTINCT aggregates, but keeps sets."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.trees import argument_of, function_name, streaming_aggregates


def collect_distinct_to_set(query: exp.Query) -> exp.Query:
    """Rewrite collect_list(DISTINCT ..) and array_agg(DISTINCT ..) into collect_set; drop DISTINCT from collect_set.

    SELECT k, collect_list(DISTINCT v) AS vs FROM STREAM t GROUP BY k
    -> SELECT k, COLLECT_SET(v) AS vs FROM STREAM t GROUP BY k
    """
    for call in streaming_aggregates(query):
        if isinstance(call, exp.ArrayUniqueAgg) or function_name(call) in ("collect_list", "array_agg"):
            distinct = argument_of(call)
            if isinstance(distinct, exp.Distinct) and len(distinct.expressions) == 1:
                call.replace(exp.Anonymous(this="COLLECT_SET", expressions=[distinct.expressions[0].copy()]))
    return query
