"""A log of events whose oldest ones are kept together, in snapshots: opening it reads few files, however long it has become.

The files, in one folder:

- `<number>.json`: an event; the first is number 1.
- `<number>.snapshot.json`: events that add up to what all events up to that number do.

A snapshot is written beside the events that it stands for. They are deleted later, when nobody can be reading them any more; who
slept for so long notices it, since the file that it read last is gone, and begins anew with a snapshot.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlext.errors import NotFoundError, SetupError
from sqlext.execution.coordination.event_log import Folder, text_of

logger = logging.getLogger(__name__)

SNAPSHOT_VERSION = 1
EVENTS_A_SNAPSHOT = 50
KEPT = timedelta(days=1)
"""For how long events and snapshots are kept after a snapshot has taken their place."""
_AT_ONCE = 8
"""The number of events that are read at once when a log is opened: on an object store, each takes some ten milliseconds."""
_ATTEMPTS = 5
_NAME = re.compile(r"(\d{20})(\.snapshot)?\.json")


@dataclass(frozen=True)
class News:
    """What has been read.

    Attributes:
        is_anew: whether the texts are all there is, and not only those since the last reading.
        texts: the events, in order; a torn one is an empty text.
    """

    is_anew: bool
    texts: Sequence[str]


class SnapshotLog:
    """One reader's and writer's view of such a log. Not thread-safe: its owner must serialize the calls.

    Args:
        folder: the folder of the files; the first file creates it.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._count = 0
        """The number of the last event that was read or written."""
        self._base = 0
        """The number of the snapshot from which this view began, and of the newest one that it knows; 0: there was none."""
        self._newest = 0

    @property
    def location(self) -> str:
        """The location of the log's folder."""
        return self._folder.location

    def read_new(self) -> News:
        """Return what was written since the last call, or everything.

        Raises:
            SetupError: events are gone that no readable snapshot stands for, or one cannot be read now: the next call reads the
                same again.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._read_on()
            except NotFoundError:  # another process has just deleted what a new snapshot stands for
                self._begin_anew()
        raise SetupError(f"The log {self.location} changes faster than it can be read.")

    def append(self, text: str) -> bool:
        """Write a text after those that were read or written.

        Returns:
            Whether it was written; False if another writer came first: `read_new` tells what it wrote.

        Raises:
            SetupError: it cannot be written.
        """
        file = self._event(self._count + 1)
        if not file.create_text(text):
            return False
        if self._count and not self._is_whole():  # others have gone on, and its number was free because they deleted that file
            file.delete()
            self._begin_anew()
            return False
        self._count += 1
        return True

    def compact(self, texts: Callable[[], Sequence[str]]) -> None:
        """Write a snapshot if it is time, and delete what older ones stand for. A failure is logged, and tried again later.

        Args:
            texts: returns events that add up to what all events until now do.
        """
        if self._count - self._newest < EVENTS_A_SNAPSHOT:
            return
        try:
            _, snapshots = self._listed()
            self._newest = max(snapshots, default=0)
            if self._count - self._newest < EVENTS_A_SNAPSHOT:
                return
            self._snapshot(self._count).create_text(_encoded(texts()))
            self._newest = self._count
            self._delete_old()
        except Exception as error:  # noqa: BLE001  # whatever the storage says: the event is written, and that counts
            logger.warning("the log %s was not compacted: %s", self.location, error)

    # Files.

    def _event(self, number: int) -> Folder:
        return self._folder.child(f"{number:020d}.json")

    def _snapshot(self, number: int) -> Folder:
        return self._folder.child(f"{number:020d}.snapshot.json")

    def _listed(self) -> tuple[list[int], list[int]]:
        """Return the numbers of all events and of all snapshots, in order."""
        found = [match for name in self._folder.names() if (match := _NAME.fullmatch(name))]
        return sorted(int(m[1]) for m in found if not m[2]), sorted(int(m[1]) for m in found if m[2])

    def _is_whole(self) -> bool:
        """Return whether the file that was read or written last is still there: then those after it are, too."""
        if not self._count:
            return False
        return (self._event(self._count) if self._count > self._base else self._snapshot(self._base)).exists()

    # Reading.

    def _begin_anew(self) -> None:
        self._count = self._base = 0

    def _read_on(self) -> News:
        is_anew = not self._is_whole()
        if is_anew:
            self._begin_anew()
        last, texts = self._read_all() if is_anew else (self._count, [])
        while (file := self._event(last + 1)).exists():
            texts.append(text_of(file))
            last += 1
        self._count = last  # not before: where one of them cannot be read now, all are read again
        return News(is_anew, texts)

    def _read_all(self) -> tuple[int, list[str]]:
        """Return the number of the last event, and all texts."""
        listed, snapshots = self._listed()
        numbers = set(listed)
        base, texts = self._newest_readable(snapshots)
        last = base
        while last + 1 in numbers:
            last += 1
        beyond = max((each for each in (*numbers, *snapshots) if each > last), default=None)
        if beyond is not None and last < max(snapshots, default=beyond):
            raise SetupError(
                f"The log {self.location} has number {beyond}, but no readable event {last + 1}: files are missing. Restore them."
            )
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sqlext-events") as pool:
            texts += pool.map(lambda number: text_of(self._event(number)), range(base + 1, last + 1))
        self._base, self._newest = base, max(snapshots, default=0)
        return last, texts

    def _newest_readable(self, snapshots: Sequence[int]) -> tuple[int, list[str]]:
        for number in reversed(snapshots):
            try:
                return number, list(_decoded(self._snapshot(number).read_text())[1])
            except (SetupError, ValueError, KeyError, TypeError) as error:
                logger.error("the snapshot %020d of %s is skipped: it cannot be read (%s)", number, self.location, error)
        return 0, []

    # Deleting.

    def _delete_old(self) -> None:
        """Delete what lies before the newest snapshot that is older than `KEPT`, which stays."""
        numbers, snapshots = self._listed()
        until, old = datetime.now(UTC) - KEPT, 0
        for number in snapshots[:-1]:
            written = self._written(number)
            if written is not None and written >= until:
                break
            old = old if written is None else number
        for number in snapshots:
            if number < old:
                self._snapshot(number).delete()
        for number in numbers:
            if number <= old:
                self._event(number).delete()

    def _written(self, snapshot: int) -> datetime | None:
        """Return when a snapshot was written; None: it cannot be read."""
        try:
            return _decoded(self._snapshot(snapshot).read_text())[0]
        except (SetupError, NotFoundError, ValueError, KeyError, TypeError):
            return None


def _encoded(texts: Sequence[str]) -> str:
    return json.dumps({"version": SNAPSHOT_VERSION, "at": datetime.now(UTC).isoformat(), "events": list(texts)})


def _decoded(text: str) -> tuple[datetime, Iterator[str]]:
    """Return when a snapshot was written, and its events; raise if it is torn, or has another version."""
    data = json.loads(text)
    if data["version"] != SNAPSHOT_VERSION:
        raise ValueError(f"its version is {data['version']}, and this sqlext reads {SNAPSHOT_VERSION}")
    return datetime.fromisoformat(data["at"]), (str(each) for each in data["events"])
