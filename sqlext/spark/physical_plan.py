"""DataFrames over physical plans that are made, or changed, here.

The plan goes into the query around it as a `LogicalQueryStage`, the leaf with which Spark's adaptive execution carries a plan
that is made already. So nothing runs here, EXPLAIN shows the whole, and adaptive execution chooses the partitions.

This is a seam: it makes Catalyst's plans. Seen with Spark 4.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.spark.java import items_of, java_of, scala_seq
from sqlext.spark.jvm import alias, frame_of

_NUMBERED = re.compile(r"#\d+L?|plan_id=\d+|\[id=#\d+\]|(?<=_common_expr_)\d+")
"""What Catalyst counts on from one query to the next."""


def fingerprint(text: str) -> str:
    """The same for plans and expressions that are the same, as Catalyst writes them."""
    return hashlib.sha256(_NUMBERED.sub("#", text).encode()).hexdigest()


def frame_over(spark: SparkSession, plan: Any, columns: Sequence[Any]) -> DataFrame:
    """A DataFrame of named expressions over a physical plan."""
    java = java_of(spark)
    forget_logical_plans(spark, plan)
    stage = java.org.apache.spark.sql.execution.adaptive.LogicalQueryStage(unknown_rows(spark, plan.output()), plan)
    return frame_of(spark, java.org.apache.spark.sql.catalyst.plans.logical.Project(scala_seq(spark, columns), stage))


def unknown_rows(spark: SparkSession, output: Any) -> Any:
    """A logical leaf with these columns, of whose rows the optimizer knows nothing.

    An empty relation would do, but for the optimizer: it would leave out what it thinks has no rows.
    """
    java = java_of(spark)
    none, session = java.scala.Option.apply(None), spark._jsparkSession
    rdd = session.emptyDataFrame().queryExecution().toRdd()
    partitioning = java.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0)
    nothing = scala_seq(spark, [])
    return java.org.apache.spark.sql.execution.LogicalRDD(output, rdd, partitioning, nothing, False, none, session, none, none)


def as_columns(spark: SparkSession, plan: Any, attributes: Sequence[Any]) -> Any:
    """A physical plan whose columns stand for these attributes, one for one."""
    pairs = zip(items_of(plan.output()), attributes, strict=True)
    named = [alias(spark, column, str(wanted.name()), wanted) for column, wanted in pairs]
    return java_of(spark).org.apache.spark.sql.execution.ProjectExec(scala_seq(spark, named), plan)


def forget_logical_plans(spark: SparkSession, node: Any) -> None:
    """Spark links physical nodes with logical ones. These are not in the query around, which links them with the stage."""
    tags = java_of(spark).org.apache.spark.sql.execution.SparkPlan
    for tag in (tags.LOGICAL_PLAN_TAG(), tags.LOGICAL_PLAN_INHERITED_TAG()):
        node.unsetTagValue(tag)
    for child in items_of(node.children()):
        forget_logical_plans(spark, child)
