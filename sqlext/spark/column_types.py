"""Types of a query's columns, and of the table's columns that they go into.

Spark casts structs by position. Here each field goes to the one of its name, as in Delta's INSERT, wherever two structs have the
same names; where they have not, position it is, since nothing else says what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_MERGED: Mapping[type[DataType], tuple[type[DataType], ...]] = {
    IntegerType: (FloatType,),
    LongType: (FloatType, DoubleType, TimestampType),
    TimestampType: (LongType, StringType, TimestampNTZType),  # seconds; an hour has the local time of the next in autumn
    TimestampNTZType: (TimestampType,),  # local times that are left out in spring are others' instants
    DateType: (TimestampType,),
}
"""Types whose values Spark casts without asking to types that have fewer: several values become one."""


def in_order(frame: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """Return a query whose structs have their fields in the order of the columns that they go into.

    Args:
        frame: the query.
        types: the DDL types of these columns, by the query's column.
    """
    kinds = {name.lower(): kind for name, kind in types.items() if "STRUCT" in kind.upper()}
    if not kinds:
        return frame
    given: StructType = frame.schema
    wanted = {name: DataType.fromDDL(kind) for name, kind in kinds.items()}
    fields = [_with_type(each, arranged(each.dataType, wanted.get(each.name.lower(), each.dataType))) for each in given]
    return frame if fields == given.fields else frame.to(StructType(fields))


def arranged(given: DataType, wanted: DataType) -> DataType:
    """Return a type with the fields of its structs in the order of another, wherever the two have the same names.

    The case of names does not matter: no table of Delta's has two that differ by it alone.
    """
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        named = {each.name.lower(): each for each in given}
        names = [each.name.lower() for each in wanted]
        is_same = len(names) == len(given) and set(names) == set(named)
        first = [named[name] for name in names] if is_same else given.fields
        pairs = [*zip(first, wanted, strict=False)]
        rest = first[len(pairs) :]
        return StructType([*(_with_type(each, arranged(each.dataType, other.dataType)) for each, other in pairs), *rest])
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(arranged(given.elementType, wanted.elementType), given.containsNull)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        key, value = arranged(given.keyType, wanted.keyType), arranged(given.valueType, wanted.valueType)
        return MapType(key, value, given.valueContainsNull)
    return given


def merges(given: DataType, wanted: DataType) -> bool:
    """Return whether a cast that Spark takes for a safe one can make one value of several, also within structs and arrays."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return any(merges(each.dataType, other.dataType) for each, other in zip(given, wanted, strict=False))
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return merges(given.elementType, wanted.elementType)
    return isinstance(wanted, _MERGED.get(type(given), ()))


def _with_type(field: StructField, kind: DataType) -> StructField:
    return StructField(field.name, kind, field.nullable, field.metadata)
