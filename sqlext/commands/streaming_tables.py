"""DROP and ALTER STREAMING TABLE: a table and the flow that keeps it up to date, as one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from sqlext.commands.answers import Answer, DeferredCommand, whole_command
from sqlext.commands.option_levels import resolve_levels
from sqlext.errors import NameTakenError, NotFoundError, SchemaError, UnsupportedError
from sqlext.execution.delta import table_definition, target
from sqlext.execution.flows import constraint_checks
from sqlext.execution.flows.creation import same_name
from sqlext.execution.flows.registry import current
from sqlext.execution.flows.renewal import ONLY_IN_STATEMENTS
from sqlext.execution.host import Host
from sqlext.options import RUNTIME_MODE, Level, ValueText, is_option_key, option
from sqlext.plan.constraints import EXPECT_PROPERTY
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import DECLARED_PROPERTY, FLOW_PROPERTY, TableDefinition
from sqlext.quoting import fold, quote_parts
from sqlext.sql import grammar
from sqlext.sql.constraint_grammar import constraints_of
from sqlext.sql.statements import AlterStreamingTable, CreateStreamingTable, DeclareStreamingTable
from sqlext.sql.tokens import normal_text


def answer(spark: SparkSession, statement: AlterStreamingTable, host: Callable[[], Host]) -> Answer:
    """Alter a streaming table, when Spark executes the command."""
    name = target.qualified(spark, statement.name)
    options = {key: given for key, given in statement.settings.items() if is_option_key(key)}
    resolve_levels(spark, {Level.PROPERTY: options})  # refuses what is no value
    return whole_command(spark, "ALTER STREAMING TABLE", lambda _: _alter(spark, host(), name, statement))


def declare(spark: SparkSession, statement: DeclareStreamingTable, text: str, host: Callable[[], Host]) -> Answer:
    """Create a streaming table without a query, when Spark executes the command; a flow that comes later fills it."""
    for column in statement.definition.columns:
        if not column.type:
            raise SchemaError(
                f"The column `{column.name}` has no type, and there is no query that tells it. Write {column.name} BIGINT, say.",
                statement.position,
            )
    name = target.qualified(spark, statement.name)
    return whole_command(spark, "CREATE STREAMING TABLE", lambda _: _declare(spark, host(), name, statement, text))


def _declare(spark: SparkSession, host: Host, name: tuple[str, ...], statement: DeclareStreamingTable, text: str) -> str:
    shown = ".".join(name)
    host.views.refuse_as_target(spark, name)
    is_there = target.exists(spark, name)
    of_table = target.describe(spark, name).properties if is_there else {}
    is_declared = DECLARED_PROPERTY in of_table
    if is_there and not (statement.replace and (is_declared or FLOW_PROPERTY in of_table)):
        if statement.replace:
            raise NameTakenError(
                f"There is a table {shown} already, and it is no streaming table. Choose another name, or DROP it."
            )
        if statement.refresh and is_declared:
            _refuse_difference(spark, name, of_table, statement)
        if statement.if_not_exists or (statement.refresh and is_declared):
            return f"streaming table {shown} exists already, and stays as it is"
        raise NameTakenError(f"There is a table {shown} already. Choose another name, or DROP it.")
    if (flow := next((r.spec for r in current(host.flows.records()) if same_name(r.spec.target, name)), None)) is not None:
        raise NameTakenError(f"Flow `{flow.name}` keeps {shown} up to date. DROP STREAMING TABLE drops both.")
    definition = statement.definition
    schema = StructType([StructField(each.name, DataType.fromDDL(each.type)) for each in definition.columns])
    constraints = constraint_checks.qualified(spark, constraints_of(definition.properties))
    for constraint in constraints:
        constraint_checks.check_condition(spark, schema, constraint)
    properties = {key: given.value for key, given in definition.properties.items()} | {DECLARED_PROPERTY: text}
    properties |= {f"{EXPECT_PROPERTY}{each.name}": each.written for each in constraints if each.quarantine}
    table_definition.create(spark, name, schema, definition, properties, statement.replace)
    return (
        f"streaming table {shown} created; a flow fills it: CREATE FLOW .. AS AUTO CDC INTO {shown} .., or INSERT INTO {shown} .."
    )


def _refuse_difference(
    spark: SparkSession, name: tuple[str, ...], properties: Mapping[str, str], statement: DeclareStreamingTable
) -> None:
    """Raise UnsupportedError if CREATE OR REFRESH of a declared table wants another table than there is, apart from comments.

    Args:
        properties: of the table.
    """
    before, wanted = grammar.parse(properties[DECLARED_PROPERTY]), statement.definition
    columns = _columns(before.definition) if isinstance(before, DeclareStreamingTable) else None
    stated = {key: given.value for key, given in wanted.properties.items() if not key.startswith(EXPECT_PROPERTY)}
    kept = {key: value for key, value in stated.items() if not key.lower().startswith(ONLY_IN_STATEMENTS)}
    found = [key for key, value in kept.items() if properties.get(key, value if is_option_key(key) else None) != value]
    found += ["columns"] if columns != _columns(wanted) else []
    there = {key: ValueText(value) for key, value in properties.items()}
    if _constraints(spark, wanted.properties) != _constraints(spark, there):
        found.append("constraints")
    if found:
        raise UnsupportedError(
            f"The streaming table {'.'.join(name)} was declared otherwise: {', '.join(found)}. ALTER STREAMING TABLE changes "
            "constraints and properties, and CREATE OR REPLACE STREAMING TABLE makes it anew.",
            statement.position,
        )


def _columns(definition: TableDefinition) -> list[tuple[object, ...]]:
    return [(fold(each.name), DataType.fromDDL(each.type), each.is_required) for each in definition.columns]


def _constraints(spark: SparkSession, properties: Mapping[str, ValueText]) -> set[tuple[str, str]]:
    found = constraint_checks.qualified(spark, constraints_of(properties))
    return {(each.name.lower(), normal_text(each.written, folds_case=True)) for each in found}


def unless_kept(
    spark: SparkSession, statement: CreateStreamingTable, job: DeferredCommand, host: Callable[[], Host]
) -> DeferredCommand:
    """Return the job of CREATE STREAMING TABLE in BATCH mode. It fails if a flow writes to the table, which it would replace."""
    name = target.qualified(spark, statement.name)

    def run() -> list[str]:
        specs = (view.record.spec for view in host().flows.views())
        flow = next((spec for spec in specs if same_name(spec.target, name)), None)
        if flow is not None and not statement.if_not_exists:
            raise NameTakenError(
                f"Flow `{flow.name}` keeps {'.'.join(name)} up to date, and with {RUNTIME_MODE.key} = BATCH this statement would "
                f"replace what it has written. DROP FLOW it first, or set {RUNTIME_MODE.key} = STREAMING."
            )
        return job.run()

    return DeferredCommand(job.name, run)


def drop(spark: SparkSession, host: Host, name: tuple[str, ...], if_exists: bool) -> str:
    """Drop a streaming table's flow and the table, in this order.

    1. The flow is stopped and forgotten. After a crash here the table stands without a flow; the same statement drops it.
    2. The table is dropped, if it is the one that the flow made: somebody may have dropped that, and made another one.
    """
    text = ".".join(name)
    flow = _flow_of(host, name)
    there = target.exists(spark, name)
    if flow is None and not there:
        if if_exists:
            return f"there is no streaming table {text}"
        raise NotFoundError(f"There is no streaming table {text}.")
    if flow is None:
        refuse_other_table(spark, host, name)
        spark.sql(f"DROP TABLE {quote_parts(name)}")
        return f"streaming table {text} dropped"
    is_own = target.is_made_by(spark, name, FLOW_PROPERTY, flow.id, flow.target_id)
    host.flows.drop(flow.qualified_name, if_exists=True)
    if there and not is_own:
        return f"flow {flow.name} dropped; {text} stays: it is not the table that the flow made. DROP TABLE drops it"
    if there:
        spark.sql(f"DROP TABLE {quote_parts(name)}")
    return f"streaming table {text} dropped; its flow {flow.name} is gone"


def refuse_other_table(spark: SparkSession, host: Host, name: tuple[str, ...]) -> None:
    """Raise UnsupportedError unless a table is what a flow that is gone has left."""
    text = ".".join(name)
    try:
        properties = target.describe(spark, name).properties
    except UnsupportedError:  # a view, or no Delta table
        properties = {}
    maker, is_declared = properties.get(FLOW_PROPERTY), DECLARED_PROPERTY in properties
    if maker is None and not is_declared:
        raise UnsupportedError(f"{text} is no streaming table, but a table that flows may write into. DROP TABLE it.")
    specs = (view.record.spec for view in host.flows.views())
    spec = next((spec for spec in specs if spec.id == maker), None)
    if spec is not None:  # a clone has the properties of its source, and so has a table under its new name
        raise UnsupportedError(
            f"{text} is a copy of the streaming table {'.'.join(spec.target)}, or that table under another name, and its flow "
            f"`{spec.name}` does not write there. DROP TABLE it."
        )


def _alter(spark: SparkSession, host: Host, name: tuple[str, ...], statement: AlterStreamingTable) -> str:
    flow = _flow_of(host, name)
    text = ".".join(name)
    if flow is None:
        if target.exists(spark, name):
            raise UnsupportedError(f"{text} is no streaming table that a flow keeps up to date. ALTER TABLE it.")
        raise NotFoundError(f"There is no streaming table {text}.")
    target.check_same_table(spark, flow)
    options = {option(key, given.position).key: given.value for key, given in statement.settings.items() if is_option_key(key)}
    if options:
        host.flows.alter(flow.qualified_name, options, lambda: spark.sql(statement.text))
    else:
        spark.sql(statement.text)
    return f"streaming table {text} altered"


def _flow_of(host: Host, name: tuple[str, ...]) -> FlowSpec | None:
    """Return the record of the flow that created a streaming table, by the table's qualified name."""
    specs = (record.spec for record in current(host.flows.records()))
    return next((spec for spec in specs if spec.owns_target and same_name(spec.target, name)), None)
