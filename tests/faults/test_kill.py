"""kill -9 of a flow's process at chosen and at random moments, then a restart: nothing lost, nothing twice.

The process is `sqlext run`, killed with its JVM. The moments are seen from outside, on the file system. Five modes: a durable
buffer, and one in memory only, whose content a restart computes anew ("rewind": the newest micro-batch is run once more in
complete mode); and those whose state is in Delta: durable ones, in a table of its own or in the flow's, and one without a buffer,
which takes each flush interval as one micro-batch. By hand, with the issues' full count, 10 a mode and 25 a backend:
`python -m pytest tests/faults/test_kill.py --kills 13`.
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
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqlext.execution.flows.flush import FlushReason
from sqlext.plan.job_graph import FLOW_PROPERTY
from tests.java import java_options

FILES_A_KILL, ROWS_A_FILE, KEYS = 8, 200, 50
SCRIPT = """
CREATE TABLE IF NOT EXISTS events (k INT, v INT) USING json LOCATION '{source}';

CREATE STREAMING TABLE IF NOT EXISTS totals
TBLPROPERTIES ('execution.flush.max-interval' = '6 seconds', {properties}) AS
SELECT k, count(*) AS n, sum(v) AS s FROM STREAM events WITH ('maxFilesPerTrigger' = '{files}') GROUP BY k
{having};

CREATE STREAMING TABLE IF NOT EXISTS copies AS
SELECT k, v FROM STREAM events WITH ('maxFilesPerTrigger' = '{files}');
"""
START_DEADLINE = 240.0
FINISH_DEADLINE = 900.0  # the flow that appends takes every file that came meanwhile
MOMENT_DEADLINE = 180.0
FED_AFTER = 5.0
"""Seconds without the moment after which more files arrive: on a busy machine it may have passed unseen."""


class Mode(StrEnum):
    """Where buffer and state of `totals` lie."""

    DURABLE = "durable"
    MEMORY_ONLY = "memory-only"
    DELTA = "delta"
    DELTA_IN_TABLE = "delta, in the table itself"
    DELTA_INTERVAL = "delta, an interval as one micro-batch"


WITHOUT_FILES = (Mode.MEMORY_ONLY, Mode.DELTA_INTERVAL)
"""Nothing is buffered in files."""


PROPERTIES = {
    Mode.DURABLE: "'state.backend.type' = 'rocksdb'",
    Mode.MEMORY_ONLY: "'state.backend.type' = 'rocksdb', 'execution.flush.memory-buffer-only' = 'true'",
    Mode.DELTA: "'state.backend.type' = 'delta'",
    Mode.DELTA_IN_TABLE: "'state.backend.type' = 'delta'",
    Mode.DELTA_INTERVAL: "'state.backend.type' = 'delta', 'execution.flush.memory-buffer-only' = 'true'",
}


@dataclass
class World:
    """One warehouse, the source it reads, and the process that is killed."""

    folder: Path
    mode: Mode
    files: int
    files_a_trigger: int
    killed: Counter[str] = field(default_factory=Counter)
    _read: dict[tuple[Path, int], list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = self.folder / "events"
        self.warehouse = self.folder / "warehouse"
        self.script = self.folder / "flows.sql"
        self.source.mkdir(parents=True)
        having = "HAVING sum(v) % 7 <> 0" if self.has_having else ""
        properties = PROPERTIES[self.mode]
        script = SCRIPT.format(source=self.source, files=self.files_a_trigger, properties=properties, having=having)
        self.script.write_text(script)
        self.arrived = 0

    @property
    def has_having(self) -> bool:
        """With HAVING, the table cannot hold the state: it has not all groups."""
        return self.mode is not Mode.DELTA_IN_TABLE

    def arrive(self, files: int) -> None:
        """More files, with numbers that a later sum tells apart."""
        for number in range(self.arrived, min(self.arrived + files, self.files)):
            rows = [{"k": (number * 31 + row * 7) % KEYS, "v": number * ROWS_A_FILE + row} for row in range(ROWS_A_FILE)]
            hidden = self.source / f".{number:04d}.json"
            hidden.write_text("\n".join(map(json.dumps, rows)))
            hidden.rename(self.source / f"{number:04d}.json")
        self.arrived = min(self.arrived + files, self.files)

    def feed(self) -> None:
        """Let the files of one more micro-batch arrive, beside those that each kill has."""
        self.files += self.files_a_trigger
        self.arrive(self.files_a_trigger)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sqlext.cli", "run", str(self.script), "--warehouse", str(self.warehouse)]
        command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}", *arguments]
        log = (self.folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=120)

    def output(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4000:]

    # What can be seen from outside.

    def runs_since(self, started: float) -> bool:
        """Whether a flow has begun a micro-batch, new or repeated, since then."""
        marks = [*self.warehouse.glob("_sqlext/flows/*/checkpoint/offsets/*"), *self.buffered()]
        return any(mark.stat().st_mtime > started for mark in marks if mark.exists())

    def state_written_since(self, started: float) -> bool:
        """Whether the state store of `totals` has new files."""
        for flow in self._flow_of_totals():
            for file in self.warehouse.glob(f"_sqlext/flows/{flow}/checkpoint/state/0/*/*"):
                try:
                    if file.stat().st_mtime > started:
                        return True
                except FileNotFoundError:  # Spark has just renamed it
                    continue
        return False

    def buffered(self) -> list[Path]:
        return list(self.warehouse.glob("_sqlext/flows/*/buffer/__sqlext_batch=*"))

    def whole(self) -> list[Path]:
        return [batch for batch in self.buffered() if any(batch.glob("*/_SUCCESS"))]

    def commits(self, table: str) -> list[dict[str, Any]]:
        """The flow's own words on each of its commits, in order."""
        actions = (action for log in self._logs(table) for action in self._actions(log))
        metadata = (action.get("commitInfo", {}).get("userMetadata") or "" for action in actions)
        return [json.loads(text)["sqlext"] for text in metadata if "sqlext" in text]

    def newest(self, kind: str) -> int:
        """The newest micro-batch of `totals` among Spark's `offsets`, which it has begun, or `commits`, which it has ended."""
        names = (
            path.name
            for flow in self._flow_of_totals()
            for path in self.warehouse.glob(f"_sqlext/flows/{flow}/checkpoint/{kind}/*")
        )
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def flushed(self) -> int:
        """The newest micro-batch of `totals` in a Delta commit."""
        return max((int(commit["last_batch"]) for commit in self.commits("totals")), default=-1)

    def states(self) -> int:
        """How many commits the table has that holds the state of `totals`, if it is one of its own."""
        logs = (self.warehouse.glob(f"_sqlext/flows/{flow}/state/_delta_log/*.json") for flow in self._flow_of_totals())
        return sum(1 for found in logs for _ in found)

    def _flow_of_totals(self) -> list[str]:
        """Its id, once the table is there."""
        actions = (action for log in self._logs("totals")[:1] for action in self._actions(log))
        return [action["metaData"]["configuration"][FLOW_PROPERTY] for action in actions if "metaData" in action]

    def _logs(self, table: str) -> list[Path]:
        return sorted(self.warehouse.glob(f"{table}/_delta_log/*.json"))

    def _actions(self, log: Path) -> list[dict[str, Any]]:
        """Read once: a log's file is there whole or not at all, and stays as it is, unless the table is made anew."""
        try:
            version = (log, log.stat().st_mtime_ns)
            if version not in self._read:
                self._read[version] = [json.loads(line) for line in log.read_text().splitlines()]
        except FileNotFoundError:  # of a table that was half made
            return []
        return self._read[version]

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
        yield any(any(batch.glob("*/_temporary")) for batch in world.buffered() if batch not in before)


def between_buffer_and_flush(world: World) -> Iterator[bool]:
    """One more micro-batch lies in the buffer, whole."""
    before = set(world.whole())
    while True:
        yield bool(set(world.whole()) - before)


def in_a_merge(world: World) -> Iterator[bool]:
    """Files of a MERGE are there, its commit is not."""
    files, commits = world.data_files(), len(world.commits("totals"))
    while True:
        now_commits = len(world.commits("totals"))
        now_files = world.data_files()
        yield now_files > files and now_commits == commits
        files, commits = (now_files, now_commits) if now_commits != commits else (files, commits)


def between_state_and_results(world: World) -> Iterator[bool]:
    """The flush has committed the state, and not yet the results."""
    states, commits = world.states(), len(world.commits("totals"))
    while True:
        now = world.states(), len(world.commits("totals"))
        yield now[0] > states and now[1] == commits
        states, commits = now if now[1] != commits else (states, commits)


def before_clean_up(world: World) -> Iterator[bool]:
    commits = len(world.commits("totals"))
    while True:
        yield len(world.commits("totals")) > commits and bool(world.buffered())


def at_random(world: World) -> Iterator[bool]:
    due = time.monotonic() + random.uniform(0.1, 8.0)
    while True:
        yield time.monotonic() >= due


# The same where no buffer can be seen.


def in_a_micro_batch_without_files(world: World) -> Iterator[bool]:
    """A micro-batch that was not there before has begun, and not ended."""
    before = world.newest("offsets")
    while True:
        yield before < world.newest("offsets") > world.newest("commits")


def between_micro_batches_and_flush(world: World) -> Iterator[bool]:
    """To Spark one more micro-batch is done, but it is in memory only."""
    before = world.newest("commits")
    while True:
        yield before < world.newest("commits") > world.flushed()


def after_a_commit(world: World) -> Iterator[bool]:
    commits = len(world.commits("totals"))
    while True:
        yield len(world.commits("totals")) > commits


def in_a_rewind(world: World) -> Iterator[bool]:
    """The newest micro-batch no longer counts as ended; or it had not ended, and now brings Spark's state up to date again."""
    before, started = world.newest("commits"), time.time()
    while True:
        yield world.newest("commits") < before or world.state_written_since(started)


def in_the_merge_of_a_rewind(world: World) -> Iterator[bool]:
    """The first MERGE of a process that rewinds."""
    files, commits = world.data_files(), len(world.commits("totals"))
    while True:
        yield world.data_files() > files and len(world.commits("totals")) == commits


def after_the_commit_of_a_rewind(world: World) -> Iterator[bool]:
    commits = len(world.commits("totals"))
    while True:
        yield any(commit["reason"] == FlushReason.RECOVERY for commit in world.commits("totals")[commits:])


REWINDS: list[Moment] = [in_a_rewind, in_the_merge_of_a_rewind, after_the_commit_of_a_rewind]
DURABLE: list[Moment] = [while_it_is_made, in_a_micro_batch, between_buffer_and_flush, in_a_merge, before_clean_up]
CHOSEN: dict[Mode, list[Moment]] = {
    Mode.DURABLE: DURABLE,
    Mode.DELTA: [between_state_and_results, *DURABLE],
    Mode.DELTA_IN_TABLE: DURABLE,
    Mode.DELTA_INTERVAL: [
        between_state_and_results,
        in_a_micro_batch_without_files,
        in_a_merge,
        after_a_commit,
        while_it_is_made,
    ],
    Mode.MEMORY_ONLY: [
        in_a_micro_batch_without_files,
        between_micro_batches_and_flush,
        *REWINDS,
        in_a_merge,
        after_a_commit,
        while_it_is_made,
    ],
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", list(Mode))
def test_kill_and_restart(tmp_path: Path, spark: SparkSession, kills: int, mode: Mode) -> None:
    world = World(tmp_path, mode, files=FILES_A_KILL * (kills + 1), files_a_trigger=2)
    world.arrive(FILES_A_KILL)
    moments = CHOSEN[mode].copy()
    if kills < len(moments):
        random.shuffle(moments)  # so that over time all are met
    for _ in range(kills):
        moment = next_moment(moments, world)
        process = world.start()
        try:
            wait_for(moment, world, process)
        finally:
            world.kill(process)
        world.killed[moment.__name__] += 1
        if mode in WITHOUT_FILES:
            assert world.buffered() == []
        world.arrive(FILES_A_KILL)
    has_to_rewind = world.newest("commits") > world.flushed()
    before = len(world.commits("totals"))
    finish(world)

    damage = damage_of(world, spark)
    print(f"{mode}, killed: {dict(world.killed)}; flushes: {len(world.commits('totals'))}; {damage}")
    assert set(damage.values()) == {0}
    check_commits(world)
    if mode is Mode.MEMORY_ONLY and has_to_rewind:
        assert world.commits("totals")[before]["reason"] == FlushReason.RECOVERY


def next_moment(moments: list[Moment], world: World) -> Moment:
    """Take the next one off the list; before a rewind can be met, something must have been lost from memory."""
    if not moments:
        return at_random
    if moments[0] in REWINDS and world.newest("commits") <= world.flushed():
        return between_micro_batches_and_flush
    return moments.pop(0)


def damage_of(world: World, spark: SparkSession) -> dict[str, int]:
    """How many rows of the tables are lost, doubled and torn, against all that has arrived.

    A row of `totals` is lost when it counts too few, doubled when it counts too many, torn when its columns are of different
    moments, or it does not qualify.
    """
    values: dict[int, list[int]] = defaultdict(list)
    for number in range(world.files):
        for row in range(ROWS_A_FILE):
            values[(number * 31 + row * 7) % KEYS].append(number * ROWS_A_FILE + row)
    expected = {k: (len(v), sum(v)) for k, v in values.items() if sum(v) % 7 != 0 or not world.has_having}
    found = spark.read.format("delta").load(str(world.warehouse / "totals")).collect()
    counts = {row.k: row.n for row in found}
    copies = Counter((row.k, row.v) for row in spark.read.format("delta").load(str(world.warehouse / "copies")).collect())
    originals = Counter((k, v) for k, each in values.items() for v in each)
    return {
        "totals lost": sum(1 for k, (n, _) in expected.items() if counts.get(k, 0) < n),
        "totals doubled": sum(1 for row in found if row.n > len(values[row.k])) + len(found) - len(counts),
        "totals torn": sum(1 for row in found if row.n == len(values[row.k]) and (row.n, row.s) != expected.get(row.k)),
        "copies lost": (originals - copies).total(),
        "copies doubled": (copies - originals).total(),
    }


def wait_for(moment: Moment, world: World, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_DEADLINE + MOMENT_DEADLINE
    started = time.time()
    from_the_start = moment is while_it_is_made or moment in REWINDS
    while not from_the_start and not world.runs_since(started):
        assert process.poll() is None, f"the process ended by itself: {world.output()}"
        assert time.monotonic() < deadline, f"the flow never started: {world.output()}"
        time.sleep(0.02)
    seen = moment(world)
    fed = time.monotonic()
    while not next(seen):
        assert process.poll() is None, f"the process ended by itself: {world.output()}"
        now = time.monotonic()
        assert now < deadline, f"{moment.__name__} never came: {world.output()}"
        if now - fed > FED_AFTER and not from_the_start:
            world.feed()
            fed = now
        time.sleep(0.002)


def finish(world: World) -> None:
    process = world.start("--until-idle")
    try:
        assert process.wait(timeout=FINISH_DEADLINE) == 0, world.output()
    finally:
        if process.poll() is None:
            world.kill(process)


def check_commits(world: World) -> None:
    """One commit a flush, and every micro-batch in exactly one of them.

    Only what was in memory may be in one more: a rewind commits again from the last flush that it knows of.
    """
    for table in ("totals", "copies"):
        last = -1
        for commit in world.commits(table):
            may_repeat = table == "totals" and world.mode is Mode.MEMORY_ONLY and commit["reason"] == FlushReason.RECOVERY
            assert commit["first_batch"] <= last + 1, f"{table}: {commit} after micro-batch {last}"
            assert may_repeat or commit["first_batch"] == last + 1, f"{table}: {commit} after micro-batch {last}"
            assert commit["last_batch"] >= commit["first_batch"]
            assert commit["last_batch"] > last, f"{table}: {commit} after micro-batch {last}"
            last = commit["last_batch"]
        assert last >= 0, f"{table}: no commit"
    batches = {commit["last_batch"] - commit["first_batch"] + 1 for commit in world.commits("totals")}
    assert (max(batches) > 1) is (world.mode is not Mode.DELTA_INTERVAL), "nothing was ever buffered, or should not have been"
