"""max(DISTINCT ..) and the like over a stream: Spark's streaming rejects DISTINCT even where it has no effect."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.trees import argument_of, function_name, streaming_aggregates

_SAME_OF_DUPLICATES = frozenset(
    """
    any any_value approx_count_distinct bit_and bit_or bool_and bool_or every first first_value last last_value max min some
    """.split()
)


def remove_idle_distinct(query: exp.Query) -> exp.Query:
    """Remove DISTINCT from aggregates that duplicates do not affect.

    SELECT k, max(DISTINCT v) AS m FROM STREAM t GROUP BY k
    -> SELECT k, max(v) AS m FROM STREAM t GROUP BY k
    """
    for call in streaming_aggregates(query):
        if function_name(call) in _SAME_OF_DUPLICATES:
            argument = argument_of(call)
            distinct = argument.this if isinstance(argument, exp.Order) else argument
            if isinstance(distinct, exp.Distinct) and len(distinct.expressions) == 1:
                distinct.replace(distinct.expressions[0].copy())
    return query
