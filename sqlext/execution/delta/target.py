"""The Delta table that a flow keeps up to date: found, checked and altered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.catalog import Column as CatalogColumn
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sqlext.errors import NotFoundError, Position, SchemaError, UnsupportedError, did_you_mean
from sqlext.execution.delta import delta_log
from sqlext.plan.constraints import OF_ERRORS
from sqlext.plan.flow_spec import Column as ColumnMapping
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import INTERNAL_PREFIX, QUALIFIES, ColumnDefinition
from sqlext.quoting import quote, quote_parts, quote_string, sql_name, zoned
from sqlext.spark import column_types, delta_tables, failures, jvm
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

_SESSION_CATALOG = "spark_catalog"
_BAD_CHARACTERS = " ,;{}()\n\t="
_HIDDEN = {
    "delta.enableDeletionVectors": "true",
    "delta.deletedFileRetentionDuration": "interval 1 hour",  # longer than anybody reads one version
    "delta.checkpointInterval": "50",  # only a start reads the log, and a checkpoint takes as long as a flush of few rows
    "delta.enableChangeDataFeed": "false",  # nobody asks which rows have changed, whatever a session has as a default
    "delta.enableRowTracking": "false",
}
"""Properties of tables that belong to a flow alone: each flush may rewrite a small one."""


@dataclass(frozen=True)
class Target:
    """A Delta table as it was when a flow was created for it.

    Attributes:
        name: catalog, database and table.
        location: the location of its files.
        table_id: Delta's id; a table that is dropped and recreated has another.
        columns: the columns' DDL types by name, in order.
        properties: its table properties.
    """

    name: tuple[str, ...]
    location: str
    table_id: str
    columns: Mapping[str, str]
    properties: Mapping[str, str]


def ddl_of(kind: DataType) -> str:
    """Return a type as DDL with nulls allowed everywhere in it, which means the same in each session.

    Unlike `simpleString`, it quotes the names inside structs.
    """
    return zoned(StructType([StructField("c", with_nulls(kind))]).toDDL().removeprefix("c "))


def with_nulls(kind: DataType) -> DataType:
    """Return a type with nulls allowed everywhere in it.

    Spark's analysis may find that an expression returns no nulls, and that the same values read from files may. MERGE cannot
    write the latter into a column that refuses nulls inside.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(with_nulls(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(with_nulls(kind.keyType), with_nulls(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, with_nulls(each.dataType), True, each.metadata) for each in kind])
    return kind


def qualified(spark: SparkSession, name: Sequence[str]) -> tuple[str, ...]:
    """Return catalog, database and table of a name of one to three parts; schemas of Spark's own catalog are in lower case.

    Raises:
        NotFoundError: the name has more parts.
    """
    if len(name) > 3:
        raise NotFoundError(f"`{'.'.join(name)}` is not a table name. Use at most catalog.database.table.")
    context = (spark.catalog.currentCatalog(), spark.catalog.currentDatabase())
    catalog, database, table = (*context[: 3 - len(name)], *name)
    return catalog, database.lower() if catalog == _SESSION_CATALOG else database, table


def path_of(name: Sequence[str]) -> str | None:
    """Return the folder of a Delta table that is named by its path, as in delta.`/folder`; None for a table of a catalog."""
    is_path = len(name) > 1 and name[-2].lower() == "delta" and urlsplit(name[-1]).path.startswith("/")
    return name[-1] if is_path else None


def exists(spark: SparkSession, name: Sequence[str]) -> bool:
    """Return whether there is a table or view of that name, or a Delta table in that folder."""
    if path := path_of(name):
        return bool(DeltaTable.isDeltaTable(spark, path))
    return bool(spark.catalog.tableExists(quote_parts(name)))


def place_of(spark: SparkSession, name: tuple[str, ...]) -> str | None:
    """Return the folder of a Delta table, or of the managed table that would be made under its name; None: not known yet."""
    if not exists(spark, name):
        return jvm.default_location(spark, name)
    try:
        return delta_tables.named(spark, quote_parts(name))[0]
    except AnalysisException:  # a view, or no Delta table
        return None


def describe(spark: SparkSession, name: Sequence[str]) -> Target:
    """Return the target of that name.

    Raises:
        NotFoundError: there is no such table.
        UnsupportedError: it is a view, or not a Delta table.
    """
    text = ".".join(name)
    if not exists(spark, name):
        if path := path_of(name):
            raise NotFoundError(f"There is no Delta table in {path}.")
        tables = [row.tableName for row in spark.sql(f"SHOW TABLES IN {quote_parts(name[:2])}").collect()]
        raise NotFoundError(f"There is no table {text}.{did_you_mean(name[-1], tables)} A flow writes to an existing table.")
    try:
        location, table_id, properties = delta_tables.named(spark, quote_parts(name))
    except AnalysisException:
        raise UnsupportedError(f"{text} is {_kind(spark, name)}. A flow can only write to a Delta table.") from None
    columns = {column.name: ddl_of(column.dataType) for column in _columns(spark, name)}
    return Target(tuple(name), location, table_id, columns, properties)


def properties_of(spark: SparkSession, name: Sequence[str]) -> Mapping[str, str]:
    """Return the properties of a table; none if it is not there. Raises as `describe` does if it is no Delta table."""
    return describe(spark, name).properties if exists(spark, name) else {}


def delta_properties_of(spark: SparkSession, name: Sequence[str]) -> Mapping[str, str]:
    """Return the properties of a Delta table, by the name that Spark knows it by; none if it is no Delta table, or not there."""
    try:
        return delta_tables.named(spark, quote_parts(name))[2] if name and exists(spark, name) else {}
    except AnalysisException:
        return {}


def _columns(spark: SparkSession, name: Sequence[str]) -> Sequence[StructField]:
    try:
        return spark.table(quote_parts(name)).schema.fields
    except AnalysisException as error:
        if failures.condition_of(error) == "DELTA_READ_TABLE_WITHOUT_COLUMNS":  # declared, and no flow has given it columns yet
            return ()
        raise


def _kind(spark: SparkSession, name: Sequence[str]) -> str:
    """Return a phrase for a relation that is not a Delta table."""
    try:
        return f"a table of the format {spark.sql(f'DESCRIBE DETAIL {quote_parts(name)}').collect()[0]['format']}"
    except AnalysisException:
        return "a view, or not a Delta table"


def check_column_list(output: DataFrame, columns: Sequence[ColumnDefinition], key: Sequence[str]) -> None:
    """Check that a query's columns fit a streaming table's column list, in order.

    Args:
        output: the query's output, without columns of ours.
        columns: the column list.
        key: the query's columns that identify its rows.

    Raises:
        SchemaError: the numbers of columns differ, or a type cannot store the query's values.
    """
    if not columns:
        return
    names = ", ".join(column.name for column in columns)
    if len(columns) != len(output.columns):
        raise SchemaError(
            f"The column list has {len(columns)} columns ({names}), but the query has {len(output.columns)} "
            f"({', '.join(output.columns)}). List one name for each column of the query."
        )
    for name, column in zip(output.columns, columns, strict=True):
        if not column.type:
            continue
        is_key, stores = name in key, jvm.can_store(output, name, column.type)
        pads = column.type.lower().startswith("char") or "collate" in column.type.lower()  # treats different texts as equal
        if not stores or (is_key and (pads or not jvm.keeps_apart(output, name, column.type))):
            given = ddl_of(output.schema[name].dataType)
            apart = ": several groups would become one row" if is_key and stores else ""
            raise SchemaError(
                f"The column `{name}` of the query is {given}, but `{column.name}` of the column list is {column.type}{apart}. "
                "Cast it in the query."
            )


def check_names(columns: Sequence[str], properties: Mapping[str, str] | None = None) -> None:
    """Raise SchemaError if Delta cannot store a column under its name.

    Args:
        columns: the names.
        properties: the table's properties; with column mapping, files have other names and a column may have any.
    """
    if (properties or {}).get("delta.columnMapping.mode", "none").lower() != "none":
        return
    for column in columns:
        if any(character in column for character in _BAD_CHARACTERS):
            raise SchemaError(f"The column `{column}` cannot be stored under that name. Give it another: {column} AS name.")


def check_spelling(columns: Sequence[str], position: Position | None = None) -> None:
    """Raise SchemaError if names of columns differ by case only: Delta's tables, also those of a flow's state, take them for one.

    Args:
        columns: the names.
        position: of the statement.
    """
    spelt: dict[str, str] = {}
    for name in columns:
        if (other := spelt.setdefault(name.lower(), name)) != name:
            raise SchemaError(
                f"The columns `{other}` and `{name}` differ by case only, and Delta does not tell such columns apart. Give one "
                "another name in the query: .. AS name.",
                position,
            )


def home_of(flow_home: HadoopPath, relation: str) -> HadoopPath:
    """Return the folder of a streaming query's checkpoint and buffer: the flow's own, for the query that writes the target."""
    return flow_home.child(relation) if relation else flow_home


def table_in(home: HadoopPath) -> HadoopPath:
    """Return the location of a maintained aggregate's table."""
    return home.child("table")


def create_at(spark: SparkSession, location: HadoopPath, schema: StructType) -> None:
    """Create the table of a maintained aggregate or of its state: in no catalog, and nobody reads its old versions."""
    columns = StructType([StructField(each.name, with_nulls(each.dataType)) for each in schema])
    table = DeltaTable.create(spark).location(location.location).addColumns(columns)
    for key, value in _HIDDEN.items():
        table = table.property(key, value)
    with session_settings(spark, delta_log.REMEMBERS):
        table.execute()


def alter(
    spark: SparkSession, name: Sequence[str], properties: Mapping[str, str], removed: Sequence[str], comment: str | None
) -> None:
    """Set and remove properties of a table, and set its comment.

    Args:
        spark: the session.
        name: the table's name, qualified.
        properties: the properties to set.
        removed: the properties to remove.
        comment: a literal or NULL; None: the comment stays.
    """
    table = quote_parts(name)
    if properties:
        listed = ", ".join(f"{quote_string(key)} = {quote_string(value)}" for key, value in properties.items())
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({listed})")
    if removed:
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ({', '.join(map(quote_string, removed))})")
    if comment is not None:
        spark.sql(f"COMMENT ON TABLE {table} IS {comment}")


def map_columns(frame: DataFrame, target: Target, by_name: bool, listed: Sequence[str]) -> tuple[ColumnMapping, ...]:
    """Return the target column of each output column, as INSERT INTO would assign them.

    Raises:
        SchemaError: the numbers of columns differ, a column does not exist, or a type does not fit; the message names both sides.
    """
    output = [column for column in frame.columns if not column.startswith(INTERNAL_PREFIX)]
    names = {column.lower(): column for column in target.columns}
    text = ".".join(target.name)
    wanted = output if by_name else list(listed) or list(target.columns)
    unknown = next((column for column in wanted if column.lower() not in names), None)
    if unknown is not None:
        raise SchemaError(
            f"The table {text} has no column `{unknown}`.{did_you_mean(unknown, target.columns)} Its columns are "
            f"{', '.join(target.columns)}."
        )
    if len(wanted) != len(output):
        raise SchemaError(
            f"The query has {len(output)} columns ({', '.join(output)}), but the table {text} takes {len(wanted)} "
            f"({', '.join(wanted)}). Select as many columns as it takes, or list the target's columns."
        )
    columns = tuple(
        ColumnMapping(o, names[w.lower()], target.columns[names[w.lower()]]) for o, w in zip(output, wanted, strict=True)
    )
    for column in columns:
        if not jvm.can_store(frame, column.output, column.type):
            given = ddl_of(frame.schema[column.output].dataType)
            raise SchemaError(
                f"The column `{column.output}` of the query is {given}, but the column `{column.target}` of {text} is "
                f"{column.type}. Cast it in the query."
            )
    return columns


def spark_columns(spark: SparkSession, name: Sequence[str]) -> list[CatalogColumn]:
    """Return a table's columns as declared: CHAR and VARCHAR are not STRING here."""
    return spark.catalog.listColumns(quote_parts(name))


def check_key(frame: DataFrame, target: Target, key: Sequence[ColumnMapping]) -> None:
    """Raise SchemaError if a key column of the target cannot distinguish values that the query distinguishes."""
    kinds = {column.name: column.dataType for column in spark_columns(frame.sparkSession, target.name)}
    for column in key:
        kind = kinds[column.target]
        if kind.startswith("char(") or "collate" in kind.lower():
            raise SchemaError(
                f"The key column `{column.target}` of {'.'.join(target.name)} is {kind}, which treats different texts as "
                "equal, so several groups would become one row. Use STRING."
            )
        if not jvm.keeps_apart(frame, column.output, column.type):
            given = ddl_of(frame.schema[column.output].dataType)
            raise SchemaError(
                f"The key `{column.output}` of the query is {given}, but the column `{column.target}` of "
                f"{'.'.join(target.name)} is {column.type}: several groups would become one row. Cast it in the query, "
                "before GROUP BY."
            )


def in_target_columns(frame: DataFrame, columns: Sequence[ColumnMapping], has_qualifies: bool = False) -> DataFrame:
    """Return the query's output under the target's names and types, with the HAVING column last if there is one, and `OF_ERRORS`.

    A value that does not fit its column's type is an error, as in Spark's own INSERT, whatever the mode of CAST. Structs have
    their fields in the target's order.
    """
    frame = _in_order(frame, columns)
    listed = [f"{stored} AS {quote(c.target)}" for c, stored in zip(columns, _all_stored(frame, columns), strict=True)]
    marks = [each for each in OF_ERRORS if each in frame.columns]
    return frame.selectExpr(*listed, *([quote(QUALIFIES)] if has_qualifies else []), *marks)


def in_target_types(frame: DataFrame, columns: Sequence[ColumnMapping]) -> DataFrame:
    """Return the query's output under its own names, in the target's types; see `in_target_columns`."""
    frame = _in_order(frame, columns)
    stored = dict(zip((c.output for c in columns), _all_stored(frame, columns), strict=True))
    return frame.selectExpr(*(f"{expression} AS {quote(output)}" for output, expression in stored.items()))


def _in_order(frame: DataFrame, columns: Sequence[ColumnMapping]) -> DataFrame:
    return column_types.in_order(frame, {column.output: column.type for column in columns})


def _all_stored(frame: DataFrame, columns: Sequence[ColumnMapping]) -> list[str]:
    fields = frame.schema.fields
    found = {field.name.lower(): field for field in fields} | {field.name: field for field in fields}
    given = (found.get(c.output, found.get(c.output.lower())) for c in columns)
    return [_stored(frame, c, field) for c, field in zip(columns, given, strict=True)]


def _stored(frame: DataFrame, column: ColumnMapping, field: StructField | None) -> str:
    """Return the expression of a column's values in the type of the target's column."""
    name, cast = quote(column.output), f"CAST({quote(column.output)} AS {column.type})"
    given = "" if field is None else ddl_of(field.dataType)
    if field is None or given == column.type or jvm.can_hold(frame, field.name, column.type):
        return cast  # if there is no column of that name, Spark reports it
    if frame.sparkSession.conf.get("spark.sql.ansi.enabled") == "true":
        return cast  # raises the error by itself
    if "<" in column.type:
        raise SchemaError(
            f"The column `{column.output}` of the query is {given}, but the column `{column.target}` of the table is "
            f"{column.type}, which does not have all of its values. Cast it in the query."
        )
    tried = f"try_cast({name} AS {column.type})"
    said = quote_string(f"A value of the column `{column.output}`, which is {given}, is out of range for {column.type} of")
    where = quote_string(f" the table's column `{column.target}`. Cast it in the query, or give the table a wider type: ")
    error = f"raise_error(concat({said}, {where}, CAST({name} AS STRING)))"
    return f"CASE WHEN {name} IS NOT NULL AND {tried} IS NULL THEN {error} ELSE {tried} END"


def check_same_table(spark: SparkSession, spec: FlowSpec) -> None:
    """Raise NotFoundError if the target is gone, or another table has taken its place."""
    _check_place(spark, spec)
    _check_id(spark, spec)


def check_identity(spark: SparkSession, spec: FlowSpec) -> None:
    """Raise as `check_same_table` and `delta_log.refuse_forgetting` do.

    Of Spark's own catalog, only the entry is asked for, which takes a millisecond.
    """
    if jvm.catalog_location(spark, spec.target) != spec.target_location:
        _check_place(spark, spec)
    snapshot = _check_id(spark, spec)
    delta_log.refuse_forgetting(sql_name(spec.target), delta_tables.properties_of(spark, snapshot))


def _check_place(spark: SparkSession, spec: FlowSpec) -> None:
    text = ".".join(spec.target)
    if not exists(spark, spec.target):
        raise NotFoundError(
            f"The target {text} of flow `{spec.name}` was dropped. Drop the flow too (DROP FLOW), or recreate both."
        )
    if describe(spark, spec.target).location != spec.target_location:
        raise NotFoundError(
            f"The target {text} of flow `{spec.name}` is now another table, or has moved: it is not in {spec.target_location}. "
            "Drop the flow (DROP FLOW) and create it again."
        )


def _check_id(spark: SparkSession, spec: FlowSpec) -> Any:
    """Return the newest version of the target, if it is the flow's."""
    snapshot = delta_tables.snapshot(spark, spec.target_location)
    if str(snapshot.metadata().id()) != spec.target_id:
        text = ".".join(spec.target)
        raise NotFoundError(
            f"The target {text} of flow `{spec.name}` was dropped and recreated, or replaced, so the rows that the flow had "
            "written are gone. Drop the flow (DROP FLOW) and create it again."
        )
    return snapshot


def is_made_by(spark: SparkSession, name: Sequence[str], key: str, maker: str, table_id: str) -> bool:
    """Return whether a table is there and is the one that a flow or a materialized view has made, not another in its place.

    Args:
        spark: the session.
        name: the table's name, qualified.
        key: the table property that names the maker.
        maker: the maker's id.
        table_id: Delta's id of the table that was made; empty: not known yet.
    """
    if not exists(spark, name):
        return False
    try:
        table = describe(spark, name)
    except UnsupportedError:
        return False
    return table.table_id == table_id if table_id else table.properties.get(key) == maker
