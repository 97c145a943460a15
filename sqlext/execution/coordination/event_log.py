"""Logs of events as numbered files.

Each file is written the way Delta writes its commits: only if there is no file of that name. So of two drivers that write at
once, the later one notices. No Spark job runs.
"""

from __future__ import annotations

import logging
from typing import Protocol

from sqlext.errors import TornFileError

logger = logging.getLogger(__name__)


class Folder(Protocol):
    """The folder and file operations that a log needs; `HadoopPath` has them."""

    location: str

    def child(self, *names: str) -> Folder:
        """Return a path below this one."""

    def exists(self) -> bool:
        """Return whether there is a file or folder."""

    def read_text(self) -> str:
        """Return the text of a small file.

        Raises:
            NotFoundError: it does not exist.
            TornFileError: it is torn, and no time heals that.
            SetupError: it cannot be read, or not now.
        """

    def modified(self) -> float | None:
        """Return when the file was written last, in seconds since 1970 by the clock of the storage; None if it does not exist."""

    def names(self) -> list[str]:
        """Return the names of the folder's entries; none if it does not exist."""

    def create_text(self, text: str) -> bool:
        """Create a small file atomically unless it exists; return whether it was written."""

    def delete(self) -> None:
        """Delete the file, or the folder and its contents; do nothing if it does not exist."""


class EventLog:
    """One reader's and writer's view of a log. Not thread-safe: its owner must serialize the calls.

    Args:
        folder: the folder of the files; the first file creates it.
        first: the number of the first file.
    """

    def __init__(self, folder: Folder, first: int = 1) -> None:
        self._folder = folder
        self._first = first
        self.count = 0

    @property
    def location(self) -> str:
        """The location of the log's folder."""
        return self._folder.location

    def read_new(self) -> list[str]:
        """Return the texts written since the last call, in order; `count` counts all that were read or written.

        A torn file gives an empty text, and is logged.

        Raises:
            SetupError: one of them cannot be read now; the next call returns all of them.
        """
        texts: list[str] = []
        while (file := self._file(self.count + len(texts))).exists():
            texts.append(text_of(file))
        self.count += len(texts)
        return texts

    def append(self, text: str) -> bool:
        """Write a text after those that were read or written.

        Returns:
            Whether it was written; False if another writer came first, whose text `read_new` then returns.

        Raises:
            SetupError: it cannot be written.
        """
        is_mine = self._file(self.count).create_text(text)
        self.count += is_mine
        return is_mine

    def _file(self, number: int) -> Folder:
        return self._folder.child(f"{self._first + number:020d}.json")


def text_of(file: Folder) -> str:
    """Return the text of an event; an empty one if it is torn, which is logged."""
    try:
        return file.read_text()
    except TornFileError as error:
        logger.error("event skipped: %s", error)
        return ""
