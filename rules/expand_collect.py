"""FLIP-365's `collect`, the multiset of a group's values: Spark's lists hold each value as often as it occurs."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import SchemaError
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import function_name


def expand_collect(query: exp.Query) -> exp.Query:
    """Rewrite collect into Spark's collect_list, and collect(DISTINCT ..) into collect_set.

    Nulls are left out, and the order has no meaning. Spark's optimizer does not survive every DISTINCT beside others.

    SELECT k, collect(v) AS vs FROM STREAM t GROUP BY k
    -> SELECT k, COLLECT_LIST(v) AS vs FROM STREAM t GROUP BY k
    """
    for call in list(query.find_all(exp.Anonymous)):
        if function_name(call) == "collect":
            if len(call.expressions) != 1:
                raise RefusalError(SchemaError(f"collect takes one argument, not {len(call.expressions)}."), call)
            argument = call.expressions[0]
            if isinstance(argument, exp.Distinct) and len(argument.expressions) == 1:
                call.replace(exp.Anonymous(this="COLLECT_SET", expressions=[argument.expressions[0].copy()]))
            else:
                call.set("this", "COLLECT_LIST")
    return query
