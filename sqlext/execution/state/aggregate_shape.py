"""What an analysed streaming query is made of, as far as it decides whether its aggregate can be taken apart.

Relies on Spark's private side: reads Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import UnsupportedError
from sqlext.spark.java import items_of, java_of
from sqlext.spark.jvm import analysed_plan, plan_has_watermark
from sqlext.spark.two_steps import kind_of, split_top
from sqlext.spark.variance import Variance
from sqlext.spark.varying import reads_time_of_day

_SESSION = "spark.sessionWindow"
"""The key in a column's metadata that marks a session window."""
_STATEFUL = re.compile(r"Aggregate|Distinct|Deduplicate\w*|\w*GroupsWithState\w*|\w*TransformWithState\w*")
"""Logical nodes that Spark's streams keep a state for; so do joins of two streams."""


def refuse_what_has_no_partial_results(spark: SparkSession, aggregate: Any, above: Sequence[Any]) -> None:
    """Raise UnsupportedError for an aggregate that has no partial results, or whose partial results cannot be kept.

    Args:
        spark: the session.
        aggregate: the aggregate.
        above: the nodes above it.
    """
    if plan_has_watermark(aggregate.child()) and has_state(aggregate.child()):
        raise UnsupportedError("a watermark decides when Spark drops rows from the state of an operator below it.")
    subqueries = java_of(spark).org.apache.spark.sql.catalyst.expressions.SubqueryExpression
    if any(subqueries.hasSubquery(each) for each in items_of(aggregate.expressions())):
        raise UnsupportedError("it contains a subquery, which would be evaluated again for each step.")
    if _has_rows_of_no_session(aggregate):
        raise UnsupportedError("it has subtotals over all sessions. Leave session_window out of ROLLUP, CUBE and GROUPING SETS.")
    if any(_reads_time_of_day(each) for each in items_of(aggregate.aggregateExpressions())):
        raise UnsupportedError("an argument reads current_time(), which no column can hold.")
    expressions = (each for node in (aggregate, *above) for each in items_of(node.expressions()))
    if day := Variance(spark).day_of(expressions):
        raise UnsupportedError(
            f"it reads {day}, which would stay what it was when the flow started. Write current_date() or current_timestamp()."
        )


def is_by_session(frame: DataFrame) -> bool:
    """Return whether an analysed query is an aggregate by session windows."""
    try:
        return has_session(split_top(analysed_plan(frame))[1])
    except UnsupportedError:
        return False


def has_state_below(frame: DataFrame) -> bool:
    """Return whether Spark keeps a state for what an analysed query has below its aggregate, or, without one, for any part."""
    plan = analysed_plan(frame)
    with suppress(UnsupportedError):
        plan = split_top(plan)[1].child()
    return has_state(plan)


def has_state(plan: Any) -> bool:
    """Return whether Spark keeps a state for a part of a streaming plan."""
    children = items_of(plan.children())
    is_join = len(children) > 1 and kind_of(plan) == "Join" and all(child.isStreaming() for child in children)
    is_stateful = is_join or (bool(plan.isStreaming()) and _STATEFUL.fullmatch(kind_of(plan)) is not None)
    return is_stateful or any(map(has_state, children))


def has_session(aggregate: Any) -> bool:
    """Return whether an aggregate groups by session windows."""
    return any(is_session(each) for each in items_of(aggregate.groupingExpressions()))


def _has_rows_of_no_session(aggregate: Any) -> bool:
    """Return whether ROLLUP, CUBE or GROUPING SETS leave sessions out; Spark's own joining step then fails, even in a batch."""
    below = aggregate.child()
    if kind_of(below) != "Expand":
        return False
    places = [at for at, each in enumerate(items_of(below.output())) if is_session(each)]
    rows = items_of(below.projections())
    return any(kind_of(row.apply(at)) == "Literal" for row in rows for at in places)


def is_session(expression: Any) -> bool:
    """Return whether a grouping expression is what Spark's analysis makes of a call of session_window."""
    return kind_of(expression) == "AttributeReference" and bool(expression.metadata().contains(_SESSION))


def _reads_time_of_day(result: Any) -> bool:
    """Return whether an aggregate call in a result contains current_time()."""
    if kind_of(result) == "AggregateExpression":
        return reads_time_of_day(result)
    return any(_reads_time_of_day(each) for each in items_of(result.children()))


def columns_read(spark: SparkSession, aggregate: Any) -> list[Any]:
    """Return the columns of its input that an aggregate reads; if it reads none, any one."""
    read = aggregate.references()
    output = items_of(aggregate.child().output())
    return [each for each in output if read.contains(each)] or output[:1]
