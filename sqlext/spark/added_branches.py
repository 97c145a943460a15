"""Whether a streaming query is another one whose UNION ALL has got more branches.

Plans are compared as Spark has analysed them, without the numbers that an analysis gives to columns.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import UnsupportedError
from sqlext.spark.aggregate_change import comparable
from sqlext.spark.java import items_of, scala_seq, transformed
from sqlext.spark.jvm import analysed_plan
from sqlext.spark.two_steps import kind_of

_UNION = "Union"


def has_branches_added(old: DataFrame, new: DataFrame, added: Set[str]) -> bool:
    """Return whether a query is an older one without the branches of UNION ALL that read certain streams.

    Args:
        old: the older query.
        new: the query.
        added: the names of streams that only the query reads.

    Raises:
        UnsupportedError: such a branch is the first one of its UNION ALL.
    """
    spark = new.sparkSession
    before, now = analysed_plan(old), _without(spark, analysed_plan(new), added)
    return bool(comparable(spark, before).sameResult(comparable(spark, now)))


def _without(spark: SparkSession, plan: Any, added: Set[str]) -> Any:
    """Return a plan without the branches that read nothing but the streams of `added`."""

    def changed(node: Any) -> Any:
        if kind_of(node) != _UNION:
            return node
        branches = items_of(node.children())
        left = [each for each in branches if not (names := {*_streams(each)}) or names - added]
        if len(left) in (0, len(branches)):
            return node  # with nothing left, it goes as a branch of another one
        if not left[0].equals(branches[0]):
            raise UnsupportedError(
                "the first branch of its UNION ALL is new, and that one names the columns. Write it after those that are there."
            )
        return left[0] if len(left) == 1 else node.copy(scala_seq(spark, left), node.byName(), node.allowMissingCol())

    return transformed(plan.transformUp, changed)


def _streams(plan: Any) -> Iterator[str]:
    """Yield the names of a plan's streams; an empty one for each that has none."""
    children = items_of(plan.children())
    if not children and plan.isStreaming():
        yield (name_of(plan) if kind_of(plan) != "CTERelationRef" else None) or ""
    for child in children:
        yield from _streams(child)


def name_of(relation: Any) -> str | None:
    """Return the name that the query gives the stream of a Catalyst relation; None: none."""
    given = relation.sourceIdentifyingName()
    return str(given.name()) if kind_of(given) == "UserProvided" else None
