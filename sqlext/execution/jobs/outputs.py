"""The results of a job vertex: a Delta table, partitioned by bucket, with one commit for the output and event of each part.

Spark writes the Parquet files of a part into a folder of their own. Then one commit, in Delta's own format, adds them to the
table and records in its `userMetadata` that the part has finished, so that both are there or neither is. Delta's own writer
would take a second per commit. If two drivers ran a part, the output of the later one, by epoch, counts.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DatetimeType, NumericType, StructType

from sqlext.errors import JobError
from sqlext.execution.coordination.event_log import EventLog
from sqlext.execution.jobs.events import ExecutionVertexFinished, TornEventError, from_json, to_json
from sqlext.plan.records import lines_of
from sqlext.spark.footers import Footers
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

BUCKET = "bucket"
"""The partition column."""
_ATTEMPTS = 100
_UNMARKED = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}  # the commit with the event shows that a part is whole


@dataclass(frozen=True)
class OutputFile:
    """A Parquet file of a result.

    Attributes:
        path: its path, relative to the table's folder.
        bucket: the bucket whose rows it holds.
        bytes: its size, in bytes.
        rows: its number of rows.
    """

    path: str
    bucket: int
    bytes: int
    rows: int


@dataclass(frozen=True)
class PartOutput:
    """The output of a part: its event and its files."""

    event: ExecutionVertexFinished
    files: tuple[OutputFile, ...]


class VertexTable:
    """The table of one job vertex. Not thread-safe, except for `write`.

    Args:
        spark: the session whose file systems and writer are used.
        folder: the table's folder.
        schema: the schema of the results, without the bucket.

    Attributes:
        schema: the schema of the results, without the bucket.
        parts: the outputs of the finished parts, by part number.
    """

    def __init__(self, spark: SparkSession, folder: HadoopPath, schema: StructType) -> None:
        self._spark = spark
        self._folder = folder
        self.schema = schema
        self._log = EventLog(folder.child("_delta_log"), first=0)
        self._footers = Footers(spark)
        self.parts: dict[int, PartOutput] = {}

    @property
    def location(self) -> str:
        """The location of the table's folder."""
        return self._folder.location

    def open(self) -> None:
        """Create the table if it does not exist, and read which parts have finished.

        Raises:
            JobError: another version of sqlext wrote the table, or it cannot be written.
        """
        self._read()
        if self._log.count == 0 and not self._log.append(_first_commit(self.schema)):
            self._read()

    def write(self, rows: DataFrame, part: int, epoch: int) -> tuple[OutputFile, ...]:
        """Write the Parquet files of a part, which take effect once committed. Different threads may write different parts.

        Args:
            rows: the part's rows, with the bucket as the last column.
            part: the part's number.
            epoch: the epoch of this driver.
        """
        folder = f"part-{part}-{epoch}-{uuid.uuid4().hex[:8]}"
        writer = rows.write.options(**_encodings(self.schema), **_UNMARKED).partitionBy(BUCKET)
        writer.parquet(self._folder.child(folder).location)
        return tuple(self._files(folder))

    def commit(self, output: PartOutput) -> None:
        """Add a part's files to the table, and record that the part has finished.

        Raises:
            SetupError: the commit cannot be written.
            JobError: another driver keeps writing to the table.
        """
        text = _commit(output)
        for _ in range(_ATTEMPTS):
            if self._log.append(text):
                self._take(output)
                return
            self._read()  # a driver that was taken for dead has committed; the other parts that it finishes are of use
        raise JobError(f"The table {self.location} is busy: another driver keeps writing to it.")

    def reconcile(self) -> list[int]:
        """Drop the parts with a file that is missing or differs from the one written.

        Returns:
            The numbers of these parts.
        """
        lost = [number for number, output in self.parts.items() if not self._is_whole(output)]
        for number in lost:
            logger.warning("part %d of %s is lost: a file is missing or torn", number, self.location)
            del self.parts[number]
        return lost

    def drop(self, part: int) -> None:
        """Take a finished part for one that has not run."""
        del self.parts[part]

    def files(self, buckets: Iterable[int] | None = None) -> list[OutputFile]:
        """Return the files of some buckets; None: of all buckets."""
        wanted = None if buckets is None else set(buckets)
        found = [file for output in self.parts.values() for file in output.files]
        return [file for file in found if wanted is None or file.bucket in wanted]

    def bytes_by_bucket(self, buckets: int) -> list[int]:
        """Return the measured size of each bucket, in bytes.

        Args:
            buckets: the number of buckets.
        """
        sizes = [0] * buckets
        for file in self.files():
            sizes[file.bucket] += file.bytes
        return sizes

    def paths(self, files: Sequence[OutputFile]) -> list[str]:
        """Return the full paths of files."""
        return [self._folder.child(file.path).location for file in files]

    def _read(self) -> None:
        for text in self._log.read_new():
            if (output := _output_of(text)) is not None:
                self._take(output)

    def _take(self, output: PartOutput) -> None:
        known = self.parts.get(output.event.part)
        if known is None or known.event.epoch <= output.event.epoch:
            self.parts[output.event.part] = output

    def _files(self, folder: str) -> Iterable[OutputFile]:
        for name in self._folder.child(folder).names():
            if name.startswith(f"{BUCKET}="):
                for status in self._folder.child(folder, name).statuses():
                    path = f"{folder}/{name}/{status.getPath().getName()}"
                    yield OutputFile(path, int(name.partition("=")[2]), int(status.getLen()), self._footers.rows_in(status))

    def _is_whole(self, output: PartOutput) -> bool:
        try:
            for file in output.files:
                status = self._folder.child(file.path).status()
                if status is None or int(status.getLen()) != file.bytes or self._footers.rows_in(status) != file.rows:
                    return False
        except (Py4JJavaError, CapturedException):  # without a footer
            return False
        return True


def _encodings(schema: StructType) -> dict[str, str]:
    """Return the writer's options for results, which are written once and read once, soon.

    Numbers in a result rarely repeat, so a dictionary would only cost time.
    """
    numbers = [field.name for field in schema if isinstance(field.dataType, (NumericType, DatetimeType))]
    return {"compression": "lz4_raw", **{f"parquet.enable.dictionary#{name}": "false" for name in numbers}}


def finished_events(folder: HadoopPath) -> list[ExecutionVertexFinished]:
    """Read the events in the commits of a vertex's table."""
    return [output.event for text in EventLog(folder.child("_delta_log"), first=0).read_new() if (output := _output_of(text))]


def finished(output: Sequence[OutputFile], event: ExecutionVertexFinished) -> PartOutput:
    """Return a part's output, with its rows and bytes added to the event's metrics."""
    written = {"rows_written": sum(file.rows for file in output), "bytes_written": sum(file.bytes for file in output)}
    return PartOutput(replace(event, metrics={**event.metrics, **written}), tuple(output))


def _first_commit(schema: StructType) -> str:
    """Return the first commit of a table: protocol and metadata, as in Delta's protocol."""
    columns = json.loads(schema.json())
    columns["fields"].append({"name": BUCKET, "type": "integer", "nullable": True, "metadata": {}})
    now = int(time.time() * 1000)
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(columns),
        "partitionColumns": [BUCKET],
        "configuration": {},
        "createdTime": now,
    }
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return "\n".join(json.dumps(each) for each in ({"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}))


def _commit(output: PartOutput) -> str:
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "isBlindAppend": True,
        "userMetadata": to_json(output.event),
    }
    adds = [
        {
            "path": file.path,
            "partitionValues": {BUCKET: str(file.bucket)},
            "size": file.bytes,
            "modificationTime": now,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
        for file in output.files
    ]
    return "\n".join(json.dumps(each) for each in ({"commitInfo": info}, *({"add": add} for add in adds)))


def _output_of(text: str) -> PartOutput | None:
    """Read a part's output from its commit; None for the first commit of a table and for a torn one.

    Raises:
        JobError: another version of sqlext wrote the commit.
    """
    try:
        actions = [dict(json.loads(line)) for line in lines_of(text)]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        if "userMetadata" not in info:
            return None
        event = from_json(info["userMetadata"])
        files = tuple(_file(action["add"]) for action in actions if "add" in action)
    except (ValueError, KeyError, TypeError, StopIteration, TornEventError) as error:
        logger.warning("ignored a torn commit: %s", error)
        return None
    return PartOutput(event, files) if isinstance(event, ExecutionVertexFinished) else None


def _file(add: dict[str, Any]) -> OutputFile:
    rows = int(json.loads(add["stats"])["numRecords"])
    return OutputFile(str(add["path"]), int(add["partitionValues"][BUCKET]), int(add["size"]), rows)
