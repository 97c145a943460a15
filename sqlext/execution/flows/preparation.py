"""What is checked of a flow before anything is made for it, or taken from the one whose place it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows.creation import (
    FlowChecks,
    FlowRequest,
    check_definition,
    check_place,
    check_query,
    key_of,
    refuse_doubled_keys,
    refuse_rows_of_others,
    refuse_to_replace,
)
from sqlext.execution.flows.registry import Records
from sqlext.execution.flows.state_choice import check_state, state_of
from sqlext.execution.streaming import queries
from sqlext.options import STATE_BACKEND, Options
from sqlext.plan.flow_spec import StateBackend
from sqlext.plan.job_graph import QUALIFIES, OutputMode
from sqlext.spark.grouping_columns import grouping_columns
from sqlext.spark.storage import HadoopPath


def prepare(
    session: SparkSession,
    request: FlowRequest,
    name: tuple[str, ...],
    records: Records,
    options: Options,
    rocksdb_because: str | None,
) -> FlowChecks:
    """Check all that can be checked before anything is touched.

    Args:
        session: the flow's own.
        name: of the target, qualified.
        options: of the flow.
        rocksdb_because: as `no_delta_state` tells.

    Raises:
        UnsupportedError: Spark or sqlext cannot keep the query up to date.
        NameTakenError: the table is there, and it is not the one to replace.
        SchemaError, NotFoundError: the table cannot have, or take, the query's columns.
    """
    checks = checked(session, request, records, options, rocksdb_because)
    check_place(session, request, name)
    if request.definition is not None:
        return checks
    plan, analysis = request.plan, checks.analysis
    table = target.describe(session, name)
    columns = target.map_columns(analysis.output, table, request.by_name, request.columns)
    key = key_of(plan, analysis.streams[0], columns)
    target.check_key(analysis.output, table, [column for column in columns if column.target in key])
    if plan.output_mode is OutputMode.UPDATE and not key:
        refuse_rows_of_others(session, request, name)
    return replace(checks, table=table, columns=columns)


def checked(
    session: SparkSession, request: FlowRequest, records: Records, options: Options, rocksdb_because: str | None
) -> FlowChecks:
    """The checks that do not look at the target, so that EXPLAIN can do them of a table that is there already.

    Args, Raises: as for `prepare`.
    """
    plan = request.plan
    analysis = check_query(session, plan, records, options)
    check_definition(request, analysis)
    if request.definition is None:
        refuse_to_replace(request)
        refuse_doubled_keys(request, analysis.output)
        analysis = replace(analysis, streams=tuple(queries.with_unique_names(frame) for frame in analysis.streams))
    for frame in analysis.streams if plan.output_mode is OutputMode.UPDATE else ():
        _refuse_key_without_order(frame, grouping_columns(frame))
    if options[STATE_BACKEND] == StateBackend.DELTA:
        check_state(analysis.streams, plan.output_mode, rocksdb_because)
    states = tuple(state_of(frame, plan.output_mode, rocksdb_because) for frame in analysis.streams)
    durable = tuple(queries.durable_because(frame, plan.output_mode) for frame in analysis.streams)
    return FlowChecks(analysis, states, durable)


def try_table(session: SparkSession, request: FlowRequest, checks: FlowChecks, home: HadoopPath) -> None:
    """See whether Delta takes the definition of a table that is to replace another one: a table like it is made, and goes.

    Args:
        home: the flow's folder.

    Raises:
        AnalysisException: Delta's reason against it.
    """
    if request.definition is not None:
        schema = checks.analysis.output.drop(QUALIFIES).schema
        target.try_out(session, home.child("trial"), schema, request.definition, request.properties)


def _refuse_key_without_order(frame: DataFrame, key: Sequence[str]) -> None:
    """A flush finds the row of a group by its key, and Spark compares no maps, which it groups by all the same."""
    for name in key:
        kind = target.ddl_of(frame.schema[name].dataType)
        if "MAP<" in kind:
            raise UnsupportedError(
                f"The key `{name}` of the query is {kind}, and Spark cannot compare maps, so no row of the table could be found "
                f"by it. Group by array_sort(map_entries({name})) instead."
            )
