"""The commits of a flow: rows merged, replaced or added in one Delta commit each, once however often they are tried."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

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
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, VariantType

from sqlext.execution.delta import key_ranges
from sqlext.execution.delta.delta_log import TableSize
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.plan.flow_spec import StreamSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.quoting import quote, quote_parts
from sqlext.spark import jvm

logger = logging.getLogger(__name__)

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
_BROADCAST_ROWS = 600_000  # so many rows of numbers and a short key are sent to every executor in about a second
_BROADCAST_WIDE_ROWS = 5_000  # of rows with lists, texts and the like
FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for few rows: adaptive execution would find them out, with a job of its own for each stage."""
SMALL_TABLE_BYTES = 16 * 1024**2
_SMALL_TABLE = {  # rewriting its files is less work than marking rows in them
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}
_WIDE = (ArrayType, BinaryType, MapType, StringType, StructType, VariantType)
TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class CommitInfo:
    """What a flow's commit says of itself, in Delta's userMetadata under `sqlext`.

    Attributes:
        flow, flow_id, epoch: who committed.
        first_batch, last_batch: the micro-batches in it; the last one is the transaction's version.
        rows: changed groups or new rows.
        reason: why now.
        watermark: the event time up to which input is complete, if the query has one.
        oldest_arrival: when the oldest of the rows was buffered.
        read_version: the version of the table of which the rows were made, where nobody may change it in between.
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

    def to_json(self) -> str:
        return json.dumps({"sqlext": vars(self)}, default=lambda time: time.isoformat("T", "milliseconds"))


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
    """One commit: rows replace those of the same key, or add to them; groups that no longer satisfy HAVING, and sessions that
    have become others, leave.

    Args:
        spark: a session that only this flow's flushes use; the transaction's settings are put on it.
        table: where the rows go, opened in that session.
        rows: as `target.in_target_columns` gives them, one row a key; with a column `QUALIFIES`, those where it is false leave.
        reach: how far their keys reach, as far as that is known: only files within it are read.
        check: called before each try; raises when this driver must not commit any more.
        size: of the table, if known.
        attempts: how often to try, if other writes come in between.
        additions: SQL of what becomes of columns whose rows are added to, of `t`, the table, and `s`, the rows.
    """
    is_small_table = size is not None and size.bytes <= SMALL_TABLE_BYTES
    # values in a condition are compiled into code of their own; of a small table there is nothing to leave out
    within = None if is_small_table else key_ranges.condition(reach, rows.schema, "t")
    is_small = are_few(info.rows, rows.schema, stream.key)
    if is_small:
        rows = rows.localCheckpoint(eager=True)  # a MERGE looks at its source twice
    source = F.broadcast(rows) if is_small else rows
    values: dict[str, str | Column] = {quote(c.target): f"s.{quote(c.target)}" for c in stream.columns}
    qualifies = f"s.{QUALIFIES}" if QUALIFIES in rows.columns else None
    same = same_key(stream.key, reach)
    builder = table.alias("t").merge(source.alias("s"), same if within is None else same & within)
    if qualifies is not None:
        builder = builder.whenMatchedDelete(f"NOT {qualifies}")
    changed: dict[str, str | Column] = values if additions is None else {quote(c): sql for c, sql in additions.items()}
    builder = builder.whenMatchedUpdate(set=changed).whenNotMatchedInsert(qualifies or "true", values)
    try:
        settings = (FEW_ROWS if is_small else {}) | (_SMALL_TABLE if is_small_table else {})
        with session_settings(spark, _transaction(info) | settings):
            again_after_conflicts(builder.execute, check, attempts)
    finally:
        if is_small:
            jvm.release(rows)


def same_key(key: Sequence[str], reach: Bounds) -> Column:
    """Whether rows of `t` and `s` have the same key; without a key, all have.

    Args:
        reach: how far the keys of `s` reach. Where they hold no nulls, Spark joins by `=`, a number by itself, in a third of the
            time.
    """
    equals = {name: "=" for name in key if name in reach and not reach[name].has_nulls}
    return F.expr(" AND ".join(f"t.{quote(name)} {equals.get(name, '<=>')} s.{quote(name)}" for name in key) or "true")


def are_few(rows: int, schema: StructType, key: Sequence[str]) -> bool:
    """Whether rows are few enough to be sent to every executor; -1 rows, whose number is not known, are not."""
    wide = [c for c in schema if isinstance(c.dataType, _WIDE)]
    is_short = all(isinstance(c.dataType, StringType) and c.name in key for c in wide)
    return 0 <= rows <= (_BROADCAST_ROWS if is_short else _BROADCAST_WIDE_ROWS)


def replace(spark: SparkSession, name: tuple[str, ...], rows: DataFrame, info: CommitInfo, check: Callable[[], None]) -> None:
    """One commit: the table holds these rows and no others.

    Args:
        spark, check: as for `merge`; `rows` must belong to that session.
    """
    writer = rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static")
    with session_settings(spark, _transaction(info)):
        again_after_conflicts(lambda: writer.saveAsTable(quote_parts(name)), check)


def append(name: tuple[str, ...], rows: DataFrame, info: CommitInfo) -> int:
    """One commit: rows are added, once, however often Spark repeats the micro-batch.

    Returns:
        How many rows the micro-batch had.
    """
    observation = Observation()
    (
        rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        .write.format("delta")
        .mode("append")
        .option("txnAppId", info.flow_id)
        .option("txnVersion", info.last_batch)
        .option("userMetadata", info.to_json())
        .saveAsTable(quote_parts(name))
    )
    return int(observation.get["rows"])


def _transaction(info: CommitInfo) -> dict[str, str]:
    """Delta takes a transaction's identity and metadata from its session's settings; a repeated one is skipped."""
    return {TXN_APP_ID: info.flow_id, TXN_VERSION: str(info.last_batch), USER_METADATA: info.to_json()}


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Put settings on a session, and afterwards what was there before."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def again_after_conflicts(commit: Callable[[], object], check: Callable[[], None], attempts: int = ATTEMPTS) -> None:
    """Somebody's UPDATE, DELETE or OPTIMIZE may come in between; a repeated commit cannot count twice, as its version tells."""
    for left in reversed(range(attempts)):
        check()  # what came in between may be another driver of this flow
        try:
            commit()
            return
        except _CONFLICTS as error:
            if left == 0:
                raise
            logger.info("a flush met another write and is tried again: %s", jvm.reason_of(error))
