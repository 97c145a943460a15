"""A view's query as Spark has analysed it: what it reads, and whether its changes can be computed alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField

from sqlext.errors import UnsupportedError
from sqlext.execution.delta.target import ddl_of
from sqlext.execution.delta.transaction import LENGTH
from sqlext.execution.views.incremental import STATIC, SUPPORTED
from sqlext.execution.views.merging import mergeable
from sqlext.execution.views.order import by_order
from sqlext.execution.views.partials import partials_of
from sqlext.execution.views.sources import Versions, definitions_of, sources_of, used_columns, used_types
from sqlext.plan.view_spec import RefreshReport, SourceVersion
from sqlext.spark import column_types, jvm
from sqlext.spark.failures import SPARK_ERRORS, reason_of
from sqlext.spark.named_tables import NamedTable, named_tables
from sqlext.spark.plain_plans import subqueries_of
from sqlext.spark.plan_texts import (
    WHOLE_TEXTS,
    settings_of_function,
    settings_of_views,
    sql_functions_of,
    text_of,
    text_of_function,
    views_of,
)
from sqlext.spark.plans import METADATA, Node, Plans, Relation, analysed, kind, nodes_of, output_of, relation_of, tree_of
from sqlext.spark.row_order import order_of, with_ties_broken
from sqlext.spark.settings import session_settings
from sqlext.spark.variance import Variance, day_in

_LIMITS = {"GlobalLimit": "LIMIT", "Offset": "OFFSET"}
_TOGETHER = ("Aggregate", "Join", "Window")
_OF_SPARK = "org.apache.spark.sql.catalyst.expressions."
_OF_USERS = ("PythonUDTF", "UserDefinedGenerator")
"""Spark's calls of table functions that are not its own."""


@dataclass(frozen=True, eq=False)
class ViewQuery:
    """See the module's docstring.

    Attributes:
        plans: builds plans in the view's session.
        written_columns: the names of the columns of the query as the user wrote it.
        frame: the query.
        plan: its analysed plan.
        normal: the plan in plain relational operators.
        sources: the Delta tables that it reads, by name.
        definitions: with which it was analysed; see `definitions_of`.
        tables: those that it reads by their names, as the catalog had them.
        columns: the columns of each table that it uses.
        types: those of `sources`, with their types.
        leaves: the leaves of `plan` that read them.
        unversioned: what it reads that is no Delta table.
        may_change: whether the plan may change though no table does: it has SQL views or functions, or a version by its time.
        varies: whether its result may change though no table does: it reads the time, or random numbers.
        functions: the identifiers of functions defined in SQL, whose definitions a session remembers.
        fingerprint: a hash of the plan, and of the SQL views and functions that it reads.
        obstacle: why changes cannot be computed alone; empty: they can.
    """

    plans: Plans
    written_columns: tuple[str, ...]
    frame: DataFrame
    plan: Any
    normal: Any
    sources: Mapping[str, Relation]
    definitions: Mapping[str, Any]
    tables: tuple[NamedTable, ...]
    columns: Mapping[str, Sequence[str]]
    types: Mapping[str, Mapping[str, str]]
    leaves: tuple[Any, ...]
    unversioned: tuple[str, ...]
    may_change: bool
    varies: bool
    functions: tuple[Any, ...]
    fingerprint: str
    obstacle: str

    @property
    def output(self) -> list[Any]:
        """The attributes of the result."""
        return output_of(self.normal)

    @cached_property
    def has_partials(self) -> bool:
        """Whether it can be computed of partial results, and its own rows cannot be added to."""
        root = tree_of(self.normal)
        return mergeable(self.plans, root) is None and partials_of(self.plans, root) is not None

    @cached_property
    def is_row_by_row(self) -> bool:
        """Whether each row of the result depends on one row of a table, not on a group, a partition, or on another table too."""
        return not any(kind(node) in _TOGETHER for node in nodes_of(self.normal))

    @cached_property
    def is_by_order(self) -> bool:
        """Whether rows depend on the order in which others are read, so that they may be others when they are computed again."""
        return bool(by_order(tree_of(self.normal)))

    def is_at(self, last: RefreshReport, after: Mapping[str, SourceVersion]) -> bool:
        """Return whether it, and all tables that it reads and whose versions are known, are as at the last refresh."""
        return last.query == self.fingerprint and dict(last.sources) == dict(after) and not last.moved(after)

    def pinned_tree(self, versions: Versions) -> Node:
        """Return the nodes of `normal`, with the subqueries in its expressions over the new versions.

        Raises:
            UnsupportedError: a table that such a subquery reads has changed, and with it every row may have; or its value may be
                another one each time.
        """
        if any(by_order(tree_of(each)) for each in subqueries_of(self.normal)):
            raise UnsupportedError("the value of a scalar subquery depends on the order in which its rows are read")
        inside = [node for each in subqueries_of(self.normal) for node in nodes_of(each) if relation_of(node) is not None]
        for leaf in inside:
            if versions.leaf(leaf).delta is not None:
                relation = relation_of(leaf)
                name = "" if relation is None else relation.name
                raise UnsupportedError(f"{name}, which a scalar subquery reads, has changed")
        return tree_of(self.plans.replaced(self.normal, [(leaf, versions.new(leaf)) for leaf in inside]))


def analyse(session: SparkSession, text: str, types: Sequence[StructField] = (), written: str = "") -> ViewQuery:
    """Let Spark analyse a view's query.

    Args:
        session: the view's session.
        text: the query.
        types: the columns of the view's table, if its column list gives types; none: they are those of the query.
        written: the query as the user wrote it, if it is another one.

    Raises:
        PySparkException: Spark's error, if it cannot.
    """
    frame = session.sql(text)
    written_columns = tuple((session.sql(written) if written else frame).columns)
    if types:
        names = [f"c{at}" for at in range(len(frame.columns))]
        kinds = {name: field.dataType for name, field in zip(names, types, strict=False)}
        frame = column_types.in_order(frame.toDF(*names), {name: ddl_of(kind) for name, kind in kinds.items()})
        frame = frame.select(*(F.col(name).cast(kind) for name, kind in kinds.items()))
        frame = _with_lengths(session, frame, types)
    plans, plan = Plans(session), with_ties_broken(session, analysed(frame))
    normal, is_not_plain = plan, ""
    try:
        normal = plans.normal(plan)
    except SPARK_ERRORS as error:
        is_not_plain = f"Spark does not bring it into plain operators: {reason_of(error)}"
    views, functions = views_of(plan), sql_functions_of(plan)
    bodies = [*views.values(), *map(text_of_function, functions)]
    varying = Variance(session).of_plan(normal) or day_in([text, *bodies])
    with jvm.active(session), session_settings(session, WHOLE_TEXTS):
        meant = [settings_of_views(plan), *map(settings_of_function, functions)]
        marks = "\n".join([text_of(normal), *(" ".join(body.split()) for body in bodies), *filter(None, meant)])
    return ViewQuery(
        plans=plans,
        written_columns=written_columns,
        frame=frame,
        plan=plan,
        normal=normal,
        sources=sources_of(plan),
        definitions=definitions_of(plan),
        tables=named_tables(plan),
        columns=used_columns(normal),
        types=used_types(normal),
        leaves=tuple(node for node in nodes_of(plan) if relation_of(node) is not None),
        unversioned=tuple(dict.fromkeys(_unversioned(normal))),
        may_change=bool(views) or bool(functions) or any(each.is_pinned for each in _relations(plan)),
        functions=tuple(each.name() for each in functions),
        varies=varying is not None,
        fingerprint=hashlib.sha256(marks.encode()).hexdigest()[:16],
        obstacle=is_not_plain or _obstacle(plans, normal, varying),
    )


def _with_lengths(session: SparkSession, frame: DataFrame, types: Sequence[StructField]) -> DataFrame:
    """Return rows as columns of the types CHAR(n) and VARCHAR(n) take them."""
    written = [str(field.metadata.get(LENGTH, "")) for field in types]
    if not any(written):
        return frame
    plans, plan = Plans(session), analysed(frame)
    pairs = zip(output_of(plan), written, strict=True)
    columns = [plans.named(plans.of_length(each, kind), str(each.name())) if kind else each for each, kind in pairs]
    return plans.frame(plans.select(plan, columns))


def _relations(plan: Any) -> list[Relation]:
    return [relation for node in nodes_of(plan) if (relation := relation_of(node)) is not None]


def _unversioned(plan: Any) -> list[str]:
    """Return what a plan reads that has no versions."""
    without = (*STATIC, "CTERelationRef")  # what a WITH query reads is below its definition
    leaves = [node for node in nodes_of(plan) if node.children().isEmpty() and kind(node) not in without]
    return [str(node.nodeName()).strip() for node in leaves if relation_of(node) is None]


def _foreign_function_in(node: Any) -> str:
    """Return the name of the table function that a node calls and that is none of Spark's own; empty: it calls none."""
    if kind(node) != "Generate":
        return ""
    generator = node.generator()
    is_of_spark = str(generator.getClass().getName()).startswith(_OF_SPARK) and kind(generator) not in _OF_USERS
    return "" if is_of_spark else str(generator.name() if kind(generator) == "PythonUDTF" else generator.prettyName())


def _obstacle(plans: Plans, plan: Any, varying: str | None) -> str:
    if unversioned := _unversioned(plan):
        return f"it reads what is no Delta table ({', '.join(dict.fromkeys(unversioned))})"
    if any(str(each.name()) == METADATA for node in nodes_of(plan) if relation_of(node) for each in output_of(node)):
        return f"it reads {METADATA}, which changes whenever files are rewritten"
    unknown = next((kind(node) for node in nodes_of(plan) if kind(node) not in SUPPORTED), None)
    if unknown is not None:
        return f"there is no incremental rule for {unknown}"
    if function := next((each for node in nodes_of(plan) if (each := _foreign_function_in(node))), None):
        return f"what the table function {function}(..) returns for a row may depend on the rows before"
    if unordered := next((kind(node) for node in nodes_of(plan) if kind(node) in _LIMITS and order_of(node) is None), None):
        return f"{_LIMITS[unordered]} without ORDER BY has another result each time"
    if varying is not None:
        return f"{varying} has another value at each refresh"
    if plans.has_outer_references(plan):
        return "a correlated subquery is not a join"
    return ""
