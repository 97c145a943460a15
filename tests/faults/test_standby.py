"""`sqlext serve --standby`: hosts are killed by kill -9, one after the other, and the one that stands by takes over: `--kills N`.

A flow counts the rows of a table that grows all the time. Nothing is lost or counted twice, no two hosts share an epoch, and the
next host serves within a minute.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.hosts import DEADLINE, Hosts
from tests.support import eventually

TAKEN_OVER_WITHIN = 60.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    found.kill_all()


@pytest.mark.timeout(7200)
def test_the_next_host_takes_over(hosts: Hosts, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    began, host, random_ = time.monotonic(), hosts.start(), random.Random(1)
    serving: list[float] = []
    counting: list[float] = []
    eventually(host.serves, DEADLINE, host.said)
    start = time.monotonic() - began
    hosts.run(
        "CREATE TABLE readings (sensor BIGINT) USING delta;"
        "CREATE STREAMING TABLE counts TBLPROPERTIES "
        "('execution.flush.max-interval' = '2 seconds', 'delta.enableDeletionVectors' = 'false') "  # deltalake cannot read those
        "AS SELECT sensor, count(*) AS n FROM STREAM readings GROUP BY sensor;"
    )
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
    assert max(counting) < max(TAKEN_OVER_WITHIN, 3 * start)  # beside other tests, Spark alone may take longer to start
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
