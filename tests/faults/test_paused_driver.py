"""A driver is paused for longer than its sign of life lasts, and goes on when another one, with another clock, has its flow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.faults.hosts import DEADLINE, epochs_of
from tests.java import java_options
from tests.support import eventually

AHEAD = 600.0
RUNS, ELSEWHERE = "RUNNING None None", "RUNNING runs in another process None"
FENCED = "FENCED None Another driver has taken over flow `counting` with epoch 2. This one has epoch 1, and stops here."


class Driver:
    """A process of `tests.faults.driver`."""

    def __init__(self, shared: Path, own: Path, ahead: float) -> None:
        own.mkdir()
        self._told = own / "flows.txt"
        self.output = own / "output.txt"
        command = [sys.executable, "-m", "tests.faults.driver", str(shared), str(own), str(ahead), java_options()]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def says(self, line: str) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return self._told.exists() and self._told.read_text() == line

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to its JVM."""
        for each in (self.process.pid, *self._java()):
            os.kill(each, number)

    def expect(self, line: str) -> None:
        eventually(lambda: self.says(line), DEADLINE, self._said)

    def _java(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _said(self) -> str:
        """Return what the driver has told, and what the threads of Python and Java do now."""
        self.process.send_signal(signal.SIGUSR1)
        for each in self._java():
            os.kill(each, signal.SIGQUIT)
        with suppress(AssertionError):
            eventually(lambda: "JNI global refs" in self.output.read_text(), 10.0)  # the end of Java's answer
        return (self._told.read_text() if self._told.exists() else "It has told nothing.\n") + self.output.read_text()


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        if driver.process.poll() is None:
            driver.signal(signal.SIGKILL)
        driver.process.wait()


def test_it_notices_before_it_writes(tmp_path: Path, drivers: list[Driver]) -> None:
    added: Counter[int] = Counter()

    def add() -> None:
        write_deltalake(str(tmp_path / "readings"), pyarrow.table({"sensor": list(range(10))}), mode="append")
        added.update(range(10))

    def is_counted() -> bool:
        rows = DeltaTable(str(tmp_path / "counts")).to_pyarrow_table().to_pylist()
        return {row["sensor"]: row["n"] for row in rows} == dict(added)

    drivers.append(Driver(tmp_path, tmp_path / "first", 0))
    first = drivers[0]
    first.expect(RUNS)
    add()
    eventually(is_counted, DEADLINE)
    drivers.append(Driver(tmp_path, tmp_path / "second", AHEAD))
    second = drivers[1]
    second.expect(ELSEWHERE)  # by the second one's clock, the first has given no sign of life for ten minutes
    add()
    eventually(is_counted, DEADLINE)
    add()
    first.signal(signal.SIGSTOP)
    add()
    second.expect(RUNS)
    eventually(is_counted, DEADLINE)
    first.signal(signal.SIGCONT)
    add()
    first.expect(FENCED)
    add()
    eventually(is_counted, DEADLINE)
    second.expect(RUNS)
    epochs = [epoch for epoch, _ in epochs_of(str(tmp_path / "counts"))]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}
