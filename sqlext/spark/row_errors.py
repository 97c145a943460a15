"""Rows whose columns cannot be computed, such as by a cast that fails under ANSI: kept with NULL, marked, and with their input.

The select lists and conditions of a query are computed each in Spark's `TryEval`, as `try_` functions are, down to the first
operator that is neither: a stream, a join, a generator. Errors of that one, and of Python functions, fail the query as ever.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sqlext.plan.constraints import COMPUTED_MARK, INPUT_MARK
from sqlext.spark.java import items_of, java_of, scala_seq
from sqlext.spark.jvm import alias, analysed_plan, frame_of
from sqlext.spark.settings import TIME_ZONE
from sqlext.spark.two_steps import kind_of

SETTINGS = {"spark.sql.subexpressionElimination.enabled": "false"}
"""The settings with which such a query runs: else Spark 4.2 computes what two expressions share before either `TryEval`."""
_SAFE = frozenset(
    """
    Alias AttributeReference Literal EqualTo EqualNullSafe LessThan LessThanOrEqual GreaterThan GreaterThanOrEqual And Or Not
    IsNull IsNotNull In InSet GetStructField CreateNamedStruct CreateArray Coalesce If CaseWhen Upper Lower StringTrim Concat
    StartsWith EndsWith Contains CurrentTimestamp Now
    """.split()
)
"""Expressions that give each row a value, if those that they are made of do."""


def caught(frame: DataFrame) -> DataFrame:
    """Return a query of the same columns, and two: `COMPUTED_MARK`, and `INPUT_MARK` where that is false.

    Args:
        frame: the analysed query. A row of which anything fails has NULL for what has failed, and passes each WHERE above.
    """
    spark = frame.sparkSession
    return frame_of(spark, _with_text(spark, _marked(spark, _caught(spark, analysed_plan(frame)))).plan)


@dataclass(frozen=True)
class _Caught:
    """A plan with two columns behind its own, `mark` and `given`, if something in it can fail.

    `given` is a struct of the columns that are the input. Above a UNION ALL (`has_text`) it is a struct of two things: the JSON
    text of the input of rows that have failed in a branch, and a struct of the union's columns, which are the input of rows that
    fail above it. JSON is computed for rows that fail, and for no others.
    """

    plan: Any
    mark: Any = None
    given: Any = None
    has_text: bool = False

    @property
    def is_marked(self) -> bool:
        return self.mark is not None

    @property
    def columns(self) -> list[Any]:
        """The plan's own columns."""
        ids = {int(each.exprId().id()) for each in (self.mark, self.given) if each is not None}
        return [each for each in items_of(self.plan.output()) if int(each.exprId().id()) not in ids]


def _caught(spark: SparkSession, plan: Any) -> _Caught:
    match kind_of(plan):
        case "Project":
            return _project(spark, plan, _caught(spark, plan.child()))
        case "Filter":
            return _filter(spark, plan, _caught(spark, plan.child()))
        case "SubqueryAlias":
            below = _caught(spark, plan.child())
            return replace(below, plan=plan.copy(plan.identifier(), below.plan))
        case "Union":
            return _union(spark, plan, [_caught(spark, each) for each in items_of(plan.children())])
    return _Caught(plan)


def _project(spark: SparkSession, plan: Any, below: _Caught) -> _Caught:
    items = items_of(plan.projectList())
    failing = [at for at, each in enumerate(items) if not _is_safe(each)]
    if not failing and not below.is_marked:
        return _Caught(plan)
    below = _marked(spark, below)
    tried = {at: _tried(spark, items[at].child(), at) for at in failing}
    inner = _made(spark, [*items_of(below.plan.output()), *tried.values()], below.plan)
    results = [_result(spark, each, tried[at]) if at in tried else each for at, each in enumerate(items)]
    mark = alias(spark, _all(spark, [below.mark, *(_succeeded(spark, each) for each in tried.values())]), COMPUTED_MARK)
    return replace(below, plan=_made(spark, [*results, mark, below.given], inner), mark=mark.toAttribute())


def _filter(spark: SparkSession, plan: Any, below: _Caught) -> _Caught:
    """Let rows pass that cannot be computed: it is not known whether the condition would hold."""
    expressions, condition = java_of(spark).org.apache.spark.sql.catalyst.expressions, plan.condition()
    if _is_safe(condition):
        if not below.is_marked:
            return _Caught(plan)
        passes = expressions.Or(expressions.Not(below.mark), condition)
        return replace(below, plan=plan.copy(passes, below.plan))
    below = _marked(spark, below)
    tried = _tried(spark, condition, 0)
    inner = _made(spark, [*items_of(below.plan.output()), tried], below.plan)
    mark = alias(spark, _all(spark, [below.mark, _succeeded(spark, tried)]), COMPUTED_MARK)
    holds = expressions.GetStructField(tried.toAttribute(), 0, _none(spark))
    marked = _made(spark, [*below.columns, mark, below.given, alias(spark, holds, "holds")], inner)
    passes = expressions.Or(expressions.Not(mark.toAttribute()), items_of(marked.output())[-1])
    kept = plan.copy(passes, marked)
    result = _made(spark, [*below.columns, mark.toAttribute(), below.given], kept)
    return replace(below, plan=result, mark=mark.toAttribute())


def _union(spark: SparkSession, plan: Any, branches: Sequence[_Caught]) -> _Caught:
    if not any(each.is_marked for each in branches):
        return _Caught(plan)
    plans = [_with_text(spark, _marked(spark, each)).plan for each in branches]
    made = plan.copy(scala_seq(spark, plans), plan.byName(), plan.allowMissingCol())
    *columns, mark, text = items_of(made.output())
    given = alias(spark, _struct(spark, [text, alias(spark, _struct(spark, columns), "columns")]), INPUT_MARK)
    return _Caught(_made(spark, [*columns, mark, given], made), mark, given.toAttribute(), has_text=True)


def _marked(spark: SparkSession, found: _Caught) -> _Caught:
    """Return a plan with the two columns; below the first thing that can fail, its own columns are the input."""
    if found.is_marked:
        return found
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions
    columns = items_of(found.plan.output())
    mark = alias(spark, expressions.Literal.TrueLiteral(), COMPUTED_MARK)
    given = alias(spark, _struct(spark, columns), INPUT_MARK)
    return _Caught(_made(spark, [*columns, mark, given], found.plan), mark.toAttribute(), given.toAttribute())


def _with_text(spark: SparkSession, found: _Caught) -> _Caught:
    """Return a plan whose `given` is the text of the input where the row has failed, and else NULL."""
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions
    if found.has_text:
        of_branch, columns = (expressions.GetStructField(found.given, at, _none(spark)) for at in (0, 1))
        text = expressions.Coalesce(scala_seq(spark, [of_branch, _json(spark, columns)]))
    else:
        text = _json(spark, found.given)
    none = expressions.Literal.create(None, text.dataType())
    given = alias(spark, expressions.If(found.mark, none, text), INPUT_MARK)
    return _Caught(_made(spark, [*found.columns, found.mark, given], found.plan), found.mark, given.toAttribute())


def _json(spark: SparkSession, struct: Any) -> Any:
    options = java_of(spark).org.apache.spark.api.python.PythonUtils.toScalaMap({"ignoreNullFields": "false"})
    zone = java_of(spark).scala.Option.apply(spark.conf.get(TIME_ZONE))
    return java_of(spark).org.apache.spark.sql.catalyst.expressions.StructsToJson(options, struct, zone)


def _struct(spark: SparkSession, columns: Sequence[Any]) -> Any:
    return java_of(spark).org.apache.spark.sql.catalyst.expressions.CreateStruct.create(scala_seq(spark, columns))


def _is_safe(expression: Any) -> bool:
    return kind_of(expression) in _SAFE and all(map(_is_safe, items_of(expression.children())))


def _tried(spark: SparkSession, expression: Any, at: int) -> Any:
    """Return a column that is NULL if the expression fails, and otherwise a struct with its value."""
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions
    return alias(spark, expressions.TryEval(_struct(spark, [expression])), f"tried_{at}")


def _succeeded(spark: SparkSession, tried: Any) -> Any:
    return java_of(spark).org.apache.spark.sql.catalyst.expressions.IsNotNull(tried.toAttribute())


def _result(spark: SparkSession, item: Any, tried: Any) -> Any:
    """Return an item of a select list, with its name and id, whose value was tried before."""
    expressions = java_of(spark).org.apache.spark.sql.catalyst.expressions
    value = expressions.GetStructField(tried.toAttribute(), 0, _none(spark))
    about = (item.exprId(), item.qualifier(), item.explicitMetadata(), item.nonInheritableMetadataKeys())
    return item.copy(value, item.name(), *about)


def _all(spark: SparkSession, conditions: Sequence[Any]) -> Any:
    return reduce(java_of(spark).org.apache.spark.sql.catalyst.expressions.And, conditions)


def _made(spark: SparkSession, items: Sequence[Any], child: Any) -> Any:
    return java_of(spark).org.apache.spark.sql.catalyst.plans.logical.Project(scala_seq(spark, items), child)


def _none(spark: SparkSession) -> Any:
    return java_of(spark).scala.Option.apply(None)
