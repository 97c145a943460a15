"""A refresh of a view that has partial results beside it (`partials.py`): first the table with these, then the view's rows.

Where a source is large and what the view shows cannot be added to, reading a touched group again may mean reading the source
again: of a table with few groups, always. Partial results can be added to, so only the changes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import commit
from sqlext.execution.delta.delta_log import size_at
from sqlext.execution.views import cost
from sqlext.execution.views.incremental import Derivation
from sqlext.execution.views.merging import held_differences, name_of
from sqlext.execution.views.partial_table import INEXACT, NONE, PartialTable
from sqlext.execution.views.partials import Partials, partials_of
from sqlext.execution.views.query import ViewQuery
from sqlext.execution.views.sources import Versions
from sqlext.execution.views.writing import near
from sqlext.moments import Moment, announce
from sqlext.plan.view_spec import RefreshPolicy, ViewSpec
from sqlext.spark.plans import Node, analysed, nodes_of, relation_of, tree_of
from sqlext.spark.settings import session_settings

_FEW = 10_000
_INEXACT = "an average of whole numbers has a sum of more than 53 bits, which Spark does not add exactly"


@dataclass(frozen=True)
class ChangedRows:
    """The view's rows that are computed of partial results which have changed.

    Attributes:
        version: of the table of partial results.
        done: `merge groups`, or `touched groups` where some were computed anew.
        names: the view's columns that the rows are found by.
        keys: the values of these columns that they have, each once; None: all rows of the view are replaced.
        rows: the plan of the new rows.
    """

    version: int
    done: str
    names: tuple[str, ...]
    keys: DataFrame | None
    rows: Any


class PartialRefresh:
    """The part of one refresh that has to do with partial results.

    Args:
        session, spec, query: the view's.
        table: the table beside it, which need not exist.
        check: raises if this process must not commit.
    """

    def __init__(
        self, session: SparkSession, spec: ViewSpec, query: ViewQuery, table: PartialTable, check: Callable[[], None]
    ) -> None:
        self._session = session
        self._spec = spec
        self._query = query
        self._table = table
        self._check = check

    def are_wanted(self, versions: Versions) -> bool:
        """Return whether they are to be kept: the sources are large, the query can be computed of them, and not be added to."""
        if self._spec.policy is RefreshPolicy.FULL or self._query.obstacle:
            return False
        at = versions.after
        sizes = [size_at(self._session, self._query.sources[name].location, each.version) for name, each in at.items()]
        if sum(cost.PARTIALS_BYTES if size is None else size.bytes for size in sizes) < cost.PARTIALS_BYTES:
            return False
        return self._query.has_partials

    def computed(self, versions: Versions) -> tuple[Any, int]:
        """Compute all partial results, if they are to be kept.

        Returns:
            The plan of the query's rows of them, and their version; None if they are not kept, and why, as `NONE` or `INEXACT`.
        """
        if not self.are_wanted(versions):
            return None, NONE
        plans, normal = self._query.plans, self._query.normal
        leaves = [node for node in nodes_of(normal) if relation_of(node) is not None]
        found = partials_of(plans, tree_of(plans.replaced(normal, [(leaf, versions.new(leaf)) for leaf in leaves])))
        if found is None:
            return None, NONE
        version = self._table.write(found.first(plans, found.kept.aggregate.children[0].plan), self._check)
        announce(Moment.PARTIALS_COMMITTED, ".".join(self._spec.name))
        rows = self._table.rows(version)
        return (found.results(plans, rows), version) if _are_exact(found, rows) else (None, INEXACT)

    @contextmanager
    def changed(self, root: Node, derivation: Derivation, before: int) -> Iterator[ChangedRows | None]:
        """Bring the partial results up to date; yield the view's rows that change thereby, None if none does.

        Args:
            root: the query.
            derivation: of its changes.
            before: the version of the partial results that belongs to the view.

        Raises:
            UnsupportedError: the view must be computed in full.
        """
        plans, found = self._query.plans, partials_of(self._query.plans, root)
        if found is None:
            raise UnsupportedError("the query cannot be computed of the partial results beside the view")
        below = derivation.delta(found.kept.aggregate.children[0])
        if below is None:
            yield None
            return
        with held_differences(plans, found.kept, below) as made:
            if made.is_empty:
                yield None
                return
            self._check()
            at = self._table.begin(before, found.columns)
            keys = made.rows.select(*(F.col(name_of(at)).alias(key) for key, at in zip(found.keys, found.kept.keys, strict=True)))
            with session_settings(self._session, commit.FEW_ROWS if made.number <= _FEW else {}):
                if made.can_be_added:
                    version = self._table.add(at, found.kept, found.columns, made.rows, made.number)
                else:
                    version = self._recomputed(at, found, derivation, keys)
                announce(Moment.PARTIALS_COMMITTED, ".".join(self._spec.name))
                yield self._rows(found, keys, made.number, version, "merge groups" if made.can_be_added else "touched groups")

    def _recomputed(self, at: Any, found: Partials, derivation: Derivation, keys: DataFrame) -> int:
        """Compute the partial results of some groups anew: of those with a MIN or MAX that have lost rows."""
        plans, child = self._query.plans, found.kept.aggregate.children[0]
        if not found.keys:
            return self._table.write(found.first(plans, derivation.new(child)), self._check)
        attributes = [found.kept.columns[at].arguments[0] for at in found.kept.keys]
        touched = derivation.new_near(child, attributes, analysed(keys))
        return self._table.replace(at, found.columns, keys, found.first(plans, touched))

    def _rows(self, found: Partials, keys: DataFrame, number: int, version: int, done: str) -> ChangedRows:
        kept, plans = self._table.rows(version), self._query.plans
        if not _are_exact(found, kept):
            raise UnsupportedError(_INEXACT)
        if not found.shown:
            return ChangedRows(version, done, (), None, found.results(plans, kept))
        touched = keys.select(*(found.keys[key] for key, _ in found.shown)).distinct()
        names = tuple(self._spec.columns[column] for _, column in found.shown)
        return ChangedRows(version, done, names, touched, found.results(plans, near(kept, touched, number)))


def _are_exact(found: Partials, rows: DataFrame) -> bool:
    """Return whether Spark computes all averages that rows of partial results stand for as exactly as these."""
    condition = found.are_exact()
    return condition is None or not rows.where(~condition).take(1)
