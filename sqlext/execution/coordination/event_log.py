"""A log of events as numbered files, and registries whose records are the fold of such a log.

Each file is written the way Delta writes its commits: only if no file of that name is there. So of two drivers that write at once
the later one finds out. No Spark job runs.
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
    """What each event of a registry tells; a subclass names whose it is.

    Attributes:
        at: when it was written, ISO 8601.
    """

    at: str = field(default="", kw_only=True)


Event = TypeVar("Event", bound=RegistryEvent)
Record = TypeVar("Record")


class Folder(Protocol):
    """What a log asks of its folder and files; `HadoopPath` is one."""

    location: str

    def child(self, *names: str) -> Folder:
        """What lies below it."""

    def exists(self) -> bool:
        """Whether it is there."""

    def read_text(self) -> str:
        """The text of a small file; NotFoundError when it is not there, SetupError when it cannot be read."""

    def create_text(self, text: str) -> bool:
        """Write a small file if none is there, whole or not at all; whether it was written."""


class EventLog:
    """One reader's and writer's view of a log. Not for several threads: whoever owns it takes turns.

    Args:
        folder: the files lie in it; it is made by the first one.
        first: the number of the first file.
    """

    def __init__(self, folder: Folder, first: int = 1) -> None:
        self._folder = folder
        self._first = first
        self.count = 0

    @property
    def location(self) -> str:
        return self._folder.location

    def read_new(self) -> list[str]:
        """The texts that were written since the last look, in order; `count` counts all that were read or written.

        One that is torn is an empty text, and logged.
        """
        texts: list[str] = []
        while (file := self._file(self.count)).exists():
            try:
                texts.append(file.read_text())
            except SetupError as error:
                logger.error("left out: %s", error)
                texts.append("")
            self.count += 1
        return texts

    def append(self, text: str) -> bool:
        """Write a text behind those that were read or written.

        Returns:
            Whether it was written; False when another one has come first, which `read_new` then gives.

        Raises:
            SetupError: it cannot be written.
        """
        is_mine = self._file(self.count).create_text(text)
        self.count += is_mine
        return is_mine

    def _file(self, number: int) -> Folder:
        return self._folder.child(f"{self._first + number:020d}.json")


class Registry(Generic[Event, Record]):
    """What a log of events tells, by id. Any thread may call any method; the lock guards what has been read.

    Of two drivers that write at once the later one reads what came before it, checks again and tries once more.

    Args:
        log: nobody else uses this view of it.
        kinds: what `kind` of an event may be.
        nothing: an event of nothing; it stands for one that cannot be read, and tells the events' class.
        fold: the records after some events, in order.
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
        """All records, by id."""
        with self._lock:
            return self._records()

    def append(self, event: Event | Callable[[Mapping[str, Record]], Event]) -> dict[str, Record]:
        """Write an event.

        Args:
            event: what happened; a function sees the records as they are just before, and raises when nothing must be written.

        Returns:
            The records after it.

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
        """The records as all events tell them; those that have come since the last look are read. The lock is held."""
        for text in self._log.read_new():
            self._take(text)
        return self._fold(self._events)

    def _take(self, text: str) -> None:
        try:
            data = json.loads(text)
            self._events.append(type(self._nothing)(**{**data, "kind": self._kinds(data["kind"])}))
        except (ValueError, KeyError, TypeError) as error:
            number = len(self._events) + 1
            logger.error("event %d of the registry %s is left out: it cannot be read (%s)", number, self._log.location, error)
            self._events.append(self._nothing)


def _encoded(event: RegistryEvent) -> str:
    """An event as text, with the time of now."""
    return json.dumps(asdict(replace(event, at=datetime.now(UTC).isoformat(timespec="milliseconds"))))
