"""What goes back to Spark from Python workers: nothing is cut off on the way into a column."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import DataType, DateType, IntegerType, LongType, StructType

from sqlext.errors import PartitionFunctionError
from sqlext.execution.partitions.partition_worker import MapWindow, PartitionTask
from tests.support import UncombinedTable

DAY = datetime.date(2024, 1, 1)


def given(values: list[Any], declared: DataType) -> list[Any]:
    """What a column is of which map_partition gives these values."""

    def function(records: Iterator[Any]) -> Iterator[Any]:
        yield from ((value,) for value in values)

    schema = StructType().add("v", declared)
    task = PartitionTask("map_partition", "f", MapWindow(function), False, schema, schema)
    return [value for batch in task.run(iter(())) for value in batch.column("v").to_pylist()]


@pytest.mark.parametrize(
    ("values", "declared", "message"),
    [
        ([1, 1.5], LongType(), "`v BIGINT`: 1.5 is not a valid BIGINT."),
        ([None, Decimal("0.1")], IntegerType(), "`v INT`: Decimal('0.1') is not a valid INT."),
        ([DAY, 1], DateType(), "`v DATE`: 1 is not a valid DATE."),
    ],
)
def test_what_would_be_cut_off_is_refused(values: list[Any], declared: DataType, message: str) -> None:
    with pytest.raises(PartitionFunctionError) as caught:
        given(values, declared)
    assert str(caught.value) == f"map_partition: the function `f` returned values that do not fit its column {message}"


def test_rows_that_are_too_long_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalDataToArrowConversion, "convert", UncombinedTable)
    assert given([1, 2, 3], LongType()) == [1, 2, 3]


def test_what_is_whole_passes() -> None:
    assert given([1, 2.0, Decimal(3), None], LongType()) == [1, 2, 3, None]
    assert given([DAY, None], DateType()) == [DAY, None]
