"""Flows and views whose tables and home lie on HDFS: its nodes and hosts are killed (`--kills N` of each); nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults import lake
from tests.faults.hdfs import Hdfs
from tests.faults.hosts import DEADLINE, Hosts
from tests.faults.lake import Lake
from tests.support import eventually


@pytest.fixture
def hdfs(tmp_path: Path) -> Iterator[Hdfs]:
    folder = tmp_path / "hdfs"
    folder.mkdir()
    with Hdfs(folder) as found:
        yield found


@pytest.fixture
def hosts(tmp_path: Path, hdfs: Hdfs) -> Iterator[Hosts]:
    found = Hosts(tmp_path, [*hdfs.settings, "--conf", f"spark.sqlext.home={hdfs.location}/home"])
    yield found
    found.kill_all()


@pytest.mark.timeout(7200)
def test_tables_equal_their_queries(hdfs: Hdfs, hosts: Hosts, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    host, random_, killed = hosts.start(), random.Random(4), Counter[str]()
    tables = Lake(f"{hdfs.location}/tables", {})
    eventually(host.serves, DEADLINE, host.said)
    hosts.run(lake.tables(f"{hdfs.location}/tables"))
    hosts.run(lake.FLOWS)
    for number in range(kills):
        node = ("name node", "data node")[number % 2]
        for victim in random_.sample((node, "host"), 2):
            for _ in range(random_.randint(1, 3)):
                tables.add(200)
            eventually(partial(hdfs.has_changed, hdfs.changes() + random_.randrange(200)), DEADLINE)  # it is at work, anywhere
            killed[victim] += 1
            if victim == "host":
                host = hosts.next_after(host, partial(tables.add, 200))
            else:
                hdfs.restart(victim)
    tables.add(200)
    hosts.run("".join(f"START FLOW lake.{name};" for name in lake.FLOW_NAMES))  # at once, if one waits for its next try
    hosts.run(lake.UP_TO_DATE)
    tables.check()
    with capsys.disabled():
        print(f"\nkilled: {dict(killed)}")
