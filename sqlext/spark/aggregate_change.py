"""Two versions of a streaming aggregate compared: which clause differs, and which of the functions and columns are the same.

Both are compared as Spark has analysed them, without the numbers that an analysis gives to columns: an attribute is the place of
a column in the aggregate's input. `WHERE v > 0` and `WHERE 0 < v` are the same, and so are `count(*)` and `count(1)`.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.spark.distinct_aggregates import DistinctAggregate
from sqlext.spark.java import items_of, java_of, scala_object, scala_seq, transformed
from sqlext.spark.jvm import alias, analysed_plan, frame_of
from sqlext.spark.two_steps import kind_of, split_top
from sqlext.spark.varying import has_moment

_NUMBER = re.compile(r"#\d+L?")
_CALL = "AggregateExpression"
_WATERMARK = "EventTimeWatermark"
_JOINS = ("Join", "Union")
_CATALYST = "org.apache.spark.sql.catalyst"


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate function in a query.

    Attributes:
        id: of its results in the analysed query.
        meaning: Catalyst's expression, with places in the input for attributes.
        node: Catalyst's expression as it was analysed.
        text: for messages.
        is_repeatable: whether its arguments have the same values whenever a row is read, and not random ones.
        is_by_moment: whether they contain the current time, which is that of the micro-batch.
        is_over_new: whether they are distinct values that are rows, when these are new; the query's input does not have them.
    """

    id: int
    meaning: Any
    node: Any
    text: str
    is_repeatable: bool
    is_by_moment: bool
    is_over_new: bool

    def is_same_as(self, other: AggregateCall) -> bool:
        """Return whether two calls have the same results over the same rows."""
        return self.is_repeatable and bool(self.meaning.equals(other.meaning))


class AnalysedAggregate:
    """A streaming aggregate, in terms in which two of them can be compared; see the module's docstring.

    Args:
        frame: the analysed query: an aggregate, and columns computed from its results.
        sets: the aggregate without its functions over distinct values, if these are rows.

    Raises:
        UnsupportedError: something else is at the top of the query.
    """

    def __init__(self, frame: DataFrame, sets: DistinctAggregate | None) -> None:
        self._spark = frame.sparkSession
        self._names = frame.columns
        self._above, self._aggregate = split_top(analysed_plan(frame))
        self._sets = sets

    @property
    def input(self) -> Any:
        """The analysed plan of the rows that are aggregated."""
        return self._aggregate.child()

    @property
    def comparable_input(self) -> Any:
        """The same without the random ids of its watermarks."""
        return comparable(self._spark, self.input)

    @property
    def is_repeatable(self) -> bool:
        """Whether the same rows make the same groups whenever they are read: no key and no condition is random or by the time."""
        keys = items_of(self._aggregate.groupingExpressions())
        return not any(has_moment(self._spark, each) or not each.deterministic() for each in (self.input, *keys))

    @cached_property
    def keys(self) -> list[Any]:
        """The grouping expressions, in their order."""
        return [self._meaning(each) for each in items_of(self._aggregate.groupingExpressions())]

    @cached_property
    def calls(self) -> list[AggregateCall]:
        """The calls of aggregate functions; those over distinct values that are rows are calls over new values."""
        aggregate = self._aggregate if self._sets is None else self._sets.aggregate
        nodes = [node for result in items_of(aggregate.aggregateExpressions()) for node in _calls_in(result)]
        return [self._call(each) for each in nodes]

    def _call(self, node: Any) -> AggregateCall:
        function, condition = node.aggregateFunction(), node.filter()
        read = [*items_of(function.children()), *([condition.get()] if condition.isDefined() else [])]
        is_repeatable = all(bool(each.deterministic()) for each in read)  # first(v) itself is not: it goes by the order of rows
        by_moment = has_moment(self._spark, node)
        new = {int(each.exprId().id()) for each in (() if self._sets is None else self._sets.columns)}
        is_over_new = any(int(each.exprId().id()) in new for each in items_of(node.references().toSeq()))
        said = (self._meaning(node), node, str(node.sql()))
        return AggregateCall(int(node.resultId().id()), *said, is_repeatable, by_moment, is_over_new)

    @cached_property
    def columns(self) -> dict[str, Any]:
        """What each column computes of the aggregate's input; empty if columns are computed in several steps."""
        if any(kind_of(node) != "SubqueryAlias" for node in self._above):
            return {}
        results = zip(self._names, items_of(self._aggregate.aggregateExpressions()), strict=True)
        return {name: self._meaning(each.child() if kind_of(each) == "Alias" else each) for name, each in results}

    def calls_in(self, column: str) -> set[int]:
        """Return the ids of the calls in what `columns` has for a column."""
        result = items_of(self._aggregate.aggregateExpressions())[self._names.index(column)]
        return {int(each.resultId().id()) for each in _calls_in(result)}

    def only(self, calls: Sequence[AggregateCall]) -> DataFrame:
        """Return a query with the same groups and no other results than these calls."""
        spark, aggregate = self._spark, self._aggregate
        keys = [alias(spark, each, f"k{at}") for at, each in enumerate(items_of(aggregate.groupingExpressions()))]
        results = [*keys, *(alias(spark, each.node, f"a{at}") for at, each in enumerate(calls))]
        child, hint = aggregate.child(), aggregate.hint()
        return frame_of(spark, aggregate.copy(aggregate.groupingExpressions(), scala_seq(spark, results), child, hint))

    def _meaning(self, expression: Any) -> Any:
        plans = scala_object(self._spark, f"{_CATALYST}.plans.QueryPlan")
        return plans.normalizeExpressions(expression, self._places).canonicalized()

    @cached_property
    def sets(self) -> list[Any]:
        """The distinct values that are rows: each with the FILTERs that let it through, None for none."""
        pairs = [] if self._sets is None else [(each.value, each.filters) for each in self._sets.sets]
        return [self._meaning(each) if each is not None else None for value, filters in pairs for each in (value, *filters)]

    @cached_property
    def _places(self) -> Any:
        output = [*items_of(self.input.output()), *(() if self._sets is None else self._sets.columns)]
        package = scala_object(self._spark, f"{_CATALYST}.expressions.package")
        return package.AttributeSeq(scala_seq(self._spark, output))


def differing_clauses(old: AnalysedAggregate, new: AnalysedAggregate) -> list[str]:
    """Return the clauses by which the groups of two queries differ, or the rows in them, as users call these clauses."""
    if not old.comparable_input.sameResult(new.comparable_input):
        return _differing_inputs(old.input, new.input)
    if len(old.keys) != len(new.keys) or any(place_in(old.keys, key) is None for key in new.keys):
        return ["GROUP BY"]
    return []


def have_same_sets(old: AnalysedAggregate, new: AnalysedAggregate) -> bool:
    """Return whether two queries have the same distinct values as rows, with the same numbers."""
    pairs = zip(old.sets, new.sets, strict=False)
    return len(old.sets) == len(new.sets) and all(a.equals(b) if a is not None and b is not None else a is b for a, b in pairs)


def comparable(spark: SparkSession, plan: Any) -> Any:
    """Return a plan without the random ids of its watermarks."""
    none = java_of(spark).java.util.UUID(0, 0)

    def changed(node: Any) -> Any:
        if kind_of(node) != _WATERMARK:
            return node
        return node.copy(none, node.eventTime(), node.delay(), node.child())

    return transformed(plan.transformUp, changed)


def place_in(meanings: Sequence[Any], meaning: Any) -> int | None:
    """Return the place of an expression among others; None if it is not among them."""
    return next((at for at, each in enumerate(meanings) if each.equals(meaning)), None)


def _calls_in(node: Any) -> Iterator[Any]:
    if kind_of(node) == _CALL:
        yield node
        return
    for child in items_of(node.children()):
        yield from _calls_in(child)


def _differing_inputs(old: Any, new: Any) -> list[str]:
    """Return the names of differing clauses; plans are compared by text here, which only decides what an error names."""
    before, now = _clauses(old), _clauses(new)
    found = [name for name in ("FROM", "WATERMARK", "WHERE") if before.get(name) != now.get(name)]
    if "FROM" in found:  # the names of other relations are in the other clauses, too
        return ["FROM"]
    return found or ["FROM, or an expression in it,"]


def _clauses(plan: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in _nodes(plan):
        match kind_of(node):
            case "Filter":
                found.setdefault("WHERE", []).append(_NUMBER.sub("", str(node.condition().sql())))
            case "EventTimeWatermark":
                found.setdefault("WATERMARK", []).append(
                    _NUMBER.sub("", str(node.eventTime().sql()) + str(node.delay().toString()))
                )
            case "SubqueryAlias":
                found.setdefault("FROM", []).append(str(node.simpleString(10_000)))
            case kind if not items_of(node.children()) or kind in _JOINS:
                found.setdefault("FROM", []).append(_NUMBER.sub("", str(node.simpleString(10_000))))
    return found


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in items_of(plan.children()):
        yield from _nodes(child)
