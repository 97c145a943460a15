"""Making a flow: what is checked before anything exists, and its record before and after its table is there.

1. All that can be checked is, and nothing is made (`preparation.prepare`).
2. The flow is reserved in the registry. A host that finds a reservation whose process has died undoes it, so no crash leaves
   a table that belongs to nobody.
3. `with_table` makes its tables, and completes its record.
4. The host starts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from sqlext.errors import NameTakenError, UnsupportedError
from sqlext.execution.coordination.lease import DEAD_AFTER_SECONDS
from sqlext.execution.delta import quarantine, table_definition, target
from sqlext.execution.flows.analysis import AnalysedFlow, AnalysedQuery
from sqlext.execution.flows.partition_keys import lossy
from sqlext.execution.flows.registry import FlowRecord, FlowState, Records, without_case
from sqlext.execution.flows.state_choice import with_state
from sqlext.options import texts_by_level
from sqlext.plan.constraints import Constraint, quarantines
from sqlext.plan.flow_spec import Column, FlowSpec, OperatorSpec, PrerequisiteSpec, SourceSpec, StreamSpec, key_columns
from sqlext.plan.job_graph import FLOW_PROPERTY, QUALIFIES, SHARED_PROPERTY, FlowPlan, Key, Operator, TableDefinition
from sqlext.plan.lineage import Input, Lineage, Node, NodeKind
from sqlext.quoting import fold, quote_parts
from sqlext.spark import jvm, sessions, settings
from sqlext.spark.storage import HadoopPath


@dataclass(frozen=True)
class FlowRequest:
    """What a statement wants: a flow into a table.

    Attributes:
        name: of the flow, as written; the current catalog and database complete it, and the table's name.
        table: as written.
        flow: its plan, analysed.
        definition: of the table to create; None: the table exists.
        properties: of the table to create.
        columns, by_name: of INSERT INTO.
        comment: of the flow.
        refresh: a flow that is there already goes on.
        replace: it takes the place of a flow that is there.
        adopts: its table is there, declared without a query, and the flow makes it anew.
        query: `detect.normal_text` of the query.
        clauses: the same of the table's.
        listed: its column list, as `definition.listed` gives it.
        constraints: on the rows of the table.
        lineage: returns the graph in which the flow's table must not be made of itself; None: nobody looks.
    """

    name: tuple[str, ...]
    table: tuple[str, ...]
    flow: AnalysedFlow
    text: str
    definition: TableDefinition | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    by_name: bool = False
    refresh: bool = False
    replace: bool = False
    adopts: bool = False
    if_not_exists: bool = False
    comment: str = ""
    query: str = ""
    clauses: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    lineage: Callable[[], Lineage] | None = None

    @property
    def plan(self) -> FlowPlan:
        """The flow's plan."""
        return self.flow.plan

    @property
    def appends(self) -> bool:
        """Whether it appends rows to a table that is there."""
        return self.definition is None and self.plan.appends

    @property
    def session(self) -> SparkSession:
        """The flow's own session."""
        return self.flow.session

    @property
    def given(self) -> Mapping[str, Mapping[str, str]]:
        """The options as given, by level and key, to be recorded."""
        return texts_by_level(self.flow.options.given)


@dataclass(frozen=True)
class Destination:
    """A table that is there already, and how the query's columns go into it."""

    table: target.Target
    columns: tuple[Column, ...]


def same_name(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two qualified names are one in the session whose names are looked at."""
    return [fold(part) for part in one] == [fold(part) for part in other]


def existing(records: Records, request: FlowRequest, name: tuple[str, ...], table: tuple[str, ...]) -> FlowRecord | None:
    """Return the existing flow that a statement would create: that of its streaming table, or of CREATE FLOW's name.

    Args:
        name, table: the request's, qualified.

    Raises:
        NameTakenError: it is just being created, or what comes in its place is.
    """
    if request.definition is not None:
        found = [record for record in records.values() if record.spec.owns_target and same_name(record.spec.target, table)]
    else:
        found = [record for record in records.values() if same_name(record.spec.qualified_name, name)]
    for record in found:
        _refuse_reserved(record)
    return next(iter(found), None)


def _refuse_reserved(record: FlowRecord) -> None:
    if record.state is FlowState.RESERVED:
        raise NameTakenError(
            f"The flow `{record.spec.name}` is just being created, by another statement. Try again when that has ended; if its "
            f"process has died, after {DEAD_AFTER_SECONDS:.0f} s."
        )


def check_free(
    records: Records, name: tuple[str, ...], table: tuple[str, ...], appends: bool, replaced: FlowRecord | None = None
) -> None:
    """See that a flow can have its name, and write to its table; flows that only append may share one.

    Args:
        records: of all flows.
        name, table: the flow's, qualified.
        appends: whether it appends to a table that is there.
        replaced: the flow whose place it takes.

    Raises:
        NameTakenError: another flow has the name, or writes to the table.
    """
    for record in records.values():
        if replaced is not None and record.spec.id == replaced.spec.id:
            continue
        if without_case(record.spec.qualified_name) == without_case(name):
            _refuse_reserved(record)
            raise NameTakenError(
                f"There is a flow `{record.spec.name}` already, into {'.'.join(record.spec.target)}. Choose another name, or "
                "DROP FLOW it."
            )
        if same_name(record.spec.target, table) and not (appends and record.spec.appends):
            _refuse_reserved(record)
            raise NameTakenError(
                f"The flow `{record.spec.name}` writes to {'.'.join(table)} already. Only flows that append rows share a table: "
                "others, and a statement that makes it anew, would undo each other's rows. Choose another, or DROP FLOW it."
            )


def check_sources(request: FlowRequest, records: Records) -> None:
    """Raise UnsupportedError when a flow streams a table that a flow changes in place."""
    parts = [relation.name for hybrid in request.plan.hybrids for relation in hybrid.relations if relation.name]
    for written in (*(source.name for source in request.plan.graph.streams), *parts):
        name = target.qualified(request.session, written)
        makers = (record.spec for record in records.values() if same_name(record.spec.target, name))
        maker = next((spec for spec in makers if spec.changes_rows), None)
        if maker is not None:
            raise UnsupportedError(
                f"The stream {'.'.join(name)} is kept up to date by flow `{maker.name}`, which changes rows; a stream of it "
                "would see only appends and fail at the first change. A CREATE MATERIALIZED VIEW over the table follows its "
                "changes."
            )


def check_cycle(request: FlowRequest) -> None:
    """Raise UnsupportedError when a flow's table would be made of itself, directly or through other flows and views."""
    if request.lineage is None:
        return
    name = target.qualified(request.session, request.table)
    key = Input(name, target.place_of(request.session, name) or "").key
    kind = NodeKind.INSERT if request.definition is None else NodeKind.STREAMING_TABLE
    request.lineage().refuse_cycle(Node(key, name, kind, request.flow.inputs))


def check_definition(request: FlowRequest) -> None:
    """Before anything is touched, see whether a streaming table's table can have the query's columns; SchemaError if not."""
    if request.definition is None:
        return
    output = request.flow.output.drop(QUALIFIES)
    if request.definition.columns:
        target.check_spelling(output.columns)
    target.check_names([column.name for column in request.definition.columns] or output.columns, request.properties)
    capture = request.plan.capture
    if capture is None:
        key = () if request.plan.above else request.flow.queries[0].key
    else:
        named = {fold(each.text) for each in capture.keys}
        key = tuple(name for name in output.columns if fold(name) in named)
    target.check_column_list(output, request.definition.columns, key)


def check_place(request: FlowRequest, name: tuple[str, ...]) -> None:
    """Raise NameTakenError when a streaming table's table is there, unless it is to be replaced and a flow made it."""
    if request.definition is None or request.adopts or not target.exists(request.session, name):
        return
    is_left = FLOW_PROPERTY in target.describe(request.session, name).properties
    if not (request.replace and is_left):
        advice = "CREATE OR REPLACE STREAMING TABLE recreates it" if is_left else "DROP TABLE it"
        left = ", which a flow made that is gone" if is_left else ""
        raise NameTakenError(
            f"There is a table {'.'.join(name)} already{left}. {advice}, choose another name, or feed it with INSERT INTO."
        )


def reserve(
    request: FlowRequest,
    full_name: tuple[str, ...],
    name: tuple[str, ...],
    constraints: tuple[Constraint, ...],
    replaced: FlowRecord | None = None,
) -> FlowSpec:
    """Return the record of a flow before its table exists.

    Args:
        full_name, name: of the flow and of its target, qualified.
        constraints: on the rows of the target, as the record is to have them.
        replaced: whose place it takes.

    Its location is that of a managed table to be made, when nothing lies there yet: all that is found there later came from
    the making.
    """
    plan, session = request.plan, request.session
    location: str | None = None
    if request.definition is not None and not target.exists(session, name):
        has_place = any(clause[:8].upper() == "LOCATION" for clause in request.definition.clauses)
        location = None if has_place else jvm.default_location(session, name)
        location = None if location and HadoopPath(session, location).names() else location
    return FlowSpec(
        id=uuid.uuid4().hex,
        name=full_name[-1],
        target=name,
        target_location=location or "",
        target_id="",
        text=request.text,
        streams=(),
        above=plan.above,
        prerequisites=tuple(PrerequisiteSpec(each.name, each.sql, each.after) for each in plan.prerequisites),
        operators=tuple(_operator(operator) for operator in plan.graph.operators),
        sources=sources_of(request),
        hybrids=plan.hybrids,
        reads=request.flow.inputs,
        owns_target=request.definition is not None,
        replaces_table=request.definition is not None and target.exists(session, name),
        not_idempotent_because=plan.not_idempotent_because or "",
        given=request.given,
        catalog=session.catalog.currentCatalog(),
        database=session.catalog.currentDatabase(),
        settings=settings.recorded(session),
        variables=sessions.variables_of(session, plan.references),
        session_bound=sessions.bound_to(session, plan.references),
        comment=request.comment,
        full_name=full_name,
        query=request.query,
        clauses=request.clauses,
        listed=request.listed,
        replaces="" if replaced is None else replaced.spec.id,
        constraints=constraints,
        runs_once=plan.runs_once,
    )


def sources_of(request: FlowRequest) -> tuple[SourceSpec, ...]:
    """Return the record of a flow's streams."""
    each = zip(request.plan.graph.streams, request.flow.options.own, strict=True)
    return tuple(SourceSpec(fold(source.alias), source.name, texts_by_level(own)) for source, own in each)


def _operator(operator: Operator) -> OperatorSpec:
    stream = fold(operator.source.alias) if operator.source and operator.source.is_stream else ""
    return OperatorSpec(operator.kind, operator.detail, operator.inputs, stream)


def with_table(spec: FlowSpec, request: FlowRequest, destination: Destination | None, home: HadoopPath) -> FlowSpec:
    """Make the flow's tables, and complete its record.

    Args:
        destination: the table that is there; None: the statement's definition makes one.
        home: the flow's folder; maintained aggregates lie there, and partial results.
    """
    session = request.session
    table, columns = (destination.table, destination.columns) if destination else _new_table(spec, request)
    lost = set() if request.plan.above else {*lossy(session, table.location, columns)}
    streams = tuple(
        with_state(
            stream_of(session, request.plan, query, columns, target.home_of(home, query.name)),
            query.aggregate,
            query.rocksdb_because,
            target.home_of(home, query.name),
            not query.writes_target or request.definition is not None,
            query.writes_target and bool(spec.constraints),
            lost,
        )
        for query in request.flow.queries
    )
    made = replace(
        spec,
        target=table.name,
        target_location=table.location,
        target_id=table.table_id,
        streams=streams,
        columns=columns,
        above_by=_parts_of(session, request.plan, streams, table.location, columns),
    )
    create_quarantines(session, made)
    if destination is not None and FLOW_PROPERTY in table.properties and SHARED_PROPERTY not in table.properties:
        target.alter(session, table.name, {SHARED_PROPERTY: "true"}, (), None)
    return made


def _parts_of(
    session: SparkSession, plan: FlowPlan, streams: Sequence[StreamSpec], location: str, columns: Sequence[Column]
) -> tuple[Column, ...]:
    """Return the columns by whose values the query above is evaluated in parts, if the target keeps all of these values."""
    own = {fold(name): column for name, column in plan.above_by.items()}
    written = [column for column in columns if fold(column.output) in own]
    by = tuple(replace(column, output=own[fold(column.output)]) for column in written)
    kinds = [{column.target: column.type for column in stream.columns} for stream in streams]
    is_kept = all(kind.get(column.output) == column.type for column in by for kind in kinds)
    return by if len(by) == len(own) and is_kept and not lossy(session, location, written) else ()


def create_quarantines(session: SparkSession, spec: FlowSpec) -> None:
    """Create the tables of a flow's quarantined rows that are not there yet."""
    for name in quarantines(spec.constraints):
        quarantine.create(session, name, {column.target: column.type for column in spec.columns}, spec.id)


def _new_table(spec: FlowSpec, request: FlowRequest) -> tuple[target.Target, tuple[Column, ...]]:
    if request.definition is None:
        raise AssertionError("only a streaming table has no table before its flow")
    properties = {**request.properties, FLOW_PROPERTY: spec.id}
    output = request.flow.output.drop(QUALIFIES).schema
    table = table_definition.create(
        request.session, spec.target, output, request.definition, properties, request.replace or request.adopts
    )
    pairs = zip(output.names, table.columns.items(), strict=True)
    return table, tuple(Column(name, column, kind) for name, (column, kind) in pairs)


def stream_of(
    session: SparkSession, plan: FlowPlan, query: AnalysedQuery, columns: tuple[Column, ...], home: HadoopPath
) -> StreamSpec:
    """Return the record of one streaming query; a maintained aggregate gets its table."""
    if not query.writes_target:
        columns = tuple(Column(c.name, c.name, target.ddl_of(c.dataType)) for c in query.frame.schema)
        target.create_at(session, target.table_in(home), query.frame.schema)
    return StreamSpec(
        relation=query.name,
        sql=query.sql,
        output_mode=plan.output_mode,
        key=key_of(query, columns),
        columns=columns,
        has_qualifies=QUALIFIES in query.frame.columns,
        durable_because=query.durable_because or "",
        ttl=query.ttl,
    )


def key_of(query: AnalysedQuery, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Return the table's columns that identify a row of a streaming query."""
    return key_columns(Key(query.key), columns)


def refuse_rows_of_others(request: FlowRequest, name: tuple[str, ...]) -> None:
    """Refuse a table with rows for an aggregate without GROUP BY: its one row has no key to distinguish it from others."""
    if request.session.table(quote_parts(name)).take(1):
        raise UnsupportedError(
            f"This aggregate has no GROUP BY, so it keeps one row, and {'.'.join(request.table)} holds others already. Give "
            "it an empty table, or write CREATE STREAMING TABLE .. AS."
        )


def refuse_to_replace(request: FlowRequest) -> None:
    """Refuse a query above its aggregates for an existing table, all of whose rows it would replace."""
    if request.plan.above:
        raise UnsupportedError(
            f"The result of this query replaces all rows of its table at each flush, and {'.'.join(request.table)} may hold "
            "others. Write CREATE STREAMING TABLE .. AS instead."
        )
