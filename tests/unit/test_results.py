"""Results of Python functions become the type that was declared, or an error; never NULL."""

from __future__ import annotations

import math
from array import array
from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from sqlext.functions.results import over_array, with_declared_type

DAY = date(2024, 1, 1)
PAIR = StructType().add("a", DoubleType()).add("b", StringType())


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        (2, DoubleType(), 2.0),
        (np.float32(0.5), DoubleType(), 0.5),
        (Decimal("1.5"), DoubleType(), 1.5),
        (2.0, IntegerType(), 2),
        (np.int64(-(2**63)), LongType(), -(2**63)),
        (7, DecimalType(9, 2), Decimal(7)),
        (None, IntegerType(), None),
        ("x", StringType(), "x"),
        ([1, None], ArrayType(DoubleType()), [1.0, None]),
        (np.array([1, 2]), ArrayType(DoubleType()), [1.0, 2.0]),
        ({"a": 1}, MapType(StringType(), DoubleType()), {"a": 1.0}),
        ({"a": 1, "b": "x"}, PAIR, {"a": 1.0, "b": "x"}),
        ((1, "x"), PAIR, (1.0, "x")),
        (SimpleNamespace(a=1, b="x"), PAIR, {"a": 1.0, "b": "x"}),
        (np.bool_(True), BooleanType(), True),
        (array("i", [1, 2]), ArrayType(DoubleType()), [1.0, 2.0]),
        ("x", BinaryType(), "x"),
        (bytearray(b"x"), BinaryType(), bytearray(b"x")),
        (array("b", b"x"), BinaryType(), b"x"),
        ({DAY}, ArrayType(DateType()), {DAY}),  # PySpark makes a list of it
    ],
)
def test_a_number_becomes_the_declared_kind_of_number(given: Any, kind: DataType, expected: Any) -> None:
    found = with_declared_type("f", lambda: given, kind)()
    assert (found, type(found)) == (expected, type(expected))
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (2.5, IntegerType(), "The function f returned 2.5, which is no INT."),
        (2**31, IntegerType(), "which is no INT"),
        (math.nan, LongType(), "which is no BIGINT"),
        (math.inf, LongType(), "which is no BIGINT"),
        (True, IntegerType(), "which is no INT"),
        ("2", DoubleType(), "The function f returned '2', which is no DOUBLE."),
        (0.1, DecimalType(9, 2), r"which is no DECIMAL\(9,2\)"),
        ([1.5], ArrayType(IntegerType()), "which is no ARRAY<INT>"),
        (1, BooleanType(), "The function f returned 1, which is no BOOLEAN."),
        ([0], ArrayType(BooleanType()), "which is no ARRAY<BOOLEAN>"),
        ({1}, ArrayType(IntegerType()), r"The function f returned \{1\}, which is no ARRAY<INT>"),
        ("text", ArrayType(StringType()), "which is no ARRAY<STRING>"),
        ([("a", 1)], MapType(StringType(), IntegerType()), "which is no MAP<STRING,INT>"),
        ([120], BinaryType(), "which is no BINARY"),
        (array("B", b"x"), BinaryType(), "which is no BINARY"),
        (1, PAIR, "which is no STRUCT<A:DOUBLE,B:STRING>"),
    ],
)
def test_what_is_no_such_number_or_of_another_type_is_an_error(given: Any, kind: DataType, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        with_declared_type("f", lambda: given, kind)()


def test_a_list_has_all_values_but_nulls_and_each_as_it_is() -> None:
    lists = []

    def kept(values: list[Any]) -> float:
        lists.append(values)
        return len(values)

    over = over_array(with_declared_type("kept", kept, DoubleType()), DoubleType())
    assert over(pa.array([2**53 + 1, None, 3])).as_py() == 2.0
    assert over(pa.array([math.nan, None, 1.0])).type == pa.float64()
    assert lists[0] == [2**53 + 1, 3]
    assert repr(lists[1]) == "[nan, 1.0]"
