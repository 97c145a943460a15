"""`read_files(..)`: files as a relation, from SQL.

`SELECT .. FROM read_files(..)` reads what is there now; `FROM STREAM read_files(..)`, in a flow, also what arrives later. Spark's
readers and its file source do the work; here a call's arguments are read and its columns found.

Relies on Spark's private side: reads Catalyst expressions, and checks options by Spark's own class for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sqlext.errors import NotFoundError, SchemaError, SetupError, UnsupportedError
from sqlext.options import CONNECTORS_KEY, SCHEMA_EVOLUTION
from sqlext.quoting import STREAMED, fold, zoned
from sqlext.redaction import of_application
from sqlext.spark import csv_columns, file_schemas, rescue
from sqlext.spark.arguments import constant, each_once, is_named, named
from sqlext.spark.failures import SPARK_ERRORS, causes_of, conditions_of, reason_of, root_reason
from sqlext.spark.file_options import ONLY_BATCH, OWN, STREAM_OPTIONS, USAGE, argument_named, format_named
from sqlext.spark.file_schemas import FIXED, NO_COLUMNS, Files, is_glob
from sqlext.spark.java import java_of
from sqlext.sql.file_calls import GROWING, KEPT, READ_FILES, FilesCall

COLUMNS_OF = "__sqlext_columns_of_"
"""The prefix of a function with the same arguments that has no rows, and the columns which a flow keeps of a call."""
DESCRIBED = "__sqlext_arguments_of_"
"""The prefix of a function with the same arguments that has no rows, and the arguments in its schema's metadata."""
FUNCTIONS = (
    *(first + second + READ_FILES for first in ("", COLUMNS_OF) for second in ("", STREAMED)),
    DESCRIBED + READ_FILES,
)
"""The function for bounded reads, the one that `STREAM read_files(..)` in a flow becomes, their twins with `COLUMNS_OF`, and the
one that tells arguments."""

_RESCUED_FROM = ("json", "csv")
_CORRUPT = "columnNameOfCorruptRecord"
_BY_POSITION = {"csv": "enforceSchema", "avro": "positionalFieldMatching"}
"""The options by which names in files mean nothing."""
_GIVES_COLUMNS = ("avroSchema", "avroSchemaUrl", "singleVariantColumn")
"""The options that say which columns there are."""
_GROWS = f"`{SCHEMA_EVOLUTION.key}` = `{SCHEMA_EVOLUTION.choices[-1]}`"


def plan_of_call(spark: SparkSession, operator: str, arguments: Sequence[Any]) -> Any:
    """Return the relation of one call.

    Args:
        spark: the session that analyses the query.
        operator: one of `FUNCTIONS`.
        arguments: the arguments, as Catalyst expressions.

    Raises:
        SchemaError: an argument is unknown, wrong or missing, or the files have no columns in common.
        NotFoundError: nothing lies at the path.
        UnsupportedError: the format has no rescued column.
        SetupError: Spark's package for Avro is not on the class path.
    """
    files = _files(arguments)
    if operator.startswith(DESCRIBED):
        return _described(spark, files)
    is_stream = operator.removeprefix(COLUMNS_OF) == STREAMED + READ_FILES
    _check_class_path(spark, files)
    _check_path(spark, files, is_stream)
    if is_stream:
        _check_stream_options(spark, files)
    try:
        columns = _columns(spark, files)
        if operator.startswith(COLUMNS_OF):
            return spark.createDataFrame([], columns)._jdf.queryExecution().analyzed()
        return _frame(spark, files, columns, is_stream)._jdf.queryExecution().analyzed()
    except SPARK_ERRORS as error:
        raise _explained(files, error) from error


def arguments_of(spark: SparkSession, call: FilesCall) -> Files:
    """Return the arguments of a call in a recorded query.

    Args:
        spark: the session that analyses the query, with the variables that it names.
    """
    function, kept = DESCRIBED + READ_FILES, f", {KEPT} => {call.kept}" if call.kept else ""
    (field,) = spark.sql(f"FROM {function}({call.arguments}{kept}, {GROWING} => true) SELECT *").schema.fields
    given = json.loads(field.metadata[DESCRIBED])
    schema, hints = (None if ddl is None else _schema(READ_FILES, ddl) for ddl in given["schemas"])
    return Files(given["path"], given["format"], schema, hints, given["rescued"], given["options"], given["grows"])


def _described(spark: SparkSession, files: Files) -> Any:
    """Return a relation whose schema has the arguments: unlike rows, metadata are not shown in plans."""
    given = {
        "path": files.path,
        "format": files.format,
        "schemas": [None if each is None else zoned(each.toDDL()) for each in (files.schema, files.hints)],
        "rescued": files.rescued,
        "options": dict(files.options),
        "grows": files.grows,
    }
    column = StructField(DESCRIBED, StringType(), metadata={DESCRIBED: json.dumps(given)})
    return spark.createDataFrame([], StructType([column]))._jdf.queryExecution().analyzed()


# The arguments.


def _files(arguments: Sequence[Any]) -> Files:
    first = [] if not arguments or is_named(arguments[0]) else [("path", constant(READ_FILES, "path", arguments[0]))]
    given = [*first, *named(READ_FILES, arguments[len(first) :], USAGE)]
    kept = next((value for name, value in given if name == KEPT), None)
    grows = any(name == GROWING for name, _ in given)
    given = [(name, value) for name, value in given if name not in (KEPT, GROWING)]
    kind = next((format_named(value) for name, value in given if name.lower() == "format"), None)
    if kind is None or not any(name.lower() == "path" for name, _ in given):
        raise SchemaError(f"{READ_FILES} needs `path` and `format`. Write {USAGE}.")
    found = each_once(READ_FILES, given, lambda name: argument_named(name, kind))
    if not found["path"].strip():
        raise SchemaError(f"{READ_FILES}: `path` is empty. Give a file, a folder or a glob, such as '/landing/*/orders'.")
    options = {name: value for name, value in found.items() if name not in OWN}
    schema = _schema("schema", found["schema"] if kept is None else kept) if kept is not None or "schema" in found else None
    hints = _schema("schemaHints", found["schemaHints"]) if "schemaHints" in found else None
    grows = grows and kind not in FIXED
    files = Files(found["path"], kind, schema, hints, found.get("rescuedDataColumn", ""), options, grows)
    _check_rescued(files)
    if grows:
        _check_growing(files, "schema" in found)
    return files


def _check_growing(files: Files, has_schema: bool) -> None:
    """Refuse columns that cannot become more, or would not have all that files have."""
    given = ["schema"] if has_schema else [name for name in _GIVES_COLUMNS if name in files.options]
    if given:
        raise SchemaError(
            f"{READ_FILES}: the columns are given by `{given[0]}`, so {_GROWS} cannot add any. Leave `{given[0]}` out, so that "
            "they are inferred, or the option."
        )
    option = _BY_POSITION.get(files.format, "")
    if files.options.get(option, "").lower() == "true":
        raise UnsupportedError(
            f"{READ_FILES}: with `{option}` = `true` columns are read by position, and {_GROWS} finds new ones by name. Leave "
            "one of the two out."
        )
    if files.format == "csv" and not files.has_header:
        raise UnsupportedError(
            f"{READ_FILES}: {_GROWS} finds new columns by name, and CSV has names in a header. Give header => true, or leave the "
            "option out."
        )
    if files.format == "csv" and files.options.get("mode", "permissive").lower() != "permissive":
        raise UnsupportedError(
            f"{READ_FILES}: with {_GROWS} files without the new columns have shorter lines, which `mode` = "
            f"`{files.options['mode']}` does not take. Leave one of the two out."
        )


def _schema(name: str, ddl: str) -> StructType:
    try:
        found = StructType.fromDDL(ddl)
    except SPARK_ERRORS as error:
        raise SchemaError(
            f"{READ_FILES}: `{name}` is `{ddl}`, which is no list of columns. Give names and types, such as 'id INT, at "
            f"TIMESTAMP'. {reason_of(error)}"
        ) from None
    if not isinstance(found, StructType) or not found.fields:
        raise SchemaError(f"{READ_FILES}: `{name}` is `{ddl}`, which has no column. Give names and types, such as 'id INT'.")
    names = [fold(each) for each in found.names]
    doubled = next((each for each, folded in zip(found.names, names, strict=True) if names.count(folded) > 1), None)
    if doubled is not None:
        raise SchemaError(f"{READ_FILES}: `{name}` has two columns `{doubled}`. Name each once.")
    return found


def _check_rescued(files: Files) -> None:
    """Refuse a rescued column that would not have all that does not fit."""
    if not files.rescued:
        return
    if files.format not in _RESCUED_FROM:
        raise UnsupportedError(
            f"{READ_FILES}: `rescuedDataColumn` is for {' and '.join(_RESCUED_FROM)}, and `format` is `{files.format}`: of such "
            "files Spark reads only what the schema names. Leave the argument out."
        )
    if files.options.get("mode", "permissive").lower() != "permissive":
        raise SchemaError(
            f"{READ_FILES}: with `mode` = `{files.options['mode']}` nothing is left to rescue. Leave `mode` or "
            "`rescuedDataColumn` out."
        )
    refused = [_CORRUPT, "columnPruning"] if files.format == "csv" else [*rescue.NOT_WITH]
    if given := next((name for name in refused if name in files.options), None):
        raise UnsupportedError(f"{READ_FILES}: `{given}` cannot be given with `rescuedDataColumn`. Leave one of the two out.")
    if files.schema is not None and fold(files.rescued) in map(fold, files.schema.names):
        raise SchemaError(
            f"{READ_FILES}: `rescuedDataColumn` is `{files.rescued}`, and `schema` has a column of that name. Choose another."
        )


# What they name.


def _check_class_path(spark: SparkSession, files: Files) -> None:
    context: Any = spark.sparkContext
    if files.format == "avro" and not callable(context._jvm.org.apache.spark.sql.avro.AvroFileFormat):
        raise SetupError(
            f"Spark's package for Avro is not on the class path. Set `{CONNECTORS_KEY}` to `avro` on the builder given to "
            f"sqlext.configure, or with --conf; `sqlext run` sets it by itself if the file calls {READ_FILES} for avro."
        )


def _check_path(spark: SparkSession, files: Files, is_stream: bool) -> None:
    java = java_of(spark)
    settings = java.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(files.options))
    try:
        path = java.org.apache.hadoop.fs.Path(files.path)
        if is_stream and path.toUri().getScheme() is None and not path.isUriPathAbsolute():
            raise SchemaError(
                f"{READ_FILES}: `path` is `{files.shown}`, which depends on where a process runs. Give a stream an absolute "
                "path, such as /landing/orders or s3a://bucket/orders."
            )
        conf = spark._jsparkSession.sessionState().newHadoopConfWithOptions(settings)
        if not path.getFileSystem(conf).exists(path) and not is_glob(spark, files.path):
            raise NotFoundError(f"{READ_FILES}: `path` is `{files.shown}`, and there is no such file or folder.")
    except SPARK_ERRORS as error:
        raise SchemaError(f"{READ_FILES}: `path` is `{files.shown}`, which cannot be looked at: {reason_of(error)}") from error


def _check_stream_options(spark: SparkSession, files: Files) -> None:
    """Raise now what Spark would raise when the query has started."""
    if given := next((name for name in ONLY_BATCH if name in files.options), None):
        raise UnsupportedError(
            f"{READ_FILES}: Spark has no `{given}` for streams of files. Leave it out, or read without STREAM."
        )
    java = java_of(spark)
    options = {name: value for name, value in files.options.items() if name in STREAM_OPTIONS}
    try:
        scala_map = java.org.apache.spark.api.python.PythonUtils.toScalaMap(options)
        java.org.apache.spark.sql.execution.streaming.runtime.FileStreamOptions(scala_map)
    except SPARK_ERRORS as error:
        given = ", ".join(f"`{name}` = `{value}`" for name, value in options.items())
        raise SchemaError(f"{READ_FILES}: Spark does not take {given}: {reason_of(error)}") from error


def _columns(spark: SparkSession, files: Files) -> StructType:
    """Return the columns, without the rescued one: those given, or those that the files have now.

    A hint gives a column its type, and not its name: JSON has fields by their exact case.
    """
    columns = _inferred(spark, files) if files.schema is None else files.schema
    hints = {} if files.hints is None else {fold(each.name): each for each in files.hints.fields}
    typed = [StructField(each.name, hints.pop(fold(each.name), each).dataType) for each in columns.fields]
    return StructType([*typed, *hints.values()])


def _inferred(spark: SparkSession, files: Files) -> StructType:
    """Return the columns of the files that are there."""
    if files.grows and files.has_header:
        columns = csv_columns.grown(spark, files, StructType([]), None)
        if not columns.fields:
            raise SchemaError(_nothing_to_infer(files))
        return columns
    frame = spark.read.format(files.format).options(**files.with_header_check(files.reader_options)).load(files.path)
    columns = file_schemas.without_corrupt(spark, files, frame.schema)
    if not columns.fields:
        raise SchemaError(_nothing_to_infer(files))
    if files.grows and files.format == "avro":  # Spark takes the columns of any one file
        return file_schemas.grown(spark, replace(files, schema=columns), file_schemas.paths_of(spark, frame.inputFiles()))
    if files.has_header and files.options.get("enforceSchema", "").lower() != "true":
        frame.select(frame.columns[:1]).agg({frame.columns[0]: "count"}).collect()  # looks at the header of each file
    return columns


def columns_with_new(spark: SparkSession, files: Files, paths: Sequence[str]) -> StructType:
    """Return the columns of a call, and after them those that some of its files have and the call has not.

    Args:
        paths: the files; each must be there.

    Raises:
        SchemaError: a file cannot be read, with Spark's error as the cause; or its columns cannot be told from those known.
    """
    try:
        if files.has_header:
            found = csv_columns.grown(spark, files, files.kept, paths)
        else:
            found = file_schemas.grown(spark, files, paths)
    except SPARK_ERRORS as error:
        raise SchemaError(
            f"{READ_FILES}: the files of `{files.shown}` cannot be searched for new columns, as {files.format}: {_reason(error)}"
        ) from error
    new = found.names[len(files.kept) :]
    if files.rescued.lower() in (name.lower() for name in new):
        raise SchemaError(
            f"{READ_FILES}: `rescuedDataColumn` is `{files.rescued}`, and files of `{files.shown}` have a field of that name. "
            "Choose another."
        )
    return found


def _frame(spark: SparkSession, files: Files, columns: StructType, is_stream: bool) -> DataFrame:
    reader: Any = spark.readStream if is_stream else spark.read
    if not files.rescued:
        options = files.with_header_check(files.options)
        return reader.format(files.format).options(**options).schema(columns).load(files.path)  # type: ignore[no-any-return]
    if files.format == "json":
        return rescue.json_frame(reader, files.path, columns, files.rescued, files.options)
    options = {**files.with_header_check(files.options), _CORRUPT: files.rescued, "columnPruning": "false"}
    with_rescued = StructType([*columns, StructField(files.rescued, StringType())])
    return reader.format("csv").options(**options).schema(with_rescued).load(files.path)  # type: ignore[no-any-return]


# What went wrong.


def _explained(files: Files, error: BaseException) -> SchemaError | NotFoundError:
    conditions = conditions_of(error)
    if any(name.startswith("PATH_NOT_FOUND") for name in conditions):
        return NotFoundError(f"{READ_FILES}: `path` is `{files.shown}`, and no file or folder is like that.")
    if any(name.startswith(NO_COLUMNS) for name in conditions):
        return SchemaError(_nothing_to_infer(files))
    return SchemaError(f"{READ_FILES}: the files of `{files.shown}` cannot be read as {files.format}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """Return what Spark says, and its cause: of a file that cannot be read, the one names the file and the other says why."""
    reason, cause = reason_of(error), " ".join(root_reason(error).split())
    return reason if len(causes_of(error)) < 2 else f"{reason} {of_application().message(cause)}"


def _nothing_to_infer(files: Files) -> str:
    return (
        f"{READ_FILES}: there is no {files.format} file under `{files.shown}` from which columns could be taken. Give them as "
        "`schema`, such as schema => 'id INT, at TIMESTAMP'."
    )
