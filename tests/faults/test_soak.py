"""A flow under random arrivals for a while: its table is never staler than promised, and nothing grows that should not.

By hand, ten minutes a mode: `python -m pytest tests/faults/test_soak.py -s --soak 600`.
"""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import SparkSession

from sqlext.execution.flows.flow import Flow
from sqlext.extension import session as sqlext_session
from tests.support import eventually, rows

KEYS, MOST_ROWS = 200, 400
INTERVAL = 4.0
MOST_PAUSE = 0.8  # seconds between two arrivals; most are shorter than the 1 s after which the flow would count as idle
LONG_PAUSE = 2.5  # now and then, so that it does
SAMPLES = 13  # in all, so 4 in each third after the first one; each stops Java for a full garbage collection
SLACK = 1.0
"""Seconds beside the interval, the micro-batches, the flush and the test's own stops: the ticker's beat, the source's polling."""
DEADLINE = 120.0
MODES = {
    "durable": "'state.backend.type' = 'rocksdb'",
    "memory-only": "'state.backend.type' = 'rocksdb', 'execution.flush.memory-buffer-only' = 'true'",
    "delta": "'state.backend.type' = 'delta'",
}
POOLS = ("block-manager", "broadcast-excha", "shuffle-exchang", "ResultQueryStag", "QueryStageCreat")
"""Spark makes a new thread there for each task until there are 100 or so, and ends one after a minute without work. Linux keeps
15 characters of a thread's name."""
SETTINGS = {  # what Spark keeps of the past for hours, it keeps for seconds here: the test sees whether it goes at all
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "1s",
    "spark.sql.streaming.fileSource.log.compactInterval": "4",
}
QUERY = "SELECT k, count(*) AS n, sum(v) AS s, max(arrival) AS newest FROM {} GROUP BY k"


@dataclass(frozen=True)
class Footprint:
    """What the process holds, after a garbage collection on both sides; memory in MB."""

    python_rss: float
    jvm_outside_heap: float
    jvm_heap: float
    python_threads: float
    jvm_threads: float
    files: float
    java_objects: float
    python_proxies: float


TOLERANCE = Footprint(
    python_rss=10,
    jvm_outside_heap=100,  # Java's compiler goes on for minutes
    jvm_heap=80,  # a micro-batch or a flush may be under way
    python_threads=1,
    jvm_threads=10,
    files=60,  # between two clean-ups
    java_objects=100,  # they go when Python next collects its garbage
    python_proxies=5,
)
"""How much more the last third may hold than the first, beside a tenth of it."""


@dataclass
class Arrivals:
    """Files of random rows at random moments, each with its number in its rows; a seed gives the same ones again."""

    folder: Path
    random: random.Random
    times: list[float] = field(default_factory=list)

    def arrive(self) -> None:
        number = len(self.times)
        draw = self.random.randint
        lines = [json.dumps({"k": draw(0, KEYS - 1), "v": draw(-99, 99), "arrival": number}) for _ in range(draw(1, MOST_ROWS))]
        hidden = self.folder / f".{number:06d}.json"
        hidden.write_text("\n".join(lines))
        hidden.rename(self.folder / f"{number:06d}.json")
        self.times.append(time.time())

    def pause(self) -> float:
        return LONG_PAUSE if self.random.random() < 0.05 else self.random.uniform(0, MOST_PAUSE)


class Measured:
    """The longest steps of a flow from now on, in seconds, looked up while it runs: Spark remembers a hundred micro-batches."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._flushes = flow.status()[1].flushes
        self._batch = max((progress.batchId for progress in self._progress()), default=-1)
        self.micro_batch = 0.0
        self.flush = 0.0
        self.stop = 0.0

    def footprint(self, spark: SparkSession, home: str) -> Footprint:
        """What the process holds; all of it stands still meanwhile."""
        began = time.monotonic()
        found = footprint(spark, home)
        self.stop = max(self.stop, time.monotonic() - began)
        return found

    def look_at_flush(self) -> None:
        """Cheap: for each arrival, so that no flush is missed."""
        progress = self._flow.status()[1]
        if progress.flushes > self._flushes:
            self.flush = max(self.flush, progress.last_flush_seconds)

    def look_at_micro_batches(self) -> None:
        """A hundred of Spark's long reports."""
        taken = [
            progress.durationMs["triggerExecution"] / 1000 for progress in self._progress() if progress.batchId > self._batch
        ]
        self.micro_batch = max(self.micro_batch, *taken, 0.0)

    def _progress(self) -> list[Any]:
        """Of micro-batches; an idle query reports under the number of the one to come."""
        query = self._flow._intakes[0].query
        assert query is not None
        return [progress for progress in query.recentProgress if progress.numInputRows]


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[None]:
    state_stores: Any = spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore  # type: ignore[union-attr]
    state_stores.stop()  # its thread keeps the interval with which the first flow of the process found it
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield
    for key in SETTINGS:
        spark.conf.unset(key)
    state_stores.stop()


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc, as Linux has it")
@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("mode", MODES)
def test_stays_fresh_and_small(spark: SparkSession, tmp_path: Path, soak_seconds: float, mode: str) -> None:
    source = tmp_path / "events"
    source.mkdir()
    arrivals = Arrivals(source, random.Random(365))
    spark.sql(f"CREATE TABLE events (k INT, v INT, arrival INT) USING json LOCATION '{source}'")
    spark.sql(
        f"CREATE STREAMING TABLE totals TBLPROPERTIES ('execution.flush.max-interval' = '{INTERVAL:.0f} seconds', "
        f"{MODES[mode]}) AS {QUERY.format('STREAM events')}"
    )
    host = sqlext_session.host_of(spark)
    (flow,) = host.flows.all.values()
    for warm in range(1, 6):  # code is compiled, caches are filled
        arrivals.arrive()
        eventually(lambda at_least=warm: flow.status()[1].flushes >= at_least, DEADLINE, lambda: str(flow.status()))  # type: ignore[misc]
    first = len(arrivals.times)

    found: list[Footprint] = []
    measured = Measured(flow)
    began = time.monotonic()
    tick = threading.Event()  # nobody sets it: a pause between two arrivals, no wait for anything
    while (passed := time.monotonic() - began) < soak_seconds or len(found) < SAMPLES:
        arrivals.arrive()
        measured.look_at_flush()
        if len(arrivals.times) % 20 == 0:
            measured.look_at_micro_batches()
        if passed >= len(found) * soak_seconds / SAMPLES:
            found.append(measured.footprint(spark, host.home))
        tick.wait(arrivals.pause())
    spark.sql("WAIT FLOW totals")
    measured.look_at_flush()
    measured.look_at_micro_batches()

    assert rows(spark.table("totals")) == rows(spark.sql(QUERY.format("events")))
    state = local(f"{host.home}/flows/{flow.spec.id}/checkpoint/state")
    assert bool(list(state.rglob("*.zip"))) is (mode != "delta"), "the state store has made no snapshot, or should not be there"
    location = local(spark.sql("DESCRIBE DETAIL totals").collect()[0].location)
    stale, commits = staleness(location, arrivals.times, first)
    # Two micro-batches: the one that ran when a row came, and its own. A flush longer than the interval holds up the next.
    bound = max(INTERVAL, measured.flush) + measured.flush + 2 * measured.micro_batch + measured.stop + SLACK
    growth = compare(found[1:])  # when the first is taken, Java still compiles most of the code: of 170 MB, 90 in a minute
    print(
        f"\n{mode}: {len(arrivals.times) - first} arrivals, {commits} flushes in {soak_seconds:.0f} s; stalest {stale:.2f} s of "
        f"{bound:.2f} s (interval {INTERVAL:.0f}, flush {measured.flush:.2f}, micro-batch {measured.micro_batch:.2f}, "
        f"stopped for a look {measured.stop:.2f})"
    )
    for name, (before, after, allowed) in growth.items():
        print(f"  {name}: {before:.1f} in the first third, {after:.1f} in the last, {allowed:.1f} allowed")
    assert stale <= bound
    assert [name for name, (_, after, allowed) in growth.items() if after > allowed] == []


def staleness(table: Path, times: list[float], first: int) -> tuple[float, int]:
    """How old the oldest row that was not in the table ever was, in seconds, and the number of commits looked at.

    It is oldest just before a commit. What a commit brought up to which arrival is in the statistics of its files, as the source
    is read in order; when, in the time of its log's file. A row of an arrival before `first` does not count.
    """
    stalest, missing, commits = 0.0, 0, 0
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        added = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
        newest = max((stats["maxValues"]["newest"] for stats in added if "newest" in stats.get("maxValues", {})), default=-1)
        if newest < missing:
            continue
        if newest >= first:
            stalest = max(stalest, log.stat().st_mtime - times[max(missing, first)])
            commits += 1
        missing = newest + 1
    assert missing == len(times), f"the table ends with arrival {missing - 1} of {len(times)}"
    return stalest, commits


def footprint(spark: SparkSession, home: str) -> Footprint:
    """Collect garbage in Python, then in Java, since objects of ours there go with those here; then look."""
    gateway: Any = spark.sparkContext._gateway
    java: Any = gateway.jvm.java.lang
    gc.collect()
    java.System.gc()
    heap = java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
    jvm = java.ProcessHandle.current().pid()
    return Footprint(
        python_rss=resident(os.getpid()),
        jvm_outside_heap=resident(jvm) - heap.getCommitted() / 1024**2,  # tests take the whole heap at their start
        jvm_heap=heap.getUsed() / 1024**2,
        python_threads=threading.active_count(),
        jvm_threads=java_threads(jvm),
        files=sum(len(files) for _, _, files in os.walk(local(home))),  # unlike rglob, it bears with folders that go meanwhile
        java_objects=gateway.java_gateway_server.getGateway().getBindings().size(),
        python_proxies=len(gateway.gateway_property.pool.dict),
    )


def compare(found: list[Footprint]) -> dict[str, tuple[float, float, float]]:
    """Of each figure the least of the first third, of the last third, and what that may be.

    The least: what a micro-batch or a flush holds while it runs (Spark sorts and merges in pages of 32 MB and more) is in some of
    the samples, what never goes is in all.
    """
    third = len(found) // 3
    figures = {}
    for name, more in asdict(TOLERANCE).items():
        before, after = (min(getattr(each, name) for each in part) for part in (found[:third], found[-third:]))
        figures[name] = (before, after, before * 1.1 + more)
    return figures


def resident(process: int) -> float:
    """The memory of a process, in MB."""
    line = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def java_threads(process: int) -> int:
    """How many threads a JVM has, but for those of Spark's pools."""
    names = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text())
    return sum(1 for name in names if not name.startswith(POOLS))


def local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
