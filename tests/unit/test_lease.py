"""Signs of life, as other processes read them: without Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sqlext.errors import NotFoundError, SetupError, TornFileError
from sqlext.execution.coordination import lease
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.lease import DEAD_AFTER_SECONDS, Lease, is_alive, machine
from sqlext.spark.storage import HadoopPath


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


def alive(*reads: str | Exception, has_gaps: bool = False) -> bool:
    return is_alive(cast(Folder, Hosts(*reads)), "h", has_gaps=has_gaps)


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


def test_where_a_replaced_file_is_missing_for_a_moment_it_is_looked_for_again() -> None:
    gone = NotFoundError("gone")
    assert alive(gone, gone, beat(), has_gaps=True)
    assert not alive(gone, has_gaps=True)
    assert not alive(gone, beat())


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


class Storage:
    """A home whose writes last as long as the test says, with a clock of its own.

    Attributes:
        ahead: of the clock of this machine, in seconds.
    """

    replaces_at_once = True

    def __init__(self) -> None:
        self.now = 0.0
        self.ahead = 0.0
        self.write_seconds = 0.0
        self.is_down = False
        self.files: dict[str, tuple[str, float]] = {}

    def child(self, *names: str) -> File:
        return File(self, names[-1])

    def refuse_double_creation(self) -> None: ...

    def make_private(self) -> None: ...

    def close_to_others(self) -> None: ...


class File(Storage):
    def __init__(self, storage: Storage, name: str) -> None:
        self.storage = storage
        self.name = name

    def child(self, *names: str) -> File:
        return File(self.storage, names[-1])

    def write_text(self, text: str) -> None:
        if self.storage.is_down:
            raise SetupError("the storage does not answer")
        self.storage.now += self.storage.write_seconds
        self.storage.files[self.name] = text, self.storage.now + 1_000.0

    def read_text(self) -> str:
        if self.name not in self.storage.files:
            raise NotFoundError("gone")
        return self.storage.files[self.name][0]

    def modified(self) -> float | None:
        return self.storage.files[self.name][1] if self.name in self.storage.files else None

    def statuses(self) -> list[Any]:
        return []


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    """The storage of two leases in this process, whose clock is the storage's too."""
    made = Storage()
    clocks = SimpleNamespace(monotonic=lambda: made.now, time=lambda: made.now + made.ahead)
    monkeypatch.setattr(lease, "time", clocks)
    return made


def lease_of(storage: Storage) -> Lease:
    made = Lease(cast(HadoopPath, storage))
    made.beat()
    return made


def test_a_beat_that_takes_long_makes_nobody_older(storage: Storage) -> None:
    other, mine = lease_of(storage), lease_of(storage)
    storage.now = 6.0
    storage.write_seconds = 31.0
    mine.beat()
    storage.write_seconds = 0.0
    other.beat()
    storage.now += 0.1
    assert mine.is_alive(other.host_id)
    assert not mine.is_dead(other.host_id)
    assert other.is_alive(mine.host_id)


def test_while_its_own_beats_fail_a_host_takes_no_other_one_for_dead(storage: Storage) -> None:
    other, mine = lease_of(storage), lease_of(storage)
    storage.is_down = True
    storage.now = 60.0
    with pytest.raises(SetupError):
        mine.beat()
    assert mine.is_alive(other.host_id)
    with pytest.raises(SetupError):
        mine.is_dead(other.host_id)
    storage.is_down = False
    mine.beat()
    assert mine.is_dead(other.host_id), "60 seconds without a sign of life"


def test_who_undoes_the_work_of_a_host_goes_by_the_storage_s_clock(storage: Storage) -> None:
    """Also a process that has given no sign of life yet, on a machine whose clock is ahead."""
    other, mine = lease_of(storage), Lease(cast(HadoopPath, storage))
    storage.ahead = 100.0
    assert not mine.is_dead(other.host_id)
    assert mine.has_begun


@pytest.mark.parametrize(("seconds", "expected"), [(DEAD_AFTER_SECONDS - 1, True), (DEAD_AFTER_SECONDS + 1, False)])
def test_a_host_that_is_silent_gets_older_between_the_beats_of_others(storage: Storage, seconds: float, expected: bool) -> None:
    other, mine = lease_of(storage), lease_of(storage)
    storage.now = 24.0
    mine.beat()
    storage.now = seconds
    assert mine.is_alive(other.host_id) is expected


def test_a_beat_that_fails_is_tried_again_at_once(storage: Storage) -> None:
    mine = Lease(cast(HadoopPath, storage))
    storage.is_down = True
    with pytest.raises(SetupError):
        mine.beat()
    assert not mine.has_begun
    storage.is_down = False
    mine.beat()
    assert mine.has_begun
    assert mine.host_id in storage.files
