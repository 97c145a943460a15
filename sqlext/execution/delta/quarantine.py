"""Quarantine tables: rows that violate a constraint, with the names of the constraints, the flow, the micro-batch and the time.

The rows of micro-batches are appended before those of the same flush are in the flow's table, in a commit with the flow's
transaction: a flush that is done again after a crash finds it there, and appends those of later micro-batches only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from sqlext.errors import NameTakenError, Position, SchemaError, UnsupportedError
from sqlext.execution.delta import delta_log, staged_files, target
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.plan.constraints import (
    BATCH_COLUMN,
    FLOW_COLUMN,
    FLOW_ID_COLUMN,
    INPUT_COLUMN,
    INPUT_MARK,
    QUARANTINE_COLUMNS,
    TIME_COLUMN,
)
from sqlext.plan.flow_spec import FlowSpec
from sqlext.quoting import quote, quote_parts, quote_string, sql_name
from sqlext.spark.settings import session_settings

_MADE_BY = "sqlext.quarantine"
"""The table property with the id of the flow that made the table."""


def check(spark: SparkSession, name: tuple[str, ...], columns: Mapping[str, str], position: Position | None) -> None:
    """See that rows can be quarantined in a table, if it is there already.

    Args:
        spark: the session.
        name: the table, qualified.
        columns: the DDL types of the rows' columns.
        position: of the clause.

    Raises:
        SchemaError: a column of the rows has the name of one that says why the row is there.
        NameTakenError: the table has other columns.
        UnsupportedError: it is not a Delta table, or one that forgets what was committed to it.
    """
    check_names(columns, position)
    if not target.exists(spark, name):
        return
    try:
        table = target.describe(spark, name)
    except UnsupportedError as error:
        raise UnsupportedError(error.message, position) from None
    delta_log.refuse_forgetting(sql_name(name), table.properties, position)
    found, wanted = table.columns, _columns(columns)
    if {key.lower(): _type(kind) for key, kind in found.items()} != {key.lower(): _type(kind) for key, kind in wanted.items()}:
        raise NameTakenError(
            f"There is a table {'.'.join(name)} already, and rows cannot be quarantined in it: its columns are "
            f"{_listed(found)}, and not {_listed(wanted)}. Name another table; it is made if it is not there.",
            position,
        )


def check_names(columns: Iterable[str], position: Position | None) -> None:
    """See that no column of rows has the name of one that quarantine tables have beside these; see `check`."""
    taken = next((each for each in columns if each.lower() in QUARANTINE_COLUMNS), None)
    if taken is not None:
        raise SchemaError(
            f"The column `{taken}` has the name of a column that quarantine tables have beside the row's. Give it another name.",
            position,
        )


def create(spark: SparkSession, name: tuple[str, ...], columns: Mapping[str, str], flow_id: str) -> None:
    """Create a quarantine table, unless it is there.

    Args:
        spark, name, columns: as for `check`.
        flow_id: the flow that makes it.
    """
    if target.exists(spark, name):
        return
    listed = ", ".join(f"{quote(column)} {target.ddl_of(_type(kind))}" for column, kind in _columns(columns).items())
    properties = {_MADE_BY: flow_id, "delta.enableDeletionVectors": "true"}  # REPLAY QUARANTINE takes rows out one by one
    options = ", ".join(f"{quote_string(key)} = {quote_string(value)}" for key, value in properties.items())
    with session_settings(spark, delta_log.REMEMBERS):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {quote_parts(name)} ({listed}) USING delta TBLPROPERTIES ({options})")


def undo(spark: SparkSession, name: tuple[str, ...], flow_id: str) -> None:
    """Delete what a flow which is undone has quarantined, and the table if it has made it; rows of others keep it."""
    if not target.exists(spark, name):
        return
    is_made = target.describe(spark, name).properties.get(_MADE_BY) == flow_id
    if is_made and not spark.table(quote_parts(name)).where(F.col(FLOW_ID_COLUMN) != flow_id).take(1):
        spark.sql(f"DROP TABLE {quote_parts(name)}")
    else:
        forget(spark, name, flow_id)


def last_batch(spark: SparkSession, name: tuple[str, ...], spec: FlowSpec) -> int:
    """Return the last micro-batch of a flow whose rows are in a quarantine table; -1: there is none."""
    if not target.exists(spark, name):
        return -1
    found = last_transaction(spark, target.describe(spark, name).location, spec.application)
    return -1 if found is None else found


def append(name: tuple[str, ...], rows: DataFrame, spec: FlowSpec, first: int, last: int) -> None:
    """Append rows of micro-batches in one commit, unless the last of them is there.

    Args:
        name: the table, qualified; it is made again if somebody has dropped it.
        rows: rows of the flow's table, with `CONSTRAINTS_COLUMN`, perhaps `INPUT_MARK`, and `BATCH_COLUMN`; without that, all are
            of `last`.
        spec: the flow.
        first, last: the micro-batches.
    """
    spark = rows.sparkSession
    of_row = {each.name: target.ddl_of(each.dataType) for each in rows.drop(*QUARANTINE_COLUMNS, INPUT_MARK).schema}
    create(spark, name, of_row, spec.id)
    batch = F.col(BATCH_COLUMN) if BATCH_COLUMN in rows.columns else F.lit(last)
    columns = {
        INPUT_COLUMN: F.col(INPUT_MARK) if INPUT_MARK in rows.columns else F.lit(None).cast("string"),
        FLOW_COLUMN: F.lit(sql_name(spec.qualified_name)),
        FLOW_ID_COLUMN: F.lit(spec.id),
        BATCH_COLUMN: batch.cast(QUARANTINE_COLUMNS[BATCH_COLUMN]),
        TIME_COLUMN: F.current_timestamp(),
    }
    rows = rows.withColumns(columns).select(*map(quote, _columns(of_row)))
    info = {"flow": spec.name, "flow_id": spec.id, "first_batch": first, "last_batch": last, "reason": "quarantine"}
    identity = CommitIdentity(spec.application, last, json.dumps({"sqlext": info}))
    if not _has_appended(name, rows, of_row, identity):
        (
            rows.write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")  # the flow's table may have got a new column (schema-evolution)
            .option("txnAppId", identity.app_id)
            .option("txnVersion", identity.app_version)
            .option("userMetadata", identity.metadata)
            .saveAsTable(quote_parts(name))
        )


def _has_appended(name: tuple[str, ...], rows: DataFrame, of_row: Mapping[str, str], identity: CommitIdentity) -> bool:
    """Append rows whose columns are the table's, in a third of the time that Spark's writer takes; return whether they are."""
    found = target.describe(rows.sparkSession, name)
    if {key: _type(kind) for key, kind in found.columns.items()} != {key: _type(kind) for key, kind in _columns(of_row).items()}:
        return False
    staged = staged_files.stage(rows, found.location)
    return staged is not None and staged_files.append(rows.sparkSession, found.location, [staged], identity)


def forget(spark: SparkSession, name: tuple[str, ...], flow_id: str) -> None:
    """Delete the rows of a flow that another one has replaced, which reads its input again."""
    if target.exists(spark, name) and FLOW_ID_COLUMN in target.describe(spark, name).columns:  # else somebody has made another
        DeltaTable.forName(spark, quote_parts(name)).delete(F.col(FLOW_ID_COLUMN) == flow_id)


def rows_of(spark: SparkSession, name: tuple[str, ...], flow_id: str, last: int) -> DataFrame:
    """Return the rows that a flow has quarantined in its micro-batches up to `last`."""
    return spark.table(quote_parts(name)).where((F.col(FLOW_ID_COLUMN) == flow_id) & (F.col(BATCH_COLUMN) <= last))


def set_back(spark: SparkSession, name: tuple[str, ...], rows: DataFrame, spec: FlowSpec) -> None:
    """Replace the rows that a flow has quarantined by others, in one commit; those of other flows stay.

    Args:
        spark: the session.
        name: the table, qualified; it is made again if somebody has dropped it.
        rows: as `rows_of` returned them; columns that the table has got since are null.
        spec: the flow.
    """
    create(spark, name, {c.name: target.ddl_of(c.dataType) for c in rows.drop(*QUARANTINE_COLUMNS).schema}, spec.id)
    writer = rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static")
    writer = writer.option("replaceWhere", f"{quote(FLOW_ID_COLUMN)} = {quote_string(spec.id)}")
    info = {"flow": spec.name, "flow_id": spec.id, "reason": "restore", "savepoint": spec.restored}
    writer.option("userMetadata", json.dumps({"sqlext": info})).saveAsTable(quote_parts(name))


def _columns(columns: Mapping[str, str]) -> dict[str, str]:
    return {**columns, **QUARANTINE_COLUMNS}


def _type(kind: str) -> DataType:
    """Return a type with nulls allowed everywhere; lengths of CHAR and VARCHAR are those of the flow's table."""
    return target.with_nulls(DataType.fromDDL(kind))


def _listed(columns: Mapping[str, str]) -> str:
    pairs: Sequence[str] = [f"{name} {kind}" for name, kind in columns.items()]
    return f"({', '.join(pairs)})"
