"""The two steps in which Spark runs an aggregate, found in its physical plan, and the types of what passes between them.

Relies on Spark's private side: reads Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from sqlext.errors import UnsupportedError
from sqlext.spark.java import items_of, java_of

_AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec")
_MERGING_SESSIONS = "MergingSessionsExec"
"""Spark's node between the two steps that joins sessions."""
_NOT_IN_NAMES = " ,;{}()\n\t="
"""Characters that Delta refuses in names, unless files have others."""
_STORED = re.compile(
    r"(string|binary|boolean|byte|short|integer|long|float|double|decimal\(\d+,\d+\)|date|timestamp|timestamp_ntz)"
)


@dataclass(frozen=True)
class TwoSteps:
    """The physical plan of an aggregate.

    Attributes:
        above_final: the nodes above the second step, outermost first.
        final: the second step.
        partial: the first step.
        below_partial: the nodes between the first step and its input.
        is_by_session: whether sessions are joined between the steps.
    """

    above_final: tuple[Any, ...]
    final: Any
    partial: Any
    below_partial: tuple[Any, ...]
    is_by_session: bool


def two_steps(spark: SparkSession, aggregate: Any) -> TwoSteps:
    """Let Spark plan a logical plan whose aggregate has one leaf below it, and find the two steps.

    Raises:
        UnsupportedError: Spark does not run the aggregate in two steps.
    """
    skip = java_of(spark).org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    every = _chain(spark._jsparkSession.sessionState().executePlan(aggregate, skip).sparkPlan())
    chain = [node for node in every if kind_of(node) != _MERGING_SESSIONS]
    places = [at for at, node in enumerate(chain) if kind_of(node) in _AGGREGATES]
    if len(places) != 2 or places[1] != places[0] + 1:
        raise UnsupportedError("Spark does not run this aggregate in two steps.")
    above, below = chain[: places[0]], chain[places[1] + 1 : -1]
    return TwoSteps(tuple(above), chain[places[0]], chain[places[1]], tuple(below), len(chain) < len(every))


def is_its_buffer(spark: SparkSession, function: Any) -> bool:
    """Return whether a function's result is its buffer."""
    declarative = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
    buffers = items_of(function.aggBufferAttributes())
    is_declarative = is_instance_of(spark.sparkContext._gateway, function, declarative)
    return is_declarative and len(buffers) == 1 and bool(function.evaluateExpression().semanticEquals(buffers[0]))


def source_of(result: Any) -> Any:
    """Return the id of the attribute that a result only passes on; None if it computes something."""
    shown = result.child() if kind_of(result) == "Alias" else result
    return shown.exprId() if kind_of(shown) == "AttributeReference" else None


def split_top(plan: Any) -> tuple[list[Any], Any]:
    """Return the nodes above the aggregate of an analysed query, outermost first, and the aggregate."""
    above = []
    while kind_of(plan) != "Aggregate":
        if kind_of(plan) not in ("Project", "SubqueryAlias"):
            raise UnsupportedError(f"the top of the query is {plan.nodeName()} and not an aggregate.")
        above.append(plan)
        (plan,) = items_of(plan.children())
    return above, plan


def can_be_stored(kind: Any) -> bool:
    """Return whether Delta has columns of a type, given as Spark's JSON."""
    if isinstance(kind, str):
        return _STORED.fullmatch(kind) is not None
    if kind["type"] == "struct":
        names = [str(field["name"]).lower() for field in kind["fields"]]
        if len({*names}) < len(names) or any(character in name for name in names for character in _NOT_IN_NAMES):
            return False
    inner: Sequence[Any] = {
        "struct": lambda: [field["type"] for field in kind["fields"]],
        "array": lambda: [kind["elementType"]],
        "map": lambda: [kind["keyType"], kind["valueType"]],
    }.get(kind["type"], lambda: [""])()
    return all(can_be_stored(each) for each in inner)


def kind_of(node: Any) -> str:
    """Return the name of the class of a plan's node or of an expression."""
    return str(node.getClass().getSimpleName())


def _chain(node: Any) -> list[Any]:
    """Return the nodes of a plan with one child each, from the top."""
    chain = [node]
    while children := items_of(chain[-1].children()):
        if len(children) > 1:
            raise UnsupportedError(f"its results pass through {chain[-1].nodeName()}, which has several inputs.")
        chain += children
    return chain
