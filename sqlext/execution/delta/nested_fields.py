"""Fields that a struct has got, wherever it stands in a column's type, and the clause by which a Delta table gets them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sqlext.execution.delta.target import ddl_of
from sqlext.quoting import quote_parts

NewField = tuple[tuple[str, ...], DataType]
"""The path of a field below its table, as ALTER TABLE takes it, and its type."""


def new_fields(before: DataType, now: DataType, path: tuple[str, ...]) -> list[NewField] | None:
    """Return the fields that a type has more than it had.

    Args:
        before: the type that the table's column has.
        now: the type that the query's column has.
        path: of the column.

    Returns:
        The fields, outer ones first. None: that is not the whole difference, so it is another type.
    """
    if isinstance(before, StructType) and isinstance(now, StructType):
        pairs = list(zip(before.fields, now.fields, strict=False))
        if len(pairs) < len(before) or any(was.name.lower() != field.name.lower() for was, field in pairs):
            return None
        inside = [new_fields(was.dataType, field.dataType, (*path, was.name)) for was, field in pairs]
        added: list[NewField] = [((*path, field.name), field.dataType) for field in now.fields[len(before) :]]
        return _joined([*inside, added])
    if isinstance(before, ArrayType) and isinstance(now, ArrayType):
        return new_fields(before.elementType, now.elementType, (*path, "element"))
    if isinstance(before, MapType) and isinstance(now, MapType):
        keys = new_fields(before.keyType, now.keyType, (*path, "key"))
        return None if keys != [] else new_fields(before.valueType, now.valueType, (*path, "value"))
    return [] if ddl_of(before) == ddl_of(now) else None


def clauses(fields: Sequence[NewField]) -> list[str]:
    """Return the fields as ADD COLUMNS lists them."""
    return [f"{quote_parts(path)} {ddl_of(kind)}" for path, kind in fields]


def _joined(parts: Sequence[list[NewField] | None]) -> list[NewField] | None:
    found = [part for part in parts if part is not None]
    return [field for part in found for field in part] if len(found) == len(parts) else None
