"""Functions over whole partitions that work with any table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from sqlext.functions.partition import AggregateFunction, PartitionFunction


class PartitionProfile(AggregateFunction):
    """The number of rows, nulls and bytes (in Arrow's format) of a partition or key, to find skew."""

    def create_accumulator(self) -> tuple[int, int, int]:
        """Return zero rows, nulls and bytes."""
        return 0, 0, 0

    def add(self, accumulator: tuple[int, int, int], value: pa.RecordBatch) -> tuple[int, int, int]:
        """Add the counts of a batch."""
        rows, nulls, size = accumulator
        return rows + value.num_rows, nulls + sum(column.null_count for column in value.columns), size + value.nbytes

    def get_result(self, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the counts."""
        return accumulator


def json_lines(records: Iterator[Any]) -> Iterator[str]:
    """Yield each row as a line of JSON; values that JSON lacks, such as dates and NaN, are written as text.

    Raises:
        ValueError: two columns have one name.
    """
    for row in records:
        yield json.dumps(_as_json(row), default=str)


def _as_json(value: Any) -> Any:
    """Return a value as `json.dumps` takes it, in the form of Spark's to_json."""
    if isinstance(value, Row):
        names = list(value.__fields__)
        if len({*names}) < len(names):
            raise ValueError(f"two columns of {', '.join(names)} have one name: give each a name of its own, by AS")
        return {name: _as_json(each) for name, each in zip(names, value, strict=True)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def last_row(one: Any, other: Any) -> Any:
    """Return the last row of a window: with PARTITION BY and ORDER BY, the newest row of each key.

    >>> last_row(1, 2)
    2
    """
    return other


FUNCTIONS = (
    PartitionFunction("json_lines", json_lines, "line STRING"),
    PartitionFunction("last_row", last_row),
    PartitionFunction("partition_profile", PartitionProfile(), "row_count BIGINT, null_count BIGINT, byte_count BIGINT"),
)
