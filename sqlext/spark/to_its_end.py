"""Streams read as bounded (FLIP-331): the current content of a source, read as a batch.

A table is simply read without STREAM. For a view over `readStream`, each leaf of its plan has a source and options, from which
the batch relation is made.

Relies on Spark's private side: reads and builds Catalyst plans. Checked with Spark 4.2.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sqlext.errors import UnsupportedError
from sqlext.spark.java import items_of, java_of, scala_seq, texts_of, transformed

_SUBQUERIES = ("ScalarSubquery", "ListQuery", "Exists", "LateralSubquery", "FunctionTableSubqueryArgumentExpression")
_STARTS = ("startingversion", "startingtimestamp")
_OF_CHANGES = ("readchangefeed", "readchangedata")


def read_to_its_end(spark: SparkSession, plan: Any) -> Any:
    """Replace the streams of a plan by batch relations.

    Raises:
        UnsupportedError: a source has no end, or Spark cannot read it as a batch.
    """
    plan = _with_bounded_subqueries(spark, plan)
    children = items_of(plan.children())
    if children:
        bounded = [read_to_its_end(spark, child) for child in children]
        is_changed = any(one is not other for one, other in zip(children, bounded, strict=True))
        return plan.withNewChildren(scala_seq(spark, bounded)) if is_changed else plan
    if not plan.isStreaming():
        return plan
    kind = plan.getClass().getSimpleName()
    if kind == "StreamingRelation":
        return _with_columns_of(spark, plan, _of_data_source(spark, plan.dataSource()))
    if kind == "StreamingRelationV2":
        return _with_columns_of(spark, plan, _of_table(spark, plan))
    raise UnsupportedError(
        f"This stream ({plan.getClass().getSimpleName()}) cannot be read to its end. GLOBAL WINDOW END OF STREAM reads tables, "
        "and views over readStream of files, Delta tables or Kafka."
    )


def _with_bounded_subqueries(spark: SparkSession, plan: Any) -> Any:
    """Replace the streams in the subqueries of a single node: scalar subqueries, IN, EXISTS."""
    has_subquery = java_of(spark).org.apache.spark.sql.catalyst.expressions.SubqueryExpression.hasSubquery
    if not any(has_subquery(each) for each in items_of(plan.expressions())):
        return plan

    def bounded(expression: Any) -> Any:
        is_subquery = expression.getClass().getSimpleName() in _SUBQUERIES
        return expression.withNewPlan(read_to_its_end(spark, expression.plan())) if is_subquery else expression

    return transformed(plan.transformExpressions, bounded)


def _of_data_source(spark: SparkSession, source: Any) -> Any:
    """Return the batch relation with the stream's format, options and schema."""
    _check_starts_at_first(spark, source)
    if source.catalogTable().isDefined():
        return spark._jsparkSession.table(source.catalogTable().get().identifier().quotedString()).queryExecution().analyzed()
    reader = spark._jsparkSession.read().format(source.className()).options(source.options())
    if (
        source.userSpecifiedSchema().isDefined() and source.className().lower() != "delta"
    ):  # Delta knows its schema, and accepts none
        reader = reader.schema(source.userSpecifiedSchema().get())
    return reader.load().queryExecution().analyzed()


def _check_starts_at_first(spark: SparkSession, source: Any) -> None:
    """See that a stream of a Delta table begins with its first rows: a batch would read these, too, whatever its options say."""
    options = {key.lower(): (key, value) for key, value in texts_of(spark, source.options()).items()}
    of_changes = (options.get(key, ("", ""))[1] for key in _OF_CHANGES)
    is_of_changes = any(value.lower() == "true" for value in of_changes)  # which a batch can read from a version on
    if str(source.className()).lower() != "delta" or is_of_changes:
        return
    for name, value in (options[key] for key in _STARTS if key in options):
        raise UnsupportedError(
            f"`{name}` = {value} of a view over readStream has no meaning here: a query with GLOBAL WINDOW END OF STREAM reads "
            "all that the table holds now. Leave it out of the view, or filter the rows."
        )


def _of_table(spark: SparkSession, stream: Any) -> Any:
    jvm = java_of(spark)
    connector = jvm.org.apache.spark.sql.connector.catalog
    table = stream.table()
    if table.capabilities().contains(connector.TableCapability.BATCH_READ):
        v2 = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
        return v2.create(table, stream.catalog(), stream.identifier(), stream.extraOptions())
    if stream.v1Relation().isDefined():
        return read_to_its_end(spark, stream.v1Relation().get())
    raise UnsupportedError(
        f"The source `{stream.sourceName()}` has no end, so a query with GLOBAL WINDOW END OF STREAM over it would never end. "
        "Read a table, files or Kafka, or leave the clause out."
    )


def _with_columns_of(spark: SparkSession, stream: Any, relation: Any) -> Any:
    """Return the relation with the stream's column ids, which the plan above refers to."""
    jvm = java_of(spark)
    catalyst = jvm.org.apache.spark.sql.catalyst
    there = {str(column.name()): column for column in items_of(relation.output())}
    named = [
        catalyst.expressions.Alias(
            there[str(column.name())],
            column.name(),
            column.exprId(),
            column.qualifier(),
            jvm.scala.Option.apply(column.metadata()),
            scala_seq(spark, []),
        )
        for column in items_of(stream.output())
    ]
    return catalyst.plans.logical.Project(scala_seq(spark, named), relation)
