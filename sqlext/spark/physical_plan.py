"""DataFrames over physical plans that are built or changed here.

The plan becomes part of the surrounding query as a `LogicalQueryStage`, the leaf with which Spark's adaptive execution carries a
plan that exists already. So nothing runs here, EXPLAIN shows the whole plan, and adaptive execution chooses the partitions.

Relies on Spark's private side: builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.spark.java import items_of, java_of, scala_object, scala_seq
from sqlext.spark.jvm import alias, frame_of
from sqlext.spark.plan_texts import WHOLE_TEXTS

_NUMBERED = re.compile(r"#\d+L?|plan_id=\d+|\[id=#\d+\]|(?<=_common_expr_)\d+")
"""The numbers in Catalyst's texts that increase from one query to the next."""

WHOLE_PLANS = {**WHOLE_TEXTS, "spark.sql.maxMetadataStringLength": str(2**31 - 1)}
"""The settings with which Spark leaves out nothing in the text of a physical plan."""


def fingerprint(text: str) -> str:
    """Return a hash of Catalyst's text of a plan or expression; equal plans and expressions have equal hashes."""
    return hashlib.sha256(_NUMBERED.sub("#", text).encode()).hexdigest()


def plan_fingerprint(text: str) -> str:
    """Return a hash of Catalyst's text of a whole plan, which also tells columns of one name apart: each number by its place.

    The text has all columns and conditions only with the settings `WHOLE_PLANS`.
    """
    found: dict[str, str] = {}
    return hashlib.sha256(
        _NUMBERED.sub(lambda number: found.setdefault(number.group(), f"#{len(found)}"), text).encode()
    ).hexdigest()


def physical_plan(frame: DataFrame) -> Any:
    """Return the physical plan of a query, before Spark prepares it for execution."""
    return frame._jdf.queryExecution().sparkPlan()


def frame_over(spark: SparkSession, plan: Any, columns: Sequence[Any]) -> DataFrame:
    """Return a DataFrame of named expressions over a physical plan."""
    stage = stage_of(spark, unknown_rows(spark, plan.output()), plan)
    return frame_of(spark, java_of(spark).org.apache.spark.sql.catalyst.plans.logical.Project(scala_seq(spark, columns), stage))


def stage_of(spark: SparkSession, logical: Any, physical: Any) -> Any:
    """Return a physical plan as a part of a logical one.

    Spark takes the rows of the first exchange of a stage that has run for the most rows that the stage can have, and leaves out
    LIMIT, ORDER BY and DISTINCT above it if these are few enough. That holds for the stages that Spark makes, such as an
    aggregate, but not for a whole plan: an exchange may be a small side of a join. So above the stage is a filter that every row
    passes, of the one kind of which Spark gives no most rows. It keeps the order and the partitions of the rows.

    Args:
        spark: the session.
        logical: a logical plan with the same columns, for its statistics.
        physical: the plan.
    """
    java = java_of(spark)
    forget_logical_plans(spark, physical)
    stage = java.org.apache.spark.sql.execution.adaptive.LogicalQueryStage(logical, physical)
    types, catalyst = java.org.apache.spark.sql.types, java.org.apache.spark.sql.catalyst
    true = catalyst.expressions.Literal.create(True, types.DataTypes.BooleanType)
    identity = getattr(scala_object(spark, "scala.Predef"), "$conforms")()
    return catalyst.plans.logical.TypedFilter(identity, java.java.lang.Object().getClass(), types.StructType(), true, stage)


def unknown_rows(spark: SparkSession, output: Any) -> Any:
    """Return a logical leaf with these columns whose rows are unknown to the optimizer.

    An empty relation would not do: the optimizer would remove it from the plan.
    """
    java = java_of(spark)
    none, session = java.scala.Option.apply(None), spark._jsparkSession
    rdd = session.emptyDataFrame().queryExecution().toRdd()
    partitioning = java.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0)
    nothing = scala_seq(spark, [])
    return java.org.apache.spark.sql.execution.LogicalRDD(output, rdd, partitioning, nothing, False, none, session, none, none)


def as_columns(spark: SparkSession, plan: Any, attributes: Sequence[Any]) -> Any:
    """Return a physical plan whose columns have the names and ids of these attributes, one for one."""
    pairs = zip(items_of(plan.output()), attributes, strict=True)
    named = [alias(spark, column, str(wanted.name()), wanted) for column, wanted in pairs]
    return java_of(spark).org.apache.spark.sql.execution.ProjectExec(scala_seq(spark, named), plan)


def forget_logical_plans(spark: SparkSession, node: Any) -> None:
    """Remove the links from physical nodes to logical ones.

    Spark sets them, but these logical nodes are not part of the surrounding query, which links the physical nodes to the stage.
    """
    tags = java_of(spark).org.apache.spark.sql.execution.SparkPlan
    both = tags.LOGICAL_PLAN_TAG(), tags.LOGICAL_PLAN_INHERITED_TAG()
    nodes = [node]
    while nodes:
        each = nodes.pop()
        for tag in both:
            each.unsetTagValue(tag)
        nodes += items_of(each.children())
