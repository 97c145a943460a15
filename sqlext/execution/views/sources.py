"""The tables that a materialized view reads: found in its plan, and read at one version or as the changes between two."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.errors import UnsupportedError, ViewError
from sqlext.execution.delta.changes import WEIGHT, net
from sqlext.execution.delta.delta_log import size_at
from sqlext.execution.views.kept import fill
from sqlext.execution.views.leaves import Delta, Leaf
from sqlext.execution.views.near import READ_IN_PARTS_BYTES
from sqlext.execution.views.shared_changes import Changes, Meaning, SharedChanges
from sqlext.plan.lineage import place
from sqlext.plan.view_spec import SourceVersion
from sqlext.quoting import quote
from sqlext.spark import delta_tables
from sqlext.spark.plan_texts import used_in
from sqlext.spark.plans import METADATA, Plans, Relation, analysed, id_of, nodes_of, output_of, relation_of


def sources_of(plan: Any) -> dict[str, Relation]:
    """Return the Delta tables that a plan reads at their newest version, by name."""
    relations = (relation_of(node) for node in nodes_of(plan))
    return {each.name: each for each in relations if each is not None and not each.is_pinned}


def newest(
    spark: SparkSession,
    sources: Mapping[str, Relation],
    pins: Mapping[str, SourceVersion] | None = None,
    types: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> dict[str, SourceVersion]:
    """Return the newest version of each table. Runs no Spark job.

    Args:
        spark: the session.
        sources: the tables, by name.
        pins: the versions of some of them that are to be taken instead, by `lineage.place`; not of one that was replaced, or that
            had other columns then.
        types: see `used_types`.

    Raises:
        PySparkException: a table is gone.
    """
    found: dict[str, SourceVersion] = {}
    for name, source in sources.items():
        snapshot = delta_tables.snapshot(spark, source.location)
        at = SourceVersion(str(snapshot.metadata().id()), int(snapshot.version()), source.location)
        pin = (pins or {}).get(place(source.location), at)
        pinned = replace(at, version=min(pin.version, at.version))
        is_pinned = pin.id == at.id and pinned != at and are_as_analysed(spark, types, {name: pinned})
        found[name] = pinned if is_pinned else at
    return found


def not_before(pins: Mapping[str, SourceVersion], before: Mapping[str, SourceVersion]) -> dict[str, SourceVersion]:
    """Return pins of which none is older than what a view is at: it may have been refreshed since they were found.

    Args:
        pins: see `newest`.
        before: the versions at which the view is, by the names of the tables.
    """
    reached = {(place(each.location), each.id): each for each in before.values()}
    both = {where: (pin, reached.get((where, pin.id), pin)) for where, pin in pins.items()}
    return {where: max(pair, key=lambda each: each.version) for where, pair in both.items()}


def are_as_analysed(spark: SparkSession, types: Mapping[str, Mapping[str, str]], at: Mapping[str, SourceVersion]) -> bool:
    """Return whether versions of tables have the columns that a query uses, as they were when it was analysed.

    Args:
        spark: the session.
        types: see `used_types`.
        at: the versions, by the names of the tables.
    """
    return all(_has(spark, each, types.get(name, {})) for name, each in at.items())


def definitions_of(plan: Any) -> dict[str, Any]:
    """Return the definitions, Delta's Metadata, with which a plan has those tables that it reads at newest versions, by name."""
    found = ((node, relation_of(node)) for node in nodes_of(plan))
    read = [(node, each) for node, each in found if each is not None and not each.is_pinned]
    return {each.name: node.relation().location().snapshotAtAnalysis().metadata() for node, each in read}


def are_as_defined(spark: SparkSession, definitions: Mapping[str, Any], at: Mapping[str, SourceVersion]) -> bool:
    """Return whether versions of tables, by name, have the same columns and properties as when a query over them was analysed."""
    return all(
        delta_tables.snapshot_at(spark, each.location, each.version).metadata().equals(definitions[name])
        for name, each in at.items()
    )


def _has(spark: SparkSession, at: SourceVersion, columns: Mapping[str, str]) -> bool:
    if not columns:
        return True
    fields = delta_tables.schema_of(delta_tables.snapshot_at(spark, at.location, at.version))
    found = {field.name: field.dataType.simpleString() for field in fields}
    return all(found.get(name) == kind for name, kind in columns.items())


class Versions:
    """The rows of a view's sources at two versions, and the changes between; of one refresh.

    Args:
        plans: builds plans.
        spark: the session.
        before: the versions at which the view is; empty: none, only `new` is asked for.
        after: those to which it is to be brought.
        columns: the columns that the query uses, by source, with their types; a change of others is none.
        shared: the changes that are read for all views.
        meaning: the settings of the view that change what a query means.
    """

    def __init__(
        self,
        plans: Plans,
        spark: SparkSession,
        before: Mapping[str, SourceVersion],
        after: Mapping[str, SourceVersion],
        columns: Mapping[str, Mapping[str, str]],
        shared: SharedChanges,
        meaning: Meaning,
    ) -> None:
        self._plans = plans
        self._spark = spark
        self._before = before
        self._after = after
        self._columns = columns
        self._frames: dict[tuple[str, int], DataFrame] = {}
        self._sizes: dict[tuple[str, int], int] = {}
        self._shared = shared
        self._meaning = meaning
        self._taken: list[Changes] = []
        self._narrow: list[DataFrame] = []
        self._changes: dict[str, tuple[DataFrame, int]] = {}

    def new(self, node: Any) -> Any:
        """Return the rows of a leaf at the new version, with its attributes.

        Raises:
            ViewError: it has not all columns that the query uses.
        """
        relation = relation_of(node)
        if relation is None or relation.is_pinned:
            return node
        return self._at(node, relation.location, self._after[relation.name].version, self._columns.get(relation.name, {}))

    def leaf(self, node: Any) -> Leaf:
        """Return all of a leaf that a derivation needs."""
        relation = relation_of(node)
        if relation is None or relation.is_pinned:
            return Leaf(node, lambda: node, None)
        before, after = self._before[relation.name].version, self._after[relation.name].version
        new = self._at(node, relation.location, after, self._columns[relation.name])
        of_table = (self._size(relation.location, after), relation.name, frozenset(self._columns[relation.name]))
        rows, number = (None, 0) if before == after else self._changed(relation.name)
        if rows is None or number == 0:
            return Leaf(new, lambda: new, None, *of_table)
        return Leaf(new, lambda: self._at(node, relation.location, before), self._delta(node, rows), *of_table)

    def _size(self, location: str, version: int) -> int:
        """Return the size of a version of a table, in bytes; a large one if its log does not say."""
        if (location, version) not in self._sizes:
            found = size_at(self._spark, location, version)
            self._sizes[location, version] = READ_IN_PARTS_BYTES if found is None else found.bytes
        return self._sizes[location, version]

    @property
    def after(self) -> Mapping[str, SourceVersion]:
        """The versions to which the view is brought."""
        return self._after

    @property
    def rows_in(self) -> int:
        """The number of changed rows read."""
        return sum(number for _, number in self._changes.values())

    @property
    def read(self) -> dict[str, int]:
        """The number of changed rows read of each source."""
        return {name: number for name, (_, number) in self._changes.items()}

    def close(self) -> None:
        """Free the changes that executors hold."""
        for rows in self._narrow:
            rows.unpersist()
        while self._taken:
            self._shared.give_back(self._taken.pop())

    def _at(self, node: Any, location: str, version: int, needed: Collection[str] = ()) -> Any:
        key = (location, version)
        if key not in self._frames:
            self._frames[key] = delta_tables.rows_at(self._spark, location, version)
        has_metadata = any(str(each.name()) == METADATA for each in output_of(node))
        plan = analysed(self._frames[key].select("*", METADATA) if has_metadata else self._frames[key])
        found = {str(each.name()): each for each in output_of(plan)}
        if gone := [name for name in needed if name not in found]:
            raise ViewError(f"The column {gone[0]} of {location} was dropped or renamed just now. Send the statement again.")
        return self._plans.select(plan, [self._column(each, found.get(str(each.name()))) for each in output_of(node)])

    def _column(self, wanted: Any, found: Any) -> Any:
        """Return a column of an old version under the identity, and in the type, of the new one."""
        if found is None:
            return self._plans.null(wanted)
        if str(found.dataType().catalogString()) == str(wanted.dataType().catalogString()):
            return self._plans.as_attribute(found, wanted)
        if str(found.dataType().typeName()) in ("struct", "array", "map"):
            raise UnsupportedError(f"the type of the column {wanted.name()} has changed")
        return self._plans.as_attribute(self._plans.cast(found, wanted), wanted)

    def _changed(self, name: str) -> tuple[DataFrame, int]:
        if name not in self._changes:
            columns = [*self._columns[name]]
            taken = self._shared.take(self._spark, self._before[name], self._after[name], columns, self._meaning)
            self._taken.append(taken)
            self._changes[name] = self._narrowed(taken, columns)
        return self._changes[name]

    def _narrowed(self, taken: Changes, columns: Sequence[str]) -> tuple[DataFrame, int]:
        """Return changes of some columns, and their number: those that differ only in others cancel out."""
        assert taken.rows is not None  # it was taken
        if set(taken.columns) == set(columns):
            return taken.rows, taken.number
        held = self._plans.frame(self._plans.held(taken.rows))
        listed = held.select(*(F.col(quote(name)) for name in columns), WEIGHT)
        if not taken.may_cancel:
            return listed, taken.number
        rows = net(listed).persist()
        self._narrow.append(rows)
        return rows, fill(rows)[0]

    def _delta(self, node: Any, rows: DataFrame) -> Delta:
        plan = self._plans.held(rows)
        found = {str(each.name()): each for each in output_of(plan)}
        listed = [
            self._column(each, found[str(each.name())]) if str(each.name()) in found else self._plans.null(each)
            for each in output_of(node)
        ]
        weight = self._plans.named(found[WEIGHT], WEIGHT)
        return Delta(self._plans.select(plan, [*listed, weight]), weight.toAttribute())


def used_columns(plan: Any) -> dict[str, list[str]]:
    """Return the columns of each table that a query uses, in the table's order."""
    found: dict[str, dict[str, str]] = {}
    for relation, columns in _used(plan):
        found.setdefault(relation.name, {}).update(columns)
    return {name: [*columns] for name, columns in found.items()}


def used_types(plan: Any) -> dict[str, dict[str, str]]:
    """Return the types of the columns that a query uses, in the table's order, for tables that it reads at newest versions."""
    found: dict[str, dict[str, str]] = {}
    for relation, columns in _used(plan):
        if not relation.is_pinned:
            found.setdefault(relation.name, {}).update({name: kind for name, kind in columns.items() if name != METADATA})
    return found


def _used(plan: Any) -> Iterator[tuple[Relation, dict[str, str]]]:
    """Yield the table of each leaf that reads one, and the columns that a query uses of it, with their types."""
    used = used_in(plan)
    for leaf, relation in ((node, relation_of(node)) for node in nodes_of(plan)):
        if relation is not None:
            fields = zip(output_of(leaf), StructType.fromJson(json.loads(str(leaf.schema().json()))), strict=True)
            yield relation, {each.name: each.dataType.simpleString() for attribute, each in fields if id_of(attribute) in used}
