"""Which columns tell one part of a query's result from another, and how they are passed down to its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, Plans, can_be_key, id_of, kind, output_of

PASSING = ("Filter", "Sort", "RepartitionByExpression", "Repartition", "ResolvedHint", "SubqueryAlias", "RebalancePartitions")
"""Operators that pass on their input's attributes, and all or some of its rows."""
KEEPS_LEFT = ("LeftSemi", "LeftAnti", "LeftOuter", "ExistenceJoin")
"""Joins each of whose rows has the attributes of a row of the left input."""
_INNER = ("Inner", "Cross")
_Shown = TypeVar("_Shown")
Keyed = Mapping[int, Any]
"""Attributes by the number of the key that each of them is."""


def keys_of(node: Node) -> list[Any]:
    """Return the expressions by which an aggregate or a window divides its rows, as far as they are attributes."""
    expressions = []
    if node.kind == "Aggregate":
        expressions = items_of(node.plan.groupingExpressions())
    elif node.kind == "Window":
        expressions = items_of(node.plan.partitionSpec())
    return [each for each in expressions if kind(each) == "AttributeReference" and can_be_key(each)]


def passed_down(node: Node, keys: Keyed, plans: Plans) -> list[Keyed]:
    """Return by which values of its own columns rows of each input can be chosen, if a node's rows are chosen by their keys.

    Args:
        node: the node.
        keys: attributes of the node, each under a number.
        plans: builds plans.

    Returns:
        For each input, attributes of its rows under the numbers of the keys whose values they have in all rows that make up a
        chosen one. Keys that an input does not have, or by which it would lose other rows of these, are left out.
    """
    match node.kind:
        case name if name in PASSING:
            return [keys]
        case "Project":
            return [_below(items_of(node.plan.projectList()), keys)]
        case "Aggregate":
            return [_own(keys_of(node), _below(items_of(node.plan.aggregateExpressions()), keys))]
        case "Window":
            return [_own(keys_of(node), keys)]
        case "Generate":
            return [_own(output_of(node.children[0].plan), keys)]
        case "Union":
            places = {id_of(each): place for place, each in enumerate(output_of(node.plan))}
            outputs = [output_of(child.plan) for child in node.children]
            return [{at: output[places[id_of(key)]] for at, key in keys.items()} for output in outputs]
        case "Join":
            return _into_join(node, keys, plans)
        case _:
            return [{} for _ in node.children]


def _into_join(node: Node, keys: Keyed, plans: Plans) -> list[Keyed]:
    """See `passed_down`: into the input that has a key, and into the other one where the join compares it by equality."""
    how = kind(node.plan.joinType())
    keeps = (how in (*_INNER, *KEEPS_LEFT), how in (*_INNER, "RightOuter"))
    sides = zip(node.children, keeps, strict=True)
    own = [_own(output_of(child.plan), keys) if is_kept else {} for child, is_kept in sides]
    compared = plans.equal_keys(node.plan)
    found = [dict(each) for each in own]
    for side, other in ((0, 1), (1, 0)):
        equal = {id_of(one): two for one, two in zip(compared[side], compared[other], strict=True) if are_attributes((one, two))}
        for at, key in own[side].items():
            if id_of(key) in equal:
                found[other].setdefault(at, equal[id_of(key)])
    return [*found]


def is_inner(node: Node) -> bool:
    """Return whether a node is an inner join."""
    return node.kind == "Join" and kind(node.plan.joinType()) in _INNER


def are_attributes(expressions: Iterable[Any]) -> bool:
    """Return whether all expressions are attributes."""
    return all(kind(each) == "AttributeReference" for each in expressions)


def changed_by(
    node: Node, keys: Sequence[Any], plans: Plans, may_change: Callable[[Node], bool] | None = None
) -> list[tuple[Node, Sequence[Any]]] | None:
    """Find which inputs say what values keys have in the changed rows of a node that is computed anew by just these keys.

    Args:
        node, keys: the node, and expressions over its attributes.
        plans: builds plans.
        may_change: whether rows of a node may have changed. With it, inputs are also found of an inner join all of whose inputs
            that may have changed have the keys; they may have values that do not change the join's rows.

    Returns:
        The inputs with their keys; None: the node is no such one, so only its changed rows say that.
    """
    if node.kind not in (*PASSING, "Project", "Aggregate", "Window", "Join") or not are_attributes(keys):
        return None
    if is_inner(node) and may_change is None:
        return None
    pairs = [*zip(node.children, passed_down(node, dict(enumerate(keys)), plans), strict=True)]
    if is_inner(node) and may_change is not None:
        pairs = [(child, inner) for child, inner in pairs if may_change(child)]
    if any(len(inner) < len(keys) for _, inner in pairs):
        return None
    below: list[tuple[Node, Sequence[Any]]]
    below = [(child, [inner[at] for at in range(len(keys))]) for child, inner in pairs]
    if node.kind in (*PASSING, "Project") and changed_by(*below[0], plans, may_change) is None:
        return None
    return below


def _own(attributes: Iterable[Any], keys: Keyed) -> Keyed:
    """Return those keys that are among some attributes."""
    ids = {id_of(each) for each in attributes}
    return {at: key for at, key in keys.items() if id_of(key) in ids}


def _below(expressions: Sequence[Any], keys: Keyed) -> Keyed:
    """Return the attributes that keys are of below named expressions, without those that are computed there."""
    inner = {id_of(each.toAttribute()): each.child() if kind(each) == "Alias" else each for each in expressions}
    found = {at: inner[id_of(key)] for at, key in keys.items() if id_of(key) in inner}
    return {at: each for at, each in found.items() if kind(each) == "AttributeReference"}


def divided(root: Node, shown: dict[int, Any]) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """Find the aggregate or window that divides a query's rows by columns which the query shows.

    Args:
        root: the query, or a node of it.
        shown: the query's attributes that are attributes of `root`, by the id they have there.

    Returns:
        The node, the lowest that does; and each of its keys that the query shows, with the query's attribute.
    """
    name = root.kind
    if name == "Project":
        return divided(root.children[0], passed_on(items_of(root.plan.projectList()), shown))
    if name in PASSING:
        return divided(root.children[0], shown)
    if name not in ("Aggregate", "Window"):
        return None
    below = passed_on(items_of(root.plan.aggregateExpressions()), shown) if name == "Aggregate" else shown
    keys = [(key, below[id_of(key)]) for key in keys_of(root) if id_of(key) in below]
    if not keys:
        return None
    inner = divided(root.children[0], {id_of(key): outer for key, outer in keys})
    return (root, keys) if inner is None else inner


def passed_on(expressions: Sequence[Any], shown: Mapping[int, _Shown]) -> dict[int, _Shown]:
    """Return what is `shown` by the id that it has above named expressions, by the id below, where they only pass it on."""
    found: dict[int, _Shown] = {}
    for each in expressions:
        inner = each.child() if kind(each) == "Alias" else each
        if kind(inner) == "AttributeReference" and id_of(each.toAttribute()) in shown:
            found.setdefault(id_of(inner), shown[id_of(each.toAttribute())])
    return found
