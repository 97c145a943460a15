"""DROP and ALTER STREAMING TABLE: a table and the flow that keeps it up to date, as one thing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from sqlext import cancellation
from sqlext.answers import Answer, Deferred
from sqlext.errors import NotFoundError, UnsupportedError
from sqlext.execution import target
from sqlext.execution.creation import FLOW_PROPERTY, same_name
from sqlext.execution.host import FlowHost
from sqlext.execution.spec import FlowSpec
from sqlext.names import quote_parts
from sqlext.option_levels import resolve_levels
from sqlext.options import Level, is_option_key, option
from sqlext.statements import AlterStreamingTable, DropStreamingTable


def answer(spark: SparkSession, statement: DropStreamingTable | AlterStreamingTable, host: Callable[[], FlowHost]) -> Answer:
    """Drop or alter a streaming table, when Spark executes the command."""
    name = target.qualified(spark, statement.name)
    if isinstance(statement, DropStreamingTable):
        verb = "DROP STREAMING TABLE"
        return _to_its_end(spark, verb, lambda: _drop(spark, host(), name, statement.if_exists))
    options = {key: given for key, given in statement.settings.items() if is_option_key(key)}
    resolve_levels(spark, {Level.PROPERTY: options})  # refuses what is no value
    return _to_its_end(spark, "ALTER STREAMING TABLE", lambda: _alter(spark, host(), name, statement))


def _to_its_end(spark: SparkSession, verb: str, change: Callable[[], str]) -> Deferred:
    """A command that is not left half done when its client takes it back."""

    def run(_: threading.Event) -> str:
        return change()

    return Deferred(verb, lambda: [cancellation.to_its_end(spark, verb, run)])


def _drop(spark: SparkSession, host: FlowHost, name: tuple[str, ...], if_exists: bool) -> str:
    """Drop flow and table, in this order.

    1. The flow is stopped and forgotten. After a crash here the table stands without a flow; the same statement drops it.
    2. The table is dropped.
    """
    text = ".".join(name)
    flow = _flow_of(host, name)
    there = target.exists(spark, name)
    if flow is None and not there:
        if if_exists:
            return f"there is no streaming table {text}"
        raise NotFoundError(f"There is no streaming table {text}.")
    if flow is None and FLOW_PROPERTY not in target.describe(spark, name).properties:
        raise UnsupportedError(f"{text} is no streaming table, but a table that flows may write into. DROP TABLE it.")
    dropped = f"; its flow {flow.name} is gone" if flow is not None else ""
    if flow is not None:
        host.drop(flow.qualified_name, if_exists=True)
    if there:
        spark.sql(f"DROP TABLE {quote_parts(name)}")
    return f"streaming table {text} dropped{dropped}"


def _alter(spark: SparkSession, host: FlowHost, name: tuple[str, ...], statement: AlterStreamingTable) -> str:
    flow = _flow_of(host, name)
    text = ".".join(name)
    if flow is None:
        if target.exists(spark, name):
            raise UnsupportedError(f"{text} is no streaming table that a flow keeps up to date. ALTER TABLE it.")
        raise NotFoundError(f"There is no streaming table {text}.")
    options = {option(key, given.position).key: given.value for key, given in statement.settings.items() if is_option_key(key)}
    if options:
        host.alter(flow.qualified_name, options)
    spark.sql(statement.sql)
    return f"streaming table {text} altered"


def _flow_of(host: FlowHost, name: tuple[str, ...]) -> FlowSpec | None:
    """The record of the flow that made a streaming table, of its qualified name."""
    specs = (view.record.spec for view in host.views())
    return next((spec for spec in specs if spec.owns_target and same_name(spec.target, name)), None)
