"""SAVEPOINT FLOW, RESTORE FLOW, DROP SAVEPOINT and SHOW SAVEPOINTS."""

from __future__ import annotations

from pyspark.sql import SparkSession

from sqlext.commands.answers import Answer, Table, whole_command
from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.views.manager import ViewManager
from sqlext.plan.savepoint import Savepoint
from sqlext.quoting import sql_name
from sqlext.sql.savepoint_statements import DropSavepoint, MakeSavepoint, RestoreFlow, SavepointStatement, ShowSavepoints

_SAVEPOINTS = {
    "name": "STRING",
    "flow": "STRING",
    "target": "STRING",
    "created": "TIMESTAMP",
    "target_version": "BIGINT",
    "sources": "STRING",
    "bytes": "BIGINT",
}


def answer(
    spark: SparkSession,
    statement: SavepointStatement,
    flows: FlowManager,
    views: ViewManager,
) -> Answer:
    """Answer a statement about savepoints; those that change something do so when Spark executes them."""
    name = target.qualified(spark, statement.flow) if statement.flow else ()
    if name and views.has(name):
        raise UnsupportedError(
            f"{'.'.join(name)} is a materialized view, and savepoints are of flows: a refresh computes a view from its tables."
        )
    match statement:
        case ShowSavepoints():
            return _listed(name, flows)
        case MakeSavepoint(name=wanted):
            return whole_command(spark, "SAVEPOINT FLOW", lambda c: flows.savepoints.make(name, wanted, c))
        case RestoreFlow(name=wanted):
            return whole_command(spark, "RESTORE FLOW", lambda c: flows.savepoints.restore(name, wanted, c))
        case DropSavepoint(name=wanted, if_exists=exists):
            return whole_command(spark, "DROP SAVEPOINT", lambda _: flows.savepoints.drop(name, wanted, exists))


def shown(savepoint: Savepoint) -> str:
    """Return a savepoint in one line, for DESCRIBE FLOW."""
    made = savepoint.time.astimezone()
    read = ", ".join(savepoint.positions) or "nothing read"
    return f"{made:%Y-%m-%d %H:%M:%S}: version {savepoint.target_version} of the table; {read}; {savepoint.bytes} bytes"


def _listed(name: tuple[str, ...], flows: FlowManager) -> Table:
    rows = [
        {
            "name": savepoint.name,
            "flow": sql_name(spec.qualified_name),
            "target": ".".join(spec.target),
            "created": savepoint.time,
            "target_version": savepoint.target_version,
            "sources": "; ".join(savepoint.positions),
            "bytes": savepoint.bytes,
        }
        for spec, savepoint in flows.savepoints.listed(name)
    ]
    return Table(_SAVEPOINTS, rows)
