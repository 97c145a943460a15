"""The columns of files that a statement reads by `read_files` without `schema`: found once, and written into its plan.

What is recorded has them, so nothing is inferred again when a flow restarts or a job resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sqlext.execution.delta import target
from sqlext.execution.flows.creation import same_name
from sqlext.execution.flows.registry import Records
from sqlext.plan.job_graph import BoundedPlan, FlowPlan
from sqlext.planner.statement_plans import FlowStatement
from sqlext.quoting import STREAMED, quote_string, zoned
from sqlext.spark.files import COLUMNS_OF
from sqlext.sql.file_calls import GROWING, READ_FILES, FilesCall, calls_in, kept_in, with_columns
from sqlext.sql.statements import CreateStreamingTable
from sqlext.sql.tokens import blanked


def in_flow(
    spark: SparkSession, plan: FlowPlan, source: str, known: Callable[[], Mapping[str, str]] = dict, grows: bool = False
) -> FlowPlan:
    """Return a flow's plan in which each call has its columns.

    Args:
        spark: the session that is to run the plan.
        source: the text of the statement's query, with the offsets of the statement.
        known: returns columns that are kept already, as literals, by the call's `key`.
        grows: whether the flow gets the columns that files have later (`schema-evolution`).

    Raises:
        PySparkException: a call is wrong; the place in the message is that in the statement.
    """
    change = _change(spark, source, known, is_flow=True, grows=grows)
    if change is None:
        return plan
    return replace(
        plan,
        sql=change(plan.sql),
        above=change(plan.above),
        written=change(plan.written),
        aggregates=tuple(replace(each, sql=change(each.sql)) for each in plan.aggregates),
        prerequisites=tuple(replace(each, sql=change(each.sql)) for each in plan.prerequisites),
        hybrids=tuple(
            replace(each, relations=tuple(replace(relation, sql=change(relation.sql)) for relation in each.relations))
            for each in plan.hybrids
        ),
    )


def as_in(plan: FlowPlan, text: str) -> str:
    """Return a text in which calls have the columns that they have in a flow's plan, so that none is inferred again."""
    kept = kept_in([plan.sql, plan.above, *(each.sql for each in plan.queries)])
    calls = [call for call in calls_in(text) if call.needs_columns]
    return with_columns(text, lambda call: kept[call.key]) if all(call.key in kept for call in calls) else text


def in_job(spark: SparkSession, plan: BoundedPlan, source: str) -> BoundedPlan:
    """Return a job's plan in which each call has its columns; see `in_flow`."""
    change = _change(spark, source, dict, is_flow=False)
    return plan if change is None else replace(plan, sql=change(plan.sql), plain_sql=change(plan.plain_sql))


def of_table(spark: SparkSession, statement: FlowStatement, records: Records) -> Mapping[str, str]:
    """Return the columns that the flows keep which a statement finds there, as literals, by the `key` of the call.

    There are none if the statement replaces the flow, which infers anew.
    """
    is_new = isinstance(statement, CreateStreamingTable) and statement.replace
    name = target.qualified(spark, statement.name if isinstance(statement, CreateStreamingTable) else statement.target)
    specs = [record.spec for record in records.values() if same_name(record.spec.target, name) and not is_new]
    return kept_in([text for spec in specs for text in spec.texts])


def _change(
    spark: SparkSession, source: str, known: Callable[[], Mapping[str, str]], is_flow: bool, grows: bool = False
) -> Callable[[str], str] | None:
    """Return the change of a query's text that gives each call its columns; None where there is nothing to change.

    All calls are looked at in the statement, so that what is wrong with one is told at its place. A call that Spark's own
    analysis refuses stays as it is: it refuses the whole query too, and its message is better then.
    """
    calls = calls_in(source)
    if not calls:
        return None
    found = {**known(), **{call.key: call.kept for call in calls if call.kept}}
    try:
        for call in calls:
            if call.key not in found:
                found[call.key] = _columns(spark, source, call, is_flow, grows)
    except AnalysisException:
        return None

    def change(text: str) -> str:
        return with_columns(
            text, lambda call: found[call.key] if call.key in found else _columns(spark, text, call, is_flow, grows)
        )

    return change


def _columns(spark: SparkSession, text: str, call: FilesCall, is_flow: bool, grows: bool = False) -> str:
    """Return the columns of a call that stands in a text, as a literal."""
    function = COLUMNS_OF + (STREAMED if is_flow and call.is_streamed else "") + READ_FILES
    arguments = call.arguments + (f", {GROWING} => true" if grows and call.is_streamed else "")
    before = blanked(text[: call.start])
    at = before.find(" " * len("FROM"))
    assert at >= 0, "a call comes after FROM and after the verb"
    before = f"{before[:at]}FROM{before[at + len('FROM') :]}"  # the call itself stays at its place, which errors name
    return quote_string(zoned(spark.sql(f"{before}{function}({arguments}) SELECT *").schema.toDDL()))
