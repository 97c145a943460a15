"""The lock of a warehouse: one process at a time, free whenever its holders have died; and the end of a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sqlext.app import embedded
from sqlext.app.embedded import _Lock
from sqlext.errors import SetupError

HOLDER = """
import subprocess, sys
from pathlib import Path
from sqlext.app.embedded import _Lock
with _Lock(Path(sys.argv[1]), None) as lock:
    child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=(lock,))
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    (tmp_path / "w" / "_metastore").mkdir(parents=True)
    return tmp_path / "w" / "_metastore" / "lock"


@pytest.fixture
def holder(lock_file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock, with a child that has inherited it as the JVM does, for half a second."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock_file), "0.5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()


def test_a_live_holder_is_named_at_once(lock_file: Path, holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(SetupError, match=rf"warehouse {lock_file.parent.parent} is in use by process {holder.pid}\."),
        _Lock(lock_file, None),
    ):
        pass


def test_after_a_kill_what_the_holder_left_behind_is_waited_for(lock_file: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    said: list[str] = []
    with _Lock(lock_file, said.append):
        assert lock_file.read_text() == f"{os.getpid()}\n"
    assert said in ([], [f"waiting for the JVM of process {holder.pid} to end"])


def test_a_lock_that_was_given_back_is_free(lock_file: Path) -> None:
    for _ in range(2):
        with _Lock(lock_file, None):
            pass


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
