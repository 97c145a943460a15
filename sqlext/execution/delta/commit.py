"""The commits of a flow: rows merged, replaced or appended in one Delta commit each, once however often they are tried."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType, VariantType

from sqlext.execution.delta import key_ranges
from sqlext.execution.delta.delta_log import TableSize
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.plan.cut import Cut
from sqlext.plan.flow_spec import StreamSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.quoting import quote, quote_parts
from sqlext.spark import failures, jvm
from sqlext.spark.settings import OWN_JOINS, session_settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 10
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
_BROADCAST_ROWS = 600_000  # this many rows of numbers and a short key reach every executor in about a second
_BROADCAST_WIDE_ROWS = 5_000  # for rows with arrays, strings and the like
FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for few rows: adaptive execution would discover that they are few, at the cost of a Spark job for each stage."""
SMALL_TABLE_BYTES = 16 * 1024**2
_SMALL_TABLE = {  # rewriting its files is less work than marking rows in them
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}
_WIDE = (ArrayType, BinaryType, MapType, StringType, VariantType)
TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class CommitInfo:
    """The description of a flow's commit, in Delta's userMetadata under `sqlext`.

    Attributes:
        flow, flow_id, epoch: the flow that committed, and the epoch of its driver.
        first_batch, last_batch: the micro-batches in it; the last one is the transaction's version.
        rows: the number of changed groups or new rows.
        reason: why it was committed now.
        watermark: the event time up to which input is complete, if the query has one.
        oldest_arrival: when the oldest of the rows was buffered.
        read_version: the version of the table from which the rows were computed, if nobody may change the table in between.
        violations: how many of its rows violate each constraint, if there are constraints.
        groups_ended: the number of groups whose state has ended, if groups have a time to live.
        rows_dropped: the number of input rows that were dropped since their groups had ended before, in that case.
        application: of the transaction; empty: the flow's id. A flow that was restored to a savepoint has another one.
        read: how far the flow has read its sources; None: it reads some that have no versions, or some at several versions.
    """

    flow: str
    flow_id: str
    epoch: int
    first_batch: int
    last_batch: int
    rows: int
    reason: str
    watermark: datetime | None = None
    oldest_arrival: datetime | None = None
    read_version: int | None = None
    read: Cut | None = None
    violations: Mapping[str, int] | None = None
    groups_ended: int | None = None
    rows_dropped: int | None = None
    application: str = ""

    @property
    def app_id(self) -> str:
        """The application of the transaction."""
        return self.application or self.flow_id

    def to_json(self, more: Mapping[str, Any] | None = None) -> str:
        """Return the userMetadata of the commit.

        Args:
            more: what else it says, by name.
        """
        optional = ("violations", "groups_ended", "rows_dropped")
        left_out = {"read", "application", *(key for key in optional if getattr(self, key) is None)}
        fields = {key: value for key, value in vars(self).items() if key not in left_out}
        fields |= {} if self.app_id == self.flow_id else {"application": self.app_id}
        fields |= {} if self.read is None else asdict(self.read)
        return json.dumps({"sqlext": fields | dict(more or {})}, default=lambda time: time.isoformat("T", "milliseconds"))


def merge(
    spark: SparkSession,
    table: DeltaTable,
    stream: StreamSpec,
    rows: DataFrame,
    reach: Bounds,
    info: CommitInfo,
    check: Callable[[], None],
    size: TableSize | None,
    attempts: int = ATTEMPTS,
    additions: Mapping[str, str] | None = None,
) -> None:
    """Merge rows into a table in one commit: they replace those of the same key, or add to them.

    Groups that no longer satisfy HAVING are deleted, and so are sessions that have become part of others.

    Args:
        spark: a session that only this flow's flushes use; the transaction's settings are set on it.
        table: the table, opened in that session.
        stream: the streaming query that the rows come from.
        rows: as `target.in_target_columns` returns them, one row for each key; if there is a column `QUALIFIES`, rows where it is
            false are deleted.
        reach: the ranges of their keys, where known: only files within these are read.
        info: the description of the commit.
        check: called before each attempt; raises if this driver must not commit any more.
        size: the size of the table, if known.
        attempts: the number of attempts, in case of conflicts with other writes.
        additions: for rows that are added to, the SQL of each changed column's new value, from `t`, the table, and `s`, the rows.
    """
    is_small_table = size is not None and size.bytes <= SMALL_TABLE_BYTES
    # values in a condition are compiled into code of their own, and a small table has no files worth skipping
    within = None if is_small_table else key_ranges.condition(reach, rows.schema, "t")
    is_small = are_few(info.rows, rows.schema, stream.key)
    values: dict[str, str | Column] = {quote(c.target): f"s.{quote(c.target)}" for c in stream.columns}
    qualifies = f"s.{QUALIFIES}" if QUALIFIES in rows.columns else None
    changed: dict[str, str | Column] = values if additions is None else {quote(c): sql for c, sql in additions.items()}
    same = same_key(stream.key, reach)
    settings = _transaction(info) | (FEW_ROWS if is_small else {}) | (_SMALL_TABLE if is_small_table else {})
    settings |= {} if stream.key else OWN_JOINS
    with (
        session_settings(spark, settings),
        jvm.held(rows) if is_small else nullcontext(rows) as given,
    ):  # MERGE reads it twice
        source = F.broadcast(given) if is_small else given
        builder = table.alias("t").merge(source.alias("s"), same if within is None else same & within)
        if qualifies is not None:
            builder = builder.whenMatchedDelete(f"NOT {qualifies}")
        builder = builder.whenMatchedUpdate(set=changed).whenNotMatchedInsert(qualifies or "true", values)
        again_after_conflicts(builder.execute, check, attempts)


def same_key(key: Sequence[str], reach: Bounds) -> Column:
    """Return the condition that a row of `t` and a row of `s` have the same key; without a key, all have.

    Args:
        key: the key columns.
        reach: the ranges of the keys of `s`. Where they hold no nulls, Spark joins by `=`, and directly by a number, in a third
            of the time.
    """
    equals = {name: "=" for name in key if name in reach and not reach[name].has_nulls}
    return F.expr(" AND ".join(f"t.{quote(name)} {equals.get(name, '<=>')} s.{quote(name)}" for name in key) or "true")


def are_few(rows: int, schema: StructType, key: Sequence[str]) -> bool:
    """Return whether rows are few enough to be sent to every executor; an unknown number of rows, -1, is not."""
    wide = [c for c in schema if _is_wide(c.dataType)]
    is_short = all(isinstance(c.dataType, StringType) and c.name in key for c in wide)
    return 0 <= rows <= (_BROADCAST_ROWS if is_short else _BROADCAST_WIDE_ROWS)


def _is_wide(kind: DataType) -> bool:
    """Return whether values of a type may be long; of a struct such as a window, whether those of a field may be."""
    return any(_is_wide(field.dataType) for field in kind) if isinstance(kind, StructType) else isinstance(kind, _WIDE)


def replace(spark: SparkSession, name: tuple[str, ...], rows: DataFrame, info: CommitInfo, check: Callable[[], None]) -> None:
    """Replace all rows of a table in one commit.

    Args:
        spark, check: as for `merge`; `rows` must belong to that session.
        name: the table.
        rows: the new rows.
        info: the description of the commit.
    """
    writer = rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static")
    with session_settings(spark, _transaction(info)):
        again_after_conflicts(lambda: writer.saveAsTable(quote_parts(name)), check)


def append(name: tuple[str, ...], rows: DataFrame, info: CommitInfo) -> int:
    """Append rows by Delta's writer, in one commit, once however often that is repeated.

    Returns:
        The number of rows; 0 if they were in the table already.
    """
    observation = Observation()
    (
        rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        .write.format("delta")
        .mode("append")
        .option("txnAppId", info.app_id)
        .option("txnVersion", info.last_batch)
        .option("userMetadata", info.to_json())
        .saveAsTable(quote_parts(name))
    )
    counted: Any = observation._jo  # noqa: SLF001  # there is no public way to ask
    row = counted.getRow()  # an empty one if Delta has written none; PySpark has only an assertion for that
    return int(row.getLong(0)) if row.length() else 0


def _transaction(info: CommitInfo) -> dict[str, str]:
    """Return the session settings from which Delta takes a transaction's identity and metadata; Delta skips a repeated one."""
    return {TXN_APP_ID: info.app_id, TXN_VERSION: str(info.last_batch), USER_METADATA: info.to_json()}


def again_after_conflicts(commit: Callable[[], T], check: Callable[[], None], attempts: int = ATTEMPTS) -> T:
    """Repeat a commit after conflicts with others, such as UPDATE, DELETE or OPTIMIZE, and return what it returns.

    Its transaction's version keeps a repeated commit from counting twice.
    """
    left = attempts
    while True:
        check()  # the other write may come from another driver of this flow
        left -= 1
        try:
            return commit()
        except _CONFLICTS as error:
            if left == 0:
                raise
            logger.info("a flush conflicted with another write and is repeated: %s", failures.reason_of(error))
