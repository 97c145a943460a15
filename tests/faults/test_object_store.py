"""Flows and views on S3: requests fail, hosts are killed (`--kills N`), and nothing is lost or doubled."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRegistry
from tests.faults import lake
from tests.faults.hosts import DEADLINE, Hosts
from tests.faults.lake import Lake
from tests.faults.object_store import BUCKET, ObjectStore
from tests.support import eventually
from tests.unit.memory_folder import MemoryFolder
from tests.unit.test_spec_registry import SPEC

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


@pytest.mark.timeout(1800)
def test_a_registry_of_a_thousand_flows_is_opened(store: ObjectStore, hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    """3,000 events and 60 snapshots, more than a listing has on one page; 20 milliseconds a request."""
    store.latency = 0.02
    requests, seconds = started(store, hosts)
    hosts.kill_all()
    assert all(store.put(path, text) for path, text in registry_of(1_000).items())
    more_requests, more_seconds = started(store, hosts)
    assert "flow_999" in hosts.run("DESCRIBE FLOW flow_999;")
    with capsys.disabled():
        print(f"\nstarted with no flows: {requests} requests, {seconds:.1f} s; with 1,000: {more_requests}, {more_seconds:.1f} s")
    assert more_requests < requests + 200


def started(store: ObjectStore, hosts: Hosts) -> tuple[int, float]:
    """Start a host, and return the requests and seconds until it serves."""
    before, began = store.seen.total(), time.monotonic()
    host = hosts.start()
    eventually(host.serves, DEADLINE, host.said)
    return store.seen.total() - before, time.monotonic() - began


def registry_of(flows: int) -> dict[str, str]:
    """The files of a registry of stopped flows, by path in the bucket."""
    folder = MemoryFolder("home")
    registry = FlowRegistry(folder)
    for number in range(flows):
        name = ("spark_catalog", "default", f"flow_{number}")
        spec = replace(SPEC, id=f"f-{number}", name=name[-1], full_name=name, target=name)
        registry.append(FlowEvent(spec.id, EventKind.RESERVED, spec=spec.to_json()))
        registry.append(FlowEvent(spec.id, EventKind.STARTED, 1, "h-1"))
        registry.append(FlowEvent(spec.id, EventKind.STOPPED, 1, "h-1"))
    return dict(folder.files)
