"""The columns of CSV files whose headers are not all the same: a header may go on where another one ends.

Spark reads CSV by position, with one list of columns for all files, and infers them by the header of any one file. So headers are
compared here, by name, and each group of files with one header is inferred by itself.

Relies on Spark's private side: the class that finds one type for two in CSV, and a reader of lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_json_string

from sqlext.errors import SchemaError
from sqlext.spark.file_options import FORMATS
from sqlext.spark.file_schemas import Files, frame_of_some, paths_of
from sqlext.spark.java import java_array, java_of
from sqlext.sql.file_calls import READ_FILES

_LINE, _FILE, _NUMBER = "value", "__sqlext_file", "__sqlext_number"


def grown(spark: SparkSession, files: Files, columns: StructType, paths: Sequence[str] | None) -> StructType:
    """Return columns, and after them those that the headers of files have, too.

    Args:
        columns: those that are known; none, to infer all.
        paths: the files, which must be there; None: all of the call's.

    Raises:
        SchemaError: a header has other names, or has them in another order.
        PySparkException, Py4JJavaError: a file cannot be read.
    """
    lines = _lines(spark, files, paths)
    folders = [each for each in lines.schema.fields if each.name != _LINE]
    known = [each for each in columns if each.name.lower() not in {folder.name.lower() for folder in folders}]
    headers = _headers(spark, files, lines)
    names = [*max([[each.name for each in known], *headers], key=len)]
    for header, of_header in headers.items():
        _check(files, header, of_header[0], names[: max(len(known), len(header))])
    new = names[len(known) :]
    kinds = _kinds(spark, files, {name: of for name, of in headers.items() if len(name) > len(known)}, len(known))
    added = [StructField(name, kind) for name, kind in zip(new, kinds, strict=True)]
    there = {each.name.lower() for each in (*columns, *added)}
    return StructType([*columns, *added, *(each for each in folders if each.name.lower() not in there)])


def _lines(spark: SparkSession, files: Files, paths: Sequence[str] | None) -> DataFrame:
    """Return the lines of files, and the columns that their folders name."""
    options = {name: value for name, value in files.reader_options.items() if name not in FORMATS["csv"] or name == "lineSep"}
    encoding = files.options.get("encoding", files.options.get("charset"))
    options |= {} if encoding is None else {"encoding": encoding}
    if paths is None:
        return spark.read.format("text").options(**options).load(files.path)
    return frame_of_some(spark, files, "text", paths, options)


def _headers(spark: SparkSession, files: Files, lines: DataFrame) -> Mapping[tuple[str, ...], list[str]]:
    """Return the files by their headers; one without a line is in none."""
    line, comment = F.col(_LINE), files.options.get("comment", "")
    is_header = (F.length(F.trim(line)) > 0) & (F.col("_metadata.file_block_start") == 0)
    is_header = is_header & ~line.startswith(comment) if comment else is_header
    numbered = lines.where(is_header).select(
        line, F.col("_metadata.file_path").alias(_FILE), F.monotonically_increasing_id().alias(_NUMBER)
    )
    first = numbered.groupBy(_FILE).agg(F.min_by(_LINE, _NUMBER).alias(_LINE)).orderBy(_FILE).collect()
    by_line: dict[str, list[str]] = defaultdict(list)
    for row in first:
        by_line[row[_LINE]].append(row[_FILE])
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for text, of_line in by_line.items():
        found[_names(spark, files, text)] += paths_of(spark, of_line)
    return found


def _names(spark: SparkSession, files: Files, header: str) -> tuple[str, ...]:
    """Return the names in a header, as Spark's reader has them."""
    java = java_of(spark)
    texts = java.java.util.ArrayList()
    texts.add(header)
    dataset = spark._jsparkSession.createDataset(texts, java.org.apache.spark.sql.Encoders.STRING())
    reader: Any = spark.read.options(**{**files.reader_options, "header": "true", "inferSchema": "false"})
    schema = _parse_datatype_json_string(reader._jreader.csv(dataset).schema().json())
    assert isinstance(schema, StructType), "rows have columns"
    return tuple(schema.names)


def _check(files: Files, header: Sequence[str], file: str, expected: Sequence[str]) -> None:
    """See that a header is the beginning of the columns."""
    if [name.lower() for name in header] == [name.lower() for name in expected[: len(header)]]:
        return
    raise SchemaError(
        f"{READ_FILES}: the header of {file} is `{','.join(header)}`, and the columns are `{','.join(expected)}`. New columns of "
        "CSV come after all that are known, whose names and order stay; only the last ones may be missing. Correct the file, or "
        f"read it by a call of its own, such as with another `pathGlobFilter` for `{files.shown}`."
    )


def _kinds(spark: SparkSession, files: Files, headers: Mapping[tuple[str, ...], list[str]], start: int) -> list[DataType]:
    """Return the types of the columns from a position on: as Spark infers them of the files of each header, put together.

    Behind the columns of a header, Spark has those that folders name: they are at no position of a longer header.
    """
    options = {**files.with_header_check(files.reader_options), "samplingRatio": "1.0"}
    found: list[Any] = []
    for header, of_header in headers.items():
        fields = frame_of_some(spark, files, "csv", of_header, options)._jdf.schema().fields()
        found = _merged(spark, files, found, [each.dataType() for each in fields][: len(header)])
    return [_parse_datatype_json_string(each.json()) for each in found][start : max(map(len, headers), default=start)]


def _merged(spark: SparkSession, files: Files, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Return the types that hold the values of both lists' types, position by position: STRING, if no other type does."""
    java, csv = java_of(spark), java_of(spark).org.apache.spark.sql.catalyst.csv
    given = java.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(files.reader_options))
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    merges = csv.CSVInferSchema(csv.CSVOptions(given, False, zone))
    both = min(len(one), len(other))
    arrays = [java_array(spark, java.org.apache.spark.sql.types.DataType, kinds[:both]) for kinds in (one, other)]
    text = java.org.apache.spark.sql.types.DataTypes.StringType
    merged = [text if each.typeName() == "void" else each for each in merges.mergeRowTypes(*arrays)]
    return [*merged, *one[both:], *other[both:]]
