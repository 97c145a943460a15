"""Storage in memory: as an object store has it, with a request for each look, and without renames."""

from __future__ import annotations

import threading
import time
from collections.abc import MutableMapping

from sqlext.errors import NotFoundError, SetupError, TornFileError


class MemoryFolder:
    """A folder or file.

    Args:
        files: the texts of all files, by location.
        seconds: how long a request takes.

    Attributes:
        requests: the requests of this folder and all below it.
        unwritable: the end of names that cannot be written.
        failing: the names whose next read fails, once each.
        torn: the names that are torn.
    """

    def __init__(self, location: str = "mem:/r", files: MutableMapping[str, str] | None = None, seconds: float = 0.0) -> None:
        self.location = location
        self.files: MutableMapping[str, str] = {} if files is None else files
        self.requests: list[str] = []
        self.unwritable = "?"
        self.failing: set[str] = set()
        self.torn: set[str] = set()
        self._seconds = seconds
        self._lock = threading.Lock()

    def child(self, *names: str) -> MemoryFolder:
        made = MemoryFolder("/".join((self.location, *names)), self.files, self._seconds)
        made.requests, made.unwritable, made._lock = self.requests, self.unwritable, self._lock
        made.failing, made.torn = self.failing, self.torn
        return made

    def exists(self) -> bool:
        self._request("exists")
        return self.location in self.files

    def modified(self) -> float | None:
        return None

    def names(self) -> list[str]:
        self._request("names")
        return [each.rpartition("/")[2] for each in list(self.files) if each.startswith(f"{self.location}/")]

    def read_text(self) -> str:
        self._request("read")
        name = self.location.rpartition("/")[2]
        if name in self.failing:
            self.failing.discard(name)
            raise SetupError(f"The file {self.location} cannot be read: connection reset.")
        if name in self.torn:
            raise TornFileError(f"The file {self.location} cannot be read: checksum error.")
        text = self.files.get(self.location)  # at once: other threads delete files
        if text is None:
            raise NotFoundError(f"There is no file {self.location}.")
        return text

    def create_text(self, text: str) -> bool:
        self._request("create")
        if self.location.endswith(self.unwritable):
            raise SetupError(f"The file {self.location} cannot be written.")
        with self._lock:
            if self.location in self.files:
                return False
            self.files[self.location] = text
            return True

    def delete(self) -> None:
        self._request("delete")
        self.files.pop(self.location, None)

    def _request(self, what: str) -> None:
        self.requests.append(f"{what} {self.location.rpartition('/')[2]}")
        time.sleep(self._seconds)
