"""Statements with GLOBAL WINDOW END OF STREAM: a SELECT or view is Spark's to run, INSERT and CREATE TABLE .. AS are jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sqlext.commands import job_statements, kept_columns
from sqlext.commands.answers import Answer, DeferredCommand, SparkStatement, Table
from sqlext.execution.bounded.job import run_job
from sqlext.execution.jobs.manager import JobManager
from sqlext.options import JOB_RECOVERY
from sqlext.plan.explain import explain_bounded, lines_of
from sqlext.planner.statement_plans import PlannedJob
from sqlext.spark.failures import UNRESOLVED_ROUTINE
from sqlext.spark.jvm import frame_of, refusal_of
from sqlext.sql.statements import BoundedStatement
from sqlext.sql.tokens import blanked, end_of_stream_at, is_stream_relation, tokens

SparkParse = Callable[[str], Any]
GetJobs = Callable[[], JobManager]


def answer(spark: SparkSession, job: PlannedJob, text: str, spark_parse: SparkParse, jobs: GetJobs) -> Answer:
    """Run a statement, or have Spark run it.

    Args:
        text: the whole statement.
        jobs: those that survive their driver.
    """
    statement, plan = job.statement, job.plan
    if statement.target:
        plan = kept_columns.in_job(spark, plan, statement.query.source)
    sql = f"{statement.head} {plan.sql}".strip()
    if (refused := _refused_by_spark(spark, statement, sql, spark_parse)) is not None:
        return SparkStatement(refused)
    if not statement.target:
        return SparkStatement(sql)
    if job.options[JOB_RECOVERY]:
        return DeferredCommand("END OF STREAM", lambda: job_statements.submit(spark, statement, plan, text, jobs(), job.options))
    return DeferredCommand("END OF STREAM", lambda: [run_job(spark, sql, statement.target)])


def explain(spark: SparkSession, job: PlannedJob, spark_parse: SparkParse) -> Answer:
    """Show the job graph, its stages, the rules that fired, and Spark's own plan."""
    statement, plan = job.statement, job.plan
    if (refused := _refused_by_spark(spark, statement, plan.sql, spark_parse)) is not None:
        return SparkStatement(refused)
    physical = frame_of(spark, spark_parse(f"EXPLAIN {plan.sql}")).collect()[0][0]  # runs nothing; of a write it would tell less
    lines = lines_of(explain_bounded(plan, ".".join(statement.target)))
    return Table({"plan": "STRING"}, [{"plan": (*lines, "", physical.rstrip())}])


def _refused_by_spark(spark: SparkSession, statement: BoundedStatement, text: str, spark_parse: SparkParse) -> str | None:
    """Write a statement that Spark refuses without our clause: Spark's error then has the place in the user's text.

    Args:
        text: what is to run. Streams in subqueries are bounded in it, and refused in the user's text.

    Returns:
        None when Spark does not refuse it, or only the user's text calls a function that Spark does not have: one of ours.
    """
    if (refusal := refusal_of(spark, spark_parse(text))) is None:
        return None
    plain = without_clauses(statement.query.source)
    head = statement.head
    room = len(plain) - len(plain.lstrip())
    plain = (head.ljust(room) if len(head) <= room else head + " ") + plain[room:]
    of_plain = refusal_of(spark, spark_parse(plain))
    is_ours = of_plain is not None and of_plain.startswith(UNRESOLVED_ROUTINE) and of_plain != refusal
    return None if of_plain is None or is_ours else plain


def without_clauses(text: str) -> str:
    """Return a text that Spark's parser reads: with blanks for GLOBAL WINDOW END OF STREAM, and for STREAM before a call."""
    found = tokens(text)
    for number, token in enumerate(found[:-2]):
        if found[number + 1].upper and found[number + 2].text == "(" and is_stream_relation(found, number):
            text = text[: token.start] + " " * len("STREAM") + text[token.stop :]
    while (at := end_of_stream_at(found)) is not None:
        start, stop = found[at].start, found[at + 4].stop
        text = text[:start] + blanked(text[start:stop]) + text[stop:]
        found = found[at + 5 :]
    return text
