"""What in a query's rows depends on the order in which Spark has read other rows: first(x), a list, the x of the greatest y.

So does the spelling of a key whose collation takes 'a' and 'A' for one. Spark may answer otherwise each time. Rows that are
computed anew over the old versions of the sources may so be others than those that the view has counted, and can neither be
subtracted from its groups nor tell which groups have changed. The ties of window functions and of LIMIT are broken before
(`spark/row_order.py`), where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlext.execution.views.keys import PASSING
from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, id_of, kind, output_of
from sqlext.spark.row_order import by_ties, is_collated, takes_any, takes_any_rows

ROWS = -1
"""In the place of an attribute's id: how many rows there are, and which."""


def by_order(node: Node) -> frozenset[int]:
    """Return the ids of a node's attributes that depend on the order of rows, and `ROWS` if its rows do."""
    below = [by_order(child) for child in node.children]
    found = frozenset[int]().union(*below)
    match node.kind:
        case "Aggregate":
            return _of_aggregate(node, found)
        case "Window" if tied := by_ties(node.plan):
            return found | _named(items_of(node.plan.windowExpressions()), found) | {id_of(each.toAttribute()) for each in tied}
        case "Union" if found:
            ordered = {at for child, ids in zip(node.children, below, strict=True) for at in _places(child, ids)}
            return (found & {ROWS}) | {id_of(each) for at, each in enumerate(output_of(node.plan)) if at in ordered}
        case _ if takes_any_rows(node.plan):
            return _all_of(node)
        case _ if not found:
            return found
        case "Project":
            return found | _named(items_of(node.plan.projectList()), found)
        case "Window":
            return found | _named(items_of(node.plan.windowExpressions()), found)
        case name if name in PASSING or name == "Join":
            return found | {ROWS} if reads(items_of(node.plan.expressions()), found) else found
        case _:
            return _all_of(node)


def reads(expressions: Iterable[Any], ids: frozenset[int]) -> bool:
    """Return whether expressions read one of some attributes."""
    return any(id_of(each) in ids for expression in expressions for each in items_of(expression.references().toSeq()))


def is_by_order(node: Node, expressions: Iterable[Any]) -> bool:
    """Return whether the values that expressions have in a node's rows depend on the order of other rows."""
    found = by_order(node)
    return ROWS in found or reads(expressions, found)


def _of_aggregate(node: Node, below: frozenset[int]) -> frozenset[int]:
    groups = items_of(node.plan.groupingExpressions())
    if ROWS in below or reads(groups, below):
        return _all_of(node)
    below |= {id_of(each) for each in groups if kind(each) == "AttributeReference" and is_collated(each)}
    results = items_of(node.plan.aggregateExpressions())
    return frozenset(id_of(each.toAttribute()) for each in results if takes_any(each)) | _named(results, below)


def _named(expressions: Iterable[Any], below: frozenset[int]) -> frozenset[int]:
    return frozenset(id_of(each.toAttribute()) for each in expressions if reads([each], below))


def _places(child: Node, ids: frozenset[int]) -> list[int]:
    return [at for at, each in enumerate(output_of(child.plan)) if id_of(each) in ids]


def _all_of(node: Node) -> frozenset[int]:
    return frozenset({ROWS, *(id_of(each) for each in output_of(node.plan))})
