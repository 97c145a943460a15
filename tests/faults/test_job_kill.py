"""kill -9 of `sqlext run` at random moments of jobs that survive their driver; then the same script is run again.

Three kinds of jobs take turns: an aggregate, a join, a stage graph. A moment is a random time after a random number of parts.
By hand, with the issue's full count: `python -m pytest tests/faults/test_job_kill.py --kills 30`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults.job_events import events_of_job
from tests.java import java_options

DEADLINE = 300.0
PARTS_A_KILL = 5  # at most so many more finish; a job has about a dozen
KILLS_A_JOB = 3
SETTINGS = """
SET execution.batch.job-recovery.enabled = true;
SET execution.batch.job-recovery.retention = 1 hour;
SET spark.sql.autoBroadcastJoinThreshold = -1;
CREATE TABLE IF NOT EXISTS facts USING delta LOCATION '{folder}/facts';
CREATE TABLE IF NOT EXISTS dims USING delta LOCATION '{folder}/dims';
"""
QUERIES = {
    "aggregate": "SELECT k, count(*) AS n, sum(v) AS s FROM STREAM facts GROUP BY k{end}",
    "join": "SELECT d.w, count(*) AS n, sum(f.v) AS s FROM STREAM facts f JOIN STREAM dims d ON f.k = d.k GROUP BY d.w{end}",
    "stage graph": """
        WITH sums AS (SELECT k, count(*) AS n, sum(v) AS s FROM STREAM facts GROUP BY k{end}),
             best AS (SELECT n, max(s) AS m FROM sums GROUP BY n{end})
        SELECT sums.k, sums.n, sums.s, best.m FROM sums JOIN best ON sums.n = best.n
    """,
}


@dataclass
class World:
    """A warehouse, and the job that is run in it now."""

    folder: Path
    jobs: int = 0
    kind: str = ""
    killed: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    seen: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return f"t{self.jobs}"

    def begin(self, kind: str) -> None:
        """The next job."""
        self.jobs += 1
        self.kind, self.seen = kind, {}
        query = QUERIES[kind].format(end=" GLOBAL WINDOW END OF STREAM")
        text = SETTINGS.format(folder=self.folder) + f"CREATE TABLE IF NOT EXISTS {self.table} USING delta AS {query};\n"
        (self.folder / "job.sql").write_text(text)

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sqlext.cli", "run", str(self.folder / "job.sql")]
        command += ["--warehouse", str(self.folder / "warehouse")]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}", "--conf", "spark.sql.shuffle.partitions=4"]
        log = (self.folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def output(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4000:]

    # What can be seen from outside.

    def registered(self) -> list[dict[str, Any]]:
        """The registry's events of this job."""
        return events_of_job(self.folder / "warehouse/_sqlext/jobs", self.table)

    def finished_parts(self) -> list[tuple[int, int, int]]:
        """Vertex, part and epoch of each part's commit, of this job."""
        (job,) = {event["job_id"] for event in self.registered()}
        commits = [
            json.loads(line)
            for log in self.folder.glob(f"warehouse/_sqlext/jobs/{job}/vertex-*/_delta_log/*.json")
            for line in log.read_text().splitlines()
        ]
        texts = [commit["commitInfo"].get("userMetadata") for commit in commits if "commitInfo" in commit]
        events = [json.loads(text) for text in texts if text]
        return [(event["vertex"], event["part"], event["epoch"]) for event in events]

    def is_filled(self) -> bool:
        return any(event["kind"] == "finished" for event in self.registered())


@pytest.mark.timeout(3600)
def test_kill_and_run_again(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    facts = spark.range(0, 120_000, 1, 6).selectExpr("id * 7 % 5003 AS k", "id AS v")
    dims = spark.range(0, 5003, 1, 2).selectExpr("id AS k", "id % 97 AS w")
    facts.write.format("delta").save(str(tmp_path / "facts"))
    dims.write.format("delta").save(str(tmp_path / "dims"))
    kinds = list(QUERIES)
    first = random.randrange(len(kinds))  # so that all kinds have their turn where kills are few
    world, turns = World(tmp_path), cycle(kinds[first:] + kinds[:first])
    while (before := world.killed.total()) < kills:
        world.begin(next(turns))
        most = min(kills, before + random.randint(1, KILLS_A_JOB))
        while not run_once(world, most):
            pass
        check(world, spark)
    print(f"killed: {dict(world.killed)}; jobs: {world.jobs}; parts that were not run again: {world.skipped}; 0 lost or doubled")


def run_once(world: World, kills: int) -> bool:
    """Run the script, and kill it at a random moment, if there were fewer kills than that so far.

    Returns:
        Whether the job has ended.
    """
    process = world.start()
    if world.killed.total() < kills:
        try:
            wait_for_the_job(world, process)
            is_over = waited_for(world, process, random.randint(0, PARTS_A_KILL), random.uniform(0.0, 1.5))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=120)
        if not is_over:
            world.killed[world.kind] += 1
            world.seen |= {(vertex, part): epoch for vertex, part, epoch in world.finished_parts()}
            return world.is_filled()
    assert process.wait(timeout=DEADLINE) == 0, world.output()
    return True


def wait_for_the_job(world: World, process: subprocess.Popen[bytes]) -> None:
    """Until this driver has taken the job."""
    before = sum(event["kind"] == "started" for event in world.registered())
    deadline = time.monotonic() + DEADLINE
    while sum(event["kind"] == "started" for event in world.registered()) == before:
        assert process.poll() is None, f"the process ended by itself: {world.output()}"
        assert time.monotonic() < deadline, f"the job never started: {world.output()}"
        time.sleep(0.02)


def waited_for(world: World, process: subprocess.Popen[bytes], parts: int, seconds: float) -> bool:
    """Until so many more parts have finished, and then for some time; whether the process has ended by itself meanwhile."""
    wanted = len(world.finished_parts()) + parts
    deadline = time.monotonic() + DEADLINE
    while len(world.finished_parts()) < wanted and not world.is_filled():
        if process.poll() is not None:
            return True
        assert time.monotonic() < deadline, f"{wanted} parts never finished: {world.output()}"
        time.sleep(0.02)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def check(world: World, spark: SparkSession) -> None:
    """The result is that of a batch, and each part has run once."""
    for table in ("facts", "dims"):
        spark.read.format("delta").load(str(world.folder / table)).createOrReplaceTempView(table)
    expected = Counter(map(tuple, spark.sql(QUERIES[world.kind].format(end="").replace("STREAM ", "")).collect()))
    found = Counter(map(tuple, spark.read.format("delta").load(str(world.folder / "warehouse" / world.table)).collect()))
    assert (expected - found).total() == 0, f"{world.kind}: rows lost"
    assert (found - expected).total() == 0, f"{world.kind}: rows doubled"
    finished = world.finished_parts()
    assert len({(vertex, part) for vertex, part, _ in finished}) == len(finished), f"{world.kind}: a part ran again: {finished}"
    assert world.seen.items() <= {(vertex, part): epoch for vertex, part, epoch in finished}.items()
    world.skipped += len(world.seen)
