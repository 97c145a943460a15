"""The unread input of a stream, found in the source's own log by the offsets of the last micro-batch.

Each reader takes an offset in the form of Spark's checkpoint, the end of what was read, and looks at what follows it.

Relies on private formats: the offsets of Delta's source and of Spark's file and Kafka sources, and files that these write.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import unquote

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.execution.backlog.pacer import SourceLook
from sqlext.execution.delta import delta_log
from sqlext.execution.streaming.checkpoint import Checkpoint
from sqlext.execution.streaming.positions import DeltaOffset
from sqlext.execution.streaming.streams import SourceKind, StreamLeaf
from sqlext.plan.records import lines_of
from sqlext.spark import delta_tables
from sqlext.spark.java import java_of, scala_object
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

Now = Callable[[], datetime]


class SourceReader(Protocol):
    """A reader of one stream's unread input. Not thread-safe."""

    def look(self, offset: str | None) -> SourceLook:
        """Return what the source has after an offset; None: nothing was read yet."""

    def handed_over(self, offset: str | None) -> float | None:
        """Return the amount before an offset, in the unit of `look`; only differences are meaningful. None: unknown."""

    def close(self) -> None:
        """Release the resources that the reader holds."""


def reader_of(spark: SparkSession, leaf: StreamLeaf, checkpoint: Checkpoint, now: Now) -> SourceReader:
    """Return the reader for a stream."""
    match leaf.kind:
        case SourceKind.DELTA:
            return DeltaReader(spark, leaf, now)
        case SourceKind.FILES:
            return FilesReader(spark, leaf, checkpoint.source_log(leaf.name), now)
        case SourceKind.KAFKA:
            return KafkaReader(spark, leaf, now)
    return UnknownReader()


class UnknownReader:
    """The reader of a source that reveals nothing: only its watermark, or a function of the user's, shows its backlog."""

    def look(self, offset: str | None) -> SourceLook:
        return SourceLook()

    def handed_over(self, offset: str | None) -> float | None:
        return None

    def close(self) -> None:
        pass


# Delta.


class DeltaReader:
    """The reader of a Delta table: its first snapshot is history; after that, versions count.

    Only versions say whether anything is unread. Its size in bytes is by the table's version checksum files: commits that remove
    files make it smaller than it is, and where the table is no larger than what was read, as after an OPTIMIZE, it is unknown.
    """

    def __init__(self, spark: SparkSession, leaf: StreamLeaf, now: Now) -> None:
        self._spark = spark
        self._location = leaf.location
        self._now = now
        self._has_history: bool | None = None  # a query that begins with an empty table has none, whatever Delta's offsets say
        self._starts_at = leaf.options.get("startingversion") or leaf.options.get("startingtimestamp")

    def look(self, offset: str | None) -> SourceLook:
        latest = delta_tables.version(self._spark, self._location)
        size = delta_log.table_size(self._spark, self._location, latest)
        end = self._start() if offset is None else DeltaOffset.parse(offset)
        if end is None:
            if self._starts_at:
                return SourceLook()  # it starts at a version that only Delta knows: that of a time, or the newest
            if self._has_history is None:
                self._has_history = size is None or size.files > 0
            return SourceLook(self._has_history, None, size.bytes if size else None, "bytes")
        if end.version > latest:
            return SourceLook(False, None, 0.0, "bytes")
        before = self._bytes_before(end)
        unread = size.bytes - before if size is not None and before is not None and size.bytes > before else None
        if end.is_starting and self._has_history is not False:
            return SourceLook(True, None, unread, "bytes")
        return SourceLook(False, self._age(end.version, latest), unread, "bytes")

    def handed_over(self, offset: str | None) -> float | None:
        return 0.0 if offset is None else self._bytes_before(DeltaOffset.parse(offset))

    def close(self) -> None:
        pass

    def _start(self) -> DeltaOffset | None:
        is_version = self._starts_at is not None and self._starts_at.isdigit()
        return DeltaOffset("", int(self._starts_at), -1, False) if is_version and self._starts_at else None

    def _bytes_before(self, end: DeltaOffset) -> float | None:
        """Return the size of the files before an offset, in bytes, as if all files of a version had the same size."""
        none = delta_log.TableSize(0, 0)
        is_first = end.is_starting or end.version == 0
        before = none if is_first else delta_log.table_size(self._spark, self._location, end.version - 1)
        if before is None or end.index < 0:
            return None if before is None else float(before.bytes)
        own = delta_log.table_size(self._spark, self._location, end.version)
        if own is None:
            return None
        part = min((end.index + 1) / max(own.files - before.files, 1), 1.0)
        return before.bytes + part * (own.bytes - before.bytes)

    def _age(self, version: int, latest: int) -> timedelta:
        """Return the age of a commit; if its file has been cleaned up, the age of the newest commit, which is lower."""
        written = delta_log.written_at(self._spark, self._location, version)
        if written is None:
            written = delta_log.written_at(self._spark, self._location, latest)
        return max(self._now() - written, timedelta()) if written is not None else timedelta()


# Files.

_STATUS = re.compile(r"path=(.*?); isDirectory=(?:true|false); length=(\d+);.*?modification_time=(\d+)")


class FilesReader:
    """The reader of a folder of files, or a glob of them: files that the source's log does not name are unread."""

    def __init__(self, spark: SparkSession, leaf: StreamLeaf, log: HadoopPath, now: Now) -> None:
        self._spark = spark
        self._leaf = leaf
        self._log = log
        self._now = now
        self._read: set[str] = set()
        self._read_through = -1

    def look(self, offset: str | None) -> SourceLook:
        self._read_log(-1 if offset is None else int(json.loads(offset)["logOffset"]))
        unread = [written for path, written in self._listed() if path not in self._read]
        if not unread:
            return SourceLook(False, None, 0.0, "files")
        lag = self._now() - datetime.fromtimestamp(min(unread) / 1000, UTC)
        return SourceLook(False, max(lag, timedelta()), float(len(unread)), "files")

    def handed_over(self, offset: str | None) -> float | None:
        return None  # limits are in bytes, and the source's log has no sizes

    def close(self) -> None:
        pass

    def _read_log(self, through: int) -> None:
        """Read the log up to a micro-batch; Spark compacts the entries of about ten micro-batches into one file."""
        if through <= self._read_through:
            return
        names = {name for name in self._log.names() if not name.startswith(".")}
        compacted = [int(n.split(".")[0]) for n in names if n.endswith(".compact")]
        newest = max((number for number in compacted if self._read_through < number <= through), default=None)
        wanted = [f"{newest}.compact"] if newest is not None else []
        first = self._read_through + 1 if newest is None else newest + 1
        wanted += [str(number) for number in range(first, through + 1)]
        for name in wanted:
            if name in names:
                lines = lines_of(self._log.child(name).read_text())
                self._read.update(_plain(unquote(json.loads(line)["path"])) for line in lines[1:])
        self._read_through = through

    def _listed(self) -> list[tuple[str, int]]:
        """Return path and modification time (milliseconds since 1970) of all files, in a few round trips for any number."""
        java = java_of(self._spark)
        path = java.org.apache.hadoop.fs.Path(self._leaf.location)
        roots = java.org.apache.spark.deploy.SparkHadoopUtil.get().globPathIfNecessary(self._file_system(path), path)
        if not roots.nonEmpty():
            return []
        index = java.org.apache.spark.sql.execution.datasources.InMemoryFileIndex(
            self._spark._jsparkSession,
            roots,
            self._leaf.relation.dataSource().options(),
            java.scala.Option.apply(None),
            scala_object(self._spark, "org.apache.spark.sql.execution.datasources.NoopCache"),
            java.scala.Option.apply(None),
            java.scala.Option.apply(None),
        )
        text = str(index.allFiles().mkString("\n"))
        return [(_plain(found[1]), int(found[3])) for found in _STATUS.finditer(text)]

    def _file_system(self, path: Any) -> Any:
        options = self._leaf.relation.dataSource().options()  # some may be for the file system
        return path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConfWithOptions(options))


def _plain(path: str) -> str:
    """Return a local path in Hadoop's form; Spark's log has it as a URI."""
    return re.sub("^file:/+", "file:/", path)


# Kafka.

_POLL_SECONDS = 2.0
"""The time, in seconds, after which a look gives up on partitions for which no broker answers."""


class KafkaReader:
    """The reader of topics: the unread offsets, and the time of the oldest unread record. Keeps one consumer, of no group."""

    def __init__(self, spark: SparkSession, leaf: StreamLeaf, now: Now) -> None:
        self._spark = spark
        self._options = leaf.options
        self._now = now
        self._consumer: Any = None

    def look(self, offset: str | None) -> SourceLook:
        java = java_of(self._spark)
        consumer = self._open()
        ends = {(str(p.topic()), int(p.partition())): int(end) for p, end in self._ends(consumer).items()}
        starts = self._starts(consumer, ends) if offset is None else _kafka_offsets(offset)
        behind = {at: starts.get(at, 0) for at, end in ends.items() if end > starts.get(at, 0)}
        unread = float(sum(ends[at] - start for at, start in behind.items()))
        if not behind:
            return SourceLook(False, None, 0.0, "offsets")
        partitions = java.java.util.ArrayList()
        for topic, number in behind:
            partitions.add(java.org.apache.kafka.common.TopicPartition(topic, number))
        consumer.assign(partitions)
        for (topic, number), start in behind.items():
            consumer.seek(java.org.apache.kafka.common.TopicPartition(topic, number), start)
        oldest = self._oldest(consumer, len(behind))
        lag = max(self._now() - datetime.fromtimestamp(oldest / 1000, UTC), timedelta()) if oldest is not None else None
        return SourceLook(False, lag, unread, "offsets")

    def handed_over(self, offset: str | None) -> float | None:
        return None if offset is None else float(sum(_kafka_offsets(offset).values()))

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Any:
        if self._consumer is None:
            java = java_of(self._spark)
            settings = java.java.util.HashMap()
            for key, value in self._options.items():
                if key.startswith("kafka."):
                    settings.put(key.removeprefix("kafka."), value)
            for side in ("key", "value"):
                settings.put(f"{side}.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer")
            settings.put("enable.auto.commit", "false")
            settings.put("max.partition.fetch.bytes", "1")  # a fetch returns at least one record of each partition
            self._consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        return self._consumer

    def _ends(self, consumer: Any) -> Mapping[Any, Any]:
        return dict(consumer.endOffsets(self._partitions(consumer)))

    def _partitions(self, consumer: Any) -> Any:
        java = java_of(self._spark)
        found = java.java.util.ArrayList()
        if "assign" in self._options:
            for topic, numbers in json.loads(self._options["assign"]).items():
                for number in numbers:
                    found.add(java.org.apache.kafka.common.TopicPartition(topic, int(number)))
            return found
        for topic in self._topics(consumer):
            for partition in consumer.partitionsFor(topic):
                found.add(java.org.apache.kafka.common.TopicPartition(topic, partition.partition()))
        return found

    def _topics(self, consumer: Any) -> list[str]:
        if "subscribe" in self._options:
            return [topic.strip() for topic in self._options["subscribe"].split(",")]
        pattern = re.compile(self._options.get("subscribepattern", ""))
        return [str(topic) for topic in consumer.listTopics() if pattern.fullmatch(str(topic))]

    def _starts(self, consumer: Any, ends: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Return the offsets at which a query without a checkpoint begins."""
        said = self._options.get("startingoffsets", "latest")
        if said == "latest":
            return dict(ends)
        given = _kafka_offsets(said) if said.startswith("{") else {}
        first = {(str(p.topic()), int(p.partition())): int(at) for p, at in self._beginnings(consumer).items()}
        return {at: ends[at] if (asked := given.get(at, -2)) == -1 else max(asked, first.get(at, 0)) for at in ends}

    def _beginnings(self, consumer: Any) -> Mapping[Any, Any]:
        return dict(consumer.beginningOffsets(self._partitions(consumer)))

    def _oldest(self, consumer: Any, partitions: int) -> int | None:
        """Return the time of the oldest unread record, in milliseconds since 1970; a poll may not return all partitions."""
        times: dict[str, int] = {}
        wait = java_of(self._spark).java.time.Duration.ofMillis(200)
        deadline = Deadline(_POLL_SECONDS)
        while len(times) < partitions and not deadline.has_passed:
            records = consumer.poll(wait)
            for partition in records.partitions():
                times.setdefault(str(partition.toString()), int(records.records(partition).get(0).timestamp()))
        return min(times.values(), default=None)


def _kafka_offsets(text: str) -> dict[tuple[str, int], int]:
    data: dict[str, dict[str, int]] = json.loads(text)
    return {(topic, int(number)): int(at) for topic, numbers in data.items() for number, at in numbers.items()}
