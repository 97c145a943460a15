"""Which columns tell one part of a query's result from another, and how they are passed down to its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, Plans, can_be_key, id_of, kind, output_of

PASSING = ("Filter", "Sort", "RepartitionByExpression", "Repartition", "ResolvedHint", "SubqueryAlias", "RebalancePartitions")
"""Operators that pass on their input's attributes, and all or some of its rows."""
KEEPS_LEFT = ("LeftSemi", "LeftAnti", "LeftOuter", "ExistenceJoin")
"""Joins each of whose rows has the attributes of a row of the left input."""
_INNER = ("Inner", "Cross")
_Shown = TypeVar("_Shown")


def keys_of(node: Node) -> list[Any]:
    """Return the expressions by which an aggregate or a window divides its rows, as far as they are attributes."""
    expressions = []
    if node.kind == "Aggregate":
        expressions = items_of(node.plan.groupingExpressions())
    elif node.kind == "Window":
        expressions = items_of(node.plan.partitionSpec())
    return [each for each in expressions if kind(each) == "AttributeReference" and can_be_key(each)]


def pushed(node: Node, keys: Sequence[Any], plans: Plans) -> list[Sequence[Any] | None] | None:
    """Return the keys of each input by whose values rows of a node are chosen, if they are chosen by some values of its own keys.

    Args:
        keys: expressions over the node's attributes.

    Returns:
        For each input, the keys as expressions over its attributes; None: all its rows are needed. None instead of the list: the
        rows can be chosen above the node only.
    """
    if any(kind(each) != "AttributeReference" for each in keys):
        return None
    match node.kind:
        case name if name in PASSING:
            return [keys]
        case "Project":
            inner = _below(items_of(node.plan.projectList()), keys)
            return None if inner is None else [inner]
        case "Aggregate" | "Window":
            inner = _below(items_of(node.plan.aggregateExpressions()), keys) if node.kind == "Aggregate" else [*keys]
            own = {id_of(each) for each in keys_of(node)}
            return [inner] if inner is not None and {id_of(each) for each in inner} <= own else None
        case "Join":
            return _pushed_into_join(node, keys, plans)
        case _:
            return None


def _pushed_into_join(node: Node, keys: Sequence[Any], plans: Plans) -> list[Sequence[Any] | None] | None:
    """See `pushed`: into the input that has the keys, and into the other one where the join compares them by equality."""
    how, wanted = kind(node.plan.joinType()), {id_of(each) for each in keys}
    has_keys = [wanted <= {id_of(each) for each in output_of(child.plan)} for child in node.children]
    if has_keys[0] and how in (*_INNER, *KEEPS_LEFT):
        side = 0
    elif has_keys[1] and how in (*_INNER, "RightOuter"):
        side = 1
    else:
        return None
    both = plans.equal_keys(node.plan)
    places = {id_of(each): at for at, each in enumerate(both[side]) if kind(each) == "AttributeReference"}
    is_compared = wanted <= places.keys()
    other = [both[1 - side][places[id_of(each)]] for each in keys] if is_compared else None
    return [keys, other] if side == 0 else [other, keys]


def changed_by(node: Node, keys: Sequence[Any], plans: Plans) -> list[tuple[Node, Sequence[Any]]] | None:
    """Find which inputs say what values keys have in the changed rows of a node that is computed anew by just these keys.

    Returns:
        The inputs with their keys; None: the node is no such one, so only its changed rows say that.
    """
    found = pushed(node, keys, plans)
    if found is None or (node.kind == "Join" and kind(node.plan.joinType()) in _INNER):
        return None
    below = [(child, inner) for child, inner in zip(node.children, found, strict=True) if inner is not None]
    if len(below) < len(node.children):
        return None
    if node.kind in (*PASSING, "Project") and changed_by(*below[0], plans) is None:
        return None
    return below


def _below(expressions: Sequence[Any], keys: Sequence[Any]) -> list[Any] | None:
    """Return the attributes that keys are of below named expressions; None if one of them is computed there."""
    inner = {id_of(each.toAttribute()): each.child() if kind(each) == "Alias" else each for each in expressions}
    found = [inner.get(id_of(each)) for each in keys]
    return found if all(each is not None and kind(each) == "AttributeReference" for each in found) else None


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
