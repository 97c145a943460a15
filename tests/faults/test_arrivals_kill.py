"""kill -9 of the process of flows that share a table, put rows aside, and apply changes; then a restart: nothing lost or doubled.

Three flows append to one table, and so does a backfill, begun anew before each kill. Rows that cannot be read and rows that
violate a constraint are quarantined, corrected and replayed. Two flows of AUTO CDC keep the newest rows and all versions. Each
kill hits all of them, at a moment of one. By hand: `python -m pytest tests/faults/test_arrivals_kill.py --kills 20`.
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
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqlext.testing import Moment
from tests.changes_by_hand import Change, history, newest
from tests.java import java_options

ROWS_A_FILE, CHANGES_A_FILE, KEYS = 60, 40, 12
IN_CI = 2
"""Kills where `--kills` does not ask for more."""
FED_AFTER = 3.0
"""Seconds without the moment after which more files arrive."""
FED_AT_MOST = 12
"""Files of a life; a process whose moment has not come with them dies all the same, a little later."""
FINISH_DEADLINE = 900.0
ORIGINS = ("a", "b", "c")
MOMENTS = {
    "events": (Moment.TABLE_MADE, Moment.BATCH_BEGUN, Moment.FLUSH_COMMITTED, Moment.REPLAY_BEGUN),
    "b": (Moment.BATCH_BEGUN, Moment.BATCH_BUFFERED, Moment.REPLAY_BEGUN),
    "c": (Moment.BATCH_BUFFERED, Moment.FLUSH_BEGUN, Moment.FLUSH_COMMITTED, Moment.REPLAY_BEGUN),
    "newest": (Moment.BATCH_BUFFERED, Moment.FLUSH_BEGUN, Moment.STATE_COMMITTED, Moment.FLUSH_COMMITTED),
    "versions": (Moment.BATCH_BUFFERED, Moment.FLUSH_BEGUN, Moment.STATE_COMMITTED, Moment.FLUSH_COMMITTED),
}
SET_UP = """
CREATE TABLE IF NOT EXISTS {origin} (id INT, text STRING, round INT) USING json LOCATION '{folder}';
"""
FLOWS = """
CREATE TABLE IF NOT EXISTS changes (op STRING, at INT, k INT, a INT, b INT) USING json LOCATION '{changes}';
CREATE STREAMING TABLE IF NOT EXISTS events (
  CONSTRAINT readable EXPECT (NO ERROR) ON VIOLATION QUARANTINE INTO bad,
  CONSTRAINT no_tens EXPECT (v % 10 <> 0) ON VIOLATION QUARANTINE INTO bad
) AS SELECT 'a' AS origin, id, CAST(text AS INT) AS v FROM STREAM a;
CREATE FLOW IF NOT EXISTS b AS INSERT INTO events SELECT 'b' AS origin, id, CAST(text AS INT) AS v FROM STREAM b;
CREATE FLOW IF NOT EXISTS c AS INSERT INTO events
SELECT /*+ FLUSH_INTERVAL('4 seconds') */ 'c' AS origin, id, CAST(text AS INT) AS v FROM STREAM c;
CREATE STREAMING TABLE IF NOT EXISTS newest TBLPROPERTIES ('execution.flush.max-interval' = '4 seconds')
FLOW AUTO CDC FROM STREAM changes KEYS (k) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY at COLUMNS (k, a, b);
CREATE STREAMING TABLE IF NOT EXISTS versions TBLPROPERTIES ('execution.flush.max-interval' = '4 seconds')
FLOW AUTO CDC FROM STREAM changes KEYS (k) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY at COLUMNS (k, a, b) STORED AS SCD TYPE 2;
"""
BACKFILL = """
CREATE FLOW IF NOT EXISTS past_{round} AS INSERT INTO ONCE events
SELECT 'past' AS origin, id, CAST(text AS INT) AS v FROM past WHERE round = {round};
"""
CORRECTED = """
WAIT FLOW events;
WAIT FLOW b;
WAIT FLOW c;
{backfills}
UPDATE bad SET v = id, _input = NULL WHERE _input IS NOT NULL AND id % 10 <> 0;
UPDATE bad SET v = v + 1 WHERE v % 10 = 0;
REPLAY QUARANTINE bad;
"""


@dataclass(frozen=True)
class Kill:
    """When the process dies: at a moment of a flow, and so many seconds after it."""

    flow: str
    moment: Moment
    seconds: float

    def __str__(self) -> str:
        return f"{self.flow}: {self.moment.value}{f' + {self.seconds:.1f} s' if self.seconds else ''}"


@dataclass
class World:
    """One warehouse, what arrives in it, and the process that is killed."""

    folder: Path
    rounds: int = 0
    files: Counter[str] = field(default_factory=Counter)
    changes: list[Change] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.warehouse = self.folder / "warehouse"
        for name in (*ORIGINS, "past", "changes"):
            (self.folder / name).mkdir(parents=True)

    def arrive(self) -> None:
        """One more file for each stream."""
        for origin in ORIGINS:
            self._write(origin, self._rows(origin))
        made = [_change() for _ in range(CHANGES_A_FILE)]
        self.changes += made
        self._write("changes", [{"op": c.op, "at": c.at, "k": c.key, "a": c.a, "b": c.b} for c in made])

    def begin_round(self) -> None:
        """Rows of the past, and the script with the flow that brings them in."""
        self._write("past", [{**row, "round": self.rounds} for row in self._rows("past")])
        self.rounds += 1
        tables = "".join(SET_UP.format(origin=name, folder=self.folder / name) for name in (*ORIGINS, "past"))
        backfills = "".join(BACKFILL.format(round=each) for each in range(self.rounds))
        waits = "".join(f"WAIT FLOW past_{each};\n" for each in range(self.rounds))
        flows = FLOWS.format(changes=self.folder / "changes")
        (self.folder / "flows.sql").write_text(tables + flows + backfills + CORRECTED.format(backfills=waits))

    def _rows(self, origin: str) -> list[dict[str, object]]:
        first = self.files[origin] * ROWS_A_FILE
        ids = range(first, first + ROWS_A_FILE)
        return [{"id": each, "text": f"x{each}" if _is_unreadable(each) else str(each)} for each in ids]

    def _write(self, name: str, rows: Iterable[object]) -> None:
        hidden = self.folder / name / f".{self.files[name]:05d}.json"
        hidden.write_text("\n".join(map(json.dumps, rows)))
        hidden.rename(hidden.with_name(hidden.name[1:]))
        self.files[name] += 1

    def start(self, *launcher: str, arguments: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *launcher, "run", str(self.folder / "flows.sql"), "--warehouse", str(self.warehouse)]
        command += [*arguments, "--conf", f"spark.driver.extraJavaOptions={java_options()}"]
        log = (self.folder / "out.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def die(self, kill: Kill) -> None:
        """Run the flows until they die; files arrive until the moment has come."""
        process = self.start("tests.faults.killed_at", kill.flow, kill.moment.value, "1", str(kill.seconds))
        try:
            self._await_tables(process)
            for _ in range(FED_AT_MOST):
                if (code := _ended(process)) is not None:
                    break
                self.arrive()
            else:
                code = _ended(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=120)
        assert code in (None, -signal.SIGKILL), f"{kill}: the process ended by itself: {self.output()}"
        self.killed[str(kill) if code is not None else "at no moment"] += 1

    def _await_tables(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until all flows have begun, unless the process dies before."""
        deadline = time.monotonic() + FINISH_DEADLINE
        while not (self.warehouse / "versions" / "_delta_log").exists() and _ended(process) is None:
            assert time.monotonic() < deadline, f"the flows do not begin: {self.output()}"

    def finish(self) -> None:
        """Run the flows until all that has arrived is in their tables."""
        process = self.start("sqlext.cli", arguments=("--until-idle",))
        try:
            assert process.wait(timeout=FINISH_DEADLINE) == 0, self.output()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def output(self) -> str:
        return (self.folder / "out.log").read_text(errors="replace")[-4000:]

    def originals(self) -> list[tuple[str, int]]:
        return [(origin, each) for origin in (*ORIGINS, "past") for each in range(self.files[origin] * ROWS_A_FILE)]


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=FED_AFTER)
    except subprocess.TimeoutExpired:
        return None


def _change() -> Change:
    a, b = (random.choice((None, 0, 1, 2)) for _ in "ab")
    return Change(random.randrange(KEYS), random.randrange(200), random.choice("UUUUD"), a, b)


def _is_unreadable(number: int) -> bool:
    return number % 7 == 3


@pytest.mark.timeout(7200)
def test_nothing_that_arrives_is_lost_or_doubled(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    world = World(tmp_path)
    world.arrive()
    for kill in chosen(max(kills, IN_CI)):
        world.begin_round()
        world.die(kill)
        world.arrive()
    world.begin_round()
    world.finish()

    damage = damage_of(world, spark)
    arrived = {name: number * ROWS_A_FILE for name, number in world.files.items() if name != "changes"}
    print(f"killed at {dict(world.killed)}; arrived: {arrived}, {len(world.changes)} changes; damage: {damage}")
    assert damage == {}
    assert "oncurrent" not in (world.folder / "out.log").read_text(errors="replace"), "flows conflicted"


def chosen(kills: int) -> list[Kill]:
    """Kills at moments in a random order, so that over time all are met."""
    each = [(flow, moment) for flow, moments in MOMENTS.items() for moment in moments if moment is not Moment.TABLE_MADE]
    found = [("events", Moment.TABLE_MADE)] if kills > len(each) else []
    while len(found) < kills:
        found += random.sample(each, len(each))
    return [Kill(flow, moment, random.choice((0.0, random.uniform(0.0, 3.0)))) for flow, moment in found[:kills]]


def damage_of(world: World, spark: SparkSession) -> dict[str, int]:
    """How many rows are lost and doubled, against all that has arrived; nothing where none are."""

    def rows(table: str, *columns: str) -> Counter[tuple[object, ...]]:
        return Counter(map(tuple, spark.read.format("delta").load(str(world.warehouse / table)).select(*columns).collect()))

    wanted = Counter[tuple[object, ...]]()
    left = Counter[tuple[object, ...]]()
    for origin, number in world.originals():
        if _is_unreadable(number) and number % 10 == 0:
            left[origin, number] += 1
        else:
            wanted[origin, number, number + (number % 10 == 0)] += 1
    found = {"events": (rows("events", "origin", "id", "v"), wanted), "bad": (rows("bad", "origin", "id"), left)}
    found["newest"] = rows("newest", "k", "a", "b"), Counter(newest(world.changes))
    found["versions"] = rows("versions", "k", "a", "b", "__START_AT", "__END_AT"), Counter(history(world.changes))
    damage = {f"{table}: lost": (expected - there).total() for table, (there, expected) in found.items()}
    damage |= {f"{table}: doubled": (there - expected).total() for table, (there, expected) in found.items()}
    return {what: number for what, number in damage.items() if number}
