"""Partition functions: what they read, which operator calls them, and what is refused when they are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from sqlext.errors import NameTakenError, NotFoundError, SchemaError
from sqlext.functions.partition import AggregateFunction, PartitionFunction, reads_batches
from sqlext.functions.registry import OperatorFunctions


def of_rows(records: Iterator[Any]) -> Iterator[Any]:
    return records


def of_batches(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return records


def of_two(one: Any, other: Any) -> Any:
    return one


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, accumulator: int, value: pa.RecordBatch) -> int:
        return accumulator + int(value.num_rows)

    def get_result(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize(
    ("function", "returns", "operator", "reads"),
    [
        (of_rows, "a INT", "map_partition", "rows"),
        (of_batches, "a INT", "map_partition", "batches"),
        (iter, "a INT", "map_partition", "rows"),  # a function of C
        (Count(), "n BIGINT", "aggregate_partition", "batches"),
        (of_two, "", "reduce_partition", "rows"),
        (of_two, "a INT", "cogroup", "rows"),
    ],
)
def test_the_operator_that_calls_it(function: Callable[..., Any], returns: str, operator: str, reads: str) -> None:
    registered = PartitionFunction("f", function, returns)
    assert (registered.operator, registered.reads) == (operator, reads)


def test_an_annotation_counts_whatever_form_it_has() -> None:
    def evaluated(records) -> None:  # type: ignore[no-untyped-def]
        pass

    assert not reads_batches(evaluated)
    evaluated.__annotations__["records"] = Iterator[pa.RecordBatch]
    assert reads_batches(evaluated)


@pytest.mark.parametrize(
    ("function", "returns", "message"),
    [
        (lambda a, b, c: a, "n INT", "map_partition calls its function with (records); <lambda>(a, b, c) does not take these"),
        (of_rows, "", "reduce_partition calls its function with (one, other); of_rows("),
        ("of_rows", "a INT", "map_partition calls its function with (records); 'of_rows' is not a function."),
        (Count(), "", "The aggregate function `f` needs `returns`: its columns, such as 'total DOUBLE'."),
        (Count, "n BIGINT", "map_partition calls its function with (records); Count() does not take these arguments."),
    ],
)
def test_what_cannot_be_called(function: Any, returns: str, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        PartitionFunction("f", function, returns)
    assert str(caught.value).startswith(message)


def test_the_registry() -> None:
    registry: OperatorFunctions[PartitionFunction] = OperatorFunctions("partition function")
    spread, spare = PartitionFunction("Spread", of_rows, "a INT"), PartitionFunction("spare", of_two)
    for function in (spread, spare, spread):
        registry.add(function)
    assert [each.name for each in registry] == ["spare", "Spread"]
    assert registry.get("SPREAD", "map_partition") is spread
    with pytest.raises(NameTakenError, match=r"^There is a partition function `Spread` already\."):
        registry.add(PartitionFunction("spread", of_two))
    with pytest.raises(NotFoundError) as missing:
        registry.get("spred", "map_partition")
    assert str(missing.value) == (
        "There is no partition function `spred`. Did you mean `Spread`? Those of map_partition are Spread."
    )
    with pytest.raises(NotFoundError, match=r"None is registered for aggregate_partition yet\.$"):
        registry.get("spred", "aggregate_partition")
    with pytest.raises(SchemaError, match=r"^reduce_partition cannot call `Spread`: it is registered for map_partition\.$"):
        registry.get("spread", "reduce_partition")
