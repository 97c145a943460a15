"""Flows and views on S3: requests fail, hosts are killed (`--kills N`), and nothing is lost or doubled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults import lake
from tests.faults.hosts import DEADLINE, Hosts
from tests.faults.lake import Lake
from tests.faults.object_store import BUCKET, ObjectStore
from tests.support import eventually

FAULTS = 0.02


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path) as store:
        yield store


@pytest.fixture
def hosts(tmp_path: Path, store: ObjectStore) -> Iterator[Hosts]:
    found = Hosts(tmp_path, [*store.settings, "--conf", f"spark.sqlext.home=s3a://{BUCKET}/home"])
    yield found
    found.kill_all()


@pytest.mark.timeout(7200)
def test_tables_equal_their_queries(store: ObjectStore, hosts: Hosts, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    host, random_ = hosts.start(), random.Random(3)
    tables = Lake(f"s3://{BUCKET}/tables", store.options)
    eventually(host.serves, DEADLINE, host.said)
    hosts.run(lake.tables(f"s3a://{BUCKET}/tables"))
    store.ignores_conditions = True
    assert "lets two drivers create one file" in hosts.run(lake.FLOWS, expect=1)
    store.ignores_conditions = False
    hosts.run(lake.FLOWS)
    store.faults = FAULTS
    for _ in range(kills):
        for _ in range(random_.randint(1, 3)):
            tables.add(200)
        until = store.seen.total() + random_.randrange(200)
        eventually(partial(store.has_answered, until), DEADLINE)  # then it is at work, anywhere
        host = hosts.next_after(host, partial(tables.add, 200))
    tables.add(200)
    hosts.run(lake.UP_TO_DATE)
    tables.check()
    with capsys.disabled():
        print(f"\n{kills} kills, requests: {dict(store.seen)}")
    assert store.seen["answer lost"] > 0
