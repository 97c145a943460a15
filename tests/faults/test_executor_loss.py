"""An executor dies with rows that a memory-only buffer held: the flow gets them back from Spark's state store.

On a cluster of two executor processes on this machine, in a process of its own: a driver has one master.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.java import ONE_TIER, java_options

DEADLINE = 300.0
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

import sqlext
from sqlext.extension import session as sqlext_session

DEADLINE = 120.0


def eventually(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the deadline has passed"
        time.sleep(0.1)


def executors():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\\0")
            is_ours = os.getpgid(int(process.name)) == os.getpgid(0)
        except OSError:
            continue
        if is_ours and any(b"CoarseGrainedExecutorBackend" in word for word in words):
            found.append(int(process.name))
    return found


settings = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2", "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.warehouse.dir": sys.argv[1], "spark.executor.memory": "700m",
    "spark.driver.extraJavaOptions": sys.argv[2], "spark.executor.extraJavaOptions": sys.argv[3],
}
builder = cast(Any, SparkSession.builder).master("local-cluster[2,1,1024]").appName("executor loss")
for key, value in settings.items():
    builder.config(key, value)
spark = sqlext.configure(builder).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sql("CREATE TABLE ev (k BIGINT, v BIGINT) USING delta")
spark.sql("INSERT INTO ev SELECT id % 7, id FROM range(100)")
spark.sql(
    "CREATE STREAMING TABLE t TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', "
    "'execution.flush.memory-buffer-only' = 'true', 'state.backend.type' = 'rocksdb') "
    "AS SELECT k, count(*) AS n, sum(v) AS s FROM STREAM ev GROUP BY k"
)
flow = next(iter(sqlext_session.host_of(spark).flows.all.values()))
spark.sql("WAIT FLOW t")
spark.sql("INSERT INTO ev SELECT id % 7, id FROM range(1000, 1050)")
flow.take_in()
before = executors()
assert len(before) == 2, before
for process in before:  # both: whoever held the rows
    os.kill(process, signal.SIGKILL)
eventually(lambda: len(set(executors()) - set(before)) == 2)
try:
    spark.sql("FLUSH FLOW t")
except Exception as error:
    print("the flush failed:", str(error).splitlines()[0][:200])


def rows(sql):
    return sorted(map(tuple, spark.sql(sql).collect()))


expected = rows("SELECT k, count(*), sum(v) FROM ev GROUP BY k")
eventually(lambda: rows("SELECT * FROM t") == expected)
reasons = [row.userMetadata for row in spark.sql("DESCRIBE HISTORY t").collect() if row.userMetadata]
assert '"recovery"' in reasons[0], reasons
spark.sql("INSERT INTO ev VALUES (3, 1)")
spark.sql("WAIT FLOW t")
assert rows("SELECT * FROM t") == rows("SELECT k, count(*), sum(v) FROM ev GROUP BY k")
print("all rows came back")
sqlext.disable(spark)
spark.stop()
"""


@pytest.mark.timeout(2 * DEADLINE)
def test_lost_rows_come_back(tmp_path: Path) -> None:
    script = tmp_path / "lose_executors.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": os.path.dirname(pyspark.__file__)}
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "warehouse"), java_options(), ONE_TIER],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=DEADLINE,
        start_new_session=True,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert "all rows came back" in ended.stdout
