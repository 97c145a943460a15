"""Aggregates that are kept by adding to them what changed, without reading their groups again.

That takes an aggregate whose columns the view shows as they are, all grouping columns among them. Counts, and sums of whole
numbers and decimals, are exact, so what was deleted can be subtracted; MIN and MAX only take new rows. Nothing but the view's
rows is kept, so after a deletion they must tell whether a group has rows left, and a sum values: a count of them says so, and so
does any sum that is not 0. Where nothing says so, the touched groups are computed anew. Sums of floating-point numbers always
are, since they depend on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField

from sqlext.execution.delta.changes import WEIGHT
from sqlext.execution.views.keys import PASSING, keys_of
from sqlext.execution.views.leaves import Delta
from sqlext.execution.views.order import is_by_order
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote
from sqlext.spark import jvm
from sqlext.spark.java import items_of
from sqlext.spark.plans import Node, Plans, id_of, kind, output_of
from sqlext.spark.row_order import is_collated

LEAST_WEIGHT = f"{INTERNAL_PREFIX}least_weight"
_MOST_WEIGHT = f"{INTERNAL_PREFIX}most_weight"
WHOLE_NUMBERS = ("byte", "short", "integer", "long")
_WEIGHT_DIGITS = 7
_MOST_WEIGHTS = 10**_WEIGHT_DIGITS
_MOST_DIGITS = 38 - 10 - 1
"""The most digits of a decimal of which two sums can be added in Spark's 38 digits: a sum has 10 more, and theirs one more."""
_LEAST_SCALE = 6
"""The scale that Spark keeps where a result has more than 38 digits (`DecimalType.MINIMUM_ADJUSTED_SCALE`)."""


class Function(Enum):
    """How a column is kept."""

    KEY = "key"
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, eq=False)
class Merged:
    """A column of the view.

    Attributes:
        function: how it is kept.
        arguments: the expressions of a count, or the one of the others.
        filter: the condition of FILTER; None: all rows.
        counted_by: of a sum whose values may be NULL, the number of the column that counts them; None: no column does.
        template: the SQL of what is summed, a decimal, with `{}` for the argument; empty: the argument.
    """

    function: Function
    arguments: tuple[Any, ...]
    filter: Any = None
    counted_by: int | None = None
    template: str = ""

    @property
    def is_decimal(self) -> bool:
        """Whether it is a sum of decimals."""
        return bool(self.template) or str(self.arguments[0].dataType().typeName()).startswith("decimal")

    @property
    def counts_rows(self) -> bool:
        """Whether it is the number of the group's rows."""
        return self.function is Function.COUNT and self.filter is None and not any(each.nullable() for each in self.arguments)


@dataclass(frozen=True, eq=False)
class Mergeable:
    """An aggregate that can be added to.

    Attributes:
        aggregate: its node.
        columns: the columns of the view, in order.
    """

    aggregate: Node
    columns: tuple[Merged, ...]

    @property
    def keys(self) -> tuple[int, ...]:
        """The numbers of the key columns."""
        return tuple(at for at, each in enumerate(self.columns) if each.function is Function.KEY)

    @property
    def rows_counted_by(self) -> int | None:
        """The number of the column that counts the rows of a group; None: there is none."""
        return next((at for at, each in enumerate(self.columns) if each.counts_rows), None)

    @property
    def takes_deletions(self) -> bool:
        """Whether deleted rows can be subtracted."""
        return not any(each.function in (Function.MIN, Function.MAX) for each in self.columns)


@dataclass(frozen=True)
class Differences:
    """What is to be added to groups.

    Attributes:
        rows: the differences, as `differences` returns them, on the executors.
        number: how many groups they are of.
        is_empty: whether there are none.
        can_be_added: whether adding them gives what the groups have now; otherwise they are to be computed anew.
    """

    rows: DataFrame
    number: int
    is_empty: bool
    can_be_added: bool


def mergeable(plans: Plans, root: Node) -> Mergeable | None:
    """Return the aggregate that a query consists of, if it can be added to."""
    shown = [(id_of(each), each) for each in output_of(root.plan)]
    order = [at for at, _ in shown]
    node = root
    while node.kind == "Project" or node.kind in PASSING:
        if node.kind == "Filter":
            return None
        if node.kind == "Project":
            passed = {id_of(each.toAttribute()): each for each in items_of(node.plan.projectList())}
            inner = [passed[at].child() if kind(passed[at]) == "Alias" else passed[at] for at in order]
            if any(kind(each) != "AttributeReference" for each in inner):
                return None
            order = [id_of(each) for each in inner]
        node = node.children[0]
    return _of_aggregate(plans, node, order) if node.kind == "Aggregate" else None


def _of_aggregate(plans: Plans, node: Node, order: Sequence[int]) -> Mergeable | None:
    groups = items_of(node.plan.groupingExpressions())
    if len(keys_of(node)) < len(groups) or is_by_order(node.children[0], items_of(node.plan.expressions())):
        return None
    if any(map(is_collated, groups)):  # which spelling of its key a group shows, only all of its rows tell
        return None
    grouped = {id_of(each) for each in groups}
    results = {id_of(each.toAttribute()): each for each in items_of(node.plan.aggregateExpressions())}
    columns: list[Merged] = []
    for at in order:
        column = _column(plans, results[at], grouped)
        if column is None:
            return None
        columns.append(column)
    keys = {id_of(each.arguments[0]) for each in columns if each.function is Function.KEY}
    return Mergeable(node, tuple(_counted(each, columns) for each in columns)) if keys == grouped else None


def _column(plans: Plans, result: Any, grouped: set[int]) -> Merged | None:
    inner = result.child() if kind(result) == "Alias" else result
    if kind(inner) == "AttributeReference" and id_of(inner) in grouped:
        return Merged(Function.KEY, (inner,))
    if kind(inner) != "AggregateExpression" or inner.isDistinct():
        return None
    function = inner.aggregateFunction()
    condition = inner.filter().get() if inner.filter().isDefined() else None
    match kind(function):
        case "Count":
            return Merged(Function.COUNT, tuple(items_of(function.children())), condition)
        case "Sum" if condition is None and function.prettyName() == "sum" and is_exact(plans, function):
            return Merged(Function.SUM, (function.child(),))
        case "Min" | "Max" if condition is None and function.prettyName() in ("min", "max"):
            return Merged(Function.MIN if kind(function) == "Min" else Function.MAX, (function.child(),))
    return None


def is_exact(plans: Plans, function: Any) -> bool:
    """Return whether the sums behind Catalyst's Sum or Average can be added and subtracted without a loss.

    Spark's sums and products of decimals keep the scale while the digits suffice, and a scale of at most 6 whatever the digits.
    With more digits a sum may overflow. That is an error in ANSI mode; else it is NULL, from which nothing can be subtracted.
    What a SQL view sums up fails as it did when the view was made, but differences are added in the session's own mode.
    """
    summed = function.child().dataType()
    name = str(summed.typeName())
    context = function if kind(function) == "Average" else function.evalContext()
    fails = str(context.evalMode().toString()) == "ANSI"
    if fails and not plans.is_ansi:
        return False
    if not name.startswith("decimal"):
        return name in WHOLE_NUMBERS
    return int(summed.precision()) <= _MOST_DIGITS or (fails and int(summed.scale()) <= _LEAST_SCALE)


def _counted(column: Merged, columns: Sequence[Merged]) -> Merged:
    """Return a sum with the count of its values, if the view has one."""
    if column.function is not Function.SUM:
        return column
    value = column.arguments[0]
    counts = [(at, each) for at, each in enumerate(columns) if each.function is Function.COUNT and each.filter is None]
    found = (at for at, each in counts if len(each.arguments) == 1 and each.arguments[0].semanticEquals(value))
    return Merged(column.function, column.arguments, None, next(found, None))


def name_of(at: int) -> str:
    """Return the name of the column in `differences` that holds what is added to the view's column of that number."""
    return f"{INTERNAL_PREFIX}d{at}"


def differences(plans: Plans, found: Mergeable, below: Delta) -> DataFrame:
    """Return what is to be added to each group that changed: the keys, and a value for each other column, by `name_of`.

    `LEAST_WEIGHT` is below 0 where rows were deleted; of weights as large as `_MOST_WEIGHTS`, sums are not computed.

    Args:
        plans: builds plans.
        found: the aggregate.
        below: the changes of its input.
    """
    inputs = [plans.named(below.weight, WEIGHT)]
    for at, column in enumerate(found.columns):
        inputs += [plans.named(each, f"{name_of(at)}_{number}") for number, each in enumerate(column.arguments)]
        inputs += [] if column.filter is None else [plans.named(column.filter, f"{name_of(at)}_if")]
    rows = plans.frame(plans.select(below.plan, inputs))
    keys = [F.col(f"{name_of(at)}_0").alias(name_of(at)) for at in found.keys]
    values = [_difference(at, each).alias(name_of(at)) for at, each in enumerate(found.columns) if at not in found.keys]
    return rows.groupBy(*keys).agg(*values, F.min(WEIGHT).alias(LEAST_WEIGHT), F.max(F.abs(WEIGHT)).alias(_MOST_WEIGHT))


@contextmanager
def held_differences(plans: Plans, found: Mergeable, below: Delta) -> Iterator[Differences]:
    """Yield the differences, computed once; the parameters are those of `differences`."""
    metrics = (F.count(F.lit(1)).alias("number"), F.min(LEAST_WEIGHT).alias("least"), F.max(_MOST_WEIGHT).alias("most"))
    with jvm.observed(differences(plans, found, below), *metrics) as (held, seen):
        least, most = seen["least"], seen["most"]
        is_empty = least is None  # without keys there is one row, of nothing
        can_be_added = is_empty or ((least >= 0 or found.takes_deletions) and most < _MOST_WEIGHTS)
        yield Differences(held, int(seen["number"]), is_empty, can_be_added)


def _difference(at: int, column: Merged) -> Column:
    value, weight = F.col(f"{name_of(at)}_0") if column.arguments else F.lit(1), F.col(WEIGHT)
    match column.function:
        case Function.COUNT:
            counted = F.expr("true") if column.filter is None else F.coalesce(F.col(f"{name_of(at)}_if"), F.expr("false"))
            for number in range(len(column.arguments)):
                counted &= F.col(f"{name_of(at)}_{number}").isNotNull()
            return F.sum(F.when(counted, weight).otherwise(F.lit(0).cast("bigint")))
        case Function.SUM:
            summed = F.expr(column.template.format(quote(f"{name_of(at)}_0"))) if column.template else value
            few = F.when(F.abs(weight) < _MOST_WEIGHTS, weight).cast(f"decimal({_WEIGHT_DIGITS},0)")
            return F.sum(summed * (few if column.is_decimal else weight))
        case Function.MIN:
            return F.min(value)
        case _:
            return F.max(value)


def sums_to(found: Mergeable, fields: Sequence[StructField]) -> list[Column]:
    """Return the new value of each column, from the view's row, which may be missing, and the difference.

    Args:
        found: the aggregate.
        fields: the columns of the view.
    """
    values = [_sum(at, column, field) for at, (column, field) in enumerate(zip(found.columns, fields, strict=True))]
    for at, column in enumerate(found.columns):
        count = _count_of(found, column)
        if column.function is Function.SUM and count is not None:
            values[at] = F.when(values[count] != 0, values[at])
    return values


def _count_of(found: Mergeable, column: Merged) -> int | None:
    """Return the number of the column that counts a sum's values, if there is one."""
    if column.counted_by is not None or column.function is not Function.SUM:
        return column.counted_by
    return None if column.arguments[0].nullable() else found.rows_counted_by


def is_unclear(found: Mergeable, names: Sequence[str]) -> Column:
    """Return whether a group's new values do not tell if it has rows left, or a sum values, after rows were deleted.

    Args:
        found: the aggregate.
        names: the columns that hold the new values.
    """
    added = [at for at, each in enumerate(found.columns) if each.function in (Function.COUNT, Function.SUM)]
    values = {at: F.coalesce(F.col(quote(names[at])), F.lit(0)) for at in added}
    sums = [at for at, each in enumerate(found.columns) if each.function is Function.SUM and _count_of(found, each) is None]
    unclear = F.expr("false")
    for at in sums:
        unclear |= values[at] == 0
    if found.keys and found.rows_counted_by is None:
        is_empty = F.expr("true")
        for value in values.values():
            is_empty &= value == 0
        unclear |= is_empty
    return unclear & (F.col(LEAST_WEIGHT) < 0)


def _sum(at: int, column: Merged, field: StructField) -> Column:
    old, new = F.col(quote(field.name)), F.col(name_of(at)).cast(field.dataType)
    match column.function:
        case Function.KEY:
            return new
        case Function.COUNT:
            return F.coalesce(old, F.lit(0)) + F.coalesce(new, F.lit(0))
        case Function.MIN:
            return F.least(old, new)
        case Function.MAX:
            return F.greatest(old, new)
        case _:
            total = (old + new).cast(field.dataType)  # a sum of decimals has a digit more; see `_MOST_DIGITS`
            return F.when(old.isNull(), new).when(new.isNull(), old).otherwise(total)
