"""Sort-based plans of bounded queries (FLIP-140): exchange by key, sort within partitions, aggregate one key at a time.

Spark plans a hash aggregate wherever it can. This module changes Spark's physical plan before it is prepared: each aggregate
after an exchange becomes a SortAggregate, which requires its input in key order, and Spark itself then inserts the sort. The hash
aggregate before the exchange stays: it only shrinks its input, and passes on what does not fit into its memory.

The plan is put back into the surrounding query as a `LogicalQueryStage`, the leaf with which Spark's adaptive execution carries a
plan that exists already. So nothing runs here, EXPLAIN shows the whole plan, and adaptive execution chooses the partitions.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.cardinality import has_many_strings
from sqlext.spark.java import items_of, java_of, scala_seq
from sqlext.spark.jvm import alias
from sqlext.spark.physical_plan import stage_of

_HASH_AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec")


def end_of_stream(spark: SparkSession, analysed: Any, is_sorted: bool) -> Any:
    """Return the logical plan of a bounded query.

    Args:
        spark: the session that plans it.
        analysed: the query's analysed plan, without streams.
        is_sorted: whether its aggregates sort; otherwise Spark chooses.
    """
    mode = java_of(spark).org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    planned = spark._jsparkSession.sessionState().executePlan(analysed, mode)
    physical = planned.sparkPlan()
    if is_sorted:
        physical = sorted_aggregates(spark, physical, looks_at_files=True)
    stage = stage_of(spark, planned.optimizedPlan(), physical)
    return _with_columns_of_its_own(spark, stage, [str(column.name()) for column in items_of(analysed.output())])


def sorted_aggregates(spark: SparkSession, node: Any, looks_at_files: bool) -> Any:
    """Return a physical plan with sort-based aggregates after its exchanges.

    Args:
        spark: the session.
        node: the plan.
        looks_at_files: whether the part before the exchanges may depend on the input's files (`cardinality`). Other files may be
            examined the next time, so this must be False for a plan that has to be reproduced.
    """
    children = items_of(node.children())
    changed = [sorted_aggregates(spark, child, looks_at_files) for child in children]
    if any(one is not other for one, other in zip(children, changed, strict=True)):
        node = node.withNewChildren(scala_seq(spark, changed))
    return _sorted(spark, node, looks_at_files) if _is_behind_exchange(spark, node) else node


def _sorted(spark: SparkSession, aggregate: Any, looks_at_files: bool) -> Any:
    """Return a hash aggregate as one that requires its input sorted by key.

    Spark sorts by the first eight bytes of the first sort expression, and compares the rows themselves only where those are
    equal. A single number fits into these bytes. Other keys are sorted by their hash first: strings often begin alike, and
    comparing them would then dominate the time of the sort.
    """
    node, keys = aggregate.toSortAggregate(), items_of(aggregate.groupingExpressions())
    below, offset = node.child(), int(node.initialInputBufferOffset())
    if looks_at_files and _is_partial(below) and has_many_strings(spark, below):
        below, offset = _in_one_map(spark, below), offset + 1
    if _is_hashed(keys) and _gives_its_results(node):
        hashed = java_of(spark).org.apache.spark.sql.catalyst.expressions.XxHash64(scala_seq(spark, keys), 42)
        keys = [alias(spark, hashed, "hash"), *keys]
    return _changed(node, scala_seq(spark, keys), offset, node.resultExpressions(), below)


def _changed(aggregate: Any, keys: Any, offset: int, results: Any, child: Any) -> Any:
    """Return an aggregate with other keys, buffer offset, results and input, but the same kind and functions."""
    return aggregate.copy(
        aggregate.requiredChildDistributionExpressions(),
        aggregate.isStreaming(),
        aggregate.numShufflePartitions(),
        keys,
        aggregate.aggregateExpressions(),
        aggregate.aggregateAttributes(),
        offset,
        results,
        child,
    )


def _gives_its_results(node: Any) -> bool:
    """Return whether an aggregate outputs its results; a partial one outputs keys and buffers, so its keys cannot be changed."""
    modes = {str(each.mode().toString()) for each in items_of(node.aggregateExpressions())}
    return modes <= {"Final", "Complete"}


def _is_partial(node: Any) -> bool:
    """Return whether a node is a hash aggregate before an exchange."""
    is_hash = node.getClass().getSimpleName() == "HashAggregateExec"
    return is_hash and bool(node.requiredChildDistributionExpressions().isEmpty())


def _in_one_map(spark: SparkSession, partial: Any) -> Any:
    """Return a hash aggregate that looks up each key in one map only.

    Spark first looks into a map of 65,536 keys, and then into one that can spill. With more keys than that, the first lookup is
    in vain, and takes a third of the total time. Spark has no first map for keys of a binary type, so a binary key is added that
    is always null.
    """
    jvm = java_of(spark)
    expressions, binary = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.types.DataTypes.BinaryType
    nothing = alias(spark, expressions.Literal.create(None, binary), "many_keys")
    keys, results = items_of(partial.groupingExpressions()), items_of(partial.resultExpressions())
    given = [*results[: len(keys)], nothing.toAttribute(), *results[len(keys) :]]
    with_nothing = scala_seq(spark, [*keys, nothing])
    return _changed(partial, with_nothing, partial.initialInputBufferOffset(), scala_seq(spark, given), partial.child())


def _is_hashed(keys: list[Any]) -> bool:
    """Return whether keys are sorted by their hash first: equal keys need equal hashes, and a single number needs none."""
    kinds = [str(key.dataType().catalogString()) for key in keys]
    if any("collate" in kind or "map<" in kind for kind in kinds):
        return False
    return len(kinds) > 1 or kinds[0] in ("string", "binary")


def _is_behind_exchange(spark: SparkSession, node: Any) -> bool:
    """Return whether a node is a hash aggregate by key whose input is partial results or whole groups."""
    if node.getClass().getSimpleName() not in _HASH_AGGREGATES or node.groupingExpressions().isEmpty():
        return False
    return bool(node.requiredChildDistributionExpressions().isDefined())


def _with_columns_of_its_own(spark: SparkSession, stage: Any, names: list[str]) -> Any:
    """Return a projection of the stage with new column ids, and with the column names of the query.

    A CTE that is read twice brings the same plan twice, hence the new ids. Spark's optimizer may call `V` what the table calls
    `v`, hence the names.
    """
    named = [alias(spark, column, name) for column, name in zip(items_of(stage.output()), names, strict=True)]
    return java_of(spark).org.apache.spark.sql.catalyst.plans.logical.Project(scala_seq(spark, named), stage)
