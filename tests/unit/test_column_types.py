"""Types of a query's columns, and of the table's columns that they go into."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqlext.spark.column_types import arranged, merges

INT, LONG, TEXT = IntegerType(), LongType(), StringType()


def struct(**fields: DataType) -> StructType:
    made = StructType()
    for name, kind in fields.items():
        made = made.add(name, kind)
    return made


AB, BA = struct(a=INT, b=TEXT), struct(b=TEXT, a=LONG)


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        (AB, BA, struct(b=TEXT, a=INT)),
        (AB, struct(B=TEXT, A=INT), struct(b=TEXT, a=INT)),
        (ArrayType(AB, False), ArrayType(BA), ArrayType(struct(b=TEXT, a=INT), False)),
        (MapType(AB, AB), MapType(BA, BA), MapType(struct(b=TEXT, a=INT), struct(b=TEXT, a=INT))),
        (struct(x=AB, y=INT), struct(y=INT, x=BA), struct(y=INT, x=struct(b=TEXT, a=INT))),
        (struct(x=AB), struct(other=BA), struct(x=struct(b=TEXT, a=INT))),
        (AB, struct(b=INT, c=INT), AB),
        (AB, struct(b=TEXT), AB),
        (AB, struct(b=TEXT, a=INT, c=INT), AB),
        (AB, INT, AB),
        (INT, BA, INT),
    ],
)
def test_fields_go_to_their_names_if_all_names_are_the_same(given: DataType, wanted: DataType, expected: DataType) -> None:
    assert arranged(given, wanted) == expected


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (INT, FloatType()),
        (LONG, FloatType()),
        (LONG, DoubleType()),
        (TimestampType(), TimestampNTZType()),
        (TimestampNTZType(), TimestampType()),
        (TimestampType(), TEXT),
        (TimestampType(), LONG),
        (LONG, TimestampType()),
        (DateType(), TimestampType()),
        (ArrayType(LONG), ArrayType(DoubleType())),
        (struct(a=TEXT, b=struct(c=TimestampType())), struct(a=TEXT, b=struct(c=TEXT))),
    ],
)
def test_casts_that_make_one_value_of_several(given: DataType, wanted: DataType) -> None:
    assert merges(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (INT, INT),
        (INT, LONG),
        (INT, DoubleType()),
        (LONG, DecimalType(20)),
        (LONG, TEXT),
        (FloatType(), DoubleType()),
        (DateType(), TimestampNTZType()),
        (DateType(), TEXT),
        (TimestampNTZType(), TEXT),
        (TimestampType(), TimestampType()),
        (NullType(), DoubleType()),
        (AB, struct(a=LONG, b=TEXT)),
    ],
)
def test_casts_that_keep_values_apart(given: DataType, wanted: DataType) -> None:
    assert not merges(given, wanted)
