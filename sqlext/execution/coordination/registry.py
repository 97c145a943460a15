"""Registries: records that are the fold of a log of events, which several processes write."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Generic, TypeVar

from sqlext.errors import FlowError, SetupError
from sqlext.execution.coordination.snapshot_log import SnapshotLog

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


class Registry(Generic[Event, Record]):
    """The records in a log of events, by id. Thread-safe; the lock guards what has been read.

    Of two drivers that write at once, the later one reads the other's event, checks again and retries.

    Args:
        log: the log; nobody else uses this view of it.
        kinds: the possible values of an event's `kind`.
        nothing: an event without effect; it replaces one that cannot be read, and defines the events' class.
        fold: returns the records after some events, from those before them.
        events_of: returns events that add up to one record.
        written: called with each event that this process has written, and the records after it.
    """

    def __init__(
        self,
        log: SnapshotLog,
        kinds: type[StrEnum],
        nothing: Event,
        fold: Callable[[Iterable[Event], Mapping[str, Record]], dict[str, Record]],
        events_of: Callable[[Record], Sequence[Event]],
        written: Callable[[Event, Mapping[str, Record]], None] = lambda event, records: None,
    ) -> None:
        self._written = written
        self._log = log
        self._kinds = kinds
        self._nothing = nothing
        self._fold = fold
        self._events_of = events_of
        self._lock = threading.Lock()
        self._known: dict[str, Record] = {}

    def read(self) -> dict[str, Record]:
        """Return all records, by id.

        Raises:
            SetupError: the log has lost events.
        """
        with self._lock:
            return dict(self._records())

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
        made, records = self._append(event)
        self._written(made, records)
        return records

    def _append(self, event: Event | Callable[[Mapping[str, Record]], Event]) -> tuple[Event, dict[str, Record]]:
        with self._lock:
            for _ in range(_ATTEMPTS):
                records = self._records()
                made = _timed(event(records) if callable(event) else event)
                text = _encoded(made)
                try:
                    is_mine = self._log.append(text)
                except SetupError as error:
                    raise FlowError(f"The registry {self._log.location} cannot be written: {error}") from None
                if is_mine:
                    self._take([text])
                    self._log.compact(self._snapshot)
                    return made, dict(self._known)
        raise FlowError(f"The registry {self._log.location} is busy: other drivers keep writing to it. Try again.")

    def _records(self) -> Mapping[str, Record]:
        """Return the records after all events, including new ones in the log. The lock must be held."""
        news = self._log.read_new()
        if news.is_anew:
            self._known = {}
        if news.texts:
            self._take(news.texts)
        return self._known

    def _take(self, texts: Sequence[str]) -> None:
        self._known = self._fold([self._event(text) for text in texts], self._known)

    def _event(self, text: str) -> Event:
        try:
            data = json.loads(text)
            return type(self._nothing)(**{**data, "kind": self._kinds(data["kind"])})
        except (ValueError, KeyError, TypeError) as error:
            logger.error("an event of the registry %s is skipped: it cannot be read (%s)", self._log.location, error)
            return self._nothing

    def _snapshot(self) -> list[str]:
        return [_encoded(event) for record in self._known.values() for event in self._events_of(record)]


def _timed(event: Event) -> Event:
    """Return an event with the current time."""
    return replace(event, at=datetime.now(UTC).isoformat(timespec="milliseconds"))


def _encoded(event: RegistryEvent) -> str:
    return json.dumps(asdict(event))
