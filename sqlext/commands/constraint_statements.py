"""ALTER STREAMING TABLE .. ADD and DROP CONSTRAINT, and REPLAY QUARANTINE."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from pyspark.sql import SparkSession

from sqlext.commands.answers import DeferredCommand, whole_command
from sqlext.errors import NameTakenError, NotFoundError, UnsupportedError, did_you_mean
from sqlext.execution.delta import target
from sqlext.execution.flows import constraint_checks
from sqlext.execution.flows.creation import same_name
from sqlext.execution.flows.registry import current
from sqlext.execution.flows.replay import opened, replay
from sqlext.execution.host import Host
from sqlext.plan.constraints import EXPECT_PROPERTY, Constraint, Violation
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import DECLARED_PROPERTY
from sqlext.quoting import quote_parts, quote_string
from sqlext.sql.constraint_grammar import constraints_of
from sqlext.sql.statements import AlterConstraint, ReplayQuarantine


def alter(spark: SparkSession, statement: AlterConstraint, host: Callable[[], Host]) -> DeferredCommand:
    """Add or drop a constraint of a streaming table, when Spark executes the command."""
    name = target.qualified(spark, statement.name)
    return whole_command(spark, "ALTER STREAMING TABLE", lambda _: _alter(spark, host(), name, statement))


def answer_replay(spark: SparkSession, statement: ReplayQuarantine, host: Callable[[], Host]) -> DeferredCommand:
    """Bring quarantined rows back through their flows, when Spark executes the command."""
    name = target.qualified(spark, statement.name)

    def run(_: threading.Event) -> str:
        flows = host().flows
        specs = [record.spec for record in flows.records().values()]
        return replay(spark, opened(spark, name), statement.condition, specs, flows.session_of, flows.turn_at)

    return whole_command(spark, "REPLAY QUARANTINE", run)


def _alter(spark: SparkSession, host: Host, name: tuple[str, ...], statement: AlterConstraint) -> str:
    """Change a constraint.

    1. The records of all flows into the table get it, and the flows are restarted. After a crash here, or between two of them,
       the same statement does the rest.
    2. So does the table's property, from which REFRESH STREAMING TABLE .. FULL takes it.
    """
    spec, shown = _flow_of(spark, host, name), ".".join(name)
    target.check_same_table(spark, spec)
    by_flow = [_named(each.constraints, statement.constraint) for each in _flows_into(host, name)]
    there, written = next(filter(None, by_flow), None), _written(spark, name, statement.constraint)
    if statement.text is None:
        if there is None and written is None and statement.if_exists:
            return f"streaming table {shown} has no constraint {statement.constraint}"
        if there is not None or written is None:
            _drop(host, spec, there, statement)
        if written is not None:
            spark.sql(f"ALTER TABLE {quote_parts(name)} UNSET TBLPROPERTIES ({quote_string(written)})")
        return f"streaming table {shown} altered: constraint {statement.constraint} dropped"
    key = EXPECT_PROPERTY + statement.constraint
    (constraint,) = constraint_checks.qualified(spark, constraints_of({key: statement.text}), spec.constraints)
    is_whole = None not in by_flow and written is not None
    if there is not None and (is_whole or there != replace(constraint, position=None)):
        raise NameTakenError(
            f"The streaming table {shown} has a constraint `{there.name}` already: {there.wanted}. DROP it first.",
            statement.position,
        )
    if None in by_flow:
        _add(host, spec, constraint)
    spark.sql(f"ALTER TABLE {quote_parts(name)} SET TBLPROPERTIES ({quote_string(key)} = {quote_string(constraint.written)})")
    return f"streaming table {shown} altered: constraint {statement.constraint} added"


def _named(constraints: Iterable[Constraint], name: str) -> Constraint | None:
    return next((each for each in constraints if each.name.lower() == name.lower()), None)


def _without(constraints: Iterable[Constraint], name: str) -> tuple[Constraint, ...]:
    return tuple(each for each in constraints if each.name.lower() != name.lower())


def _flow_of(spark: SparkSession, host: Host, name: tuple[str, ...]) -> FlowSpec:
    """Return the flow that has made a streaming table, or one that writes into a table declared without a query."""
    specs = _flows_into(host, name)
    if specs and not any(each.owns_target for each in specs) and DECLARED_PROPERTY in target.properties_of(spark, name):
        return specs[0]
    return host.flows.record_of_table(name).spec


def _flows_into(host: Host, table: tuple[str, ...]) -> list[FlowSpec]:
    return [each.spec for each in current(host.flows.records()) if same_name(each.spec.target, table)]


def _add(host: Host, spec: FlowSpec, constraint: Constraint) -> None:
    for each in _flows_into(host, spec.target):
        constraint_checks.check_of_flow(host.flows.session_of(each), each, constraint, host.flows.records())
        is_state = any(stream.writes_target and stream.state_columns for stream in each.streams)
        if not each.appends and (is_state or constraint.violation is Violation.DROP):
            raise _to_be_made_anew(each, constraint)
    host.flows.constrain(spec.target, (*_without(spec.constraints, constraint.name), replace(constraint, position=None)))


def _drop(host: Host, spec: FlowSpec, there: Constraint | None, statement: AlterConstraint) -> None:
    if there is None:
        known = [each.name for each in spec.constraints]
        raise NotFoundError(
            f"The streaming table {'.'.join(spec.target)} has no constraint `{statement.constraint}`."
            f"{did_you_mean(statement.constraint, known)}",
            statement.position,
        )
    if not spec.appends and there.violation is Violation.DROP:
        raise _to_be_made_anew(spec, replace(there, position=statement.position))
    host.flows.constrain(spec.target, _without(spec.constraints, there.name))


def _to_be_made_anew(spec: FlowSpec, constraint: Constraint) -> UnsupportedError:
    return UnsupportedError(
        f"The rows of {'.'.join(spec.target)} change as its query's do, and with the constraint `{constraint.name}` other rows "
        "would be in it, or its state elsewhere. CREATE OR REPLACE STREAMING TABLE makes it anew.",
        constraint.position,
    )


def _written(spark: SparkSession, name: tuple[str, ...], constraint: str) -> str | None:
    """Return the table property that stores a constraint, if there is one."""
    keys = target.describe(spark, name).properties
    return next((key for key in keys if key.lower() == (EXPECT_PROPERTY + constraint).lower()), None)
