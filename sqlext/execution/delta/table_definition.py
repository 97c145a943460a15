"""Tables made by the definitions of statements: a flow's or a view's own, and empty models of such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from sqlext.execution.delta import delta_log, target
from sqlext.execution.delta.column_comments import Comments, with_comments
from sqlext.plan.job_graph import ColumnDefinition, TableDefinition
from sqlext.quoting import quote, quote_parts, quote_string
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath


def create(
    spark: SparkSession,
    name: Sequence[str],
    schema: StructType,
    definition: TableDefinition,
    properties: Mapping[str, str],
    replaces: bool,
) -> target.Target:
    """Create a table by the definition of a statement.

    Args:
        spark: the session.
        name: the table's name, qualified.
        schema: the schema of the query's output.
        definition: the user's clauses, as written.
        properties: all of its table properties, in addition to ours.
        replaces: whether to replace an existing table of that name.

    Raises:
        SchemaError: Delta cannot store a column under its name.
    """
    target.check_names([column.name for column in definition.columns] or schema.names, properties)
    listed = definition.columns or tuple(ColumnDefinition(name) for name in schema.names)
    columns = ", ".join(_column_clause(*pair, definition.comments) for pair in zip(schema.fields, listed, strict=True))
    all_properties = {"delta.enableDeletionVectors": "true", **properties}
    options = ", ".join(f"{quote_string(k)} = {quote_string(v)}" for k, v in all_properties.items())
    verb = "CREATE OR REPLACE TABLE" if replaces else "CREATE TABLE"
    clauses = " ".join(definition.clauses)
    listed_columns = f"({columns})" if columns else ""
    with session_settings(spark, delta_log.REMEMBERS):
        spark.sql(f"{verb} {quote_parts(name)} {listed_columns} USING delta {clauses} TBLPROPERTIES ({options})")
    return target.describe(spark, name)


@contextmanager
def modelled(
    spark: SparkSession, location: HadoopPath, schema: StructType, definition: TableDefinition, properties: Mapping[str, str]
) -> Iterator[target.Target]:
    """Create an empty table elsewhere, with the definition of one that is to be replaced, and delete it after the block.

    Args:
        spark: the session.
        location: an unused location.
        schema, definition, properties: as for `create`; the clause LOCATION is left out.

    Raises:
        AnalysisException: Delta does not accept the definition.
    """
    clauses = tuple(clause for clause in definition.clauses if clause[:8].upper() != "LOCATION")
    try:
        yield create(
            spark, ("delta", location.location), schema, replace(definition, clauses=clauses), properties, replaces=False
        )
    finally:
        location.delete()


def try_out(
    spark: SparkSession, location: HadoopPath, schema: StructType, definition: TableDefinition, properties: Mapping[str, str]
) -> None:
    """Check whether Delta accepts a table's definition; see `modelled`."""
    with modelled(spark, location, schema, definition, properties):
        pass


def _column_clause(field: StructField, column: ColumnDefinition, comments: Comments) -> str:
    path = (column.name.lower(),)
    said = comments.get(path, column.comment)
    kind = column.type or target.ddl_of(with_comments(field.dataType, path, comments))
    if column.type and any(len(each) > 1 and each[:1] == path for each in comments):
        kind = target.ddl_of(with_comments(DataType.fromDDL(column.type), path, comments))
    required = " NOT NULL" if column.is_required else ""
    comment = f" COMMENT {quote_string(said)}" if said is not None else ""
    return f"{quote(column.name)} {kind}{required}{comment}"
