"""A flow's queries as Spark analyses them: the streaming ones, and the one above over what those maintain."""

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
from sqlext.spark import jvm

_ORDERED = re.compile(r"tinyint|smallint|int|bigint|decimal\(.*\)|string|date|timestamp|timestamp_ntz|boolean|binary")
"""Types of which every value has its place in the order, and comes back from a text as it was."""
_PARTIAL = ("startingVersion", "startingTimestamp", "ignoreDeletes", "ignoreChanges", "skipChangeCommits", "excludeRegex")
"""Options of a Delta stream that leave rows out which are in the table at its end, or take in rows that are not."""


@dataclass(frozen=True)
class QueryAnalysis:
    """A plan's queries, analysed and not run.

    Attributes:
        streams: one a streaming query, in the plan's order.
        above: over empty relations of the streams' schemas; None when there is no query above.
        written: the columns that Spark gives the user's query; None where only our rules make sense of it, as of
            first_value(v ORDER BY ts).
    """

    streams: tuple[DataFrame, ...]
    above: DataFrame | None
    written: StructType | None

    @property
    def output(self) -> DataFrame:
        """The query that makes the target's rows."""
        return self.streams[0] if self.above is None else self.above


def analyse(session: SparkSession, plan: FlowPlan) -> QueryAnalysis:
    """Analyse a plan's queries in a session that nobody else uses: it gets a view for each prerequisite and maintained aggregate.

    Raises:
        AnalysisException: Spark's, when it refuses one.
        SchemaError: a prerequisite's result cannot be stored under its columns' names.
    """
    for prerequisite in plan.prerequisites:
        result = session.sql(prerequisite.sql)
        target.check_names(result.columns)
        session.createDataFrame([], result.schema).createOrReplaceTempView(prerequisite.name)
    for hybrid in plan.hybrids:
        show_hybrid(session, hybrid)
    streams = tuple(_analysed(session, query.sql, plan.having) for query in plan.queries)
    above = None
    if plan.above:
        empty = {q.name: session.createDataFrame([], frame.schema) for q, frame in zip(plan.queries, streams, strict=True)}
        above = over(session, empty, plan.above)
    return QueryAnalysis(streams, above, _schema_as_written(session, plan))


def check_types(analysis: QueryAnalysis) -> None:
    """Raise UnsupportedError when a column of a plan has another type than the same column of the query as written.

    Rules keep types. That is looked at once more, since a column of another type is an answer that is wrong without a word.
    """
    written = analysis.written
    if written is None:
        return
    fields = [field for field in analysis.output.schema if field.name != QUALIFIES]
    if len(fields) != len(written):
        raise UnsupportedError(
            f"The query has the columns {', '.join(written.names)} in Spark, and would have "
            f"{', '.join(field.name for field in fields)} here. Name them in its select list, and please report this."
        )
    for expected, found in zip(written, fields, strict=True):
        if expected.dataType.simpleString() != found.dataType.simpleString():
            raise UnsupportedError(
                f"The column `{expected.name}` is {expected.dataType.simpleString()} in Spark, and would be "
                f"{found.dataType.simpleString()} here. Cast it in the query, and please report this."
            )


def _schema_as_written(session: SparkSession, plan: FlowPlan) -> StructType | None:
    """Return the columns that Spark gives the user's query.

    Raises:
        AnalysisException: Spark's, when it refuses a query that none but its own syntax is in.
    """
    try:
        return session.sql(plan.written).schema
    except AnalysisException as error:
        if plan.is_sparks_own and not _is_about_streams(error):
            raise
        return None


def _is_about_streams(error: AnalysisException) -> bool:
    """Whether Spark's reason may be that a stream is read, as in a subquery: a batch query may do what a stream may not."""
    condition = error.getCondition() or "_LEGACY"
    return "STREAM" in condition or condition.startswith("_LEGACY")


def _analysed(session: SparkSession, text: str, having: str) -> DataFrame:
    try:
        return session.sql(text)
    except AnalysisException as error:
        if having and error.getCondition() == "DATATYPE_MISMATCH.DATA_DIFF_TYPES":
            # HAVING c is a column coalesce(c, FALSE) here, which Spark refuses with another error than HAVING
            parameters = error.getMessageParameters() or {}
            is_condition = re.fullmatch(r'"coalesce\((.*), false\)"', parameters.get("sqlExpr", ""), re.DOTALL)
            kind = re.fullmatch(r'\("(.*)" or "BOOLEAN"\)', parameters.get("dataType", ""))
            if is_condition is not None and kind is not None:
                raise SchemaError(
                    f"HAVING takes a condition, and {having} is {kind[1]}. Compare it with something: HAVING {having} > 0."
                ) from None
        raise


def with_unique_names(frame: DataFrame) -> DataFrame:
    """A query whose columns have names of their own: two calls such as count(*) and count(1) are called the same."""
    names: list[str] = []
    for name in frame.columns:
        taken, number, unique = {each.lower() for each in names}, 1, name
        while unique.lower() in taken:
            number += 1
            unique = f"{name} {number}"
        names.append(unique)
    return frame if names == frame.columns else frame.toDF(*names)


def show_hybrid(session: SparkSession, hybrid: HybridSource) -> None:
    """Make the view of a hybrid source, over its first relation.

    Raises:
        SchemaError: its relations have other columns, or `on` is none of them.
        UnsupportedError: it cannot be told by `on` which rows of a relation were read before.
    """
    first, *others = (session.sql(relation.sql) for relation in hybrid.relations)
    names = first.columns
    for number, frame in enumerate(others, 2):
        if [(fold(f.name), f.dataType) for f in frame.schema] != [(fold(f.name), f.dataType) for f in first.schema]:
            raise SchemaError(
                f"The relations of a hybrid source have the same columns. The first one of `{hybrid.alias}` has "
                f"{first.schema.simpleString()}, number {number} has {frame.schema.simpleString()}."
            )
    if hybrid.on and fold(hybrid.on) not in map(fold, names):
        raise SchemaError(f"`{hybrid.alias}` has no column `{hybrid.on}`, which `on` names.{did_you_mean(hybrid.on, names)}")
    if hybrid.on:
        _check_boundary(session, hybrid, [first, *others[:-1]])
    first.createOrReplaceTempView(hybrid.name)


def _check_boundary(session: SparkSession, hybrid: HybridSource, frames: Sequence[DataFrame]) -> None:
    """See that the greatest value among the rows of each table, as it is when it was read to its end, is that of the rows read.

    Args:
        frames: the streams of all relations but the last.
    """
    (kind,) = {f.dataType.simpleString() for f in frames[0].schema if fold(f.name) == fold(hybrid.on)}
    if not _ORDERED.fullmatch(kind):
        raise UnsupportedError(
            f"`on` of `{hybrid.alias}` names `{hybrid.on}`, which is {kind}: not all its values have a place in one "
            "order, as NaN has none. Name a column of whole numbers, decimals, texts or times, or leave it out and put "
            "a filter over the source."
        )
    for frame, relation in zip(frames, hybrid.relations, strict=False):
        leaves = leaves_of(frame, ())
        if any(leaf.kind is not SourceKind.DELTA for leaf in leaves) or not _is_delta_table(session, relation.name):
            raise UnsupportedError(
                f"`on` of `{hybrid.alias}` needs Delta tables before the last relation: of others it is not known which rows "
                "were read. Leave it out, or put a filter over the source."
            )
        given = {option for leaf in leaves for option in leaf.options}
        if partial := next((name for name in _PARTIAL if name.lower() in given), None):
            raise UnsupportedError(
                f"`{partial}` of {quote_parts(relation.name)} leaves rows out, and `on` of `{hybrid.alias}` takes all rows of "
                "the table for read. Leave one of the two out, or put a filter over the source."
            )


def _is_delta_table(session: SparkSession, name: tuple[str, ...]) -> bool:
    """Whether a relation is a table, and no view over one, of whose rows more may be left out."""
    try:
        jvm.delta_table(session, quote_parts(name))
    except AnalysisException:
        return False
    return not (len(name) == 1 and jvm.is_temporary_view(session, name[0]))


def over(session: SparkSession, relations: Mapping[str, DataFrame], above: str) -> DataFrame:
    """The query above, over these DataFrames of that session."""
    for name, frame in relations.items():
        frame.createOrReplaceTempView(name)
    return session.sql(above)


def durable_because(frame: DataFrame, mode: OutputMode) -> str | None:
    """Why a query's buffer cannot be in memory only; None when it can.

    What memory loses comes back by running a micro-batch again in complete mode. Spark must be able to, and its state must
    still have every group: a watermark evicts some.
    """
    if mode is OutputMode.APPEND:
        return "rows are appended, not buffered"
    if jvm.has_watermark(frame):
        return "a watermark takes groups out of Spark's state, from which lost rows would have to come back"
    try:
        jvm.check_streaming(frame, OutputMode.COMPLETE)
    except UnsupportedError as error:
        return f"lost rows could not be brought back: {error}"
    return None
