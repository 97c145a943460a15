"""Whether the process that runs a flow is alive: each host beats in a small file under the home."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid

from sqlext.errors import NotFoundError
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.home import make_home
from sqlext.spark.storage import HadoopPath

BEAT_SECONDS = 5.0
"""How often a host writes its file."""
_DEAD_AFTER = 30.0


class Lease:
    """This process's sign of life, and a look at those of others.

    Used by the host's ticker and by statements; each call is one small file operation.
    """

    def __init__(self, home: HadoopPath) -> None:
        self._home = home
        self._folder = home.child("hosts")
        self.host_id = uuid.uuid4().hex
        self._beaten = float("-inf")

    @property
    def has_begun(self) -> bool:
        """Whether this process has ever given a sign."""
        return self._beaten > float("-inf")

    def beat(self) -> None:
        """Write the file, if it is time. It is the first thing that a process writes, and so makes the home."""
        if time.monotonic() - self._beaten < BEAT_SECONDS:
            return
        if not self.has_begun:
            make_home(self._home)
        self._beaten = time.monotonic()
        beat = {"host": socket.gethostname(), "pid": os.getpid(), "at": time.time()}
        self._folder.child(self.host_id).write_text(json.dumps(beat))

    def is_elsewhere(self, host_id: str) -> bool:
        """Whether a host is another one, and alive."""
        return host_id != self.host_id and self.is_alive(host_id)

    def is_alive(self, host_id: str) -> bool:
        """Whether a host has beaten of late; on this machine, also whether its process is there."""
        return host_id == self.host_id or is_alive(self._folder, host_id)

    def end(self) -> None:
        """Take the sign away: whoever comes next need not wait for it to grow old."""
        self._folder.child(self.host_id).delete()


def is_alive(hosts: Folder, host_id: str) -> bool:
    """The same, for whoever is no host.

    Args:
        hosts: the folder of the signs, `hosts` in the home.
    """
    try:
        beat = json.loads(hosts.child(host_id).read_text())
        is_fresh = time.time() - float(beat["at"]) < _DEAD_AFTER
        return is_fresh and not (beat["host"] == socket.gethostname() and not _is_process(int(beat["pid"])))
    except (NotFoundError, ValueError, KeyError, TypeError):  # gone, or torn by a crash
        return False


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
