"""Which files of a Delta table may hold some keys, by the statistics in its log.

Delta can find out with a filter, but the filter's values become part of the code that Spark compiles: each flush, with keys of
its own, would process a large table with code that Java has not optimised yet. Evaluating the statistics here costs a few
comparisons.

Source: Delta's protocol, "Per-file Statistics".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql.types import DataType, DateType, StructType, TimestampType

from sqlext.execution.delta.key_ranges import Bounds, Range

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CUT_OFF = 999  # microseconds: statistics truncate timestamps to milliseconds
_EXACT_SINCE = (datetime(1973, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
"""Before, zones have offsets with seconds. With timeParserPolicy = LEGACY, Spark leaves them out, or writes today's offset."""
_PREFIX = 32
"""The characters that statistics have of a text; a greatest one that was cut off has one more."""
_NO_TEXT = "\ufffd"
"""What stands in statistics for bytes that are no UTF-8, which Spark orders by what they are."""


def may_hold(statistics: str | None, reach: Bounds, schema: StructType) -> bool:
    """Return whether a file may have a row with one of the keys.

    Args:
        statistics: the statistics of an AddFile action, as JSON; None: it has none.
        reach: the ranges of the keys, by the columns' names in files.
        schema: the schema of the table.
    """
    if not statistics:
        return True
    try:
        found = json.loads(statistics, parse_float=Decimal)
        return all(_may_hold(found, name, range_, schema[name].dataType) for name, range_ in reach.items())
    except (ValueError, TypeError, KeyError):  # years outside Python's dates; formats of a later Delta
        return True


def _may_hold(found: Mapping[str, Mapping[str, Any]], name: str, reach: Range, kind: DataType) -> bool:
    if reach.has_nulls and found.get("nullCount", {}).get(name) != 0:
        return True
    if reach.least is None:
        return False
    least, greatest = found.get("minValues", {}).get(name), found.get("maxValues", {}).get(name)
    if least is None or greatest is None:
        return True
    least, greatest = _comparable(least, kind), _comparable(greatest, kind)
    if isinstance(kind, TimestampType):
        if min(least, reach.least) < _EXACT_SINCE:
            return True
        greatest += _CUT_OFF
    return bool(least <= reach.greatest and greatest >= reach.least)


def _comparable(value: Any, kind: DataType) -> Any:
    """Return a value in the form in which `KeyRanges.metrics` observes it."""
    if isinstance(value, str) and _NO_TEXT in value[:_PREFIX]:
        raise ValueError(value)
    if isinstance(kind, TimestampType):
        return (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
    return (date.fromisoformat(value) - _EPOCH.date()).days if isinstance(kind, DateType) else value
