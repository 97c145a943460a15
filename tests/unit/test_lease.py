"""Signs of life, as other processes read them: without Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from sqlext.errors import NotFoundError, SetupError, TornFileError
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.lease import DEAD_AFTER_SECONDS, is_alive, machine


class Hosts:
    """A folder with one file, whose reads are what the test says, and which the storage has dated `age` seconds before `NOW`."""

    def __init__(self, *reads: str | Exception, age: float | None = None) -> None:
        self.reads = list(reads)
        self.age = age

    def child(self, *names: str) -> Hosts:
        return self

    def modified(self) -> float | None:
        return None if self.age is None else NOW - self.age

    def read_text(self) -> str:
        read = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        if isinstance(read, Exception):
            raise read
        return read


NOW = 5_000_000.0
"""The storage's clock."""


def beat(age: float = 0.0, pid: int | None = None, on: str = "") -> str:
    return json.dumps({"host": "h", "machine": on or machine(), "pid": pid or os.getpid(), "at": time.time() - age})


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
        (lambda: [beat(pid=NO_PROCESS, on="another container of that name")], True),
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


@pytest.mark.parametrize("clock", [-600.0, 0.0, 600.0])
@pytest.mark.parametrize(("age", "expected"), [(0.0, True), (DEAD_AFTER_SECONDS - 1, True), (DEAD_AFTER_SECONDS + 1, False)])
def test_the_clocks_of_machines_may_differ(clock: float, age: float, expected: bool) -> None:
    """Both files are dated by the storage; what a host takes for the time does not matter."""
    file = Hosts(beat(clock, on="elsewhere"), age=age)
    assert is_alive(cast(Folder, file), "h", NOW) is expected


def test_a_storage_without_dates_leaves_the_clocks_of_machines() -> None:
    assert is_alive(cast(Folder, Hosts(beat(on="elsewhere"))), "h", NOW)
    assert not is_alive(cast(Folder, Hosts(beat(DEAD_AFTER_SECONDS + 1, on="elsewhere"))), "h", NOW)
