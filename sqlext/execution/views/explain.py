"""EXPLAIN CREATE MATERIALIZED VIEW: how each operator of the query is kept up to date, or why it is computed in full."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sqlext.execution.views import cost
from sqlext.execution.views.keys import KEEPS_LEFT, divided
from sqlext.execution.views.merging import mergeable
from sqlext.execution.views.partials import partials_of
from sqlext.execution.views.query import ViewQuery, analyse
from sqlext.plan.view_spec import RefreshPolicy
from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, id_of, kind, output_of, relation_of, tree_of

_WAYS = {
    "Project": "changes pass through",
    "Filter": "changes pass through",
    "Generate": "changes pass through",
    "Expand": "changes pass through",
    "Union": "changes pass through",
    "Sort": "changes pass through",
    "Aggregate": "touched groups are computed anew",
    "Window": "touched partitions are computed anew",
}
_WHOLE = "computed anew as a whole when its input changes"
_INNER = "changes of one side are joined with the other side"
_OUTER = "rows with touched keys are computed anew; changes of the kept side alone pass through"


def explain(session: SparkSession, text: str, policy: RefreshPolicy) -> list[str]:
    """Return the lines of EXPLAIN for a view's query.

    Raises:
        PySparkException: Spark's error, if it cannot analyse the query.
    """
    query = analyse(session, text)
    return [
        f"materialized view: REFRESH POLICY {policy.value}",
        f"refreshed {how_refreshed(query, policy)}",
        *(f"source {name}: columns {', '.join(columns) or '(none)'}" for name, columns in sorted(query.columns.items())),
        *(f"source {name}: no Delta table, its changes are not known" for name in query.unversioned),
        "operators:",
        *_operators(tree_of(query.normal), 1),
    ]


def how_refreshed(query: ViewQuery, policy: RefreshPolicy) -> str:
    """Return how a query is refreshed, and why."""
    if policy is RefreshPolicy.FULL:
        return "in full: REFRESH POLICY FULL"
    if query.obstacle:
        return f"in full: {query.obstacle}"
    root = tree_of(query.normal)
    added = mergeable(query.plans, root)
    if added is not None:
        names = ", ".join(str(output_of(root.plan)[at].name()) for at in added.keys)
        rest = "" if added.takes_deletions else "; after deletions and updates, the touched groups are computed anew"
        return f"incrementally: changes are added to {f'the groups by {names}' if names else 'the row'}{rest}"
    way = _without_partials(root)
    if partials_of(query.plans, root) is not None:
        least = cost.PARTIALS_BYTES // 1024**2
        return f"{way}; from partial results beside the view, to which changes are added, if its sources have {least} MB or more"
    return way


def _without_partials(root: Node) -> str:
    found = divided(root, {id_of(each): each for each in output_of(root.plan)})
    if found is None:
        return "incrementally: rows are added and deleted"
    node, keys = found
    names = ", ".join(str(outer.name()) for _, outer in keys)
    parts = "groups" if node.kind == "Aggregate" else "partitions"
    return f"incrementally: the touched {parts} by {names} are replaced"


def _operators(node: Node, depth: int) -> list[str]:
    lines = [f"{'  ' * depth}{_named(node)}: {_way(node)}"]
    return [*lines, *(line for child in node.children for line in _operators(child, depth + 1))]


def _named(node: Node) -> str:
    relation = relation_of(node.plan)
    if relation is not None:
        return f"table {relation.name}"
    if node.kind == "Join":
        return f"Join {kind(node.plan.joinType())}"
    if node.kind == "Aggregate":
        return f"Aggregate [{', '.join(str(each.sql()) for each in items_of(node.plan.groupingExpressions()))}]"
    return node.kind


def _way(node: Node) -> str:
    if node.kind == "Join":
        how = kind(node.plan.joinType())
        return _INNER if how in ("Inner", "Cross") else _OUTER if how in (*KEEPS_LEFT, "RightOuter", "FullOuter") else _WHOLE
    if node.kind == "Aggregate" and not items_of(node.plan.groupingExpressions()):
        return _WHOLE
    if node.kind == "Window" and not items_of(node.plan.partitionSpec()):
        return _WHOLE
    relation = relation_of(node.plan)
    if relation is not None:
        return "the version that the query names" if relation.is_pinned else "changes are read from its log"
    return _WAYS.get(node.kind, _WHOLE if node.children else "never changes")
