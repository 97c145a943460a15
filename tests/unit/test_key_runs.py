"""Keys: sorted batches are cut where the key changes, also from one batch to the next."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.execution.partitions.key_runs import key_runs

BERLIN = pa.timestamp("us", "Europe/Berlin")
REPEATED = [datetime.datetime(2023, 10, 29, hour, 30, tzinfo=datetime.UTC) for hour in (0, 1)]  # both are half past two there
STRUCT = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])
# Of each type, values of which no two are one key.
DISTINCT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [None, -1, 0, 7]),
    (pa.float64(), [None, -1.5, 0.0, math.inf, math.nan]),
    (pa.float32(), [None, 0.0, math.nan]),
    (pa.string(), [None, "", "a", "A"]),
    (pa.binary(), [None, b"", b"\x00"]),
    (pa.bool_(), [None, False, True]),
    (pa.decimal128(10, 2), [None, Decimal("0.00"), Decimal("0.01")]),
    (pa.date32(), [None, datetime.date(1969, 12, 31), datetime.date(1970, 1, 1)]),
    (pa.timestamp("us", "UTC"), [None, datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
    (pa.struct([("x", BERLIN), ("y", pa.list_(BERLIN))]), [{"x": at, "y": [at]} for at in REPEATED]),
    (pa.list_(BERLIN), [None, *([at] for at in REPEATED)]),
    (pa.list_(pa.float64()), [None, [], [None], [0.0], [math.nan], [0.0, 0.0]]),
    (STRUCT, [None, {"x": None, "y": None}, {"x": math.nan, "y": None}, {"x": math.nan, "y": ["a"]}, {"x": 0.0, "y": [None]}]),
    (pa.null(), [None]),
]


def runs(batches: list[pa.RecordBatch], key_count: int) -> list[list[int]]:
    """The numbers in each run, in order."""
    return [[n for piece in pieces for n in piece.column("n").to_pylist()] for _, pieces in key_runs(batches, key_count)]


def batches_of(columns: list[pa.Array], sizes: list[int]) -> Iterator[pa.RecordBatch]:
    """Batches of a number for each row, and its keys; the sizes come again and again."""
    names = ["n", *(f"k{at}" for at in range(len(columns)))]
    whole = pa.RecordBatch.from_arrays([pa.array(range(len(columns[0]))), *columns], names=names)
    at = 0
    for size in itertools.cycle(sizes):
        if at >= whole.num_rows:
            return
        yield whole.slice(at, size)
        at += size


@pytest.mark.parametrize(("kind", "values"), DISTINCT, ids=lambda each: str(each) if isinstance(each, pa.DataType) else "")
@given(data=st.data())
def test_a_run_is_all_rows_of_a_key(kind: pa.DataType, values: list[Any], data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values)))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    column = pa.array([value for value, length in zip(values, lengths, strict=True) for _ in range(length)], kind)
    numbers = iter(range(len(column)))
    expected = [[next(numbers) for _ in range(length)] for length in lengths]
    assert runs(list(batches_of([column], sizes)), 1) == expected
    # beside another key, which changes once
    other = pa.array([0] + [1] * (len(column) - 1))
    assert runs(list(batches_of([other, column], sizes)), 2) == [
        part for run in expected for part in ([run[:1], run[1:]] if run[0] == 0 and len(run) > 1 else [run])
    ]


def test_zeros_of_both_signs_are_one_key() -> None:
    for kind, zeros in ((pa.float64(), [-0.0, 0.0]), (pa.list_(pa.float64()), [[-0.0], [0.0]])):
        assert runs(list(batches_of([pa.array(zeros, kind)], [1])), 1) == [[0, 1]]


def test_what_is_not_read_is_skipped_and_batches_come_when_asked_for() -> None:
    taken = []

    def arriving() -> Iterator[pa.RecordBatch]:
        for batch in batches_of([pa.array([1, 1, 1, 2, 2, 3])], [2]):
            taken.append(batch.num_rows)
            yield batch

    walk = key_runs(arriving(), 1)
    assert taken == []
    run, pieces = next(walk)
    assert (run.values(), len(taken)) == ([1], 1)
    assert next(pieces).schema.names == ["n"]
    assert [run.values() for run, _ in walk] == [[2], [3]]
    assert taken == [2, 2, 2]
