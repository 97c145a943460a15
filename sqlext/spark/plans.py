"""Logical plans taken apart and built anew: what the incremental refresh of a materialized view needs of Catalyst.

A query is first brought into plain relational operators (`plain_plans.py`). Nodes are then given other children; their
expressions stay as Spark has analysed them.

Relies on Spark's private side: Catalyst's nodes and expressions. Checked with Spark 4.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from sqlext.spark.failures import kinds_of
from sqlext.spark.java import items_of, java_of, scala_object, scala_seq, transformed
from sqlext.spark.jvm import alias, frame_of
from sqlext.spark.plain_plans import has_outer_references, plain
from sqlext.spark.two_steps import can_be_stored

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
METADATA = "_metadata"
"""The column that Spark adds to files: where each row lies."""
_JOIN_TYPES = "org.apache.spark.sql.catalyst.plans."


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a plan, the same object however often it is asked for; Py4J makes a new one at each call.

    Attributes:
        plan: Catalyst's node.
        kind: the name of its class, such as `Aggregate`.
        children: its children.
    """

    plan: Any
    kind: str
    children: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Aggregation:
    """The parts of an aggregate.

    Attributes:
        calls: its calls of aggregate functions, each once.
        results: its result expressions, over the keys and the calls' result attributes.
    """

    calls: tuple[Any, ...]
    results: tuple[Any, ...]


def tree_of(plan: Any) -> Node:
    """Return a plan's nodes."""
    return Node(plan, kind(plan), tuple(tree_of(child) for child in items_of(plan.children())))


def analysed(frame: DataFrame) -> Any:
    """Return the analysed plan of a query."""
    return frame._jdf.queryExecution().analyzed()


def kind(node: Any) -> str:
    """Return the name of a node's or an expression's class, such as `Aggregate`."""
    return str(node.getClass().getSimpleName()).removesuffix("$")


def output_of(node: Any) -> list[Any]:
    """Return the attributes of a node's rows, in order."""
    return items_of(node.output())


def id_of(attribute: Any) -> int:
    """Return the id by which Catalyst tells an attribute from others of the same name."""
    return int(attribute.exprId().id())


@dataclass(frozen=True)
class Relation:
    """A Delta table in a plan.

    Attributes:
        name: catalog, database and table, or the folder of one that is read by its path.
        location: the folder of its files.
        pinned_to: the version, if the query itself names it.
        id_of_pinned: Delta's id of the table, in that case.
    """

    name: str
    location: str
    pinned_to: int | None
    id_of_pinned: str = ""

    @property
    def is_pinned(self) -> bool:
        """Whether the query itself names the version that it reads."""
        return self.pinned_to is not None


def relation_of(node: Any) -> Relation | None:
    """Return the Delta table that a leaf reads; None if the node is something else, such as one partition named by its path."""
    if kind(node) != "LogicalRelation" or _FILES not in kinds_of(node.relation()):
        return None
    index = node.relation().location()
    if not kind(index).startswith("TahoeLogFileIndex") or index.partitionFilters().nonEmpty():
        return None
    location = str(index.deltaLog().dataPath().toString())
    table = node.catalogTable()
    name = str(table.get().identifier().unquotedString()) if table.isDefined() else location
    if not index.isTimeTravelQuery():
        return Relation(name, location, None)
    at = index.snapshotAtAnalysis()
    return Relation(name, location, int(at.version()), str(at.metadata().id()))


def is_session(attribute: Any) -> bool:
    """Return whether an attribute is a session window, which Spark merges with others only while it runs the query."""
    return bool(attribute.metadata().contains("spark.sessionWindow"))


def can_be_key(attribute: Any) -> bool:
    """Return whether rows can be found by their values of an attribute: Spark compares no maps, and merges session windows."""
    field = {"name": "", "type": json.loads(str(attribute.dataType().json())), "nullable": True, "metadata": {}}
    return not is_session(attribute) and not _has_map(StructType.fromJson({"type": "struct", "fields": [field]}))


def _has_map(data_type: DataType) -> bool:
    """Return whether a type is or holds a map or a variant."""
    if isinstance(data_type, ArrayType):
        return _has_map(data_type.elementType)
    if isinstance(data_type, StructType):
        return any(_has_map(field.dataType) for field in data_type)
    return isinstance(data_type, (MapType, VariantType))


def nodes_of(plan: Any) -> Iterator[Any]:
    """Yield a plan's nodes, and those of the subqueries in its expressions."""
    yield plan
    for child in items_of(plan.children()):
        yield from nodes_of(child)
    for subquery in items_of(plan.subqueries()):
        yield from nodes_of(subquery)


class Plans:
    """Builds plans in one session. Holds no state, so any thread may call it.

    An expression is one of Catalyst's; attributes are named expressions of a plan's output.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java = java_of(spark)
        self._logical = self._java.org.apache.spark.sql.catalyst.plans.logical
        self._expressions = self._java.org.apache.spark.sql.catalyst.expressions
        self._none = self._java.scala.Option.apply(None)
        self._no_hint = scala_object(spark, "org.apache.spark.sql.catalyst.plans.logical.JoinHint").NONE()

    @property
    def is_ansi(self) -> bool:
        """Whether an overflow in what the session computes is an error."""
        return str(self._spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"

    def normal(self, plan: Any) -> Any:
        """Return an analysed plan in plain relational operators; see `plain_plans`."""
        return plain(self._spark, plan)

    def frame(self, plan: Any) -> DataFrame:
        """Return the DataFrame of a plan."""
        return frame_of(self._spark, plan)

    def held(self, rows: DataFrame) -> Any:
        """Return a plan that reads persisted rows from the executors."""
        return rows._jdf.queryExecution().withCachedData()

    def replaced(self, plan: Any, replacements: Sequence[tuple[Any, Any]]) -> Any:
        """Return a plan with some of its leaves replaced, also in the subqueries of its expressions.

        Args:
            plan: the plan.
            replacements: each leaf, and what takes its place: a plan with the same attributes.
        """
        if not replacements:
            return plan
        return transformed(
            plan.transformDownWithSubqueries,
            lambda node: next((new for old, new in replacements if node.equals(old)), node),
        )

    def with_children(self, node: Any, children: Sequence[Any]) -> Any:
        """Return a node with other children, which have the same attributes, and perhaps more."""
        return node.withNewChildren(scala_seq(self._spark, [*children]))

    def around(self, root: Node, node: Node, part: Any) -> Any:
        """Return a query with another plan in the place of one of its nodes, above which each node has one child."""
        if root is node:
            return part
        (child,) = root.children
        return self.with_children(root.plan, [self.around(child, node, part)])

    def select(self, child: Any, expressions: Sequence[Any]) -> Any:
        """Return a projection to named expressions."""
        return self._logical.Project(scala_seq(self._spark, [*expressions]), child)

    def renamed(self, child: Any, attributes: Sequence[Any], wanted: Sequence[Any]) -> Any:
        """Return a projection of some attributes of `child` under the identities of other attributes."""
        pairs = zip(attributes, wanted, strict=True)
        return self.select(child, [self.as_attribute(each, like) for each, like in pairs])

    def as_attribute(self, expression: Any, like: Any) -> Any:
        """Return an expression under the identity of an attribute."""
        return alias(self._spark, expression, str(like.name()), like)

    def named(self, expression: Any, name: str) -> Any:
        """Return an expression under a name, with a new identity."""
        return alias(self._spark, expression, name)

    def null(self, like: Any) -> Any:
        """Return NULL in the type of an attribute, under its identity."""
        return self.as_attribute(self._expressions.Literal(None, like.dataType()), like)

    def cast(self, expression: Any, like: Any) -> Any:
        """Return an expression cast to the type of an attribute."""
        zone = self._java.scala.Option.apply(self._spark.conf.get("spark.sql.session.timeZone"))
        mode = scala_object(self._spark, f"{_EXPRESSIONS}EvalMode").LEGACY()
        return self._expressions.Cast(expression, like.dataType(), zone, mode)

    def literal(self, sql: str) -> Any:
        """Return a literal, from its SQL."""
        return self._spark._jsparkSession.sessionState().sqlParser().parseExpression(sql)

    def product(self, left: Any, right: Any) -> Any:
        """Return the product of two numbers."""
        return self._expressions.Multiply(left, right)

    def where(self, condition: Any, value: Any) -> Any:
        """Return an expression that is the value where a condition is true, and NULL elsewhere."""
        return self._expressions.If(condition, value, self._expressions.Literal(None, value.dataType()))

    def can_be_stored(self, expression: Any) -> bool:
        """Return whether a Delta table can have a column with the values of an expression."""
        has_collation = self._java.org.apache.spark.sql.util.SchemaUtils.hasNonUTF8BinaryCollation
        return can_be_stored(json.loads(str(expression.dataType().json()))) and not has_collation(expression.dataType())

    def of_length(self, value: Any, written: str) -> Any:
        """Return a value as a column takes it whose type is, or has in it, CHAR(n) or VARCHAR(n): padded, or refused."""
        parsed = scala_object(self._spark, "org.apache.spark.sql.catalyst.parser.CatalystSqlParser").parseDataType(written)
        return scala_object(self._spark, "org.apache.spark.sql.catalyst.util.CharVarcharUtils").stringLengthCheck(value, parsed)

    def aggregation(self, node: Any) -> Aggregation | None:
        """Return the parts of an aggregate; None: Spark makes others of it, such as of one with Python functions."""
        found = scala_object(self._spark, "org.apache.spark.sql.catalyst.planning.PhysicalAggregation").unapply(node)
        if not found.isDefined():
            return None
        parts = found.get()
        return Aggregation(tuple(items_of(parts._2())), tuple(items_of(parts._3())))

    def union(self, plans: Sequence[Any]) -> Any:
        """Return the rows of all plans, by position; their attributes must have identities of their own."""
        return self._logical.Union(scala_seq(self._spark, [*plans]), False, False)

    def grouped(self, child: Any, groups: Sequence[Any], results: Sequence[Any]) -> Any:
        """Return an aggregate."""
        return self._logical.Aggregate(scala_seq(self._spark, [*groups]), scala_seq(self._spark, [*results]), child, self._none)

    def matching(self, child: Any, expressions: Sequence[Any], keys: Any, may_be_null: Sequence[bool]) -> Any:
        """Return the rows of `child` whose expressions are among the rows of `keys`; NULL is a value like others.

        Spark looks for values alone in a faster way: `may_be_null` says of each key whether NULL is one of its values.
        """
        equal = [self._expressions.EqualNullSafe if each else self._expressions.EqualTo for each in may_be_null]
        same = [compare(left, right) for compare, left, right in zip(equal, expressions, output_of(keys), strict=True)]
        condition = same[0]
        for each in same[1:]:
            condition = self._expressions.And(condition, each)
        semi = scala_object(self._spark, f"{_JOIN_TYPES}LeftSemi")
        return self._logical.Join(child, keys, semi, self._java.scala.Option.apply(condition), self._no_hint)

    def between(self, child: Any, attribute: Any, least: str, greatest: str) -> Any:
        """Return the rows of `child` in which an attribute is between two values of its type, given as text, or one of them."""
        bounds = [self.cast(self._text(each), attribute) for each in (least, greatest)]
        if any(each.eval(None) is None for each in bounds):  # as if it were not known
            return child
        low = self._expressions.GreaterThanOrEqual(attribute, bounds[0])
        high = self._expressions.LessThanOrEqual(attribute, bounds[1])
        return self._logical.Filter(self._expressions.And(low, high), child)

    def _text(self, value: str) -> Any:
        made = self._java.org.apache.spark.unsafe.types.UTF8String.fromString(value)
        return self._expressions.Literal(made, scala_object(self._spark, "org.apache.spark.sql.types.StringType"))

    def equal_keys(self, join: Any) -> tuple[list[Any], list[Any]]:
        """Return the expressions of the left and of the right rows that a join's condition compares by equality."""
        found = scala_object(self._spark, "org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys").unapply(join)
        if not found.isDefined():
            return [], []
        parts = found.get()
        return items_of(parts._2()), items_of(parts._3())

    def expanded(self, node: Any, child: Any, extra: Any) -> tuple[Any, Any]:
        """Return an Expand with an attribute of `child` passed through, and that attribute of its output."""
        passed = extra.newInstance()
        projections = [each.appended(extra) for each in items_of(node.projections())]
        made = self._logical.Expand(scala_seq(self._spark, projections), node.output().appended(passed), child)
        return made, passed

    def has_outer_references(self, plan: Any) -> bool:
        """Return whether a plan, or a subquery in it, reads attributes of a query around it."""
        return has_outer_references(self._spark, plan)


def forget_functions(spark: SparkSession, names: Sequence[Any]) -> None:
    """Let a session look up functions in the catalog again, whose definitions it remembers since their first use."""
    catalog = spark._jsparkSession.sessionState().catalog()
    for name in names:
        if not catalog.isTemporaryFunction(name):
            catalog.unregisterFunction(name)
