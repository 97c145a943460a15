"""The ranges of the keys of buffered rows, so that a flush reads only those files of a table that may hold them.

They are observed while a micro-batch is written, so they cost no Spark job of their own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, DateType, DecimalType, IntegralType, StringType, StructType, TimestampType

from sqlext.quoting import quote
from sqlext.spark.distinct_aggregates import NO_SET, SET_COLUMN

_ROWS, _VALUES = "rows", "values"


@dataclass(frozen=True)
class Range:
    """The range of the values of one key column.

    Attributes:
        least, greatest: the least and greatest value; dates as days, timestamps as microseconds since 1970; None: all are null.
        has_nulls: whether any value is null.
    """

    least: Any
    greatest: Any
    has_nulls: bool


Bounds = Mapping[str, Range]
"""The ranges of those key columns for which files have statistics, by name."""


class KeyRanges:
    """What is to be observed of micro-batches: the numbers of their rows and distinct values, and the ranges of their keys.

    Args:
        schema, key: of the micro-batches.
    """

    def __init__(self, schema: StructType, key: Sequence[str]) -> None:
        self.schema = schema
        self._names = _with_statistics(schema, key)

    @cached_property
    def metrics(self) -> list[Column]:
        """The metrics."""
        is_value = F.col(SET_COLUMN) != NO_SET if SET_COLUMN in self.schema.names else F.lit(False)
        found = [F.count_if(~is_value).alias(_ROWS), F.count_if(is_value).alias(_VALUES)]
        for index, name in enumerate(self._names):
            value = _comparable(F.col(quote(name)), self.schema[name].dataType)
            found += [F.min(value).alias(f"least{index}"), F.max(value).alias(f"greatest{index}")]
            found += [F.count_if(value.isNull()).alias(f"nulls{index}")]
            if _is_text(self.schema, name):
                found.append(F.count_if(~F.is_valid_utf8(value)).alias(f"invalid{index}"))
        return found

    def observed(self, values: Mapping[str, Any]) -> tuple[int, int, Bounds]:
        """Return the numbers of rows and distinct values and the ranges, from the observed values of `metrics`.

        A text that is no valid UTF-8, as a cast from BINARY may give, is another one in Python: such a column has no range.
        """
        bounds = {
            name: Range(values[f"least{index}"], values[f"greatest{index}"], bool(values[f"nulls{index}"]))
            for index, name in enumerate(self._names)
            if not (_is_text(self.schema, name) and values[f"invalid{index}"])
        }
        return int(values[_ROWS]), int(values[_VALUES]), bounds


def union(all_bounds: Iterable[Bounds | None]) -> Bounds:
    """Return the ranges of all rows together; empty if those of some rows are unknown."""
    found = list(all_bounds)
    known = [bounds for bounds in found if bounds is not None]
    if not known or len(known) != len(found):
        return {}
    names = [name for name in known[0] if all(name in bounds for bounds in known)]
    return {name: reduce(_wider, (bounds[name] for bounds in known)) for name in names}


def condition(bounds: Bounds, schema: StructType, table: str) -> Column | None:
    """Return a condition that every row of `table` with one of the keys satisfies; None if nothing is known of the keys."""
    terms: list[Column] = []
    for name, reach in bounds.items():
        column = F.col(f"{table}.{quote(name)}")
        parts: list[Column] = []
        if reach.least is not None:
            least, greatest = (_literal(value, schema[name].dataType) for value in (reach.least, reach.greatest))
            parts.append((column >= least) & (column <= greatest))
        if reach.has_nulls:
            parts.append(column.isNull())
        if parts:
            terms.append(reduce(operator.or_, parts))
    return reduce(operator.and_, terms) if terms else None


def _with_statistics(schema: StructType, key: Sequence[str]) -> list[str]:
    """Return the key columns ordered as in statistics, so no strings with another collation than Spark's own."""
    kinds = (IntegralType, DecimalType, DateType, TimestampType)
    return [name for name in key if isinstance(schema[name].dataType, kinds) or _is_text(schema, name)]


def _is_text(schema: StructType, name: str) -> bool:
    return bool(schema[name].dataType == StringType())


def _comparable(column: Column, kind: DataType) -> Column:
    if isinstance(kind, TimestampType):
        return F.unix_micros(column)
    return F.unix_date(column) if isinstance(kind, DateType) else column  # Python has no dates outside 1 to 9999


def _literal(value: Any, kind: DataType) -> Column:
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(F.lit(value))
    if isinstance(kind, DateType):
        return F.date_from_unix_date(F.lit(value))
    return F.lit(value).cast(kind)


def _wider(one: Range, other: Range) -> Range:
    least = min((value for value in (one.least, other.least) if value is not None), default=None)
    greatest = max((value for value in (one.greatest, other.greatest) if value is not None), default=None)
    return Range(least, greatest, one.has_nulls or other.has_nulls)
