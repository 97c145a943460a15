"""A standalone cluster, of which workers and the driver are killed by kill -9 in turn: `--kills N`.

The driver is `sqlext serve`. Flows in both state backends, buffered in files and in memory only, a Python function, a
materialized view and, at each kill, a job over a Python partition function read a table that grows all the time. Every version
of every target, and so all that a reader may have seen, is what its query gives over a prefix of the table: none is torn. At the
end, nothing is lost or doubled. By hand: `python -m pytest tests/faults/test_cluster.py --kills 50`.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tests.faults.cluster import UNSHARE, Cluster, kill_driver
from tests.faults.hosts import DEADLINE, Host, Hosts
from tests.faults.job_events import events_of_job
from tests.java import java_options
from tests.support import eventually

ROWS, KEYS = 20, 8
FED_EVERY = 3.0
"""Seconds between two commits; a busy machine takes as long for a micro-batch of all flows."""
IN_CI = 2
"""Kills where `--kills` does not ask for more: of a worker, and of the driver."""
_READABLE = "'delta.enableDeletionVectors' = 'false'"  # deltalake cannot read those
_SUMS = "SELECT k, count(*) AS n, sum(v) AS s FROM"
FLOWS = {
    "by_rocksdb": "'state.backend.type' = 'rocksdb'",
    "by_delta": "'state.backend.type' = 'delta'",
    "in_memory": "'state.backend.type' = 'rocksdb', 'execution.flush.memory-buffer-only' = 'true'",
    "an_interval": "'state.backend.type' = 'delta', 'execution.flush.memory-buffer-only' = 'true'",
}
SET_UP = [
    f"CREATE TABLE events (k BIGINT, v BIGINT) USING delta TBLPROPERTIES ({_READABLE})",
    *(
        f"CREATE STREAMING TABLE {name} TBLPROPERTIES ('execution.flush.max-interval' = '3 seconds', {properties}, {_READABLE}) "
        f"AS {_SUMS} STREAM events GROUP BY k"
        for name, properties in FLOWS.items()
    ),
    f"CREATE STREAMING TABLE copies TBLPROPERTIES ({_READABLE}) AS SELECT k, v, doubled(v) AS d FROM STREAM events",
    f"CREATE MATERIALIZED VIEW a_view TBLPROPERTIES ({_READABLE}) SCHEDULE EVERY 10 SECONDS AS {_SUMS} events GROUP BY k",
    "SELECT * FROM map_partition(TABLE(SELECT 1 AS k), 'places')",
]
TARGETS = (*FLOWS, "copies", "a_view")
JOB = (
    "CREATE TABLE {name} USING delta TBLPROPERTIES (" + _READABLE + ") AS SELECT k, count(*) AS n, sum(v) AS s, max(total) AS t "
    "FROM map_partition(TABLE(events) PARTITION BY k, 'totals') GROUP BY k GLOBAL WINDOW END OF STREAM"
)
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sqlext.execution.batch.job-recovery.enabled": "true",
    "spark.sqlext.execution.batch.job-recovery.retention": "1 hour",
}
PARTS = 3
"""A job is killed after up to so many of its six parts."""


@dataclass
class World:
    """The hosts of one warehouse, and the rows that have arrived."""

    hosts: Hosts
    arrived: int = 0
    jobs: int = 0
    killed: Counter[str] = field(default_factory=Counter)

    def feed(self) -> None:
        """Append rows in one commit; the numbers of all rows are 0, 1, 2, .."""
        numbers = range(self.arrived, self.arrived + ROWS)
        rows = pyarrow.table({"k": [key_of(v) for v in numbers], "v": list(numbers)})
        write_deltalake(self.hosts.table("events"), rows, mode="append")
        self.arrived += ROWS

    def serving(self) -> Host:
        host = self.hosts.start()
        eventually(host.serves, DEADLINE, host.said)
        return host

    def start_job(self) -> subprocess.Popen[str]:
        """Run the next job by a client of its own; it has begun."""
        self.jobs += 1
        script = self.hosts.folder / f"{self.job}.sql"
        script.write_text(JOB.format(name=self.job) + ";")
        command = [sys.executable, "-m", "sqlext.cli", "run", str(script), "--connect", f"127.0.0.1:{self.hosts.port}"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
        parts = random.randint(0, PARTS)
        eventually(lambda: client.poll() is not None or self.finished_parts() >= parts, DEADLINE)
        return client

    @property
    def job(self) -> str:
        return f"job{self.jobs}"

    @property
    def _jobs(self) -> Path:
        return Path(self.hosts.table("_sqlext/jobs"))

    def _events(self) -> list[dict[str, Any]]:
        """The registry's events of the last job."""
        return events_of_job(self._jobs, self.job)

    def finished_parts(self) -> int:
        """The number of parts of the last job that are committed; -1: it is not registered yet."""
        ours = {each["job_id"] for each in self._events()}
        logs = [log for job in ours for log in self._jobs.glob(f"{job}/vertex-*/_delta_log/*.json")]
        return sum('"userMetadata"' in log.read_text() for log in logs) if ours else -1

    def has_ended(self) -> bool:
        """Whether the last job has filled its table."""
        return any(each["kind"] == "finished" for each in self._events())

    def versions(self, name: str) -> list[list[dict[str, Any]]]:
        """The rows of every version of a target: all that any reader can have seen."""
        newest = DeltaTable(self.hosts.table(name)).version()
        return [self.rows(name, version) for version in range(newest + 1)]

    def rows(self, name: str, version: int | None = None) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = DeltaTable(self.hosts.table(name), version=version).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []
        return rows


def key_of(number: int) -> int:
    return number * 7 // 3 % KEYS


def expected(name: str, arrived: int) -> Counter[tuple[int, ...]]:
    """The rows of a target after so many have arrived."""
    if name == "copies":
        return Counter((key_of(v), v, 2 * v) for v in range(arrived))
    values: dict[int, list[int]] = {}
    for v in range(arrived):
        values.setdefault(key_of(v), []).append(v)
    sums = {key: (len(each), sum(each)) for key, each in values.items()}
    return Counter((k, n, s, s) if name.startswith("job") else (k, n, s) for k, (n, s) in sums.items())


def counted(name: str, rows: list[dict[str, Any]]) -> int:
    """How many rows of the source a target has."""
    return len(rows) if name == "copies" else sum(row["n"] for row in rows)


def is_prefix(name: str, rows: list[dict[str, Any]]) -> bool:
    """Whether rows are those of a target after whole commits of its source."""
    number = counted(name, rows)
    return number % ROWS == 0 and Counter(tuple(row.values()) for row in rows) == expected(name, number)


def damage(world: World, name: str, arrived: int) -> dict[str, int]:
    """How many rows of the source a target has lost and doubled at its end, and how many of its versions are torn."""
    versions = world.versions(name)
    number = counted(name, versions[-1])
    torn = sum(1 for rows in versions if not is_prefix(name, rows))
    backwards = [counted(name, rows) for rows in versions]
    return {
        "lost": max(arrived - number, 0),
        "doubled": max(number - arrived, 0),
        "torn": torn + (backwards != sorted(backwards)),
    }


@contextmanager
def fed(world: World) -> Iterator[None]:
    """Let rows arrive all the time."""
    over = threading.Event()

    def feed() -> None:
        while not over.wait(FED_EVERY):
            world.feed()

    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(feed)
        try:
            yield
        finally:
            over.set()
        feeding.result()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path / "cluster")
    yield found
    found.close()


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> Iterator[World]:
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    launcher = ("tests.faults.cluster_driver", str(cluster.folder))
    hosts = Hosts(tmp_path, [*cluster.settings, *settings], launcher, cluster.environment)
    yield World(hosts)
    for host in hosts.started:
        kill_driver(host.process)


@pytest.mark.timeout(4 * 3600)
def test_workers_and_drivers_die(world: World, cluster: Cluster, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    host = world.serving()
    said = world.hosts.run(";\n".join(SET_UP) + ";")
    assert f"sqlext.zip/sqlext/__init__.py {cluster.python} []" in said, (
        "executors have sqlext, or a driver's packages, from elsewhere"
    )
    world.feed()
    with fed(world):
        for kill in range(max(kills, IN_CI)):
            client = world.start_job()
            if kill % 2 == 0:
                cluster.kill_worker(random.randrange(len(cluster.workers)))
                cluster.start_worker()
                assert client.wait(DEADLINE) == 0, client.communicate()[0] + host.said()
                world.killed["workers"] += 1
            else:
                kill_driver(host.process)
                client.communicate()
                world.killed["drivers"] += 1
                host = world.serving()
            catch_up(world, host, world.arrived)
    catch_up(world, host, world.arrived)
    assert all(world.rows(f"job{number}") for number in range(1, world.jobs + 1)), "a job was pinned to no rows"

    jobs = [f"job{number}" for number in range(1, world.jobs + 1)]
    found = {name: damage(world, name, world.arrived) for name in TARGETS}
    found |= {name: damage(world, name, counted(name, world.rows(name))) for name in jobs}
    total: Counter[str] = Counter()
    for each in found.values():
        total.update(each)
    versions = sum(len(world.versions(name)) for name in (*TARGETS, *jobs))
    with capsys.disabled():
        print(
            f"\nkilled: {dict(world.killed)}; {world.arrived} rows, {len(TARGETS)} targets and {len(jobs)} jobs in {versions} "
            f"versions: {total['lost']} lost, {total['doubled']} doubled, {total['torn']} torn"
        )
    assert total.total() == 0, found


def catch_up(world: World, host: Host, arrived: int) -> None:
    """Wait until all targets have the rows that had arrived, and the last job has ended."""

    def missing() -> list[str]:
        return ([] if world.has_ended() else [world.job]) + [
            name for name in TARGETS if counted(name, world.rows(name)) < arrived
        ]

    eventually(lambda: not missing(), DEADLINE, lambda: f"{arrived} rows are not in {missing()}: {host.said()}")


@pytest.mark.skipif(subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0, reason="only root may mount")
def test_a_home_that_executors_do_not_share_is_refused(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    cluster = Cluster(tmp_path / "cluster", workers=1, hidden=warehouse)
    script = tmp_path / "flow.sql"
    script.write_text("CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM nothing GROUP BY k;")
    command = [sys.executable, "-m", "sqlext.cli", "run", str(script), "--warehouse", str(warehouse), *cluster.settings]
    command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    try:
        ended = subprocess.run(
            command, env=cluster.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE
        )
    finally:
        cluster.close()
    said = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode == 2, said
    assert f"The home `file:{warehouse}/_sqlext` is not shared: executors of {cluster.url} wrote 4 files there" in said
    assert "and this process sees 0. Set `spark.sqlext.home` to storage" in said
