"""Where the columns of a query come from, by Spark's analysis: each attribute is followed to the relations that the query reads.

Only what is certain is said: a plan with a node or an expression whose attributes cannot be followed has no lineage at all.

Relies on Spark's private side: Catalyst's nodes and expressions. Checked with Spark 4.2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pyspark.sql import SparkSession

from sqlext.plan.lineage import Input
from sqlext.quoting import zoned
from sqlext.spark.inputs import NOTHING_READ, input_of
from sqlext.spark.java import items_of, java_of, texts_of
from sqlext.spark.plans import id_of, kind, output_of

logger = logging.getLogger(__name__)


class Use(IntEnum):
    """How a value comes from a column; of two steps in a row, the greater one counts.

    The last two are about rows or branches, and not about the value: a condition, and the rows that a window has.
    """

    IDENTITY = 0
    TRANSFORMATION = 1
    AGGREGATION = 2
    CONDITIONAL = 3
    WINDOW = 4

    @property
    def is_direct(self) -> bool:
        """Whether the value is computed from the column's."""
        return self < Use.CONDITIONAL


@dataclass(frozen=True)
class Origin:
    """A column that a value comes from.

    Attributes:
        read: the place of its relation in `QueryColumns.reads`.
        column: its name there.
        use: how.
    """

    read: int
    column: str
    use: Use


@dataclass(frozen=True)
class ReadColumns:
    """A relation that a query reads.

    Attributes:
        input: the relation.
        servers: of a topic of Kafka, the brokers; empty: it is none, or they are not named.
        columns: name and type of each of its columns that the query knows.
    """

    input: Input
    servers: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class QueryColumns:
    """The columns of an analysed query.

    Attributes:
        reads: the relations.
        columns: name and type of each column of its result.
        origins: by name of each column of its result, where it comes from; None: that cannot be known.
    """

    reads: tuple[ReadColumns, ...]
    columns: tuple[tuple[str, str], ...]
    origins: Mapping[str, frozenset[Origin]] | None


class _UnknownError(Exception):
    """An attribute cannot be followed."""


Known = Mapping[int, frozenset[Origin]]
"""The origins of attributes, by their ids."""


def columns_of(spark: SparkSession, plan: Any) -> QueryColumns:
    """Return the columns of an analysed plan. Runs no Spark job."""
    plan = java_of(spark).org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False).apply(plan)
    search, names = _Search(spark), [(str(each.name()), zoned(str(each.dataType().sql()))) for each in output_of(plan)]
    try:
        known = search.known(plan)
        ids = [id_of(each) for each in output_of(plan)]
        origins = {name: known[each] for (name, _), each in zip(names, ids, strict=True)}
        return QueryColumns(tuple(search.reads), tuple(names), origins)
    except (_UnknownError, KeyError) as unknown:
        logger.debug("the origins of columns are not known: %s", unknown)
        return QueryColumns(tuple(search.all_reads(plan)), tuple(names), None)


class _Search:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        patterns = java_of(spark).org.apache.spark.sql.catalyst.trees.TreePattern
        self._subquery = patterns.PLAN_EXPRESSION()
        self.reads: list[ReadColumns] = []

    def known(self, node: Any) -> Known:
        """Return the origins of a node's output.

        Raises:
            _UnknownError: they cannot be known.
        """
        children = items_of(node.children())
        if not children:
            return self._of_leaf(node)
        inputs = [self.known(child) for child in children]
        match kind(node):
            case "Union":
                return self._by_place(node, [output_of(child) for child in children], inputs)
            case "Expand":
                rows = [items_of(row) for row in items_of(node.projections())]
                return self._by_place(node, rows, inputs * len(rows))
        below = {key: found for each in inputs for key, found in each.items()}
        made = dict(below)
        if kind(node) == "Generate":
            found = self._origins(node.generator(), below, Use.TRANSFORMATION)
            made |= {id_of(each): found for each in items_of(node.generatorOutput())}
        for expression in items_of(node.expressions()):
            if kind(expression) == "Alias":
                made[id_of(expression)] = self._origins(expression.child(), below, Use.IDENTITY)
        outputs = [id_of(each) for each in output_of(node)]
        if missing := [each for each in outputs if each not in made]:
            raise _UnknownError(f"{kind(node)} has {len(missing)} columns of its own")
        return {each: made[each] for each in outputs}

    def _by_place(self, node: Any, rows: Sequence[Sequence[Any]], inputs: Sequence[Known]) -> Known:
        found: dict[int, frozenset[Origin]] = {}
        for place, attribute in enumerate(output_of(node)):
            parts = [self._origins(row[place], below, Use.IDENTITY) for row, below in zip(rows, inputs, strict=True)]
            found[id_of(attribute)] = _all(parts)
        return found

    def _of_leaf(self, leaf: Any) -> Known:
        if kind(leaf) == "CTERelationRef":
            raise _UnknownError("a recursive query")
        outputs = output_of(leaf)
        if kind(leaf) in NOTHING_READ:
            return {id_of(each): frozenset() for each in outputs}
        self.reads.append(self._read(leaf))
        at = len(self.reads) - 1
        return {id_of(each): frozenset({Origin(at, str(each.name()), Use.IDENTITY)}) for each in outputs}

    def _read(self, leaf: Any) -> ReadColumns:
        servers = ""
        if kind(leaf) == "StreamingRelationV2":
            options = texts_of(self._spark, leaf.extraOptions().asCaseSensitiveMap())
            servers = next((value for key, value in options.items() if key.lower() == "kafka.bootstrap.servers"), "")
        columns = tuple((str(each.name()), zoned(str(each.dataType().sql()))) for each in output_of(leaf))
        return ReadColumns(input_of(self._spark, leaf), servers, columns)

    def all_reads(self, plan: Any) -> list[ReadColumns]:
        """Return the relations of a plan whose attributes cannot be followed, also those in its subqueries."""
        leaves = [leaf for part in (plan, *items_of(plan.subqueriesAll())) for leaf in items_of(part.collectLeaves())]
        return [self._read(leaf) for leaf in leaves if kind(leaf) not in NOTHING_READ]

    def _origins(self, expression: Any, below: Known, use: Use) -> frozenset[Origin]:
        """Return the origins of an expression's value.

        Args:
            below: those of the attributes that it may read.
            use: what is done with its value.
        """
        name, children = kind(expression), [(each, use) for each in items_of(expression.children())]
        if name == "AttributeReference":
            return _used(below[id_of(expression)], use)
        if name.endswith("Subquery") or expression.containsPattern(self._subquery):
            raise _UnknownError("a subquery in an expression")
        match name:
            case "Alias":
                pass
            case "AggregateExpression":
                children = [(expression.aggregateFunction(), max(use, Use.AGGREGATION))]
                if expression.filter().isDefined():
                    children.append((expression.filter().get(), Use.CONDITIONAL))
            case "WindowExpression":
                children = [(expression.windowFunction(), max(use, Use.AGGREGATION))]
                children.append((expression.windowSpec(), Use.WINDOW))
            case "If":
                children = [(each, max(use, Use.TRANSFORMATION)) for each, _ in children]
                children[0] = (children[0][0], Use.CONDITIONAL)
            case "CaseWhen":
                count = len(children)
                children = [
                    (each, Use.CONDITIONAL if at % 2 == 0 and at + 1 < count else max(use, Use.TRANSFORMATION))
                    for at, (each, _) in enumerate(children)
                ]
            case _:
                children = [(each, max(use, Use.TRANSFORMATION)) for each, _ in children]
        return _all(self._origins(each, below, how) for each, how in children)


def _used(origins: Iterable[Origin], use: Use) -> frozenset[Origin]:
    return frozenset(Origin(each.read, each.column, max(each.use, use)) for each in origins)


def _all(parts: Iterable[frozenset[Origin]]) -> frozenset[Origin]:
    return frozenset(origin for part in parts for origin in part)
