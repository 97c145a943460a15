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
from sqlext.execution.views import near
from sqlext.execution.views.kept import Kept
from sqlext.execution.views.keys import KEEPS_LEFT, PASSING, are_attributes, changed_by, divided, is_inner, keys_of
from sqlext.execution.views.leaves import Delta, Leaf
from sqlext.execution.views.near import Rows, Values, is_costly, largest, near_rows, not_far, over, reached
from sqlext.execution.views.order import is_by_order
from sqlext.execution.views.parts import Parts
from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, Plans, can_be_key, id_of, kind, output_of

LINEAR = (*PASSING, "Project", "Generate", "Expand")
"""Operators with one input whose changes are what they make of its changes."""
STATIC = ("LocalRelation", "OneRowRelation", "Range")
"""Leaves that never change."""
SUPPORTED = frozenset(
    (*PASSING, *STATIC, "LogicalRelation", "Project", "Generate", "Expand", "Union", "Join", "Aggregate", "Window")
) | {"GlobalLimit", "LocalLimit", "Offset", "Tail"}
"""The operators that there are rules for."""
_Side = tuple[Node, Sequence[Any]]
"""An input of a join, and the expressions of its rows that the join compares by equality."""


class Derivation:
    """The plans of one refresh.

    Args:
        plans: builds plans.
        leaf: returns the versions of a LogicalRelation.
        kept: for rows that are read several times.
    """

    def __init__(self, plans: Plans, leaf: Callable[[Any], Leaf], kept: Kept) -> None:
        self._plans = plans
        self._leaf = leaf
        self._kept = kept
        self._leaves: dict[int, tuple[Any, Leaf]] = {}  # by the identity of their nodes
        self._new = Rows(lambda node: self._at(node).new, lambda node: self._at(node).size)
        self._old = Rows(lambda node: self._at(node).old(), lambda node: self._at(node).size)
        parts = Parts(plans, self._at, kept)
        self._shared_new, self._shared_old = parts.sharing(self._new, are_old=False), parts.sharing(self._old, are_old=True)
        self._deltas: dict[Node, Delta | None] = {}

    def _at(self, leaf: Any) -> Leaf:
        if id(leaf) not in self._leaves:
            self._leaves[id(leaf)] = leaf, self._leaf(leaf)
        return self._leaves[id(leaf)][1]

    def new(self, node: Node) -> Any:
        """Return a node's rows over the new versions."""
        return over(node, self._new, self._plans)

    def old(self, node: Node) -> Any:
        """Return a node's rows over the old versions."""
        return over(node, self._old, self._plans)

    def new_near(self, node: Node, keys: Sequence[Any], among: Any) -> Any:
        """Return those of a node's rows over the new versions whose keys are among the rows of a plan."""
        return self._new_near(node, keys, self._kept.values(among))

    def _new_near(self, node: Node, keys: Sequence[Any], values: Values) -> Any:
        return self._near(node, keys, values, self._shared_new if is_costly(node) else self._new)

    def _near(self, node: Node, keys: Sequence[Any], values: Values, rows: Rows) -> Any:
        return near_rows(node, keys, values, rows, self._plans)

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
                return self._at(node.plan).delta
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
        if is_inner(node):
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
            return self._at(node.plan).delta is not None
        return any(map(self._may_change, node.children))

    def _of_inner(self, node: Node, left: Delta | None, right: Delta | None) -> Delta | None:
        """Return dA x B' + A' x dB - dA x dB."""
        plans, (left_node, right_node) = self._plans, node.children
        attributes, parts = output_of(node.plan), []
        left_keys, right_keys = plans.equal_keys(node.plan)
        if left is not None:
            left, beside = self._met(left, (left_node, left_keys), (right_node, right_keys), is_read_again=right is not None)
            parts.append(self._columns(Delta(self._with(node, [left.plan, beside]), left.weight), attributes))
        if right is not None:
            right, beside = self._met(right, (right_node, right_keys), (left_node, left_keys), is_read_again=left is not None)
            parts.append(self._columns(Delta(self._with(node, [beside, right.plan]), right.weight), attributes))
        if left is not None and right is not None:
            both = self._with(node, [left.plan, right.plan])
            minus = plans.product(plans.product(left.weight, right.weight), plans.literal("-1L"))
            weight = plans.named(minus, WEIGHT)
            weighted = plans.select(both, [*attributes, weight])
            parts.append(self._columns(Delta(weighted, weight.toAttribute()), attributes))
        return self._sum(parts, attributes)

    def _met(self, delta: Delta, side: _Side, other: _Side, is_read_again: bool) -> tuple[Delta, Any]:
        """Return changed rows of an input of an inner join, and the other's new rows that they may meet, perhaps with others.

        Where that takes Spark a while, the changed rows are computed before: it sends them to the other ones if they are few.
        """
        (node, keys), (other_node, other_keys) = side, other
        compared = [(one, two) for one, two in zip(keys, other_keys, strict=True) if are_attributes([two]) and can_be_key(two)]
        wanted = {at: two for at, (_, two) in enumerate(compared)}
        if is_read_again or largest(other_node, self._new) >= near.READ_IN_PARTS_BYTES:
            delta = self._held(delta, node)
        if reached(other_node, wanted, self._new, self._plans) < near.READ_IN_PARTS_BYTES:
            return delta, self.new(other_node)
        named = self._plans.select(delta.plan, [self._plans.named(one, f"k{at}") for at, (one, _) in enumerate(compared)])
        values = self._kept.values(named) if is_costly(other_node) else self._kept.ranges(named)
        return delta, not_far(other_node, wanted, values, self._shared_new, self._plans)

    def _held(self, delta: Delta, node: Node) -> Delta:
        """Return a delta whose rows are computed once; of a table's own rows, or some of them, they are already."""
        below = node
        while below.kind == "Project" or below.kind in PASSING:
            below = below.children[0]
        if below.kind == "LogicalRelation":
            return delta
        narrow = self._plans.select(delta.plan, [*output_of(node.plan), delta.weight])
        return Delta(self._kept.keep(narrow), delta.weight)

    def _of_outer(self, node: Node) -> Delta | None:
        """Return the delta of an outer, semi or anti join: its new and old rows with the keys of changed rows."""
        keys = self._plans.equal_keys(node.plan)
        if not keys[0]:
            return self._whole(node)
        sides = [*zip(node.children, keys, strict=True)]
        touched = self._of_any(self._touched_by(*side, is_rough=True) for side in sides)
        if touched is None:
            return None
        among = self._kept.values(touched)
        new = self._with(node, [self._near(*side, among, self._shared_new) for side in sides])
        old = self._with(node, [self._near(*side, among, self._shared_old) for side in sides])
        return self._difference(node, new, old)

    def _touched_by(self, node: Node, keys: Sequence[Any], is_rough: bool = False) -> Any | None:
        """Return a plan with all values that keys, expressions over a node's attributes, have in rows that have changed.

        It may have more, but no duplicates of rows matter. So nothing is computed anew by some keys only to see which they are;
        with `is_rough`, no changed rows are joined with others, either.

        Returns:
            None: no rows have changed.

        Raises:
            UnsupportedError: which values they had before cannot be said.
        """
        below = changed_by(node, keys, self._plans, self._may_change if is_rough else None)
        if below is not None:
            return self._of_any(self._touched_by(child, inner, is_rough) for child, inner in below)
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

    def _touched(self, node: Node, keys: Sequence[Any]) -> Delta | None:
        """Return the delta of an aggregate or a window, whose groups are its keys; of other nodes, without keys, as a whole."""
        if not keys:
            return self._whole(node)
        child = node.children[0]
        changed = self._touched_by(child, keys)
        if changed is None:
            return None
        touched = self._kept.values(changed)
        new = self._with(node, [self._near(child, keys, touched, self._shared_new)])
        old = self._with(node, [self._near(child, keys, touched, self._shared_old)])
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
        touched = self._kept.values(changed)
        child = node.children[0]
        part = self._with(node, [self._new_near(child, inner, touched)])
        columns = tuple(id_of(outer) for _, outer in wanted)
        return TouchedPart(node.kind, touched.plan, columns, self._plans.around(root, node, part))


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
