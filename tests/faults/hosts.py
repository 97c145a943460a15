"""Hosts of one warehouse, as processes of their own: they serve Spark Connect, stand by, and are killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow
from deltalake import DeltaTable, write_deltalake

from tests.java import java_options
from tests.support import eventually, free_port

DEADLINE = 300.0


@dataclass
class Host:
    """A process that serves, or stands by."""

    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        return self.output.read_text()

    def serves(self) -> bool:
        assert self.process.poll() is None, self.said()
        return "Spark Connect server on" in self.said()


class Hosts:
    """The hosts of one warehouse, all at the same port.

    Args:
        folder: has the warehouse, and what hosts print.
        settings: arguments for each host.
        launcher: the module that runs `sqlext`, and its own arguments.
        environment: of each host; by default, that of this process.
    """

    def __init__(
        self,
        folder: Path,
        settings: Sequence[str] = (),
        launcher: Sequence[str] = ("sqlext.cli",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.started: list[Host] = []
        self.rows = 0
        self.port = free_port()
        self._settings = settings
        self._launcher = launcher
        self._environment = environment

    def start(self, *options: str) -> Host:
        output = self.folder / f"host{len(self.started)}.txt"
        command = [sys.executable, "-m", *self._launcher, "serve", "--connect", "--connect-port", str(self.port), *options]
        command += ["--warehouse", str(self.folder / "warehouse")]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}", *self._settings]
        with output.open("w") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=self._environment
            )
        self.started.append(Host(process, output))
        return self.started[-1]

    def next_after(self, host: Host, meanwhile: Callable[[], object]) -> Host:
        """Kill a host, and return the next one, which serves; `meanwhile` is called while nobody does."""
        host.process.kill()
        meanwhile()
        host.process.wait()
        found = self.start("--standby")
        eventually(found.serves, DEADLINE, found.said)
        return found

    def stand_by(self) -> Host:
        host = self.start("--standby")
        eventually(lambda: "standing by until process" in host.said(), DEADLINE, host.said)
        return host

    def run(self, text: str, expect: int = 0) -> str:
        """Run statements at the host, by a client that must end with an exit code, and return what that prints."""
        script = self.folder / "script.sql"
        script.write_text(text)
        command = [sys.executable, "-m", "sqlext.cli", "run", str(script), "--connect", f"127.0.0.1:{self.port}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
        assert ended.returncode == expect, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def kill_all(self) -> None:
        for host in self.started:
            host.process.kill()
            host.process.wait()

    def table(self, name: str) -> str:
        return str(self.folder / "warehouse" / name)

    def add_rows(self) -> None:
        write_deltalake(self.table("readings"), pyarrow.table({"sensor": [i % 7 for i in range(100)]}), mode="append")
        self.rows += 100

    def move_sign_of_life(self) -> None:
        """Make the host's sign of life that of one in another container: nobody here can ask whether its process runs."""
        files = [each for each in Path(self.table("_sqlext/hosts")).iterdir() if not each.name.startswith(".")]
        file = max(files, key=lambda each: each.stat().st_mtime)
        beat = json.loads(file.read_text())
        file.write_text(json.dumps({**beat, "machine": "another"}))

    def has_all(self) -> bool:
        return self.counted() == self.rows

    def counted(self) -> int:
        return sum(DeltaTable(self.table("counts")).to_pyarrow_table()["n"].to_pylist())

    def epochs(self) -> list[tuple[int, int]]:
        return epochs_of(self.table("counts"))


def epochs_of(table: str) -> list[tuple[int, int]]:
    """The epoch, and the last micro-batch, of each of a flow's commits, oldest first."""
    said = [commit["userMetadata"] for commit in DeltaTable(table).history() if "userMetadata" in commit]
    found = [(re.search(r'"epoch":\s*(\d+)', text), re.search(r'"last_batch":\s*(\d+)', text)) for text in said]
    return [(int(epoch[1]), int(batch[1])) for epoch, batch in reversed(found) if epoch and batch]
