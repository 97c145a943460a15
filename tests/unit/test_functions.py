"""Functions: every aggregate of Spark's is seen as one, whatever the dialect makes of its name; all else is not."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
from sqlglot import exp

from sqlext.errors import NameTakenError, SchemaError
from sqlext.functions.scalar import AGGREGATES, AGGREGATES_OF_SETS, PythonFunction, Reduction, SqlFunctions
from sqlext.sql.dialect import parse_query
from sqlext.sql.trees import aggregate_calls, function_name, is_aggregate_call, is_aggregation


def select_of(text: str) -> exp.Select:
    select = parse_query(text)
    assert isinstance(select, exp.Select)
    return select


def calls(expression: str) -> list[str]:
    """The names of the aggregate calls in an expression."""
    return [function_name(call) for call in aggregate_calls(select_of(f"SELECT {expression} FROM t"))]


# Aggregates by name

ARGUMENTS = dict.fromkeys(("corr", "covar_pop", "covar_samp"), "x, y")  # the dialect counts these functions' arguments


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_an_aggregate_of_sparks_is_one(name: str) -> None:
    ways = ("{}({})", "{} ( {} )", "f({}({})) AS z", "{}({}) FILTER (WHERE y)", "NOT {}({}) = 1")
    for written, spelling in itertools.product(ways, (name, name.upper(), name.capitalize())):
        expression = written.format(spelling, ARGUMENTS.get(name, "x"))
        assert len(calls(expression)) == 1
        assert is_aggregation(select_of(f"SELECT {expression} FROM t"))


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_over_a_window_it_is_none(name: str) -> None:
    for window in ("OVER (PARTITION BY k)", "OVER w", "FILTER (WHERE y) OVER (ORDER BY k)"):
        select = select_of(f"SELECT {name}({ARGUMENTS.get(name, 'x')}) {window} FROM t")
        assert not is_aggregation(select)
        assert not any(is_aggregate_call(node) for node in select.walk())


@pytest.mark.parametrize(
    "call",
    [
        "count(*)",
        "count(DISTINCT x)",
        "count(DISTINCT x, y)",
        "count(1)",
        "sum(DISTINCT x)",
        "avg(ALL x)",
        "first(x) IGNORE NULLS",
        "last(x IGNORE NULLS)",
        "first_value(x) RESPECT NULLS",
        "any_value(x, true)",
        "max_by(x, y)",
        "min_by(x, y)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)",
        "percentile_disc(0.5) WITHIN GROUP (ORDER BY x DESC) FILTER (WHERE y)",
        "mode() WITHIN GROUP (ORDER BY x)",
        "listagg(x, ', ') WITHIN GROUP (ORDER BY x)",
        "string_agg(DISTINCT x, ', ')",
        "percentile(x, array(0.1, 0.9))",
        "approx_percentile(x, 0.5, 100)",
        "percentile_approx(x, 0.5)",
        "approx_count_distinct(x, 0.01)",
        "histogram_numeric(x, 5)",
        "count_min_sketch(x, 0.5D, 0.5D, 1)",
        "count_if(x > 1)",
        "regr_slope(y, x)",
        "corr(x, y)",
        "collect_list(x)",
        "array_agg(x)",
        "grouping(x)",
        "bool_and(x)",
        "bit_xor(x)",
        "some(x)",
        "any(x > 1)",
        "every(x)",
        "sum0(x)",
        "collect(x)",
        "collect(DISTINCT x)",
        "last_value(x ORDER BY y DESC)",
    ],
)
def test_an_aggregate_in_its_own_way_of_writing_is_one(call: str) -> None:
    assert len(calls(call)) == 1
    assert calls(f"{call} OVER (PARTITION BY k)") == []


# What is no aggregate


@pytest.mark.parametrize(
    "expression",
    [
        "x",
        "count",
        "max + min",
        "'count(x)'",
        "upper(x)",
        "coalesce(x, 0)",
        "if(x, 1, 2)",
        "greatest(x, y)",
        "least(x, y)",
        "size(xs)",
        "cardinality(xs)",
        "array(x, y)",
        "struct(x, y)",
        "map(x, y)",
        "explode(xs)",
        "aggregate(xs, 0, (a, b) -> a + b)",
        "reduce(xs, 0, (a, b) -> a + b)",
        "transform(xs, x -> x + 1)",
        "filter(xs, x -> x > 1)",
        "exists(xs, x -> x)",
        "forall(xs, x -> x)",
        "array_max(xs)",
        "array_min(xs)",
        "array_distinct(xs)",
        "concat_ws(', ', xs)",
        "date_trunc('DAY', x)",
        "window(x, '5 min')",
        "session_window(x, '5 min')",
        "current_timestamp()",
        "rand()",
        "hll_sketch_estimate(x)",
        "bitmap_count(x)",
        "bit_count(x)",
        "try_add(x, y)",
        "x = ANY (SELECT 1)",
        "x LIKE ANY ('a', 'b')",
        "EXISTS (SELECT count(*) FROM u)",
        "(SELECT max(x) FROM u)",
        "x IN (SELECT sum(x) FROM u)",
        "my_function(x)",
        "`odd name`(x)",
        "row_number() OVER (ORDER BY x)",
        "rank() OVER (ORDER BY x)",
        "dense_rank() OVER (ORDER BY x)",
        "percent_rank() OVER (ORDER BY x)",
        "cume_dist() OVER (ORDER BY x)",
        "ntile(4) OVER (ORDER BY x)",
        "lag(x) OVER (ORDER BY x)",
        "lead(x, 2) IGNORE NULLS OVER (ORDER BY x)",
        "nth_value(x, 2) OVER (ORDER BY x)",
        "first_value(x) IGNORE NULLS OVER (ORDER BY x)",
        "sum(x) OVER ()",
    ],
)
def test_a_scalar_a_window_function_or_a_subquery_is_none(expression: str) -> None:
    assert calls(expression) == []
    assert not is_aggregation(select_of(f"SELECT {expression} FROM t"))


def test_an_aggregate_inside_a_window_function_is_one() -> None:
    assert calls("rank() OVER (ORDER BY sum(x))") == ["sum"]
    assert calls("sum(max(x)) OVER (PARTITION BY k)") == ["max"]
    assert calls("rank() OVER (PARTITION BY min(x) ORDER BY y)") == ["min"]


def test_having_counts_and_other_clauses_do_not() -> None:
    assert [function_name(c) for c in aggregate_calls(select_of("SELECT 1 FROM t HAVING max(x) > min(y)"))] == ["max", "min"]
    assert list(aggregate_calls(select_of("SELECT x FROM t WHERE x IN (SELECT max(x) FROM u) ORDER BY x"))) == []


def test_group_by_and_distinct_make_groups_without_any_aggregate() -> None:
    assert is_aggregation(select_of("SELECT x FROM t GROUP BY x"))
    assert is_aggregation(select_of("SELECT DISTINCT x FROM t"))
    assert not is_aggregation(select_of("SELECT x FROM (SELECT DISTINCT x FROM t)"))


# Functions from Python


def mean(values: list[Any]) -> float:
    return float(sum(values))


def python(name: str, function: Callable[..., Any] = mean, is_aggregate: bool = True) -> PythonFunction:
    return PythonFunction(name, function, "DOUBLE", is_aggregate)


def test_a_registered_function_is_found_in_any_case() -> None:
    registry = SqlFunctions()
    registry.add(python("Geometric_Mean"))
    assert registry.find("GEOMETRIC_MEAN") == python("Geometric_Mean")
    assert registry.find("unheard_of") is None
    assert list(registry) == [python("Geometric_Mean")]


def test_the_same_function_may_be_registered_again() -> None:
    registry = SqlFunctions()
    registry.add(python("m"))
    registry.add(python("m"))
    assert len(list(registry)) == 1


@pytest.mark.parametrize("other", [python("m", max), python("m", is_aggregate=False), python("M", mean)])
def test_another_function_of_that_name_is_refused(other: PythonFunction) -> None:
    registry = SqlFunctions()
    registry.add(python("m"))
    with pytest.raises(NameTakenError) as caught:
        registry.add(other)
    assert caught.value.message == "There is a function `m` already. Register yours under another name."
    assert list(registry) == [python("m")]


@pytest.mark.parametrize("name", ["count", "MAX", "sum0", "collect"])
def test_the_name_of_an_aggregate_of_sparks_is_taken(name: str) -> None:
    with pytest.raises(NameTakenError):
        SqlFunctions().add(python(name))


@pytest.mark.parametrize("name", ["", "a b", "1a", "a-b", "a.b", "a`b"])
def test_what_is_no_identifier_cannot_name_a_function(name: str) -> None:
    with pytest.raises(SchemaError, match="cannot name a SQL function"):
        SqlFunctions().add(python(name))


def test_an_aggregate_over_a_stream_has_a_second_name() -> None:
    assert python("m").over_list_name == "__sqlext_m_of_list"


# Reduce functions


def longest(a: str, b: str) -> str:
    return a if len(a) >= len(b) else b


def test_a_reduction_makes_one_of_all_values_and_nothing_of_none() -> None:
    assert Reduction(longest)(["a", "ccc", "bb"]) == "ccc"
    assert Reduction(longest)(["a"]) == "a"
    assert Reduction(longest)([]) is None
    assert Reduction(operator.add)([1, 2, 3]) == 6


def test_the_same_reduction_may_be_registered_again() -> None:
    registry = SqlFunctions()
    registry.add(python("m", Reduction(longest)))
    registry.add(python("m", Reduction(longest)))
    with pytest.raises(NameTakenError):
        registry.add(python("m", Reduction(operator.add)))


@pytest.mark.parametrize(
    "function",
    [len, lambda: 1, lambda a: a, lambda a, b, c: a, lambda a, b=1: a, lambda *values: values, lambda a, b, *, c: a],
)
def test_a_reduce_function_takes_exactly_two_arguments(function: Callable[..., Any]) -> None:
    with pytest.raises(SchemaError, match=r"^A reduce function takes exactly two values and returns one; .* does not\.$"):
        Reduction(function)


@pytest.mark.parametrize("function", [max, min])
def test_a_function_that_does_not_say_what_it_takes_is_taken(function: Callable[..., Any]) -> None:
    assert Reduction(function)([2, 2]) == 2


def test_what_runs_over_sets_are_aggregates_of_sparks() -> None:
    assert AGGREGATES_OF_SETS < AGGREGATES
