"""Partial results behind an aggregate whose results cannot be added to: an average, a sum under ROUND, a HAVING, the first ten.

What such an aggregate shows is computed of sums, counts and extremes of its groups, which can be (`merging.py`). They lie in a
table beside the view (`partial_table.py`), a row a group, together with the number of the group's rows. The view's rows are a
function of that table alone: of Spark's own expressions over the buffers of its aggregate functions, and of the operators above.

An average of whole numbers is a sum in floating point to Spark, exact as long as it has no more than 53 bits; the sums here are
exact, and the sum of absolute values tells whether Spark's would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sqlext.execution.delta.changes import WEIGHT
from sqlext.execution.views.keys import PASSING, keys_of, passed_on
from sqlext.execution.views.leaves import Delta
from sqlext.execution.views.merging import WHOLE_NUMBERS, Function, Mergeable, Merged, differences, is_exact, name_of
from sqlext.execution.views.order import is_by_order
from sqlext.quoting import zoned
from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, Plans, analysed, id_of, kind, output_of

_ABOVE = (*PASSING, "Project", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Window")
_EXACT_DOUBLE = 2**53
_WIDE, _POSITIVE = "CAST({} AS DECIMAL(20, 0))", "abs(CAST({} AS DECIMAL(20, 0)))"
_WIDE_SUM = "decimal(38,0)"


@dataclass(frozen=True, eq=False)
class _Call:
    """One of the aggregate's calls.

    Attributes:
        expression: Catalyst's AggregateExpression.
        columns: the numbers of the table's columns that it is computed of; the last of an average's is the sum of absolute
            values, where there is one.
    """

    expression: Any
    columns: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Partials:
    """A query that can be computed of partial results of its aggregate.

    Attributes:
        root: the query.
        kept: the aggregate, with the columns of the table of partial results.
        types: the types of these columns.
        shown: of the grouping columns that the query shows under an operator that passes rows on: the number among `kept.keys`,
            and the number of the query's column. Empty: rows of the query cannot be found by their group.
    """

    root: Node
    kept: Mergeable
    types: tuple[str, ...]
    shown: tuple[tuple[int, int], ...]
    _calls: tuple[_Call, ...]
    _results: tuple[Any, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return tuple(f"p{at}" for at in range(len(self.kept.columns)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key columns among them."""
        return tuple(self.columns[at] for at in self.kept.keys)

    def first(self, plans: Plans, child: Any) -> DataFrame:
        """Return the table's rows for the groups of some input of the aggregate."""
        weight = plans.named(plans.literal("1L"), WEIGHT)
        weighted = Delta(plans.select(child, [*output_of(child), weight]), weight.toAttribute())
        rows = differences(plans, self.kept, weighted)
        return rows.select(*(self._value(at, each).alias(self.columns[at]) for at, each in enumerate(self.kept.columns)))

    def _value(self, at: int, column: Merged) -> Column:
        value = F.col(name_of(at)).cast(self.types[at])
        return F.coalesce(value, F.lit(0)) if column.function is Function.COUNT else value

    def are_exact(self) -> Column | None:
        """Return the condition that Spark computes the averages of a table's row exactly; None: it always does."""
        sums = [F.col(self.columns[each.columns[2]]) for each in self._calls if len(each.columns) > 2]
        condition = None
        for each in sums:
            is_small = F.coalesce(each < _EXACT_DOUBLE, F.expr("true"))
            condition = is_small if condition is None else condition & is_small
        return condition

    def results(self, plans: Plans, rows: DataFrame) -> Any:
        """Return the plan of the query's rows, from rows of the table."""
        named: list[tuple[str, Column, Any]] = []
        for key, column in zip(self.keys, self.kept.keys, strict=True):
            named.append((key, F.col(key), self.kept.columns[column].arguments[0]))
        for number, call in enumerate(self._calls):
            attributes = items_of(call.expression.aggregateFunction().aggBufferAttributes())
            for at, (attribute, value) in enumerate(zip(attributes, self._buffers(call, len(attributes)), strict=True)):
                kept = value.cast(_type_of(attribute))
                named.append((f"b{number}_{at}", kept, attribute))
        plan = analysed(rows.select(*(value.alias(name) for name, value, _ in named)))
        buffers = plans.renamed(plan, output_of(plan), [attribute for _, _, attribute in named])
        keys = [self.kept.columns[at].arguments[0] for at in self.kept.keys]
        values = [plans.as_attribute(_evaluated(each), each.expression.resultAttribute()) for each in self._calls]
        made = plans.select(plans.select(buffers, [*keys, *values]), self._results)
        return plans.around(self.root, self.kept.aggregate, made)

    def _buffers(self, call: _Call, number: int) -> list[Column]:
        """Return the values of the buffers of an aggregate function, as many as it has."""
        columns = [F.col(self.columns[at]) for at in call.columns]
        match kind(call.expression.aggregateFunction()):
            case "Average":
                return [F.coalesce(columns[0], F.lit(0)), columns[1]]
            case "Sum" if number > 1:
                return [F.coalesce(columns[0], F.lit(0)), columns[1] == 0]
            case _:
                return columns[:1]


def _evaluated(call: _Call) -> Any:
    return call.expression.aggregateFunction().evaluateExpression()


def partials_of(plans: Plans, root: Node) -> Partials | None:
    """Return the partial results of which a query can be computed; None: there are none."""
    node = root
    while node.kind in _ABOVE:
        node = node.children[0]
    if node.kind != "Aggregate" or len(keys_of(node)) < len(items_of(node.plan.groupingExpressions())):
        return None
    if is_by_order(node.children[0], items_of(node.plan.expressions())):
        return None
    parts = plans.aggregation(node.plan)
    made = None if parts is None else _Columns.of(plans, keys_of(node), parts.calls)
    if parts is None or made is None:
        return None
    kept = Mergeable(node, tuple(made.columns))
    return Partials(root, kept, tuple(made.types), tuple(_shown(root, node, kept)), tuple(made.calls), parts.results)


def _shown(root: Node, aggregate: Node, kept: Mergeable) -> list[tuple[int, int]]:
    """Return the numbers of the keys that a query shows, with those of its columns; none if it does more than pass rows on."""
    shown = {id_of(each): at for at, each in enumerate(output_of(root.plan))}
    node = root
    while node is not aggregate:
        if node.kind == "Project":
            shown = passed_on(items_of(node.plan.projectList()), shown)
        elif node.kind not in PASSING:
            return []
        node = node.children[0]
    shown = passed_on(items_of(aggregate.plan.aggregateExpressions()), shown)
    keys = [id_of(kept.columns[at].arguments[0]) for at in kept.keys]
    return [(number, shown[key]) for number, key in enumerate(keys) if key in shown]


class _Columns:
    """The columns of a table of partial results, while they are collected."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self.columns: list[Merged] = []
        self.types: list[str] = []
        self.calls: list[_Call] = []

    @classmethod
    def of(cls, plans: Plans, keys: Sequence[Any], calls: Sequence[Any]) -> _Columns | None:
        """Return the columns for the calls of an aggregate; None if there are none for one of them or for a key."""
        made = cls(plans)
        if not all(plans.can_be_stored(key) for key in keys):
            return None
        for key in keys:
            made._add(Merged(Function.KEY, (key,)), _type_of(key))
        made._add(Merged(Function.COUNT, ()), "bigint")
        for call in calls:
            columns = None if call.isDistinct() else made._of_call(call)
            if columns is None:
                return None
            made.calls.append(_Call(call, columns))
        return made

    def _of_call(self, call: Any) -> tuple[int, ...] | None:
        function = call.aggregateFunction()
        condition = call.filter().get() if call.filter().isDefined() else None
        if kind(function) == "Count":
            return (self._add(Merged(Function.COUNT, tuple(items_of(function.children())), condition), "bigint"),)
        if kind(function) not in ("Sum", "Average", "Min", "Max"):
            return None
        child = function.child()
        value, name = child if condition is None else self._plans.where(condition, child), str(child.dataType().typeName())
        match kind(function):
            case "Sum" if function.prettyName() == "sum" and is_exact(self._plans, function):
                return self._sum(value, _type_of(function))
            case "Average" if function.prettyName() == "avg" and name in WHOLE_NUMBERS:
                total, count = self._sum(value, _WIDE_SUM, _WIDE)
                positive, _ = self._sum(value, _WIDE_SUM, _POSITIVE)
                return total, count, positive
            case "Average" if function.prettyName() == "avg" and is_exact(self._plans, function):
                return self._sum(value, _type_of(items_of(function.aggBufferAttributes())[0]))
            case "Min" | "Max" if function.prettyName() in ("min", "max") and self._plans.can_be_stored(child):
                which = Function.MIN if kind(function) == "Min" else Function.MAX
                return (self._add(Merged(which, (value,)), _type_of(child)),)
        return None

    def _sum(self, value: Any, of: str, template: str = "") -> tuple[int, int]:
        """Add a sum and the count of its values."""
        count = self._add(Merged(Function.COUNT, (value,)), "bigint")
        return self._add(Merged(Function.SUM, (value,), counted_by=count, template=template), of), count

    def _add(self, column: Merged, of: str) -> int:
        """Return the number of a column, which may be there for another call."""
        for at, (each, type_) in enumerate(zip(self.columns, self.types, strict=True)):
            if type_ == of and _is_same(each, column):
                return at
        self.columns.append(column)
        self.types.append(of)
        return len(self.columns) - 1


def _type_of(expression: Any) -> str:
    return zoned(str(expression.dataType().sql()))


def _is_same(one: Merged, other: Merged) -> bool:
    if (one.function, one.template, one.counted_by) != (other.function, other.template, other.counted_by):
        return False
    if len(one.arguments) != len(other.arguments) or (one.filter is None) != (other.filter is None):
        return False
    pairs = [*zip(one.arguments, other.arguments, strict=True), *([] if one.filter is None else [(one.filter, other.filter)])]
    return all(left.semanticEquals(right) for left, right in pairs)
