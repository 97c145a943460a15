"""Flows from their making to their end: what their tables hold, what each commit says, what survives a stop and a crash."""

from __future__ import annotations

import errno
import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.errors import AnalysisException, PySparkException
from sqlglot import exp

import sqlext
from sqlext.errors import FlowError, SetupError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta.transaction import TableTransaction
from sqlext.execution.flows.flush_schedule import FlushSchedule
from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRegistry
from sqlext.execution.flows.status import FlowPhase
from sqlext.execution.host import Host
from sqlext.planner import rule_book
from sqlext.quoting import quote, quote_string
from sqlext.spark import delta_tables, sessions
from sqlext.spark.storage import HadoopPath
from sqlext.testing import HandClock
from tests.integration.workshop import BUFFERED, COUNTS, DEADLINE, Workshop, are_contiguous, local
from tests.support import commits, eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")

NAME = ("spark_catalog", "default", "t")


@pytest.fixture(autouse=True)
def backend(sql: Workshop, state_backend: str) -> str:
    """Where aggregates' state lives: all of this holds for both; other tests of flows take sqlext's own choice, Delta."""
    sql(f"SET `spark.sqlext.state.backend.type` = {state_backend}")
    return state_backend


# What the target holds, and what its commits say.


def test_target_equals_a_batch_query_after_each_arrival(sql: Workshop, backend: str) -> None:
    formats = ("delta", "parquet")
    for using in formats:
        sql.source(f"ev_{using}", using=using)
        sql(f"CREATE STREAMING TABLE of_{using} {BUFFERED} AS {COUNTS.format(f'STREAM ev_{using}')}")

    def equals_batch(using: str) -> None:
        sql(f"WAIT FLOW of_{using}")
        assert sql.batch(f"SELECT k, n, total FROM of_{using}") == sql.batch(COUNTS.format(f"ev_{using}"))

    for more in ("", "INSERT INTO {0} VALUES ('a', 10), ('c', NULL)", "INSERT INTO {0} SELECT k, v + 1 FROM {0}"):
        for using in formats:
            _ = more and sql(more.format(f"ev_{using}"))
        side_by_side(equals_batch, formats)

    for using in formats:
        found = sql.commits(f"of_{using}")
        assert [(c["first_batch"], c["last_batch"], c["rows"], c["reason"]) for c in found] == [
            (0, 0, 3, "command"),
            (1, 1, 2, "command"),
            (2, 2, 4 if backend == "rocksdb" else 5, "command"),  # partial results: of a group in two files there are two
        ], using
        assert {(c["flow"], c["epoch"]) for c in found} == {(f"of_{using}", 1)}


def test_a_flush_is_one_commit_with_its_transaction(sql: Workshop) -> None:
    sql.source()
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("INSERT INTO ev VALUES ('b', 20)")
    one_file = "STREAM ev WITH ('maxFilesPerTrigger' = '1')"
    sql(f"CREATE STREAMING TABLE each AS {COUNTS.format(one_file)}")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format(one_file)}")
    sql("WAIT FLOW each")
    sql("WAIT FLOW t")

    batches = sql("SHOW FLOWS")[0].micro_batches
    assert batches >= 3
    unbuffered, buffered = sql.commits("each"), sql.commits("t")
    assert [c["reason"] for c in unbuffered] == ["micro-batch"] * batches
    assert are_contiguous(unbuffered)
    assert len(buffered) < batches
    assert are_contiguous(buffered)
    assert buffered[-1]["last_batch"] == batches - 1
    assert sql.equals_batch("each")
    assert sql.equals_batch("t")
    flow_id = sql.shown("t").id
    location = sql("DESCRIBE DETAIL t")[0].location
    assert delta_tables.last_transaction(sql.spark, location, flow_id) == batches - 1


def test_created_tables_and_state_are_of_the_quick_kinds(sql: Workshop, backend: str) -> None:
    """Deletion vectors in the target; RocksDB with a changelog for each micro-batch under the checkpoint, or no state store."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t COMMENT 'how many' CLUSTER BY (k) {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")

    detail = sql("DESCRIBE DETAIL t")[0]
    assert detail.properties["delta.enableDeletionVectors"] == "true"
    assert "deletionVectors" in detail.tableFeatures
    assert detail.description == "how many"
    assert detail.clusteringColumns == ["k"]
    state = sql.home("t") / "checkpoint" / "state"
    changelogs = {path.name for path in state.glob("0/0/*.changelog")}
    assert changelogs >= {"1.changelog", "2.changelog"} if backend == "rocksdb" else not state.exists()
    assert not list(state.rglob("*.delta"))


def test_flushes_at_the_interval_while_data_arrives_and_when_it_stops(sql: Workshop) -> None:
    """The interval passes while files lie ready, one a micro-batch; then all has arrived, and a tenth of an interval passes."""
    clock = HandClock()
    sql.installed.clock = clock
    sql("CREATE TABLE ev (k STRING, v INT) USING parquet")
    sql.spark.range(0, 8, 1, 8).selectExpr("concat('k', id % 3)", "CAST(id AS INT)").write.insertInto("ev")
    one_file = "STREAM ev WITH ('maxFilesPerTrigger' = '1')"
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format(one_file)}")
    eventually(lambda: sql.shown("t").buffered > 0, DEADLINE)
    clock.advance(600)
    eventually(lambda: sql.commits("t"), DEADLINE, lambda: "no flush at the interval")
    assert sql.commits("t")[0]["reason"] == "interval"

    sql("ALTER FLOW t SET ('execution.flush.max-interval' = '20 s')")  # idle after 2 s
    sql("WAIT FLOW t")  # also for a flush at the old interval that has begun
    before = len(sql.commits("t"))
    sql("INSERT INTO ev VALUES ('b', 1)")
    sql.take_in("t")
    schedule = sql.flow("t")._schedule
    eventually(lambda: schedule._quiet_since == clock.monotonic(), DEADLINE)
    clock.advance(2)
    eventually(lambda: len(sql.commits("t")) > before, DEADLINE)

    assert sql.commits("t")[-1]["reason"] == "idle"
    assert are_contiguous(sql.commits("t"))
    assert sql.equals_batch()
    assert any(tuple(row) == ("option execution.flush.max-interval", "20 s (table property)") for row in sql("DESCRIBE FLOW t"))


def test_rows_of_a_query_without_aggregate_come_once(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE t (k STRING, v INT) USING delta")
    sql("INSERT INTO t SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW t")
    sql.crash()
    sql("INSERT INTO ev VALUES ('a', 1)")
    assert sql.resume() == ["t"]
    sql("WAIT FLOW t")

    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT * FROM ev")
    assert [(c["reason"], c["epoch"]) for c in sql.commits("t")] == [("micro-batch", 1), ("micro-batch", 2)]


# Stopping, starting, dropping, making again.


def test_resumes_after_a_stop_and_leaves_only_its_target(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql.take_in("t")
    sql("STOP FLOW t")
    assert [c["reason"] for c in sql.commits("t")] == ["stop"]
    assert sql.equals_batch()

    sql("INSERT INTO ev VALUES ('a', 10), ('z', NULL)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    assert are_contiguous(sql.commits("t"))

    home = sql.home("t")
    assert (home / "checkpoint").is_dir()
    sql("DROP FLOW t")
    assert not home.exists()
    assert sql("SHOW FLOWS") == []
    assert sql.equals_batch()


def test_a_stop_while_the_ticker_looks_is_no_failure(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.freeze()
    flow = sql.flow("t")

    def stopped_meanwhile(intake: Intake) -> bool:
        flow.stop()
        return intake.running.has_failed

    with monkeypatch.context() as patch:
        patch.setattr(Intake, "has_failed", property(stopped_meanwhile))
        patch.setattr(Intake, "release", lambda _: None)  # so that the query, which has ended, is still looked at
        flow.tick()

    assert flow.status()[0] is FlowPhase.STOPPED
    sql.crash()
    assert sql.resume() == ["t"]


def test_replace_computes_all_anew_and_if_not_exists_keeps(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    first = sql.shown("t").id

    sql("CREATE STREAMING TABLE IF NOT EXISTS t AS SELECT v AS k, 1 AS n, 2 AS total FROM STREAM ev")
    assert sql.shown("t").id == first
    assert sql.equals_batch()

    sql("UPDATE ev SET v = v * 100 WHERE k = 'a'")  # the old flow could not go on over this
    sql(f"CREATE OR REPLACE STREAMING TABLE default.t {BUFFERED} AS {COUNTS.format('STREAM ev')}")  # the same table
    (shown,) = sql("SHOW FLOWS")
    sql(f"WAIT FLOW {shown.name}")
    assert shown.id != first
    assert sql.equals_batch()


# When something breaks.


def test_a_failed_flow_tells_why_and_others_go_on(sql: Workshop) -> None:
    sql.source()
    sql.source("doomed")
    sql(f"CREATE STREAMING TABLE without_source {BUFFERED} AS {COUNTS.format('STREAM doomed')}")
    sql(f"CREATE STREAMING TABLE without_target {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    for name in ("without_source", "without_target", "t"):
        sql(f"WAIT FLOW {name}")

    sql("DROP TABLE doomed")
    sql("DROP TABLE without_target")
    sql("INSERT INTO ev VALUES ('a', 10)")
    with pytest.raises(PySparkException, match=r"^Flow `without_target` has failed: "):
        sql("WAIT FLOW without_target")
    eventually(lambda: sql.shown("without_source").status == "FAILED", DEADLINE, lambda: str(sql.shown("without_source")))

    for name in ("without_source", "without_target"):
        shown = sql.shown(name)
        assert shown.status == "FAILED"
        assert shown.error
        assert "Traceback" not in shown.error
        assert "py4j" not in shown.error.lower()
    assert "without_target" in sql.shown("without_target").error
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    assert sql.shown("t").status == "RUNNING"
    recorded = {record.spec.name: record for record in sql.host.flows._registry.read().values()}
    eventually(lambda: sql.host.flows._registry.read()[recorded["without_source"].spec.id].state == "FAILED", DEADLINE)

    sql("STOP FLOW without_source")
    assert sql.shown("without_source").status == "STOPPED"
    with pytest.raises(PySparkException, match=r"The target spark_catalog\.default\.without_target of flow .* was dropped"):
        sql("START FLOW without_target")


def test_a_flush_that_meets_another_write_is_tried_again(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An UPDATE, DELETE or OPTIMIZE by a user, at the same moment, costs the flow nothing; its transaction makes it safe."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql.take_in("t")
    write, tries = TableTransaction.write_whole, []

    def meets_another_write(*arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] Transaction conflict detected.")
        return write(*arguments)

    monkeypatch.setattr(TableTransaction, "write_whole", meets_another_write)
    sql("WAIT FLOW t")

    assert len(tries) == 2
    assert sql.equals_batch()
    assert are_contiguous(sql.commits("t"))


def test_resumes_what_a_crash_left(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffered and not committed: flushed. Committed and not cleaned up: dropped, and not flushed again."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql.freeze()
    sql.take_in("t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql.take_in("t")
    buffer = sql.home("t") / "buffer"
    assert len(list(buffer.glob("__sqlext_batch=*"))) == 2
    assert sql.commits("t") == []
    sql.crash()

    assert sql.resume() == ["t"]
    assert [(c["first_batch"], c["last_batch"], c["reason"]) for c in sql.commits("t")] == [(0, 1, "recovery")]
    assert sql.equals_batch()

    sql.freeze()
    sql("INSERT INTO ev VALUES ('b', 20)")
    sql.take_in("t")
    with monkeypatch.context() as patched:
        patched.setattr(sql.flow("t")._intakes[0].buffer._durable, "drop", lambda batches: None)
        sql("FLUSH FLOW t")
    assert len(list(buffer.glob("__sqlext_batch=*"))) == 1
    sql.crash()

    assert sql.resume() == ["t"]
    assert list(buffer.glob("__sqlext_batch=*")) == []
    assert [c["last_batch"] for c in sql.commits("t")] == [1, 2]
    sql("INSERT INTO ev VALUES ('c', 30)")
    sql("WAIT FLOW t")
    assert are_contiguous(sql.commits("t"))
    assert sql.equals_batch()


def test_an_older_driver_is_fenced(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    older = sql.freeze()
    sql.take_in("t")
    old_flow = sql.flow("t")
    older._lease.end()  # it gave no sign of life for too long

    newer = Host(sql.spark, older.home)
    try:
        assert newer.flows.resume() == ["t"]
        assert [(c["epoch"], c["reason"]) for c in sql.commits("t")] == [(2, "recovery")]

        with pytest.raises(FlowError, match=r"Flow `t` runs in another process\. Send the statement there\."):
            older.flows.stop(NAME)
        with pytest.raises(
            FlowError, match=r"Another driver has taken over flow `t` with epoch 2\. This one has epoch 1, and stops here\."
        ):
            old_flow.flush()
        assert old_flow.status()[0] is FlowPhase.FENCED
        older.flows.record(old_flow.spec.id, EventKind.FAILED, "what an old driver says last")

        assert newer.flows.view(NAME).status == "RUNNING"
        assert newer.flows._registry.read()[old_flow.spec.id].state == "RUNNING", "an old driver's word counts no more"
        sql("INSERT INTO ev VALUES ('a', 10)")
        newer.flows.wait(NAME, timedelta(seconds=DEADLINE))
        assert sql.equals_batch()
        assert are_contiguous(sql.commits("t"))
        assert [c["epoch"] for c in sql.commits("t")] == [2, 2]
    finally:
        newer.close()


def test_a_driver_that_was_taken_for_dead_writes_no_more_when_its_flow_was_stopped(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    older, old_flow, before = sql.freeze(), sql.flow("t"), sql.batch("SELECT * FROM t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql.take_in("t")
    older._lease.end()  # it gave no sign of life for too long

    newer = Host(sql.spark, older.home)
    try:
        assert newer.flows.stop(NAME) == "flow t stopped"
        with pytest.raises(FlowError, match=r"has taken over flow `t` with epoch 2\. This one has epoch 1"):
            old_flow.flush()
        assert old_flow.status()[0] is FlowPhase.FENCED
        older.flows.record(old_flow.spec.id, EventKind.FAILED, "what an old driver says last")
        assert newer.flows.view(NAME).status == "STOPPED", "an old driver's word counts no more"
        assert sql.batch("SELECT * FROM t") == before

        newer.flows.start(NAME)
        newer.flows.wait(NAME, timedelta(seconds=DEADLINE))
        assert sql.equals_batch()
        assert [c["epoch"] for c in sql.commits("t")] == [1, 3]
    finally:
        newer.close()


def test_signs_of_life_of_hosts_that_died_long_ago_are_deleted(sql: Workshop, tmp_path: Path) -> None:
    hosts = tmp_path / "home" / "hosts"
    hosts.mkdir(parents=True)
    for name, age in (("killed yesterday", 90_000), ("killed just now", 60)):
        (hosts / name).write_text("{}")
        os.utime(hosts / name, (time.time() - age, time.time() - age))
    lease = Lease(HadoopPath(sql.spark, str(tmp_path / "home")))
    lease.beat()
    assert {file.name for file in hosts.iterdir() if file.suffix != ".crc"} == {"killed just now", lease.host_id}


# Sessions and names.


def test_keeps_the_session_that_made_it(sql: Workshop) -> None:
    """The current database and Spark's settings, also in a process that takes it up."""
    sql("CREATE SCHEMA away")
    sql("USE away")
    sql("CREATE TABLE ev (at TIMESTAMP) USING delta")
    sql("SET spark.sql.session.timeZone = Asia/Tokyo")
    sql("INSERT INTO ev VALUES (TIMESTAMP'2024-01-01 12:00:00 UTC')")
    sql("CREATE STREAMING TABLE t AS SELECT hour(at) AS h, count(*) AS n FROM STREAM ev GROUP BY hour(at)")
    sql("SET spark.sql.session.timeZone = UTC")
    sql("USE default")
    sql.crash()

    assert sql.resume() == ["t"]
    sql("INSERT INTO away.ev VALUES (TIMESTAMP'2024-01-01 12:30:00 UTC'), (TIMESTAMP'2024-01-01 13:00:00 UTC')")
    sql("WAIT FLOW away.t")
    assert sql.batch("SELECT * FROM away.t") == [(21, 2), (22, 1)]
    assert sql.shown("t").target == "spark_catalog.away.t"


def test_over_a_temporary_view_it_ends_with_its_session(sql: Workshop) -> None:
    sql.source()
    sql.spark.readStream.table("ev").where("v > 1").createOrReplaceTempView("large")
    sql("CREATE TABLE t (k STRING, v INT) USING delta")

    (answer,) = sql("CREATE FLOW f AS INSERT INTO t SELECT k, v FROM STREAM large")
    assert answer[0].endswith("; it reads large and so ends with this session")
    sql("WAIT FLOW f")
    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT * FROM ev WHERE v > 1")
    assert sql.shown("f").note == "ends with its session: reads large"

    sql.crash()
    assert sql.resume() == []
    shown = sql.shown("f")
    assert shown.status == "FAILED"
    assert shown.error.startswith("Flow `f` reads large, which ended with the session that made it.")


def test_says_all_that_ends_with_its_session(sql: Workshop, backend: str) -> None:
    """Also what only a subquery reads, and temporary functions."""
    plus_one = f"plus_one_{backend}"
    sql.source()
    sql("CREATE TEMPORARY VIEW wanted AS SELECT 'a' AS k")
    sql(f"CREATE TEMPORARY FUNCTION {plus_one}(x INT) RETURN x + 1")
    sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 1")
    query = f"SELECT k, {plus_one}(v) AS v FROM STREAM ev WHERE k IN (SELECT k FROM wanted) AND v >= least"
    sql(f"CREATE STREAMING TABLE t AS {query}")
    sql("WAIT FLOW t")

    assert sql.batch("SELECT * FROM t") == [("a", 2)]
    note = sql.shown("t").note or ""
    assert "wanted" in note
    assert plus_one in note


@pytest.mark.parametrize("least", ["session.least", "system.session.least", "bounds.least", "session.bounds.least"])
def test_a_session_variable_may_be_qualified(sql: Workshop, least: str) -> None:
    sql.source()
    sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 1")
    sql("DECLARE OR REPLACE VARIABLE bounds STRUCT<least: INT> DEFAULT named_struct('least', 1)")
    sql(f"CREATE STREAMING TABLE t AS SELECT k FROM STREAM ev WHERE v >= {least}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a",), ("b",), (None,)]


def test_what_only_the_flows_session_refuses_is_an_error(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a query that Spark runs in the user's session, and that creates nothing."""
    sql.source()
    sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 1")
    monkeypatch.setattr(sessions, "variables_of", lambda *_: {})
    with pytest.raises(AnalysisException, match="least"):
        sql("CREATE STREAMING TABLE t AS SELECT k FROM STREAM ev WHERE v >= least")


def test_names_are_quoted_and_never_pasted(sql: Workshop, tmp_path: Path) -> None:
    sql.source()
    flow = "../../x`; DROP TABLE ev; -- 'y' \"z\"\n%s"
    place = tmp_path / "it's a `place` é"
    (tmp_path / "seen").mkdir()
    before = sorted(tmp_path.iterdir())
    sql(f"CREATE TABLE t (`k-1` STRING, `n.o``p` BIGINT) USING delta LOCATION {quote_string(str(place))}")

    sql(
        f"CREATE FLOW {quote(flow)} AS INSERT INTO t (`n.o``p`, `k-1`) "
        "SELECT count(*) AS `a ``b``.c`, k AS `group` FROM STREAM ev AS `e.v ``` GROUP BY `e.v ```.k"
    )
    sql(f"WAIT FLOW {quote(flow)}")
    assert sql.batch("SELECT * FROM t") == [("a", 1), ("b", 1), (None, 1)]
    assert sql.shown(flow).status == "RUNNING"
    home = local(sql.host.home)
    assert sql.home(flow).parent == home / "flows"
    assert {path.name for path in home.iterdir() if not path.name.startswith(".")} == {"flows", "hosts", "registry"}
    assert sorted(tmp_path.iterdir()) == sorted([*before, place])
    assert commits(place)[0]["flow"] == flow

    sql.crash()
    assert sql.resume() == [flow]
    sql(f"STOP FLOW {quote(flow)}")
    sql(f"DROP FLOW {quote(flow)}")
    assert sql("SHOW FLOWS") == []
    assert len(sql("SELECT * FROM ev")) == 3


def test_the_jobs_of_a_stream_are_not_those_of_the_statement_that_started_it(sql: Workshop) -> None:
    scheduler = sql.spark.sparkContext._jsc.sc().dagScheduler()
    # A micro-batch that an earlier test interrupted may have left its execution there: Spark asks for the jobs of an ended one.
    before = set(scheduler.activeQueryToJobs())
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {COUNTS.format('STREAM ev')}")
    for _ in range(2):
        sql("INSERT INTO ev VALUES ('a', 1)")
        sql("WAIT FLOW t")

    # Jobs of a SQL execution that has ended stay there for ever, if they come after its end.
    def mine() -> set[int]:
        return set(scheduler.activeQueryToJobs()) - before

    eventually(lambda: not mine(), DEADLINE, lambda: f"jobs of the executions {mine()}")


def test_a_stopped_flow_leaves_no_query_in_java(sql: Workshop) -> None:
    """A query keeps its last plan, and Java keeps what Python refers to."""
    java: Any = sql.spark.sparkContext._jvm
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    query: Any = sql.flow("t")._intakes[0].query
    kept = java.java.lang.ref.WeakReference(query._jsq.streamingQuery())
    del query
    sql("STOP FLOW t")

    def is_gone() -> bool:
        gc.collect()
        java.java.lang.System.gc()
        return kept.get() is None

    eventually(is_gone, DEADLINE)


def test_a_start_that_fails_after_its_queries_have_begun_holds_none_of_them(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def start(schedule: FlushSchedule) -> None:
        begun.append(schedule._intakes)
        assert [each.is_running for each in schedule._intakes.running()] == [True]
        raise FlowError("no")

    monkeypatch.setattr(FlushSchedule, "start", start)
    sql.source()
    with pytest.raises(PySparkException, match="no"):
        sql("CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    assert [intakes.running() for intakes in begun] == [[]]


# The registry.


def test_hosts_that_write_at_once_both_succeed(sql: Workshop, tmp_path: Path) -> None:
    home = HadoopPath(sql.spark, str(tmp_path / "home"))
    registries = [FlowRegistry(home) for _ in range(2)]
    together = threading.Barrier(2)
    errors: list[Exception] = []

    def write(number: int) -> None:
        try:
            for _ in range(3):
                together.wait(DEADLINE)
                registries[number].append(FlowEvent(f"flow-{number}", EventKind.STOPPED))
        except Exception as error:  # noqa: BLE001  # whatever it is, the test tells it
            errors.append(error)
            together.abort()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(DEADLINE)

    assert errors == []
    files = sorted(name for name in home.child("registry").names() if not name.startswith("."))
    assert files == [f"{number:020d}.json" for number in range(1, 7)]
    written = [json.loads(home.child("registry", name).read_text())["flow_id"] for name in files]
    assert sorted(written) == ["flow-0"] * 3 + ["flow-1"] * 3


def test_a_home_without_hard_links_is_refused(sql: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file is created by a look and a rename, two processes could both be told that a flow is theirs."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    lease = Lease(HadoopPath(sql.spark, str(tmp_path / "home")))
    with pytest.raises(SetupError, match=r"home/\.probe-.* cannot be written: its file system has no hard links"):
        lease.beat()
    assert not lease.has_begun


def test_a_torn_sign_of_life_is_that_of_a_dead_process(sql: Workshop, tmp_path: Path) -> None:
    """A process of an older version may have died between the file and the checksum beside it."""
    home = HadoopPath(sql.spark, str(tmp_path / "home"))
    dead, other = Lease(home), Lease(home)
    dead.beat()
    assert other.is_alive(dead.host_id)
    file = tmp_path / "home" / "hosts" / dead.host_id
    file.with_name(f".{file.name}.crc").write_bytes(b"crc\0\0\0\x02\0\0\0\0\0")  # Hadoop's checksums, of other bytes
    assert not other.is_alive(dead.host_id)


def test_a_sign_of_life_is_there_while_it_is_replaced(sql: Workshop, tmp_path: Path) -> None:
    file = HadoopPath(sql.spark, str(tmp_path / "home")).child("hosts", "h")
    file.write_text("0")
    done = threading.Event()

    def replace() -> None:
        for number in range(1, 31):
            file.write_text(str(number))
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    missing = 0
    while not done.is_set() and writer.is_alive():
        missing += not local(file.location).exists()
    writer.join(DEADLINE)
    assert (missing, file.read_text()) == (0, "30")


def test_a_torn_record_leaves_the_others_alone(sql: Workshop) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k, v FROM STREAM ev")
    registry = sql.host.flows._registry
    registry.append(FlowEvent("torn", EventKind.RESERVED, spec='{"version": 1, "name": "to'))
    registry.append(FlowEvent("torn", EventKind.STARTED, epoch=1))
    registry.append(FlowEvent("later", EventKind.RESERVED, spec='{"version": 999}'))
    assert registry._log.append("{torn")
    registry._log._count -= 1  # to be read as another driver's

    assert [row.name for row in sql("SHOW FLOWS")] == ["t"]
    sql.crash()
    assert sql.resume() == ["t"]


# What users add.


@pytest.fixture
def rule() -> Iterator[Any]:
    """A rule that leaves small values out; it leaves its own output alone."""

    def only_large_values(query: exp.Query) -> exp.Query:
        if isinstance(query, exp.Select) and not query.args.get("where"):
            return query.where("v > 1", dialect="spark")
        return query

    sqlext.register_rule(only_large_values)
    yield only_large_values
    rule_book.remove_rule("only_large_values")


def test_a_users_rule_shows_and_counts(sql: Workshop, rule: Any) -> None:
    sql.source()
    (plan,) = sql("EXPLAIN CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")[0]
    fired = plan.split("== Rules fired ==\n")[1].split("\n\n")[0].splitlines()
    assert fired == [
        "user / only_large_values:",
        "  SELECT k, count(*) AS n FROM STREAM ev GROUP BY k",
        "  -> SELECT k, count(*) AS n FROM STREAM ev WHERE v > 1 GROUP BY k",
    ]

    sql("CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 1), (None, 1)]


def test_a_python_aggregate_is_the_same_over_tables_and_streams(sql: Workshop) -> None:
    """Its results have the declared type, and its values are those of the rows: big numbers, NaN, structs and times."""
    sqlext.register_function("test_range", lambda values: max(values) - min(values), "DOUBLE", is_aggregate=True)
    sqlext.register_function("test_known", lambda values: [repr(each) for each in values], "ARRAY<STRING>", is_aggregate=True)
    sql(
        "CREATE TABLE ev (k INT, v INT, l BIGINT, x DOUBLE, at TIMESTAMP, s STRUCT<a: INT, b: STRING>, d DECIMAL(9, 2)) "
        "USING delta"
    )
    sql(
        "INSERT INTO ev VALUES (1, 1, 9007199254740993, DOUBLE('NaN'), TIMESTAMP'2026-03-29 02:30:00', named_struct('a', 1, 'b', "
        "'x'), 1.5), (1, NULL, NULL, NULL, NULL, NULL, NULL), (1, 4, NULL, NULL, NULL, NULL, NULL)"
    )
    lists = ", ".join(f"test_known({column}) AS {column}" for column in ("l", "x", "at", "s", "d"))
    query = f"SELECT k, test_range(v) AS width, test_range(l) AS zero, {lists} FROM {{}} GROUP BY k"
    sql(f"CREATE STREAMING TABLE t AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    ((k, width, zero, *known),) = sql.batch("SELECT * FROM t")
    assert (k, width, zero) == (1, 3.0, 0.0)
    assert known[:2] == [["9007199254740993"], ["nan"]]
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))


def test_functions_from_python(sql: Workshop, backend: str) -> None:
    names = [f"test_{name}_{backend}" for name in ("twice", "spread", "seen")]  # they are the application's, for good
    test_twice, test_spread, test_seen = names
    sqlext.register_function(test_twice, lambda v: None if v is None else 2 * v, "INT")
    sqlext.register_function(test_spread, lambda values: max(values) - min(values), "INT", is_aggregate=True)
    sqlext.register_function(test_seen, len, "INT", is_aggregate=True, is_output_idempotent=False)
    sql.source()
    sql("INSERT INTO ev VALUES ('a', 10), ('a', NULL)")
    twice = f"SELECT k, {test_spread}({test_twice}(v)) AS spread FROM {{}} GROUP BY k"
    seen = f"CREATE STREAMING TABLE seen {BUFFERED} AS SELECT k, {test_seen}(v) AS n FROM STREAM ev GROUP BY k"

    (plan,) = sql(f"EXPLAIN {seen}")[0]
    because = f"the function {test_seen} is registered as not output-idempotent."
    assert f"== Buffering ==\nNot buffered, one commit per micro-batch: {because}" in plan
    sql(seen)
    sql(f"CREATE STREAMING TABLE spread {BUFFERED} AS {twice.format('STREAM ev')}")
    sql("WAIT FLOW seen")
    sql("WAIT FLOW spread")

    assert sql.batch("SELECT * FROM seen") == [("a", 2), ("b", 1), (None, 1)]
    assert {c["reason"] for c in sql.commits("seen")} == {"micro-batch"}
    assert sql.batch("SELECT * FROM spread") == [("a", 18), ("b", 0), (None, 0)]
    assert sql.batch("SELECT * FROM spread") == sql.batch(twice.format("ev"))
    assert {c["reason"] for c in sql.commits("spread")} == {"command"}
