"""HAVING over a stream: a group that stops qualifying must be deleted from the target, so the condition becomes a column."""

from __future__ import annotations

from sqlglot import exp

from sqlext.plan.job_graph import QUALIFIES
from sqlext.sql.trees import aggregate_calls_in, has_rows, is_aggregation, streaming_selects, with_aliases_expanded


def having_to_column(query: exp.Query) -> exp.Query:
    """Rewrite the condition of HAVING into a column that the flush reads.

    GROUP BY ALL groups by each item without an aggregate, so a condition without one gets one: COUNT(*) > 0, which is true. A
    condition on the time of day would else split a group in two.

    SELECT k, count(*) AS n FROM STREAM t GROUP BY k HAVING n > 1
    -> SELECT k, count(*) AS n, COALESCE((count(*)) > 1, FALSE) AS __sqlext_qualifies FROM STREAM t GROUP BY k
    """
    for select in streaming_selects(query):
        having = select.args.get("having")
        if having is None or select is not query or not is_aggregation(select):
            continue
        condition = with_aliases_expanded(having.this.copy(), select)
        group = select.args.get("group")
        if group is not None and group.args.get("all") and next(aggregate_calls_in(condition), None) is None:
            condition = exp.And(this=exp.Paren(this=condition), expression=has_rows())
        qualifies = exp.Coalesce(this=condition, expressions=[exp.false()])
        select.set("having", None)
        select.append("expressions", exp.alias_(qualifies, QUALIFIES))
    return query
