"""kill -9 in the switch of a hybrid source from its history to its live stream: each row counts once.

The process kills itself at chosen moments of the switch, one after the other, over one warehouse. By hand, at all of them, and at
random ones: `python -m pytest tests/faults/test_hybrid_kill.py --kills 10`.
"""

from __future__ import annotations

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

DEADLINE = 300.0
KEYS, PAST, OVERLAP, LIVE = 5, 600, 100, 300
SCRIPT = """
CREATE TABLE IF NOT EXISTS past USING delta LOCATION '{folder}/past';
CREATE TABLE IF NOT EXISTS live USING delta LOCATION '{folder}/live';
CREATE STREAMING TABLE IF NOT EXISTS totals TBLPROPERTIES ('execution.flush.max-interval' = '2 seconds') AS
SELECT h.k, count(*) AS n, sum(h.v) AS s
FROM STREAM hybrid(
  TABLE past WITH ('maxFilesPerTrigger' = '2'), STREAM live WITH ('maxFilesPerTrigger' = '1'), on => v
) AS h GROUP BY h.k;
"""
# Each moment is a method, and whether the process dies before or behind it.
LAUNCH = """
import os, signal, sys
from sqlext.execution.streaming.hybrid import RunningHybrid
from sqlext.execution.flows.intake import Intake
from sqlext.execution.streaming.running_query import RunningQuery
moment = sys.argv.pop(1)
def die(owner, name, is_before, counts=lambda self: True):
    method = getattr(owner, name)
    def killed(self, *arguments):
        if is_before and counts(self):
            os.killpg(0, signal.SIGKILL)
        found = method(self, *arguments)
        if counts(self):
            os.killpg(0, signal.SIGKILL)
        return found
    setattr(owner, name, killed)
if moment == "history ended":
    die(Intake, "next_part", True)
elif moment == "boundary written":
    die(RunningHybrid, "_write_boundary", False)
elif moment == "live stream analysed":
    die(Intake, "next_part", False)
elif moment == "live stream started":
    die(RunningQuery, "start", False, lambda self: not self.is_bounded)
elif moment == "first live micro-batch planned":
    die(Intake, "_on_batch", True, lambda self: self.hybrid.is_last)
elif moment == "first live micro-batch taken in":
    die(Intake, "_on_batch", False, lambda self: self.hybrid.is_last)
from sqlext.cli import main
main()
"""
MOMENTS = (
    "history ended",
    "boundary written",
    "live stream analysed",
    "live stream started",
    "first live micro-batch planned",
    "first live micro-batch taken in",
)
MOST_TELLING = ("boundary written", "first live micro-batch planned")

pytestmark = pytest.mark.timeout(1800)


class World:
    """One warehouse, and the processes that die over it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.warehouse = folder / "warehouse"
        self._spark = spark
        self._folder = folder
        (folder / "flows.sql").write_text(SCRIPT.format(folder=folder))
        for first in range(0, PAST, PAST // 6):
            self.append("past", first, first + PAST // 6)
        self._live = PAST - OVERLAP
        self.arrive()

    def arrive(self) -> None:
        self.append("live", self._live, self._live + LIVE)
        self._live += LIVE

    def append(self, table: str, first: int, last: int) -> None:
        rows = self._spark.range(first, last, 1, 1).selectExpr(f"CAST(id % {KEYS} AS INT) AS k", "CAST(id AS INT) AS v")
        rows.write.format("delta").mode("append").save(str(self._folder / table))

    def start(self, moment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LAUNCH, moment, "run", str(self._folder / "flows.sql")]
        command += ["--warehouse", str(self.warehouse), "--until-idle"]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
        log = (self._folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def text(self) -> str:
        return (self._folder / "out.log").read_text(errors="replace")

    def output(self) -> str:
        return self.text()[-3000:]

    def end(self, process: subprocess.Popen[bytes], expect: int = 0) -> None:
        assert process.wait(timeout=DEADLINE) == expect, self.output()

    def result(self) -> dict[int, tuple[int, int]]:
        rows = self._spark.read.format("delta").load(str(self.warehouse / "totals")).collect()
        return {row.k: (row.n, row.s) for row in rows}

    def expected(self) -> dict[int, tuple[int, int]]:
        """All numbers, each once: those below `PAST` from the history, the others from the live table."""
        values = {key: range(key, self._live, KEYS) for key in range(KEYS)}
        return {key: (len(found), sum(found)) for key, found in values.items()}


def test_kill_in_the_switch(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    world = World(tmp_path, spark)
    for moment in MOMENTS if kills > 1 else MOST_TELLING:
        world.end(world.start(moment), -signal.SIGKILL)
        world.arrive()
    for _ in range(kills - 1):
        kill_at_any_moment(world)
        world.arrive()
    world.end(world.start(""))
    assert world.result() == world.expected()


def kill_at_any_moment(world: World) -> None:
    said = world.text().count("totals RUNNING")
    process = world.start("")
    eventually(lambda: world.text().count("totals RUNNING") > said or process.poll() is not None, DEADLINE, world.output)
    time.sleep(random.uniform(0.0, 8.0))
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=120)
