"""What is checked of a flow before anything is made for it, or taken from the one whose place it takes."""

from __future__ import annotations

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import delta_log, table_definition, target
from sqlext.execution.flows import constraint_checks
from sqlext.execution.flows.creation import (
    Destination,
    FlowRequest,
    check_cycle,
    check_definition,
    check_place,
    check_sources,
    key_of,
    refuse_rows_of_others,
    refuse_to_replace,
)
from sqlext.execution.flows.registry import Records
from sqlext.execution.flows.renewal import refuse_checks
from sqlext.plan.job_graph import QUALIFIES, OutputMode
from sqlext.quoting import sql_name
from sqlext.spark.storage import HadoopPath


def prepare(request: FlowRequest, name: tuple[str, ...], records: Records) -> Destination | None:
    """Check all that can be checked before anything is touched.

    Args:
        name: of the target, qualified.

    Returns:
        The table that the flow is to write into; None: it makes one.

    Raises:
        UnsupportedError: sqlext cannot keep the table up to date.
        NameTakenError: the table is there, and it is not the one to replace.
        SchemaError, NotFoundError: the table cannot have, or take, the query's columns.
    """
    check_sources(request, records)
    check_cycle(request)
    check_definition(request)
    check_place(request, name)
    if request.definition is not None:
        delta_log.refuse_forgetting(sql_name(name), request.properties)
        if request.adopts and target.exists(request.session, name):
            refuse_checks(name, target.describe(request.session, name).properties)
        constraint_checks.check(request, name, None, records)
        return None
    capture = request.plan.capture
    if capture is not None and capture.ignores_nulls:
        raise UnsupportedError(
            "IGNORE NULL UPDATES keeps the value before, and a row that is in the table already is not among the changes of this "
            "stream: its values would be lost. Let CREATE STREAMING TABLE declare the table, or leave the clause out.",
            capture.position,
        )
    refuse_to_replace(request)
    query, output = request.flow.queries[0], request.flow.output
    table = target.describe(request.session, name)
    delta_log.refuse_forgetting(sql_name(name), table.properties)
    columns = target.map_columns(output, table, request.by_name, request.columns)
    key = key_of(query, columns)
    target.check_key(output, table, [column for column in columns if column.target in key])
    if request.plan.output_mode is OutputMode.UPDATE and not key:
        refuse_rows_of_others(request, name)
    constraint_checks.check(request, name, columns, records)
    return Destination(table, columns)


def try_table(request: FlowRequest, home: HadoopPath) -> None:
    """See whether Delta takes the definition of a table that is to replace another one: a table like it is made, and goes.

    Args:
        home: the flow's folder.

    Raises:
        AnalysisException: Delta's reason against it.
    """
    if request.definition is not None:
        schema = request.flow.output.drop(QUALIFIES).schema
        table_definition.try_out(request.session, home.child("trial"), schema, request.definition, request.properties)
