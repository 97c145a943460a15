"""The rows of a part of a query that have some values of a key, read without the others as far as its tables allow.

The keys are passed down (`keys.passed_down`) through joins and aggregates to the tables, and rows are chosen there. Spark would
choose them above, and compute the joins and aggregates for all rows. Of a large table, only those files and row groups are read
whose statistics allow for a value between the least and the greatest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlext.execution.views.keys import Keyed, are_attributes, is_inner, passed_down
from sqlext.spark.plans import Node, Plans, kind, output_of

_COSTLY = ("Join", "Aggregate", "Window")
"""Operators below which rows are worth choosing, also if they are chosen above."""
READ_IN_PARTS_BYTES = 64 * 1024**2
"""The size of a table from which on it is worth a Spark job to know which part of it is needed."""


@dataclass(frozen=True)
class Range:
    """What values a key has.

    Attributes:
        least, greatest: as text; None: not known, or there is no value.
        has_null: whether NULL is one of them.
    """

    least: str | None = None
    greatest: str | None = None
    has_null: bool = True


@dataclass(frozen=True, eq=False)
class Values:
    """Values of keys, each combination once, computed already. Two of them are never equal.

    Attributes:
        plan: a plan with a column for each key.
        ranges: of each key.
    """

    plan: Any
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Rows:
    """Where the rows of a query's tables come from.

    Attributes:
        of: returns the plan of a table's rows, for its leaf.
        size: returns its size in bytes.
        part: returns the plan of those rows of a large table whose keys, of the leaf, have one of some combinations of values;
            None: they are chosen among all rows.
    """

    of: Callable[[Any], Any]
    size: Callable[[Any], int]
    part: Callable[[Any, Keyed, Values], Any] | None = None


def over(node: Node, rows: Rows, plans: Plans) -> Any:
    """Return the plan of all rows of a node."""
    if node.kind == "LogicalRelation":
        return rows.of(node.plan)
    return plans.with_children(node.plan, [over(child, rows, plans) for child in node.children]) if node.children else node.plan


def near_rows(node: Node, keys: Sequence[Any], values: Values, rows: Rows, plans: Plans) -> Any:
    """Return the plan of a node's rows whose keys, expressions over its attributes, have one of some combinations of values."""
    numbered = dict(enumerate(keys))
    plan, is_exact = _Choice(values, rows, plans).of(node, numbered if are_attributes(keys) else {})
    return plan if is_exact else among(plan, numbered, values, plans)


def not_far(node: Node, keys: Keyed, values: Values, rows: Rows, plans: Plans) -> Any:
    """Return the plan of rows of a node: those whose keys have one of some combinations of values, and perhaps others.

    For an input of a join that leaves the others out: of a table that is joined itself, only parts are left out as a whole.

    Args:
        keys: attributes of the node, by their numbers among the `values`.
    """
    return _Choice(values, rows, plans, is_joined=True).of(node, keys)[0]


def largest(node: Node, rows: Rows) -> int:
    """Return the size, in bytes, of the largest table of a node."""
    own = rows.size(node.plan) if node.kind == "LogicalRelation" else 0
    return max([own, *(largest(child, rows) for child in node.children)])


def reached(node: Node, keys: Keyed, rows: Rows, plans: Plans) -> int:
    """Return the size, in bytes, of the largest table of a node whose rows can be chosen by keys."""
    if not keys or not node.children:
        return rows.size(node.plan) if keys and node.kind == "LogicalRelation" else 0
    inputs = passed_down(node, keys, plans)
    return max(reached(child, inner, rows, plans) for child, inner in zip(node.children, inputs, strict=True))


def is_costly(node: Node) -> bool:
    """Return whether there is an operator in a node below which rows are worth choosing."""
    return node.kind in _COSTLY or any(map(is_costly, node.children))


def _is_exact(node: Node, inputs: Sequence[bool]) -> bool:
    """Return whether a node has only chosen rows, by whether its inputs do."""
    if node.kind == "Union":
        return all(inputs)
    if node.kind != "Join" or is_inner(node):
        return any(inputs)
    return inputs[1 if kind(node.plan.joinType()) == "RightOuter" else 0]


class _Choice:
    """Chooses rows by values of keys."""

    def __init__(self, values: Values, rows: Rows, plans: Plans, is_joined: bool = False) -> None:
        self._values = values
        self._rows = rows
        self._plans = plans
        self._is_joined = is_joined

    def of(self, node: Node, keys: Keyed) -> tuple[Any, bool]:
        """Return a plan of rows of a node, without others as far as its tables allow; and whether there are no others."""
        if not keys or not node.children:
            return self._of_leaf(node, keys)
        inputs = passed_down(node, keys, self._plans)
        below = self if node.kind not in _COSTLY else _Choice(self._values, self._rows, self._plans)
        made = [below.of(child, inner) for child, inner in zip(node.children, inputs, strict=True)]
        exact = [is_exact and len(inner) == len(self._values.ranges) for (_, is_exact), inner in zip(made, inputs, strict=True)]
        return self._plans.with_children(node.plan, [plan for plan, _ in made]), _is_exact(node, exact)

    def _of_leaf(self, node: Node, keys: Keyed) -> tuple[Any, bool]:
        is_large = node.kind == "LogicalRelation" and self._rows.size(node.plan) >= READ_IN_PARTS_BYTES
        if keys and is_large and self._rows.part is not None and not self._is_joined:
            return self._rows.part(node.plan, keys, self._values), True
        plan = over(node, self._rows, self._plans)
        if keys and is_large:
            plan = in_part(plan, keys, self._values, self._plans)
        if not keys or self._is_joined:
            return plan, False
        return among(plan, keys, self._values, self._plans), True


def in_part(plan: Any, keys: Keyed, values: Values, plans: Plans) -> Any:
    """Return the rows of a plan whose keys are between the least and the greatest values."""
    for at, key in keys.items():
        found = values.ranges[at]
        if not found.has_null and found.least is not None and found.greatest is not None:
            plan = plans.between(plan, key, found.least, found.greatest)
    return plan


def among(plan: Any, keys: Keyed, values: Values, plans: Plans) -> Any:
    """Return the rows of a plan whose keys, expressions under their numbers, have one of the combinations of values."""
    columns = output_of(values.plan)
    chosen = [plans.named(columns[at], str(columns[at].name())) for at in keys]
    may_be_null = [values.ranges[at].has_null for at in keys]
    return plans.matching(plan, [*keys.values()], plans.select(values.plan, chosen), may_be_null)
