"""kill -9 of a flow's process at chosen and at random moments, then a restart: nothing lost, nothing twice.

The process is `sqlext run`, killed with its JVM. The moments are seen from outside, on the file system. By hand, with the
issue's full count: `python -m pytest tests/faults --kills 10`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

FILES, ROWS_A_FILE, KEYS = 96, 200, 50
SCRIPT = """
CREATE TABLE IF NOT EXISTS events (k INT, v INT) USING json LOCATION '{source}';

CREATE STREAMING TABLE IF NOT EXISTS totals TBLPROPERTIES ('execution.flush.max-interval' = '4 seconds') AS
SELECT k, count(*) AS n, sum(v) AS s FROM STREAM events WITH ('maxFilesPerTrigger' = '{files}') GROUP BY k
HAVING sum(v) % 7 <> 0;

CREATE STREAMING TABLE IF NOT EXISTS copies AS
SELECT k, v FROM STREAM events WITH ('maxFilesPerTrigger' = '{files}');
"""
START_DEADLINE = 120.0
MOMENT_DEADLINE = 60.0


@dataclass
class World:
    """One warehouse, the source it reads, and the process that is killed."""

    folder: Path
    files_a_trigger: int
    killed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.source = self.folder / "events"
        self.warehouse = self.folder / "warehouse"
        self.script = self.folder / "flows.sql"
        self.source.mkdir(parents=True)
        self.script.write_text(SCRIPT.format(source=self.source, files=self.files_a_trigger))
        self.arrived = 0

    def arrive(self, files: int) -> None:
        """More files, with numbers that a later sum tells apart."""
        for number in range(self.arrived, min(self.arrived + files, FILES)):
            rows = [{"k": (number * 31 + row * 7) % KEYS, "v": number * ROWS_A_FILE + row} for row in range(ROWS_A_FILE)]
            hidden = self.source / f".{number:04d}.json"
            hidden.write_text("\n".join(map(json.dumps, rows)))
            hidden.rename(self.source / f"{number:04d}.json")
        self.arrived = min(self.arrived + files, FILES)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sqlext.cli", "run", str(self.script), "--warehouse", str(self.warehouse), *arguments]
        log = (self.folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)

    def output(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4000:]

    # What can be seen from outside.

    def runs_since(self, started: float) -> bool:
        """Whether a flow has begun a micro-batch, new or repeated, since then."""
        marks = [*self.warehouse.glob("_sqlext/flows/*/checkpoint/offsets/*"), *self.buffered()]
        return any(mark.stat().st_mtime > started for mark in marks if mark.exists())

    def buffered(self) -> list[Path]:
        return list(self.warehouse.glob("_sqlext/flows/*/buffer/batch-*"))

    def whole(self) -> list[Path]:
        return [batch for batch in self.buffered() if (batch / "_SUCCESS").exists()]

    def commits(self, table: str) -> list[dict[str, Any]]:
        """The flow's own words on each of its commits, in order."""
        found = []
        for log in sorted(self.warehouse.glob(f"{table}/_delta_log/*.json")):
            for line in log.read_text().splitlines():
                info = json.loads(line).get("commitInfo", {})
                if "sqlext" in (info.get("userMetadata") or ""):
                    found.append(json.loads(info["userMetadata"])["sqlext"])
        return found

    def data_files(self) -> int:
        return sum(1 for _ in self.warehouse.glob("totals/*.parquet")) + sum(1 for _ in self.warehouse.glob("totals/*.bin"))


Moment = Callable[[World], Iterator[bool]]
"""Yields whether the moment is there; what it compares with is taken once the flow runs."""


def while_it_is_made(world: World) -> Iterator[bool]:
    """The table is there, the flow does not run yet."""
    while True:
        yield bool(list(world.warehouse.glob("totals/_delta_log/*.json")))


def in_a_micro_batch(world: World) -> Iterator[bool]:
    """A micro-batch that was not there before is being written."""
    before = set(world.buffered())
    while True:
        yield any((batch / "_temporary").exists() for batch in world.buffered() if batch not in before)


def between_buffer_and_flush(world: World) -> Iterator[bool]:
    before = set(world.whole())
    while True:
        yield len(set(world.whole()) - before) >= 2


def in_a_merge(world: World) -> Iterator[bool]:
    """Files of a MERGE are there, its commit is not."""
    files, commits = world.data_files(), len(world.commits("totals"))
    while True:
        now_commits = len(world.commits("totals"))
        now_files = world.data_files()
        yield now_files > files and now_commits == commits
        files, commits = (now_files, now_commits) if now_commits != commits else (files, commits)


def before_clean_up(world: World) -> Iterator[bool]:
    commits = len(world.commits("totals"))
    while True:
        yield len(world.commits("totals")) > commits and bool(world.buffered())


def at_random(world: World) -> Iterator[bool]:
    due = time.monotonic() + random.uniform(0.1, 8.0)
    while True:
        yield time.monotonic() >= due


CHOSEN: list[Moment] = [while_it_is_made, in_a_micro_batch, between_buffer_and_flush, in_a_merge, before_clean_up]


@pytest.mark.timeout(1800)
def test_kill_and_restart(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    world = World(tmp_path, files_a_trigger=2)
    share = FILES // (kills + 1)
    world.arrive(share)
    for number in range(kills):
        moment = CHOSEN[number] if number < len(CHOSEN) else at_random
        process = world.start()
        wait_for(moment, world, process)
        world.kill(process)
        world.killed[moment.__name__] += 1
        world.arrive(share)
    world.arrive(FILES)
    finish(world)

    expected: dict[int, list[int]] = defaultdict(list)
    for number in range(FILES):
        for row in range(ROWS_A_FILE):
            expected[(number * 31 + row * 7) % KEYS].append(number * ROWS_A_FILE + row)
    totals = {row.k: (row.n, row.s) for row in spark.read.format("delta").load(str(world.warehouse / "totals")).collect()}
    assert totals == {k: (len(v), sum(v)) for k, v in expected.items() if sum(v) % 7 != 0}
    copies = spark.read.format("delta").load(str(world.warehouse / "copies"))
    assert sorted((row.k, row.v) for row in copies.collect()) == sorted((k, v) for k, values in expected.items() for v in values)
    check_commits(world)
    print(f"killed: {dict(world.killed)}; flushes: {len(world.commits('totals'))}; 0 rows lost, 0 doubled")


def wait_for(moment: Moment, world: World, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_DEADLINE + MOMENT_DEADLINE
    started = time.time()
    while moment is not while_it_is_made and not world.runs_since(started):
        assert process.poll() is None, f"the process ended by itself: {world.output()}"
        assert time.monotonic() < deadline, f"the flow never started: {world.output()}"
        time.sleep(0.02)
    seen = moment(world)
    while not next(seen):
        assert process.poll() is None, f"the process ended by itself: {world.output()}"
        assert time.monotonic() < deadline, f"{moment.__name__} never came: {world.output()}"
        time.sleep(0.002)


def finish(world: World) -> None:
    process = world.start("--until-idle")
    try:
        assert process.wait(timeout=300) == 0, world.output()
    finally:
        if process.poll() is None:
            world.kill(process)


def check_commits(world: World) -> None:
    """One commit a flush, and every micro-batch in exactly one of them."""
    for table in ("totals", "copies"):
        last = -1
        for commit in world.commits(table):
            assert commit["first_batch"] == last + 1, f"{table}: {commit} after micro-batch {last}"
            assert commit["last_batch"] >= commit["first_batch"]
            last = commit["last_batch"]
    batches = {commit["last_batch"] - commit["first_batch"] + 1 for commit in world.commits("totals")}
    assert max(batches) > 1, "nothing was ever buffered"
