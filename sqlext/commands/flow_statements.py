"""CREATE STREAMING TABLE, INSERT INTO and CREATE FLOW as flows: analysed, then created, explained, or recreated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sqlext.commands import change_statements, kept_columns
from sqlext.commands.answers import Answer, SparkStatement, Table, whole_command
from sqlext.commands.bounded_statements import without_clauses
from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows import constraint_checks
from sqlext.execution.flows.added_streams import widened
from sqlext.execution.flows.analysis import AnalysedFlow, analyse_flow
from sqlext.execution.flows.creation import FlowRequest, check_cycle, check_definition, check_sources
from sqlext.execution.flows.definition import listed
from sqlext.execution.flows.file_columns import may_grow
from sqlext.execution.flows.interval_trigger import other_pace
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.redefinition import redefined, refusal
from sqlext.execution.flows.registry import find
from sqlext.execution.flows.renewal import renewed
from sqlext.execution.flows.state_choice import state_shown
from sqlext.execution.streaming import queries
from sqlext.options import SORTED_SHUFFLES, Level, ValueText
from sqlext.plan.constraints import Constraint
from sqlext.plan.explain import explain_flow, explain_memory, lines_of
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import StateBackend, levels_of
from sqlext.plan.job_graph import QUALIFIES, FlowPlan
from sqlext.plan.lineage import Lineage
from sqlext.planner.planner import plan_flow
from sqlext.planner.statement_plans import FlowStatement, PlannedFlow
from sqlext.spark import failures, jvm, sessions
from sqlext.sql import grammar
from sqlext.sql.constraint_grammar import constraints_of
from sqlext.sql.references import references_in
from sqlext.sql.rewriter import Batch
from sqlext.sql.statements import AlterFlowQuery, AutoCdc, CreateStreamingTable, Query
from sqlext.sql.tokens import normal_text, without_stream_names


def create(spark: SparkSession, planned: PlannedFlow, text: str, flows: FlowManager, lineage: Callable[[], Lineage]) -> Answer:
    """Create a flow and start it."""
    constraints = _constraints(spark, planned.statement)
    flow = _analysed(spark, spark, planned, constraints, flows)
    if isinstance(flow, SparkStatement):
        return flow
    request = replace(_request(spark, planned.statement, flow, text, lineage), constraints=constraints)

    def run(canceled: threading.Event) -> str:
        return flows.create(request, canceled)

    return whole_command(spark, "CREATE FLOW", run)


def explain(spark: SparkSession, planned: PlannedFlow, flows: FlowManager, lineage: Callable[[], Lineage]) -> Answer:
    """Explain a flow. What CREATE refuses is refused here too, but an existing table of its name is not looked for."""
    constraints = _constraints(spark, planned.statement)
    flow = _analysed(spark, spark, planned, constraints, flows)
    if isinstance(flow, SparkStatement):
        return flow
    request = replace(_request(spark, planned.statement, flow, "", lineage), constraints=constraints)
    if request.definition is not None:
        check_sources(request, flows.records())
        check_definition(request)
        constraint_checks.check(request, target.qualified(spark, request.table), None, flows.records())
    check_cycle(request)
    table, states = ".".join(request.table), _states(flow, request)
    lines = lines_of(explain_flow(flow.plan, flow.options, table, _memory(flow), states, constraints))
    return Table({"plan": "STRING"}, [{"plan": tuple(lines)}])


def make_anew(flows: FlowManager, name: tuple[str, ...], batches: Sequence[Batch], canceled: threading.Event) -> str:
    """Recreate a streaming table by its own statement, in a session like its flow's."""
    spec = flows.record_of_table(name).spec
    session, options = flows.session_of(spec), flows.options_of(spec)
    parsed = grammar.parse(spec.text)
    with jvm.names_as_in(session):
        statement = (
            change_statements.flow_statement(session, parsed, spec.text, batches) if isinstance(parsed, AutoCdc) else parsed
        )
        if not isinstance(statement, CreateStreamingTable):
            raise AssertionError("a streaming table was made by its statement")
        plan = _checked(plan_flow(statement.query, batches, options.flow[SORTED_SHUFFLES]), spec.constraints)
        own = sessions.session_for(session, plan.references)
        plan = kept_columns.in_flow(own, plan, statement.query.source, grows=may_grow(plan, options.flow))
        flow = analyse_flow(own, plan, options, queries.analyse(own, plan), makes_table=True)
        request = renewed(spec, _request(session, statement, flow, spec.text))
    return flows.create(request, canceled)


def alter(
    spark: SparkSession,
    statement: AlterFlowQuery,
    flows: FlowManager,
    batches: Sequence[Batch],
    lineage: Callable[[], Lineage],
) -> Answer:
    """Give a flow another query, in place."""
    name = target.qualified(spark, statement.name)
    request = _altered(spark, name, statement, flows, batches, lineage)
    if isinstance(request, SparkStatement):
        return request
    return whole_command(spark, "ALTER FLOW", lambda canceled: flows.change_query(name, request, canceled))


def explain_alter(
    spark: SparkSession,
    statement: AlterFlowQuery,
    flows: FlowManager,
    batches: Sequence[Batch],
    lineage: Callable[[], Lineage],
) -> Answer:
    """Say what becomes of each column of a flow's table. What ALTER FLOW refuses before it looks at rows is refused here too."""
    name = target.qualified(spark, statement.name)
    request = _altered(spark, name, statement, flows, batches, lineage)
    if isinstance(request, SparkStatement):
        return request
    spec = find(flows.records(), name).spec
    try:
        if (wider := widened(spec, request)) is not None:
            check_sources(request, flows.records())
            check_cycle(request)
            return Table({"plan": "STRING"}, [{"plan": (f"{'.'.join(spec.target)} stays as it is: {wider}",)}])
        change = redefined(spec, request, target.describe(request.session, spec.target))
    except UnsupportedError as error:
        raise refusal(spec, error) from None
    lines = [f"{'.'.join(spec.target)} gets other columns in one commit; its streams are read on from where they are"]
    lines += [f"  {each}" for each in change.columns]
    lines += [f"  state: {each}" for each in _states(request.flow, request)]
    return Table({"plan": "STRING"}, [{"plan": tuple(lines)}])


def _altered(
    spark: SparkSession,
    name: tuple[str, ...],
    statement: AlterFlowQuery,
    flows: FlowManager,
    batches: Sequence[Batch],
    lineage: Callable[[], Lineage],
) -> FlowRequest | SparkStatement:
    """Return the statement that made a streaming table with another query, analysed in a session like its flow's."""
    spec = find(flows.records(), name).spec
    made = grammar.parse(spec.text)
    if not isinstance(made, CreateStreamingTable):
        raise UnsupportedError(
            f"ALTER FLOW .. AS is for the flow of CREATE STREAMING TABLE .. AS, and `{spec.name}` is another one. DROP FLOW it, "
            "and make it again.",
            statement.position,
        )
    head = made.query.source[: len(made.query.source) - len(made.query.source.lstrip())]
    session = flows.session_of(spec)
    with jvm.names_as_in(session):
        plan = plan_flow(statement.query, batches, flows.options_of(spec).flow[SORTED_SHUFFLES])
        given = {level: texts for level, texts in levels_of(spec.given).items() if level not in (Level.HINT, Level.WITH)}
        options = FlowOptions.of_plan(plan, given, partial(jvm.parse_duration, session))
        changed = replace(made, query=statement.query)
        flow = _analysed(spark, session, PlannedFlow(changed, plan, options), spec.constraints, flows)
        if isinstance(flow, SparkStatement):
            return flow
        request = _request(session, changed, flow, spec.text[: len(head)] + statement.query.text, lineage)
        return replace(request, constraints=spec.constraints)


def _constraints(spark: SparkSession, statement: FlowStatement) -> tuple[Constraint, ...]:
    """Return the constraints on the rows of a statement's table; a table that is there has them in its properties."""
    if isinstance(statement, CreateStreamingTable):
        return constraints_of(statement.definition.properties)
    there = target.properties_of(spark, target.qualified(spark, statement.target))
    return constraints_of({key: ValueText(value) for key, value in there.items()})


def _checked(plan: FlowPlan, constraints: Sequence[Constraint]) -> FlowPlan:
    """Return a plan that names what the conditions of constraints name, which the flow's session must have too."""
    names = [plan.references, *(references_in(each.condition) for each in constraints)]
    return replace(
        plan,
        references=replace(
            plan.references,
            functions=tuple(dict.fromkeys(name for each in names for name in each.functions)),
            columns=tuple(dict.fromkeys(name for each in names for name in each.columns)),
        ),
    )


def _analysed(
    user: SparkSession, session: SparkSession, planned: PlannedFlow, constraints: Sequence[Constraint], flows: FlowManager
) -> AnalysedFlow | SparkStatement:
    """Analyse a flow; or return a form of its query that Spark refuses, so that Spark says so with its own type and place.

    Args:
        user: the session of the statement, in which Spark refuses that form.
        session: the one that the flow's own is made of.
    """
    plan, statement = _checked(planned.plan, constraints), planned.statement
    own = sessions.session_for(session, plan.references)
    plan = kept_columns.in_flow(
        own,
        plan,
        statement.query.source,
        lambda: kept_columns.of_table(session, statement, flows.records()),
        may_grow(plan, planned.options.flow),
    )
    try:
        found = queries.analyse(own, plan)
    except AnalysisException:
        text = _refused_by_spark(own, statement.query, plan)
        if text is None:
            raise
        takes_names = not plan.references.names_streams or sessions.takes_names_of_streams(user)
        refused = text if takes_names else without_stream_names(text)
        if _refusal(user, refused) is None:  # the statement would do nothing, and not say so
            raise
        return SparkStatement(refused)
    return analyse_flow(own, plan, planned.options, found, isinstance(statement, CreateStreamingTable))


def _refused_by_spark(own: SparkSession, query: Query, plan: FlowPlan) -> str | None:
    """Return a text that Spark refuses in `own`; None where only what it has of ours, such as views, knows what is wrong.

    The query as written comes first, for the places in its messages; what only our rules make sense of fails there too. A
    function that Spark misses only in some of the texts is ours, and rewritten in the others.
    """
    if plan.prerequisites:
        alone = [each.sql for each in plan.prerequisites if not each.after]  # all else reads our views
    else:
        alone = [each.sql for each in plan.queries]
    stands_alone = plan.is_sparks_own and not plan.prerequisites and not plan.hybrids
    texts = [without_clauses(query.source), *alone, *([plan.written] if stands_alone else [])]
    refused = [(text, condition) for text in texts if (condition := _refusal(own, text)) is not None]
    if not refused:
        return None
    _, last = refused[-1]
    return next(text for text, condition in refused if condition == last or not condition.startswith(failures.UNRESOLVED_ROUTINE))


def _refusal(spark: SparkSession, text: str) -> str | None:
    """Return the condition with which Spark refuses a query; None for one that it takes."""
    try:
        spark.sql(text)
    except AnalysisException as error:
        return failures.condition_of(error)
    return None


def _request(
    spark: SparkSession,
    statement: FlowStatement,
    flow: AnalysedFlow,
    text: str,
    lineage: Callable[[], Lineage] | None = None,
) -> FlowRequest:
    folds_case = not jvm.are_names_case_sensitive(spark)
    query = normal_text(statement.query.source, folds_case)
    if not isinstance(statement, CreateStreamingTable):
        return FlowRequest(
            name=statement.flow or statement.target,
            table=statement.target,
            flow=flow,
            text=text,
            columns=statement.columns,
            by_name=statement.by_name,
            if_not_exists=statement.if_not_exists,
            comment=statement.comment,
            query=query,
            lineage=lineage,
        )
    return FlowRequest(
        name=statement.flow or statement.name,
        table=statement.name,
        flow=flow,
        text=text,
        definition=statement.definition,
        properties={key: value.value for key, value in statement.definition.properties.items()},
        refresh=statement.refresh,
        replace=statement.replace,
        adopts=bool(statement.flow),
        if_not_exists=statement.if_not_exists,
        comment=statement.comment,
        query=query,
        clauses=tuple(normal_text(clause, folds_case) for clause in statement.definition.clauses),
        listed=listed(statement.definition.columns, folds_case),
        lineage=lineage,
    )


def _memory(flow: AnalysedFlow) -> str | None:
    """Return the line of EXPLAIN about the buffer in memory."""
    backends = [query.state_backend for query in flow.queries]
    durable = next(filter(None, (query.durable_because for query in flow.queries)), None)
    return explain_memory(
        flow.plan, flow.options.flow, other_pace(backends, flow.options), durable, StateBackend.DELTA in backends
    )


def _states(flow: AnalysedFlow, request: FlowRequest) -> list[str]:
    """Return the lines of EXPLAIN about the state of each aggregate."""
    found = list[str]()
    for query in flow.queries:
        is_ours = not query.writes_target or request.definition is not None
        is_checked = query.writes_target and bool(request.constraints)
        has_qualifies = QUALIFIES in query.frame.columns
        shown = state_shown(query.aggregate, query.rocksdb_because, has_qualifies, is_ours, is_checked, query.ttl)
        found += [f"{query.name or 'aggregate'}: {shown}"] if shown else []
    return found
