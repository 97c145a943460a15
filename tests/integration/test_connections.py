"""Connections between Python and Java: what they begin with, and that they end with the threads that opened them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.java import java_of
from tests.java import java_options
from tests.support import eventually

DEADLINE = 60.0


def connections(spark: SparkSession) -> list[Any]:
    """Those that Python has opened and that no call is using."""
    gateway: Any = spark.sparkContext._gateway
    return list(gateway._gateway_client.deque)


def on_threads(spark: SparkSession, statement: str, count: int) -> None:
    threads = [threading.Thread(target=lambda: spark.sql(statement).collect(), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_has_sent_statements_leaves_no_connection(spark: SparkSession) -> None:
    """Java calls back while it parses a statement."""
    spark.sql("SELECT 1").collect()
    before = len(connections(spark))
    on_threads(spark, "SELECT 1", 10)
    eventually(lambda: len(connections(spark)) <= before, DEADLINE, lambda: f"{len(connections(spark))}, not {before}")


def test_no_connection_is_noted_twice(spark: SparkSession) -> None:
    spark.sql("SELECT 1").collect()
    assert max(Counter(map(id, connections(spark))).values()) == 1


def test_own_threads_have_an_active_session(spark: SparkSession) -> None:
    """Others have none, as without sqlext."""
    found: dict[str, bool] = {}

    def look() -> None:
        sessions = java_of(spark).org.apache.spark.sql.classic.SparkSession
        found[threading.current_thread().name] = bool(sessions.getActiveSession().isDefined())

    for name in ("sqlext-test", "another"):
        thread = threading.Thread(target=look, name=name, daemon=True)
        thread.start()
        thread.join(DEADLINE)
    assert found == {"sqlext-test": True, "another": False}


SLOW = """
import sys, time
from pathlib import Path
from py4j.java_gateway import CallbackServer
from sqlext.app.embedded import embedded_session

run = CallbackServer.run

def late(self):
    time.sleep(2)
    run(self)

CallbackServer.run = late
with embedded_session(Path(sys.argv[1]), {"spark.driver.extraJavaOptions": sys.argv[2]}) as spark:
    print(spark.sql("SELECT 41 + 1").first()[0])
"""


def test_java_calls_before_the_thread_that_answers_runs(tmp_path: Path) -> None:
    """On a busy machine, Java was refused: `Spark did not start: Connection refused`."""
    command = [sys.executable, "-c", SLOW, str(tmp_path / "warehouse"), java_options()]
    ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600, check=False)
    assert ended.stdout.splitlines()[-1:] == ["42"], ended.stderr
