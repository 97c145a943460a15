"""The rescued column of JSON: what Spark's reader would leave out silently, kept as text.

Spark has no such column. So lines are read as text, and parsed twice by Spark's own parser: into the columns, and as variants,
which have all that a line has. What the columns do not hold is a JSON object in the rescued column: fields that the schema does
not name, and fields with a value that does not fit, whole. What is no JSON object at all is there under `_corrupt_record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType, VariantType

from sqlext.quoting import fold, quote
from sqlext.spark.file_options import FORMATS

NOT_WITH = ("encoding", "charset", "singleVariantColumn", "columnNameOfCorruptRecord")
"""Options of Spark's JSON reader that have no meaning for lines which are read as text."""
_LINE = "value"
_WHOLE, _GIVEN, _SEVERAL, _ROW, _FOUND, _FIELDS, _LEFT = (
    f"__sqlext_{each}" for each in ("whole", "given", "several", "row", "found", "fields", "left")
)
_CORRUPT_KEY = "_corrupt_record"
_OBJECT, _ARRAY, _DECIMAL = "map<string,variant>", "array<variant>", "decimal(38,18)"


def json_frame(reader: Any, path: str, columns: StructType, rescued: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of JSON files, with the rescued column after their columns.

    Args:
        reader: of a session, for batches or streams.
        path: the files.
        columns: those that the rows have.
        rescued: the rescued column's name.
        options: of the JSON reader, and of the file source.
    """
    of_parser = {
        name: value for name, value in options.items() if name in FORMATS["json"] and name not in ("multiLine", "lineSep")
    }
    of_text = {name: value for name, value in options.items() if name not in FORMATS["json"] or name == "lineSep"}
    if options.get("multiLine", "").lower() == "true":
        of_text["wholetext"] = "true"
    lines, folders = _lines(reader, path, columns, of_text)
    parsed = StructType([each for each in columns if fold(each.name) not in folders])
    rows = _rows(lines.where(F.col(_LINE).rlike(r"\S")), parsed, of_parser)
    found = F.col(_FOUND)
    held = [found[each.name] if fold(each.name) not in folders else F.col(quote(folders[fold(each.name)])) for each in columns]
    named = [column.alias(each.name) for column, each in zip(held, columns, strict=True)]
    more = [F.col(quote(name)) for key, name in folders.items() if key not in map(fold, columns.names)]
    whole = F.to_json(F.create_map(F.lit(_CORRUPT_KEY), F.coalesce(F.to_json(F.col(_GIVEN)), F.col(_LINE))))
    left = F.when(F.col(_FIELDS).isNull(), whole).when(F.size(_LEFT) > 0, F.to_json(_LEFT))
    return rows.withColumn(_LEFT, _left_over(F.col(_FIELDS), found, parsed)).select(*named, *more, left.alias(rescued))


def _lines(reader: Any, path: str, columns: StructType, options: Mapping[str, str]) -> tuple[DataFrame, dict[str, str]]:
    """Return the lines of the files, and the columns that the folders name, by their folded names."""
    lines = reader.format("text").options(**options).load(path)
    folders = {fold(name): name for name in lines.columns[1:]}
    given = [each for each in columns if fold(each.name) in folders]
    if given:  # with the types that are given for them
        others = [each for each in lines.schema.fields[1:] if fold(each.name) not in {fold(one.name) for one in given}]
        schema = StructType([StructField(_LINE, StringType()), *given, *others])
        lines = reader.format("text").options(**options).schema(schema).load(path)
    return lines, folders


def _rows(lines: DataFrame, columns: StructType, options: Mapping[str, str]) -> DataFrame:
    """Return a row for each object of a line: as a variant, its fields as variants, and the columns; one for what is no JSON.

    Each step is a column of its own, which is computed once.
    """
    line, texts = F.col(_LINE), dict(options)
    whole = lines.withColumn(_WHOLE, F.from_json(F.concat(F.lit("["), line, F.lit("\n]")), "variant", texts))
    has_one = F.try_variant_get(F.col(_WHOLE), "$[1]", "variant").isNull()  # Spark's parser ignores what follows the first value
    given = whole.withColumn(_GIVEN, F.when(has_one, F.try_variant_get(F.col(_WHOLE), "$[0]", "variant")))
    several = given.withColumn(_SEVERAL, F.try_variant_get(F.col(_GIVEN), "$", _ARRAY))
    of_several = F.coalesce(F.from_json(line, ArrayType(columns), texts), F.array())  # or a row for each would be none
    found = F.when(F.col(_SEVERAL).isNotNull(), of_several).otherwise(F.array(F.from_json(line, columns, texts)))
    both = F.arrays_zip(F.coalesce(F.col(_SEVERAL), F.array(_GIVEN)).alias("given"), found.alias("found"))
    rows = several.withColumn(_ROW, F.explode(both))
    parts = rows.withColumns({_GIVEN: F.col(_ROW)["given"], _FOUND: F.col(_ROW)["found"]})
    return parts.withColumn(_FIELDS, F.try_variant_get(F.col(_GIVEN), "$", _OBJECT))


def _left_over(fields: Column, found: Column, columns: StructType) -> Column:
    """Return the fields of a row that its columns do not hold; NULL where they hold all, which is found out faster."""

    def is_left(name: Column, value: Column) -> Column:
        held = ((name == each.name) & _holds(value, found[each.name], each.dataType) for each in columns)
        return ~reduce(or_, held, F.lit(False))

    return F.when(~_are_held(fields, found, columns), F.map_filter(fields, is_left))


def _are_held(fields: Column, found: Column, columns: StructType) -> Column:
    """Return whether columns hold all fields of an object."""
    others = F.array_except(F.map_keys(fields), F.array(*(F.lit(name) for name in columns.names)))
    held = (_holds(F.try_element_at(fields, F.lit(each.name)), found[each.name], each.dataType) for each in columns)
    return reduce(and_, held, F.size(others) == 0)


def _holds(given: Column, found: Column, kind: DataType) -> Column:
    """Return whether a column's value is all that a variant has."""
    if isinstance(kind, VariantType):
        return F.lit(True)
    held = F.lit(True)
    if isinstance(kind, DecimalType):  # Spark rounds what has more digits
        held = F.coalesce(F.try_variant_get(given, "$", _DECIMAL) == found, F.lit(True))
    elif isinstance(kind, StructType):
        fields = F.array(F.try_variant_get(given, "$", _OBJECT))  # as a variable, or the expression would grow with each level
        held = F.forall(fields, lambda each: _are_held(each, found, kind))
    elif isinstance(kind, ArrayType):
        of = kind.elementType
        each_one = F.zip_with(F.try_variant_get(given, "$", _ARRAY), found, lambda one, other: _holds(one, other, of))
        held = F.forall(each_one, lambda is_held: is_held)
    elif isinstance(kind, MapType):
        value = kind.valueType
        entries = F.map_entries(F.try_variant_get(given, "$", _OBJECT))
        held = F.forall(entries, lambda entry: _holds(entry["value"], F.try_element_at(found, entry["key"]), value))
    return F.coalesce(found.isNotNull() & held, F.lit(False)) | given.isNull() | F.is_variant_null(given)
