"""A flow's queries as Spark analyses them: the streaming queries, and the query above the aggregates that those maintain."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.errors import SchemaError, UnsupportedError, did_you_mean
from sqlext.execution.delta import target
from sqlext.execution.streaming.streams import SourceKind, leaves_of
from sqlext.plan.job_graph import QUALIFIES, FlowPlan, HybridSource, OutputMode
from sqlext.quoting import fold, quote_parts
from sqlext.spark import delta_tables, jvm

_ORDERED = re.compile(r"tinyint|smallint|int|bigint|decimal\(.*\)|string|date|timestamp|timestamp_ntz|boolean|binary")
"""Types whose values all have a place in one order, and survive a conversion to text and back."""
_PARTIAL = ("startingVersion", "startingTimestamp", "ignoreDeletes", "ignoreChanges", "skipChangeCommits", "excludeRegex")
"""Options of a Delta stream that skip rows which the table has at its end, or read rows which it does not have."""


@dataclass(frozen=True)
class QueryAnalysis:
    """A plan's queries, analysed and not run.

    Attributes:
        streams: one DataFrame for each streaming query, in the plan's order.
        above: the query above, over empty relations with the streams' schemas; None if there is none.
        written: the columns that Spark gives the user's query; None if only our rules understand it, as they do
            first_value(v ORDER BY ts).
        prerequisites: one DataFrame for each bounded query that comes before the streams.
    """

    streams: tuple[DataFrame, ...]
    above: DataFrame | None
    written: StructType | None
    prerequisites: tuple[DataFrame, ...] = ()

    @property
    def output(self) -> DataFrame:
        """The query that makes the target's rows."""
        return self.streams[0] if self.above is None else self.above


def analyse(session: SparkSession, plan: FlowPlan) -> QueryAnalysis:
    """Analyse a plan's queries in a session of their own, which gets a view for each prerequisite and maintained aggregate.

    Raises:
        AnalysisException: Spark refuses a query.
        SchemaError: a prerequisite's result cannot be stored under its columns' names.
    """
    prerequisites = []
    for prerequisite in plan.prerequisites:
        result = session.sql(prerequisite.sql)
        prerequisites.append(result)
        target.check_names(result.columns)
        session.createDataFrame([], result.schema).createOrReplaceTempView(prerequisite.name)
    for hybrid in plan.hybrids:
        show_hybrid(session, hybrid)
    streams = tuple(_analysed(session, query.sql, plan.having) for query in plan.queries)
    above = None
    if plan.above:
        empty = {q.name: session.createDataFrame([], frame.schema) for q, frame in zip(plan.queries, streams, strict=True)}
        above = over(session, empty, plan.above)
    return QueryAnalysis(streams, above, _schema_as_written(session, plan), tuple(prerequisites))


def check_types(analysis: QueryAnalysis) -> None:
    """Raise UnsupportedError if a column of a plan has another type than the same column of the query as written.

    Rules keep types. This is checked once more because a column of another type is a silently wrong result.
    """
    written = analysis.written
    if written is None:
        return
    fields = [field for field in analysis.output.schema if field.name != QUALIFIES]
    if len(fields) != len(written):
        raise UnsupportedError(
            f"The query has the columns {', '.join(written.names)} in Spark, but would have "
            f"{', '.join(field.name for field in fields)} in sqlext. Name the columns in the select list, and please report this."
        )
    for expected, found in zip(written, fields, strict=True):
        if expected.dataType.simpleString() != found.dataType.simpleString():
            raise UnsupportedError(
                f"The column `{expected.name}` is {expected.dataType.simpleString()} in Spark, but would be "
                f"{found.dataType.simpleString()} in sqlext. Cast it in the query, and please report this."
            )


def _schema_as_written(session: SparkSession, plan: FlowPlan) -> StructType | None:
    """Return the columns that Spark gives the user's query.

    Raises:
        AnalysisException: Spark refuses a query that has only Spark's own syntax.
    """
    try:
        return session.sql(plan.written).schema
    except AnalysisException as error:
        if plan.is_sparks_own and not _is_about_streams(error):
            raise
        return None


def _is_about_streams(error: AnalysisException) -> bool:
    """Return whether Spark may refuse only the stream, as in a subquery: a batch query may do what a stream may not."""
    condition = error.getCondition() or "_LEGACY"
    return "STREAM" in condition or condition.startswith("_LEGACY")


def _analysed(session: SparkSession, text: str, having: str) -> DataFrame:
    try:
        return session.sql(text)
    except AnalysisException as error:
        if having and error.getCondition() == "DATATYPE_MISMATCH.DATA_DIFF_TYPES":
            # HAVING c has become a column coalesce(c, FALSE), for which Spark has another error than for HAVING
            parameters = error.getMessageParameters() or {}
            is_condition = re.fullmatch(r'"coalesce\((.*), false\)"', parameters.get("sqlExpr", ""), re.DOTALL)
            kind = re.fullmatch(r'\("(.*)" or "BOOLEAN"\)', parameters.get("dataType", ""))
            if is_condition is not None and kind is not None:
                raise SchemaError(
                    f"HAVING takes a condition, but {having} is {kind[1]}. Compare it with a value: HAVING {having} > 0."
                ) from None
        raise


def with_unique_names(frame: DataFrame) -> DataFrame:
    """Return a query with unique column names: two calls such as count(*) and count(1) have the same name in Spark."""
    names: list[str] = []
    for name in frame.columns:
        taken, number, unique = {each.lower() for each in names}, 1, name
        while unique.lower() in taken:
            number += 1
            unique = f"{name} {number}"
        names.append(unique)
    return frame if names == frame.columns else frame.toDF(*names)


def show_hybrid(session: SparkSession, hybrid: HybridSource) -> None:
    """Create the view of a hybrid source, over its first relation.

    Raises:
        SchemaError: its relations have different columns, or `on` names none of them.
        UnsupportedError: `on` cannot determine which rows of a relation were read before.
    """
    first, *others = (session.sql(relation.sql) for relation in hybrid.relations)
    names = first.columns
    for number, frame in enumerate(others, 2):
        if [(fold(f.name), f.dataType) for f in frame.schema] != [(fold(f.name), f.dataType) for f in first.schema]:
            raise SchemaError(
                f"The relations of a hybrid source must have the same columns. The first one of `{hybrid.alias}` has "
                f"{first.schema.simpleString()}, but number {number} has {frame.schema.simpleString()}."
            )
    if hybrid.on and fold(hybrid.on) not in map(fold, names):
        raise SchemaError(f"`{hybrid.alias}` has no column `{hybrid.on}`, which `on` names.{did_you_mean(hybrid.on, names)}")
    if hybrid.on:
        _check_boundary(session, hybrid, [first, *others[:-1]])
    first.createOrReplaceTempView(hybrid.name)


def _check_boundary(session: SparkSession, hybrid: HybridSource, frames: Sequence[DataFrame]) -> None:
    """Check that the greatest value in each table, once it is read to its end, will be the greatest value of the rows read.

    Args:
        session: the session of the query.
        hybrid: the hybrid source.
        frames: the streams of all relations but the last.
    """
    (kind,) = {f.dataType.simpleString() for f in frames[0].schema if fold(f.name) == fold(hybrid.on)}
    if not _ORDERED.fullmatch(kind):
        raise UnsupportedError(
            f"`on` of `{hybrid.alias}` names `{hybrid.on}` of type {kind}, whose values cannot all be put in one order, "
            "such as NaN. Name a column of integers, decimals, strings or times, or leave `on` out and filter the source."
        )
    for frame, relation in zip(frames, hybrid.relations, strict=False):
        leaves = leaves_of(frame, ())
        if any(leaf.kind is not SourceKind.DELTA for leaf in leaves) or not _is_delta_table(session, relation.name):
            raise UnsupportedError(
                f"`on` of `{hybrid.alias}` needs Delta tables before the last relation: only for those is it known which rows "
                "were read. Leave `on` out, or filter the source."
            )
        given = {option for leaf in leaves for option in leaf.options}
        if partial := next((name for name in _PARTIAL if name.lower() in given), None):
            raise UnsupportedError(
                f"`{partial}` of {quote_parts(relation.name)} changes which rows are read, but `on` of `{hybrid.alias}` needs "
                "all rows of the table to be read. Leave one of the two out, or filter the source."
            )


def _is_delta_table(session: SparkSession, name: tuple[str, ...]) -> bool:
    """Return whether a relation is a table, and not a view over one, which may leave out more rows."""
    try:
        delta_tables.named(session, quote_parts(name))
    except AnalysisException:
        return False
    return not (len(name) == 1 and jvm.is_temporary_view(session, name[0]))


def over(session: SparkSession, relations: Mapping[str, DataFrame], above: str) -> DataFrame:
    """Return the query above, over these DataFrames of that session."""
    for name, frame in relations.items():
        frame.createOrReplaceTempView(name)
    return session.sql(above)


def durable_because(frame: DataFrame, mode: OutputMode) -> str | None:
    """Return why a query's buffer cannot be in memory only; None if it can.

    Rows that memory loses are restored by running a micro-batch again in complete mode. Spark must be able to do so, and its
    state must still have every group: a watermark evicts some.
    """
    if mode is OutputMode.APPEND:
        return "rows are appended, as files of the table"
    if jvm.has_watermark(frame):
        return "a watermark evicts groups from Spark's state, from which lost rows would have to be restored"
    try:
        jvm.check_streaming(frame, OutputMode.COMPLETE)
    except UnsupportedError as error:
        return f"lost rows could not be restored: {error}"
    return None
