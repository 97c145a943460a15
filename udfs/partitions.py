"""Functions over whole partitions that work with any table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

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
    """Yield each row as a line of JSON; values of types that JSON lacks, such as dates, are written as text."""
    for row in records:
        yield json.dumps(row.asDict(recursive=True), default=str)


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
