"""The tools of the differential test: they see what differs, make the same queries of a seed, and make failures small."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row

from tests.differential.compare import Leniency, Result, difference
from tests.differential.generator import Generator
from tests.differential.harness import normalised
from tests.differential.shrink import shrink
from tests.differential.tree import Form, Query

NAN = float("nan")


def result(*values: Any, kind: str = "double") -> Result:
    return Result((("c", kind),), tuple(Row(c=value) for value in values))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (result(NAN, 0.0, None), result(None, NAN, -0.0)),
        (result(1.5, 1.5), result(1.5, 1.5)),
        (result({"a": NAN, "b": 1}), result({"b": 1, "a": NAN})),
        (result(Row(k=None, v=[NAN])), result(Row(k=None, v=[NAN]))),
    ],
)
def test_equal_results_are_equal(found: Result, expected: Result) -> None:
    assert difference(found, expected, Leniency()) == ""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (result(1.5), result(1.5, 1.5)),
        (result(1.5, 2.5, 2.5), result(1.5, 1.5, 2.5)),
        (result(1, kind="int"), result(1, kind="bigint")),
        (result(1), result(True)),
        (result(Decimal("1.50")), result(Decimal("1.5"))),
        (result(""), result(None)),
        (result([1, 2]), result([2, 1])),
        (result(Row(k=1)), result(Row(K=1))),
        (result(1.0), result(1.0000000001)),
    ],
)
def test_different_results_differ(found: Result, expected: Result) -> None:
    assert difference(found, expected, Leniency())


def test_leniency_is_for_its_columns() -> None:
    assert difference(result([2, 1, 1]), result([1, 2, 1]), Leniency(unordered=frozenset({0}))) == ""
    assert difference(result([2, 1]), result([1, 2, 1]), Leniency(unordered=frozenset({0})))
    assert difference(result(1.0), result(1.0000000001), Leniency(approximate=frozenset({0}))) == ""
    assert difference(result(1.0), result(1.001), Leniency(approximate=frozenset({0})))


def made(seed: int, count: int) -> list[Query]:
    generator = Generator(random.Random(seed))
    return [generator.query() for _ in range(count)]


def test_a_seed_gives_the_same_queries() -> None:
    assert made(7, 50) == made(7, 50)
    assert made(7, 50) != made(8, 50)


@pytest.mark.parametrize("text", ["count(DISTINCT", "payload.k", "HAVING", "date_format(", "ROLLUP"])
def test_shrinking_keeps_what_fails_and_little_else(text: str) -> None:
    query = next(each for each in made(3, 5000) if text in each.render(Form.FLOW))

    def first_failing(queries: Sequence[Query]) -> Query | None:
        return next((each for each in queries if text in each.render(Form.FLOW)), None)

    small = shrink(query, first_failing, rounds=100, at_once=1000)
    assert text in small.render(Form.FLOW)
    assert len(small.items) <= 2
    assert len(small.render(Form.FLOW)) <= 140


def test_reasons_are_counted_without_what_is_the_query_s_own() -> None:
    assert normalised("Column `c1` of 't' has 3 (line 1, column 9)\nmore") == "Column `..` of '..' has N"
