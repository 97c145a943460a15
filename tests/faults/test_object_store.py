"""Flows and views whose tables and home lie on S3: requests fail, hosts are killed (`--kills N`), and nothing is lost or doubled.

Expected rows are computed from the source table, as deltalake reads it.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.faults.hosts import DEADLINE, Hosts
from tests.faults.object_store import BUCKET, ObjectStore
from tests.support import eventually

FAULTS = 0.02
NO_VECTORS = "'delta.enableDeletionVectors' = 'false'"  # deltalake cannot read those
FLUSH = f"'execution.flush.max-interval' = '1 second', {NO_VECTORS}"
TABLES = f"""
CREATE DATABASE lake LOCATION 's3a://{BUCKET}/tables';
CREATE TABLE lake.readings (sensor BIGINT, celsius BIGINT) USING delta TBLPROPERTIES ({NO_VECTORS});
"""
FLOWS = f"""
CREATE STREAMING TABLE lake.counts TBLPROPERTIES ({FLUSH}, 'state.backend.type' = 'rocksdb')
    AS SELECT sensor, count(*) AS n FROM STREAM lake.readings GROUP BY sensor;
CREATE STREAMING TABLE lake.means TBLPROPERTIES ({FLUSH}, 'state.backend.type' = 'delta')
    AS SELECT sensor, avg(celsius) AS mean FROM STREAM lake.readings GROUP BY sensor;
CREATE STREAMING TABLE lake.hot TBLPROPERTIES ({FLUSH}) AS SELECT sensor, celsius FROM STREAM lake.readings WHERE celsius >= 50;
CREATE MATERIALIZED VIEW lake.highest TBLPROPERTIES ({NO_VECTORS})
    AS SELECT sensor, max(celsius) AS celsius FROM lake.readings GROUP BY sensor;
"""


class Lake:
    """The tables, as deltalake reads and writes them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._random = random.Random(2)

    def add(self, count: int) -> None:
        sensors = [self._random.randrange(50) for _ in range(count)]
        rows = pyarrow.table({"sensor": sensors, "celsius": [self._random.randrange(100) for _ in sensors]})
        write_deltalake(self._place("readings"), rows, mode="append", storage_options=self._store.options)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        table = DeltaTable(self._place(name), storage_options=self._store.options).to_pyarrow_table()
        return [tuple(row.values()) for row in table.to_pylist()]

    def check(self) -> None:
        """Compare each table with what its query has over the source."""
        readings = self.rows("readings")
        by_sensor = {sensor: [celsius for each, celsius in readings if each == sensor] for sensor, _ in readings}
        expected: dict[str, list[tuple[Any, ...]]] = {
            "counts": [(sensor, len(found)) for sensor, found in by_sensor.items()],
            "means": [(sensor, sum(found) / len(found)) for sensor, found in by_sensor.items()],
            "hot": [row for row in readings if row[1] >= 50],
            "highest": [(sensor, max(found)) for sensor, found in by_sensor.items()],
        }
        for name, rows in expected.items():
            assert Counter(self.rows(name)) == Counter(rows), name

    def _place(self, name: str) -> str:
        return f"s3://{BUCKET}/tables/{name}"


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
    host, lake, random_ = hosts.start(), Lake(store), random.Random(3)
    eventually(host.serves, DEADLINE, host.said)
    hosts.run(TABLES)
    store.ignores_conditions = True
    assert "lets two drivers create one file" in hosts.run(FLOWS, expect=1)
    store.ignores_conditions = False
    hosts.run(FLOWS)
    store.faults = FAULTS
    for _ in range(kills):
        for _ in range(random_.randint(1, 3)):
            lake.add(200)
        until = store.seen.total() + random_.randrange(200)
        eventually(partial(store.has_answered, until), DEADLINE)  # then it is at work, anywhere
        host.process.send_signal(signal.SIGKILL)
        lake.add(200)
        host.process.wait()
        host = hosts.start("--standby")
        eventually(host.serves, DEADLINE, host.said)
    lake.add(200)
    names = ("counts", "means", "hot")
    hosts.run("\n".join([*(f"WAIT FLOW lake.{name};" for name in names), "REFRESH MATERIALIZED VIEW lake.highest SYNC;"]))
    lake.check()
    with capsys.disabled():
        print(f"\n{kills} kills, requests: {dict(store.seen)}")
    assert store.seen["answer lost"] > 0
