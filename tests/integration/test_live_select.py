"""A SELECT over a stream in the shell and in `sqlext run`: rows as they come until it is canceled, and nothing kept."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqlext.app.interrupts import Interrupts
from sqlext.app.local_session import LocalSession
from sqlext.app.statement_run import StatementRunner
from sqlext.errors import UnsupportedError
from sqlext.execution.coordination.lease import Lease
from sqlext.extension.live import output_mode, sweep_live
from sqlext.extension.results import LiveBatch
from sqlext.extension.session import home_of
from sqlext.plan.job_graph import OutputMode
from sqlext.spark.storage import HadoopPath
from tests.integration.test_cli import run
from tests.integration.workshop import Workshop, local
from tests.java import java_options
from tests.support import eventually
from tests.terminal import Terminal

DEADLINE = 300.0

pytestmark = pytest.mark.timeout(3 * DEADLINE)


def until(is_over: Callable[[], bool]) -> None:
    eventually(is_over, DEADLINE)


def rows_of(batches: list[LiveBatch]) -> list[list[tuple[str | None, ...]]]:
    return [sorted((tuple(row) for row in batch.result.rows), key=repr) for batch in batches]


def checkpoints(spark: SparkSession) -> list[str]:
    folder = HadoopPath(spark, home_of(spark)).child("live")
    return folder.names() if folder.exists() else []


def shown_until(spark: SparkSession, text: str, steps: list[Callable[[], object]]) -> list[LiveBatch]:
    """What a live query shows: one step is taken after each micro-batch with rows, and then it is interrupted."""
    interrupts, found, left = Interrupts(), list[LiveBatch](), list(steps)

    def show(batch: LiveBatch) -> None:
        found.append(batch)
        if left:
            threading.Thread(target=left.pop(0)).start()
        else:
            interrupts.asked.set()

    with pytest.raises(KeyboardInterrupt, match=r"^The statement was canceled\.$"):
        StatementRunner(LocalSession(spark), interrupts).run(text, until, show=show)
    return found


def test_rows_are_shown_as_they_come_and_nothing_is_kept(sql: Workshop) -> None:
    sql.source()
    more = lambda: sql.spark.newSession().sql("INSERT INTO ev VALUES ('z', 9)")  # noqa: E731
    found = shown_until(sql.spark, "SELECT k, v FROM STREAM ev WHERE v > 1", [more])
    assert rows_of(found) == [[("b", "2"), (None, "3")], [("z", "9")]]
    assert checkpoints(sql.spark) == []
    assert sql.spark.streams.active == []
    assert sql("SHOW FLOWS") == []


def test_what_a_killed_process_left_goes_and_what_others_show_stays(sql: Workshop) -> None:
    sql.source()
    home = HadoopPath(sql.spark, home_of(sql.spark))
    other, killed = Lease(home), Lease(home)
    other.beat()
    killed.beat()
    beat = json.loads(home.child("hosts", other.host_id).read_text())
    home.child("hosts", other.host_id).write_text(json.dumps(beat | {"at": 0}))  # by its clock, which is behind
    os.utime(local(home.child("hosts", killed.host_id).location), (time.time() - 60, time.time() - 60))
    for name in (other.host_id, killed.host_id, "of-no-host"):
        home.child("live", name, "offsets").make()
    shown_until(sql.spark, "SELECT k FROM STREAM ev", [])
    assert checkpoints(sql.spark) == [other.host_id]
    assert home.child("hosts").names() == [other.host_id]
    assert oct(local(home.location + "/live").stat().st_mode & 0o777) == "0o700"
    other.beat()  # if the query took long
    mine = Lease(home)
    sweep_live(home, mine)
    assert checkpoints(sql.spark) == [other.host_id]
    other.end()
    sweep_live(home, mine)
    mine.end()
    assert checkpoints(sql.spark) == []


def test_an_aggregate_shows_the_groups_that_change_and_an_ordered_one_all(sql: Workshop) -> None:
    sql.source()
    more = lambda: sql.spark.newSession().sql("INSERT INTO ev VALUES ('a', 9)")  # noqa: E731
    counts = "SELECT k, sum(v) AS s FROM STREAM ev GROUP BY k"
    found = shown_until(sql.spark, counts, [more])
    assert rows_of(found) == [[("a", "1"), ("b", "2"), (None, "3")], [("a", "10")]]
    found = shown_until(sql.spark, f"{counts} ORDER BY s DESC", [])
    assert [list(row) for row in found[0].result.rows] == [["a", "10"], [None, "3"], ["b", "2"]]
    assert found[0].what == "the whole result"


def test_with_until_idle_it_ends_when_all_is_shown(sql: Workshop) -> None:
    sql.source()
    session, found = LocalSession(sql.spark), list[LiveBatch]()
    session.ends_when_idle = True
    result = StatementRunner(session, Interrupts()).run("SELECT k FROM STREAM ev", until, show=found.append)
    assert (result.columns, rows_of(found)) == ([], [[("a",), ("b",), (None,)]])
    assert checkpoints(sql.spark) == []


def test_what_spark_cannot_stream_is_refused_with_its_reason(sql: Workshop) -> None:
    sql.source()
    with pytest.raises(UnsupportedError, match="Spark cannot run this query as a stream"):
        output_mode(sql.spark.sql("SELECT k FROM STREAM ev ORDER BY k"))
    assert output_mode(sql.spark.sql("SELECT k, v FROM STREAM ev LIMIT 3")) is OutputMode.APPEND
    with pytest.raises(UnsupportedError, match="never ends"):
        StatementRunner(LocalSession(sql.spark), Interrupts()).run("SELECT k FROM STREAM ev", until)


def test_elsewhere_it_stays_spark_s(sql: Workshop) -> None:
    sql.source()
    assert sql.spark.sql("SELECT k FROM STREAM ev").isStreaming


def test_sqlext_run_until_idle_prints_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "live.sql"
    file.write_text(
        "CREATE TABLE ev (k STRING, v INT) USING delta;\nINSERT INTO ev VALUES ('a', 1), ('a', 2);\n"
        "SELECT k, sum(v) AS s FROM STREAM ev GROUP BY k;\nSELECT 'after' AS w;\n"
    )
    output = run(file, "--warehouse", tmp_path / "warehouse", "--until-idle")
    assert "micro-batch 0: new and changed rows\nk  s\n-  -\na  3\n" in output
    assert output.index("a  3") < output.index("after")
    assert list((tmp_path / "warehouse" / "_sqlext" / "live").glob("*")) == []


def test_the_shell_shows_rows_until_ctrl_c(tmp_path: Path) -> None:
    shell = [sys.executable, "-m", "sqlext.cli", "shell", "--warehouse", str(tmp_path / "warehouse")]
    shell += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    with Terminal(shell, {"XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}) as terminal:
        prompt = r"sqlext \(default\)>"
        terminal.expect(prompt, DEADLINE)
        terminal.type("CREATE TABLE ev (k STRING, v INT) USING delta; INSERT INTO ev VALUES ('tea', 1);\r")
        terminal.expect(f"(?s)row|s\n.*{prompt}", DEADLINE)
        terminal.type("SELECT k, v FROM STREAM ev;\r")
        terminal.expect(r"micro-batch 0: new and changed rows[^╰]*│ tea +│ +1 │", DEADLINE)
        terminal.type("\x03")
        terminal.expect(rf"(?s)The statement was canceled\.\n.*{prompt}", DEADLINE)
        terminal.type("\x04")
        assert terminal.end(DEADLINE) == 0, terminal.text
    assert "Traceback" not in terminal.text
    assert list((tmp_path / "warehouse" / "_sqlext" / "live").glob("*")) == []
