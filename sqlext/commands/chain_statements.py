"""Statements along the graph: SHOW LINEAGE, SHOW FLOWS, DROP and STOP of what others read, WAIT for what a table is made of."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.commands import flow_tables, streaming_tables, view_statements
from sqlext.commands.answers import Table
from sqlext.errors import DependentsError, FlowError, NotFoundError, UnsupportedError, did_you_mean
from sqlext.execution.delta import target
from sqlext.execution.flows.registry import FlowRecord, FlowState
from sqlext.execution.host import Host
from sqlext.plan.lineage import Keeper, Lineage, Node, NodeKind, shown
from sqlext.plan.view_spec import RefreshReport
from sqlext.sql.statements import DropMaterializedView, DropStreamingTable

_LINEAGE = {
    "source": "STRING",
    "source_kind": "STRING",
    "target": "STRING",
    "target_kind": "STRING",
    "layer": "INT",
    "is_stream": "BOOLEAN",
    "version": "BIGINT",
    "rows": "BIGINT",
    "keeper": "STRING",
}


def show(host: Host, name: tuple[str, ...]) -> Table:
    """SHOW LINEAGE [OF t]: a row for each relation that a flow or view reads.

    Args:
        host: of this process.
        name: of a table, qualified; empty: all tables.

    Raises:
        NotFoundError: no flow or view keeps or reads a table of that name.
    """
    lineage = host.views.lineage()
    keys = set(lineage.nodes)
    if name:
        key = _found(lineage, name).key
        keys = {key, *lineage.upstream([key]), *lineage.downstream([key])}
    reports = {row.record.spec.id: row.status.report for row in host.views.views(looks=False)}
    kept = (node for key, node in lineage.nodes.items() if key in keys and node.id)
    return Table(_LINEAGE, [row for node in kept for row in _edges(lineage, node, keys, reports.get(node.id))])


def _edges(lineage: Lineage, node: Node, keys: Set[str], report: RefreshReport | None) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each relation that a node reads and that is among `keys`; one without a source if it reads nothing."""
    kept = {"target": node.shown, "target_kind": node.kind.value, "layer": lineage.layers[node.key], "keeper": shown(node.keeper)}
    if not node.inputs:
        yield {**kept, "is_stream": False}
    for read in node.inputs:
        source = lineage.nodes[lineage.key_of(read)]
        name = ".".join(read.name)
        version = None if report is None else report.sources.get(name)
        if source.key in keys:
            yield {
                "source": source.shown,
                "source_kind": source.kind.value,
                **kept,
                "is_stream": read.is_stream,
                "version": None if version is None else version.version,
                "rows": None if report is None else report.read.get(name),
            }


def _found(lineage: Lineage, name: tuple[str, ...]) -> Node:
    node = lineage.node_of(name)
    if node is None:
        known = [each.name[-1] for each in lineage.nodes.values()]
        raise NotFoundError(
            f"No flow or materialized view keeps or reads a table {shown(name)}.{did_you_mean(name[-1], known)} SHOW LINEAGE "
            "lists them all."
        )
    return node


def flows(host: Host) -> Table:
    """SHOW FLOWS: all flows and views, each with the table above it that could not be brought up to date."""
    found, views = host.flows.views(), host.views.views(looks=False)
    failed = {each.record.spec.id for each in found if each.record.has_failed}
    waits = host.views.lineage().waits_for(failed | {each.record.spec.id for each in views if each.status.error})
    return flow_tables.flows(found, waits, view_statements.as_flows(views))


# What reads a table.


@dataclass(frozen=True)
class _Reader:
    """What reads a table.

    Attributes:
        node: the table that it keeps.
        keepers: the view, or those of the table's flows that read.
        is_whole: whether the table would not be kept any more without them.
    """

    node: Node
    keepers: tuple[Keeper, ...]
    is_whole: bool

    @property
    def text(self) -> str:
        """The name for people."""
        if self.is_whole:
            return f"{self.node.kind.value} {self.node.shown}"
        return ", ".join(f"flow {shown(name)}" for _, name in self.keepers)


def drop(spark: SparkSession, host: Host, statement: DropMaterializedView | DropStreamingTable) -> str:
    """Drop a view or a streaming table; with CASCADE, first all that reads it, the last ones first.

    Raises:
        DependentsError: others read it, and CASCADE is not said.
    """
    name = target.qualified(spark, statement.name)
    lineage = host.views.lineage()
    node = lineage.node_of(name)
    if node is not None and node.id:
        _refuse_other_kind(spark, host, statement, node)
    readers = _readers(host, lineage, node, drops=True)  # none, if it is not kept here: the drop itself says what it is
    table = [] if node is None or node.kind is not NodeKind.STREAMING_TABLE else [*node.keepers]
    writers = [each for _, each in table[1:]]
    kind = "MATERIALIZED VIEW" if isinstance(statement, DropMaterializedView) else "STREAMING TABLE"
    if readers and not statement.cascade:
        raise DependentsError(
            f"{_list(readers)} {_verb(readers, 'reads', 'read')} {shown(name)}, and could not be kept up to date without it. "
            f"DROP {kind} {shown(name)} CASCADE drops {_verb(readers, 'it', 'them')}, too."
        )
    if writers and not statement.cascade:
        flows = ", ".join(f"flow {shown(each)}" for each in writers)
        raise DependentsError(
            f"Into {shown(name)} others append, too: {flows}. DROP {kind} {shown(name)} CASCADE drops their flows with it."
        )
    _refuse_elsewhere(host, [*table, *(keeper for each in readers for keeper in each.keepers)])
    said = [text for each in reversed(readers) for text in _drop(spark, host, each)]
    said += [host.flows.drop(each, if_exists=True) for each in writers]
    if isinstance(statement, DropMaterializedView):
        return "; ".join([*said, host.views.drop(spark, name, statement.if_exists)])
    return "; ".join([*said, streaming_tables.drop(spark, host, name, statement.if_exists)])


def _refuse_other_kind(spark: SparkSession, host: Host, statement: DropMaterializedView | DropStreamingTable, node: Node) -> None:
    """Raise UnsupportedError where the statement is of the other kind than the table, before it drops what reads that."""
    if isinstance(statement, DropMaterializedView) and node.kind is not NodeKind.VIEW:
        raise UnsupportedError(f"{node.shown} is no materialized view: flows write it. DROP STREAMING TABLE or DROP FLOW.")
    if isinstance(statement, DropStreamingTable) and node.kind is NodeKind.VIEW:
        raise UnsupportedError(f"{node.shown} is no streaming table, but a materialized view. DROP MATERIALIZED VIEW drops it.")
    if node.kind is NodeKind.INSERT and target.exists(spark, node.name):
        streaming_tables.refuse_other_table(spark, host, node.name)


def _refuse_elsewhere(host: Host, keepers: list[Keeper]) -> None:
    """Refuse to drop a flow that another process runs, before anything is dropped."""
    records = host.flows.records()
    for record in (records[each] for each, _ in keepers if each in records):
        host.flows.here(record)


def _drop(spark: SparkSession, host: Host, reader: _Reader) -> Iterator[str]:
    node = reader.node
    if node.kind is NodeKind.VIEW:
        yield host.views.drop(spark, node.keeper, if_exists=True)
        return
    goes = node.kind is NodeKind.STREAMING_TABLE and reader.is_whole
    for _, name in reader.keepers[1:] if goes else reader.keepers:
        yield host.flows.drop(name, if_exists=True)
    if goes:
        yield streaming_tables.drop(spark, host, node.name, if_exists=True)


def stop(host: Host, name: tuple[str, ...], cascade: bool, canceled: threading.Event) -> str:
    """Stop a flow, or the refreshes of a view; with CASCADE, also all that reads its table. Tell who that is.

    Args:
        host: of this process.
        name: of the flow or view, qualified.
        cascade: whether to stop the others.
        canceled: set when the client takes the statement back.
    """
    lineage = host.views.lineage()
    said = [_stop(host, NodeKind.VIEW if host.views.has(name) else NodeKind.INSERT, name, canceled)]
    readers = _readers(host, lineage, lineage.kept_by(name), drops=False)
    if cascade:
        kept = [(each.node.kind, keeper) for each in readers for keeper in each.keepers]
        said += [_stop(host, kind, keeper, canceled) for kind, (key, keeper) in kept if _runs(host, kind, key, keeper)]
    elif readers:
        said.append(
            f"{_list(readers)} {_verb(readers, 'reads', 'read')} its table, which stays as it is; CASCADE stops these, too"
        )
    return "; ".join(said)


def _stop(host: Host, kind: NodeKind, name: tuple[str, ...], canceled: threading.Event) -> str:
    if kind is NodeKind.VIEW:
        return host.views.suspend(name, is_stopped=True)
    return host.flows.stop(name, canceled)


def _runs(host: Host, kind: NodeKind, key: str, name: tuple[str, ...]) -> bool:
    """Return whether a flow runs, or a view has a schedule that was not stopped."""
    if kind is NodeKind.VIEW:
        return not host.views.record(name).spec.schedule.is_by_hand
    record = host.flows.records().get(key)
    return record is not None and record.is_active


def _readers(host: Host, lineage: Lineage, node: Node | None, drops: bool) -> list[_Reader]:
    """Return what reads a table, directly or through others; not through a table that other flows go on to fill.

    Args:
        drops: whether a streaming table goes with its own flow, and all others into it with the table.
    """
    if node is None or not node.id:
        return []
    records, reached, found = host.flows.records(), {node.key}, []
    for each in (lineage.nodes[key] for key in lineage.downstream([node.key])):
        if each.kind is NodeKind.VIEW:
            keepers = each.keepers if reached.intersection(lineage.inputs(each.key)) else ()
        else:
            of_flows = [(keeper, records[keeper[0]].spec.reads) for keeper in each.keepers if keeper[0] in records]
            keepers = tuple(keeper for keeper, reads in of_flows if reached.intersection(map(lineage.key_of, reads)))
            if drops and each.kind is NodeKind.STREAMING_TABLE and each.keepers[0] in keepers:
                keepers = each.keepers
        is_whole = keepers == each.keepers
        if keepers:
            found.append(_Reader(each, keepers, is_whole))
        if keepers and is_whole:
            reached.add(each.key)
    return found


def _list(readers: list[_Reader]) -> str:
    return ", ".join(each.text for each in readers)


def _verb(readers: list[_Reader], one: str, several: str) -> str:
    return one if sum(1 if each.is_whole else len(each.keepers) for each in readers) == 1 else several


# What a table is made of.


def wait(host: Host, name: tuple[str, ...], timeout: timedelta, canceled: threading.Event) -> str:
    """Return when all that has arrived in the first sources is in a table: what it is made of is brought up to date before it.

    Args:
        host: of this process.
        name: of the flow or view that keeps it, qualified.
        timeout: how long to wait.
        canceled: set when the client takes the statement back.

    Raises:
        FlowError: a flow on the way has failed, or runs in another process.
        WaitTimeoutError: the time is up.
    """
    lineage, deadline = host.views.lineage(), Deadline(timeout.total_seconds())
    is_view = host.views.has(name)
    node = lineage.kept_by(name)
    stopped = []
    for key in [] if node is None else lineage.upstream([node.key]):
        above = lineage.nodes[key]
        records = host.flows.records()
        for record in (records[each] for each, _ in above.keepers if each in records):
            if _takes_in(record, shown(name)):
                host.flows.wait(record.spec.qualified_name, timedelta(seconds=max(deadline.left, 0.001)))
            elif record.state is not FlowState.DONE:
                stopped.append(record.spec.name)
        if above.kind is NodeKind.VIEW and not is_view:
            host.views.wait(above.keeper, max(deadline.left, 0.001), canceled)
    left = max(deadline.left, 0.001)
    said = host.views.wait(name, left, canceled) if is_view else host.flows.wait(name, timedelta(seconds=left))
    return f"{said}; {', '.join(stopped)} {'is' if len(stopped) == 1 else 'are'} stopped" if stopped else said


def _takes_in(record: FlowRecord, name: str) -> bool:
    """Return whether a flow takes in what arrives, or was stopped; raise FlowError if it should, and does not."""
    if record.state in (FlowState.FAILED, FlowState.RETRYING):
        raise FlowError(f"{name} waits for flow `{record.spec.name}`, which has failed: {record.error}")
    return record.state is FlowState.RUNNING
