"""Rows in the types of the table that files are written for: files with others are committed all the same, and cannot be read."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, MapType, StructType

from sqlext.execution.delta.target import ddl_of
from sqlext.quoting import quote
from sqlext.spark.jvm import can_hold

_NESTED = (ArrayType, MapType, StructType)


def in_types_of(table: StructType, rows: DataFrame) -> DataFrame | None:
    """Return rows in the types of a table, whose columns may have got wider ones since the rows' were written down.

    Returns:
        None: a column has become one that does not have all values of the rows', or has others within it.
    """
    given = {field.name: field.dataType for field in rows.schema}
    kinds = {field.name.lower(): field.dataType for field in table}
    pairs = ((name, kind, kinds.get(name.lower(), kind)) for name, kind in given.items())
    others = {name: wanted for name, kind, wanted in pairs if kind.simpleString() != wanted.simpleString()}
    if any(isinstance(given[name], _NESTED) or not can_hold(rows, name, ddl_of(kind)) for name, kind in others.items()):
        return None
    return rows.withColumns({name: F.col(quote(name)).cast(kind) for name, kind in others.items()}) if others else rows
