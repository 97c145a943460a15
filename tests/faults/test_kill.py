"""kill -9 of the process of flows at chosen and at random moments, then a restart: nothing lost, nothing twice.

The process is `sqlext run`, killed with its JVM over one warehouse, in which every kind of flow runs: a durable buffer, and one
in memory only, whose content a restart computes anew ("rewind": the newest micro-batch is run once more in complete mode); those
whose state is in Delta: durable ones, in a table of its own or in the flow's, and one without a buffer, which takes each flush
interval as one micro-batch; and two that append, one of which commits several micro-batches together, and quarantines rows. Each
kill hits all of them, at a moment of one. By hand, with the issues' full count of 25 a backend: `python -m pytest
tests/faults/test_kill.py --kills 50`.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqlext.execution.flows.flush import FlushReason
from sqlext.plan.job_graph import FLOW_PROPERTY
from sqlext.testing import Moment
from tests.java import java_options

FILES_A_KILL, ROWS_A_FILE, KEYS = 8, 200, 50
FILES_A_TRIGGER = 2
IN_CI = 3
"""Kills where `--kills` does not ask for more: they take turns between the backends."""
SOURCE = "CREATE TABLE IF NOT EXISTS events (k INT, v INT) USING json LOCATION '{source}';"
TOTALS = """
CREATE STREAMING TABLE IF NOT EXISTS {name} TBLPROPERTIES ('execution.flush.max-interval' = '6 seconds', {properties}) AS
SELECT k, count(*) AS n, sum(v) AS s FROM STREAM events WITH ('maxFilesPerTrigger' = '{files}') GROUP BY k {having};
"""
COPIES = """
CREATE STREAMING TABLE IF NOT EXISTS {name} {clauses} AS
SELECT k, v FROM STREAM events WITH ('maxFilesPerTrigger' = '{files}');
"""
QUARANTINES = {"copies_together": "bad_copies"}
APPENDING = {
    "copies": "",
    "copies_together": "(CONSTRAINT c EXPECT (v % 7 <> 0) ON VIOLATION QUARANTINE INTO bad_copies) TBLPROPERTIES "
    "('execution.flush.max-interval' = '6 seconds')",
}
HAVING = "HAVING sum(v) % 7 <> 0"
DEATH_DEADLINE = 420.0
FINISH_DEADLINE = 600.0
SECONDS_A_FILE = 3.0  # the flow that appends takes every file that came meanwhile, two a commit, on a machine with other work
FED_AFTER = 5.0
"""Seconds without the moment after which more files arrive."""


@dataclass(frozen=True)
class Kind:
    """An aggregate kept in some way, by the name of its flow.

    Attributes:
        properties: of its table.
        moments: at which it is killed; each but `TABLE_MADE` comes again and again.
        has_having: whether groups may be missing from the table, so that it cannot hold the state.
        has_files: whether micro-batches are buffered in files.
    """

    backend: str
    properties: str
    moments: tuple[Moment, ...]
    has_having: bool = True
    has_files: bool = True


_ALWAYS = (Moment.TABLE_MADE, Moment.BATCH_BEGUN, Moment.BATCH_BUFFERED, Moment.FLUSH_BEGUN, Moment.FLUSH_COMMITTED)
_ROCKSDB, _DELTA = "'state.backend.type' = 'rocksdb'", "'state.backend.type' = 'delta'"
_MEMORY = "'execution.flush.memory-buffer-only' = 'true'"
KINDS = {
    "durable": Kind("rocksdb", _ROCKSDB, _ALWAYS),
    "own_table": Kind("delta", _DELTA, (Moment.STATE_COMMITTED, *_ALWAYS)),
    "memory_only": Kind("rocksdb", f"{_ROCKSDB}, {_MEMORY}", (Moment.REWIND_BEGUN, *_ALWAYS), has_files=False),
    "in_table": Kind("delta", _DELTA, _ALWAYS, has_having=False),
    "interval": Kind("delta", f"{_DELTA}, {_MEMORY}", (Moment.STATE_COMMITTED, *_ALWAYS), has_files=False),
}


@dataclass(frozen=True)
class Kill:
    """When the process dies: at a moment of a flow, met for the `times`-th time, and so many seconds after it."""

    flow: str
    moment: Moment
    times: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        after = f" + {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.flow}: {self.moment.value}{after}"


@dataclass
class World:
    """One warehouse, the source it reads, and the process that is killed."""

    folder: Path
    arrived: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.source = self.folder / "events"
        self.warehouse = self.folder / "warehouse"
        self.script = self.folder / "flows.sql"
        self.source.mkdir(parents=True)
        flows = [
            TOTALS.format(name=name, properties=kind.properties, files=FILES_A_TRIGGER, having=HAVING if kind.has_having else "")
            for name, kind in KINDS.items()
        ]
        copies = [COPIES.format(name=name, clauses=text, files=FILES_A_TRIGGER) for name, text in APPENDING.items()]
        self.script.write_text("".join([SOURCE.format(source=self.source), *flows, *copies]))

    def arrive(self, files: int) -> None:
        """More files, with numbers that a later sum tells apart."""
        for number in range(self.arrived, self.arrived + files):
            rows = [{"k": (number * 31 + row * 7) % KEYS, "v": number * ROWS_A_FILE + row} for row in range(ROWS_A_FILE)]
            hidden = self.source / f".{number:04d}.json"
            hidden.write_text("\n".join(map(json.dumps, rows)))
            hidden.rename(self.source / f"{number:04d}.json")
        self.arrived += files

    def start(self, *launcher: str, arguments: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *launcher, "run", str(self.script), "--warehouse", str(self.warehouse), *arguments]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
        log = (self.folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def die(self, kill: Kill) -> None:
        """Run the flows until they die; files arrive until the moment has come."""
        given = (kill.flow, kill.moment.value, str(kill.times), str(kill.seconds))
        process = self.start("tests.faults.killed_at", *given)
        deadline = time.monotonic() + DEATH_DEADLINE
        try:
            while True:
                try:
                    code = process.wait(timeout=FED_AFTER)
                    break
                except subprocess.TimeoutExpired:
                    assert time.monotonic() < deadline, f"{kill} never came: {self.output()}"
                    if self.warehouse.joinpath(kill.flow).exists():
                        self.arrive(FILES_A_TRIGGER)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=120)
        assert code == -signal.SIGKILL, f"{kill}: the process ended by itself: {self.output()}"
        self.killed[str(kill)] += 1

    def finish(self) -> None:
        """Run the flows until all that has arrived is in their tables."""
        process = self.start("sqlext.cli", arguments=("--until-idle",))
        try:
            assert process.wait(timeout=FINISH_DEADLINE + SECONDS_A_FILE * self.arrived) == 0, self.output()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def output(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4000:]

    # What can be seen from outside.

    def buffered(self, table: str) -> list[Path]:
        return self._in_home(table, "buffer/__sqlext_batch=*")

    def newest(self, table: str, kind: str) -> int:
        """The newest micro-batch among Spark's `offsets`, which it has begun, or `commits`, which it has ended."""
        paths = self._in_home(table, f"checkpoint/{kind}/*")
        return max((int(path.name) for path in paths if path.name.isdigit()), default=-1)

    def has_lost(self, table: str) -> bool:
        """Whether micro-batches that Spark has ended are in no commit."""
        flushed = max((int(commit["last_batch"]) for commit in self.commits(table)), default=-1)
        return self.newest(table, "commits") > flushed

    def commits(self, table: str) -> list[dict[str, Any]]:
        """The flow's own words on each of its commits, in order; those of compactions say something else."""
        metadata = (action.get("commitInfo", {}).get("userMetadata") or "{}" for action in self._actions(table))
        return [said["sqlext"] for said in map(json.loads, metadata) if "sqlext" in said]

    def _in_home(self, table: str, pattern: str) -> list[Path]:
        """What matches in the flow's folder, once the table is there."""
        flows = [a["metaData"]["configuration"][FLOW_PROPERTY] for a in self._actions(table) if "metaData" in a][:1]
        return [path for flow in flows for path in self.warehouse.glob(f"_sqlext/flows/{flow}/{pattern}")]

    def _actions(self, table: str) -> list[dict[str, Any]]:
        logs = sorted(self.warehouse.glob(f"{table}/_delta_log/*.json"))
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


@pytest.mark.timeout(7200)
def test_kill_and_restart(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    world = World(tmp_path)
    world.arrive(FILES_A_KILL)
    for kill in chosen(max(kills, IN_CI)):
        if kill.moment is Moment.REWIND_BEGUN and not world.has_lost(kill.flow):
            world.die(Kill(kill.flow, Moment.BATCH_BEGUN, times=3))  # what comes before is in memory only
            world.arrive(FILES_A_KILL)
        world.die(kill)
        for name, kind in KINDS.items():
            assert kind.has_files or world.buffered(name) == []
        world.arrive(FILES_A_KILL)
    have_lost = {name for name in KINDS if world.has_lost(name)}
    before = {name: len(world.commits(name)) for name in KINDS}
    world.finish()

    damage = {table: found for table in (*KINDS, *APPENDING) if (found := damage_of(world, table, spark))}
    flushes = {name: len(world.commits(name)) for name in KINDS}
    print(f"killed at {dict(world.killed)}; flushes: {flushes}; damage: {damage}")
    assert damage == {}
    for table in (*KINDS, *APPENDING):
        check_commits(world, table)
    if "memory_only" in have_lost:
        assert world.commits("memory_only")[before["memory_only"]]["reason"] == FlushReason.RECOVERY


def chosen(kills: int) -> list[Kill]:
    """Kills at moments in a random order, so that over time all are met: backends and kinds take turns.

    A table is made once, so that moment stands first, and in the order of the script.
    """
    moments = {name: kind.moments for name, kind in KINDS.items()} | {"copies_together": _ALWAYS}
    others = [Kill(name, moment, times(moment), seconds(moment)) for name, each in moments.items() for moment in each]
    others = [kill for kill in others if kill.moment is not Moment.TABLE_MADE]
    made = [Kill(name, Moment.TABLE_MADE) for name in KINDS]
    made = made if kills > len(others) else [random.choice(made)]
    found: list[Kill] = []
    while len(found) < kills:
        random.shuffle(others)
        rocksdb = [kill for kill in others if kill.flow in KINDS and KINDS[kill.flow].backend == "rocksdb"]
        by_backend = [[kill for kill in others if kill not in rocksdb], rocksdb]
        found += [kill for pair in zip(*by_backend, strict=False) for kill in pair]
    return [*made, *found][:kills]


def times(moment: Moment) -> int:
    """A rewind comes once in a life; of all else, any of the first."""
    return 1 if moment is Moment.REWIND_BEGUN else random.randint(1, 3)


def seconds(moment: Moment) -> float:
    """Seconds after a moment: in the midst of the micro-batch, of the merge, or of anything."""
    after = {Moment.BATCH_BEGUN: 1.0, Moment.FLUSH_BEGUN: 2.0, Moment.BATCH_BUFFERED: 8.0}
    return random.choice((0.0, random.uniform(0.0, after[moment]))) if moment in after else 0.0


def damage_of(world: World, table: str, spark: SparkSession) -> dict[str, int]:
    """How many rows of a table are lost, doubled and torn, against all that has arrived; nothing where none are.

    A row of an aggregate is lost when it counts too few, doubled when it counts too many, torn when its columns are of different
    moments, or it does not qualify.
    """
    values: dict[int, list[int]] = defaultdict(list)
    for number in range(world.arrived):
        for row in range(ROWS_A_FILE):
            values[(number * 31 + row * 7) % KEYS].append(number * ROWS_A_FILE + row)
    found = spark.read.format("delta").load(str(world.warehouse / table)).collect()
    if table in APPENDING:
        copies, originals = Counter(map(tuple, found)), Counter((k, v) for k, each in values.items() for v in each)
        if table in QUARANTINES:
            bad = spark.read.format("delta").load(str(world.warehouse / QUARANTINES[table])).select("k", "v").collect()
            counted = sum(commit["violations"]["c"] for commit in world.commits(table))
            assert counted == sum(1 for _, v in originals.elements() if v % 7 == 0), f"{table}: violations are counted wrongly"
            assert [v for _, v in bad if v % 7] == []
            copies += Counter(map(tuple, bad))
        damage = {"lost": (originals - copies).total(), "doubled": (copies - originals).total()}
    else:
        has_having = KINDS[table].has_having
        expected = {k: (len(v), sum(v)) for k, v in values.items() if sum(v) % 7 != 0 or not has_having}
        counts = {row.k: row.n for row in found}
        whole = [row for row in found if row.n == len(values[row.k])]
        damage = {
            "lost": sum(1 for k, (n, _) in expected.items() if counts.get(k, 0) < n),
            "doubled": sum(1 for row in found if row.n > len(values[row.k])) + len(found) - len(counts),
            "torn": sum(1 for row in whole if (row.n, row.s) != expected.get(row.k)),
        }
    return {what: rows for what, rows in damage.items() if rows}


def check_commits(world: World, table: str) -> None:
    """One commit a flush, and every micro-batch in exactly one of them.

    Only what was in memory may be in one more: a rewind commits again from the last flush that it knows of.
    """
    last = -1
    for commit in world.commits(table):
        may_repeat = table == "memory_only" and commit["reason"] == FlushReason.RECOVERY
        assert commit["first_batch"] <= last + 1, f"{table}: {commit} after micro-batch {last}"
        assert may_repeat or commit["first_batch"] == last + 1, f"{table}: {commit} after micro-batch {last}"
        assert commit["last_batch"] >= commit["first_batch"]
        assert commit["last_batch"] > last, f"{table}: {commit} after micro-batch {last}"
        last = commit["last_batch"]
    assert last >= 0, f"{table}: no commit"
    if table in KINDS:
        batches = {commit["last_batch"] - commit["first_batch"] + 1 for commit in world.commits(table)}
        assert (max(batches) > 1) is (table != "interval"), f"{table}: nothing was ever buffered, or should not have been"
