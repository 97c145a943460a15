"""What a change of a source does to a flow that reads it: other columns, wider types, and rows that were changed or deleted."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField

from sqlext.errors import FlowError, SchemaError
from sqlext.execution.delta import delta_log, nested_fields, quarantine, target
from sqlext.execution.flows import faults
from sqlext.execution.flows.file_columns import ADD_COLUMNS, may_grow
from sqlext.options import SCHEMA_EVOLUTION, Options
from sqlext.plan.flow_spec import Column, FlowSpec, StreamSpec
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote, quote_parts
from sqlext.spark import delta_tables, failures, jvm
from sqlext.spark.failures import SPARK_ERRORS

_ANEW = "REFRESH STREAMING TABLE .. FULL recreates a streaming table, with the columns that its query has now."
_CHANGED_ROWS = ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE")


def check_columns(frame: DataFrame, stream: StreamSpec, is_own: bool) -> None:
    """See that a query still gives what its table was made for.

    Args:
        frame: the query, analysed anew.
        is_own: whether nobody else has made the table, so that its types are those that the query had.

    Raises:
        SchemaError: it does not: a source of it has changed.
    """
    known = {column.output.lower(): column for column in stream.columns}
    given = {name.lower() for name in frame.columns}
    if gone := [column.output for column in stream.columns if column.output.lower() not in given]:
        raise SchemaError(f"The query gives {_listed(gone)} no more: a source has lost it. {_ANEW}")
    if new := [f"`{field.name}` {target.ddl_of(field.dataType)}" for field in new_columns(frame, stream)]:
        raise SchemaError(
            f"A source has got {', '.join(new)}, which the query's * takes in and its table has not. Let the table get it by "
            f"ALTER FLOW .. SET ('{SCHEMA_EVOLUTION.key}' = '{ADD_COLUMNS}'), if the flow appends rows; or name the query's "
            f"columns. {_ANEW}"
        )
    for name in frame.columns:
        column = known.get(name.lower())
        if column is not None and not is_own and not jvm.can_store(frame, name, column.type):
            raise _unfit(frame, name, column.target, column.type)
        if column is not None and is_own and not jvm.can_hold(frame, name, column.type):
            raise SchemaError(
                f"The column `{name}` of the query is {target.ddl_of(frame.schema[name].dataType)} now, and {column.type} in its "
                f"table: a source has got a wider type. Cast it in the query. {_ANEW}"
            )


def new_columns(frame: DataFrame, stream: StreamSpec) -> list[StructField]:
    """Return the columns of a query that its table was not made for."""
    known = {column.output.lower() for column in stream.columns}
    return [f for f in frame.schema.fields if f.name.lower() not in known and not f.name.startswith(INTERNAL_PREFIX)]


def evolved(session: SparkSession, spec: FlowSpec, options: Options) -> FlowSpec:
    """Give a flow's table the columns that the sources of its query have got, if it is to.

    Args:
        session: the flow's own.

    Returns:
        The flow with these columns, or as it was.
    """
    stream = spec.streams[0] if len(spec.streams) == 1 else None
    if stream is None or not may_grow(spec, options):
        return spec
    frame = session.sql(stream.sql)
    fields, inside = new_columns(frame, stream), _new_inside(frame, stream)
    if not fields and not inside:
        return spec
    target.check_names([*(field.name for field in fields), *(path[-1] for new in inside.values() for path, _ in new)])
    if spec.quarantine_tables:  # whose own columns would take the place of the row's
        quarantine.check_names((field.name for field in fields), None)
    there = {name.lower(): (name, kind) for name, kind in target.describe(session, spec.target).columns.items()}
    fed = {column.target.lower(): column.output for column in stream.columns}
    for field in fields:
        name, kind = there.get(field.name.lower(), ("", ""))
        if name.lower() in fed:
            raise SchemaError(
                f"A source has got `{field.name}`, and the column `{name}` of {'.'.join(spec.target)} takes the query's "
                f"`{fed[name.lower()]}` already. Name the query's columns."
            )
        if name and not jvm.can_store(frame, field.name, kind):
            raise _unfit(frame, field.name, name, kind)
    missing = [f"{quote(f.name)} {target.ddl_of(f.dataType)}" for f in fields if f.name.lower() not in there]
    for column in stream.columns:
        if there[column.target.lower()][1] == column.type:  # else the table has them: a process died after it had added them
            missing += nested_fields.clauses(inside.get(column.output, ()))
    if missing:
        session.sql(f"ALTER TABLE {quote_parts(spec.target)} ADD COLUMNS ({', '.join(missing)})")
    kinds = {field.name.lower(): target.ddl_of(field.dataType) for field in frame.schema}
    columns = [replace(c, type=kinds[c.output.lower()]) if c.output in inside else c for c in stream.columns]
    for field in fields:
        name, kind = there.get(field.name.lower(), (field.name, target.ddl_of(field.dataType)))
        columns.append(Column(field.name, name, kind))
    return replace(spec, streams=(replace(stream, columns=tuple(columns)),), columns=tuple(columns))


def _new_inside(frame: DataFrame, stream: StreamSpec) -> dict[str, list[nested_fields.NewField]]:
    """Return the fields that structs of a query have got, by the query's column: where nothing else of its type has changed."""
    found = {}
    given = {field.name.lower(): field.dataType for field in frame.schema}
    for column in stream.columns:
        now = given.get(column.output.lower())
        if now is not None and (new := nested_fields.new_fields(DataType.fromDDL(column.type), now, (column.target,))):
            found[column.output] = new
    return found


def _unfit(frame: DataFrame, name: str, column: str, kind: str) -> SchemaError:
    return SchemaError(
        f"The column `{name}` of the query is {target.ddl_of(frame.schema[name].dataType)} now, and `{column}` of its table is "
        f"{kind}, which does not take it: a source has changed. Cast it in the query."
    )


def explained(session: SparkSession, spec: FlowSpec, error: BaseException) -> BaseException:
    """Explain the error of a stream whose source had rows changed or deleted, or lost files; return other errors unchanged."""
    found = failures.parameters_of(error, _CHANGED_ROWS)
    if found is None:
        return _of_missing_file(session, spec, error)
    location, version = str(found.get("dataPath", "")), str(found.get("version", ""))
    operation = "a commit"
    if version.isdigit():
        operation = str(delta_log.commit_info(session, location, int(version)).get("operation", operation))
    name = next((".".join(source.name) for source in spec.sources if _place(session, source.name) == _path(location)), location)
    explanation = FlowError(
        f"Version {version} of {name}, {operation}, changed or deleted rows, and a stream sees only rows that are appended. To "
        f"leave such commits out, read it by STREAM {name} WITH ('skipChangeCommits' = 'true'). To follow them, query the table "
        "without STREAM, by a batch query or by CREATE MATERIALIZED VIEW, which follows changes; REFRESH STREAMING TABLE .. FULL "
        "recomputes this one from the rows that are there now."
    )
    explanation.__cause__ = error
    return explanation


def _of_missing_file(session: SparkSession, spec: FlowSpec, error: BaseException) -> BaseException:
    file = faults.missing_file(error)
    if file is None:
        return error
    places = {".".join(source.name): _place(session, source.name) for source in spec.sources}
    name = next((name for name, place in places.items() if place and _path(file).startswith(place + "/")), None)
    if name is None:
        return error
    explanation = FlowError(
        f"The file {file} of {name} is gone: it was vacuumed or deleted before the flow had read it. REFRESH STREAMING TABLE .. "
        "FULL recomputes the table from the rows that are there now; delta.deletedFileRetentionDuration says how long a "
        "source keeps files that its commits have replaced."
    )
    explanation.__cause__ = error
    return explanation


def most_files(session: SparkSession, spec: FlowSpec) -> int:
    """Return the number of data files of the largest Delta table that a flow reads or keeps, as far as its log says it."""
    places = [_location(session, source.name) for source in spec.sources]
    known = [spec.target_location, *(place for place in places if place)]
    sizes = (delta_log.table_size(session, place) for place in known if place)
    return max((size.files for size in sizes if size), default=0)


def _place(session: SparkSession, name: tuple[str, ...]) -> str | None:
    """Return the folder of a source that is a Delta table; None for other sources."""
    location = _location(session, name)
    return None if location is None else _path(location)


def _location(session: SparkSession, name: tuple[str, ...]) -> str | None:
    try:
        return delta_tables.named(session, quote_parts(name))[0]
    except SPARK_ERRORS:
        return None


def _path(location: str) -> str:
    """Return a location without its scheme, which is not always written in the same way."""
    return "/" + location.split(":", 1)[-1].strip("/")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
