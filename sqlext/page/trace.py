"""Traces of statements: EXPLAIN without Spark's analysis, so no table or path is read and nothing runs.

Therefore only EXPLAIN knows the options of existing tables, and refusals that need the tables' columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from sqlglot import exp

from sqlext.errors import SqlextError
from sqlext.options import DurationParser, Level, ValueText
from sqlext.page.snapshot import GraphView, OperatorView, StageView, Trace
from sqlext.plan.explain import Section, explain_bounded, explain_flow
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import BoundedPlan, FlowPlan, JobGraph, Operator, OperatorAttributes
from sqlext.planner.planner import plan_bounded, plan_flow
from sqlext.planner.rule_book import rules_in_force
from sqlext.planner.statement_plans import (
    FlowStatement,
    PlannedFlow,
    PlannedJob,
    job_of,
    options_among,
    plan_statement,
    properties_in,
)
from sqlext.quoting import case_sensitive_names
from sqlext.sql import grammar, statements
from sqlext.sql.scripts import split
from sqlext.sql.statements import BoundedStatement, CreateStreamingTable, Insert, Query, Select
from sqlext.sql.tokens import is_ours
from sqlext.sql.trees import total_of

MOST_CHARACTERS = 20_000
"""The longest statement that is traced: longer ones would keep the process from its flows for too long."""
_MOST_RELATIONS = 1000
"""The most relations of a statement, where each use of a WITH query counts: 30 queries, each used twice, read a billion."""
_TOLD_APART = ("Job graph", "Stages", "Rules fired")
"""The sections of EXPLAIN that the page shows in its own way."""


@dataclass(frozen=True)
class SessionOptions:
    """The options of a session.

    Attributes:
        levels: the options set by SET and SparkConf.
        parse_duration: Spark's parser of durations.
        are_names_case_sensitive: the value of `spark.sql.caseSensitive`.
    """

    levels: Mapping[Level, Mapping[str, ValueText]]
    parse_duration: DurationParser
    are_names_case_sensitive: bool = False

    def plan(self, statement: FlowStatement | BoundedStatement) -> PlannedFlow | PlannedJob:
        """Plan a statement as the session would, but for the properties of a table that is there."""
        given = {Level.PROPERTY: options_among(properties_in(statement)), **self.levels}
        return plan_statement(statement, given, rules_in_force(), self.parse_duration)


def trace(text: str, session: SessionOptions | None = None, is_batch: bool = False) -> Trace:
    """Trace a statement.

    Args:
        session: the session whose options count; None: options are left out.
        is_batch: whether a flow's statement ran as a job (`execution.runtime-mode`).
    """
    found = Trace(text)
    if len(text) > MOST_CHARACTERS:
        return replace(found, error=too_long(text))
    try:
        with case_sensitive_names(session is not None and session.are_names_case_sensitive):
            return _trace(found, session, is_batch)
    except SqlextError as error:
        place = error.position
        return replace(found, error=error.message, line=place.line if place else 0, column=place.column if place else 0)
    except RecursionError:
        return replace(found, error="The statement is nested too deeply.")


def too_long(text: str) -> str:
    """Return the error for a statement of more than `MOST_CHARACTERS`."""
    return f"The statement has {len(text):,} characters; at most {MOST_CHARACTERS:,} are traced."


def _trace(found: Trace, session: SessionOptions | None, is_batch: bool) -> Trace:
    pieces = split(found.text)
    if len(pieces) != 1:
        return replace(found, error=f"Give one statement, not {len(pieces)}." if pieces else "Give a statement.")
    if not is_ours(found.text):
        return replace(
            found, note="This statement is Spark's: it uses none of sqlext's constructs and reaches Spark byte for byte."
        )
    statement = grammar.parse(found.text)
    if isinstance(statement, statements.Explain):
        statement = statement.statement
    query = getattr(statement, "query", None)
    if isinstance(query, Query) and _relations_of(query.tree) > _MOST_RELATIONS:
        return replace(
            found, error=f"With all uses of its WITH queries, the statement reads more than {_MOST_RELATIONS:,} relations."
        )
    match statement:
        case CreateStreamingTable() | Insert():
            return _of_flow(found, statement, session, is_batch)
        case BoundedStatement():
            return _of_job(found, statement, session)
        case Select(query=query) | statements.CreateTableAs(query=query):
            plan = plan_flow(query, rules_in_force())
            note = "A query over a stream that does not end needs CREATE STREAMING TABLE or INSERT INTO around it to run."
            return replace(found, note=note, graph=graph_of(plan.graph, "no table"), firings=plan.firings)
        case statements.PartitionQuery(text=sql):
            note = "Spark runs this query; calls of partition operators are rewritten for Spark."
            return replace(found, note=note, sections=(Section("Query for Spark", (sql,)),))
        case statements.AutoCdc():
            return replace(found, note="The query of AUTO CDC has the columns of its source: EXPLAIN the statement in a session.")
        case _:
            return replace(found, note="This is a command: there is no query to rewrite.")


def _of_flow(found: Trace, statement: FlowStatement, session: SessionOptions | None, is_batch: bool) -> Trace:
    if is_batch:
        return _of_job(found, job_of(statement), session)
    table = ".".join(statement.name if isinstance(statement, CreateStreamingTable) else statement.target)
    if session is None:
        plan = plan_flow(statement.query, rules_in_force())
        return replace(found, graph=graph_of(plan.graph, table), firings=plan.firings, sections=_queries_of(plan))
    planned = session.plan(statement)
    if isinstance(planned, PlannedJob):
        return _planned_job(found, planned.plan, planned.statement)
    sections = _shown(explain_flow(planned.plan, planned.options, table))
    return replace(found, graph=graph_of(planned.plan.graph, table), firings=planned.plan.firings, sections=sections)


def _of_job(found: Trace, statement: BoundedStatement, session: SessionOptions | None) -> Trace:
    planned = session.plan(statement) if session is not None else None
    if planned is None:
        return _planned_job(found, plan_bounded(statement.query, rules_in_force(), True), statement)
    assert isinstance(planned, PlannedJob), "a bounded statement is a job"
    return _planned_job(found, planned.plan, statement)


def _planned_job(found: Trace, plan: BoundedPlan, statement: BoundedStatement) -> Trace:
    table = ".".join(statement.target)
    graph = graph_of(plan.graph, table or "the client")
    return replace(found, graph=graph, firings=plan.firings, sections=_shown(explain_bounded(plan, table)))


def _relations_of(tree: exp.Query) -> int:
    """Return how many relations a query reads, where each use of a WITH query counts with all that it reads."""
    return total_of(tree, lambda node: int(isinstance(node, exp.Table)))


def _shown(sections: Sequence[Section]) -> tuple[Section, ...]:
    return tuple(section for section in sections if section.title not in _TOLD_APART)


def _queries_of(plan: FlowPlan) -> tuple[Section, ...]:
    if not plan.above:
        return (Section("Query for Spark", (plan.sql,)),)
    queries = (*(f"{each.name}:\n{each.sql}" for each in plan.aggregates), f"above:\n{plan.above}")
    return (Section("Query for Spark", queries),)


# Graphs.


def graph_of(graph: JobGraph, sink: str) -> GraphView:
    """Return the view of a graph, with attributes and stages."""
    stages = graph.stages()
    stage_of = {operator: stage.id for stage in stages for operator in stage.operators}
    return GraphView(
        sink,
        tuple(_operator(operator, stage_of.get(operator.id)) for operator in graph.operators),
        tuple(
            StageView(stage.id, tuple(graph.operators[at].kind for at in stage.operators), stage.is_blocking) for stage in stages
        ),
    )


def recorded_graph(spec: FlowSpec, problem: str) -> GraphView:
    """Return the graph in a flow's record, which has no attributes."""
    operators = tuple(
        OperatorView(at, each.kind, each.detail, each.inputs, is_stream=bool(each.stream))
        for at, each in enumerate(spec.operators)
    )
    return GraphView(".".join(spec.target), operators, problem=problem)


def _operator(operator: Operator, stage: int | None) -> OperatorView:
    held = tuple(each.name for each in fields(OperatorAttributes) if getattr(operator.attributes, each.name))
    is_stream = operator.source is not None and operator.source.is_stream
    return OperatorView(operator.id, operator.kind, operator.detail, operator.inputs, held, stage, is_stream)
