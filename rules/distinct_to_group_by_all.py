"""SELECT DISTINCT over a stream is an aggregate with all columns as its key: FLIP-365's `distinct`."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.trees import aggregate_calls, streaming_selects


def distinct_to_group_by_all(query: exp.Query) -> exp.Query:
    """Rewrite SELECT DISTINCT into GROUP BY ALL.

    SELECT DISTINCT a, b FROM STREAM t
    -> SELECT a, b FROM STREAM t GROUP BY ALL
    """
    for select in streaming_selects(query):
        distinct = select.args.get("distinct")
        plain = not select.args.get("group") and not any(True for _ in aggregate_calls(select))
        if distinct is not None and not distinct.args.get("on") and plain:
            select.set("distinct", None)
            select.set("group", exp.Group(all=True))
    return query
