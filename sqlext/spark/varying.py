"""Expressions whose value changes from one run of a plan to the next: the current time, and random seeds.

Spark's streams give each micro-batch a time of its own, the same for its whole plan and for a repetition after a crash, and new
seeds. An aggregate that is planned once must not keep the time and the seeds of its planning. So the current time in its keys,
arguments and FILTERs becomes a column of the streaming query below, which has the micro-batch's time. The current time in its
results becomes a placeholder that the optimizer leaves alone, and that each flush replaces.

Relies on Spark's private side: reads and builds Catalyst expressions. Checked with Spark 4.2.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import UnsupportedError
from sqlext.spark.java import items_of, java_of, scala_object, scala_seq, transformed
from sqlext.spark.jvm import alias, frame_of

_TIME_OF_DAY = "CurrentTime"  # columns cannot have its type, and Spark's streams do not take it from the micro-batch
_MOMENTS = frozenset("CurrentTimestamp Now CurrentDate LocalTimestamp".split())
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_PLACEHOLDER = "CurrentBatchTimestamp"  # what Spark's streams replace the current time by until a plan is optimized


def with_moments_below(spark: SparkSession, aggregate: Any) -> tuple[Any, list[Any]]:
    """Move the current time in an aggregate's keys, arguments and FILTERs into columns of its input.

    Returns:
        The aggregate, over columns that its input does not have yet; and these columns, as named expressions.

    Raises:
        UnsupportedError: a key reads the time of day, which Spark would plan as one value and leave out of the key.
    """
    if any(reads_time_of_day(each) for each in items_of(aggregate.groupingExpressions())):
        raise UnsupportedError(
            "GROUP BY current_time() has no meaning in a stream: Spark treats it as a constant. Group by a text made from "
            "current_timestamp(), such as date_format(current_timestamp(), 'HH:mm')."
        )
    moments: list[tuple[Any, Any]] = []

    def column(moment: Any) -> Any:
        found = next((named for known, named in moments if known.semanticEquals(moment)), None)
        if found is None:
            # Spark's streams know now() only under this name
            of_batch = java_of(spark).org.apache.spark.sql.catalyst.expressions.CurrentTimestamp()
            found = alias(spark, of_batch if _kind(moment) == "Now" else moment, "moment")
            moments.append((moment, found))
        return found.toAttribute()

    def of_columns(expression: Any) -> Any:
        return transformed(expression.transformDown, lambda node: column(node) if _kind(node) in _MOMENTS else node)

    keys = [(key, of_columns(key) if has_moment(spark, key) else key) for key in items_of(aggregate.groupingExpressions())]
    changed = [(old, new) for old, new in keys if old is not new]

    def below(node: Any) -> Any:
        key = next((new for old, new in changed if node.semanticEquals(old)), None)
        if key is not None:
            return key
        return of_columns(node) if _kind(node) == "AggregateExpression" and has_moment(spark, node) else node

    results = [
        transformed(each.transformDown, below) if has_moment(spark, each) else each
        for each in items_of(aggregate.aggregateExpressions())
    ]
    groups = scala_seq(spark, [new for _, new in keys])
    made = aggregate.copy(groups, scala_seq(spark, results), aggregate.child(), aggregate.hint())
    return made, [named for _, named in moments]


def with_moments_in_input(frame: DataFrame) -> DataFrame:
    """Return a streaming query whose aggregates read the current time from their input, for Spark's own plan of it.

    Spark's streams refuse the current time in an argument, and drop now() from a key.

    Raises:
        UnsupportedError: as for `with_moments_below`.
    """
    spark, plan = frame.sparkSession, frame._jdf.queryExecution().analyzed()
    if not has_moment(spark, plan):
        return frame
    project = java_of(spark).org.apache.spark.sql.catalyst.plans.logical.Project

    def changed(node: Any) -> Any:
        made, moments = with_moments_below(spark, node) if _kind(node) == "Aggregate" else (node, [])
        if not moments:
            return node
        columns = scala_seq(spark, [*items_of(node.child().output()), *moments])
        return made.withNewChildren(scala_seq(spark, [project(columns, node.child())]))

    return frame_of(spark, transformed(plan.transformUp, changed))


def reads_time_of_day(expression: Any) -> bool:
    """Return whether an expression contains current_time()."""
    return _kind(expression) == _TIME_OF_DAY or any(reads_time_of_day(each) for each in items_of(expression.children()))


def has_moment(spark: SparkSession, node: Any) -> bool:
    """Return whether an expression or a plan may read the current time."""
    return bool(node.containsPattern(java_of(spark).org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()))


def with_moments_of(spark: SparkSession, plan: Any, at: int) -> Any:
    """Replace the current time, date and time of day in an analysed plan by constants.

    Args:
        spark: the session.
        plan: the plan.
        at: the time, in milliseconds since 1970.
    """
    java = java_of(spark)

    def time_of_day(node: Any) -> Any:
        time = java.java.time.Instant.ofEpochMilli(at).atZone(node.zoneId()).toLocalTime()
        kept = 10 ** (9 - int(node.precision()))  # nanoseconds of the last digit
        time = time.withNano(int(time.getNano()) // kept * kept)
        return java.org.apache.spark.sql.catalyst.expressions.Literal.create(time, node.dataType())

    def constant(node: Any) -> Any:
        if _kind(node) == _TIME_OF_DAY:
            return time_of_day(node)
        if _kind(node) not in _MOMENTS:
            return node
        zone = node.timeZoneId() if _kind(node) in ("CurrentDate", "LocalTimestamp") else java.scala.Option.apply("UTC")
        return java.org.apache.spark.sql.catalyst.expressions.CurrentBatchTimestamp(at, node.dataType(), zone).toLiteral()

    return transformed(plan.transformAllExpressionsWithSubqueries, constant)


class Results:
    """The varying parts in the results of a plan that is built once. Immutable after `hold`; thread-safe from then on."""

    def __init__(self) -> None:
        self._moments: list[Any] = []

    def hold(self, spark: SparkSession, plan: Any) -> Any:
        """Replace the current time in a logical plan by placeholders, before it is planned."""
        if not has_moment(spark, plan):
            return plan
        java = java_of(spark)

        def placeholder(node: Any) -> Any:
            if _kind(node) not in (*_MOMENTS, _TIME_OF_DAY):
                return node
            self._moments.append(node)
            make = java.org.apache.spark.sql.catalyst.expressions.CurrentBatchTimestamp
            return make(len(self._moments) - 1, node.dataType(), java.scala.Option.apply("UTC"))

        return transformed(plan.transformAllExpressions, placeholder)

    def vary(self, expressions: Sequence[Any]) -> bool:
        """Return whether the expressions of the finished plan must be renewed; placeholders count as not deterministic."""
        return not all(each.deterministic() for each in expressions)

    def renewed(self, spark: SparkSession, nodes: Sequence[Any]) -> list[Any]:
        """Return nodes of the physical plan with the current time, the same for all of them, and with new seeds."""
        renew = self._renewal(spark)
        return [transformed(node.transformExpressions, renew) for node in nodes]

    def _renewal(self, spark: SparkSession) -> Callable[[Any], Any]:
        logical = java_of(spark).org.apache.spark.sql.catalyst.plans.logical
        named = [alias(spark, moment, "moment") for moment in self._moments]
        compute = scala_object(spark, "org.apache.spark.sql.catalyst.optimizer.ComputeCurrentTime")
        now = compute.apply(logical.Project(scala_seq(spark, named), logical.OneRowRelation()))
        literals = [each.child() for each in items_of(now.projectList())]
        gateway = spark.sparkContext._gateway

        def renew(node: Any) -> Any:
            if _kind(node) == _PLACEHOLDER:
                return literals[int(node.timestampMs())]
            if is_instance_of(gateway, node, f"{_EXPRESSIONS}.ExpressionWithRandomSeed"):
                return node.withNewSeed(secrets.randbits(63))
            return node

        return renew


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
