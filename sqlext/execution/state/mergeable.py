"""A streaming aggregate taken apart, so that a table can hold its state.

Spark plans an aggregate in two steps. The first makes a buffer for each function from rows (`update`), the second makes results
of buffers (`merge`, `evaluate`): Catalyst's DeclarativeAggregate and TypedImperativeAggregate. Between the steps a buffer is
columns, the partial result of a group. Here these columns are what is kept: a micro-batch gives partial results, a flush merges
them with those that are stored, and makes results of both. All three are pieces of Spark's own physical plan, so types, nulls,
overflows and FILTER are Spark's own, for every function that it can run in two steps. What changes from run to run, such as the
current time, is not planned once with them (`spark/varying.py`).

Of an aggregate by session windows, a partial result's window is that of its rows until `joined` has put those together that
touch, as Spark does between the steps.

This is a seam: it reads and makes Catalyst's plans. Seen with Spark 4.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import INTERNAL_PREFIX, OutputMode
from sqlext.quoting import quote
from sqlext.spark.java import items_of, java_of, scala_object, scala_seq
from sqlext.spark.jvm import active, alias, analysed_plan, check_streaming, frame_of, plan_has_watermark
from sqlext.spark.physical_plan import as_columns, fingerprint, frame_over, unknown_rows
from sqlext.spark.varying import Results, reads_time_of_day, with_moments_below

_AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec")
_MERGING_SESSIONS = "MergingSessionsExec"
"""Spark's node between the two steps that puts sessions together."""
_SESSION = "spark.sessionWindow"
"""In the metadata of a column: it is a session window."""
_BY_ARRIVAL = ("First", "Last", "CollectList", "ListAgg")
"""Functions whose result depends on the order of their input."""
_ADDED = {
    "Count": "{0} + {1}",
    "Sum": "coalesce({0} + {1}, {0}, {1})",
    "Min": "least({0}, {1})",
    "Max": "greatest({0}, {1})",
    "BitAndAgg": "coalesce({0} & {1}, {0}, {1})",
    "BitOrAgg": "coalesce({0} | {1}, {0}, {1})",
    "BitXorAgg": "coalesce({0} ^ {1}, {0}, {1})",
}
"""How two results of a function make one, where the result is all there is of its state; of others, Spark's merge step."""
_ROWS = f"{INTERNAL_PREFIX}rows"
_STORED = re.compile(
    r"(string|binary|boolean|byte|short|integer|long|float|double|decimal\(\d+,\d+\)|date|timestamp|timestamp_ntz)"
)


class MergeableAggregate:
    """See the module's docstring. Immutable; any thread may use it.

    Args:
        frame: the streaming query, analysed: an aggregate, and columns made of its results.

    Attributes:
        key: the names of the columns by which partial results belong together.
        schema: of partial results.
        is_ordered: whether a function depends on the order of its input, such as first().
        session: the column of the key that is a session window; empty when there is none.
        results_stored: of each column of `schema` the output column that is the same, as of count and sum; empty unless all
            have one.
        results_vary: whether results differ from one evaluation to the next: only groups that have changed get new ones.
        additions: SQL of how two partial results of each function make one, with {0} and {1} for them; empty unless all have
            such.
        fingerprint: the same as long as stored partial results can be read.

    Raises:
        UnsupportedError: it cannot be taken apart; says why.
    """

    def __init__(self, frame: DataFrame) -> None:
        spark = frame.sparkSession
        self._java = java_of(spark)
        self._names = list(frame.columns)
        above, aggregate = _cut(analysed_plan(frame))
        _refuse_what_has_no_partial_results(spark, aggregate)
        has_session = _has_session(aggregate)
        with active(spark):
            read = _columns_read(spark, aggregate)
            aggregate, moments = with_moments_below(spark, aggregate)
            self._columns = [*read, *(each.toAttribute() for each in moments)]
            self.input = self._make_input(spark, aggregate.child(), [*read, *(each.child() for each in moments)])
            self._varying = Results()
            self._plan(spark, above, aggregate)
            if not self._functions and self._final.groupingExpressions().isEmpty():
                self._plan(spark, above, self._with_count(spark, aggregate))
        self.schema, self.key = self._partial_schema()
        self.session = self._find_session()
        if has_session and not self.session:
            raise UnsupportedError("Spark does not run its sessions between the two steps.")
        if not self.schema.fields:
            raise UnsupportedError("nothing of it depends on rows, so there is nothing to store.")
        self.results_stored = self._find_results_stored(spark)
        known = tuple(_ADDED.get(_kind(function), "") for function in self._functions)
        self.additions = known if self.results_stored and all(known) else ()
        self.fingerprint = self._make_fingerprint(str(spark.version))

    def _make_input(self, spark: SparkSession, below: Any, columns: Sequence[Any]) -> DataFrame:
        """The streaming query of the rows that are aggregated."""
        named = [alias(spark, column, f"c{at}") for at, column in enumerate(columns)]
        project = self._java.org.apache.spark.sql.catalyst.plans.logical.Project
        rows = frame_of(spark, project(scala_seq(spark, named), below))
        check_streaming(rows, OutputMode.APPEND)
        return rows

    def _with_count(self, spark: SparkSession, aggregate: Any) -> Any:
        """An aggregate with one more result, so that there is anything to store: of a FILTER that is never true nothing is."""
        catalyst = self._java.org.apache.spark.sql.catalyst.expressions
        one = catalyst.Literal.create(1, self._java.org.apache.spark.sql.types.DataTypes.IntegerType)
        count = catalyst.aggregate.Count(scala_seq(spark, [one])).toAggregateExpression()
        results = [*items_of(aggregate.aggregateExpressions()), alias(spark, count, _ROWS)]
        child, hint = aggregate.child(), aggregate.hint()
        return aggregate.copy(aggregate.groupingExpressions(), scala_seq(spark, results), child, hint)

    def _plan(self, spark: SparkSession, above: list[Any], aggregate: Any) -> None:
        """Let Spark plan the query over unknown rows, and find the two steps in its plan."""
        logical = aggregate.withNewChildren(scala_seq(spark, [unknown_rows(spark, scala_seq(spark, self._columns))]))
        for node in reversed(above):
            logical = node.withNewChildren(scala_seq(spark, [logical]))
        skip = self._java.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        held = self._varying.hold(spark, logical)
        every = _chain(spark._jsparkSession.sessionState().executePlan(held, skip).sparkPlan())
        chain = [node for node in every if _kind(node) != _MERGING_SESSIONS]
        self._is_by_session = len(chain) < len(every)
        places = [at for at, node in enumerate(chain) if _kind(node) in _AGGREGATES]
        if len(places) != 2 or places[1] != places[0] + 1:
            raise UnsupportedError("Spark does not run this aggregate in two steps.")
        self._above_final = chain[: places[0]]
        self._final, self._partial = chain[places[0]], chain[places[1]]
        self._below_partial = chain[places[1] + 1 : -1]
        self._functions = [each.aggregateFunction() for each in items_of(self._final.aggregateExpressions())]
        self.is_ordered = any(_kind(function) in _BY_ARRIVAL for function in self._functions)
        shown = [
            *items_of(self._final.resultExpressions()),
            *(e for node in self._above_final for e in items_of(node.expressions())),
        ]
        self.results_vary = self._varying.vary(shown)
        self._merge = self._make_merge(spark)
        if not self._final.groupingExpressions().isEmpty():  # its input has each group once: no exchange
            final = self._final
            none, expressions = self._java.scala.Option.apply(None), final.aggregateExpressions()
            self._final = self._changed(final, none, expressions, final.resultExpressions())

    def _make_merge(self, spark: SparkSession) -> Any:
        """The step between the two, which Spark itself has for DISTINCT and for streams."""
        mode = scala_object(spark, "org.apache.spark.sql.catalyst.expressions.aggregate.PartialMerge")
        none = self._java.scala.Option.apply(None)
        final = self._final
        merged = [
            each.copy(each.aggregateFunction(), mode, False, none, each.resultId())
            for each in items_of(final.aggregateExpressions())
        ]
        buffers = [attribute for each in self._functions for attribute in items_of(each.inputAggBufferAttributes())]
        node = final.toSortAggregate() if self.is_ordered and _kind(final) != "SortAggregateExec" else final
        results = scala_seq(spark, [*items_of(final.groupingExpressions()), *buffers])
        return self._changed(node, final.requiredChildDistributionExpressions(), scala_seq(spark, merged), results)

    def _changed(self, node: Any, distribution: Any, expressions: Any, results: Any) -> Any:
        """A step that asks for its input's distribution, or for none, with other modes of its functions and other results."""
        return node.copy(
            distribution,
            False,
            node.numShufflePartitions(),
            node.groupingExpressions(),
            expressions,
            node.aggregateAttributes(),
            node.initialInputBufferOffset(),
            results,
            node.child(),
        )

    def _partial_schema(self) -> tuple[StructType, tuple[str, ...]]:
        keys = int(self._final.groupingExpressions().length())
        fields = []
        for at, attribute in enumerate(items_of(self._partial.output())):
            kind = json.loads(str(attribute.dataType().json()))
            if not _can_be_stored(kind):
                raise UnsupportedError(
                    f"a partial result has the type {attribute.dataType().sql()}, which is not stored in a table."
                )
            name = f"{INTERNAL_PREFIX}k{at + 1}" if at < keys else f"{INTERNAL_PREFIX}b{at - keys + 1}"
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
        schema = StructType.fromJson({"type": "struct", "fields": fields})
        return schema, tuple(schema.names[:keys])

    def _find_session(self) -> str:
        if not self._is_by_session:
            return ""
        grouping = items_of(self._final.groupingExpressions())
        return next(name for name, each in zip(self.key, grouping, strict=True) if _is_session(each))

    def _find_results_stored(self, spark: SparkSession) -> tuple[str, ...]:
        if self.session:  # a row of the table may be gone when a row comes that belongs to its session
            return ()
        final = self._final
        stored = [each.exprId() for each in items_of(final.groupingExpressions())]
        for each, function in zip(items_of(final.aggregateExpressions()), self._functions, strict=True):
            if self._above_final or not _is_its_buffer(spark, function):
                return ()
            stored.append(each.resultAttribute().exprId())
        results = items_of(final.resultExpressions())
        shown = [(_source(result), name) for result, name in zip(results, self._names_of(results), strict=True)]
        names = [next((name for source, name in shown if source is not None and source.equals(each)), "") for each in stored]
        return tuple(names) if all(names) and _ROWS not in names else ()

    def _make_fingerprint(self, version: str) -> str:
        """Of partial results that are no results, only the version of Spark that made them knows what they mean."""
        made_by = [] if self.results_stored else [f"Spark {version}"]
        texts = [self.schema.json(), *(str(each.toString()) for each in (*self._functions, self._final.groupingExpressions()))]
        texts += made_by
        return fingerprint("\n".join(texts))

    # What runs.

    def partials(self, rows: DataFrame) -> DataFrame:
        """Partial results of rows that `input` gave. A group may come several times: there is no exchange."""
        spark = rows.sparkSession
        with active(spark):
            plan = as_columns(spark, _physical(rows), self._columns)
            for node in reversed([self._partial, *self._below_partial]):
                plan = node.withNewChildren(scala_seq(spark, [plan]))
            return frame_over(spark, plan, self._named(spark, plan))

    def merged(self, partials: DataFrame, order: str) -> DataFrame:
        """One partial result of each group.

        Args:
            partials: of `schema`, and a column by whose values they come one after the other.
            order: that column's name.
        """
        spark = partials.sparkSession
        if self.is_ordered and self.key:
            keys = [F.col(quote(name)) for name in self.key]
            partials = partials.repartition(*keys).sortWithinPartitions(*keys, order)
        elif self.is_ordered:
            partials = partials.coalesce(1).sortWithinPartitions(order)
        with active(spark):
            child = self._over_partials(spark, partials)
            plan = self._merge.withNewChildren(scala_seq(spark, [child]))
            return frame_over(spark, plan, self._named(spark, plan))

    def joined(self, partials: DataFrame) -> DataFrame:
        """Partial results, each with the window of the session that it belongs to: Spark's own step for that.

        Args:
            partials: of `schema`, and other columns, which stay as they are.
        """
        spark = partials.sparkSession
        with active(spark):
            plan = _physical(partials)
            output = dict(zip(partials.columns, items_of(plan.output()), strict=True))
            keys = scala_seq(spark, [output[name] for name in self.key])
            node = self._java.org.apache.spark.sql.execution.aggregate.UpdatingSessionsExec
            updated = node(False, self._java.scala.Option.apply(None), keys, output[self.session], plan)
            return frame_over(spark, updated, [alias(spark, each, name) for name, each in output.items()])

    def results(self, merged: DataFrame) -> DataFrame:
        """The query's rows, of partial results of which each group has one."""
        spark = merged.sparkSession
        with active(spark):
            plan = self._over_partials(spark, merged)
            for node in reversed(self._results_steps(spark)):
                plan = node.withNewChildren(scala_seq(spark, [plan]))
            output = items_of(plan.output())
            return frame_over(spark, plan, [alias(spark, *pair) for pair in zip(output, self._names_of(output), strict=True)])

    def _names_of(self, results: list[Any]) -> list[str]:
        """Give the names of the query's columns to results: the optimizer calls `K` k, where that is the column's name below."""
        return [*self._names, *(str(each.name()) for each in results[len(self._names) :])]

    def _results_steps(self, spark: SparkSession) -> list[Any]:
        """The nodes that make results, outermost first, as of now."""
        steps = [*self._above_final, self._final]
        return self._varying.renewed(spark, steps) if self.results_vary else steps

    def _over_partials(self, spark: SparkSession, partials: DataFrame) -> Any:
        rows = partials.select(*(quote(name) for name in self.schema.names))
        return as_columns(spark, _physical(rows), items_of(self._partial.output()))

    def _named(self, spark: SparkSession, plan: Any) -> list[Any]:
        return [alias(spark, each, name) for each, name in zip(items_of(plan.output()), self.schema.names, strict=True)]


def mergeable(frame: DataFrame) -> tuple[MergeableAggregate | None, str | None]:
    """A streaming query as a mergeable aggregate; or None, and why it is none."""
    try:
        return MergeableAggregate(frame), None
    except UnsupportedError as error:
        return None, str(error)


def _is_its_buffer(spark: SparkSession, function: Any) -> bool:
    """Whether a function's result is its buffer."""
    declarative = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
    buffers = items_of(function.aggBufferAttributes())
    is_declarative = is_instance_of(spark.sparkContext._gateway, function, declarative)
    return is_declarative and len(buffers) == 1 and bool(function.evaluateExpression().semanticEquals(buffers[0]))


def _source(result: Any) -> Any:
    """The id of the attribute that a result only shows, if it does."""
    shown = result.child() if _kind(result) == "Alias" else result
    return shown.exprId() if _kind(shown) == "AttributeReference" else None


def _cut(plan: Any) -> tuple[list[Any], Any]:
    """An analysed query's aggregate, and the nodes above it, outermost first."""
    above = []
    while _kind(plan) != "Aggregate":
        if _kind(plan) not in ("Project", "SubqueryAlias"):
            raise UnsupportedError(f"the query has no aggregate on top, but {plan.nodeName()}.")
        above.append(plan)
        (plan,) = items_of(plan.children())
    return above, plan


def _refuse_what_has_no_partial_results(spark: SparkSession, aggregate: Any) -> None:
    if plan_has_watermark(aggregate.child()) and not _has_session(aggregate):
        raise UnsupportedError("a watermark says when Spark forgets a group.")
    subqueries = java_of(spark).org.apache.spark.sql.catalyst.expressions.SubqueryExpression
    if any(subqueries.hasSubquery(each) for each in items_of(aggregate.expressions())):
        raise UnsupportedError("a subquery stands in it, which would be evaluated anew for each step.")
    if _has_rows_of_no_session(aggregate):
        raise UnsupportedError("subtotals over all sessions stand beside them. Leave session_window out of ROLLUP and its like.")
    if any(_reads_time_of_day(each) for each in items_of(aggregate.aggregateExpressions())):
        raise UnsupportedError("an argument reads current_time(), which no column can hold.")


def is_by_session(frame: DataFrame) -> bool:
    """Whether an analysed query is an aggregate by session windows."""
    try:
        return _has_session(_cut(analysed_plan(frame))[1])
    except UnsupportedError:
        return False


def _has_session(aggregate: Any) -> bool:
    return any(_is_session(each) for each in items_of(aggregate.groupingExpressions()))


def _has_rows_of_no_session(aggregate: Any) -> bool:
    """Whether ROLLUP, CUBE or GROUPING SETS leave sessions out: Spark's own step between the two fails then, in a batch too."""
    below = aggregate.child()
    if _kind(below) != "Expand":
        return False
    places = [at for at, each in enumerate(items_of(below.output())) if _is_session(each)]
    rows = items_of(below.projections())
    return any(_kind(row.apply(at)) == "Literal" for row in rows for at in places)


def _is_session(expression: Any) -> bool:
    """Whether a grouping expression is what Spark's analysis has made of a call of session_window."""
    return _kind(expression) == "AttributeReference" and bool(expression.metadata().contains(_SESSION))


def _reads_time_of_day(result: Any) -> bool:
    """Whether current_time() stands in an aggregate call of a result."""
    if _kind(result) == "AggregateExpression":
        return reads_time_of_day(result)
    return any(_reads_time_of_day(each) for each in items_of(result.children()))


def _columns_read(spark: SparkSession, aggregate: Any) -> list[Any]:
    """The columns below an aggregate that it reads; of one that reads none, any."""
    read = aggregate.references()
    output = items_of(aggregate.child().output())
    return [each for each in output if read.contains(each)] or output[:1]


def _chain(node: Any) -> list[Any]:
    """A plan of nodes with one child each, from the top."""
    chain = [node]
    while children := items_of(chain[-1].children()):
        if len(children) > 1:
            raise UnsupportedError(f"its results go through {chain[-1].nodeName()}.")
        chain += children
    return chain


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _physical(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().sparkPlan()


def _can_be_stored(kind: Any) -> bool:
    """Whether Delta has columns of a type, as Spark's JSON tells it."""
    if isinstance(kind, str):
        return _STORED.fullmatch(kind) is not None
    inner: Sequence[Any] = {
        "struct": lambda: [field["type"] for field in kind["fields"]],
        "array": lambda: [kind["elementType"]],
        "map": lambda: [kind["keyType"], kind["valueType"]],
    }.get(kind["type"], lambda: [""])()
    return all(_can_be_stored(each) for each in inner)
