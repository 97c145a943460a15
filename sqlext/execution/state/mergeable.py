"""A streaming aggregate taken apart, so that a table can hold its state.

Spark plans an aggregate in two steps. The first makes a buffer for each function from rows (`update`), the second makes results
from buffers (`merge`, `evaluate`): Catalyst's DeclarativeAggregate and TypedImperativeAggregate. Between the steps, a buffer is a
set of columns, the partial result of a group. These columns are stored: a micro-batch gives partial results, and a flush merges
them with the stored ones and makes results from both. All three are pieces of Spark's own physical plan, so types, nulls,
overflows and FILTER are Spark's own, for every function that it can run in two steps. Values that change from run to run, such as
the current time, are not fixed by this planning (`spark/varying.py`).

In an aggregate by session windows, a partial result has the window of its own rows until `joined` has joined those that touch, as
Spark does between the steps.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.errors import UnsupportedError
from sqlext.execution.state.aggregate_shape import (
    columns_read,
    has_session,
    is_session,
    refuse_what_has_no_partial_results,
)
from sqlext.execution.state.event_time import EventTime
from sqlext.plan.job_graph import INTERNAL_PREFIX, OutputMode
from sqlext.quoting import quote, zoned
from sqlext.spark.distinct_aggregates import (
    NO_SET,
    SET_COLUMN,
    DistinctAggregate,
    PartialsByValue,
    key_column,
    partial_column,
    without_sets,
)
from sqlext.spark.failures import SPARK_ERRORS, kinds_of, reason_of
from sqlext.spark.java import items_of, java_of, scala_object, scala_seq
from sqlext.spark.jvm import active, alias, analysed_plan, check_streaming, frame_of
from sqlext.spark.physical_plan import as_columns, fingerprint, frame_over, physical_plan, unknown_rows
from sqlext.spark.two_steps import TwoSteps, can_be_stored, is_its_buffer, kind_of, source_of, split_top, two_steps
from sqlext.spark.varying import Results, with_moments_below

logger = logging.getLogger(__name__)

_DELAY = "spark.watermarkDelayMs"
"""The key in a column's metadata that marks the event time of a watermark, and windows over it."""
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
"""SQL that merges two results of a function, where the result is the function's whole state; others need Spark's merge step."""
_ROWS = f"{INTERNAL_PREFIX}rows"


def _types_below(function: Any) -> list[Any]:
    """Return the types of what a function reads, where the values of its buffers do not have types that tell them.

    Bytes and hashes of an INT are others than those of the same BIGINT, and unscaled decimals are without their scale.
    """
    below = [*_below(function)]
    is_told = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate" in kinds_of(function)
    is_told = is_told and not any(kind_of(each) == "UnscaledValue" for each in below)
    return [] if is_told else [each.dataType() for each in below]


def _below(expression: Any) -> Iterator[Any]:
    for child in items_of(expression.children()):
        yield child
        yield from _below(child)


class MergeableAggregate:
    """An aggregate taken apart; see the module's docstring. Immutable and thread-safe.

    Args:
        frame: the analysed streaming query: an aggregate, and columns computed from its results.
        counts_rows: whether partial results are to have the number of a group's rows.

    Attributes:
        input: the streaming query of the rows that are aggregated.
        key: the names of the columns that identify the group of a partial result.
        schema: the schema of partial results.
        distinct: the rows of distinct values; None: it has none, or keeps them in partial results, a cell for each group.
        sets: the aggregate without its functions over distinct values, if these are rows.
        buffered: the schema of the rows that `partials` makes: partial results, and distinct values if they are rows.
        is_ordered: whether a function depends on the order of its input, such as first().
        session: the key column that is a session window; empty if there is none.
        event_time: the event time among the keys by which a watermark passes groups; None: none ever does.
        results_stored: for each column of `schema`, the output column with the same value, as for count and sum; empty unless all
            have one.
        results_vary: whether results differ from one evaluation to the next, so that only changed groups get new ones.
        additions: for each function, SQL that merges two partial results, {0} and {1}; empty unless all functions have such SQL.
        rows_counted: the column of partial results with the number of a group's rows; empty unless they are counted.
        fingerprint: the same as long as stored partial results can be read.

    Raises:
        UnsupportedError: it cannot be taken apart; the message has the reason.
    """

    def __init__(self, frame: DataFrame, counts_rows: bool = False) -> None:
        spark = frame.sparkSession
        self._java = java_of(spark)
        self._names = list(frame.columns)
        above, aggregate = split_top(analysed_plan(frame))
        refuse_what_has_no_partial_results(spark, aggregate, above)
        is_by_session = has_session(aggregate)
        with active(spark):
            read = columns_read(spark, aggregate)
            aggregate, moments = with_moments_below(spark, aggregate)
            self._columns = [*read, *(each.toAttribute() for each in moments)]
            self.input = self._make_input(spark, aggregate.child(), [*read, *(each.child() for each in moments)])
            self.sets: DistinctAggregate | None = None
            if counts_rows:
                above, aggregate = self._with_count(spark, above, aggregate)
            self._by_value = None if is_by_session else self._plan_by_value(spark, above, aggregate)
            if self._by_value is None:
                self._plan(spark, above, aggregate)
                if not self._functions and self._final.groupingExpressions().isEmpty():
                    self._plan(spark, above, self._with_count(spark, (), aggregate)[1])
        self.schema, self.key = self._partial_schema()
        self.rows_counted = self._find_rows_counted() if counts_rows else ""
        self.distinct = None if self._by_value is None else self._by_value.rows
        self.buffered = self.schema if self.distinct is None else self.distinct.schema
        self.session = self._find_session()
        self.event_time = None if is_by_session else self._find_event_time()
        if is_by_session and not self.session:
            raise UnsupportedError("Spark does not join its sessions between the two steps.")
        if not self.schema.fields:
            raise UnsupportedError("none of its results depends on the rows, so there is nothing to store.")
        self.results_stored = self._find_results_stored(spark)
        known = tuple(_ADDED.get(kind_of(function), "") for function in self._functions)
        self.additions = known if self.results_stored and all(known) else ()
        self.fingerprint = self._make_fingerprint(str(spark.version))

    def _make_input(self, spark: SparkSession, below: Any, columns: Sequence[Any]) -> DataFrame:
        """Return the streaming query of the rows that are aggregated."""
        named = [alias(spark, column, f"c{at}") for at, column in enumerate(columns)]
        project = self._java.org.apache.spark.sql.catalyst.plans.logical.Project
        rows = frame_of(spark, project(scala_seq(spark, named), below))
        check_streaming(rows, OutputMode.APPEND)
        return rows

    def _with_count(self, spark: SparkSession, above: Sequence[Any], aggregate: Any) -> tuple[list[Any], Any]:
        """Return the nodes above an aggregate, and the aggregate, with one more result: the number of its rows."""
        catalyst = self._java.org.apache.spark.sql.catalyst.expressions
        one = catalyst.Literal.create(1, self._java.org.apache.spark.sql.types.DataTypes.IntegerType)
        count = catalyst.aggregate.Count(scala_seq(spark, [one])).toAggregateExpression()
        named = alias(spark, count, _ROWS)
        results = [*items_of(aggregate.aggregateExpressions()), named]
        child, hint = aggregate.child(), aggregate.hint()
        changed = aggregate.copy(aggregate.groupingExpressions(), scala_seq(spark, results), child, hint)
        return [self._showing(spark, node, named.toAttribute()) for node in above], changed

    def _showing(self, spark: SparkSession, node: Any, column: Any) -> Any:
        """Return a node with one more column in its output, which its child has."""
        if kind_of(node) != "Project":
            return node
        return node.copy(scala_seq(spark, [*items_of(node.projectList()), column]), node.child())

    def _plan_by_value(self, spark: SparkSession, above: list[Any], aggregate: Any) -> PartialsByValue | None:
        """Plan the query without its functions over sets; None: it has none, or its sets are kept in cells."""
        if not aggregate.child().deterministic():  # repeated after a crash, rows may be others than those whose values are stored
            return None
        try:
            distinct = without_sets(spark, aggregate)
            if distinct is None:
                return None
            steps = self._plan(spark, above, distinct.aggregate, distinct.columns)
            found = PartialsByValue(spark, distinct, self._columns, steps)
            self.sets = distinct
            return found
        except (UnsupportedError, *SPARK_ERRORS) as error:
            logger.info("distinct values are kept in cells: %s", reason_of(error))
            return None

    def _plan(self, spark: SparkSession, above: list[Any], aggregate: Any, others: Sequence[Any] = ()) -> TwoSteps:
        """Let Spark plan the query over unknown rows, and find the two steps in its plan.

        Args:
            others: columns of the rows beside those of the input.
        """
        self._varying, self._new = Results(), tuple(others)
        columns = scala_seq(spark, [*self._columns, *others])
        logical = aggregate.withNewChildren(scala_seq(spark, [unknown_rows(spark, columns)]))
        for node in reversed(above):
            logical = node.withNewChildren(scala_seq(spark, [logical]))
        steps = two_steps(spark, self._varying.hold(spark, logical))
        self._is_by_session, self._above_final = steps.is_by_session, steps.above_final
        self._final, self._partial, self._below_partial = steps.final, steps.partial, steps.below_partial
        self._functions = [each.aggregateFunction() for each in items_of(self._final.aggregateExpressions())]
        self.is_ordered = any(kind_of(function) in _BY_ARRIVAL for function in self._functions)
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
        return steps

    def _make_merge(self, spark: SparkSession) -> Any:
        """Return the step between the two, which Spark itself uses for DISTINCT and for streams."""
        mode = scala_object(spark, "org.apache.spark.sql.catalyst.expressions.aggregate.PartialMerge")
        none = self._java.scala.Option.apply(None)
        final = self._final
        merged = [
            each.copy(each.aggregateFunction(), mode, False, none, each.resultId())
            for each in items_of(final.aggregateExpressions())
        ]
        buffers = [attribute for each in self._functions for attribute in items_of(each.inputAggBufferAttributes())]
        node = final.toSortAggregate() if self.is_ordered and kind_of(final) != "SortAggregateExec" else final
        results = scala_seq(spark, [*items_of(final.groupingExpressions()), *buffers])
        return self._changed(node, final.requiredChildDistributionExpressions(), scala_seq(spark, merged), results)

    def _changed(self, node: Any, distribution: Any, expressions: Any, results: Any) -> Any:
        """Return a step with another required distribution, or none, other modes of its functions, and other results."""
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
        has_collation = self._java.org.apache.spark.sql.util.SchemaUtils.hasNonUTF8BinaryCollation
        fields = []
        for at, attribute in enumerate(items_of(self._partial.output())):
            kind = json.loads(str(attribute.dataType().json()))
            if not can_be_stored(kind) or has_collation(attribute.dataType()):  # JSON leaves out that of a field
                raise UnsupportedError(f"a partial result has the type {attribute.dataType().sql()}, which a table cannot store.")
            name = key_column(at) if at < keys else partial_column(at - keys)
            fields.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
        schema = StructType.fromJson({"type": "struct", "fields": fields})
        return schema, tuple(schema.names[:keys])

    def _find_rows_counted(self) -> str:
        """Return the column of partial results with the number of a group's rows."""
        results = items_of(self._final.resultExpressions())
        source = next((source_of(each) for each in results if str(each.name()) == _ROWS), None)
        at = 0
        for each, function in zip(items_of(self._final.aggregateExpressions()), self._functions, strict=True):
            if each.resultAttribute().exprId().equals(source):
                return partial_column(at)
            at += int(function.aggBufferAttributes().length())
        raise UnsupportedError("Spark plans it without the number of its rows.")

    def _find_session(self) -> str:
        if not self._is_by_session:
            return ""
        grouping = items_of(self._final.groupingExpressions())
        return next(name for name, each in zip(self.key, grouping, strict=True) if is_session(each))

    def _find_event_time(self) -> EventTime | None:
        keys = zip(self.key, items_of(self._partial.output()), strict=False)  # which are its first columns
        found = {str(each.exprId()): name for name, each in keys if each.metadata().contains(_DELAY)}
        if len(found) > 1:
            raise UnsupportedError("it groups by several event times, and Spark takes only one for a watermark.")
        return next((EventTime(name, isinstance(self.schema[name].dataType, StructType)) for name in found.values()), None)

    def _find_results_stored(self, spark: SparkSession) -> tuple[str, ...]:
        if self.session:  # a session's row may be gone from the table when another row of the session arrives
            return ()
        final = self._final
        stored = [each.exprId() for each in items_of(final.groupingExpressions())]
        for each, function in zip(items_of(final.aggregateExpressions()), self._functions, strict=True):
            if self._above_final or not is_its_buffer(spark, function):
                return ()
            stored.append(each.resultAttribute().exprId())
        results = items_of(final.resultExpressions())
        shown = [(source_of(result), name) for result, name in zip(results, self._names_of(results), strict=True)]
        names = [next((name for source, name in shown if source is not None and source.equals(each)), "") for each in stored]
        return tuple(names) if all(names) and _ROWS not in names else ()

    def _make_fingerprint(self, version: str) -> str:
        """Return the fingerprint; partial results that are not results can only be read by the Spark version that made them."""
        made_by = [] if self.results_stored else [f"Spark {version}"]
        texts = [self.schema.json(), *(str(each.toString()) for each in (*self._functions, self._final.groupingExpressions()))]
        texts += made_by
        texts += [] if self.event_time is None else [f"passed by {self.event_time.name}"]  # groups may have left the state
        texts += [] if self._by_value is None else [self._by_value.text]
        texts += [str(kind.json()) for each in self._functions for kind in _types_below(each)]
        return fingerprint("\n".join(texts))

    def columns_of_functions(self) -> dict[int, tuple[str, ...]]:
        """Return the columns of partial results of each function, by the id of its results in the analysed query."""
        names = iter(self.schema.names[len(self.key) :])
        calls = zip(items_of(self._final.aggregateExpressions()), self._functions, strict=True)
        return {
            int(call.resultId().id()): tuple(next(names) for _ in items_of(function.inputAggBufferAttributes()))
            for call, function in calls
        }

    # At run time.

    def partials(self, rows: DataFrame) -> DataFrame:
        """Return rows of `buffered`: the partial results of rows from `input`, and their distinct values.

        A group or a value may occur several times: there is no exchange.
        """
        if self._by_value is None:
            return self._partials(rows, self._columns)
        found = self._by_value.partials(rows)
        return found if self.key else found.unionByName(self._of_no_rows(rows.sparkSession, found.schema))

    def _partials(self, rows: DataFrame, columns: Sequence[Any]) -> DataFrame:
        spark = rows.sparkSession
        with active(spark):
            plan = as_columns(spark, physical_plan(rows), columns)
            for node in reversed([self._partial, *self._below_partial]):
                plan = node.withNewChildren(scala_seq(spark, [plan]))
            return frame_over(spark, plan, self._named(spark, plan))

    def of_new(self, values: DataFrame, by: str) -> DataFrame:
        """Return the part of partial results that new distinct values make; see `PartialsByValue.of_new`."""
        if self._by_value is None:
            raise AssertionError("there are no distinct values")
        return self._by_value.of_new(values, by)

    def _of_no_rows(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Return the partial result of no rows, of an aggregate without GROUP BY: it has a result of these too."""
        columns = [*self._columns, *self._new]
        kinds = [zoned(str(each.dataType().sql())) for each in columns]
        none = spark.range(1).where("id < 0").selectExpr(*(f"CAST(NULL AS {kind}) AS c{at}" for at, kind in enumerate(kinds)))
        others = [F.lit(None).cast(each.dataType).alias(each.name) for each in schema if each.name not in self.schema.names]
        return self._partials(none, columns).select("*", *others).withColumn(SET_COLUMN, F.lit(NO_SET))

    def merged(self, partials: DataFrame, order: str) -> DataFrame:
        """Merge partial results into one for each group.

        Args:
            partials: rows of `schema`, and a column that defines their order.
            order: the name of that column.
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
        """Return partial results, each with the window of its session, by Spark's own step for that.

        Args:
            partials: rows of `schema`, and other columns, which stay as they are.
        """
        spark = partials.sparkSession
        with active(spark):
            plan = physical_plan(partials)
            output = dict(zip(partials.columns, items_of(plan.output()), strict=True))
            keys = scala_seq(spark, [output[name] for name in self.key])
            node = self._java.org.apache.spark.sql.execution.aggregate.UpdatingSessionsExec
            updated = node(False, self._java.scala.Option.apply(None), keys, output[self.session], plan)
            return frame_over(spark, updated, [alias(spark, each, name) for name, each in output.items()])

    def results(self, merged: DataFrame, with_key: bool = False) -> DataFrame:
        """Return the query's rows from partial results, one for each group.

        Args:
            with_key: whether each row has the key of its partial result, too, in the last columns.
        """
        spark = merged.sparkSession
        with active(spark):
            plan, key = self._over_partials(spark, merged), self.key if with_key else ()
            for node in reversed(self._results_steps(spark)):
                plan = (self._passing_key(spark, node) if with_key else node).withNewChildren(scala_seq(spark, [plan]))
            output = items_of(plan.output())
            names = [*self._names_of(output[: len(output) - len(key)]), *key]
            return frame_over(spark, plan, [alias(spark, *pair) for pair in zip(output, names, strict=True)])

    def _passing_key(self, spark: SparkSession, node: Any) -> Any:
        """Return a node that makes results, with the key as its last columns."""
        key = [each.toAttribute() for each in items_of(self._final.groupingExpressions())]
        if kind_of(node) == "ProjectExec":
            return node.copy(scala_seq(spark, [*items_of(node.projectList()), *key]), node.child())
        results = scala_seq(spark, [*items_of(node.resultExpressions()), *key])
        return self._changed(node, node.requiredChildDistributionExpressions(), node.aggregateExpressions(), results)

    def _names_of(self, results: list[Any]) -> list[str]:
        """Return the query's names for result columns: the optimizer calls `K` k, if that is the column's name below."""
        return [*self._names, *(str(each.name()) for each in results[len(self._names) :])]

    def _results_steps(self, spark: SparkSession) -> list[Any]:
        """Return the nodes that make results, outermost first, with the current time."""
        steps = [*self._above_final, self._final]
        return self._varying.renewed(spark, steps) if self.results_vary else steps

    def _over_partials(self, spark: SparkSession, partials: DataFrame) -> Any:
        rows = partials.select(*(quote(name) for name in self.schema.names))
        return as_columns(spark, physical_plan(rows), items_of(self._partial.output()))

    def _named(self, spark: SparkSession, plan: Any) -> list[Any]:
        return [alias(spark, each, name) for each, name in zip(items_of(plan.output()), self.schema.names, strict=True)]


def mergeable(frame: DataFrame, counts_rows: bool = False) -> tuple[MergeableAggregate | None, str | None]:
    """Return a streaming query as a mergeable aggregate; or None, and the reason why it is not one."""
    try:
        return MergeableAggregate(frame, counts_rows), None
    except UnsupportedError as error:
        return None, str(error)
