"""Parts of large tables, read once for all that a refresh computes anew with the same keys.

What is computed anew is computed over the new and over the old rows of the tables, and a query may read a table several times. Of
a large table, the rows with these keys are read once, with all columns that the query uses, and kept. The old ones are the new
ones without the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sqlext.execution.delta.changes import WEIGHT, net
from sqlext.execution.views.kept import Kept
from sqlext.execution.views.keys import Keyed
from sqlext.execution.views.leaves import Delta, Leaf
from sqlext.execution.views.near import Rows, Values, among, in_part
from sqlext.spark.plans import Plans, analysed, output_of


@dataclass(frozen=True)
class _Part:
    """Rows of a table.

    Attributes:
        rows: a plan of kept rows.
        names: their columns, in order.
    """

    rows: Any
    names: tuple[str, ...]


class Parts:
    """The parts of tables that one refresh has read.

    Args:
        plans: builds plans.
        leaf: returns the versions of a leaf.
        kept: keeps rows.
    """

    def __init__(self, plans: Plans, leaf: Callable[[Any], Leaf], kept: Kept) -> None:
        self._plans = plans
        self._leaf = leaf
        self._kept = kept
        self._parts: dict[tuple[Any, ...], _Part] = {}

    def sharing(self, rows: Rows, are_old: bool) -> Rows:
        """Return rows of tables of which parts of large tables are read once."""
        return replace(rows, part=self._old if are_old else self._new)

    def _new(self, leaf: Any, keys: Keyed, values: Values) -> Any:
        """Return a plan of the new rows of a leaf whose keys have one of some combinations of values."""
        found = self._leaf(leaf)
        at = self._key(found, keys, values)
        if at not in self._parts:
            plan = among(in_part(found.new, keys, values, self._plans), keys, values, self._plans)
            listed = [each for each in output_of(leaf) if str(each.name()) in found.columns]
            names = tuple(str(each.name()) for each in listed)
            self._parts[at] = _Part(self._kept.keep(self._plans.select(plan, listed)), names)
        return self._as(leaf, self._parts[at])

    def _old(self, leaf: Any, keys: Keyed, values: Values) -> Any:
        """Return a plan of the old rows of a leaf whose keys have one of some combinations of values."""
        found, new = self._leaf(leaf), self._new(leaf, keys, values)
        if found.delta is None:
            return new
        at = (*self._key(found, keys, values), "old")
        if at not in self._parts:
            names = self._parts[at[:-1]].names
            listed = [each for each in output_of(leaf) if str(each.name()) in names]
            changed = among(found.delta.plan, keys, values, self._plans)
            rows = self._without(new, Delta(changed, found.delta.weight), listed)
            self._parts[at] = _Part(self._kept.keep(analysed(rows)), names)
        return self._as(leaf, self._parts[at])

    def _without(self, rows: Any, changes: Delta, attributes: Sequence[Any]) -> DataFrame:
        """Return rows without changes: each as often as it was there before them."""
        plans, one = self._plans, self._plans.named(self._plans.literal("1L"), WEIGHT)
        taken = plans.product(changes.weight, plans.literal("-1L"))
        now = plans.frame(plans.select(rows, [*attributes, one]))
        then = plans.frame(plans.select(changes.plan, [*attributes, plans.named(taken, WEIGHT)]))
        counted = net(now.union(then)).where(F.col(WEIGHT) > 0)
        return counted.withColumn(WEIGHT, F.explode(F.sequence(F.lit(1), F.col(WEIGHT)))).drop(WEIGHT)

    def _key(self, leaf: Leaf, keys: Keyed, values: Values) -> tuple[Any, ...]:
        return (leaf.table, values, *((at, str(key.name())) for at, key in sorted(keys.items(), key=lambda pair: pair[0])))

    def _as(self, leaf: Any, part: _Part) -> Any:
        """Return kept rows with the attributes of a leaf; those that the query does not use are NULL."""
        found = dict(zip(part.names, output_of(part.rows), strict=True))
        listed = [
            self._plans.as_attribute(found[str(each.name())], each) if str(each.name()) in found else self._plans.null(each)
            for each in output_of(leaf)
        ]
        return self._plans.select(part.rows, listed)
