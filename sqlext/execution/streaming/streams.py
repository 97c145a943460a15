"""The streams of a query as Spark sees them, and how much of each a micro-batch reads.

The amount is set twice: by options of the relation, for a query's first micro-batch, and by the read limits of the running query,
which hold from the next micro-batch that is planned. So a query need not be restarted to change its pace.

Relies on Spark's private side: reads and copies Catalyst plans, and reaches into StreamExecution. Checked with Spark 4.2.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.clock import Deadline
from sqlext.errors import WaitTimeoutError
from sqlext.quoting import fold
from sqlext.spark.added_branches import name_of
from sqlext.spark.java import items_of, java_array, java_of, scala_seq, texts_of
from sqlext.spark.jvm import frame_of, names_as_in
from sqlext.spark.state_size import StateSize, of_report
from sqlext.spark.waiting_clock import WaitingClock


class SourceKind(StrEnum):
    """The kind of a source; the backlog of all kinds but OTHER can be measured, and their micro-batches can be sized."""

    DELTA = "delta"
    FILES = "files"
    KAFKA = "kafka"
    OTHER = "other"


_FIRST_LIMIT = {SourceKind.DELTA: 16 * 1024**2, SourceKind.FILES: 16 * 1024**2, SourceKind.KAFKA: 100_000}
"""The size of a first micro-batch in backlog, in bytes or offsets: seconds of work, from which the next one is sized."""
_LIMIT_OPTIONS = {
    SourceKind.DELTA: ("maxfilespertrigger", "maxbytespertrigger"),
    SourceKind.FILES: ("maxfilespertrigger", "maxbytespertrigger"),
    SourceKind.KAFKA: ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"),
}
_DELTA_DEFAULT_FILES = 1000  # DeltaOptions.MAX_FILES_PER_TRIGGER_OPTION_DEFAULT
_ALL = 2**31 - 1
_CTE_REFERENCE = "CTERelationRef"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class StreamLeaf:
    """One stream of an analysed query.

    Attributes:
        alias: the alias of the relation that contains it, in the form that `quoting.fold` returns.
        kind: the kind of its source.
        has_watermark: whether the query itself sets a watermark above it.
        options: the options of its reader; keys in lower case.
        location: the location of its table or files; empty for other sources.
        at: its index among the query's streams.
        name: the name of its offset in the checkpoint.
        is_named: whether the query gives it that name (IDENTIFIED BY); otherwise it is the index.
        relation: its Catalyst relation.
    """

    alias: str
    kind: SourceKind
    has_watermark: bool
    options: Mapping[str, str]
    location: str
    at: int
    name: str
    is_named: bool
    relation: Any

    @property
    def first_limit(self) -> float | None:
        """The size of a first micro-batch in backlog, in the source's unit; None: it cannot be limited."""
        return _FIRST_LIMIT.get(self.kind)


def leaves_of(frame: DataFrame, aliases: Collection[str]) -> tuple[StreamLeaf, ...]:
    """Return the streams of a query, in the order of their offsets.

    Args:
        frame: the query.
        aliases: the streams' aliases in the query.
    """
    found: list[StreamLeaf] = []
    with names_as_in(frame.sparkSession):
        _collect(frame.sparkSession, frame._jdf.queryExecution().analyzed(), {fold(each) for each in aliases}, "", False, found)
    return tuple(found)


def _collect(spark: SparkSession, plan: Any, aliases: set[str], alias: str, has_watermark: bool, found: list[StreamLeaf]) -> None:
    name = plan.getClass().getSimpleName()
    if not plan.isStreaming() or name == _CTE_REFERENCE:  # the CTE's own query is another child of the plan
        return
    if name == "SubqueryAlias" and (own := fold(str(plan.alias()))) in aliases:
        alias = own
    has_watermark = has_watermark or name == "EventTimeWatermark"
    children = items_of(plan.children())
    for child in children:
        _collect(spark, child, aliases, alias, has_watermark, found)
    if not children and not any(each.relation.equals(plan) for each in found):  # Spark reads equal relations once
        kind, options, location = _described(spark, plan, name)
        given, at = name_of(plan), len(found)
        found.append(StreamLeaf(alias, kind, has_watermark, options, location, at, given or str(at), given is not None, plan))


def _described(spark: SparkSession, relation: Any, name: str) -> tuple[SourceKind, dict[str, str], str]:
    """Return the kind, options and location of a stream."""
    if name == "StreamingRelation":
        source = relation.dataSource()
        options = {key.lower(): value for key, value in texts_of(spark, source.options()).items()}
        of_table = source.catalogTable()
        location = options.get("path", "")
        if of_table.isDefined():  # as a path: the URI escapes what a path has as it is, such as a space
            location = str(java_of(spark).org.apache.hadoop.fs.Path(of_table.get().location()).toString())
        if str(source.className()).lower() == "delta":
            return SourceKind.DELTA, options, location
        is_of_files = str(relation.sourceName()).startswith("FileSource[")
        return (SourceKind.FILES if is_of_files else SourceKind.OTHER), options, location
    if name == "StreamingRelationV2":
        options = {str(k).lower(): str(v) for k, v in dict(relation.extraOptions().asCaseSensitiveMap()).items()}
        is_kafka = str(relation.sourceName()).lower() == "kafka"
        return (SourceKind.KAFKA if is_kafka else SourceKind.OTHER), options, ""
    return SourceKind.OTHER, {}, ""


def limited(frame: DataFrame, leaves: Sequence[StreamLeaf], size: float | None) -> DataFrame:
    """Return a query whose first micro-batch reads `size` times the first limit of each stream; None: all that is available."""
    spark = frame.sparkSession
    copies = [(leaf.relation, _limited_relation(spark, leaf, size)) for leaf in leaves if leaf.first_limit is not None]
    return with_relations(frame, copies)


def with_relations(frame: DataFrame, copies: Sequence[tuple[Any, Any]]) -> DataFrame:
    """Return a query with some of its relations replaced by others, given in pairs."""
    if not copies:
        return frame
    plan = frame._jdf.queryExecution().analyzed()
    return frame_of(frame.sparkSession, _replaced(frame.sparkSession, plan, copies))


def _replaced(spark: SparkSession, plan: Any, copies: Sequence[tuple[Any, Any]]) -> Any:
    if not plan.isStreaming():
        return plan
    children = items_of(plan.children())
    if children:
        return plan.withNewChildren(scala_seq(spark, [_replaced(spark, child, copies) for child in children]))
    return next((copy for relation, copy in copies if relation.equals(plan)), plan)


def _limited_relation(spark: SparkSession, leaf: StreamLeaf, size: float | None) -> Any:
    limit = {} if size is None or leaf.first_limit is None else {leaf.kind: str(max(int(leaf.first_limit * size), 1))}
    ours: dict[str, str] = {}
    match leaf.kind:
        case SourceKind.DELTA:
            ours = {"maxBytesPerTrigger": limit[leaf.kind]} if limit else {"maxFilesPerTrigger": str(_ALL)}
        case SourceKind.FILES:
            ours = {"maxBytesPerTrigger": limit[leaf.kind]} if limit else {}
        case SourceKind.KAFKA:
            ours = {"maxOffsetsPerTrigger": limit[leaf.kind]} if limit else {}
    if leaf.relation.getClass().getSimpleName() == "StreamingRelationV2":
        return _copied(leaf.relation, {4: _java_options(spark, leaf, ours)})
    source = leaf.relation.dataSource()
    options = source.options()
    own = [key for key in texts_of(spark, options) if key.lower() in _LIMIT_OPTIONS[leaf.kind]]
    if own and not ours and leaf.kind is SourceKind.FILES:
        ours = {"maxFilesPerTrigger": str(_ALL)}  # without any limit, latestFirst leaves old files out
    for key in own:
        options = options.removed(key)
    for key, value in ours.items():
        options = options.updated(key, value)
    return _copied(leaf.relation, {1: _copied(source, {7: options})})


def _java_options(spark: SparkSession, leaf: StreamLeaf, ours: Mapping[str, str]) -> Any:
    java = java_of(spark)
    changed = java.java.util.HashMap(leaf.relation.extraOptions().asCaseSensitiveMap())
    for key in list(changed):
        if str(key).lower() in _LIMIT_OPTIONS[leaf.kind]:
            changed.remove(key)
    for key, value in ours.items():
        changed.put(key, value)
    return java.org.apache.spark.sql.util.CaseInsensitiveStringMap(changed)


def _copied(case_class: Any, changed: Mapping[int, Any]) -> Any:
    """Return a copy of a Scala case class with other values in some of its fields, by position from 1."""
    places = range(1, case_class.productArity() + 1)
    return case_class.copy(*(changed[at] if at in changed else getattr(case_class, f"copy$default${at}")() for at in places))


# The running query.


def set_backlog_limits(spark: SparkSession, query: StreamingQuery, leaves: Sequence[StreamLeaf], size: float | None) -> None:
    """Let the next micro-batches read `size` times the first limit of each stream; None: all that is available."""
    limits = java_of(spark).org.apache.spark.sql.connector.read.streaming.ReadLimit
    by_place: dict[int, Any] = {}
    for leaf in leaves:
        if leaf.first_limit is None:
            continue
        if size is None:
            by_place[leaf.at] = limits.allAvailable()
            continue
        amount = max(int(leaf.first_limit * size), 1)
        match leaf.kind:
            case SourceKind.DELTA:
                by_place[leaf.at] = java_of(spark).org.apache.spark.sql.delta.sources.ReadMaxBytes(amount)
            case SourceKind.FILES:
                by_place[leaf.at] = limits.maxBytes(amount)
            case _:
                by_place[leaf.at] = limits.maxRows(amount)
    _set_limits(query, by_place)


def set_own_limits(spark: SparkSession, query: StreamingQuery, leaves: Sequence[StreamLeaf]) -> None:
    """Let the next micro-batches read what the user's own options allow."""
    _set_limits(query, {leaf.at: _own_limit(spark, leaf) for leaf in leaves if leaf.first_limit is not None})


def set_interval(spark: SparkSession, query: StreamingQuery, interval: timedelta | None) -> None:
    """Set the time between the starts of the next micro-batches; None: they start as data arrives.

    Spark takes the interval at the query's start only, but reads this field after each micro-batch.
    """
    milliseconds = (interval or timedelta()) // timedelta(milliseconds=1)
    executor = _execution(query).triggerExecutor()
    _field(executor.getClass(), "intervalMs").set(executor, java_of(spark).java.lang.Long.valueOf(milliseconds))


class HeldTrigger:
    """A hold on a query that runs as data arrives: it looks for input only on request. Not thread-safe.

    The query's trigger waits by a clock, which Spark reads at the query's start and after each micro-batch. The hold puts one in
    its place that waits until it is told to go on.

    Raises:
        WaitTimeoutError: the query has not reached its first micro-batch in time.
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        self._spark = spark
        self._query = query
        self._executor = _trigger_executor(query)
        self._field = _field(self._executor.getClass(), "clock")
        self._own = self._field.get(self._executor)
        self._clock = WaitingClock(spark)
        set_interval(spark, query, timedelta(milliseconds=1))  # without one, it does not wait by its clock
        self._field.set(self._executor, self._clock.java)

    def fire(self) -> None:
        """Look for input once."""
        self._clock.go_on()

    def let_go(self) -> None:
        """Let the query look for input by itself again."""
        set_interval(self._spark, self._query, None)
        self._field.set(self._executor, self._own)
        self._clock.go_on()


def _trigger_executor(query: StreamingQuery) -> Any:
    """Return the query's trigger executor, which the query's own thread creates."""
    deadline = Deadline(_START_SECONDS)
    while (found := _execution(query).triggerExecutor()) is None:
        if deadline.has_passed:
            raise WaitTimeoutError(f"The streaming query has not started within {_START_SECONDS:.0f} s.")
        time.sleep(_POLL_SECONDS)
    return found


def forget_last_look(spark: SparkSession, query: StreamingQuery, seconds: float) -> bool:
    """Forget that no input was found, so that `has_found_nothing` is about a look that begins after this call.

    Args:
        spark: any session.
        query: a query that has started.
        seconds: how long to wait for the end of a look that goes on; False is returned if it has not ended then.
    """
    execution = _execution(query)
    looking = execution.awaitProgressLock()
    if not looking.tryLock(int(seconds * 1000), java_of(spark).java.util.concurrent.TimeUnit.MILLISECONDS):
        return False
    try:
        getattr(execution, "noNewData_$eq")(False)
    finally:
        looking.unlock()
    return True


@dataclass(frozen=True)
class QueryReport:
    """Spark's reports of a query's progress, as far as they are new.

    Attributes:
        at: the time of the newest one, as Spark writes it.
        rows: the number of input rows by micro-batch, of those that had some.
        watermark: the newest watermark; None: there is none.
    """

    at: str
    rows: Mapping[int, int]
    watermark: str | None
    state: StateSize | None


def new_report(query: StreamingQuery, known: str, batch: int) -> QueryReport | None:
    """Return what Spark has reported of a query; None: nothing new.

    Args:
        query: a query that has started.
        known: the time of the newest report that is known.
        batch: the newest micro-batch that is known; Spark keeps the reports of a hundred, of which the later ones are read.
    """
    java_query: Any = query._jsq
    newest = java_query.lastProgress()
    if newest is None or (at := str(newest.timestamp())) == known:
        return None
    rows: dict[int, int] = {}
    reports = java_query.recentProgress()
    for place in range(len(reports) - 1, -1, -1):
        if (number := int(reports[place].batchId())) <= batch:
            break
        if count := int(reports[place].numInputRows()):  # an idle query reports under the number of the batch that is to come
            rows[number] = count
    watermark = newest.eventTime().get("watermark")
    return QueryReport(at, rows, None if watermark is None else str(watermark), of_report(newest))


def listing_seconds(query: StreamingQuery) -> float:
    """Return how long a query's sources took to find their newest offsets, in the last look that Spark has reported."""
    java_query: Any = query._jsq
    newest = java_query.lastProgress()
    found = None if newest is None else newest.durationMs().get("latestOffset")
    return 0.0 if found is None else int(found) / 1000


def has_found_nothing(query: StreamingQuery) -> bool:
    """Return whether the last look for input found none."""
    return bool(_execution(query).noNewData())


def _field(of: Any, name: str) -> Any:
    field = of.getDeclaredField(name)
    field.setAccessible(True)
    return field


def _execution(query: StreamingQuery) -> Any:
    java_query: Any = query._jsq
    return java_query.streamingQuery()


def _set_limits(query: StreamingQuery, by_place: Mapping[int, Any]) -> None:
    execution = _execution(query)
    limits = execution.uniqueSources()
    for at, source in enumerate(items_of(execution.sources())):
        if at in by_place:
            limits = limits.updated(source, by_place[at])
    getattr(execution, "uniqueSources_$eq")(limits)


def _own_limit(spark: SparkSession, leaf: StreamLeaf) -> Any:
    java = java_of(spark)
    limits = java.org.apache.spark.sql.connector.read.streaming.ReadLimit
    delta = java.org.apache.spark.sql.delta.sources
    given = {key: leaf.options[key] for key in _LIMIT_OPTIONS[leaf.kind] if key in leaf.options}
    files = limits.maxFiles(int(given["maxfilespertrigger"])) if "maxfilespertrigger" in given else None
    size = given.get("maxbytespertrigger")
    amount = int(java.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(size)) if size else 0
    match leaf.kind:
        case SourceKind.DELTA if size and files:
            return delta.CompositeLimit(delta.ReadMaxBytes(amount), files, delta.ReadMinFiles(-1))
        case SourceKind.DELTA:
            return delta.ReadMaxBytes(amount) if size else files or limits.maxFiles(_DELTA_DEFAULT_FILES)
        case SourceKind.FILES:
            return limits.maxBytes(amount) if size else files or limits.allAvailable()
    return _own_kafka_limit(spark, limits, given)


def _own_kafka_limit(spark: SparkSession, limits: Any, given: Mapping[str, str]) -> Any:
    """Return the limit of the user's own options, as Spark's KafkaMicroBatchStream.getDefaultReadLimit does."""
    most, least = given.get("maxoffsetspertrigger"), given.get("minoffsetspertrigger")
    if not least:
        return limits.maxRows(int(most)) if most else limits.allAvailable()
    java = java_of(spark)
    delay = int(java.org.apache.spark.network.util.JavaUtils.timeStringAsMs(given.get("maxtriggerdelay", "15m")))
    lower = limits.minRows(int(least), delay)
    if not most:
        return lower
    both = (lower, limits.maxRows(int(most)))
    return limits.compositeLimit(java_array(spark, java.org.apache.spark.sql.connector.read.streaming.ReadLimit, both))
