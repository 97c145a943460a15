"""A streaming query's checkpoint folder, seen from outside: which micro-batches Spark has planned and committed.

Layout (Spark's CheckpointFileManager): `offsets/N` is written before micro-batch N runs, `commits/N` after it.
"""

from __future__ import annotations

from sqlext.storage import HadoopPath

_MEMORY_ONLY = "memory-only"  # a file that is there while runs buffer in memory only
_FLUSHED = "flushed"  # a file that holds the newest micro-batch of the last clean stop


class Checkpoint:
    """One query's folder. Changed only while the query does not run.

    Args:
        home: the folder that it lies in; our own marks are put beside it.
    """

    def __init__(self, home: HadoopPath) -> None:
        self._home = home
        self._folder = home.child("checkpoint")

    @property
    def location(self) -> str:
        return self._folder.location

    def is_committed(self, batch: int) -> bool:
        return self._folder.child("commits", str(batch)).exists()

    def note_memory_only(self, is_memory_only: bool) -> None:
        """Before a run: what it buffers can be lost, or cannot."""
        mark = self._home.child(_MEMORY_ONLY)
        if is_memory_only:
            mark.write_text("")
        elif mark.exists():
            mark.delete()

    def note_flushed(self) -> None:
        """After a clean stop: all that was committed is in the table."""
        if (newest := self._newest("commits")) is not None:
            self._home.child(_FLUSHED).write_text(str(newest))

    def rewind(self, flushed: int) -> int | None:
        """Make Spark run the newest micro-batch again, if one after `flushed` may have been lost with a memory-only buffer.

        Returns:
            Its id; None when nothing was lost.
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
        mark = self._home.child(_FLUSHED)
        return int(mark.read_text()) if mark.exists() else -1

    def _newest(self, log: str) -> int | None:
        return max((int(name) for name in self._folder.child(log).names() if name.isdigit()), default=None)
