"""Flows in backlog: live, backlog and live again, by themselves; what is taken, flushed and shown meanwhile (FLIP-309)."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import sqlext
from sqlext.errors import SetupError
from sqlext.execution.backlog.pacer import SourceLook
from sqlext.execution.backlog.readers import DeltaReader
from sqlext.execution.flows import backlog_controller
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.registry import EventKind
from sqlext.execution.flows.status import FlowPhase
from sqlext.execution.streaming import streams
from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.execution.streaming.streams import SourceKind
from sqlext.spark.storage import HadoopPath
from tests.integration.workshop import COUNTS, DEADLINE, Workshop, local
from tests.support import eventually

KEY = "execution.checkpointing.interval-during-backlog"
ROWS = "SELECT /*+ COALESCE(1) */ CAST(id % 7 AS STRING) AS k, CAST(id AS INT) AS v FROM range({})"


def flow_of(sql: Workshop, properties: str, source: str = "STREAM ev WITH ('maxFilesPerTrigger' = '1')") -> Flow:
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({properties}) AS {COUNTS.format(source)}")
    return sql.flow("t")


def many_commits(sql: Workshop, number: int, name: str = "ev") -> None:
    for at in range(number):
        sql(f"INSERT INTO {name} {ROWS.format(10 + at)}")


def batches(sql: Workshop) -> int:
    """How many micro-batches the flow's checkpoint has."""
    return len([f for f in (sql.home("t") / "checkpoint" / "offsets").iterdir() if f.name.isdigit()])


def phases(flow: Flow) -> list[Phase]:
    return [switch.phase for switch in flow._backlog.status.switches]


def logged(sql: Workshop) -> list[str]:
    """The changes of phase in the flow's log."""
    folder = local(sql.host.home) / "registry"
    events = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    return [event["detail"] for event in events if event["kind"] == EventKind.PHASE]


def is_live(flow: Flow) -> bool:
    return flow._backlog.status.phase is Phase.LIVE


@pytest.mark.parametrize(
    ("given", "taken", "switches"),
    [
        ("", range(6, 7), []),
        (f", '{KEY}' = '0'", range(1, 2), [Phase.BACKLOG, Phase.LIVE]),
        (f", '{KEY}' = '30 min'", range(2, 5), [Phase.BACKLOG, Phase.LIVE]),
    ],
    ids=["null", "0", "30 min"],
)
def test_a_first_snapshot_is_backlog(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, given: str, taken: range, switches: list[Phase]
) -> None:
    """Six files: at the user's limit one a micro-batch; without checkpoints all at once; else ever more at once."""
    monkeypatch.setitem(streams._FIRST_LIMIT, SourceKind.DELTA, 800)
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    many_commits(sql, 6)
    flow = flow_of(sql, f"'execution.flush.max-interval' = '10 minutes'{given}")
    sql("WAIT FLOW t")
    assert batches(sql) in taken
    assert phases(flow) == switches
    assert sql.equals_batch()
    assert [commit["reason"] for commit in sql.commits("t")] == ["backlog end" if switches else "command"]


def test_a_stream_in_a_cte_is_seen(sql: Workshop) -> None:
    """Spark's plan names the CTE twice: where it is defined, and where it is read."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    many_commits(sql, 2)
    flow = flow_of(sql, f"'{KEY}' = '0'", "(WITH seen AS (SELECT * FROM STREAM ev) SELECT * FROM seen)")
    sql("WAIT FLOW t")
    assert [each.alias for each in flow._backlog.status.sources.values()] == ["ev"]
    assert phases(flow) == [Phase.BACKLOG, Phase.LIVE]
    assert sql.equals_batch()


def test_live_backlog_and_live_again(sql: Workshop) -> None:
    """The flow is stopped while its producer goes on; it starts in backlog, catches up, and goes on with the user's own limit."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    flow = flow_of(sql, f"'execution.flush.max-interval' = '10 minutes', '{KEY}' = '0', 'backlog.lag-threshold' = '30 seconds'")
    many_commits(sql, 2)
    sql("WAIT FLOW t")
    assert (phases(flow), batches(sql)) == ([], 2)
    sql("STOP FLOW t")
    many_commits(sql, 5)
    time_of_commit = local(sql("DESCRIBE DETAIL ev")[0].location) / "_delta_log" / f"{3:020d}.json"
    os.utime(time_of_commit, (time.time() - 60, time.time() - 60))
    sql("START FLOW t")
    flow = sql.flow("t")
    eventually(lambda: is_live(flow), DEADLINE)
    assert (phases(flow), batches(sql)) == ([Phase.BACKLOG, Phase.LIVE], 3)
    eventually(sql.equals_batch, DEADLINE)
    assert sql.commits("t")[-1]["reason"] == "backlog end"
    many_commits(sql, 3)
    sql("WAIT FLOW t")
    assert (phases(flow), batches(sql)) == ([Phase.BACKLOG, Phase.LIVE], 6)
    assert sql.equals_batch()


def test_a_storage_that_does_not_answer_leaves_a_status_without_a_look(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows a flow's status must not end because of it: `sqlext serve` asks for it every few seconds."""
    sql.source()
    flow = flow_of(sql, "'execution.flush.max-interval' = '10 minutes'", "STREAM ev")
    sql("WAIT FLOW t")
    assert [each.look.unread for each in flow.status(0.0)[1].backlog.sources.values()] == [0.0]

    def read_text(path: HadoopPath) -> str:
        raise SetupError(f"The file {path.location} cannot be opened: no answer.")

    monkeypatch.setattr(HadoopPath, "read_text", read_text)
    phase, progress, error = flow.status(0.0)
    monkeypatch.undo()
    assert (phase, error) == (FlowPhase.RUNNING, "")
    assert [each.look for each in progress.backlog.sources.values()] == [SourceLook()]


def test_the_base_interval_holds_when_the_backlog_has_ended(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    many_commits(sql, 2)
    flow = flow_of(sql, f"'execution.checkpointing.interval' = '1 hour', '{KEY}' = '1 hour'")
    eventually(lambda: is_live(flow) and sql.equals_batch(), DEADLINE)
    intake = flow._intakes[0]
    eventually(lambda: intake.running.pace == Pace(Phase.LIVE, timedelta(hours=1)), DEADLINE)
    query: Any = intake.query
    executor = query._jsq.streamingQuery().triggerExecutor()
    field = executor.getClass().getDeclaredField("intervalMs")
    field.setAccessible(True)
    assert field.getLong(executor) == 3_600_000


def test_a_function_of_the_users_decides(sql: Workshop) -> None:
    """Buffered through the backlog, flushed when it ends; seen in SHOW FLOWS, DESCRIBE FLOW and the flow's log."""
    sql.source()
    is_behind = True
    sqlext.register_backlog_report("ev", lambda: is_behind)
    flow = flow_of(sql, f"'execution.flush.max-interval' = '1 second', '{KEY}' = '0'", "STREAM ev")
    eventually(lambda: sql.shown("t").buffered == 3, DEADLINE)
    assert sql.shown("t").phase == "backlog"
    described = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert "a function says true" in described["source ev"]
    assert described["operator 0 Source"] == described["operator 1 Aggregate"] == "isBacklog true"
    assert sql.commits("t") == []
    is_behind = False
    eventually(sql.equals_batch, DEADLINE)
    (commit,) = sql.commits("t")
    assert commit["reason"] in ("backlog end", "interval")  # which is over too: whoever sees first that the backlog has ended
    assert (phases(flow), sql.shown("t").phase) == ([Phase.BACKLOG, Phase.LIVE], "live")
    eventually(lambda: [detail.split()[0] for detail in logged(sql)] == ["backlog", "live"], DEADLINE)


@pytest.mark.parametrize("what", ["function", "storage"])
def test_what_never_answers_holds_up_neither_micro_batches_nor_a_stop(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(backlog_controller, "_CLOSE_SECONDS", 0.5)
    monkeypatch.setattr(backlog_controller, "_LOOK_PATIENCE", 0.2)
    asked, go_on, answered, look = threading.Event(), threading.Event(), threading.Event(), DeltaReader.look
    is_blocked = False

    def is_behind() -> bool:
        if is_blocked and threading.current_thread().name == "sqlext-pace-t":
            asked.set()
            go_on.wait(DEADLINE / 3)
            answered.set()
        return False

    def looked(reader: DeltaReader, offset: str | None) -> SourceLook:
        is_behind()
        return look(reader, offset)

    if what == "function":
        sqlext.register_backlog_report("ev", is_behind)
    else:
        monkeypatch.setattr(DeltaReader, "look", looked)
    sql.source()
    flow_of(sql, f"'{KEY}' = '0'", "STREAM ev")
    sql("WAIT FLOW t")
    is_blocked = True
    assert asked.wait(DEADLINE)
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    sql("STOP FLOW t")
    assert not answered.is_set()
    go_on.set()
    eventually(lambda: not any(each.name == "sqlext-pace-t" for each in threading.enumerate()), DEADLINE)


def test_a_stream_of_files_lags(sql: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    sql.spark.readStream.schema("k STRING, v INT").option("maxFilesPerTrigger", 1).json(str(folder)).createOrReplaceTempView("ev")
    flow = flow_of(sql, f"'{KEY}' = '0', 'backlog.lag-threshold' = '1 minute'", "STREAM ev AS e")
    for at in range(4):
        (folder / f"{at}.json").write_text('{"k": "a", "v": 1}\n')
        os.utime(folder / f"{at}.json", (time.time() - 600, time.time() - 600))
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 4, 4)]
    assert batches(sql) <= 4
    sql("STOP FLOW t")
    before = batches(sql)
    for at in range(4, 8):
        (folder / f"{at}.json").write_text('{"k": "a", "v": 1}\n')
        os.utime(folder / f"{at}.json", (time.time() - 600, time.time() - 600))
    sql("START FLOW t")
    flow = sql.flow("t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 8, 8)]
    assert batches(sql) == before + 1
    assert phases(flow) == [Phase.BACKLOG, Phase.LIVE]
