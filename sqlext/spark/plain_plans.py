"""An analysed plan in plain relational operators, by the rules that Spark's optimizer has for it, in its order.

Subqueries become joins, EXCEPT and INTERSECT become joins and aggregates, DISTINCT becomes an aggregate, CTEs and views are
inlined, and conditions move down to the rows that they are about. A scalar subquery or an EXISTS that reads nothing of the query
around stays an expression, over a plan in plain operators.

The order matters: NOT IN is another join where Spark finds it below OR, or in a join's condition, so conditions are simplified
and moved down first; and whether a correlated count is 0 over no rows is told by its function, which count_if(..) has only after
`ReplaceExpressions`, so rules go into subqueries, too.

Relies on Spark's private side: Catalyst's optimizer rules. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.java import items_of, java_of, scala_object, transformed
from sqlext.spark.two_steps import kind_of

_ANALYSIS = "org.apache.spark.sql.catalyst.analysis."
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
_FIRST = (
    f"{_ANALYSIS}EliminateSubqueryAliases",
    f"{_ANALYSIS}EliminateView",
    f"{_OPTIMIZER}EliminateSQLFunctionNode",
    f"{_OPTIMIZER}ReplaceExpressions",
    f"{_OPTIMIZER}PullOutGroupingExpressions",
)
_SET_OPERATORS = (
    f"{_OPTIMIZER}RewriteExceptAll",
    f"{_OPTIMIZER}RewriteIntersectAll",
    f"{_OPTIMIZER}ReplaceIntersectWithSemiJoin",
    f"{_OPTIMIZER}ReplaceExceptWithFilter",
    f"{_OPTIMIZER}ReplaceExceptWithAntiJoin",
    f"{_OPTIMIZER}ReplaceDistinctWithAggregate",
    f"{_OPTIMIZER}ReplaceDeduplicateWithAggregate",
)
_PULLUP = (
    f"{_OPTIMIZER}OptimizeOneRowRelationSubquery",
    f"{_OPTIMIZER}PullOutNestedDataOuterRefExpressions",
    f"{_OPTIMIZER}PullupCorrelatedPredicates",
)
_SIMPLER = (
    f"{_OPTIMIZER}BooleanSimplification",
    f"{_OPTIMIZER}SimplifyBinaryComparison",
    f"{_OPTIMIZER}PushDownPredicates",
)
_SUBQUERIES = (
    f"{_OPTIMIZER}RewritePredicateSubquery",
    f"{_OPTIMIZER}RewriteLateralSubquery",
    f"{_OPTIMIZER}RewriteCorrelatedScalarSubquery",
    f"{_ANALYSIS}EliminateSubqueryAliases",
    f"{_ANALYSIS}EliminateView",
)
_CONDITIONS = (f"{_OPTIMIZER}ReorderJoin", f"{_OPTIMIZER}PushDownPredicates")
_SUBQUERY_EXPRESSIONS = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "FunctionTableSubqueryArgumentExpression")
_DEEPEST = 5
"""How many subqueries inside one another are made joins."""
_MOST_PASSES = 10
"""How often conditions are simplified, as long as they get simpler."""


def plain(spark: SparkSession, plan: Any) -> Any:
    """Return an analysed plan in plain relational operators."""
    plan = _prepared(spark, plan)
    plan = java_of(spark).org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(plan)
    return _joined(spark, plan)


def _joined(spark: SparkSession, plan: Any) -> Any:
    """Return a prepared plan with its subqueries as joins, and those that stay expressions in plain operators, too."""
    plan = _without_subqueries(spark, _after(spark, _SET_OPERATORS, plan))
    for _ in range(_DEEPEST if subqueries_of(plan) else 0):  # a subquery that became a join may hold others
        further = _without_subqueries(spark, plan)
        if further.fastEquals(plan):
            break
        plan = further
    plan = _of_subqueries(plan, lambda inner: _joined(spark, inner))
    return _after(spark, _CONDITIONS, plan)


def subqueries_of(plan: Any) -> list[Any]:
    """Return the plans of the subqueries in the expressions of a plan's nodes, at any depth."""
    found = [*items_of(plan.subqueries())]
    for child in items_of(plan.children()):
        found += subqueries_of(child)
    return found


def has_outer_references(spark: SparkSession, plan: Any) -> bool:
    """Return whether a plan, or a subquery in it, reads attributes of a query around it."""
    outer = java_of(spark).org.apache.spark.sql.catalyst.trees.TreePattern.OUTER_REFERENCE()
    below = [*items_of(plan.children()), *items_of(plan.subqueries())]
    return bool(plan.containsPattern(outer)) or any(has_outer_references(spark, each) for each in below)


def _prepared(spark: SparkSession, plan: Any) -> Any:
    return _of_subqueries(_after(spark, _FIRST, plan), lambda inner: _prepared(spark, inner))


def _of_subqueries(plan: Any, function: Callable[[Any], Any]) -> Any:
    """Return a plan with what a function makes of the plans of the subqueries in its expressions."""
    if not subqueries_of(plan):
        return plan

    def of_subquery(expression: Any) -> Any:
        if kind_of(expression) not in _SUBQUERY_EXPRESSIONS:
            return expression
        return expression.withNewPlan(function(expression.plan()))

    return transformed(plan.transformAllExpressions, of_subquery)


def _without_subqueries(spark: SparkSession, plan: Any) -> Any:
    plan = _after(spark, _PULLUP, plan)
    for _ in range(_MOST_PASSES if subqueries_of(plan) else 0):
        simpler = _after(spark, _SIMPLER, plan)
        if simpler.fastEquals(plan):
            break
        plan = simpler
    return _after(spark, (*_SUBQUERIES, *_SET_OPERATORS), plan)


def _after(spark: SparkSession, rules: tuple[str, ...], plan: Any) -> Any:
    for rule in rules:
        plan = scala_object(spark, rule).apply(plan)
    return plan
