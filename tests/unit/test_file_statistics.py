"""Which files a flush need not read: values against ranges by hand, as Delta writes them into its log."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import DataType, DateType, DecimalType, LongType, StringType, StructType, TimestampType

from sqlext.execution.delta.file_statistics import may_hold
from sqlext.execution.delta.key_ranges import Range

DAY_2024 = 19723  # 2024-01-01
SECOND_2024 = DAY_2024 * 86_400
SECOND_1973 = 1096 * 86_400
SHANGHAI_1900 = -2_209_017_943_000_000  # midnight, at +08:05:43, which is +08:00 in statistics of the legacy format
MONROVIA_1972 = (731 * 86_400 + 2670) * 1_000_000  # midnight of January 2, at -00:44:30


def statistics(least: Any, greatest: Any, nulls: int = 0) -> str:
    return json.dumps({"numRecords": 9, "minValues": {"k": least}, "maxValues": {"k": greatest}, "nullCount": {"k": nulls}})


def holds(text: str | None, reach: Range, kind: DataType) -> bool:
    return may_hold(text, {"k": reach}, StructType().add("k", kind))


@pytest.mark.parametrize(
    ("kind", "least", "greatest", "reach", "expected"),
    [
        (LongType(), 5, 9, (1, 4), False),
        (LongType(), 5, 9, (1, 5), True),
        (LongType(), 5, 9, (9, 20), True),
        (LongType(), 5, 9, (10, 20), False),
        (DecimalType(20, 2), 0.1, 0.3, (Decimal("0.31"), Decimal("0.4")), False),
        (DecimalType(20, 2), 0.1, 0.3, (Decimal("0.30"), Decimal("0.4")), True),
        (StringType(), "b", "c", ("a", "az"), False),
        (StringType(), "\ufffd", "z", ("\xe9", "\xe9"), True),  # least may be the byte 80, and that is less
        (StringType(), "b", "c" * 32 + "\ufffd", ("d", "e"), False),
        (StringType(), "b", "c\ufffd", ("cz", "d"), True),  # cut off after 32 characters, with the last one's sign
        (DateType(), "2024-01-01", "2024-01-31", (DAY_2024 + 31, DAY_2024 + 40), False),
        (DateType(), "2024-01-01", "2024-01-31", (DAY_2024 + 30, DAY_2024 + 40), True),
        (DateType(), "+12024-01-01", "+12024-01-31", (DAY_2024, DAY_2024), True),  # Python cannot tell
        (
            TimestampType(),
            "2024-01-01T00:00:00.000Z",
            "2024-01-01T00:00:01.000Z",
            (SECOND_2024 * 1_000_000 + 1_000_999, SECOND_2024 * 1_000_000 + 2_000_000),
            True,  # the file's last row may lie 999 microseconds after what its statistics say
        ),
        (
            TimestampType(),
            "2024-01-01T00:00:00.000Z",
            "2024-01-01T00:00:01.000Z",
            (SECOND_2024 * 1_000_000 + 1_001_000, SECOND_2024 * 1_000_000 + 2_000_000),
            False,
        ),
        (
            TimestampType(),
            "2024-01-01T00:00:00.000-01:00",
            "2024-01-01T00:00:01.000-01:00",
            (SECOND_1973 * 1_000_000, SECOND_2024 * 1_000_000),
            False,
        ),
        (TimestampType(), "1900-01-01T00:00:00.000+08:00", "1900-01-01T00:00:00.000+08:00", (SHANGHAI_1900, SHANGHAI_1900), True),
        (TimestampType(), "1972-01-02T00:00:00.000-00:44", "1972-01-02T00:00:00.000-00:44", (MONROVIA_1972, MONROVIA_1972), True),
    ],
)
def test_ranges(kind: DataType, least: Any, greatest: Any, reach: tuple[Any, Any], expected: bool) -> None:
    assert holds(statistics(least, greatest), Range(*reach, has_nulls=False), kind) is expected


def test_nulls() -> None:
    only_null, none = Range(None, None, has_nulls=True), Range(1, 2, has_nulls=True)
    assert holds(statistics(5, 9, nulls=1), only_null, LongType())
    assert not holds(statistics(5, 9), only_null, LongType())
    assert holds(statistics(5, 9, nulls=1), none, LongType())
    assert not holds(statistics(5, 9), none, LongType())


@pytest.mark.parametrize("text", [None, "", "{", '{"numRecords": 3}', statistics("x", "y"), statistics(None, None)])
def test_what_says_nothing_may_hold_all(text: str | None) -> None:
    assert holds(text, Range(1, 2, has_nulls=False), LongType())


def test_all_columns_must_fit() -> None:
    schema = StructType().add("a", LongType()).add("b", LongType())
    text = json.dumps({"minValues": {"a": 1, "b": 1}, "maxValues": {"a": 5, "b": 5}, "nullCount": {"a": 0, "b": 0}})
    assert may_hold(text, {"a": Range(2, 3, False), "b": Range(5, 9, False)}, schema)
    assert not may_hold(text, {"a": Range(2, 3, False), "b": Range(6, 9, False)}, schema)
    assert may_hold(text, {}, schema)
