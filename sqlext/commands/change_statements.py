"""AUTO CDC: from the columns of its source and its clauses to the query that the flow keeps up to date."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType

from sqlext.commands import kept_columns
from sqlext.commands.answers import SparkStatement
from sqlext.errors import SchemaError, SqlextError
from sqlext.execution.delta import target
from sqlext.execution.flows.renewal import properties_of
from sqlext.execution.streaming import queries
from sqlext.options import ValueText, is_option_key
from sqlext.plan.change_capture import ChangeCapture, Fragment
from sqlext.plan.job_graph import DECLARED_PROPERTY
from sqlext.planner.change_capture import SourceColumn, query_of
from sqlext.planner.planner import plan_flow
from sqlext.planner.statement_plans import FlowStatement
from sqlext.spark import jvm, sessions
from sqlext.sql import dialect, grammar
from sqlext.sql.rewriter import Batch
from sqlext.sql.statements import AutoCdc, CreateStreamingTable, DeclareStreamingTable, Insert, Query
from sqlext.sql.tokens import blanked


def flow_statement(
    spark: SparkSession,
    statement: AutoCdc,
    text: str,
    batches: Sequence[Batch],
    known: Callable[[], Mapping[str, str]] = dict,
) -> FlowStatement | SparkStatement:
    """Return the statement with the query that AUTO CDC stands for; or a query that Spark refuses, at its place in the text.

    Args:
        text: the statement.
        batches: the rules in force.
        known: returns columns of files that are kept already; see `kept_columns`.

    Raises:
        SchemaError: a clause does not fit the columns of the source.
        UnsupportedError: the changes of a column cannot be ordered.
    """
    capture, rows, into = statement.capture, statement.into.query, _into(spark, statement.into)
    plan = plan_flow(rows, batches)
    own = sessions.session_for(spark, plan.references)
    plan = kept_columns.in_flow(own, plan, rows.source, known)
    try:
        frame = queries.analyse(own, plan).output
    except AnalysisException:
        if plan.is_sparks_own:
            return SparkStatement(rows.source)
        raise
    for each in capture.expressions:
        try:
            found = frame.selectExpr(f"({each.text}) AS found")
        except AnalysisException:
            if plan.is_sparks_own:
                return SparkStatement(_alone(capture.source, each, text))
            raise
        _check_type(capture, each, found)
    listed = [each.name for each in into.definition.columns] if isinstance(into, CreateStreamingTable) else []
    source = replace(capture.source, text=kept_columns.as_in(plan, capture.source.text))
    written = query_of(replace(capture, source=source), _columns(frame), listed)
    return replace(into, query=Query(dialect.without_brackets(dialect.parse_query(written)), written, capture))


@contextmanager
def placed(statement: AutoCdc) -> Iterator[None]:
    """Within the block, give errors the place of AUTO CDC: their own is one in the query that it stands for."""
    try:
        yield
    except SqlextError as error:
        if error.position is not None:
            error.position = statement.capture.position
        raise


def _into(spark: SparkSession, statement: FlowStatement) -> FlowStatement:
    """Return CREATE FLOW .. INTO a table that was declared without a query as the statement that makes the table."""
    if not isinstance(statement, Insert):
        return statement
    name = target.qualified(spark, statement.target)
    there = target.describe(spark, name).properties if target.exists(spark, name) else {}
    text = there.get(DECLARED_PROPERTY)
    declared = grammar.parse(text) if text else None
    if not isinstance(declared, DeclareStreamingTable):
        return statement
    stated = {key: given.value for key, given in declared.definition.properties.items()}
    now = {key: value for key, value in stated.items() if is_option_key(key)} | properties_of(stated, there)  # as ALTER left them
    properties = {key: ValueText(value) for key, value in now.items()}
    return CreateStreamingTable(
        statement.target,
        statement.query,
        replace(declared.definition, properties=properties),
        if_not_exists=statement.if_not_exists,
        position=statement.position,
        flow=statement.flow,
        comment=statement.comment,
    )


def _columns(frame: DataFrame) -> list[SourceColumn]:
    return [SourceColumn(name, has_order) for name, has_order in zip(frame.columns, jvm.have_order(frame), strict=True)]


def _check_type(capture: ChangeCapture, part: Fragment, of_source: DataFrame) -> None:
    """Check the type of an expression over the source, the only column of a frame."""
    found = of_source.schema[0].dataType
    if part is not capture.sequence and not isinstance(found, BooleanType):
        raise SchemaError(f"`{part.text}` is {found.simpleString()}, and not a condition.", part.position)
    if part is capture.sequence and jvm.have_order(of_source) == [False]:
        raise SchemaError(f"`{part.text}` is {found.simpleString()}, whose values have no order.", part.position)


def _alone(source: Fragment, part: Fragment, text: str) -> str:
    """Return a query of one expression over the source, in which both stand where they do in the statement."""
    start, stop = source.position.start, source.position.stop
    verb = [*re.finditer("SEQUENCE|DELETE|TRUNCATE", text[stop : part.position.start], re.IGNORECASE)][-1].start() + stop
    blank = blanked(text)
    select = "SELECT"
    between = blank[stop:verb] + select + blank[verb + len(select) : part.position.start]
    return f"{blank[:start]}{source.text}{between}{part.text}"
