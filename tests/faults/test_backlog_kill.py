"""kill -9 of a process while its flow works off a backlog: only the micro-batch that ran is repeated, and no row is lost.

The backlog is a folder of old files, each of which is work for a good part of a second. By hand: `python -m pytest
tests/faults/test_backlog_kill.py --kills 10`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.java import java_options
from tests.support import eventually

FILES, ROWS_A_FILE, WORK = 60, 40, 20_000
INTERVAL = 4.0
DEADLINE = 300.0
SCRIPT = """
CREATE TABLE IF NOT EXISTS events (k INT, v INT) USING json LOCATION '{source}';
CREATE STREAMING TABLE IF NOT EXISTS totals TBLPROPERTIES (
  'execution.flush.max-interval' = '2 seconds',
  'execution.checkpointing.interval-during-backlog' = '{interval}',
  'backlog.lag-threshold' = '1 hour'
) AS SELECT k, sum(v) AS s, sum(w) AS w
FROM (SELECT e.k, e.v, explode(sequence(1, {work})) AS w FROM STREAM events WITH ('maxFilesPerTrigger' = '1') AS e) GROUP BY k;
"""
# The first micro-batch in backlog takes one file: small ones stand for those of gigabytes here.
LAUNCH = """
from sqlext.execution.streaming import streams
streams._FIRST_LIMIT[streams.SourceKind.FILES] = 1
from sqlext.cli import main
main()
"""


class World:
    """One warehouse, its backlog, and the process that is killed."""

    def __init__(self, folder: Path, interval: str) -> None:
        self.folder = folder
        self.is_one_batch = interval == "0"
        self.source = folder / "events"
        self.source.mkdir()
        self.warehouse = folder / "warehouse"
        (folder / "flows.sql").write_text(SCRIPT.format(source=self.source, interval=interval, work=WORK))
        for number in range(FILES):
            rows = [{"k": (number + row) % 7, "v": number * ROWS_A_FILE + row} for row in range(ROWS_A_FILE)]
            file = self.source / f"{number:04d}.json"
            file.write_text("\n".join(map(json.dumps, rows)))
            os.utime(file, (time.time() - 86400 + number,) * 2)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LAUNCH, "run", str(self.folder / "flows.sql"), "--warehouse", str(self.warehouse)]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}", *arguments]
        log = (self.folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def text(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")

    def output(self) -> str:
        return self.text()[-3000:]

    def marks(self, kind: str) -> dict[int, float]:
        """When each micro-batch was begun (`offsets`) or ended (`commits`)."""
        found = self.warehouse.glob(f"_sqlext/flows/*/checkpoint/{kind}/*")
        return {int(path.name): path.stat().st_mtime for path in found if path.name.isdigit()}

    def kill(self, process: subprocess.Popen[bytes]) -> float:
        """Kill it in the middle of a micro-batch that did not run before; where there is only one, whenever it runs.

        Returns:
            Seconds of that micro-batch's work, which a restart repeats.
        """
        before, said = max(self.marks("offsets"), default=-1), len(self.text())

        def runs() -> bool:
            assert process.poll() is None, self.output()
            newest = max(self.marks("offsets"), default=-1)
            is_repeated = self.is_one_batch and newest == before and "totals RUNNING" in self.text()[said:]
            return (newest > before or is_repeated) and newest not in self.marks("commits")

        eventually(runs, DEADLINE, self.output)
        time.sleep(random.uniform(0.0, INTERVAL))  # any moment will do
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=120)
        begun, ended = self.marks("offsets"), self.marks("commits")
        newest = max(begun)
        return time.time() - begun[newest] if newest not in ended else 0.0


@pytest.mark.parametrize("interval", [f"{INTERVAL:.0f} seconds", "0"])
@pytest.mark.timeout(900)
def test_kill_in_backlog(tmp_path: Path, spark: SparkSession, kills: int, interval: str) -> None:
    world = World(tmp_path, interval)
    repeated, ended = [], set[int]()
    process = world.start()
    for _ in range(kills):
        repeated.append(round(world.kill(process), 1))
        assert ended <= world.marks("commits").keys(), "a micro-batch that had ended is no more"
        ended = set(world.marks("commits"))
        process = world.start("--until-idle")
        if len(world.marks("offsets")) * 2 > FILES:
            break
    assert process.wait(timeout=DEADLINE) == 0, world.output()
    print(f"repeated, in seconds: {repeated}; micro-batches: {len(world.marks('commits'))}")
    if world.is_one_batch:
        assert len(world.marks("commits")) == 1, "without checkpoints in backlog all of it is one micro-batch"
    else:
        assert max(repeated) <= 2 * INTERVAL
        assert len(world.marks("commits")) < FILES / 2
    rows = [json.loads(line) for file in world.source.glob("*.json") for line in file.read_text().splitlines()]
    expected = {
        k: (sum(row["v"] for row in rows if row["k"] == k) * WORK, sum(row["k"] == k for row in rows) * WORK * (WORK + 1) // 2)
        for k in range(7)
    }
    found = {row.k: (row.s, row.w) for row in spark.read.format("delta").load(str(world.warehouse / "totals")).collect()}
    assert found == expected
