"""Flows and views whose tables lie on storage that machines share, and a client of that storage that knows no Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow
from deltalake import DeltaTable, write_deltalake

_NO_VECTORS = "'delta.enableDeletionVectors' = 'false'"  # deltalake cannot read those
_FLUSH = f"'execution.flush.max-interval' = '1 second', {_NO_VECTORS}"
FLOW_NAMES = ("counts", "means", "hot")
FLOWS = f"""
CREATE STREAMING TABLE lake.counts TBLPROPERTIES ({_FLUSH}, 'state.backend.type' = 'rocksdb')
    AS SELECT sensor, count(*) AS n FROM STREAM lake.readings GROUP BY sensor;
CREATE STREAMING TABLE lake.means TBLPROPERTIES ({_FLUSH}, 'state.backend.type' = 'delta')
    AS SELECT sensor, avg(celsius) AS mean FROM STREAM lake.readings GROUP BY sensor;
CREATE STREAMING TABLE lake.hot TBLPROPERTIES ({_FLUSH}) AS SELECT sensor, celsius FROM STREAM lake.readings WHERE celsius >= 50;
CREATE MATERIALIZED VIEW lake.highest TBLPROPERTIES ({_NO_VECTORS})
    AS SELECT sensor, max(celsius) AS celsius FROM lake.readings GROUP BY sensor;
"""
UP_TO_DATE = "".join([*(f"WAIT FLOW lake.{name};\n" for name in FLOW_NAMES), "REFRESH MATERIALIZED VIEW lake.highest SYNC;"])


def tables(location: str) -> str:
    """The statements that make the database, and the table that everything reads."""
    return f"""
    CREATE DATABASE lake LOCATION '{location}';
    CREATE TABLE lake.readings (sensor BIGINT, celsius BIGINT) USING delta TBLPROPERTIES ({_NO_VECTORS});
    """


class Lake:
    """The tables, as deltalake reads and writes them.

    Args:
        location: of the database, as deltalake spells it.
        options: of its client.
    """

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._location = location
        self._options = dict(options)
        self._random = random.Random(2)

    def add(self, count: int) -> None:
        sensors = [self._random.randrange(50) for _ in range(count)]
        rows = pyarrow.table({"sensor": sensors, "celsius": [self._random.randrange(100) for _ in sensors]})
        write_deltalake(f"{self._location}/readings", rows, mode="append", storage_options=self._options)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        table = DeltaTable(f"{self._location}/{name}", storage_options=self._options).to_pyarrow_table()
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
