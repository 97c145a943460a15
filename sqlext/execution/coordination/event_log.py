"""Logs of events as numbered files, and registries whose records are the fold of such a log.

Each file is written the way Delta writes its commits: only if there is no file of that name. So of two drivers that write at
once, the later one notices. No Spark job runs.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from sqlext.errors import FlowError, SetupError

logger = logging.getLogger(__name__)

_ATTEMPTS = 100


@dataclass(frozen=True)
class RegistryEvent:
    """The common fields of a registry's events; a subclass adds the id of their subject.

    Attributes:
        at: when it was written, ISO 8601.
    """

    at: str = field(default="", kw_only=True)


Event = TypeVar("Event", bound=RegistryEvent)
Record = TypeVar("Record")


class Folder(Protocol):
    """The folder and file operations that a log needs; `HadoopPath` has them."""

    location: str

    def child(self, *names: str) -> Folder:
        """Return a path below this one."""

    def exists(self) -> bool:
        """Return whether there is a file or folder."""

    def read_text(self) -> str:
        """Return the text of a small file; NotFoundError if it does not exist, SetupError if it cannot be read."""

    def create_text(self, text: str) -> bool:
        """Create a small file atomically unless it exists; return whether it was written."""


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
        """
        texts: list[str] = []
        while (file := self._file(self.count)).exists():
            try:
                texts.append(file.read_text())
            except SetupError as error:
                logger.error("event skipped: %s", error)
                texts.append("")
            self.count += 1
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


class Registry(Generic[Event, Record]):
    """The records in a log of events, by id. Thread-safe; the lock guards what has been read.

    Of two drivers that write at once, the later one reads the other's event, checks again and retries.

    Args:
        log: the log; nobody else uses this view of it.
        kinds: the possible values of an event's `kind`.
        nothing: an event without effect; it replaces one that cannot be read, and defines the events' class.
        fold: returns the records after some events, in order.
    """

    def __init__(
        self,
        log: EventLog,
        kinds: type[StrEnum],
        nothing: Event,
        fold: Callable[[Iterable[Event]], dict[str, Record]],
    ) -> None:
        self._log = log
        self._kinds = kinds
        self._nothing = nothing
        self._fold = fold
        self._lock = threading.Lock()
        self._events: list[Event] = []

    def read(self) -> dict[str, Record]:
        """Return all records, by id."""
        with self._lock:
            return self._records()

    def append(self, event: Event | Callable[[Mapping[str, Record]], Event]) -> dict[str, Record]:
        """Write an event.

        Args:
            event: the event, or a function that takes the current records and returns the event; it raises if nothing must be
                written.

        Returns:
            The records after the event.

        Raises:
            FlowError: other drivers kept writing at the same moment, or the file cannot be written.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                records = self._records()
                text = _encoded(event(records) if callable(event) else event)
                try:
                    is_mine = self._log.append(text)
                except SetupError as error:
                    raise FlowError(f"The registry {self._log.location} cannot be written: {error}") from None
                if is_mine:
                    self._take(text)
                    return self._fold(self._events)
        raise FlowError(f"The registry {self._log.location} is busy: other drivers keep writing to it. Try again.")

    def _records(self) -> dict[str, Record]:
        """Return the records after all events, including new ones in the log. The lock must be held."""
        for text in self._log.read_new():
            self._take(text)
        return self._fold(self._events)

    def _take(self, text: str) -> None:
        try:
            data = json.loads(text)
            self._events.append(type(self._nothing)(**{**data, "kind": self._kinds(data["kind"])}))
        except (ValueError, KeyError, TypeError) as error:
            number = len(self._events) + 1
            logger.error("event %d of the registry %s is skipped: it cannot be read (%s)", number, self._log.location, error)
            self._events.append(self._nothing)


def _encoded(event: RegistryEvent) -> str:
    """Return an event as text, with the current time."""
    return json.dumps(asdict(replace(event, at=datetime.now(UTC).isoformat(timespec="milliseconds"))))
