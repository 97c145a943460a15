"""Sort-based plans of bounded queries (FLIP-140): exchange by key, sort within partitions, aggregate one key at a time.

Spark plans a hash aggregate wherever it can. Its physical plan is changed here before it is prepared: each aggregate behind an
exchange becomes a SortAggregate, which asks for its input in key order, and Spark itself then puts the sort in. The hash
aggregate before the exchange stays: it only makes the input smaller, and what does not fit into its memory passes on.

The plan goes back into the query around it as a `LogicalQueryStage`, the leaf with which Spark's adaptive execution carries a
plan that is made already. So nothing runs here, EXPLAIN shows the whole, and adaptive execution chooses the partitions.

This is a seam: it reads and makes Catalyst's plans. Seen with Spark 4.2.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sqlext.java import items_of, java_of, scala_seq

_HASH_AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec")


def end_of_stream(spark: SparkSession, analysed: Any, is_sorted: bool) -> Any:
    """The logical plan of a bounded query.

    Args:
        analysed: the query's own, without streams.
        is_sorted: whether its aggregates sort; otherwise they are as Spark chooses.
    """
    java_session = spark._jsparkSession
    jvm = java_of(spark)
    execution = jvm.org.apache.spark.sql.execution
    planned = java_session.sessionState().executePlan(analysed, execution.CommandExecutionMode.SKIP())
    physical = planned.sparkPlan()
    if is_sorted:
        physical = sorted_aggregates(spark, physical)
    forget_logical_plans(spark, physical)
    stage = execution.adaptive.LogicalQueryStage(planned.optimizedPlan(), physical)
    return _with_columns_of_its_own(spark, stage)


def sorted_aggregates(spark: SparkSession, node: Any) -> Any:
    """The physical plan with sort-based aggregates behind its exchanges."""
    children = items_of(node.children())
    changed = [sorted_aggregates(spark, child) for child in children]
    if any(one is not other for one, other in zip(children, changed, strict=True)):
        node = node.withNewChildren(scala_seq(spark, changed))
    return node.toSortAggregate() if _is_behind_exchange(spark, node) else node


def _is_behind_exchange(spark: SparkSession, node: Any) -> bool:
    """Whether a node is a hash aggregate by keys that takes in partial results, or whole groups."""
    if node.getClass().getSimpleName() not in _HASH_AGGREGATES or node.groupingExpressions().isEmpty():
        return False
    return bool(node.requiredChildDistributionExpressions().isDefined())


def forget_logical_plans(spark: SparkSession, node: Any) -> None:
    """Spark links physical nodes with logical ones. These are not in the query around, which links them with the stage."""
    tags = java_of(spark).org.apache.spark.sql.execution.SparkPlan
    for tag in (tags.LOGICAL_PLAN_TAG(), tags.LOGICAL_PLAN_INHERITED_TAG()):
        node.unsetTagValue(tag)
    for child in items_of(node.children()):
        forget_logical_plans(spark, child)


def _with_columns_of_its_own(spark: SparkSession, stage: Any) -> Any:
    """Columns with new ids: a CTE that is read twice brings the same plan twice."""
    jvm = java_of(spark)
    catalyst = jvm.org.apache.spark.sql.catalyst
    named = [
        catalyst.expressions.Alias(
            column,
            column.name(),
            catalyst.expressions.NamedExpression.newExprId(),
            scala_seq(spark, []),
            jvm.scala.Option.apply(None),
            scala_seq(spark, []),
        )
        for column in items_of(stage.output())
    ]
    return catalyst.plans.logical.Project(scala_seq(spark, named), stage)
