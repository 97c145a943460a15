"""The random seeds that Spark chooses anew each time it plans a query. A resumed job keeps its first ones.

Relies on Spark's private side: reads and changes Catalyst's analysed plans. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.java import java_of, transformed

_WITH_SEED = "org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed"


def seeds_of(spark: SparkSession, plan: Any) -> tuple[int, ...]:
    """Return the random seeds of an analysed plan, chosen by Spark or given by the query, in the order of `with_seeds`."""
    seeds: list[int] = []

    def note(node: Any) -> Any:
        if (seed := _seed(spark, node)) is not None:
            seeds.append(seed)
        return node

    _over_expressions(plan, note)
    return tuple(seeds)


def with_seeds(spark: SparkSession, plan: Any, seeds: Sequence[int]) -> Any:
    """Return an analysed plan with the seeds that `seeds_of` has found in the same query, analysed before.

    If there are fewer seeds than the plan has, the rest of it stays as it is, and its fingerprint is another one.
    """
    left = list(seeds)

    def replace(node: Any) -> Any:
        return node.withNewSeed(left.pop(0)) if left and _seed(spark, node) is not None else node

    return _over_expressions(plan, replace)


def _over_expressions(plan: Any, function: Any) -> Any:
    return transformed(plan.transformAllExpressionsWithSubqueries, function)


def _seed(spark: SparkSession, node: Any) -> int | None:
    """Return the seed of an expression; None if it has none, or an expression in its place, which only the query can give."""
    if not java_of(spark).py4j.reflection.TypeUtil.isInstanceOf(_WITH_SEED, node):
        return None
    seed = node.seedExpression()
    value = seed.value() if str(seed.getClass().getSimpleName()) == "Literal" else None
    return int(value) if value is not None else None
