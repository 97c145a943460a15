"""One micro-batch for each flush interval: memory-only flows whose state is in a Delta table (FLIP-365)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.execution.flows.table_writer import TableWriter
from sqlext.execution.streaming import streams
from sqlext.execution.streaming.positions import DeltaOffset
from tests.integration.test_memory_only import files
from tests.integration.workshop import COUNTS, DEADLINE, Workshop, are_contiguous
from tests.support import eventually

IN_DELTA = "'state.backend.type' = 'delta', 'execution.flush.memory-buffer-only' = 'true'"
QUERY = COUNTS.format("STREAM ev WITH ('maxFilesPerTrigger' = '1')")


def flow(sql: Workshop, interval: str, query: str = QUERY) -> None:
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({IN_DELTA}, 'execution.flush.max-interval' = '{interval}') AS {query}")


def reasons(sql: Workshop) -> list[str]:
    return [commit["reason"] for commit in sql.commits("t")]


def test_what_arrives_waits_in_its_source_until_a_flush(sql: Workshop) -> None:
    sql.source()
    flow(sql, "10 minutes")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    before = files(sql.home("t"))
    commits = len(sql.commits("t"))
    for more in range(3):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('c', NULL)")

    assert len(sql.commits("t")) == commits
    assert files(sql.home("t")) == before
    eventually(lambda: (sql.shown("t").lag or timedelta()) > timedelta(), DEADLINE)
    sql("FLUSH FLOW t")
    *_, newest = sql.commits("t")
    assert len(sql.commits("t")) == commits + 1
    assert newest["reason"] == "command"
    assert newest["first_batch"] == newest["last_batch"]
    assert newest["rows"] == 2
    assert are_contiguous(sql.commits("t"))
    assert sql.equals_batch()
    assert files(sql.home("t")) == before


def test_flushes_when_input_pauses_and_when_the_interval_is_over(sql: Workshop) -> None:
    sql.source()
    flow(sql, "30 seconds")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    eventually(lambda: reasons(sql)[-1] == "idle", DEADLINE)
    assert sql.equals_batch()

    sql("ALTER FLOW t SET ('execution.flush.max-interval' = '2 seconds')")
    stop = threading.Event()

    def arrive() -> None:
        while not stop.wait(0.3):
            sql("INSERT INTO ev VALUES ('b', 1)")

    arrivals = threading.Thread(target=arrive)
    arrivals.start()
    try:
        eventually(lambda: reasons(sql)[-2:] == ["interval", "interval"], DEADLINE)
    finally:
        stop.set()
        arrivals.join()
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    sql("STOP FLOW t")
    sql("INSERT INTO ev VALUES ('b', 1)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def is_up_to_date(sql: Workshop) -> bool:
    return bool(sql.shown("t").lag == timedelta())


@pytest.mark.parametrize("comes", ["after", "before"])
def test_rows_arrive_although_the_source_has_shrunk(sql: Workshop, comes: str) -> None:
    """An OPTIMIZE after the last micro-batch, or between an arrival and its flush, makes the table smaller than what was read."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    for more in range(6):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('b', {more})")
    flow(sql, "20 seconds")
    sql("WAIT FLOW t")
    eventually(lambda: is_up_to_date(sql), DEADLINE)
    statements = ["OPTIMIZE ev", "INSERT INTO ev VALUES ('a', 100)"]
    for statement in statements if comes == "after" else reversed(statements):
        sql(statement)
    eventually(sql.equals_batch, DEADLINE)
    eventually(lambda: is_up_to_date(sql), DEADLINE)
    assert are_contiguous(sql.commits("t"))


def test_an_optimize_alone_is_soon_read(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    for more in range(3):
        sql(f"INSERT INTO ev VALUES ('a', {more})")
    flow(sql, "10 seconds")
    sql("WAIT FLOW t")
    sql("OPTIMIZE ev")
    (source,) = sql.flow("t")._backlog._sources
    version = max(row.version for row in sql("DESCRIBE HISTORY ev"))
    eventually(lambda: DeltaOffset.parse(source.offset or "").version > version, DEADLINE)
    eventually(lambda: is_up_to_date(sql), DEADLINE)
    assert sql.equals_batch()


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_crash_around_the_commit_loses_and_doubles_nothing(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    sql.source()
    flow(sql, "10 minutes")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10), ('c', 1)")
    merge = TableWriter._merge

    def dies(self: TableWriter, *what: Any) -> None:
        if is_after:
            merge(self, *what)
        raise RuntimeError("the driver has gone")

    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "_merge", dies)
        with pytest.raises(Exception, match="the driver has gone"):
            sql("FLUSH FLOW t")
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('a', 1)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    assert are_contiguous(sql.commits("t"))


def test_a_query_above_two_aggregates(sql: Workshop) -> None:
    sql.source()
    above = "SELECT x.k, x.n, y.total FROM ({}) x JOIN ({}) y ON x.k <=> y.k"
    counts = "SELECT k, count(*) AS n FROM {} GROUP BY k"
    sums = "SELECT k, sum(v) AS total FROM {} GROUP BY k"
    flow(sql, "10 minutes", above.format(counts.format("STREAM ev"), sums.format("STREAM ev")))
    for more in range(2):
        sql(f"INSERT INTO ev VALUES ('a', {more}), ('new', 3)")
        sql("FLUSH FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(above.format(counts.format("ev"), sums.format("ev")))


def test_a_hold_that_takes_long_to_begin_is_let_go(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the query has read its own clock, and waits by the hold's clock for a time that this does not reach by steps."""
    sql.source()
    flow(sql, "10 minutes")
    sql("WAIT FLOW t")
    running, set_interval = sql.flow("t")._intakes[0].running, streams.set_interval

    def slowly(spark: SparkSession, query: StreamingQuery, interval: timedelta | None) -> None:
        set_interval(spark, query, interval)
        for _ in range(3 if interval else 0):
            running.forget_last_look(DEADLINE)
            eventually(lambda: running.has_found_nothing, DEADLINE)

    monkeypatch.setattr(streams, "set_interval", slowly)
    for more in range(2):
        sql(f"INSERT INTO ev VALUES ('a', {more})")
        sql("WAIT FLOW t TIMEOUT 1 minute")
        assert sql.equals_batch()
    sql("INSERT INTO ev VALUES ('b', 7)")
    sql("FLUSH FLOW t")
    assert sql.equals_batch()
