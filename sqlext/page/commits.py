"""A Delta table's log as the small files that it consists of, read without Spark."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlext.errors import NotFoundError, SetupError
from sqlext.execution.coordination.event_log import Folder
from sqlext.plan.records import lines_of

T = TypeVar("T")

SHOWN = 60
"""The number of commits of a kind that are kept."""
_LOOKS_PER_COMMIT = 3
"""The most commits read for each one kept: between them, others may write, and compactions run."""


class CommitLog:
    """The reader of a table's log. Not thread-safe.

    Args:
        table: the table's folder.
    """

    def __init__(self, table: Folder) -> None:
        self.location = table.location
        self._log = table.child("_delta_log")
        self._newest = -1

    def newest(self) -> int | None:
        """Return the newest version of the table; None: there is no table.

        Few files are checked: every tenth commit writes a checkpoint, and later calls begin where the last one ended.

        Raises:
            SetupError: the log cannot be read.
        """
        if self._newest >= 0 and not self._file(self._newest).exists():
            self._newest = -1  # the table was dropped, and perhaps created again
        version = self._newest if self._newest >= 0 else self._checkpoint()
        while self._file(version + 1).exists():
            version += 1
        self._newest = version
        return version if version >= 0 else None

    def actions(self, version: int) -> list[dict[str, Any]] | None:
        """Return the actions of a version's commit; None if its file has been cleaned up."""
        lines = self._lines(version)
        return None if lines is None else [json.loads(line) for line in lines]

    def info(self, version: int) -> dict[str, Any] | None:
        """Return the commitInfo of a version; None if it has none, or its file has been cleaned up."""
        line = next((line for line in self._lines(version) or () if line.startswith('{"commitInfo"')), None)
        return None if line is None else dict(json.loads(line)["commitInfo"])

    def committed_at(self, version: int) -> datetime | None:
        """Return when a version was committed; None if that is not known."""
        try:
            info = self.info(version)
            return None if info is None else time_of(info)
        except (ValueError, KeyError, TypeError):
            return None

    def table_id(self, version: int) -> str | None:
        """Return Delta's id of the table, by a version's checksum file; None if its writer wrote none."""
        try:
            return str(json.loads(self._file(version, "crc").read_text())["metadata"]["id"])
        except (NotFoundError, SetupError, ValueError, KeyError, TypeError):
            return None

    def _checkpoint(self) -> int:
        """Return the version of the newest checkpoint; -1: there is none."""
        try:
            return int(json.loads(self._log.child("_last_checkpoint").read_text())["version"])
        except (NotFoundError, SetupError, ValueError, KeyError, TypeError):
            return -1

    def _lines(self, version: int) -> list[str] | None:
        try:
            return lines_of(self._file(version).read_text())
        except NotFoundError:
            return None

    def _file(self, version: int, kind: str = "json") -> Folder:
        return self._log.child(f"{version:020d}.{kind}")


class LastCommits(Generic[T]):
    """The last commits of a kind: the newest ones are read once, and later only new ones. Not thread-safe.

    Args:
        log: the table's log.
        read: returns the value of a commit, by its version and its commitInfo; None: the commit is of another kind.
    """

    def __init__(self, log: CommitLog, read: Callable[[int, Mapping[str, Any]], T | None]) -> None:
        self._commits = log
        self._read = read
        self._next: int | None = None
        self._found: deque[T] = deque(maxlen=SHOWN)

    def read(self) -> tuple[T, ...]:
        """Return the last commits, oldest first; those of a table that is gone stay.

        Raises:
            SetupError: the log cannot be read.
        """
        newest = self._commits.newest()
        if newest is None:
            return tuple(self._found)
        if self._next is None:
            self._next = newest + 1
            self._read_back(newest)
        for version in range(self._next, newest + 1):
            if (found := self._value(version)) is not None:
                self._found.append(found)
        self._next = max(self._next, newest + 1)
        return tuple(self._found)

    def _read_back(self, newest: int) -> None:
        earliest = max(newest + 1 - SHOWN * _LOOKS_PER_COMMIT, 0)
        for version in range(newest, earliest - 1, -1):
            if (found := self._value(version)) is not None:
                self._found.appendleft(found)
            if len(self._found) == SHOWN:
                break

    def _value(self, version: int) -> T | None:
        info = self._commits.info(version)
        return None if info is None else self._read(version, info)


def time_of(info: Mapping[str, Any]) -> datetime:
    """Return the time of a commit, by its commitInfo.

    Raises:
        KeyError, ValueError, TypeError: the commitInfo has no time.
    """
    return datetime.fromtimestamp(int(info["timestamp"]) / 1000, UTC)
