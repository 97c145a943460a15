"""The lock of a warehouse folder, which admits one process, as its catalog (Derby) does; others are refused, or stand by."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from sqlext.app.served import ServedFile, ways_in
from sqlext.clock import Deadline
from sqlext.errors import SetupError
from sqlext.private_files import make_private_folder
from sqlext.processes import is_process

JVM_ENDS_WITHIN = 30.0
"""The time, in seconds, within which a JVM ends after its Python process."""
_LOOK_SECONDS = 0.2


class WarehouseLock:
    """The lock, held in a `with` block; its folders are created if missing.

    This process holds the lock, and so does its JVM, which inherits the file: the lock is free when both have ended, however they
    ended. So whoever stands by takes over from a process that was killed, and never from one that was only paused.

    Args:
        warehouse: the folder.
        progress: called with a line of text where it takes long.
        stands_by: whether to wait until it is free; else a process that holds it is an error.
    """

    def __init__(self, warehouse: Path, progress: Callable[[str], None] | None = None, stands_by: bool = False) -> None:
        self._given = str(warehouse)
        self._folder = warehouse.absolute()
        self._path = self._folder / "_metastore" / "lock"
        self._served = ServedFile(warehouse)
        self._progress = progress or (lambda _: None)
        self._stands_by = stands_by
        self._file: IO[str] | None = None

    @property
    def number(self) -> int:
        """The descriptor of the file, for the JVM."""
        assert self._file is not None
        return self._file.fileno()

    def __enter__(self) -> WarehouseLock:
        """Take the lock.

        Raises:
            SetupError: the folder cannot be used, or another process holds the lock.
        """
        if ":/" in self._given:
            raise SetupError(
                f"The warehouse must be a local folder, not {self._given}. For other storage use sqlext.configure(builder)."
            )
        try:
            for name in ("_metastore", "_sqlext"):
                make_private_folder(self._folder / name)
            self._file = self._path.open("a+")
        except OSError as error:
            raise SetupError(f"The warehouse folder {self._folder} cannot be used: {error.strerror}.") from None
        try:
            self._wait()
        except BaseException:
            self._file.close()
            raise
        self._served.delete()
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _wait(self) -> None:
        deadline, told = Deadline(JVM_ENDS_WITHIN), ""
        while not self._take():
            pid = self._path.read_text().strip()
            if not self._stands_by and (_is_process(pid) or deadline.has_passed):
                raise self._in_use(pid)
            if pid != told:
                told = pid
                self._progress(self._standing_by(pid) if _is_process(pid) else f"waiting for the JVM of process {pid} to end")
            time.sleep(_LOOK_SECONDS)
        if told and self._stands_by:
            self._progress(f"process {told} has ended: taking over")

    def _standing_by(self, pid: str) -> str:
        return f"standing by until process {pid}, which uses the warehouse, has ended. {ways_in(self._served.read(pid))}"

    def _in_use(self, pid: str) -> SetupError:
        servers = self._served.read(pid) if _is_process(pid) else []
        return SetupError(
            f"The warehouse {self._folder} is in use by process {pid or '(unknown)'}. {ways_in(servers)} The catalog admits one "
            "process at a time: to open it here, end that process first, or choose another folder with --warehouse."
        )

    def _take(self) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def holder_of(warehouse: Path) -> str | None:
    """Return the id of the process that uses a warehouse; None: nobody does."""
    try:
        with (warehouse.absolute() / "_metastore" / "lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return (warehouse / "_metastore" / "lock").read_text().strip() or "(unknown)"
    return None


def _is_process(pid: str) -> bool:
    return pid.isdecimal() and is_process(int(pid))
