"""count(DISTINCT ..) taken out of an aggregate, so that a table can hold the distinct values as rows.

A rule has made `CAST(size(collect_set(v)) AS BIGINT)` of it, which keeps all values of a group in one cell. Here it becomes
`count(new)`, where `new` is a column without values in the input: the number of new values is added to what is stored. The values
come from a second plan of the same aggregate, as Spark itself plans several DISTINCT aggregates: `Expand` makes of each input row
one for the other functions and one for each set, and all are grouped by key, set and value. So one pass over the input gives the
partial results of the groups, and the values, each with the FILTERs that have let it through.

Values are compared as Spark's GROUP BY and DISTINCT do: NaN equals NaN, and -0.0 equals 0.0.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.spark.java import items_of, java_of, scala_seq, transformed
from sqlext.spark.jvm import active, alias
from sqlext.spark.physical_plan import as_columns, frame_over, physical_plan, unknown_rows
from sqlext.spark.two_steps import TwoSteps, can_be_stored, kind_of, two_steps

SET_COLUMN = f"{INTERNAL_PREFIX}set"
"""The column with the number of a value's set, from 1; rows of partial results have `NO_SET`."""
SEEN_COLUMN = f"{INTERNAL_PREFIX}seen"
"""The column with a bit for each FILTER that has let a value through."""
NO_SET = 0
_MOST_FILTERS = 62  # of one set: bits of a positive BIGINT


@dataclass(frozen=True)
class Counted:
    """One count of distinct values.

    Attributes:
        column: the column of partial results that holds it.
        set: the number of the set whose values are counted.
        bit: the bit in `SEEN_COLUMN` of the values that count.
    """

    column: str
    set: int
    bit: int


@dataclass(frozen=True)
class DistinctRows:
    """The rows that an aggregate with distinct counts makes of its input: partial results, and distinct values.

    Attributes:
        schema: of both: the key, the set, the columns of values, those of partial results, the FILTERs.
        value: the columns that identify a value: the key, the set, and a column for each set, null for those of others.
        counts: the counts.
    """

    schema: StructType
    value: tuple[str, ...]
    counts: tuple[Counted, ...]


@dataclass(frozen=True)
class _Set:
    """The values of one expression: `filters` has the FILTERs of their counts, None for none."""

    value: Any
    filters: list[Any]


@dataclass(frozen=True)
class DistinctCounts:
    """The distinct counts of an aggregate; see the module's docstring.

    Attributes:
        aggregate: the aggregate with other counts in their place.
        columns: the columns that these count, which the aggregate's input lacks.
        sets: the sets, each with its FILTERs.
        places: for each of `columns`, the place of its set in `sets`, and that of its FILTER there.
    """

    aggregate: Any
    columns: tuple[Any, ...]
    sets: tuple[_Set, ...]
    places: tuple[tuple[int, int], ...]


def distinct_counts(spark: SparkSession, aggregate: Any) -> DistinctCounts | None:
    """Take distinct counts out of a logical aggregate; None if it has none that can be.

    A set that is also shown, or aggregated, keeps its cell: its values are together in the result anyway.
    """
    kept: list[Any] = []
    while True:
        changed, found = _without_sets(spark, aggregate, kept)
        shown = [each for result in items_of(changed.aggregateExpressions()) for each in _sets_in(result)]
        again = [each for each in shown if any(each.semanticEquals(other.value) for other in found.sets)]
        if not again:
            return found if found.columns else None
        kept += again


def _without_sets(spark: SparkSession, aggregate: Any, kept: Sequence[Any]) -> tuple[Any, DistinctCounts]:
    java, sets = java_of(spark), list[_Set]()
    columns, places = list[Any](), list[tuple[int, int]]()
    integer = java.org.apache.spark.sql.types.DataTypes.IntegerType
    expressions = java.org.apache.spark.sql.catalyst.expressions

    def place(value: Any, condition: Any) -> tuple[int, int]:
        at = next((at for at, each in enumerate(sets) if each.value.semanticEquals(value)), len(sets))
        if at == len(sets):
            sets.append(_Set(value, []))
        filters = sets[at].filters
        bit = next((bit for bit, each in enumerate(filters) if _is_same(each, condition)), len(filters))
        if bit == len(filters):
            filters.append(condition)
        return at, bit

    def counted(node: Any) -> Any:
        call = _counted_set(node)
        if call is None or any(call.aggregateFunction().child().semanticEquals(each) for each in kept):
            return node
        condition = call.filter().get() if call.filter().isDefined() else None
        at = place(call.aggregateFunction().child(), condition)
        if at not in places:
            places.append(at)
            columns.append(alias(spark, expressions.Literal(None, integer), "new").toAttribute())
        count = expressions.aggregate.Count(scala_seq(spark, [columns[places.index(at)]]))
        return count.toAggregateExpression()

    results = [transformed(each.transformDown, counted) for each in items_of(aggregate.aggregateExpressions())]
    changed = _over(spark, aggregate, items_of(aggregate.groupingExpressions()), results, aggregate.child())
    return changed, DistinctCounts(changed, tuple(columns), tuple(sets), tuple(places))


def _counted_set(node: Any) -> Any:
    """Return the call of collect_set in CAST(size(collect_set(..)) AS BIGINT); None for any other expression."""
    if kind_of(node) != "Cast" or str(node.dataType().sql()) != "BIGINT" or kind_of(node.child()) != "Size":
        return None
    call = node.child().child()
    is_set = kind_of(call) == "AggregateExpression" and kind_of(call.aggregateFunction()) == "CollectSet"
    return call if is_set else None


def _sets_in(expression: Any) -> list[Any]:
    """Return the arguments of collect_set in an expression."""
    if kind_of(expression) == "CollectSet":
        return [expression.child()]
    return [found for child in items_of(expression.children()) for found in _sets_in(child)]


def _is_same(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else bool(one.semanticEquals(other))


def _over(spark: SparkSession, aggregate: Any, keys: Sequence[Any], results: Sequence[Any], child: Any) -> Any:
    return aggregate.copy(scala_seq(spark, keys), scala_seq(spark, results), child, aggregate.hint())


class PartialsByValue:
    """The step that makes partial results and distinct values of rows, in one pass. Immutable and thread-safe.

    Args:
        counts: the distinct counts.
        columns: the columns of the rows.
        steps: the plan of `counts.aggregate`.

    Attributes:
        rows: the rows that it makes.
        text: Catalyst's text of the sets, for fingerprints.

    Raises:
        UnsupportedError: the values cannot be rows of a table.
    """

    def __init__(self, spark: SparkSession, counts: DistinctCounts, columns: Sequence[Any], steps: TwoSteps) -> None:
        self._columns = list(columns)
        if any(len(each.filters) > _MOST_FILTERS for each in counts.sets):
            raise UnsupportedError(f"more than {_MOST_FILTERS} FILTERs go over one set.")
        found = two_steps(spark, _by_value(spark, counts, self._columns))
        self._nodes = [found.partial, *found.below_partial]
        keys, sets = int(steps.final.groupingExpressions().length()), len(counts.sets)
        expected = [str(each.dataType().json()) for each in items_of(steps.partial.output())]
        output = items_of(found.partial.output())
        kinds = [str(each.dataType().json()) for each in output]
        if kinds[:keys] + kinds[keys + 1 + sets : -1] != expected or not _are_same_functions(steps, found):
            raise UnsupportedError("Spark plans it in another way by value.")
        for each in output[: keys + 1 + sets]:
            if not can_be_stored(json.loads(str(each.dataType().json()))):
                raise UnsupportedError(f"values have the type {each.dataType().sql()}, which a table cannot store.")
        self.rows = _rows(keys, sets, kinds, _counted(counts, steps))
        parts = [part for each in counts.sets for part in (each.value, *each.filters)]
        self.text = "\n".join([self.rows.schema.json(), *("" if each is None else str(each.toString()) for each in parts)])

    def partials(self, rows: DataFrame) -> DataFrame:
        """Return rows of `rows.schema`. A group or value may occur several times: there is no exchange."""
        spark = rows.sparkSession
        with active(spark):
            plan = as_columns(spark, physical_plan(rows), self._columns)
            for node in reversed(self._nodes):
                plan = node.withNewChildren(scala_seq(spark, [plan]))
            names = self.rows.schema.names
            return frame_over(spark, plan, [alias(spark, *pair) for pair in zip(items_of(plan.output()), names, strict=True)])


def _by_value(spark: SparkSession, counts: DistinctCounts, columns: Sequence[Any]) -> Any:
    """Return the aggregate by key, set and value, over unknown rows; its other functions only see the rows of no set."""
    java = java_of(spark)
    expressions, types = java.org.apache.spark.sql.catalyst.expressions, java.org.apache.spark.sql.types.DataTypes
    logical, option = java.org.apache.spark.sql.catalyst.plans.logical, java.scala.Option.apply
    number, none = expressions.Literal.create(NO_SET, types.IntegerType), _long(spark, 0)
    set_, seen = (alias(spark, each, name).toAttribute() for each, name in ((number, SET_COLUMN), (none, SEEN_COLUMN)))
    values = [alias(spark, each.value, f"v{at}").toAttribute().withNullability(True) for at, each in enumerate(counts.sets)]
    new = [expressions.Literal(None, each.dataType()) for each in counts.columns]
    nulls = [expressions.Literal(None, each.dataType()) for each in values]

    projections = [[*columns, *new, number, *nulls, none]]
    for at, each in enumerate(counts.sets):
        bits = [_bit(spark, condition, bit) for bit, condition in enumerate(each.filters)]
        own = reduce(expressions.BitwiseOr, bits)
        # a value that no FILTER lets through is not evaluated: it may fail
        value = expressions.If(expressions.EqualTo(own, none), nulls[at], each.value)
        own = expressions.If(expressions.IsNull(value), none, own)
        shown = [value if place == at else null for place, null in enumerate(nulls)]
        projections.append([*columns, *new, expressions.Literal.create(at + 1, types.IntegerType), *shown, own])
    rows = unknown_rows(spark, scala_seq(spark, list(columns)))
    output = scala_seq(spark, [*columns, *counts.columns, set_, *values, seen])
    expand = logical.Expand(scala_seq(spark, [scala_seq(spark, each) for each in projections]), output, rows)
    is_group = expressions.EqualTo(set_, number)
    kept = logical.Filter(expressions.Or(is_group, expressions.Not(expressions.EqualTo(seen, none))), expand)

    def of_groups(node: Any) -> Any:
        if kind_of(node) != "AggregateExpression":
            return node
        condition = expressions.And(node.filter().get(), is_group) if node.filter().isDefined() else is_group
        return node.copy(node.aggregateFunction(), node.mode(), node.isDistinct(), option(condition), node.resultId())

    aggregate = counts.aggregate
    results = [transformed(each.transformUp, of_groups) for each in items_of(aggregate.aggregateExpressions())]
    any_of = alias(spark, expressions.aggregate.BitOrAgg(seen).toAggregateExpression(), SEEN_COLUMN)
    keys = [*items_of(aggregate.groupingExpressions()), set_, *values]
    return _over(spark, aggregate, keys, [*results, any_of], kept)


def _bit(spark: SparkSession, condition: Any, bit: int) -> Any:
    """Return the expression of the bit of a FILTER: set where the FILTER lets a value through."""
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions
    value = _long(spark, 1 << bit)
    return value if condition is None else expressions.If(condition, value, _long(spark, 0))


def _long(spark: SparkSession, value: int) -> Any:
    """Return a literal; it is parsed, since Py4J would pass a small number as an Integer."""
    return spark._jsparkSession.sessionState().sqlParser().parseExpression(f"{value}L")


def _are_same_functions(one: TwoSteps, by_value: TwoSteps) -> bool:
    """Return whether the plan by value has the same functions, in the same order, and one more at the end."""
    kinds = [
        [kind_of(each.aggregateFunction()) for each in items_of(steps.final.aggregateExpressions())] for steps in (one, by_value)
    ]
    return [*kinds[0], "BitOrAgg"] == kinds[1]


def _counted(counts: DistinctCounts, steps: TwoSteps) -> tuple[Counted, ...]:
    """Find the columns of partial results that hold the counts."""
    found, at = [], 0
    for each in items_of(steps.final.aggregateExpressions()):
        function = each.aggregateFunction()
        arguments = items_of(function.children()) if kind_of(function) == "Count" else []
        for column, (place, bit) in zip(counts.columns, counts.places, strict=True):
            if len(arguments) == 1 and arguments[0].semanticEquals(column):
                found.append(Counted(partial_column(at), place + 1, bit))
        at += int(function.aggBufferAttributes().length())
    if len(found) != len(counts.columns):
        raise UnsupportedError("Spark plans its counts in another way.")
    return tuple(found)


def key_column(at: int) -> str:
    """Return the name of a key column of partial results, by its place."""
    return f"{INTERNAL_PREFIX}k{at + 1}"


def partial_column(at: int) -> str:
    """Return the name of another column of partial results, by its place among them."""
    return f"{INTERNAL_PREFIX}b{at + 1}"


def _rows(keys: int, sets: int, kinds: Sequence[str], counts: tuple[Counted, ...]) -> DistinctRows:
    value = [*map(key_column, range(keys)), SET_COLUMN, *(f"{INTERNAL_PREFIX}v{at + 1}" for at in range(sets))]
    names = [*value, *map(partial_column, range(len(kinds) - len(value) - 1)), SEEN_COLUMN]
    pairs = zip(names, kinds, strict=True)
    fields = [{"name": name, "type": json.loads(kind), "nullable": True, "metadata": {}} for name, kind in pairs]
    return DistinctRows(StructType.fromJson({"type": "struct", "fields": fields}), tuple(value), counts)
