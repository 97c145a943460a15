"""count(DISTINCT ..), sum(DISTINCT ..) and the like taken out of an aggregate, so that a table can hold the values as rows.

A rule has made `CAST(size(collect_set(v)) AS BIGINT)` of the one, and an aggregate over the members of collect_set(v) of the
others, which keeps all values of a group in one cell. Here they become `count(new)`, `sum(new)`, where `new` is a column without
values in the input: what is new is added to what is stored. There are three plans of the aggregate:

1. `DistinctAggregate.aggregate`, in which partial results are merged and make results.
2. `PartialsByValue.partials` makes rows of the input, as Spark itself plans several DISTINCT aggregates: `Expand` makes of each
   input row one for the other functions and one for each set, and all are grouped by key, set and value. So one pass gives the
   partial results of the groups, and the values, each with the FILTERs that have let it through.
3. `PartialsByValue.of_new` makes partial results of values that are new.

Values are compared as Spark's GROUP BY and DISTINCT do: NaN equals NaN, and -0.0 equals 0.0.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote
from sqlext.spark.java import items_of, java_of, scala_seq, transformed
from sqlext.spark.jvm import active, alias
from sqlext.spark.physical_plan import as_columns, frame_over, physical_plan, unknown_rows
from sqlext.spark.set_aggregates import builtin, function_over_set
from sqlext.spark.two_steps import TwoSteps, can_be_stored, kind_of, two_steps

SET_COLUMN = f"{INTERNAL_PREFIX}set"
"""The column with the number of a value's set, from 1; rows of partial results have `NO_SET`."""
SEEN_COLUMN = f"{INTERNAL_PREFIX}seen"
"""The column with a bit for each FILTER that has let a value through."""
NO_SET = 0
_DECLARATIVE = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
_MOST_FILTERS = 62  # of one set: bits of a positive BIGINT


@dataclass(frozen=True)
class DistinctRows:
    """The rows that an aggregate with distinct counts makes of its input: partial results, and distinct values.

    Attributes:
        schema: of both: the key, the set, the columns of values, those of partial results, the FILTERs.
        value: the columns that identify a value: the key, the set, and a column for each set, null for those of others.
        results: the columns of partial results that values go into.
    """

    schema: StructType
    value: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class _Set:
    """The values of one expression; `filters` has the FILTERs of the functions over them, None for none."""

    value: Any
    filters: list[Any]


@dataclass(frozen=True)
class DistinctAggregate:
    """An aggregate without its functions over sets; see the module's docstring.

    Attributes:
        aggregate: the aggregate with functions over new values in their place.
        columns: the columns of new values, which the aggregate's input lacks.
        sets: the sets, each with its FILTERs.
        places: for each of `columns`, the place of its set in `sets`, and that of its FILTER there.
    """

    aggregate: Any
    columns: tuple[Any, ...]
    sets: tuple[_Set, ...]
    places: tuple[tuple[int, int], ...]


def without_sets(spark: SparkSession, aggregate: Any) -> DistinctAggregate | None:
    """Take the functions over sets out of a logical aggregate; None if it has none.

    A set that is also shown keeps its cell: its values are together in the result anyway.
    """
    kept: list[Any] = []
    while True:
        changed, found = _without_sets(spark, aggregate, kept)
        shown = [each for result in items_of(changed.aggregateExpressions()) for each in _sets_in(result)]
        again = [each for each in shown if any(each.semanticEquals(other.value) for other in found.sets)]
        if not again:
            return found if found.columns else None
        kept += again


def _without_sets(spark: SparkSession, aggregate: Any, kept: Sequence[Any]) -> tuple[Any, DistinctAggregate]:
    sets, columns, places = list[_Set](), list[Any](), list[tuple[int, int]]()
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions

    def place(value: Any, condition: Any) -> tuple[int, int]:
        at = next((at for at, each in enumerate(sets) if each.value.semanticEquals(value)), len(sets))
        if at == len(sets):
            sets.append(_Set(value, []))
        filters = sets[at].filters
        bit = next((bit for bit, each in enumerate(filters) if _is_same(each, condition)), len(filters))
        if bit == len(filters):
            filters.append(condition)
        return at, bit

    def over_new(node: Any) -> Any:
        name, call = _function_of_set(spark, node)
        if not name or any(call.aggregateFunction().child().semanticEquals(each) for each in kept):
            return node
        value = call.aggregateFunction().child()
        if not builtin(spark.sparkContext, name, value).dataType().sameType(node.dataType()):
            return node
        at = place(value, call.filter().get() if call.filter().isDefined() else None)
        if at not in places:
            places.append(at)
            columns.append(alias(spark, expressions.Literal(None, value.dataType()), "new").toAttribute())
        return builtin(spark.sparkContext, name, columns[places.index(at)]).toAggregateExpression()

    results = [transformed(each.transformDown, over_new) for each in items_of(aggregate.aggregateExpressions())]
    changed = _over(spark, aggregate, items_of(aggregate.groupingExpressions()), results, aggregate.child())
    return changed, DistinctAggregate(changed, tuple(columns), tuple(sets), tuple(places))


def _function_of_set(spark: SparkSession, node: Any) -> tuple[str, Any]:
    """Return the function of a rule's function over a set, and the call of collect_set; an empty name for other expressions."""
    name, call = "", None
    if kind_of(node) == "Cast" and str(node.dataType().sql()) == "BIGINT" and kind_of(node.child()) == "Size":
        name, call = "count", node.child().child()
    elif kind_of(node) == "ArrayAggregate":
        name, call = function_over_set(spark.sparkContext, node), node.argument()
    if call is None or kind_of(call) != "AggregateExpression" or kind_of(call.aggregateFunction()) != "CollectSet":
        return "", None
    return (name, call) if call.aggregateFunction().ignoreNulls() else ("", None)  # RESPECT NULLS: a NULL is one of the values


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
    """The steps from rows to distinct values, and from those to partial results. Immutable and thread-safe.

    Args:
        distinct: the aggregate.
        columns: the columns of the rows.
        steps: the plan of `distinct.aggregate`; a query above it may have another order of its results.

    Attributes:
        rows: the rows that `partials` makes.
        text: Catalyst's text of the sets, for fingerprints.

    Raises:
        UnsupportedError: the values cannot be rows of a table.
    """

    def __init__(self, spark: SparkSession, distinct: DistinctAggregate, columns: Sequence[Any], steps: TwoSteps) -> None:
        if any(len(each.filters) > _MOST_FILTERS for each in distinct.sets):
            raise UnsupportedError(f"more than {_MOST_FILTERS} FILTERs go over one set.")
        self._columns, self._places = list(columns), distinct.places
        keys, sets = _keys(steps), len(distinct.sets)
        functions = _functions(steps)
        by_value, seen = _by_value(spark, distinct, self._columns)
        self._by_value = two_steps(spark, by_value)
        self._shown = [*range(keys + 1 + sets), *_buffers(self._by_value, [*functions, seen])]
        output = items_of(self._by_value.partial.output())
        kinds = _kinds([output[at] for at in self._shown])
        has_keys = _keys(self._by_value) == keys + 1 + sets  # the optimizer drops constant keys, but not if there are no others
        if not has_keys or kinds[:keys] + kinds[keys + 1 + sets : -1] != _kinds(items_of(steps.partial.output())):
            raise UnsupportedError("Spark plans it in another way by value.")
        unfit = [kind for kind in kinds[: keys + 1 + sets] if not can_be_stored(json.loads(kind))]
        if unfit:
            raise UnsupportedError(f"values have the type {unfit[0]}, which a table cannot store.")
        self.rows = _rows(keys, sets, kinds, tuple(_results_of_new(distinct, functions)))
        self._stored, of_new = _over_new(spark, distinct, output[:keys])
        self._of_new = two_steps(spark, of_new)
        if _keys(self._of_new) != keys + 1:
            raise UnsupportedError("Spark groups new values in another way.")
        over_new = [each for each in functions if _reads(each, distinct.columns)]
        self._results = [*range(keys + 1), *_buffers(self._of_new, over_new)]
        self._initial = _initial_values(spark, distinct, functions)
        parts = [part for each in distinct.sets for part in (each.value, *each.filters)]
        self.text = "\n".join([self.rows.schema.json(), *("" if each is None else str(each.toString()) for each in parts)])

    def partials(self, rows: DataFrame) -> DataFrame:
        """Return rows of `rows.schema`. A group or value may occur several times: there is no exchange."""
        return _run(self._by_value, rows, self._columns, self._shown, self.rows.schema.names)

    def of_new(self, values: DataFrame, by: str) -> DataFrame:
        """Return partial results of new values: the key, `by`, and `rows.results`. A group may occur several times.

        Other functions have their initial values, but for those that Spark does not define by expressions: these are missing.

        Args:
            values: rows with `rows.value`, `SEEN_COLUMN` and `by`.
            by: a BIGINT column by which they are grouped as well.
        """
        keys = self.rows.value[: self.rows.value.index(SET_COLUMN)]
        columns = self.rows.value[len(keys) + 1 :]
        new = [
            F.when((F.col(SET_COLUMN) == place + 1) & (F.col(SEEN_COLUMN).bitwiseAND(1 << bit) != 0), F.col(columns[place]))
            for place, bit in self._places
        ]
        given = values.select(*map(quote, keys), by, *(each.alias(f"new{at}") for at, each in enumerate(new)))
        return _run(self._of_new, given, self._stored, self._results, [*keys, by, *self.rows.results], self._initial)


def _run(
    steps: TwoSteps,
    rows: DataFrame,
    columns: Sequence[Any],
    shown: Sequence[int],
    names: Sequence[str],
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> DataFrame:
    """Return the results of a first step.

    Args:
        steps: the plan.
        rows: its input.
        columns: the attributes that the plan has for the columns of its input.
        shown: the places of the results, in the order of their names.
        names: the names of the results.
        constants: other columns of the result, by name.
    """
    spark = rows.sparkSession
    with active(spark):
        plan = as_columns(spark, physical_plan(rows), columns)
        for node in reversed([steps.partial, *steps.below_partial]):
            plan = node.withNewChildren(scala_seq(spark, [plan]))
        output = items_of(plan.output())
        named = [alias(spark, output[at], name) for at, name in zip(shown, names, strict=True)]
        return frame_over(spark, plan, [*named, *(alias(spark, each, name) for name, each in constants.items())])


def _keys(steps: TwoSteps) -> int:
    """Return the number of columns by which a plan groups."""
    return int(steps.final.groupingExpressions().length())


def _kinds(attributes: Sequence[Any]) -> list[str]:
    return [str(each.dataType().json()) for each in attributes]


def _functions(steps: TwoSteps) -> list[Any]:
    return [each.aggregateFunction() for each in items_of(steps.final.aggregateExpressions())]


def _buffers(steps: TwoSteps, functions: Sequence[Any]) -> list[int]:
    """Return the places of the partial results of functions in the output of a first step, function by function."""
    found = _functions(steps)
    sizes = [int(each.aggBufferAttributes().length()) for each in found]
    places = list[int]()
    for function in functions:
        same = [at for at, each in enumerate(found) if each.semanticEquals(function)]
        if len(same) != 1:  # several times with several FILTERs, which only the first step has
            raise UnsupportedError(f"Spark plans {function.prettyName()} in another way by value, or several times.")
        first = _keys(steps) + sum(sizes[: same[0]])
        places += range(first, first + sizes[same[0]])
    return places


def _by_value(spark: SparkSession, distinct: DistinctAggregate, columns: Sequence[Any]) -> tuple[Any, Any]:
    """Return the aggregate by key, set and value, over unknown rows, and its function for `SEEN_COLUMN`.

    Its other functions only see the rows of no set.
    """
    java = java_of(spark)
    expressions, types = java.org.apache.spark.sql.catalyst.expressions, java.org.apache.spark.sql.types.DataTypes
    logical, option = java.org.apache.spark.sql.catalyst.plans.logical, java.scala.Option.apply
    number, none = expressions.Literal.create(NO_SET, types.IntegerType), _long(spark, 0)
    set_, seen = (alias(spark, each, name).toAttribute() for each, name in ((number, SET_COLUMN), (none, SEEN_COLUMN)))
    values = [alias(spark, each.value, f"v{at}").toAttribute().withNullability(True) for at, each in enumerate(distinct.sets)]
    new = [expressions.Literal(None, each.dataType()) for each in distinct.columns]
    nulls = [expressions.Literal(None, each.dataType()) for each in values]

    projections = [[*columns, *new, number, *nulls, none]]
    for at, each in enumerate(distinct.sets):
        bits = [_bit(spark, condition, bit) for bit, condition in enumerate(each.filters)]
        own = reduce(expressions.BitwiseOr, bits)
        # a value that no FILTER lets through is not evaluated: it may fail
        value = expressions.If(expressions.EqualTo(own, none), nulls[at], each.value)
        own = expressions.If(expressions.IsNull(value), none, own)
        shown = [value if place == at else null for place, null in enumerate(nulls)]
        projections.append([*columns, *new, expressions.Literal.create(at + 1, types.IntegerType), *shown, own])
    rows = unknown_rows(spark, scala_seq(spark, list(columns)))
    output = scala_seq(spark, [*columns, *distinct.columns, set_, *values, seen])
    expand = logical.Expand(scala_seq(spark, [scala_seq(spark, each) for each in projections]), output, rows)
    is_group = expressions.EqualTo(set_, number)
    kept = logical.Filter(expressions.Or(is_group, expressions.Not(expressions.EqualTo(seen, none))), expand)

    def of_groups(node: Any) -> Any:
        if kind_of(node) != "AggregateExpression":
            return node
        condition = expressions.And(node.filter().get(), is_group) if node.filter().isDefined() else is_group
        return node.copy(node.aggregateFunction(), node.mode(), node.isDistinct(), option(condition), node.resultId())

    aggregate = distinct.aggregate
    results = [transformed(each.transformUp, of_groups) for each in items_of(aggregate.aggregateExpressions())]
    any_of = expressions.aggregate.BitOrAgg(seen)
    keys = [*items_of(aggregate.groupingExpressions()), set_, *values]
    results.append(alias(spark, any_of.toAggregateExpression(), SEEN_COLUMN))
    return _over(spark, aggregate, keys, results, kept), any_of


def _bit(spark: SparkSession, condition: Any, bit: int) -> Any:
    """Return the expression of the bit of a FILTER: set where the FILTER lets a value through."""
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions
    value = _long(spark, 1 << bit)
    return value if condition is None else expressions.If(condition, value, _long(spark, 0))


def _long(spark: SparkSession, value: int) -> Any:
    """Return a literal; it is parsed, since Py4J would pass a small number as an Integer."""
    return spark._jsparkSession.sessionState().sqlParser().parseExpression(f"{value}L")


def _results_of_new(distinct: DistinctAggregate, functions: Sequence[Any]) -> list[str]:
    """Return the columns of partial results that new values go into."""
    found, at = list[str](), 0
    for function in functions:
        buffers = int(function.aggBufferAttributes().length())
        found += map(partial_column, range(at, at + buffers)) if _reads(function, distinct.columns) else ()
        at += buffers
    return found


def _initial_values(spark: SparkSession, distinct: DistinctAggregate, functions: Sequence[Any]) -> dict[str, Any]:
    """Return the partial results of no rows, by column, of the functions that new values do not go into."""
    gateway, found, at = spark.sparkContext._gateway, dict[str, Any](), 0
    for function in functions:
        if is_instance_of(gateway, function, _DECLARATIVE) and not _reads(function, distinct.columns):
            found |= {partial_column(at + place): each for place, each in enumerate(items_of(function.initialValues()))}
        at += int(function.aggBufferAttributes().length())
    return found


def _reads(expression: Any, columns: Sequence[Any]) -> bool:
    references = expression.references()
    return any(references.contains(each) for each in columns)


def _over_new(spark: SparkSession, distinct: DistinctAggregate, keys: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return the functions over new values as an aggregate by key and one more column, and the columns of its unknown rows."""
    by = alias(spark, _long(spark, 0), "by").toAttribute()
    groups, columns = [*keys, by], [*keys, by, *distinct.columns]
    results = items_of(distinct.aggregate.aggregateExpressions())
    calls = [call for each in results for call in _calls(each) if _reads(call, distinct.columns)]
    named = [*groups, *(alias(spark, call, "result") for call in calls)]
    return columns, _over(spark, distinct.aggregate, groups, named, unknown_rows(spark, scala_seq(spark, columns)))


def _calls(expression: Any) -> list[Any]:
    """Return the calls of aggregate functions in an expression."""
    if kind_of(expression) == "AggregateExpression":
        return [expression]
    return [found for child in items_of(expression.children()) for found in _calls(child)]


def key_column(at: int) -> str:
    """Return the name of a key column of partial results, by its place."""
    return f"{INTERNAL_PREFIX}k{at + 1}"


def partial_column(at: int) -> str:
    """Return the name of another column of partial results, by its place among them."""
    return f"{INTERNAL_PREFIX}b{at + 1}"


def _rows(keys: int, sets: int, kinds: Sequence[str], results: tuple[str, ...]) -> DistinctRows:
    value = [*map(key_column, range(keys)), SET_COLUMN, *(f"{INTERNAL_PREFIX}v{at + 1}" for at in range(sets))]
    names = [*value, *map(partial_column, range(len(kinds) - len(value) - 1)), SEEN_COLUMN]
    pairs = zip(names, kinds, strict=True)
    fields = [{"name": name, "type": json.loads(kind), "nullable": True, "metadata": {}} for name, kind in pairs]
    return DistinctRows(StructType.fromJson({"type": "struct", "fields": fields}), tuple(value), results)
