"""Flows over Delta tables rest while nothing arrives, and miss nothing by it."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta import table_logs
from sqlext.execution.delta.table_logs import TableLogs
from sqlext.execution.streaming import source_watch, streams
from sqlext.spark.java import java_of
from sqlext.spark.waiting_clock import WaitingClock
from sqlext.testing import DEADLINE
from tests.integration.workshop import COUNTS, Workshop
from tests.support import eventually

BUFFERED = "TBLPROPERTIES ('execution.flush.max-interval' = '1 second')"


def is_at_rest(sql: Workshop, flow: str) -> bool:
    return sql.flow(flow)._intakes.are_at_rest


def has_rows(sql: Workshop, table: str, number: int) -> bool:
    return sql.spark.table(table).count() == number


def rest(sql: Workshop, *flows: str) -> None:
    """Wait until flows rest."""
    for flow in flows:
        eventually(partial(is_at_rest, sql, flow), DEADLINE)


@pytest.mark.parametrize("interval", ["", BUFFERED], ids=["at once", "buffered"])
def test_what_arrives_wakes_the_flows_that_read_it(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, interval: str
) -> None:
    """By itself: no statement waits for it, and no query looks for longer than the test lasts."""
    monkeypatch.setattr(source_watch, "_LONGEST_REST", 2 * DEADLINE)
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql(f"CREATE TABLE others (k STRING, v INT) USING delta LOCATION '{tmp_path}/other events'")
    sql(f"CREATE STREAMING TABLE t {interval} AS {COUNTS.format('STREAM ev')}")
    sql(f"CREATE STREAMING TABLE u {interval} AS {COUNTS.format('STREAM others')}")
    sql("CREATE STREAMING TABLE both AS SELECT k FROM STREAM ev UNION ALL SELECT k FROM STREAM others")
    rest(sql, "t", "u", "both")
    for number in range(1, 4):
        sql("INSERT INTO others VALUES ('a', 1), ('b', 2)")
        eventually(partial(has_rows, sql, "both", 2 * number), DEADLINE)
        eventually(lambda: sql.equals_batch("u", "others"), DEADLINE)
        assert is_at_rest(sql, "t"), "nothing has arrived for it"
    assert sql("SHOW FLOWS")
    rest(sql, "t", "u", "both")
    (row,) = (each for each in sql("SHOW FLOWS") if each.name == "u")
    assert row.rows_in == 6, "the progress is read once more when a flow comes to rest"


def test_statements_do_not_wait_for_the_end_of_a_rest(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_watch, "_LONGEST_REST", 2 * DEADLINE)
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql(f"CREATE STREAMING TABLE t AS {COUNTS.format('STREAM ev')}")
    for _ in range(2):
        rest(sql, "t")
        began = time.monotonic()
        sql("INSERT INTO ev VALUES ('a', 1)")
        sql("WAIT FLOW t")
        assert sql.equals_batch()
        rest(sql, "t")
        sql("WAIT FLOW t")
        assert time.monotonic() - began < DEADLINE
    rest(sql, "t")
    sql("STOP FLOW t")
    sql("INSERT INTO ev VALUES ('b', 1)")
    sql("START FLOW t")
    eventually(lambda: sql.equals_batch(), DEADLINE)


def test_what_happens_without_a_version_shows_at_the_end_of_a_rest(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_watch, "_LONGEST_REST", 0.5)
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1)")
    sql(f"CREATE STREAMING TABLE t AS {COUNTS.format('STREAM ev')}")
    rest(sql, "t")
    sql("DROP TABLE ev")
    eventually(lambda: sql.shown("t").status in ("FAILED", "RETRYING"), DEADLINE)
    with pytest.raises(PySparkException, match="ev"):
        sql("WAIT FLOW t")


def test_a_flow_with_an_interval_or_over_files_looks_by_itself(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("CREATE TABLE files (k STRING, v INT) USING json")
    interval = "TBLPROPERTIES ('execution.checkpointing.interval' = '200 ms')"
    sql(f"CREATE STREAMING TABLE t {interval} AS {COUNTS.format('STREAM ev')}")
    sql(f"CREATE STREAMING TABLE u AS {COUNTS.format('STREAM files')}")
    sql(f"CREATE STREAMING TABLE v AS {COUNTS.format('STREAM ev')}")
    rest(sql, "v")
    assert not is_at_rest(sql, "t")
    assert not is_at_rest(sql, "u")
    for table in ("ev", "files"):
        sql(f"INSERT INTO {table} VALUES ('a', 1)")
    for table, source in (("t", "ev"), ("u", "files"), ("v", "ev")):
        eventually(partial(sql.equals_batch, table, source), DEADLINE)


def test_a_flow_over_many_files_rests_between_its_listings(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "listing_seconds", lambda query: 0.2)
    sql("CREATE TABLE files (k STRING, v INT) USING json")
    sql(f"CREATE STREAMING TABLE u AS {COUNTS.format('STREAM files')}")
    rest(sql, "u")
    sql("INSERT INTO files VALUES ('a', 1)")
    eventually(partial(sql.equals_batch, "u", "files"), DEADLINE)
    rest(sql, "u")
    sql("INSERT INTO files VALUES ('a', 2)")
    sql("WAIT FLOW u")
    assert sql.equals_batch("u", "files")
    sql("STOP FLOW u")


def test_a_query_at_rest_uses_no_processor(sql: Workshop) -> None:
    """Its thread waits to be told; Spark's own clocks would have it look at the time again and again."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql(f"CREATE STREAMING TABLE t AS {COUNTS.format('STREAM ev')}")
    rest(sql, "t")
    query = sql.flow("t")._intakes[0].query
    assert query is not None
    thread = streams._execution(query).queryExecutionThread()
    eventually(lambda: str(thread.getState().toString()) == "WAITING", DEADLINE)
    sql("STOP FLOW t")
    eventually(lambda: not thread.isAlive(), DEADLINE)


def test_a_clock_waits_until_it_is_told(sql: Workshop) -> None:
    clock, java, ended = WaitingClock(sql.spark), java_of(sql.spark), threading.Semaphore(0)
    threads = []

    def wait() -> None:
        threads.append(java.java.lang.Thread.currentThread())
        clock.java.waitTillTime(1)
        ended.release()

    def waiting() -> None:
        threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: bool(threads) and str(threads[-1].getState().toString()) == "WAITING", DEADLINE)

    waiting()
    assert not ended.acquire(blocking=False)
    clock.go_on()
    assert ended.acquire(timeout=DEADLINE)
    clock.go_on()
    clock.go_on()
    wait()  # it was told before, so it does not wait
    waiting()
    assert ended.acquire(blocking=False)
    assert not ended.acquire(blocking=False), "two tells before a wait are one"
    threads[-1].interrupt()
    assert ended.acquire(timeout=DEADLINE)


def test_the_log_of_a_table_that_was_made_anew_is_read_anew(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions begin with 0 again, at the same location."""
    logs, made = TableLogs(sql.spark), "CREATE TABLE ev (k STRING, v INT) USING delta"
    sql(made)
    location = str(sql("DESCRIBE DETAIL ev")[0].location)
    for version in range(1, 5):
        sql("INSERT INTO ev VALUES ('a', 1)")
        assert logs.newest(location) == version
    sql("DROP TABLE ev")
    sql(made)
    sql("INSERT INTO ev VALUES ('a', 1)")
    monkeypatch.setattr(table_logs, "_SURE_SECONDS", 0.0)
    assert logs.newest(location) == 1
    sql("INSERT INTO ev VALUES ('a', 1)")
    assert logs.newest(location) == 2
