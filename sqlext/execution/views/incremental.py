"""How the result of a query changes when the tables that it reads do: the rules of each operator.

For each node of a plan (`spark/plans.py`) there are three plans with the node's attributes: `new`, its rows over the sources' new
versions; `old`, over the old ones; and `delta`, the rows by which the two differ, with weights (`delta/changes.py`). Budiu et al.
(DBSP: Automatic Incremental View Maintenance, 2023) give the rules for the linear and bilinear operators:

- Project, Filter, Generate, Expand, Union carry weights: d(f(A)) = f(dA).
- An inner join: d(A x B) = dA x B' + A' x dB - dA x dB, over the new versions A', B'.

All others are computed anew where something was touched, and only there:

- Aggregate: the groups of changed rows; Window: their partitions; outer, semi and anti joins: their keys. The delta is the new
  rows there, +1, and the old ones, -1.
- A join that keeps rows of one side only is linear in that side, as long as the other one has not changed.
- Whatever has no keys (LIMIT, an aggregate of all rows) is computed anew as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlext.errors import UnsupportedError
from sqlext.execution.delta.changes import WEIGHT
from sqlext.execution.views.keys import KEEPS_LEFT, PASSING, changed_by, divided, keys_of, pushed
from sqlext.execution.views.order import is_by_order
from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, Plans, id_of, kind, output_of

LINEAR = (*PASSING, "Project", "Generate", "Expand")
"""Operators with one input whose changes are what they make of its changes."""
STATIC = ("LocalRelation", "OneRowRelation", "Range")
"""Leaves that never change."""
SUPPORTED = frozenset(
    (*PASSING, *STATIC, "LogicalRelation", "Project", "Generate", "Expand", "Union", "Join", "Aggregate", "Window")
) | {"GlobalLimit", "LocalLimit", "Offset", "Tail"}
"""The operators that there are rules for."""


@dataclass(frozen=True)
class Delta:
    """Rows with weights.

    Attributes:
        plan: a plan with all attributes of the node, and more.
        weight: the attribute with the weights.
    """

    plan: Any
    weight: Any


@dataclass(frozen=True)
class Leaf:
    """A table's part in a query.

    Attributes:
        new: its rows, with the leaf's attributes.
        old: returns those of the old version, whose files may be gone: most refreshes do not need them.
        delta: its changes; None: there are none.
    """

    new: Any
    old: Callable[[], Any]
    delta: Delta | None


def _new(leaf: Leaf) -> Any:
    return leaf.new


def _old(leaf: Leaf) -> Any:
    return leaf.old()


class Derivation:
    """The plans of one refresh.

    Args:
        plans: builds plans.
        leaf: returns the versions of a LogicalRelation.
        kept: computes the rows of a plan, and returns a plan that reads them; for what is read several times.
    """

    def __init__(self, plans: Plans, leaf: Callable[[Any], Leaf], kept: Callable[[Any], Any]) -> None:
        self._plans = plans
        self._leaf = leaf
        self._kept = kept
        self._deltas: dict[Node, Delta | None] = {}

    def new(self, node: Node) -> Any:
        """Return a node's rows over the new versions."""
        return self._over(node, _new)

    def old(self, node: Node) -> Any:
        """Return a node's rows over the old versions."""
        return self._over(node, _old)

    def _over(self, node: Node, version: Callable[[Leaf], Any]) -> Any:
        if node.kind == "LogicalRelation":
            return version(self._leaf(node.plan))
        return self._with(node, [self._over(child, version) for child in node.children]) if node.children else node.plan

    def _near(self, node: Node, keys: Sequence[Any], among: Any, version: Callable[[Leaf], Any]) -> Any:
        """Return the rows of a node whose keys are among the rows of a plan; they are chosen as far down as possible.

        Spark would choose them above joins that the query has further down, and compute these joins for all rows.
        """
        below = pushed(node, keys, self._plans)
        if below is None:
            return self._plans.matching(self._over(node, version), keys, self._fresh(among))
        pairs = zip(node.children, below, strict=True)
        chosen = [
            self._over(child, version) if inner is None else self._near(child, inner, among, version) for child, inner in pairs
        ]
        return self._with(node, chosen)

    def _with(self, node: Node, children: Sequence[Any]) -> Any:
        return self._plans.with_children(node.plan, children)

    def delta(self, node: Node) -> Delta | None:
        """Return the rows by which a node's new rows differ from its old ones; None if they cannot."""
        if node not in self._deltas:
            self._deltas[node] = self._delta(node)
        return self._deltas[node]

    def _delta(self, node: Node) -> Delta | None:
        match node.kind:
            case "LogicalRelation":
                return self._leaf(node.plan).delta
            case name if name in STATIC:
                return None
            case "Union":
                return self._of_union(node)
            case "Join":
                return self._of_join(node)
            case name if name in LINEAR:
                below = self.delta(node.children[0])
                return below and self._of_linear(name, node, below)
            case _:
                return self._touched(node, keys_of(node)) if self._may_change(node) else None

    def _of_linear(self, name: str, node: Node, below: Delta) -> Delta:
        """Return the delta of a node that carries weights."""
        plans = self._plans
        if name == "Project":
            return Delta(plans.select(below.plan, [*items_of(node.plan.projectList()), below.weight]), below.weight)
        if name == "Expand":
            return Delta(*plans.expanded(node.plan, below.plan, below.weight))
        if name == "Generate" or name == "Filter":
            return Delta(self._with(node, [below.plan]), below.weight)
        return below

    def _of_union(self, node: Node) -> Delta | None:
        parts = []
        for child in node.children:
            delta = self.delta(child)
            if delta is not None:
                parts.append(self._columns(delta, output_of(child.plan)))
        return self._sum(parts, output_of(node.plan))

    def _columns(self, delta: Delta, attributes: Sequence[Any]) -> Any:
        """Return a delta as a projection to some attributes and the weight, with new identities."""
        named = [self._plans.named(each, str(each.name())) for each in (*attributes, delta.weight)]
        return self._plans.select(delta.plan, named)

    def _sum(self, parts: Sequence[Any], attributes: Sequence[Any]) -> Delta | None:
        """Return the sum of deltas, each given by its columns and the weight, under the identities of a node's attributes."""
        if not parts:
            return None
        whole = parts[0] if len(parts) == 1 else self._plans.union(parts)
        *columns, last = output_of(whole)
        weight = self._plans.named(last, WEIGHT)
        listed = [self._plans.as_attribute(each, like) for each, like in zip(columns, attributes, strict=True)]
        made = self._plans.select(whole, [*listed, weight])
        return Delta(made, weight.toAttribute())

    def _of_join(self, node: Node) -> Delta | None:
        left, right = node.children
        how = kind(node.plan.joinType())
        if how in ("Inner", "Cross"):
            changed_left, changed_right = self.delta(left), self.delta(right)
            return None if changed_left is None and changed_right is None else self._of_inner(node, changed_left, changed_right)
        if how in KEEPS_LEFT and not self._may_change(right):
            changed = self.delta(left)
            return changed and Delta(self._with(node, [changed.plan, self.new(right)]), changed.weight)
        if how == "RightOuter" and not self._may_change(left):
            changed = self.delta(right)
            return changed and Delta(self._with(node, [self.new(left), changed.plan]), changed.weight)
        return self._of_outer(node)

    def _may_change(self, node: Node) -> bool:
        """Return whether a table below a node has changed."""
        if node.kind == "LogicalRelation":
            return self._leaf(node.plan).delta is not None
        return any(map(self._may_change, node.children))

    def _of_inner(self, node: Node, left: Delta | None, right: Delta | None) -> Delta | None:
        """Return dA x B' + A' x dB - dA x dB."""
        plans, (left_node, right_node) = self._plans, node.children
        attributes, parts = output_of(node.plan), []
        left, right = left and self._held(left, left_node), right and self._held(right, right_node)
        if left is not None:
            parts.append(self._columns(Delta(self._with(node, [left.plan, self.new(right_node)]), left.weight), attributes))
        if right is not None:
            parts.append(self._columns(Delta(self._with(node, [self.new(left_node), right.plan]), right.weight), attributes))
        if left is not None and right is not None:
            both = self._with(node, [left.plan, right.plan])
            minus = plans.product(plans.product(left.weight, right.weight), plans.literal("-1L"))
            weight = plans.named(minus, WEIGHT)
            weighted = plans.select(both, [*attributes, weight])
            parts.append(self._columns(Delta(weighted, weight.toAttribute()), attributes))
        return self._sum(parts, attributes)

    def _held(self, delta: Delta, node: Node) -> Delta:
        """Return a delta whose rows are computed once; of a table's own rows they are already."""
        if node.kind == "LogicalRelation":
            return delta
        narrow = self._plans.select(delta.plan, [*output_of(node.plan), delta.weight])
        return Delta(self._kept(narrow), delta.weight)

    def _of_outer(self, node: Node) -> Delta | None:
        """Return the delta of an outer, semi or anti join: its new and old rows with the keys of changed rows."""
        keys = self._plans.equal_keys(node.plan)
        if not keys[0]:
            return self._whole(node)
        touched = self._of_any(map(self._touched_by, node.children, keys))
        if touched is None:
            return None
        among = self._distinct(touched)

        sides = [*zip(node.children, keys, strict=True)]
        new = self._with(node, [self._near(*side, among, _new) for side in sides])
        old = self._with(node, [self._near(*side, among, _old) for side in sides])
        return self._difference(node, new, old)

    def _touched_by(self, node: Node, keys: Sequence[Any]) -> Any | None:
        """Return a plan with all values that keys, expressions over a node's attributes, have in rows that have changed.

        It may have more, but no duplicates of rows matter. So nothing is computed anew by some keys only to see which they are.

        Returns:
            None: no rows have changed.

        Raises:
            UnsupportedError: which values they had before cannot be said.
        """
        below = changed_by(node, keys, self._plans)
        if below is not None:
            return self._of_any(self._touched_by(child, inner) for child, inner in below)
        delta = self.delta(node)
        if delta is None:
            return None
        if is_by_order(node, keys):
            raise UnsupportedError("what it groups or joins by depends on the order in which rows are read")
        return self._plans.select(delta.plan, [self._plans.named(key, f"k{at}") for at, key in enumerate(keys)])

    def _of_any(self, parts: Iterable[Any | None]) -> Any | None:
        """Return the union of those parts that there are."""
        found = [each for each in parts if each is not None]
        if not found:
            return None
        return found[0] if len(found) == 1 else self._plans.union(found)

    def _distinct(self, plan: Any) -> Any:
        """Return the different rows of a plan, computed once."""
        output = output_of(plan)
        return self._kept(self._plans.grouped(plan, output, output))

    def _fresh(self, plan: Any) -> Any:
        """Return a plan under new identities, so that it can be joined with whatever it was made of."""
        return self._plans.select(plan, [self._plans.named(each, str(each.name())) for each in output_of(plan)])

    def _touched(self, node: Node, keys: Sequence[Any]) -> Delta | None:
        """Return the delta of an aggregate or a window, whose groups are its keys; of other nodes, without keys, as a whole."""
        if not keys:
            return self._whole(node)
        child = node.children[0]
        changed = self._touched_by(child, keys)
        if changed is None:
            return None
        touched = self._distinct(changed)
        new = self._with(node, [self._near(child, keys, touched, _new)])
        old = self._with(node, [self._near(child, keys, touched, _old)])
        return self._difference(node, new, old)

    def _whole(self, node: Node) -> Delta | None:
        return self._difference(node, self.new(node), self.old(node))

    def _difference(self, node: Node, new: Any, old: Any) -> Delta | None:
        plans, attributes, parts = self._plans, output_of(node.plan), []
        for plan, sign in ((new, "1L"), (old, "-1L")):
            weight = plans.named(plans.literal(sign), WEIGHT)
            columns = [plans.named(each, str(each.name())) for each in attributes]
            parts.append(plans.select(plan, [*columns, weight]))
        return self._sum(parts, attributes)

    # The touched part of a whole query.

    def touched_part(self, root: Node) -> TouchedPart | None:
        """Return the part of a query's result that may have changed, by values of some of its columns.

        Returns:
            None: no columns tell which rows may have changed.
        """
        found = divided(root, {id_of(each): each for each in output_of(root.plan)})
        if found is None:
            return None
        node, wanted = found
        inner = [each for each, _ in wanted]
        changed = self._touched_by(node.children[0], inner)
        if changed is None:
            return None
        touched = self._distinct(changed)
        child = node.children[0]
        part = self._with(node, [self._near(child, inner, touched, _new)])
        return TouchedPart(node.kind, touched, tuple(id_of(outer) for _, outer in wanted), self._plans.around(root, node, part))


@dataclass(frozen=True)
class TouchedPart:
    """The part of a query's result that may have changed.

    Attributes:
        by: the operator whose groups or partitions were touched: `Aggregate` or `Window`.
        keys: a plan with the values of the key columns in that part, each once.
        columns: the ids of the query's attributes that hold the keys, in their order.
        rows: a plan of the query's new rows there.
    """

    by: str
    keys: Any
    columns: tuple[int, ...]
    rows: Any
