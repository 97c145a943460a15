"""How the rows of a key are parted into two sides, in whatever order a function reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import Row

from sqlext.execution.partitions.cogroup import _FIRST, _SECOND, _SIDE, _Key

make = Row(_SIDE, _FIRST, _SECOND)


def records(first: int, second: int) -> Iterator[Row]:
    yield from (make(0, Row(a=number), None) for number in range(first))
    yield from (make(1, None, Row(b=number)) for number in range(second))


@pytest.mark.parametrize(("first", "second"), [(3, 2), (0, 2), (3, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("how", ["in order", "second first", "by turns", "some of the first"])
def test_each_side_has_its_rows(first: int, second: int, how: str) -> None:
    key = _Key(records(first, second))
    left, right = key.first(), key.second()
    found: list[list[Row]] = [[], []]
    if how == "in order":
        found = [list(left), list(right)]
    elif how == "second first":
        found[1] = list(right)
        found[0] = list(left)
    elif how == "by turns":
        for _ in range(4):
            found[0] += [row for row in [next(left, None)] if row is not None]
            found[1] += [row for row in [next(right, None)] if row is not None]
    else:
        found[0] += [row for row in [next(left, None)] if row is not None]
        found[1] = list(right)
        found[0] += list(left)
    assert found == [[Row(a=number) for number in range(first)], [Row(b=number) for number in range(second)]]
