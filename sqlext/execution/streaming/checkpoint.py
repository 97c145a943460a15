"""A streaming query's checkpoint folder, seen from outside: which micro-batches Spark has planned and committed.

Layout (Spark's CheckpointFileManager): `offsets/N` is written before micro-batch N runs, `commits/N` after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlext.clock import at_milliseconds
from sqlext.errors import NotFoundError, TornFileError
from sqlext.plan.records import lines_of
from sqlext.spark.storage import HadoopPath

_MEMORY_ONLY = "memory-only"  # a file that exists while runs buffer in memory only
_NAMED = "v2"  # the offset log's format in which sources have names
_NO_OFFSET = "-"  # OffsetSeqLog.SERIALIZED_VOID_OFFSET
PARTITIONS = "spark.sql.shuffle.partitions"
"""The setting with the number of the state's partitions, which Spark records beside offsets."""
_FLUSHED = "flushed"  # a file that holds the newest micro-batch of the last clean stop
_RESTED = "rested"  # a file that holds the number of the micro-batch before which the query last found no input
BEGUN = "begun"  # a folder with a file for each micro-batch, which holds when the micro-batch first began
_NEVER = -1
_MULTIPLE = "spark.sql.streaming.statefulOperator.allowMultiple"


@dataclass(frozen=True)
class PlannedBatch:
    """The input of a micro-batch.

    Attributes:
        offsets: for each source, by its name, the end of what is read, as JSON; None: nothing is read yet. Sources without a name
            have their index in the query, from 0, as their name.
        watermark_ms: the watermark when the micro-batch was planned, in milliseconds since 1970; 0: there was none yet.
        is_late_against_it: whether that is the watermark against which the micro-batch's own rows are late: in a session that
            allows only one stateful operator, as in Spark before 3.4.
    """

    offsets: Mapping[str, str | None] = field(default_factory=dict)
    watermark_ms: int = 0
    is_late_against_it: bool = False

    @property
    def watermark(self) -> datetime | None:
        """The watermark when the micro-batch was planned; None: there was none yet."""
        return at_milliseconds(self.watermark_ms) if self.watermark_ms else None


class Checkpoint:
    """The checkpoint folder of one query. Changed only while the query does not run.

    Args:
        home: its parent folder; our own marks are put beside the checkpoint.
    """

    def __init__(self, home: HadoopPath) -> None:
        self._home = home
        self._folder = home.child("checkpoint")

    @property
    def location(self) -> str:
        """The location of the checkpoint."""
        return self._folder.location

    def is_committed(self, batch: int) -> bool:
        """Return whether Spark has committed a micro-batch."""
        return self._folder.child("commits", str(batch)).exists()

    @property
    def newest_planned(self) -> int | None:
        """The newest micro-batch that was planned; None: there is none."""
        return self._newest("offsets")

    @property
    def newest_committed(self) -> int | None:
        """The newest micro-batch that was committed; None: there is none."""
        return self._newest("commits")

    def planned(self, batch: int | None) -> PlannedBatch:
        """Return the input of a micro-batch; empty if it was never planned."""
        try:
            lines = lines_of(self._folder.child("offsets", str(batch)).read_text())
        except NotFoundError:
            return PlannedBatch()
        metadata = json.loads(lines[1])
        offsets = enumerate(lines[2:]) if lines[0] != _NAMED else (line.split(":", 1) for line in lines[2:])
        return PlannedBatch(
            {str(name): None if offset == _NO_OFFSET else offset for name, offset in offsets},
            int(metadata.get("batchWatermarkMs", 0)),
            metadata.get("conf", {}).get(_MULTIPLE) == "false",
        )

    def begin_with_all_before(self, other: Checkpoint, batch: int, query_id: str) -> None:
        """Make a new query's first micro-batch read all that another one over the same streams has read.

        Its checkpoint is one in which that micro-batch is planned: from where the streams begin to where the other one's ends.

        Args:
            other: the checkpoint of the other query.
            batch: a micro-batch of that one.
            query_id: of the new query.
        """
        self._folder.child("metadata").write_text(json.dumps({"id": query_id}))
        self._folder.child("offsets", "0").write_text(other._folder.child("offsets", str(batch)).read_text())

    def source_log(self, name: str) -> HadoopPath:
        """Return the folder where Spark's file source records the files of each micro-batch."""
        return self._folder.child("sources", name)

    @property
    def sources(self) -> list[str]:
        """The names of the sources that record something of their own."""
        return self._folder.child("sources").names()

    def files_of(self, source: str) -> list[str]:
        """Return the files that Spark's file source has read, as far as its log goes back, as encoded paths.

        The log has a file for each micro-batch, now and then one with all before it; each begins with a line for the format.
        """
        log, found = self.source_log(source), dict[str, None]()
        for name in log.names():
            if name.partition(".")[0].isdigit():
                lines = lines_of(log.child(name).read_text())[1:]
                entries = [json.loads(line) for line in lines if line.startswith("{")]
                found |= {str(entry["path"]): None for entry in entries if "path" in entry}
        return list(found)

    def files_of_batch(self, source: str, batch: int) -> list[str]:
        """Return the files that Spark's file source has planned for a micro-batch, as encoded paths; see `files_of`."""
        first, last = (_log_offset(self.planned(each).offsets.get(source)) for each in (batch - 1, batch))
        log, found = self.source_log(source), dict[str, None]()
        for name in log.names():
            number = name.partition(".")[0]
            if number.isdigit() and int(number) > first:
                lines = lines_of(log.child(name).read_text())[1:]
                entries = [json.loads(line) for line in lines if line.startswith("{")]
                found |= {str(entry["path"]): None for entry in entries if first < int(entry["batchId"]) <= last}
        return list(found)

    def pin_partitions(self, partitions: str) -> None:
        """Record the number of the state's partitions beside the newest offsets with names.

        Spark 4.2 records it only beside offsets without names. Without it, Spark cannot know that a micro-batch which it is to
        repeat does not change that number (OfflineStateRepartitionUtils.isRepartitionBatch).
        """
        newest = self.newest_planned
        for batch in () if newest is None else (newest - 1, newest):
            file = self._folder.child("offsets", str(batch))
            if batch < 0 or not file.exists():
                continue
            version, metadata, *offsets = lines_of(file.read_text())
            found = json.loads(metadata)
            if version == _NAMED and PARTITIONS not in found["conf"]:
                found["conf"][PARTITIONS] = partitions
                file.write_text("\n".join((version, json.dumps(found), *offsets)))

    def note_memory_only(self, is_memory_only: bool) -> None:
        """Record, before a run, whether its buffered rows can be lost."""
        mark = self._home.child(_MEMORY_ONLY)
        if is_memory_only:
            mark.write_text("")
        elif mark.exists():
            mark.delete()

    def note_flushed(self) -> None:
        """Record, after a clean stop, that all committed micro-batches are in the table."""
        if (newest := self._newest("commits")) is not None:
            self._home.child(_FLUSHED).write_text(str(newest))

    def rewind(self, flushed: int) -> int | None:
        """Make Spark run the newest micro-batch again if one after `flushed` may have been lost with a memory-only buffer.

        Returns:
            The id of the micro-batch that runs again; None if nothing was lost.
        """
        committed, planned = self._newest("commits"), self._newest("offsets")
        if committed is None or planned is None or not self._home.child(_MEMORY_ONLY).exists():
            return None
        if committed <= max(flushed, self._noted_flushed()):
            return None
        if planned == committed:
            for name in (str(committed), f".{committed}.crc"):
                self._folder.child("commits", name).delete()
        return planned

    def _noted_flushed(self) -> int:
        return self._number_in(_FLUSHED)  # if the process died while it wrote it, what was flushed is brought back once more

    def note_rest(self, batch: int) -> None:
        """Record that a look for input before a micro-batch found none; see `lateness`."""
        self._home.child(_RESTED).write_text(str(batch))

    @property
    def rested_before(self) -> int:
        """The micro-batch that was last given to `note_rest`; -1: there is none."""
        return self._number_in(_RESTED)  # if the process died while it wrote it, nothing of the micro-batch had run

    def note_begun(self, batch: int, at: datetime) -> None:
        """Record when a micro-batch began; of one that is repeated, the first time stays."""
        self._home.child(BEGUN, str(batch)).create_text(at.isoformat())

    def begun(self, batch: int) -> datetime:
        """Return when a micro-batch first began, as it was recorded."""
        return datetime.fromisoformat(self._home.child(BEGUN, str(batch)).read_text().strip())

    def forget_begun(self, through: int) -> None:
        """Forget when the micro-batches up to and including one began."""
        folder = self._home.child(BEGUN)
        for name in folder.names():
            if name.isdigit() and int(name) <= through:
                folder.child(name).delete()

    def _number_in(self, mark: str) -> int:
        try:
            return int(self._home.child(mark).read_text())
        except (NotFoundError, TornFileError):
            return _NEVER

    def _newest(self, log: str) -> int | None:
        return max((int(name) for name in self._folder.child(log).names() if name.isdigit()), default=None)


def _log_offset(offset: str | None) -> int:
    """Return the number of the last entry of a file source's log that an offset includes; -1: none."""
    return int(json.loads(offset)["logOffset"]) if offset else _NEVER
