"""The columns of an aggregate's output that hold its grouping expressions, by Spark's own analysis.

The planner finds the key of a query in its text; Spark's analysis confirms it. An output column holds a grouping expression if
both are semantically equal in the analysed plan (Catalyst's `semanticEquals`), or if it is the start or the end of the window
that the query groups by.

Relies on Spark's private side: reads Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.spark.java import items_of
from sqlext.spark.jvm import analysed_plan

_WINDOWS = ("spark.timeWindow", "spark.sessionWindow")


def grouping_columns(frame: DataFrame) -> tuple[str, ...]:
    """Return the output columns whose values identify the groups of an aggregate, in the output's order.

    Args:
        frame: an analysed aggregate, and columns computed from its results.

    Raises:
        UnsupportedError: no column holds a grouping expression, or Spark makes several rows of one group.
    """
    plan = analysed_plan(frame)
    plan = plan.plan() if _kind(plan) == "WithCTE" else plan
    shown = [(str(each.name()), each) for each in items_of(plan.output())]
    while _kind(plan) != "Aggregate":
        if _kind(plan) not in ("Project", "SubqueryAlias"):
            raise UnsupportedError(
                f"Spark evaluates {plan.nodeName()} over this aggregate, so a group is not a single row. Keep the aggregate "
                "in its own streaming table, and read that table in a view."
            )
        if _kind(plan) == "Project":
            shown = [(name, _in_list(each, items_of(plan.projectList()))) for name, each in shown]
        (plan,) = items_of(plan.children())
    shown = [(name, _in_list(each, items_of(plan.aggregateExpressions()))) for name, each in shown]
    found: set[int] = set()
    for grouping in items_of(plan.groupingExpressions()):
        place = next((at for at, (_, each) in enumerate(shown) if _carries(each, grouping)), None)
        if place is None and not grouping.foldable():
            raise UnsupportedError(
                f"This query groups by `{_text(grouping)}`, but by Spark's analysis no column of its result holds that value. "
                "Add it to the select list."
            )
        found |= set() if place is None else {place}
    return tuple(shown[at][0] for at in sorted(found))


def _in_list(shown: Any, named: list[Any]) -> Any:
    """Return the expression behind an output column, from the list of named expressions that defines the column."""
    if _kind(shown) != "AttributeReference":
        return shown
    source = next((each for each in named if each.exprId().equals(shown.exprId())), None)
    if source is None:
        return shown
    return source.child() if _kind(source) == "Alias" else source


def _carries(shown: Any, grouping: Any) -> bool:
    """Return whether the values of an output column distinguish those of a grouping expression."""
    if shown.semanticEquals(grouping):
        return True
    is_field = _kind(shown) == "GetStructField" and shown.child().semanticEquals(grouping)
    return is_field and any(grouping.metadata().contains(each) for each in _windows_of(grouping))


def _windows_of(grouping: Any) -> Iterator[str]:
    """Yield the metadata keys under which Spark may mark an expression as a window."""
    if _kind(grouping) == "AttributeReference":
        yield from _WINDOWS


def _text(expression: Any) -> str:
    return str(expression.sql()).replace("`", "").replace(INTERNAL_PREFIX, "")


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
