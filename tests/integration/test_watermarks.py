"""Windows and watermarks with state in Delta tables: rows are late, and groups final, as with Spark's own state store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Row

from tests.integration.test_delta_state import state
from tests.integration.workshop import Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

BACKENDS = ("delta", "rocksdb")
STREAM = "STREAM ev WITH ('maxFilesPerTrigger' = '1') WATERMARK at DELAY OF INTERVAL 5 MINUTES"
TUMBLING, SLIDING = "window(at, '10 minutes')", "window(at, '10 minutes', '4 minutes')"
QUERIES = {
    "tumbling": f"SELECT {TUMBLING} AS w, k, count(*) AS n, sum(v) AS total FROM {STREAM} GROUP BY {TUMBLING}, k",
    "sliding": f"SELECT window.start AS since, k, avg(v) AS mean, count(*) AS n FROM {STREAM} GROUP BY {SLIDING}, k",
    "by_time": f"SELECT at, count(*) AS n, avg(v) AS mean FROM {STREAM} GROUP BY at",
    "by_hour": f"SELECT date_trunc('HOUR', at) AS hour, k, count(*) AS n FROM {STREAM} GROUP BY 1, 2",
    "by_key": f"SELECT k, count(*) AS n, avg(v) AS mean FROM {STREAM} GROUP BY k",
    "without_key": f"SELECT count(*) AS n, max(at) AS newest FROM {STREAM}",
    "having": f"SELECT {TUMBLING} AS w, avg(v) AS mean FROM {STREAM} GROUP BY {TUMBLING} HAVING count(*) > 1",
    "ordered": f"SELECT {TUMBLING} AS w, k, collect_list(v) AS list FROM {STREAM} GROUP BY {TUMBLING}, k",
}

Values = tuple[str, int | None, int]
"""A key, minutes after midnight, and a value."""
STEPS: Sequence[list[Values]] = (
    [("a", 1, 1), ("a", 4, 2), ("b", 12, 3), ("a", None, 4)],  # to a watermark of minute 7
    [("a", 2, 5), ("c", 40, 6)],  # the window from 0 is open still; the watermark goes to 35
    [("a", 3, 7), ("b", 12, 8), ("c", 36, 9), ("a", None, 10)],  # those of 3 and 12 are late
    [("d", 90, 11), ("c", 26, 12), ("c", 41, 13)],  # 26 is late, and 41 is not, though of the same micro-batch as 90
    [("c", 44, 14), ("d", 84, 15), ("d", 79, 16)],
)


def insert(sql: Workshop, *files: list[Values]) -> None:
    """One commit of rows for each file."""
    start = datetime(2026, 1, 1)
    for rows in files:
        values = [Row(k=k, at=None if minute is None else start + timedelta(minutes=minute), v=v) for k, minute, v in rows]
        frame = sql.spark.createDataFrame(values, "k STRING, at TIMESTAMP, v INT")
        frame.coalesce(1).write.format("delta").mode("append").saveAsTable("ev")


def create(sql: Workshop, queries: dict[str, str], interval: str = "10 minutes", more: str = "") -> list[str]:
    """Create a table of each query with each backend; return the tables' names."""
    flows = {f"{name}_{backend}": (query, backend) for name, query in queries.items() for backend in BACKENDS}

    def make(flow: str) -> None:
        query, backend = flows[flow]
        options = f"'execution.flush.max-interval' = '{interval}', 'state.backend.type' = '{backend}'{more}"
        sql(f"CREATE STREAMING TABLE {flow} TBLPROPERTIES ({options}) AS {query}")

    side_by_side(make, flows)
    return [*flows]


def check(sql: Workshop, flows: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Check that the tables of both backends are the same; return those of Delta's."""
    side_by_side(lambda flow: sql(f"WAIT FLOW {flow}"), flows)
    names = dict.fromkeys(flow.rpartition("_")[0] for flow in flows)
    found = {name: [sql.batch(f"SELECT * FROM {name}_{backend}") for backend in BACKENDS] for name in names}
    for name, (delta, rocksdb) in found.items():
        assert delta == rocksdb, name
    return {name: delta for name, (delta, _) in found.items()}


@pytest.mark.usefixtures("unhurried")
def test_rows_are_late_as_in_sparks_state_store(sql: Workshop) -> None:
    insert(sql, STEPS[0])
    flows = create(sql, QUERIES)
    for step in STEPS[1:]:
        check(sql, flows)
        insert(sql, step)
    found = check(sql, flows)
    for flow in flows:
        assert state(sql, flow).startswith(flow.rpartition("_")[2])
    # by hand: of the window from 0, the rows of minutes 1, 4 and 2, but not the late one of 3
    assert [row[2:] for row in found["tumbling"] if row[1] == "a"] == [(3, 8)]
    assert found["without_key"][0][0] == sum(map(len, STEPS))


@pytest.mark.usefixtures("unhurried")
def test_rows_are_late_against_the_watermark_before(sql: Workshop) -> None:
    """Where micro-batches follow each other without a rest, the rows of each are late against the one before the newest."""
    insert(sql, *STEPS)
    flows = create(sql, QUERIES)
    found = check(sql, flows)
    assert [row[2:] for row in found["tumbling"] if row[1] == "a"] == [(4, 15)]  # the row of minute 3 is not late here
    insert(sql, *reversed(STEPS))
    check(sql, flows)
