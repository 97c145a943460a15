"""Signs of life, as other processes read them: without Spark."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from sqlext.errors import NotFoundError, SetupError, TornFileError
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.lease import DEAD_AFTER_SECONDS, is_alive


class Hosts:
    """A folder with one file, whose reads are what the test says."""

    def __init__(self, *reads: str | Exception) -> None:
        self.reads = list(reads)

    def child(self, *names: str) -> Hosts:
        return self

    def read_text(self) -> str:
        read = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        if isinstance(read, Exception):
            raise read
        return read


def beat(age: float = 0.0, pid: int | None = None, host: str = "") -> str:
    return json.dumps({"host": host or socket.gethostname(), "pid": pid or os.getpid(), "at": time.time() - age})


def alive(*reads: str | Exception) -> bool:
    return is_alive(cast(Folder, Hosts(*reads)), "h")


NO_PROCESS = 2**22 + 1
TORN = TornFileError("torn")


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (lambda: [beat()], True),
        (lambda: [beat(DEAD_AFTER_SECONDS + 1)], False),
        (lambda: [beat(pid=NO_PROCESS)], False),
        (lambda: [beat(pid=NO_PROCESS, host="elsewhere")], True),
        (lambda: [NotFoundError("gone")], False),
        (lambda: ["{"], False),
        (lambda: ["{}"], False),
        (lambda: [TORN], False),
        (lambda: [TORN, beat()], True),
    ],
)
def test_a_host_is_alive_while_it_gives_signs_of_life(reads: Callable[[], list[Any]], expected: bool) -> None:
    """A file that a process was killed over never matches its checksum; one that is just being written does soon."""
    assert alive(*reads()) is expected


def test_a_sign_of_life_that_may_not_be_read_is_no_death() -> None:
    with pytest.raises(SetupError, match="denied"):
        alive(SetupError("denied"))
