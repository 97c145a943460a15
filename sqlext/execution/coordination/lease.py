"""Leases, which show whether the process that runs a flow is alive: each host regularly writes a small file under the home.

How old a host's file is, another host sees by the clock of the storage, which has dated that file and its own: the clocks of
machines may differ. While the storage does not take its own signs of life, the others do not get older for it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from pathlib import Path

from sqlext.errors import NotFoundError, SetupError, TornFileError
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.home import make_home
from sqlext.processes import is_process
from sqlext.spark.failures import SPARK_ERRORS, reason_of
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""The time between two writes of a host's file, in seconds."""
DEAD_AFTER_SECONDS = 30.0
"""How old a host's last sign of life is when the host counts as dead."""
_TRUSTED_SECONDS = 2 * BEAT_SECONDS
"""How long after its own last sign of life a host sees others get older."""
_FORGOTTEN_AFTER_SECONDS = 86_400.0
"""How old the sign of life of a dead host is when another process deletes it."""
_READS = 3
_BETWEEN_READS = 0.05
"""How often, and how many seconds apart, a sign of life is read that may just be being replaced."""


class Lease:
    """This process's sign of life, and access to those of others.

    Used by the host's thread `sqlext-lease` and by statements; each call is one or two small file operations.
    """

    def __init__(self, home: HadoopPath) -> None:
        self._home = home
        self._folder = home.child("hosts")
        self.host_id = uuid.uuid4().hex
        self._beaten: tuple[float, float | None] | None = None  # when it last did, by this process's clock and by the storage's

    @property
    def has_begun(self) -> bool:
        """Whether this process has given a sign of life yet."""
        return self._beaten is not None

    def beat(self) -> None:
        """Write the file, if it is time. It is the first file that a process writes, so this creates the home."""
        before = self._beaten
        if before is not None and time.monotonic() - before[0] < BEAT_SECONDS:
            return
        if before is None:
            make_home(self._home)
        file = self._folder.child(self.host_id)
        beat = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "at": time.time()}
        file.write_text(json.dumps(beat))
        dated = file.modified()
        self._beaten = time.monotonic(), dated  # in this order: however long that took, nobody looks older than they are
        if before is None:
            self._forget_old()

    def _forget_old(self) -> None:
        """Delete the signs of life of hosts that died long ago: each process that is killed leaves one."""
        try:
            written = {str(each.getPath().getName()): int(each.getModificationTime()) / 1000 for each in self._folder.statuses()}
            now = written.get(self.host_id, float("-inf"))
            for name in [name for name, at in written.items() if now - at > _FORGOTTEN_AFTER_SECONDS]:
                self._folder.child(name).delete()
        except SPARK_ERRORS as error:
            logger.warning("old signs of life could not be deleted: %s", reason_of(error))

    def is_elsewhere(self, host_id: str) -> bool:
        """Return whether a host is another one, and alive; as `is_dead` sees it."""
        return host_id != self.host_id and not self.is_dead(host_id)

    def is_dead(self, host_id: str) -> bool:
        """Return whether a host is not alive, for what undoes or takes over its work.

        This process gives a sign of life first, which shows the storage's clock.
        """
        if host_id == self.host_id:
            return False
        self.beat()
        return not is_alive(self._folder, host_id, self._storage_time(), has_gaps=not self._home.replaces_at_once)

    def is_alive(self, host_id: str) -> bool:
        """Return whether a host has given a sign of life recently; on this machine, also whether its process exists.

        This is one look, for what is shown.
        """
        if host_id == self.host_id:
            return True
        return is_alive(self._folder, host_id, self._storage_time())

    def _storage_time(self) -> float | None:
        """Return the time by the clock of the storage, but not much later than the last beat. None: it is not known yet."""
        beaten, dated = self._beaten or (0.0, None)
        return None if dated is None else dated + min(time.monotonic() - beaten, _TRUSTED_SECONDS)

    def end(self) -> None:
        """Delete the sign of life, so that the next process need not wait until it is too old."""
        self._folder.child(self.host_id).delete()


def is_alive(hosts: Folder, host_id: str, now: float | None = None, has_gaps: bool = False) -> bool:
    """Return whether a host is alive.

    Args:
        hosts: the folder of the signs of life, `hosts` in the home.
        host_id: the id of the host.
        now: the time by the clock of the storage; None, for processes that give no sign of life themselves: it is not known, and
            the clocks of machines are compared.
        has_gaps: whether a file that is replaced is missing for a moment; one that is missing is then looked for again.

    Raises:
        SetupError: its sign of life is there, and cannot be read.
    """
    try:
        file = hosts.child(host_id)
        beat = json.loads(_read(file, (NotFoundError, TornFileError) if has_gaps else (TornFileError,)))
        written = None if now is None else file.modified()
        age = time.time() - float(beat["at"]) if now is None or written is None else now - written
        return age < DEAD_AFTER_SECONDS and not (beat.get("machine") == machine() and not is_process(int(beat["pid"])))
    except (NotFoundError, TornFileError, ValueError, KeyError, TypeError):  # gone, or torn by a crash
        return False


def machine() -> str:
    """Return what tells the processes whose ids can be compared: those of one boot of one machine, and of one container there."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not on Linux
        return socket.gethostname()


def beats(hosts: Folder) -> list[tuple[str, float]]:
    """Return the machine and the time, in seconds since 1970, of each sign of life that can be read."""
    found: list[tuple[str, float]] = []
    for name in hosts.names():
        try:
            beat = json.loads(hosts.child(name).read_text())
            found.append((str(beat["host"]), float(beat["at"])))
        except (NotFoundError, SetupError, ValueError, KeyError, TypeError):
            continue  # gone, torn, or no sign of life, such as a checksum
    return found


def _read(file: Folder, passing: tuple[type[Exception], ...]) -> str:
    """Read a sign of life, which a live host may just be replacing: the file comes first, and its checksum after it.

    Args:
        passing: the errors that are gone when it is replaced.
    """
    for _ in range(_READS):
        try:
            return file.read_text()
        except passing:
            time.sleep(_BETWEEN_READS)
    return file.read_text()
