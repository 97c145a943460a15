"""kill -9 of a flow's process in the second of two bounded stages: the restart reads the first one's result again.

By hand, more often: `python -m pytest tests/faults/test_prerequisite_kill.py --kills 30`; a third as many, since each restart
waits for the first one. Each kill comes at another time after the second one began.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.java import java_options
from tests.support import eventually

DEADLINE = 300.0
PROGRAM = """
import sys, time
from pathlib import Path
import sqlext
from sqlext.app.embedded import embedded_session

folder = Path(sys.argv[1])

def gate(value):
    (folder / "reached").touch()
    deadline = time.monotonic() + 300
    while not (folder / "open").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value

sqlext.register_function("gate", gate, "BIGINT")
conf = {"spark.driver.extraJavaOptions": sys.argv[2]}
with embedded_session(folder / "warehouse", conf) as spark:
    spark.sql("CREATE TABLE IF NOT EXISTS hist USING delta AS SELECT id % 10 AS k, id AS v FROM range(1000)")
    spark.sql("CREATE TABLE IF NOT EXISTS ev USING delta AS SELECT id % 20 AS k, id AS v FROM range(100)")
    spark.sql('''
        CREATE STREAMING TABLE IF NOT EXISTS t AS
        WITH sums AS (SELECT k, sum(v) AS s FROM STREAM hist GROUP BY k GLOBAL WINDOW END OF STREAM),
             best AS (SELECT gate(max(s)) AS m FROM sums GLOBAL WINDOW END OF STREAM)
        SELECT ev.k, count(*) AS n, max(s) AS s, max(m) AS m FROM STREAM ev JOIN sums USING (k) CROSS JOIN best GROUP BY ev.k
    ''')
    while not (folder / "reached").exists():
        time.sleep(0.02)
    spark.sql("INSERT INTO hist VALUES (0, 1000000)")  # after the first prerequisite has read it
    spark.sql("WAIT FLOW t TIMEOUT 4 minutes")
"""


@pytest.mark.timeout(1800)
def test_a_restart_does_not_compute_a_finished_prerequisite(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    firsts: set[tuple[str, int]] = set()
    for _ in range(max(kills // 3, 1)):
        (tmp_path / "reached").unlink(missing_ok=True)
        process = start(tmp_path)
        try:
            eventually((tmp_path / "reached").exists, DEADLINE, lambda: output(tmp_path))
            time.sleep(random.uniform(0, 1))  # the moment is the fault, nothing waits for it
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=120)
        assert results(tmp_path, 2) == []
        firsts.update((file.name, file.stat().st_mtime_ns) for file in results(tmp_path, 1))
    (tmp_path / "open").touch()
    process = start(tmp_path)
    assert process.wait(timeout=DEADLINE) == 0, output(tmp_path)
    firsts.update((file.name, file.stat().st_mtime_ns) for file in results(tmp_path, 1))
    assert len(firsts) == 1
    assert len(results(tmp_path, 2)) == 1
    sums = {k: sum(range(k, 1000, 10)) for k in range(10)}
    found = spark.read.format("delta").load(str(tmp_path / "warehouse" / "t")).collect()
    assert sorted(map(tuple, found)) == [(k, 5, sums[k], max(sums.values())) for k in range(10)]


def start(folder: Path) -> subprocess.Popen[bytes]:
    log = (folder / "out.log").open("ab")
    command = [sys.executable, "-c", PROGRAM, str(folder), java_options()]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def results(folder: Path, number: int) -> list[Path]:
    """The commits of a prerequisite's table."""
    return list(folder.glob(f"warehouse/_sqlext/flows/*/stages/__sqlext_stage_{number}/_delta_log/*.json"))


def output(folder: Path) -> str:
    return (folder / "out.log").read_text(errors="replace")[-4000:]
