"""What in a query's rows depends on the order in which Spark reads other rows, and ties that are broken so that less does.

    row_number() OVER (PARTITION BY k ORDER BY ts)  ->  the same, ORDER BY ts and then by all other columns of the row
    ORDER BY ts LIMIT 3                             ->  the same

Of rows that are equal by `ts`, Spark gives one the first place, another time perhaps another one, and each is a right answer. But
who computes old rows again, to subtract them, must come to those that were counted before. With all columns in the order, only
rows that are the same in each column are left without one. Texts whose collation may take 'a' and 'A' for one text are ordered by
their bytes, too.

Relies on Spark's private side: Catalyst's Window and Sort. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.java import items_of, java_of, scala_object, scala_seq, transformed
from sqlext.spark.plans import id_of, kind, nodes_of, output_of

_EXACT = frozenset("Count Min Max Percentile HyperLogLogPlusPlus BitAndAgg BitOrAgg BitXorAgg".split())
"""Functions with one result, in whatever order they read their rows."""
_INEXACT = {"Sum": ("float", "double"), "Average": ("float", "double", "long")}
"""The same, unless they add up floating-point numbers, as which avg(..) adds up a BIGINT."""
_EXTREMES = ("Min", "Max")
"""Those of them that return one of the values: of texts that a collation takes for one, any."""
_OF_PEERS = frozenset("Rank DenseRank PercentRank CumeDist".split())
"""Window functions that give rows which are equal by ORDER BY the same value."""
_LIMITED = frozenset(("Rank", "DenseRank"))
"""Those of them by which Spark leaves out rows early (`InferWindowGroupLimit`), by the order of the whole node."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_LIMITS = ("GlobalLimit", "Offset", "Tail")
_BETWEEN = (*_LIMITS, "LocalLimit", "Project")


def takes_any(expression: Any) -> bool:
    """Return whether an expression has an aggregate function whose result may depend on the order of its input."""
    if kind(expression) != "AggregateExpression":
        return any(map(takes_any, items_of(expression.children())))
    function = expression.aggregateFunction()
    if kind(function) in _INEXACT:
        return str(function.child().dataType().typeName()) in _INEXACT[kind(function)]
    return kind(function) not in _EXACT or (kind(function) in _EXTREMES and is_collated(function))


def is_collated(expression: Any) -> bool:
    """Return whether values of an expression may be equal and yet differ: they are, or hold, texts with a collation."""
    return "collate " in str(expression.dataType().catalogString())


def with_ties_broken(spark: SparkSession, plan: Any) -> Any:
    """Return a plan in whose windows and sorts all columns of a row decide about its place, as far as they have an order."""
    if not any(kind(node) in ("Window", "Sort") for node in nodes_of(plan)):
        return plan
    is_orderable = java_of(spark).org.apache.spark.sql.catalyst.expressions.RowOrdering.isOrderable
    ascending, order = (scala_object(spark, f"{_EXPRESSIONS}.{name}") for name in ("Ascending", "SortOrder"))
    none = scala_seq(spark, [])

    def extended(orders: Sequence[Any], child: Any) -> Any:
        more = [each for each in _left_out(orders, child) if is_orderable(each.dataType())]
        return scala_seq(spark, [*orders, *(order.apply(_in_full(spark, each), ascending, none) for each in more)])

    def of_node(node: Any) -> Any:
        if _is_global_sort(node):
            orders = items_of(node.order())
            return node.copy(extended(orders, node.child()), True, node.child(), node.hint())
        if kind(node) == "Window" and any(map(_is_by_order, _calls_of(node))) and not any(map(_reads_peers, _calls_of(node))):
            orders = extended(items_of(node.orderSpec()), node.child())
            return node.copy(node.windowExpressions(), node.partitionSpec(), orders, node.child(), node.hint())
        return node

    return transformed(plan.transformDownWithSubqueries, of_node)


def by_ties(node: Any) -> list[Any]:
    """Return the results of a Window, as named expressions, that depend on the order of equal rows."""
    if _is_total(items_of(node.orderSpec()), node.child(), items_of(node.partitionSpec())):
        return []
    return [each for each in items_of(node.windowExpressions()) if any(map(_is_by_order, _windows_in(each)))]


def takes_any_rows(node: Any) -> bool:
    """Return whether a node is a limit that takes some of equal rows."""
    if kind(node) not in _LIMITS:
        return False
    sort = order_of(node)
    return sort is None or not _is_total(items_of(sort.order()), sort.child())


def order_of(limit: Any) -> Any | None:
    """Return the Sort whose first rows a LIMIT or OFFSET takes; None: it takes any rows."""
    node = limit
    while kind(node) in _BETWEEN:
        node = node.children().apply(0)
    return node if _is_global_sort(node) else None


def _is_global_sort(node: Any) -> bool:
    """Return whether a node orders all rows, as ORDER BY does, and not those of each partition."""
    return kind(node) == "Sort" and bool(getattr(node, "global")())


def _is_total(orders: Sequence[Any], child: Any, more: Iterable[Any] = ()) -> bool:
    """Return whether rows that an order leaves without one are the same in all columns."""
    return not _left_out(orders, child, more)


def _left_out(orders: Sequence[Any], child: Any, more: Iterable[Any] = ()) -> list[Any]:
    """Return the columns of a node that an order of its rows, and other expressions, do not name."""
    known = {_told_by(each) for each in (*(order.child() for order in orders), *more)}
    return [each for each in output_of(child) if id_of(each) not in known]


def _told_by(expression: Any) -> int | None:
    """Return the id of the attribute whose values are the same where those of an expression are equal; None: there is none."""
    is_of_bytes = kind(expression) == "Cast" and str(expression.dataType().typeName()) == "binary"
    attribute = expression.child() if is_of_bytes else expression
    if kind(attribute) != "AttributeReference" or (is_collated(attribute) and not is_of_bytes):
        return None
    return id_of(attribute)


def _in_full(spark: SparkSession, attribute: Any) -> Any:
    """Return what orders the values of an attribute: of a text with a collation, its bytes."""
    if not is_collated(attribute) or not str(attribute.dataType().typeName()).startswith("string"):
        return attribute
    binary, mode = (scala_object(spark, name) for name in ("org.apache.spark.sql.types.BinaryType", f"{_EXPRESSIONS}.EvalMode"))
    java = java_of(spark)
    return java.org.apache.spark.sql.catalyst.expressions.Cast(attribute, binary, java.scala.Option.apply(None), mode.LEGACY())


def _calls_of(window: Any) -> list[Any]:
    return [call for each in items_of(window.windowExpressions()) for call in _windows_in(each)]


def _windows_in(expression: Any) -> list[Any]:
    if kind(expression) == "WindowExpression":
        return [expression]
    return [found for child in items_of(expression.children()) for found in _windows_in(child)]


def _is_by_order(call: Any) -> bool:
    """Return whether the value of a window function may differ between rows that are equal by ORDER BY."""
    function = call.windowFunction()
    if kind(function) == "AggregateExpression":
        return takes_any(function) or not (_is_by_value(call) or _is_whole(call))
    return kind(function) not in _OF_PEERS


def _reads_peers(call: Any) -> bool:
    """Return whether rows that are equal by ORDER BY must stay equal: they are ranked, or end a window, or are as far from it."""
    return kind(call.windowFunction()) in _LIMITED or (_is_by_value(call) and not _is_whole(call))


def _is_by_value(call: Any) -> bool:
    return str(call.windowSpec().frameSpecification().frameType().sql()) == "RANGE"


def _is_whole(call: Any) -> bool:
    return bool(call.windowSpec().frameSpecification().isUnbounded())
