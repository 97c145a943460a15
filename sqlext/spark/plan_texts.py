"""What an analysed plan says: which attributes it uses, and texts by which two queries are told apart.

Relies on Spark's private side: Catalyst's nodes and expressions. Checked with Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlext.spark.java import items_of
from sqlext.spark.plans import id_of, kind, nodes_of, output_of, relation_of
from sqlext.spark.settings import MEANING

_ID = re.compile(r"(?:#|CommonExpressionId\()(\d+)L?")
WHOLE_TEXTS = {"spark.sql.debug.maxToStringFields": str(2**31 - 1)}
"""The setting with which Spark leaves out nothing in the text of an expression."""
_PASSING_ON = frozenset(
    ("Filter", "Join", "Sort", "Window", "Generate", "GlobalLimit", "LocalLimit", "Offset", "Tail", "SubqueryAlias")
) | {"RepartitionByExpression", "Repartition", "RebalancePartitions", "ResolvedHint"}
"""Operators that use what their expressions say, and pass on other attributes unread."""


def views_of(plan: Any) -> dict[str, str]:
    """Return the queries of the SQL views that an analysed plan reads, by name."""
    views = [node for node in nodes_of(plan) if kind(node) == "View"]
    texts = {str(node.desc().identifier().unquotedString()): node.desc().viewText() for node in views}
    return {name: str(text.get()) if text.isDefined() else "" for name, text in texts.items()}


def settings_of_views(plan: Any) -> str:
    """Return the settings under which the SQL views of an analysed plan were made, as far as they change what these mean."""
    return "\n".join(_meaning(node.desc().viewSQLConfigs()) for node in nodes_of(plan) if kind(node) == "View")


def settings_of_function(function: Any) -> str:
    """Return the settings under which a SQL function was made, as far as they change what it means."""
    return _meaning(function.getSQLConfigs())


def _meaning(configs: Any) -> str:
    found = {key: configs.get(key) for key in MEANING}
    return " ".join(f"{key}={value.get()}" for key, value in found.items() if value.isDefined())


def text_of(plan: Any) -> str:
    """Return a text that is equal for equal plans, of whatever session: ids are numbered in the order of their appearance.

    The active session must have `WHOLE_TEXTS`. Of tables it has only the columns that the plan uses, so that one more makes no
    difference.
    """
    used = used_in(plan)
    numbers: dict[str, int] = {}
    lines = []
    for node in nodes_of(plan):
        relation = relation_of(node)
        if relation is None:
            parts = [str(node.nodeName()), *(str(each.toString()) for each in items_of(node.expressions()))]
            parts += [str(each) for each in _beside_expressions(node)]
        else:
            listed = [each for each in output_of(node) if id_of(each) in used]
            parts = [
                relation.name,
                str(relation.pinned_to),
                *(f"{each.toString()} {each.dataType().catalogString()}" for each in listed),
            ]
            parts += [relation.location, relation.id_of_pinned] if relation.is_pinned else []
        lines.append(_ID.sub(lambda found: f"#{numbers.setdefault(found.group(1), len(numbers))}", " ".join(parts)))
    return "\n".join(lines)


def _beside_expressions(node: Any) -> list[Any]:
    """Return what a node says, besides its expressions, that decides on its rows."""
    match kind(node):
        case "Join":
            return [node.joinType().toString()]
        case "Generate":
            return [node.outer()]
        case "Range":
            return [node.start(), node.end(), node.step()]
        case "LocalRelation":
            return [node.data().mkString(" ")]
        case _:
            return []


def used_in(plan: Any) -> set[int]:
    """Return the ids of the attributes that a query uses for its rows, or a subquery in it for its own.

    What a subquery selects is not used where only the number of its rows counts, as in EXISTS (SELECT * ..).
    """
    used: set[int] = set()
    _note_used(plan, {id_of(each) for each in output_of(plan)}, used)
    return used


def _note_used(node: Any, wanted: set[int], used: set[int]) -> None:
    """Note the attributes that a plan uses for some of its own attributes."""
    used |= wanted
    for subquery in items_of(node.subqueries()):
        _note_used(subquery, {id_of(each) for each in output_of(subquery)}, used)
    name, children = kind(node), items_of(node.children())
    places = [at for at, each in enumerate(output_of(node)) if id_of(each) in wanted] if name == "Union" else []
    read = _read_for(name, node, wanted)
    for child in children:
        below = [id_of(each) for each in output_of(child)]
        if name == "Union":
            _note_used(child, {below[at] for at in places}, used)
        else:
            _note_used(child, {*below} if read is None else read.intersection(below), used)


def _read_for(name: str, node: Any, wanted: set[int]) -> set[int] | None:
    """Return the attributes that a node reads for some of its own, and these; None: all that there are."""
    if name == "Project" or name == "Aggregate":
        listed = items_of(node.projectList() if name == "Project" else node.aggregateExpressions())
        read = [each for each in listed if id_of(each.toAttribute()) in wanted]
        read += [] if name == "Project" else items_of(node.groupingExpressions())
        return {id_of(each) for expression in read for each in items_of(expression.references().toSeq())}
    return {id_of(each) for each in references_of(node)} | wanted if name in _PASSING_ON else None


def references_of(node: Any) -> list[Any]:
    """Return the attributes of its children that a node reads; UNION reads them by position, and so all of them."""
    if kind(node) == "Union":
        return [each for child in items_of(node.children()) for each in items_of(child.output())]
    return items_of(node.references().toSeq())


def sql_functions_of(plan: Any) -> list[Any]:
    """Return the functions in an analysed plan that are defined in SQL, and may be redefined, as Spark's SQLFunction."""
    found: dict[str, Any] = {}
    for node in nodes_of(plan):
        inside = (each for expression in items_of(node.expressions()) for each in _expressions_of(expression))
        for each in (node, *inside):
            if kind(each) in ("SQLFunctionNode", "SQLScalarFunction"):
                found[str(each.function().name().quotedString())] = each.function()
    return [*found.values()]


def text_of_function(function: Any) -> str:
    """Return the body of a function that is defined in SQL."""
    texts = (function.exprText(), function.queryText())
    return " ".join(str(text.get()) for text in texts if text.isDefined())


def _expressions_of(expression: Any) -> Iterator[Any]:
    yield expression
    for child in items_of(expression.children()):
        yield from _expressions_of(child)
