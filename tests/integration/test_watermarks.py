"""Windows and watermarks with state in Delta tables: rows are late, and groups final, as with Spark's own state store."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from sqlext.moments import Moment
from sqlext.testing import listened
from tests.integration.test_delta_state import state
from tests.integration.test_session_windows import write_as
from tests.integration.workshop import Workshop, are_contiguous
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

BACKENDS = ("delta", "rocksdb")
STREAM = "STREAM ev WITH ('maxFilesPerTrigger' = '1') WATERMARK at DELAY OF INTERVAL 5 MINUTES"
TUMBLING, SLIDING = "window(at, '10 minutes')", "window(at, '10 minutes', '4 minutes')"
QUERIES = {
    "tumbling": f"SELECT {TUMBLING} AS w, k, count(*) AS n, sum(v) AS total FROM {STREAM} GROUP BY {TUMBLING}, k",
    "sliding": f"SELECT window.start AS since, k, avg(v) AS mean, count(*) AS n FROM {STREAM} GROUP BY {SLIDING}, k",
    "visitors": f"SELECT {TUMBLING} AS w, count(DISTINCT k) AS n, sum(DISTINCT v) AS total FROM {STREAM} GROUP BY {TUMBLING}",
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
    flows = create(sql, {name: QUERIES[name] for name in ("tumbling", "sliding", "by_time", "having")})
    for step in STEPS[1:]:
        check(sql, flows)
        insert(sql, step)
    found = check(sql, flows)
    for flow in flows:
        assert state(sql, flow).startswith(flow.rpartition("_")[2])
    # by hand: of the window from 0, the rows of minutes 1, 4 and 2, but not the late one of 3
    assert [row[2:] for row in found["tumbling"] if row[1] == "a"] == [(3, 8)]


@pytest.mark.usefixtures("unhurried")
def test_rows_are_late_against_the_watermark_before(sql: Workshop) -> None:
    """Where micro-batches follow each other without a rest, the rows of each are late against the one before the newest."""
    insert(sql, *STEPS)
    flows = create(sql, QUERIES)
    found = check(sql, flows)
    assert [row[2:] for row in found["tumbling"] if row[1] == "a"] == [(4, 15)]  # the row of minute 3 is not late here
    assert found["without_key"][0][0] == sum(map(len, STEPS))
    insert(sql, *reversed(STEPS))
    check(sql, flows)


ABOVE = {
    "subtotals": f"SELECT {TUMBLING} AS w, k, avg(v) AS mean FROM {STREAM} GROUP BY ROLLUP(k, {TUMBLING})",
    "busiest": f"SELECT since, max(n) AS most FROM (SELECT window.start AS since, k, count(*) AS n FROM {STREAM} "
    f"GROUP BY {SLIDING}, k) GROUP BY since",
    "two": f"SELECT a.w, a.n, b.mean FROM (SELECT {TUMBLING} AS w, count(*) AS n FROM {STREAM} GROUP BY 1) AS a "
    f"JOIN (SELECT {TUMBLING} AS w, avg(v) AS mean FROM {STREAM} GROUP BY 1) AS b ON a.w = b.w",
}


@pytest.mark.usefixtures("unhurried")
def test_queries_above_windows(sql: Workshop) -> None:
    insert(sql, STEPS[0])
    flows = create(sql, ABOVE)
    for step in STEPS[1:]:
        check(sql, flows)
        insert(sql, step)
    check(sql, flows)


def test_refresh_full(sql: Workshop) -> None:
    """All is computed anew, with micro-batches and watermarks of its own."""
    insert(sql, STEPS[0])
    flows = create(sql, {"sliding": QUERIES["sliding"]})
    for step in STEPS[1:3]:
        check(sql, flows)
        insert(sql, step)
    check(sql, flows)
    side_by_side(lambda flow: sql(f"REFRESH STREAMING TABLE {flow} FULL"), flows)
    for step in STEPS[3:]:
        check(sql, flows)
        insert(sql, step)
    check(sql, flows)


PACES = {
    "memory_only": ("10 minutes", ", 'execution.flush.memory-buffer-only' = 'true'"),
    "each_batch": ("null", ""),
}


@pytest.mark.parametrize("pace", PACES)
def test_paces(sql: Workshop, pace: str) -> None:
    insert(sql, STEPS[0])
    flows = create(sql, {"sliding": QUERIES["sliding"]}, *PACES[pace])
    for step in STEPS[1:]:
        check(sql, flows)
        insert(sql, step)
    check(sql, flows)


MEANS = f"SELECT {TUMBLING} AS w, k, avg(v) AS mean, count(*) AS n FROM {STREAM} GROUP BY {TUMBLING}, k"


def ends_in_state(sql: Workshop, flow: str) -> list[int]:
    """The ends of the windows in a flow's state, in minutes after midnight."""
    stored = sql(f"SELECT unix_seconds(__sqlext_k1.end) / 60 % 1440 AS minute FROM delta.`{sql.home(flow) / 'state'}`")
    return sorted(int(row.minute) for row in stored)


@pytest.mark.parametrize("writing", ["whole", "placed", "merged"])
def test_passed_groups_leave_the_state(sql: Workshop, monkeypatch: pytest.MonkeyPatch, writing: str) -> None:
    """A flush deletes what its first micro-batch cannot change any more; the table keeps it."""
    write_as(writing, monkeypatch)
    insert(sql, STEPS[0])
    flows = create(sql, {"means": MEANS})
    steps: list[list[Values]] = [*STEPS[1:], [("d", 91, 17)]]
    expected = ([10, 20], [10, 20, 50], [40, 50], [40, 50, 100], [90, 100])
    for step, ends in zip(steps, expected, strict=True):
        check(sql, flows)
        assert (writing, ends_in_state(sql, "means_delta")) == (writing, ends)
        insert(sql, step)
    found = check(sql, flows)
    assert ends_in_state(sql, "means_delta") == [90, 100]
    assert len(found["means"]) == 6
    assert are_contiguous(sql.commits("means_delta"))


def test_passed_groups_leave_the_state_after_more_micro_batches_than_spark_keeps(sql: Workshop) -> None:
    sql("SET spark.sql.streaming.minBatchesToRetain = 2")
    insert(sql, [("a", 1, 1), ("b", 12, 2), ("c", 40, 3)])  # to a watermark of minute 35
    flows = create(sql, {"means": MEANS})
    check(sql, flows)
    assert ends_in_state(sql, "means_delta") == [10, 20, 50]
    files: list[list[Values]] = [[("d", 41 + at, at)] for at in range(6)]
    insert(sql, *files)
    check(sql, flows)
    last = sql.commits("means_delta")[-1]
    assert (last["first_batch"], last["last_batch"]) == (1, 6)
    assert ends_in_state(sql, "means_delta") == [50, 50]  # of c and d


@pytest.mark.parametrize("writing", ["whole", "placed", "merged"])
def test_a_crash_between_the_two_commits(sql: Workshop, monkeypatch: pytest.MonkeyPatch, writing: str) -> None:
    """The state has a flush that the table has not, and groups have left it: all that the flush has changed is shown."""

    def dies(moment: Moment, flow: str) -> None:
        if moment is Moment.STATE_COMMITTED:
            raise OSError(f"{flow} died here")

    write_as(writing, monkeypatch)
    insert(sql, STEPS[0])
    flows = create(sql, {"means": MEANS})
    for step, following in itertools.pairwise(STEPS):
        check(sql, flows)
        insert(sql, step)
        with listened(dies), pytest.raises(PySparkException, match="died here"):
            sql("WAIT FLOW means_delta")
        sql("WAIT FLOW means_rocksdb")
        sql.crash()
        insert(sql, following)
        side_by_side(lambda flow: sql(f"START FLOW {flow}"), flows)
    check(sql, flows)


def test_restarts(sql: Workshop) -> None:
    """Rows that come after a restart are late against the same watermark, whether all had been read before it or not."""
    insert(sql, STEPS[0])
    flows = create(sql, {"means": MEANS, "tumbling": QUERIES["tumbling"]})
    check(sql, flows)
    for step in STEPS[1:]:
        side_by_side(lambda flow: sql(f"STOP FLOW {flow}"), flows)
        insert(sql, step)
        side_by_side(lambda flow: sql(f"START FLOW {flow}"), flows)
        check(sql, flows)
    sql.freeze()
    for step in STEPS:
        insert(sql, step)
        side_by_side(sql.take_in, flows)
        sql.crash()
        assert sorted(sql.resume()) == sorted(flows)
    check(sql, flows)


def test_a_time_beyond_pythons_is_shown_as_the_last_one(sql: Workshop) -> None:
    """Milliseconds that were taken for seconds: the year 55840."""
    sql("CREATE TABLE far (at TIMESTAMP, k STRING) USING delta")
    sql("INSERT INTO far VALUES (timestamp_seconds(1700000000000), 'a'), (TIMESTAMP '2026-01-01 10:00:00', 'b')")
    windows = "SELECT window(at, '1 hour').start AS since, count(*) AS n FROM {} GROUP BY 1"
    source = "STREAM far WATERMARK at DELAY OF INTERVAL 5 MINUTES"
    for backend in BACKENDS:
        options = f"'state.backend.type' = '{backend}', 'execution.checkpointing.interval-during-backlog' = '1 minute'"
        sql(f"CREATE STREAMING TABLE {backend} TBLPROPERTIES ({options}) AS {windows.format(source)}")
        sql(f"WAIT FLOW {backend}")
    sql("INSERT INTO far VALUES (timestamp_seconds(1700000007200), 'c')")
    for backend in BACKENDS:
        sql(f"WAIT FLOW {backend}")
        sql(f"STOP FLOW {backend}")
        sql(f"START FLOW {backend}")
        sql(f"WAIT FLOW {backend}")
        assert sql(f"SELECT sum(n) AS n FROM {backend}")[0].n == 3
        assert sql(f"DESCRIBE FLOW {backend}")
    assert {row.status for row in sql("SHOW FLOWS")} == {"RUNNING"}
