"""Comments of a table's columns and of the fields inside them, by path."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

Path = tuple[str, ...]
"""Names in lower case, as in ALTER TABLE .. ALTER COLUMN: `element`, `key` and `value` lead into arrays and maps."""
Comments = Mapping[Path, str]

_COMMENT = "comment"


def comments_of(kind: DataType, path: Path = ()) -> dict[Path, str]:
    """Return the comments inside a type.

    Args:
        kind: the type.
        path: the path of the type itself.
    """
    found: dict[Path, str] = {}
    if isinstance(kind, StructType):
        for field in kind:
            place = (*path, field.name.lower())
            if _COMMENT in field.metadata:
                found[place] = str(field.metadata[_COMMENT])
            found |= comments_of(field.dataType, place)
    for name, inner in _inside(kind).items():
        found |= comments_of(inner, (*path, name))
    return found


def with_comments(kind: DataType, path: Path, comments: Comments) -> DataType:
    """Return a type with these comments inside it, each in place of an earlier one."""
    if isinstance(kind, StructType):
        return StructType([_field(each, (*path, each.name.lower()), comments) for each in kind])
    inside = {name: with_comments(inner, (*path, name), comments) for name, inner in _inside(kind).items()}
    if isinstance(kind, ArrayType):
        return ArrayType(inside["element"], kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(inside["key"], inside["value"], kind.valueContainsNull)
    return kind


def _field(field: StructField, path: Path, comments: Comments) -> StructField:
    metadata = {**field.metadata, **({_COMMENT: comments[path]} if path in comments else {})}
    return StructField(field.name, with_comments(field.dataType, path, comments), field.nullable, metadata)


def _inside(kind: DataType) -> dict[str, DataType]:
    """Return the types inside an array or a map, by name."""
    if isinstance(kind, ArrayType):
        return {"element": kind.elementType}
    return {"key": kind.keyType, "value": kind.valueType} if isinstance(kind, MapType) else {}
