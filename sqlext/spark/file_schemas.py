"""The columns of files: inferred by Spark's own means, of all files of a path or of some, and added to those that are known.

Columns only become more: a field that no column names becomes one, also inside structs, arrays and maps. What is known keeps its
place and its type, whatever the files have now.

Relies on Spark's private side: paths of Hadoop's, and an option of Spark's file source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sqlext.errors import SchemaError
from sqlext.redaction import of_application
from sqlext.spark.failures import SPARK_ERRORS, conditions_of
from sqlext.spark.file_options import STREAM_OPTIONS
from sqlext.spark.java import java_of
from sqlext.spark.jvm import bare_clone
from sqlext.sql.file_calls import READ_FILES

NO_COLUMNS = ("UNABLE_TO_INFER_SCHEMA", "EMPTY_SCHEMA_NOT_SUPPORTED_FOR_DATASOURCE")
"""The conditions of Spark's errors about files that are not there, or have no column."""
FIXED = ("text", "binaryFile")
"""The formats whose files all have the same columns."""
_ONE_FILE_A_LOOK = "avro"  # of several files, Spark takes the columns of any one
_FOOTERS = ("parquet", "orc")
_NOT_TOGETHER = ("CANNOT_MERGE", "COLUMN_ALREADY_EXISTS")
"""The conditions of Spark's errors about files that it reads one by one, and finds no common columns for."""
_TYPED_BY_VALUES = ("json", "csv", "xml")
_ALL_ROWS = {"samplingRatio": "1.0"}
_AS_NAMED = {"__globPaths__": "false"}  # DataSource.GLOB_PATHS_KEY: a file's name may have a bracket


@dataclass(frozen=True)
class Files:
    """The files that a call names.

    Attributes:
        path: a file, a folder or a glob of them.
        format: one of `FORMATS`.
        schema: their columns; None: they are to be found in the files.
        hints: types of some of the columns.
        rescued: the name of the rescued column; empty: there is none.
        options: for Spark's reader.
        grows: whether columns are added as files have more.
    """

    path: str
    format: str
    schema: StructType | None
    hints: StructType | None
    rescued: str
    options: Mapping[str, str]
    grows: bool = False

    @property
    def shown(self) -> str:
        """The path as it may be shown."""
        return of_application().message(self.path)

    @property
    def kept(self) -> StructType:
        """The columns of a call that a flow keeps."""
        assert self.schema is not None, "a recorded query has the columns of its calls"
        return self.schema

    @property
    def has_header(self) -> bool:
        """Whether each file begins with the names of its columns."""
        return self.format == "csv" and self.options.get("header", "").lower() == "true"

    @property
    def reader_options(self) -> dict[str, str]:
        """The options of a read that ends, in which the columns are inferred of all files."""
        given = {name: value for name, value in self.options.items() if name not in STREAM_OPTIONS}
        if self.format in ("csv", "xml"):
            return {"inferSchema": "true", **given}
        return {"mergeSchema": "true", **given} if self.format in _FOOTERS else given

    def with_header_check(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return options that let a file whose header has other columns be an error: Spark's own default reads by position.

        Where columns are added, a file without the new ones has NULL in them, and headers are compared before anything is read.
        """
        if not self.has_header:
            return dict(options)
        return {**options, "enforceSchema": "true"} if self.grows else {"enforceSchema": "false", **options}


def is_glob(spark: SparkSession, path: str) -> bool:
    """Return whether a path stands for several."""
    java = java_of(spark)
    return bool(java.org.apache.spark.deploy.SparkHadoopUtil.get().isGlobPath(java.org.apache.hadoop.fs.Path(path)))


def paths_of(spark: SparkSession, encoded: Sequence[str]) -> list[str]:
    """Return paths for a reader, given those in Spark's log of a file source or in `_metadata.file_path`."""
    path = java_of(spark).org.apache.spark.paths.SparkPath
    return [str(path.fromUrlString(each).toPath().toString()) for each in encoded]


def existing(spark: SparkSession, files: Files, paths: Sequence[str]) -> list[str]:
    """Return those of some files that are there."""
    java = java_of(spark)
    settings = java.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(files.options))
    conf = spark._jsparkSession.sessionState().newHadoopConfWithOptions(settings)
    each = ((path, java.org.apache.hadoop.fs.Path(path)) for path in paths)
    return [path for path, hadoop in each if hadoop.getFileSystem(conf).exists(hadoop)]


def is_used(frame: DataFrame, column: str) -> bool:
    """Return whether a query shows a column of one of its relations, or computes something of it.

    Args:
        column: a name that only this column has.
    """
    optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
    plan = str(optimizer.execute(frame._jdf.queryExecution().analyzed()).toString())
    return column in str(frame.schema) or plan.count(column) > 1  # once by the relation itself


def frame_of_some(spark: SparkSession, files: Files, kind: str, paths: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    """Return a read of some of the files, with the columns that folders name as a stream of all of them has these.

    Args:
        kind: the format to read them in.
        paths: the files; each must be there.
        options: of the reader.
    """
    base = {} if is_glob(spark, files.path) or _is_among(spark, files.path, paths) else {"basePath": files.path}
    return spark.read.format(kind).options(**{**base, **options, **_AS_NAMED}).load([*paths])


def grown(spark: SparkSession, files: Files, paths: Sequence[str]) -> StructType:
    """Return the columns of a call, and after them those that some files have and the call has not; CSV is `csv_columns`'.

    Args:
        paths: the files; each must be there.

    Raises:
        SchemaError: a field differs from a column by case only, and would be lost.
        PySparkException, Py4JJavaError: a file cannot be read.
    """
    columns = files.kept
    for found in _found(spark, files, paths):
        columns = with_new_fields(files, columns, found)
    return columns


def _found(spark: SparkSession, files: Files, paths: Sequence[str]) -> list[StructType]:
    if files.format == _ONE_FILE_A_LOOK:
        return [_schema(spark, files, [path]) for path in paths]
    if files.format == "json":  # its reader compares names as they are written; Spark refuses two that differ by case
        spark = bare_clone(spark)
        spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        return [_schema(spark, files, paths)]
    except SPARK_ERRORS as error:
        if files.format not in _FOOTERS or not any(name.startswith(_NOT_TOGETHER) for name in conditions_of(error)):
            raise
    return [_schema(spark, files, [path]) for path in paths]  # one of a type that does not fit: each is read with the columns


def _schema(spark: SparkSession, files: Files, paths: Sequence[str]) -> StructType:
    options = files.reader_options
    options |= _ALL_ROWS if files.format in _TYPED_BY_VALUES else {}
    options |= {"mergeSchema": "true"} if files.format in _FOOTERS else {}
    try:
        return without_corrupt(spark, files, frame_of_some(spark, files, files.format, paths, options).schema)
    except PySparkException as error:
        if any(name.startswith(NO_COLUMNS) for name in conditions_of(error)):
            return StructType([])
        raise


def without_corrupt(spark: SparkSession, files: Files, columns: StructType) -> StructType:
    """Return inferred columns without that for lines which cannot be parsed, where the rescued column has these."""
    corrupt = str(spark.conf.get("spark.sql.columnNameOfCorruptRecord"))
    return StructType([each for each in columns if each.name != corrupt]) if files.rescued else columns


def _is_among(spark: SparkSession, path: str, paths: Sequence[str]) -> bool:
    """Return whether a path is one of some files, and no folder."""
    hadoop = java_of(spark).org.apache.hadoop.fs.Path
    own = str(hadoop(path).toUri().getPath())
    return any(str(hadoop(each).toUri().getPath()) == own for each in paths)


def with_new_fields(files: Files, columns: StructType, found: StructType, where: str = "") -> StructType:
    """Return columns, and after them the fields that they do not name; the same inside those that both have.

    Args:
        columns: those that are known.
        found: those that files have.
        where: the columns around them, each with a dot behind it.

    Raises:
        SchemaError: a field differs from a column by case only, and would be lost.
    """
    known = [*columns.fields]
    for field in found:
        exact = next((at for at, each in enumerate(known) if each.name == field.name), None)
        near = next((at for at, each in enumerate(known) if each.name.lower() == field.name.lower()), None)
        at = exact if exact is not None else near
        if at is None:
            known.append(StructField(field.name, field.dataType))
        elif exact is None and files.format == "json":
            if not files.rescued:
                raise _differs_by_case(files, where, field.name, known[at].name)
        else:
            kind = _with_new(files, known[at].dataType, field.dataType, f"{where}{field.name}.")
            known[at] = StructField(known[at].name, kind, known[at].nullable, known[at].metadata)
    return StructType(known)


def _with_new(files: Files, known: DataType, found: DataType, where: str) -> DataType:
    """Return a known type with the fields that are new in it; another type of a known value is no new field."""
    if isinstance(known, StructType) and isinstance(found, StructType):
        return with_new_fields(files, known, found, where)
    if isinstance(known, ArrayType) and isinstance(found, ArrayType):
        return ArrayType(_with_new(files, known.elementType, found.elementType, where), known.containsNull)
    if isinstance(known, ArrayType) and files.format == "xml":  # in each of these files there is one of them at most
        return ArrayType(_with_new(files, known.elementType, found, where), known.containsNull)
    if isinstance(known, MapType):
        kind = known.valueType
        for each in _values_of(found):
            kind = _with_new(files, kind, each, where)
        return MapType(known.keyType, kind, known.valueContainsNull)
    return known


def _values_of(found: Any) -> list[DataType]:
    """Return the types of the values of a map; an object is inferred as a struct, whatever its columns are."""
    if isinstance(found, MapType):
        return [found.valueType]
    return [each.dataType for each in found] if isinstance(found, StructType) else []


def _differs_by_case(files: Files, where: str, name: str, known: str) -> SchemaError:
    return SchemaError(
        f"{READ_FILES}: files of `{files.shown}` have the field `{where}{name}`, which differs from `{where}{known}` by case "
        "only, and no table can have both. Give a `rescuedDataColumn`, which takes such fields, or correct the files."
    )
