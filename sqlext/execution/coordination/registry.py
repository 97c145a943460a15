"""Registries: records that are the fold of a log of events, which several processes write.

Processes of other versions may write them, too. What this version cannot read has no record here, and is kept: its events go into
snapshots as they were written.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from sqlext.errors import FlowError, NameTakenError, SetupError, SqlextError
from sqlext.execution.coordination.snapshot_log import SnapshotLog

logger = logging.getLogger(__name__)

_ATTEMPTS = 100
_DROPPED = "dropped"
"""The kind of the event that ends a flow or view."""
_NAMES = ("name", "full_name", "target")
"""The fields of the definitions of flows and views that may hold a qualified name."""


@dataclass(frozen=True)
class RegistryEvent:
    """The common fields of a registry's events; a subclass adds the id of their subject, and its definition, `spec`.

    Attributes:
        id_field: the name of the field with that id.
        at: when it was written, ISO 8601.
    """

    id_field: ClassVar[str]
    at: str = field(default="", kw_only=True)


Event = TypeVar("Event", bound=RegistryEvent)
Record = TypeVar("Record")


@dataclass(frozen=True)
class _Unread:
    """A subject of which this version cannot read an event.

    Attributes:
        because: why.
        texts: the events that add up to it.
    """

    because: str
    texts: list[str]


class Registry(Generic[Event, Record]):
    """The records in a log of events, by id. Thread-safe; the lock guards what has been read.

    Of two drivers that write at once, the later one reads the other's event, checks again and retries.

    Args:
        log: the log; nobody else uses this view of it.
        kinds: the possible values of an event's `kind`.
        event: the events' class.
        read_spec: reads the definition in an event; raises SqlextError if this version cannot.
        fold: returns the records after some events, from those before them.
        events_of: returns events that add up to one record.
        written: called with each event that this process has written, and the records after it.
    """

    def __init__(
        self,
        log: SnapshotLog,
        kinds: type[StrEnum],
        event: type[Event],
        read_spec: Callable[[str], object],
        fold: Callable[[Iterable[Event], Mapping[str, Record]], dict[str, Record]],
        events_of: Callable[[Record], Sequence[Event]],
        written: Callable[[Event, Mapping[str, Record]], None] = lambda event, records: None,
    ) -> None:
        self._written = written
        self._log = log
        self._kinds = kinds
        self._event_class = event
        self._read_spec = read_spec
        self._fold = fold
        self._events_of = events_of
        self._lock = threading.Lock()
        self._known: dict[str, Record] = {}
        self._unread: dict[str, _Unread] = {}

    def read(self) -> dict[str, Record]:
        """Return all records, by id.

        Raises:
            SetupError: the log has lost events.
        """
        with self._lock:
            return dict(self._records())

    def refuse_unread(self, name: tuple[str, ...]) -> None:
        """Refuse a qualified name that something has which this version cannot read, as far as its name can be seen.

        Raises:
            NameTakenError: something had it at the last reading.
        """
        with self._lock:
            for unread in self._unread.values():
                if [part.lower() for part in name] in _names_in(unread.texts):
                    where = f"{'.'.join(name)} is in the registry {self._log.location}"
                    raise NameTakenError(f"{where}, in a record that cannot be read. {unread.because}")

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
            self._known, self._unread = {}, {}
        if news.texts:
            self._take(news.texts)
        return self._known

    def _take(self, texts: Sequence[str]) -> None:
        events: list[Event] = []
        for text in texts:
            try:
                data = dict(json.loads(text))
            except (ValueError, TypeError) as error:
                logger.error("an event of the registry %s is skipped: it is torn (%s)", self._log.location, error)
                continue
            subject = str(data.get(self._event_class.id_field))
            if subject in self._unread and data.get("kind") == _DROPPED:
                del self._unread[subject]
            if subject in self._unread:
                self._unread[subject].texts.append(text)
                continue
            try:
                events.append(self._event(data))
            except (SqlextError, ValueError, KeyError, TypeError) as error:
                logger.error("%s of the registry %s is skipped: %s", subject, self._log.location, error)
                self._known, events = self._fold(events, self._known), []
                record = self._known.pop(subject, None)
                before = [] if record is None else map(_encoded, self._events_of(record))
                self._unread[subject] = _Unread(str(error), [*before, text])
        self._known = self._fold(events, self._known)

    def _event(self, data: dict[str, Any]) -> Event:
        """Return an event; raise if this version cannot read it."""
        event = self._event_class(**{**data, "kind": self._kinds(data["kind"])})
        if data.get("spec"):
            self._read_spec(data["spec"])
        return event

    def _snapshot(self) -> list[str]:
        known = [_encoded(event) for record in self._known.values() for event in self._events_of(record)]
        return known + [text for unread in self._unread.values() for text in unread.texts]


def _timed(event: Event) -> Event:
    """Return an event with the current time."""
    return replace(event, at=datetime.now(UTC).isoformat(timespec="milliseconds"))


def _encoded(event: RegistryEvent) -> str:
    return json.dumps(asdict(event))


def _names_in(texts: Iterable[str]) -> list[list[str]]:
    """Return the names in definitions that cannot be read otherwise, in lower case."""
    found: list[list[str]] = []
    for text in texts:
        try:
            spec = dict(json.loads(json.loads(text)["spec"]))
        except (ValueError, KeyError, TypeError):
            continue
        found += [[str(part).lower() for part in spec[key]] for key in _NAMES if isinstance(spec.get(key), list)]
    return found
