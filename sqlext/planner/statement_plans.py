"""From a statement of ours to its plan and the options in force; what running it, EXPLAIN and the page's trace have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlext.errors import UnsupportedError
from sqlext.options import (
    RUNTIME_MODE,
    SORTED_SHUFFLES,
    STATE_TTL,
    TOMBSTONE_RETENTION,
    DurationParser,
    Level,
    LevelTexts,
    Options,
    ValueText,
    is_option_key,
    resolve,
)
from sqlext.options import option as option_of
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.job_graph import BoundedPlan, FlowPlan
from sqlext.planner.planner import plan_bounded, plan_flow, plan_once, read_options
from sqlext.quoting import quote, quote_parts, quote_string
from sqlext.sql.rewriter import Batch
from sqlext.sql.statements import BoundedStatement, CreateStreamingTable, Insert, Query

FlowStatement = CreateStreamingTable | Insert
"""Statements that create a flow, unless `execution.runtime-mode` is BATCH."""


@dataclass(frozen=True)
class PlannedFlow:
    """A flow that a statement creates."""

    statement: FlowStatement
    plan: FlowPlan
    options: FlowOptions


@dataclass(frozen=True)
class PlannedJob:
    """A query that ends.

    Attributes:
        statement: in which it stands; of a flow's statement in BATCH mode, that of the job.
    """

    statement: BoundedStatement
    plan: BoundedPlan
    options: Options


def plan_statement(
    statement: FlowStatement | BoundedStatement, given: LevelTexts, batches: Sequence[Batch], parse_duration: DurationParser
) -> PlannedFlow | PlannedJob:
    """Plan a statement's query, under the options in force.

    Args:
        given: what the table's properties and the session give.
        batches: the rules in force.

    Raises:
        SqlextError: the query or an option of it is refused.
    """
    settled = resolve(given, parse_duration)  # without the query's own, which decide neither of the two read here
    if isinstance(statement, FlowStatement) and settled[RUNTIME_MODE] != "BATCH":
        is_sorted = settled[SORTED_SHUFFLES]
        if isinstance(statement, Insert) and statement.once:
            plan = plan_once(statement.query, batches, is_sorted)
        else:
            plan = plan_flow(statement.query, batches, is_sorted)
        return PlannedFlow(statement, plan, FlowOptions.of_plan(plan, given, parse_duration))
    job = job_of(statement) if isinstance(statement, FlowStatement) else statement
    for ttl in (settled.setting(STATE_TTL), settled.setting(TOMBSTONE_RETENTION)):
        if ttl is not None and ttl.level is Level.PROPERTY and ttl.value is not None:
            raise UnsupportedError(
                f"{ttl.name} is `{ttl.given.value}`, and this query ends: it has no state that could. Leave it out.",
                ttl.given.position,
            )
    bounded = plan_bounded(job.query, batches, settled[SORTED_SHUFFLES])
    _, of_streams = read_options(job.query)
    for levels in of_streams.values():
        resolve(levels, parse_duration)  # they have no effect; what is no value is an error all the same
    return PlannedJob(job, bounded, settled)


def options_among(properties: Mapping[str, ValueText]) -> dict[str, ValueText]:
    """Return our options among a table's properties, by key.

    Raises:
        OptionError: one is misspelt.
    """
    return {option_of(key, given.position).key: given for key, given in properties.items() if is_option_key(key)}


def properties_in(statement: FlowStatement | BoundedStatement) -> Mapping[str, ValueText]:
    """Return the table properties that a statement gives."""
    if isinstance(statement, CreateStreamingTable):
        return statement.definition.properties
    return statement.properties if isinstance(statement, BoundedStatement) else {}


def job_of(statement: FlowStatement) -> BoundedStatement:
    """Return the job that a flow's statement is in BATCH mode: all its streams are read to their ends, once."""
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
