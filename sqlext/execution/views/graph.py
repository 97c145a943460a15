"""The graph of all flows and materialized views of a home, from their registries."""

from __future__ import annotations

from collections.abc import Mapping

from sqlext.execution.flows.registry import FlowRecord, current
from sqlext.execution.views.registry import ViewRecord, created
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.lineage import Input, Lineage, Node, NodeKind
from sqlext.plan.view_spec import ViewSpec


def lineage_of(flows: Mapping[str, FlowRecord], views: Mapping[str, ViewRecord]) -> Lineage:
    """Return the graph.

    Args:
        flows, views: the records, by id; views that are only being created, and flows that others have replaced, are left out.
    """
    kept = [node_of_flow(record.spec) for record in current(flows)]
    return Lineage([*kept, *(node_of_view(record.spec) for record in created(views).values())])


def node_of_flow(spec: FlowSpec) -> Node:
    """Return the node of a flow: its table."""
    kind = NodeKind.STREAMING_TABLE if spec.owns_target else NodeKind.INSERT
    key = Input(spec.target, spec.target_location).key
    return Node(key, spec.target, kind, spec.reads, spec.id, spec.qualified_name)


def node_of_view(spec: ViewSpec) -> Node:
    """Return the node of a materialized view."""
    return Node(Input(spec.name, spec.location).key, spec.name, NodeKind.VIEW, spec.reads, spec.id, spec.name)
