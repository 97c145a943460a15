"""`sqlext serve --standby`: hosts are killed by kill -9, one after the other, and the one that stands by takes over: `--kills N`.

A flow counts the rows of a table that grows all the time. Nothing is lost or counted twice, no two hosts share an epoch, and the
next host serves within a minute.
"""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.java import java_options
from tests.support import eventually

TAKEN_OVER_WITHIN = 60.0
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
    """The hosts of one warehouse, all at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Host] = []
        self.rows = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self, *options: str) -> Host:
        output = self.folder / f"host{len(self.started)}.txt"
        command = [sys.executable, "-m", "sqlext.cli", "serve", "--connect", "--connect-port", str(self.port), *options]
        command += ["--warehouse", str(self.folder / "warehouse")]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
        with output.open("w") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self.started.append(Host(process, output))
        return self.started[-1]

    def stand_by(self) -> Host:
        host = self.start("--standby")
        eventually(lambda: "standing by until process" in host.said(), DEADLINE, host.said)
        return host

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
        file.with_name(f".{file.name}.crc").unlink()  # Hadoop's checksum of what it has written
        file.write_text(json.dumps({**beat, "machine": "another"}))

    def has_all(self) -> bool:
        return self.counted() == self.rows

    def counted(self) -> int:
        return sum(DeltaTable(self.table("counts")).to_pyarrow_table()["n"].to_pylist())

    def epochs(self) -> list[tuple[int, int]]:
        """The epoch, and the last micro-batch, of each of the flow's commits, oldest first."""
        said = [commit["userMetadata"] for commit in DeltaTable(self.table("counts")).history() if "userMetadata" in commit]
        found = [(re.search(r'"epoch":\s*(\d+)', text), re.search(r'"last_batch":\s*(\d+)', text)) for text in said]
        return [(int(epoch[1]), int(batch[1])) for epoch, batch in reversed(found) if epoch and batch]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    for host in found.started:
        host.process.kill()
        host.process.wait()


@pytest.mark.timeout(7200)
def test_the_next_host_takes_over(hosts: Hosts, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    host, random_ = hosts.start(), random.Random(1)
    serving: list[float] = []
    counting: list[float] = []
    eventually(host.serves, DEADLINE, host.said)
    script = hosts.folder / "flow.sql"
    script.write_text(
        "CREATE TABLE readings (sensor BIGINT) USING delta;"
        "CREATE STREAMING TABLE counts TBLPROPERTIES "
        "('execution.flush.max-interval' = '2 seconds', 'delta.enableDeletionVectors' = 'false') "  # deltalake cannot read those
        "AS SELECT sensor, count(*) AS n FROM STREAM readings GROUP BY sensor;"
    )
    command = [sys.executable, "-m", "sqlext.cli", "run", str(script), "--connect", f"127.0.0.1:{hosts.port}"]
    subprocess.run(command, check=True, timeout=DEADLINE)
    for _ in range(kills):
        other = hosts.stand_by()
        for _ in range(random_.randint(1, 4)):
            hosts.add_rows()
        if random_.random() < 0.5:
            eventually(hosts.has_all, DEADLINE)
        assert not other.serves()
        host.process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        if random_.random() < 0.3:
            hosts.move_sign_of_life()
        hosts.add_rows()  # while nobody is there
        eventually(other.serves, DEADLINE, other.said)
        serving.append(time.monotonic() - killed)
        eventually(hosts.has_all, DEADLINE, lambda: f"{hosts.counted()} of {hosts.rows} rows are counted")
        counting.append(time.monotonic() - killed)
        host = other
    with capsys.disabled():
        print(f"\n{kills} take-overs, serving after {min(serving):.1f} to {max(serving):.1f} s", end=", ")
        print(f"its flow up to date after {min(counting):.1f} to {max(counting):.1f} s")
    assert max(counting) < TAKEN_OVER_WITHIN
    commits = hosts.epochs()
    assert commits == sorted(commits), "a host has committed after its successor"
    assert len({batch for _, batch in commits}) == len(commits), "a micro-batch is in two commits"


@pytest.mark.timeout(1800)
def test_a_host_that_is_only_paused_keeps_the_warehouse(hosts: Hosts) -> None:
    host = hosts.start()
    eventually(host.serves, DEADLINE, host.said)
    other = hosts.stand_by()
    host.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    eventually(lambda: time.monotonic() - started > 3, 10)
    assert not other.serves()
    host.process.send_signal(signal.SIGCONT)
    host.process.send_signal(signal.SIGTERM)
    eventually(other.serves, DEADLINE, other.said)
    assert f"process {host.process.pid} has ended: taking over" in other.said()
