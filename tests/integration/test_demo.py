"""`sqlext demo` on a few days, and that its comparison sees a difference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import Row

from sqlext.app.demo import compare, write_files
from tests.java import java_options

DEADLINE = 600.0


@pytest.mark.timeout(2 * DEADLINE)
def test_twenty_days(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sqlext.cli", "demo", "--days", "20", "--conf", f"spark.driver.extraJavaOptions={java_options()}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stdout
    assert "17,314 departures of 20 days" in ended.stdout
    assert "State of delays: delta: partial results are kept in a table of the flow's own" in ended.stdout
    flushes = re.search(r"^20 micro-batches, (\d+) flushes", ended.stdout, re.MULTILINE)
    assert flushes is not None
    assert 1 <= int(flushes[1]) < 20
    batches = [range(int(a), int(b) + 1) for a, b in re.findall(r"flush \d+: micro-batches (\d+) to (\d+),", ended.stdout)]
    assert [batch for each in batches for batch in each] == list(range(20))
    assert ended.stdout.rstrip().endswith(": equal")
    assert not re.search(r"Traceback|WARN|Exception", ended.stdout)
    assert not list(tmp_path.glob("sqlext-demo-*"))


def row(carrier: str, departures: int, avg_delay: float | None) -> Row:
    return Row(carrier=carrier, airport="JFK", departures=departures, avg_delay=avg_delay)


def test_averages_may_differ_in_the_last_digits_only() -> None:
    assert not compare([row("AA", 3, 0.1 + 0.2)], [row("AA", 3, 0.3)]).differences
    assert compare([row("AA", 3, 0.3)], [row("AA", 3, 0.3001)]).differences == [
        "AA JFK: avg_delay is 0.3 in the streaming table, 0.3001 in the batch query"
    ]
    assert not compare([row("AA", 3, None)], [row("AA", 3, None)]).differences
    assert compare([row("AA", 3, None)], [row("AA", 3, 0.5)]).differences
    assert compare([row("AA", 3, 0.5)], [row("AA", 3, None)]).differences


def test_counts_and_keys_must_be_the_same() -> None:
    assert compare([row("AA", 3, 1.0)], [row("AA", 4, 1.0)]).differences
    assert compare([row("AA", 3, 1.0)], [row("AA", 3, 1.0), row("UA", 1, 1.0)]).differences == [
        "UA JFK is in only one of the two results"
    ]
    assert compare([row("AA", 3, 1.0)] * 2, [row("AA", 3, 1.0)]).differences


def test_files_are_in_the_order_of_the_days(tmp_path: Path) -> None:
    assert write_files(tmp_path, 3) == 842 + 943 + 914
    files = sorted(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == ["2013-01-01.parquet", "2013-01-02.parquet", "2013-01-03.parquet"]
