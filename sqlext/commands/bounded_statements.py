"""Statements with GLOBAL WINDOW END OF STREAM: a SELECT or view is Spark's to run, INSERT and CREATE TABLE .. AS are jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from sqlext.commands import job_statements
from sqlext.commands.answers import Answer, DeferredCommand, SparkStatement, Table
from sqlext.commands.option_levels import resolve_levels, session_levels
from sqlext.errors import UnsupportedError
from sqlext.execution.bounded.job import run_job
from sqlext.execution.jobs.manager import JobManager
from sqlext.options import JOB_RECOVERY, RUNTIME_MODE, SORTED_SHUFFLES, Level, Options, is_option_key, option
from sqlext.plan.explain import explain_bounded
from sqlext.plan.job_graph import BoundedPlan
from sqlext.planner.planner import plan_bounded
from sqlext.quoting import quote, quote_parts, quote_string
from sqlext.spark.jvm import can_be_analysed, frame_of
from sqlext.sql.rewriter import Batch
from sqlext.sql.statements import BoundedStatement, CreateStreamingTable, Insert, Query
from sqlext.sql.tokens import end_of_stream_at, is_stream_relation, tokens

SparkParse = Callable[[str], Any]
GetJobs = Callable[[], JobManager]


def job_of(statement: CreateStreamingTable | Insert) -> BoundedStatement:
    """The job that a flow's statement is in BATCH mode: all its streams are read to their ends, once."""
    tree = statement.query.tree.copy()
    tree.set("end_of_stream", True)
    query = Query(tree, statement.query.source)
    if isinstance(statement, Insert):
        columns = f" ({', '.join(map(quote, statement.columns))})" if statement.columns else ""
        by_name = " BY NAME" if statement.by_name else ""
        return BoundedStatement(f"INSERT INTO {quote_parts(statement.target)}{by_name}{columns}", statement.target, query)
    definition = statement.definition
    if definition.columns:
        raise UnsupportedError(
            f"A column list cannot stand where {RUNTIME_MODE.key} is BATCH: the table is made of the query's columns. Name "
            "and cast them there.",
            statement.position,
        )
    given = {"delta.enableDeletionVectors": "true"} | {key: value.value for key, value in definition.properties.items()}
    properties = ", ".join(f"{quote_string(key)} = {quote_string(value)}" for key, value in given.items())
    create = "CREATE OR REPLACE TABLE" if statement.refresh or statement.replace else "CREATE TABLE"
    exists = "IF NOT EXISTS" if statement.if_not_exists else ""
    clauses = " ".join(definition.clauses)
    head = f"{create} {exists} {quote_parts(statement.name)} USING delta {clauses} TBLPROPERTIES ({properties}) AS"
    return BoundedStatement(head, statement.name, query, definition.properties)


def options_of(spark: SparkSession, statement: BoundedStatement) -> Options:
    """The options in force for a statement that ends: those among its table's properties, and the session's.

    Raises:
        OptionError: one is unknown, or has no value that it can have.
    """
    own = {option(key, given.position).key: given for key, given in statement.properties.items() if is_option_key(key)}
    return resolve_levels(spark, {Level.PROPERTY: own, **session_levels(spark)})


def answer(
    spark: SparkSession, statement: BoundedStatement, text: str, batches: Sequence[Batch], spark_parse: SparkParse, jobs: GetJobs
) -> Answer:
    """Run a statement, or have Spark run it.

    Args:
        text: the whole statement.
        jobs: those that survive their driver.
    """
    plan = _plan(spark, statement, batches)
    sql = f"{statement.head} {plan.sql}".strip()
    if (refused := _refused_by_spark(spark, statement, sql, spark_parse)) is not None:
        return SparkStatement(refused)
    if not statement.target:
        return SparkStatement(sql)
    options = options_of(spark, statement)
    if options[JOB_RECOVERY]:
        return DeferredCommand("END OF STREAM", lambda: job_statements.submit(spark, statement, plan, text, jobs(), options))
    return DeferredCommand("END OF STREAM", lambda: [run_job(spark, sql, statement.target)])


def explain(spark: SparkSession, statement: BoundedStatement, batches: Sequence[Batch], spark_parse: SparkParse) -> Answer:
    """The job graph, its stages, the rules that fired, and Spark's own plan."""
    plan = _plan(spark, statement, batches)
    if (refused := _refused_by_spark(spark, statement, plan.sql, spark_parse)) is not None:
        return SparkStatement(refused)
    physical = frame_of(spark, spark_parse(f"EXPLAIN {plan.sql}")).collect()[0][0]  # runs nothing; of a write it would tell less
    return Table({"plan": "STRING"}, [{"plan": (*explain_bounded(plan, ".".join(statement.target)), physical.rstrip())}])


def _plan(spark: SparkSession, statement: BoundedStatement, batches: Sequence[Batch]) -> BoundedPlan:
    return plan_bounded(statement.query, batches, options_of(spark, statement)[SORTED_SHUFFLES])


def _refused_by_spark(spark: SparkSession, statement: BoundedStatement, text: str, spark_parse: SparkParse) -> str | None:
    """Write a statement that Spark refuses without our clause: Spark's error then tells the place in the user's text.

    Args:
        text: what is to run. Streams in subqueries are bounded in it, and refused in the user's text.

    Returns:
        None when Spark does not refuse it.
    """
    if can_be_analysed(spark, spark_parse(text)):
        return None
    plain = without_clauses(statement.query.source)
    head = statement.head
    room = len(plain) - len(plain.lstrip())
    plain = (head.ljust(room) if len(head) <= room else head + " ") + plain[room:]
    return None if can_be_analysed(spark, spark_parse(plain)) else plain


def without_clauses(text: str) -> str:
    """A text that Spark's parser reads: blanks in place of each GLOBAL WINDOW END OF STREAM, and of STREAM before a call."""
    found = tokens(text)
    for number, token in enumerate(found[:-2]):
        if found[number + 1].upper and found[number + 2].text == "(" and is_stream_relation(found, number):
            text = text[: token.start] + " " * len("STREAM") + text[token.stop :]
    while (at := end_of_stream_at(found)) is not None:
        start, stop = found[at].start, found[at + 4].stop
        text = text[:start] + "".join(c if c in "\r\n" else " " for c in text[start:stop]) + text[stop:]
        found = found[at + 5 :]
    return text
