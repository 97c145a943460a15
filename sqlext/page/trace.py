"""Traces of statements: EXPLAIN without Spark's analysis, so no table or path is read and nothing runs.

Therefore only EXPLAIN knows the options of existing tables, and refusals that need the tables' columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from sqlglot import exp

from sqlext.commands.bounded_statements import job_of
from sqlext.commands.option_levels import with_level
from sqlext.errors import SqlextError
from sqlext.options import (
    RUNTIME_MODE,
    SORTED_SHUFFLES,
    DurationParser,
    Level,
    Options,
    ValueText,
    is_option_key,
    resolve,
    with_own,
)
from sqlext.options import option as option_of
from sqlext.page.snapshot import GraphView, OperatorView, Section, StageView, Trace
from sqlext.plan.explain import explain_bounded, explain_flow
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import BoundedPlan, FlowPlan, JobGraph, Operator, OperatorAttributes
from sqlext.planner.planner import plan_bounded, plan_flow
from sqlext.planner.rule_book import rules_in_force
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

    def resolve(self, given: Mapping[Level, Mapping[str, ValueText]]) -> Options:
        """Return the options in force, from those of a statement and the session's."""
        return resolve({**given, **self.levels}, self.parse_duration)


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
            return replace(found, note=note, sections=(Section("Query for Spark", sql),))
        case _:
            return replace(found, note="This is a command: there is no query to rewrite.")


def _of_flow(found: Trace, statement: CreateStreamingTable | Insert, session: SessionOptions | None, is_batch: bool) -> Trace:
    own = _own_options(statement)
    before = session.resolve({Level.PROPERTY: own}) if session is not None else None  # hints are not known yet
    if is_batch or (before is not None and before[RUNTIME_MODE] == "BATCH"):
        return _of_job(found, job_of(statement), session)
    plan = plan_flow(statement.query, rules_in_force(), before[SORTED_SHUFFLES] if before is not None else True)
    table = ".".join(statement.name if isinstance(statement, CreateStreamingTable) else statement.target)
    traced = replace(found, graph=graph_of(plan.graph, table), firings=plan.firings)
    if session is None:
        return replace(traced, sections=_queries_of(plan))
    given = {Level.HINT: plan.hints, Level.WITH: with_level(plan), Level.PROPERTY: own, **session.levels}
    of_streams = {source.alias: session.resolve(with_own(given, source.options)) for source in plan.graph.streams}
    lines = explain_flow(plan, session.resolve(given), table, of_streams=of_streams)
    return replace(traced, sections=_sections(lines))


def _of_job(found: Trace, statement: BoundedStatement, session: SessionOptions | None) -> Trace:
    is_sorted = session.resolve({})[SORTED_SHUFFLES] if session is not None else True
    plan = plan_bounded(statement.query, rules_in_force(), is_sorted)
    table = ".".join(statement.target)
    sections = _sections(explain_bounded(plan, table))
    return replace(found, graph=graph_of(plan.graph, table or "the client"), firings=plan.firings, sections=sections)


def _relations_of(tree: exp.Query) -> int:
    """Return how many relations a query reads, where each use of a WITH query counts with all that it reads."""
    return total_of(tree, lambda node: int(isinstance(node, exp.Table)))


def _own_options(statement: CreateStreamingTable | Insert) -> dict[str, ValueText]:
    if isinstance(statement, Insert):
        return {}
    properties = statement.definition.properties.items()
    return {option_of(key, given.position).key: given for key, given in properties if is_option_key(key)}


def _sections(lines: Sequence[str]) -> tuple[Section, ...]:
    """Split the lines of EXPLAIN at their headings."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("== ") and line.endswith(" =="):
            found.append((line.strip("= "), []))
        elif found:
            found[-1][1].append(line)
    return tuple(Section(title, "\n".join(text).strip()) for title, text in found if title not in _TOLD_APART)


def _queries_of(plan: FlowPlan | BoundedPlan) -> tuple[Section, ...]:
    if isinstance(plan, FlowPlan) and plan.above:
        queries = [*(f"{each.name}:\n{each.sql}" for each in plan.aggregates), f"above:\n{plan.above}"]
        return (Section("Query for Spark", "\n".join(queries)),)
    return (Section("Query for Spark", plan.sql),)


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
