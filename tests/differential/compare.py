"""Whether two results are one: the same columns, the same types, the same multiset of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import DataType, StructType

_RELATIVE, _ABSOLUTE = 1e-6, 1e-7


@dataclass(frozen=True)
class Result:
    """A query's answer.

    Attributes:
        columns: their names, and their types without nullability.
        rows: as Spark gives them.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, frame: DataFrame) -> Result:
        return cls(columns_of(frame.schema), tuple(frame.collect()))


@dataclass(frozen=True)
class Leniency:
    """Columns, by their place, that are not compared value by value.

    Attributes:
        approximate: floating sums, which depend on the order of additions.
        unordered: arrays whose order is not defined.
    """

    approximate: frozenset[int] = frozenset()
    unordered: frozenset[int] = frozenset()


def columns_of(schema: StructType) -> tuple[tuple[str, str], ...]:
    """Names and types. Streams and Delta tables say of fewer columns that they hold no null, and that is no difference."""
    return tuple((field.name, _type(field.dataType)) for field in schema)


def _type(kind: DataType) -> str:
    return kind.simpleString()


def difference(found: Result, expected: Result, leniency: Leniency) -> str:
    """What differs, in a few lines; empty when nothing does."""
    if found.columns != expected.columns:
        return f"columns are {_listed(found.columns)}\n  instead of {_listed(expected.columns)}"
    ours, theirs = (_sorted(result, leniency) for result in (found, expected))
    missing, extra = _unmatched(theirs, ours, leniency), _unmatched(ours, theirs, leniency)
    if not missing and not extra and len(ours) == len(theirs):
        return ""
    return (
        "\n".join([*(f"  missing: {row}" for row in missing[:6]), *(f"  extra:   {row}" for row in extra[:6])]) or "rows repeat"
    )


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _sorted(result: Result, leniency: Leniency) -> list[tuple[Any, ...]]:
    """Comparable rows, so that two equal multisets come in one order up to approximate columns."""
    rows = [tuple(comparable(value, at in leniency.unordered) for at, value in enumerate(row)) for row in result.rows]
    return sorted(rows, key=repr)


def _unmatched(rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]], leniency: Leniency) -> list[tuple[Any, ...]]:
    """Rows for which the others hold none, each of them once."""
    left, unmatched = list(others), []
    for row in rows:
        match = next((at for at, other in enumerate(left) if _same(row, other, leniency)), None)
        if match is None:
            unmatched.append(row)
        else:
            del left[match]
    return unmatched


def _same(one: tuple[Any, ...], other: tuple[Any, ...], leniency: Leniency) -> bool:
    return all(a == b or (at in leniency.approximate and _near(a, b)) for at, (a, b) in enumerate(zip(one, other, strict=True)))


def _near(one: Any, other: Any) -> bool:
    is_number = isinstance(one, float) and isinstance(other, float)
    return is_number and math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def comparable(value: Any, is_unordered: bool = False) -> Any:
    """A value that equals another where Spark's grouping holds the two for one: NaN is NaN, and -0.0 is 0.0; the type counts.

    >>> comparable(float("nan")) == comparable(float("nan")), comparable(1) == comparable(True)
    (True, False)
    """
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Row):
        return ("row", *((name, comparable(value[at])) for at, name in enumerate(value.__fields__)))
    if isinstance(value, dict):
        return ("map", *sorted(((comparable(key), comparable(inner)) for key, inner in value.items()), key=repr))
    if isinstance(value, (list, tuple)):
        inner = [comparable(each) for each in value]
        return ("array", *(sorted(inner, key=repr) if is_unordered else inner))
    if isinstance(value, (bool, int, Decimal, bytearray)):
        return (type(value).__name__, bytes(value) if isinstance(value, bytearray) else str(value))
    return value
