"""Spark's and Delta's private side, reached through Py4J: sessions, catalogs, analysed plans.

Code that may have to change with a Spark version is in this folder, and in the few modules that ruff's exceptions in
pyproject.toml name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, GroupedData, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.column import Column
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import OutputMode
from sqlext.quoting import case_sensitive_names, zoned
from sqlext.redaction import ADDRESS_NAMES, Redaction, of_application
from sqlext.spark.column_types import in_order, merges
from sqlext.spark.failures import condition_of, reason_of
from sqlext.spark.java import field_of, items_of, java_of, scala_seq, texts_of

_CLOCK_TIME = re.compile(r"\d+\s*[a-z]+")


def parse_duration(spark: SparkSession, text: str) -> timedelta:
    """Parse a duration with Spark's own parsers: an interval, a time in the format of Spark's settings, ISO 8601, or a plain 0.

    Raises:
        ValueError: no parser accepts it, or it has months, which have no fixed length.
    """
    word = text.strip()
    jvm = java_of(spark)
    if word == "0":
        return timedelta()
    if word[:1] in ("P", "p"):
        return _length(milliseconds=_call(jvm.java.time.Duration.parse, word).toMillis())
    utf8 = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(word)
    try:
        interval = _call(jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval, utf8)
    except ValueError:
        if not _CLOCK_TIME.fullmatch(word.lower()):
            raise
        unit = jvm.java.util.concurrent.TimeUnit.MICROSECONDS
        with suppress(ValueError):  # `2 min`, `30s`: Spark's settings take them, its interval parser does not
            return timedelta(
                microseconds=_call(jvm.org.apache.spark.network.util.JavaUtils.timeStringAs, "".join(word.split()), unit)
            )
        raise
    months, days, microseconds = (_field(spark, interval, name) for name in ("months", "days", "microseconds"))
    if months:
        raise ValueError("months and years have no fixed length")
    return _length(days=days, microseconds=microseconds)


def _length(**parts: int) -> timedelta:
    try:
        return timedelta(**parts)
    except OverflowError:
        raise ValueError(f"it is longer than {timedelta.max.days} days") from None


def _field(spark: SparkSession, java_object: Any, name: str) -> int:
    helper = java_of(spark).py4j.reflection.ReflectionEngine()
    return int(helper.getFieldValue(java_object, helper.getField(java_object, name)))


def _call(method: Any, *args: Any) -> Any:
    try:
        return method(*args)
    except (CapturedException, Py4JJavaError) as error:
        raise ValueError(reason_of(error)) from None


def check_streaming(frame: DataFrame, mode: OutputMode, way_out: str = "") -> None:
    """Check that Spark can run a streaming query, before anything is created for it.

    Args:
        frame: the query, analysed.
        mode: its output mode.
        way_out: for the error's message.

    Raises:
        UnsupportedError: it cannot; the message has Spark's reason.
    """
    jvm = java_of(frame.sparkSession)
    plan = frame._jdf.queryExecution().analyzed()
    java_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.name.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(plan, java_mode)
    except (CapturedException, Py4JJavaError) as error:
        raise UnsupportedError(f"Spark cannot run this query as a stream: {reason_of(error)} {way_out}".rstrip()) from None


def check_subqueries(frame: DataFrame) -> None:
    """Raise UnsupportedError if Spark evaluates a subquery by a join of streams that the query itself does not have.

    Spark does so where a subquery compares its rows with the outer ones by anything but equality: it first joins the subquery
    with the outer values, read from the stream a second time. Otherwise the error would only appear when the stream starts.
    """
    analysed = frame._jdf.queryExecution().analyzed()
    pattern = java_of(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()
    if not analysed.containsPattern(pattern):
        return
    optimized = frame.sparkSession._jsparkSession.sessionState().optimizer().execute(analysed)
    if _stream_joins(optimized) > _stream_joins(analysed):
        raise UnsupportedError(
            "Spark evaluates a subquery of this query by joining the stream with itself, and cannot do that for a stream. "
            "Compare the subquery's columns with the stream's only by =, or join the table."
        )


def _stream_joins(plan: Any) -> int:
    children = items_of(plan.children())
    is_join = plan.getClass().getSimpleName() == "Join" and all(child.isStreaming() for child in children)
    return is_join + sum(map(_stream_joins, children))


def analysed_plan(frame: DataFrame) -> Any:
    """Return the analysed plan of a query with its CTEs inlined, except those that may only be evaluated once."""
    inline = java_of(frame.sparkSession).org.apache.spark.sql.catalyst.optimizer.InlineCTE
    return inline(False, False).apply(frame._jdf.queryExecution().analyzed())


def has_watermark(frame: DataFrame) -> bool:
    """Return whether a query has a watermark anywhere, also inside views."""
    return plan_has_watermark(frame._jdf.queryExecution().analyzed())


def plan_has_watermark(plan: Any) -> bool:
    """Return whether a Catalyst plan has a watermark anywhere, also in the subqueries of its expressions."""
    if plan.getClass().getSimpleName() == "EventTimeWatermark":
        return True
    return any(plan_has_watermark(each) for below in (plan.children(), plan.subqueries()) for each in items_of(below))


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Return a DataFrame of a logical plan, such as one that a parser returns."""
    return DataFrame(java_of(spark).org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def alias(spark: SparkSession, child: Any, name: str, like: Any = None) -> Any:
    """Return a named Catalyst expression, with a new id or that of the attribute `like`."""
    java = java_of(spark)
    expressions = java.org.apache.spark.sql.catalyst.expressions
    nothing, none = scala_seq(spark, []), java.scala.Option.apply(None)
    identity = expressions.NamedExpression.newExprId() if like is None else like.exprId()
    return expressions.Alias(child, name, identity, nothing, none, nothing)


def refusal_of(spark: SparkSession, plan: Any) -> str | None:
    """Return why Spark's analysis refuses a parsed statement, as `condition_of` does; None for one that it takes.

    A command is not run. A failure of Spark's own that has no condition is named by its Java class.
    """
    skip = java_of(spark).org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    try:
        spark._jsparkSession.sessionState().executePlan(plan, skip).assertAnalyzed()
    except AnalysisException as error:
        return condition_of(error)
    except Py4JJavaError as error:
        return str(error.java_exception.getClass().getName())
    return None


def are_names_case_sensitive(spark: SparkSession) -> bool:
    """Return whether names are case-sensitive in a session, by Spark's setting."""
    return bool(spark._jsparkSession.sessionState().conf().caseSensitiveAnalysis())


@contextmanager
def names_as_in(spark: SparkSession) -> Iterator[None]:
    """Let `quoting.fold` follow a session's case sensitivity on this thread."""
    with case_sensitive_names(are_names_case_sensitive(spark)):
        yield


def bare_clone(spark: SparkSession) -> SparkSession:
    """Return an independent copy of a session as Spark makes it: in its default catalog, and without session variables."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def clone_session(spark: SparkSession, has_variables: bool = True) -> SparkSession:
    """Return an independent copy of a session, with its catalog, database, settings, temporary views and functions.

    Args:
        has_variables: whether it has the session's variables.
    """
    copy = bare_clone(spark)
    catalogs, own = (each._jsparkSession.sessionState().catalogManager() for each in (spark, copy))
    name, default = str(catalogs.currentCatalog().name()), str(copy.conf.get("spark.sql.defaultCatalog"))
    if name != default:  # which the copy has not asked for anything yet
        own.setCurrentCatalog(name)
    is_in_sparks_own = name == default == "spark_catalog"  # whose database Spark's clone has
    if not is_in_sparks_own and [*own.currentNamespace()] != [*catalogs.currentNamespace()]:
        own.setCurrentNamespace(catalogs.currentNamespace())
    if has_variables and not catalogs.tempVariableManager().isEmpty():
        field_of(own.tempVariableManager(), "variables").addAll(field_of(catalogs.tempVariableManager(), "variables"))
    return copy


@contextmanager
def outside_of_any_query(spark: SparkSession) -> Iterator[None]:
    """Let Java threads that start within the block belong to no statement.

    A thread inherits the local properties of the thread that starts it, among them the id of the SQL execution. The jobs of a
    stream that a statement started would belong to that statement for ever: canceled with it, and kept by Spark's scheduler (in
    its `activeQueryToJobs`) after it has ended.
    """
    context, properties = spark.sparkContext._jsc.sc(), java_of(spark).java.util.Properties
    before = context.getLocalProperties()
    context.setLocalProperties(properties())
    try:
        yield
    finally:
        context.setLocalProperties(before)


@contextmanager
def described(spark: SparkSession, description: str, group: str = "") -> Iterator[None]:
    """Describe, for Spark's UI, the jobs that this thread starts within the block.

    Args:
        spark: the session.
        description: the text that Spark's UI shows.
        group: the id of the flow or job they belong to; empty: they stay in the thread's group.
    """
    context = spark.sparkContext
    new = {"spark.job.description": description, **({"spark.jobGroup.id": group} if group else {})}
    before: dict[str, Any] = {key: context.getLocalProperty(key) for key in new}
    for key, value in new.items():
        context.setLocalProperty(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread: nodes and rules of physical plans take their settings from it."""
    sessions = java_of(spark).org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def drop_temporary_views(session: SparkSession) -> None:
    """Drop all temporary views of a session; those of the session that it is a clone of stay."""
    session._jsparkSession.sessionState().catalog().clearTempTables()


def is_temporary_view(spark: SparkSession, name: str) -> bool:
    """Return whether the session has a temporary view of that name."""
    catalog = spark._jsparkSession.sessionState().catalog()
    return bool(catalog.getTempView(name).isDefined())


def is_temporary_function(spark: SparkSession, name: str) -> bool:
    """Return whether the session has a function of that name that is in no catalog."""
    identifier = java_of(spark).org.apache.spark.sql.catalyst.FunctionIdentifier(name)
    return bool(spark._jsparkSession.sessionState().catalog().isTemporaryFunction(identifier))


def variable(spark: SparkSession, name: str) -> str | None:
    """Return type and value of a session variable, as DECLARE VARIABLE takes them; None if there is no such variable."""
    parts = scala_seq(spark, [name if are_names_case_sensitive(spark) else name.lower()])
    found = spark._jsparkSession.sessionState().catalogManager().tempVariableManager().get(parts)
    if not found.isDefined():
        return None
    value = found.get().currentValue()
    return f"{zoned(str(value.dataType().sql()))} DEFAULT {value.sql()}"


def default_location(spark: SparkSession, name: tuple[str, ...]) -> str | None:
    """Return where Spark's own catalog would put a new managed table; None for a table of another catalog."""
    if name[0] != "spark_catalog":
        return None
    identifier = java_of(spark).org.apache.spark.sql.catalyst.TableIdentifier
    some = java_of(spark).scala.Option.apply
    catalog = spark._jsparkSession.sessionState().catalog()
    return str(catalog.defaultTablePath(identifier(name[2], some(name[1]))).toString())


def catalog_location(spark: SparkSession, name: tuple[str, ...]) -> str | None:
    """Return where a table lies, as Spark's own catalog has it; None: it has no such table, or another catalog would have it."""
    if name[0] != "spark_catalog":
        return None
    java, option = java_of(spark), java_of(spark).scala.Option.apply
    identifier = java.org.apache.spark.sql.catalyst.TableIdentifier(name[2], option(name[1]))
    catalog = spark._jsparkSession.sessionState().catalog()
    try:
        found = catalog.getTablesByName(scala_seq(spark, [identifier]))
    except AnalysisException:  # there is no such schema, as in delta.`/folder`
        return None
    return None if found.isEmpty() else str(java.org.apache.hadoop.fs.Path(found.head().location()).toString())


def can_store(frame: DataFrame, column: str, ddl: str) -> bool:
    """Return whether Spark's ANSI store assignment accepts a column for a target column of type `ddl`."""
    return bool(_cast(frame).canANSIStoreAssign(*_types(frame, column, ddl)))


def can_hold(frame: DataFrame, column: str, ddl: str) -> bool:
    """Return whether the type `ddl` can hold all values of a column, of numbers perhaps not all digits."""
    return bool(_cast(frame).canUpCast(*_types(frame, column, ddl)))


def keeps_apart(frame: DataFrame, column: str, ddl: str) -> bool:
    """Return whether the type `ddl` can hold all values of a column, different ones by different values."""
    if not can_hold(frame, column, ddl):
        return False
    return not merges(in_order(frame, {column: ddl}).schema[column].dataType, DataType.fromDDL(ddl))


def _cast(frame: DataFrame) -> Any:
    return java_of(frame.sparkSession).org.apache.spark.sql.catalyst.expressions.Cast


def _types(frame: DataFrame, column: str, ddl: str) -> tuple[Any, Any]:
    jvm = java_of(frame.sparkSession)
    to_type = jvm.org.apache.spark.sql.types.DataType.fromDDL(f"c {ddl}").apply("c").dataType()
    return in_order(frame, {column: ddl})._jdf.schema().apply(column).dataType(), to_type


def is_ascending(frame: DataFrame, order: SparkColumn) -> bool:
    """Return whether an order by an expression over a DataFrame is Spark's default, ASC NULLS FIRST."""
    (found,) = items_of(frame.sort(order)._jdf.queryExecution().analyzed().order())
    return (str(found.direction().sql()), str(found.nullOrdering().sql())) == ("ASC", "NULLS FIRST")


def have_order(frame: DataFrame) -> list[bool]:
    """Return for each column whether Spark can compare its values."""
    ordering = java_of(frame.sparkSession).org.apache.spark.sql.catalyst.expressions.RowOrdering
    return [bool(ordering.isOrderable(field.dataType())) for field in frame._jdf.schema().fields()]


def collation_in(kind: DataType) -> str | None:
    """Return a collation in a type, which is not Spark's own; None: there is none."""
    if isinstance(kind, StringType):
        return None if kind == StringType() else str(kind.collation)
    inner = [each.dataType for each in kind] if isinstance(kind, StructType) else []
    inner += [kind.elementType] if isinstance(kind, ArrayType) else []
    inner += [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    return next((found for each in inner if (found := collation_in(each)) is not None), None)


def release(frame: DataFrame) -> None:
    """Free the blocks of a locally checkpointed DataFrame."""
    frame._jdf.queryExecution().analyzed().rdd().unpersist(False)


@contextmanager
def held(rows: DataFrame) -> Iterator[DataFrame]:
    """Yield rows as blocks on the executors, computed once, and free these afterwards."""
    blocks = rows.localCheckpoint(eager=True)
    try:
        yield blocks
    finally:
        release(blocks)


@contextmanager
def observed(rows: DataFrame, *metrics: SparkColumn) -> Iterator[tuple[DataFrame, Mapping[str, Any]]]:
    """Yield rows as blocks on the executors, and named aggregates of them, by name; free the blocks afterwards.

    The aggregates come from the job that computes the rows: another query for them would take longer than most refreshes' rows.
    """
    observation = Observation()
    with held(rows.observe(observation, *metrics)) as blocks:
        yield blocks, observation.get


@contextmanager
def counted(rows: DataFrame) -> Iterator[tuple[DataFrame, int]]:
    """Yield rows as blocks on the executors, computed once, and their number; free the blocks afterwards."""
    with observed(rows, F.count(F.lit(1)).alias("rows")) as (blocks, found):
        yield blocks, int(found["rows"])


def grouping_of(grouped: GroupedData) -> tuple[DataFrame, list[tuple[str, Column]], str]:
    """Return the parts of `df.groupBy(..)`.

    Returns:
        `df`; each grouping expression, with its text; and `GroupBy`, or `Rollup`, `Cube`, `Pivot` and the like.
    """
    jvm = java_of(grouped.session)
    column_of = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    expressions = items_of(grouped._jgd.groupingExprs())
    columns = [(each.sql().replace("`", ""), Column(column_of(each))) for each in expressions]
    kind = re.search(r"type: (\w+)", str(grouped._jgd.toString()).rpartition("], ")[2])
    return grouped._df, columns, kind.group(1) if kind else ""


def redaction(spark: SparkSession) -> Redaction:
    """Return Spark's redaction rules in a session."""
    return Redaction(of_application().names, spark.conf.get("spark.sql.redaction.options.regex", ADDRESS_NAMES) or ADDRESS_NAMES)


def all_settings(spark: SparkSession) -> dict[str, str]:
    """Return all settings of a session, including those of its application."""
    return texts_of(spark, spark._jsparkSession.sessionState().conf().getAllConfs())


def application_settings(spark: SparkSession) -> dict[str, str]:
    """Return all settings of the application."""
    return texts_of(spark, spark.sparkContext._jsc.sc().conf().getAll())
