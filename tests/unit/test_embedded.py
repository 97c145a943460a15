"""The lock of a warehouse: one process at a time, free whenever its holders have died; and the end of a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sqlext.app import embedded
from sqlext.app.embedded import embedded_session
from sqlext.app.warehouse_lock import WarehouseLock
from sqlext.errors import SetupError
from sqlext.options import CONNECTORS_KEY

HOLDER = """
import subprocess, sys
from pathlib import Path
from sqlext.app.warehouse_lock import WarehouseLock
with WarehouseLock(Path(sys.argv[1])) as lock:
    child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=(lock.number,))
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "w"


@pytest.fixture
def holder(warehouse: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock, with a child that has inherited it as the JVM does, for half a second."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(warehouse), "0.5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()


def test_a_live_holder_is_named_at_once(warehouse: Path, holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(SetupError, match=rf"warehouse {warehouse} is in use by process {holder.pid}\."),
        WarehouseLock(warehouse),
    ):
        pass


def test_after_a_kill_what_the_holder_left_behind_is_waited_for(warehouse: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    said: list[str] = []
    with WarehouseLock(warehouse, said.append):
        assert (warehouse / "_metastore" / "lock").read_text() == f"{os.getpid()}\n"
    assert said in ([], [f"waiting for the JVM of process {holder.pid} to end"])


def test_who_stands_by_takes_over_when_the_holder_was_killed(warehouse: Path, holder: subprocess.Popen[str]) -> None:
    """Not while it is only paused."""
    said: list[str] = []

    def note(line: str) -> None:
        said.append(line)
        if line.startswith("standing by"):
            holder.send_signal(signal.SIGSTOP)
            holder.send_signal(signal.SIGCONT)
            holder.kill()
            holder.wait()

    with WarehouseLock(warehouse, note, stands_by=True):
        assert (warehouse / "_metastore" / "lock").read_text() == f"{os.getpid()}\n"
    assert said[0].startswith(
        f"standing by until process {holder.pid}, which uses the warehouse, has ended. It serves no clients"
    )
    assert said[-1] == f"process {holder.pid} has ended: taking over"


def test_a_lock_that_was_given_back_is_free(warehouse: Path) -> None:
    for _ in range(2):
        with WarehouseLock(warehouse):
            pass


@pytest.mark.parametrize("starts", [False, True])
def test_connectors_are_remembered_once_spark_has_started_with_them(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """A mistyped one must not stop every later start."""
    given: list[str] = []

    def start(folder: Path, settings: Mapping[str, str], *_: object) -> SparkSession:
        given.append(settings[CONNECTORS_KEY])
        if not starts:
            raise SetupError("There is no such connector.")
        return cast(SparkSession, None)

    monkeypatch.setattr(embedded, "_open_log", lambda *_: None)
    monkeypatch.setattr(embedded, "_start", start)
    monkeypatch.setattr(embedded, "_end", lambda *_: None)
    file = warehouse / "_sqlext" / "connectors"
    file.parent.mkdir(parents=True)
    file.write_text("avro")
    with nullcontext() if starts else pytest.raises(SetupError), embedded_session(warehouse, {CONNECTORS_KEY: "kafka"}):
        pass
    assert given == ["avro,kafka"]
    assert file.read_text() == ("avro,kafka" if starts else "avro")


def test_the_end_does_not_wait_for_a_callback_thread_that_reads() -> None:
    ours, javas = socket.socketpair()
    connection = SimpleNamespace(socket=ours)
    stream = ours.makefile("rb")
    reader = threading.Thread(target=stream.readline, daemon=True)
    reader.start()
    embedded._wake_callback_threads(
        SimpleNamespace(get_callback_server=lambda: SimpleNamespace(connections=[connection, SimpleNamespace(socket=javas)]))
    )
    reader.join(60)
    assert not reader.is_alive()
    stream.close()
