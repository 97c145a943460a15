"""Making a flow: what is checked before anything exists, and its record before and after its table is there.

1. All that can be checked is, and nothing is made (`preparation.prepare`).
2. The flow is reserved in the registry. A host that finds a reservation whose process has died undoes it, so no crash leaves
   a table that belongs to nobody.
3. `with_table` makes its tables, and completes its record.
4. The host starts it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import NameTakenError, SchemaError, UnsupportedError
from sqlext.execution.backlog.pacer import BacklogSettings
from sqlext.execution.delta import target
from sqlext.execution.flows.partition_keys import lossy
from sqlext.execution.flows.registry import FlowRecord, Records, without_case
from sqlext.execution.flows.state_choice import check_sessions, with_state
from sqlext.execution.state.mergeable import MergeableAggregate, is_by_session
from sqlext.execution.streaming import queries
from sqlext.execution.streaming.queries import QueryAnalysis
from sqlext.options import (
    BACKLOG_LAG_THRESHOLD,
    CHECKPOINT_INTERVAL_DURING_BACKLOG,
    PER_SOURCE,
    Level,
    Options,
    ValueText,
    resolve,
    texts_by_level,
)
from sqlext.plan.flow_spec import Column, FlowSpec, OperatorSpec, PrerequisiteSpec, SourceSpec, StreamSpec, key_columns
from sqlext.plan.job_graph import (
    FLOW_PROPERTY,
    QUALIFIES,
    FlowPlan,
    Key,
    MaintainedAggregate,
    Operator,
    OutputMode,
    Source,
    TableDefinition,
)
from sqlext.quoting import fold, quote_parts
from sqlext.spark import jvm, sessions, settings
from sqlext.spark.grouping_columns import grouping_columns
from sqlext.spark.storage import HadoopPath


@dataclass(frozen=True)
class FlowRequest:
    """What a statement wants: a flow into a table.

    Attributes:
        name: of the flow, as written; the current catalog and database complete it, and the table's name.
        table: as written.
        given: options, by level and key.
        definition: of the table to create; None: the table exists.
        properties: of the table to create.
        columns, by_name: of INSERT INTO.
        comment: of the flow.
        refresh: a flow that is there already goes on.
        replace: it takes the place of a flow that is there.
        query: `detect.normal_text` of the query.
        clauses: the same of the table's.
        listed: its column list, as `definition.listed` gives it.
    """

    name: tuple[str, ...]
    table: tuple[str, ...]
    plan: FlowPlan
    text: str
    given: Mapping[str, Mapping[str, str]]
    definition: TableDefinition | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    by_name: bool = False
    refresh: bool = False
    replace: bool = False
    if_not_exists: bool = False
    comment: str = ""
    query: str = ""
    clauses: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlowChecks:
    """What the checks of a flow have found out, so that it is found out once.

    Attributes:
        analysis: its queries.
        states: of each streaming query, as `state_of` gives it.
        durable: of each, as `queries.durable_because` gives it.
        table: the target, if it is there and the flow is to write into it.
        columns: of the query and that table.
    """

    analysis: QueryAnalysis
    states: tuple[tuple[MergeableAggregate | None, str | None], ...]
    durable: tuple[str | None, ...]
    table: target.Target | None = None
    columns: tuple[Column, ...] = ()


def same_name(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two qualified names are one in the session whose names are looked at."""
    return [fold(part) for part in one] == [fold(part) for part in other]


def existing(records: Records, request: FlowRequest, name: tuple[str, ...], table: tuple[str, ...]) -> FlowRecord | None:
    """The flow that a statement makes again: the one of its streaming table, or the one of CREATE FLOW's name.

    Args:
        name, table: the request's, qualified.
    """
    if request.definition is not None:
        return next((record for record in records.values() if same_name(record.spec.target, table)), None)
    return next((record for record in records.values() if same_name(record.spec.qualified_name, name)), None)


def check_free(records: Records, name: tuple[str, ...], table: tuple[str, ...], replaced: FlowRecord | None = None) -> None:
    """Raise NameTakenError when a flow other than `replaced` has the name, or writes to the table; both are qualified."""
    for record in records.values():
        if replaced is not None and record.spec.id == replaced.spec.id:
            continue
        if without_case(record.spec.qualified_name) == without_case(name):
            raise NameTakenError(
                f"There is a flow `{record.spec.name}` already, into {'.'.join(record.spec.target)}. Choose another name, or "
                "DROP FLOW it."
            )
        if same_name(record.spec.target, table):
            raise NameTakenError(
                f"The flow `{record.spec.name}` writes to {'.'.join(table)} already. Two flows into one target would undo "
                "each other's rows; choose another target, or DROP FLOW it."
            )


def check_query(session: SparkSession, plan: FlowPlan, records: Records, options: Options) -> QueryAnalysis:
    """Analyse a flow's queries.

    Args:
        options: of the flow.

    Raises:
        UnsupportedError: one cannot run as a stream, or it streams a table that a flow changes in place.
    """
    parts = [relation.name for hybrid in plan.hybrids for relation in hybrid.relations if relation.name]
    for written in (*(source.name for source in plan.graph.streams), *parts):
        name = target.qualified(session, written)
        maker = next((record.spec for record in records.values() if same_name(record.spec.target, name)), None)
        if maker is not None and maker.changes_rows:
            raise UnsupportedError(
                f"The stream {'.'.join(name)} is kept up to date by flow `{maker.name}`, which changes rows; a stream of it "
                "would see only appends and fail at the first change. Read its change feed: set delta.enableChangeDataFeed "
                "on it and make a streaming view over readStream with readChangeFeed, or query the table without STREAM."
            )
    analysis = queries.analyse(session, plan)
    for frame in analysis.streams:
        if not frame.isStreaming:
            raise UnsupportedError("The query reads no stream. Write FROM STREAM t to read t as one.")
        if is_by_session(frame):
            check_sessions(frame, options)
        else:
            jvm.check_streaming(frame, plan.output_mode)
            jvm.check_subqueries(frame)
        if plan.output_mode is OutputMode.UPDATE:
            grouping_columns(frame)  # refuses a key that is not shown
    queries.check_types(session, plan, analysis)
    return analysis


def check_definition(request: FlowRequest, analysis: QueryAnalysis) -> None:
    """Before anything is touched, see whether a streaming table's table can have the query's columns; SchemaError if not."""
    if request.definition is None:
        return
    output = analysis.output.drop(QUALIFIES)
    if request.definition.columns:
        _refuse_names_of_one_spelling(output.columns)
    target.check_names([column.name for column in request.definition.columns] or output.columns, request.properties)
    has_key = request.plan.output_mode is OutputMode.UPDATE and not request.plan.above
    key = grouping_columns(analysis.streams[0]) if has_key else ()
    target.check_column_list(output, request.definition.columns, key)


def check_place(session: SparkSession, request: FlowRequest, name: tuple[str, ...]) -> None:
    """Raise NameTakenError when a streaming table's table is there, unless it is to be replaced and a flow made it."""
    if request.definition is None or not target.exists(session, name):
        return
    is_left = FLOW_PROPERTY in target.describe(session, name).properties
    if not (request.replace and is_left):
        advice = "CREATE OR REPLACE STREAMING TABLE makes it anew" if is_left else "DROP TABLE it"
        left = ", which a flow made that is gone" if is_left else ""
        raise NameTakenError(
            f"There is a table {'.'.join(name)} already{left}. {advice}, choose another name, or feed it with INSERT INTO."
        )


def reserve(
    session: SparkSession,
    request: FlowRequest,
    full_name: tuple[str, ...],
    name: tuple[str, ...],
    replaced: FlowRecord | None = None,
) -> FlowSpec:
    """The flow as it is recorded before its table exists.

    Args:
        full_name, name: of the flow and of its target, qualified.
        replaced: whose place it takes.

    Its location is that of a managed table to be made, when nothing lies there yet: all that is found there later came from
    the making.
    """
    plan = request.plan
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
        sources=sources_of(plan),
        hybrids=plan.hybrids,
        owns_target=request.definition is not None,
        replaces_table=request.definition is not None and target.exists(session, name),
        not_idempotent_because=plan.not_idempotent_because or "",
        given=dict(request.given),
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
    )


def sources_of(plan: FlowPlan) -> tuple[SourceSpec, ...]:
    """The record of a plan's streams."""
    return tuple(SourceSpec(fold(source.alias), source.name, texts_by_level(_own(source))) for source in plan.graph.streams)


def backlog_of(spark: SparkSession, spec: FlowSpec) -> dict[str, BacklogSettings]:
    """What is asked of each of a flow's streams, by alias."""
    found: dict[str, BacklogSettings] = {}
    for source in spec.sources:
        options = resolve(spec.levels_of(source), lambda text: jvm.parse_duration(spark, text))
        found[source.alias] = BacklogSettings(options[CHECKPOINT_INTERVAL_DURING_BACKLOG], options[BACKLOG_LAG_THRESHOLD])
    return found


def _operator(operator: Operator) -> OperatorSpec:
    stream = fold(operator.source.alias) if operator.source and operator.source.is_stream else ""
    return OperatorSpec(operator.kind, operator.detail, operator.inputs, stream)


def _own(source: Source) -> dict[Level, dict[str, ValueText]]:
    """The options that are this stream's alone."""
    return {level: {k: v for k, v in values.items() if k in PER_SOURCE} for level, values in source.options.items()}


def with_table(session: SparkSession, spec: FlowSpec, request: FlowRequest, checks: FlowChecks, home: HadoopPath) -> FlowSpec:
    """Make the flow's tables, and complete its record.

    Args:
        home: the flow's folder; maintained aggregates lie there, and partial results.
    """
    table, columns = checks.table, checks.columns
    if table is None:
        if request.definition is None:
            raise AssertionError("only a streaming table has no table before its flow")
        properties = {**request.properties, FLOW_PROPERTY: spec.id}
        output = checks.analysis.output.drop(QUALIFIES).schema
        table = target.create(session, spec.target, output, request.definition, properties, request.replace)
        pairs = zip(output.names, table.columns.items(), strict=True)
        columns = tuple(Column(name, column, kind) for name, (column, kind) in pairs)
    lost = set() if request.plan.above else {*lossy(session, table.location, columns)}
    each = zip(request.plan.queries, checks.analysis.streams, checks.durable, checks.states, strict=True)
    streams = tuple(
        with_state(
            _stream(session, request.plan, query, frame, columns, durable, target.home_of(home, query.name)),
            *state,
            target.home_of(home, query.name),
            not query.writes_target or request.definition is not None,
            lost,
        )
        for query, frame, durable, state in each
    )
    return replace(
        spec,
        target=table.name,
        target_location=table.location,
        target_id=table.table_id,
        streams=streams,
        columns=columns,
    )


def _stream(
    session: SparkSession,
    plan: FlowPlan,
    query: MaintainedAggregate,
    frame: DataFrame,
    columns: tuple[Column, ...],
    durable_because: str | None,
    home: HadoopPath,
) -> StreamSpec:
    """The record of one streaming query; a maintained aggregate gets its table."""
    if not query.writes_target:
        columns = tuple(Column(c.name, c.name, target.ddl_of(c.dataType)) for c in frame.schema)
        target.create_at(session, target.table_in(home), frame.schema)
    return StreamSpec(
        relation=query.name,
        sql=query.sql,
        output_mode=plan.output_mode,
        key=key_of(plan, frame, columns),
        columns=columns,
        has_qualifies=QUALIFIES in frame.columns,
        durable_because=durable_because or "",
    )


def key_of(plan: FlowPlan, frame: DataFrame, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """The table's columns that identify a row of a streaming query, by Spark's analysis; none for a query above others."""
    if plan.output_mode is not OutputMode.UPDATE:
        return ()
    return key_columns(Key(grouping_columns(frame)), columns)


def refuse_rows_of_others(session: SparkSession, request: FlowRequest, name: tuple[str, ...]) -> None:
    """An aggregate without GROUP BY keeps one row, which has no key to tell it from others."""
    if session.table(quote_parts(name)).take(1):
        raise UnsupportedError(
            f"This aggregate has no GROUP BY, so it keeps one row, and {'.'.join(request.table)} holds others already. Give "
            "it an empty table, or write CREATE STREAMING TABLE .. AS."
        )


def _refuse_names_of_one_spelling(names: Sequence[str]) -> None:
    """Delta's tables, those of a flow's state too, do not tell columns apart that differ by case."""
    spelt: dict[str, str] = {}
    for name in names:
        other = spelt.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(
                f"The query's columns `{other}` and `{name}` differ by case only, and Delta does not tell such columns apart. "
                "Give one another name in the query: .. AS name."
            )


def refuse_doubled_keys(request: FlowRequest, output: DataFrame) -> None:
    """Columns go into a table that is there by their places, but a key is found by its name."""
    names = [fold(name) for name in output.columns]
    doubled = {name for name in names if names.count(name) > 1}
    key = request.plan.key
    found = doubled if key.all_but else doubled & {fold(name) for name in key.columns}
    if found and request.plan.output_mode is OutputMode.UPDATE:
        raise SchemaError(
            f"Several columns of the query are called `{min(found)}`, so it is not clear which is the key. Give each a name of "
            "its own: .. AS name."
        )


def refuse_to_replace(request: FlowRequest) -> None:
    if request.plan.above:
        raise UnsupportedError(
            f"The result of this query replaces all rows of its table at each flush, and {'.'.join(request.table)} may hold "
            "others. Write CREATE STREAMING TABLE .. AS instead."
        )
