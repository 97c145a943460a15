"""What surviving its driver costs a bounded job (FLIP-383), and what a kill costs it.

python -m tests.benchmarks.job_recovery                           40,000,000 records, 4,000,000 random keys, 1,000 parts
python -m tests.benchmarks.job_recovery --records 4000000 --keys 400000 --parts 100

Three measures. `recovery`: CREATE TABLE .. AS of an aggregate with recovery off and on, over the same Parquet files. `kills`: the
same with recovery on in a process that is killed (kill -9) at a quarter, a half and three quarters of the whole time, and run
again in another; the sum of both, from statement to answer or kill, against the whole time in such a process. `parts`: a job of
many small parts, and how much of its time the driver did something else than wait for them: planning, deciding, committing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import wait as futures_wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import altair as alt
from pyspark.sql import SparkSession

from sqlext.execution.jobs import division, run
from tests.benchmarks.common import check_equal, in_folder, save, session

QUERY = "SELECT k, count(*) AS n, sum(v) AS s FROM {} GROUP BY k"
BOUNDED = QUERY.format("STREAM records") + " GLOBAL WINDOW END OF STREAM"
FILES = 16
RECOVERY = "execution.batch.job-recovery.enabled"
FRACTIONS = (0.25, 0.5, 0.75)
DEADLINE = 1800.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=40_000_000)
    parser.add_argument("--keys", type=int, default=4_000_000, help="keys they are drawn from")
    parser.add_argument("--runs", type=int, default=3, help="with recovery off and on, in turns; the fastest counts")
    parser.add_argument("--parts", type=int, default=1000, help="of the job of many small parts")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--process", type=Path, help=argparse.SUPPRESS)  # what this file starts itself with
    given = parser.parse_args(arguments)
    if given.process is not None:
        statement(given.process)
        return
    folder = Path(tempfile.mkdtemp())
    result = in_folder(folder, lambda spark: measured(spark, folder, given))
    save(result, chart(result), given.result)


def measured(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    drawn = spark.range(0, given.records, 1, FILES).selectExpr(f"CAST(rand(1) * {given.keys} AS BIGINT) AS k", "id % 1000 AS v")
    drawn.write.parquet(str(folder / "records"))
    spark.sql(f"CREATE TABLE records USING parquet LOCATION '{folder / 'records'}'")
    result: dict[str, Any] = {"records": given.records, "keys": given.keys}
    result["recovery"] = recovery(spark, given.runs)
    result["parts"] = many_parts(spark, folder, given.parts)
    result["kills"] = kills(folder)
    return result


# Recovery on and off.


def recovery(spark: SparkSession, runs: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(runs + 1):
        for side, taken in seconds.items():
            spark.conf.set(RECOVERY, str(side == "on").lower())
            began = time.perf_counter()
            spark.sql(f"CREATE TABLE result_{side} USING delta AS {BOUNDED}")
            if number:  # the first one compiles
                taken.append(round(time.perf_counter() - began, 2))
                print(f"recovery {side}: {taken[-1]} s", flush=True)
            if number == runs and side == "on":
                check_equal(spark.table("result_on"), spark.table("result_off"), "recovery")
            elif number < runs or side == "on":
                spark.sql(f"DROP TABLE result_{side}")
    spark.sql("DROP TABLE IF EXISTS result_on")
    spark.sql("DROP TABLE IF EXISTS result_off")
    ratio = round(min(seconds["on"]) / min(seconds["off"]), 2)
    return {"seconds": seconds, "on_to_off": ratio, "on_to_off_goal": "at most 1.5"}


# Many parts.


def many_parts(spark: SparkSession, folder: Path, parts: int) -> dict[str, Any]:
    """As many slices as files, so one is a thousandth of the job."""
    drawn = spark.range(0, parts * 1000, 1, parts).selectExpr("id % 977 AS k", "id AS v")
    drawn.write.parquet(str(folder / "small"))
    spark.sql(f"CREATE TABLE small USING parquet LOCATION '{folder / 'small'}'")
    spark.conf.set(RECOVERY, "true")
    waited: list[float] = []

    def wait(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return futures_wait(*args, **kwargs)
        finally:
            waited.append(time.perf_counter() - began)

    with patch.object(division, "LEAST_SLICES", parts), patch.object(run, "wait", wait):
        began = time.perf_counter()
        spark.sql(f"CREATE TABLE result_small USING delta AS {BOUNDED.replace('records', 'small')}")
        seconds = time.perf_counter() - began
    check_equal(spark.table("result_small"), spark.sql(QUERY.format("small")), "parts")
    return {
        "parts": parts,
        "seconds": round(seconds, 1),
        "driver_seconds": round(seconds - sum(waited), 1),
        "driver_share": round(1 - sum(waited) / seconds, 3),
        "driver_share_goal": "under 0.1",
    }


# Kills.


def kills(folder: Path) -> dict[str, Any]:
    """Each process has the statement's time on a clock of its own, so that Java's start is on no side."""
    whole = min(in_processes(folder / f"whole{number}", folder, None) for number in range(2))
    found: dict[str, Any] = {"whole_seconds": round(whole, 1), "at": {}}
    for fraction in FRACTIONS:
        seconds = in_processes(folder / f"kill{fraction}", folder, fraction * whole)
        found["at"][str(fraction)] = {"seconds": round(seconds, 1), "extra": round(seconds / whole - 1, 3)}
        print(f"killed at {fraction}: {found['at'][str(fraction)]}", flush=True)
    return {**found, "extra_goal": "at most 0.15"}


def in_processes(world: Path, inputs: Path, kill_after: float | None) -> float:
    """Run the statement in a process, killed after so many seconds of it and run again in another.

    Returns:
        Seconds of the statement, of both together.
    """
    world.mkdir()
    (world / "records").symlink_to(inputs / "records")
    total = 0.0
    if kill_after is not None:
        process = started(world)
        began = wait_for(world / "began", process)
        time.sleep(max(0.0, began + kill_after - time.time()))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        total = time.time() - began
        (world / "began").unlink()
    process = started(world)
    began = wait_for(world / "began", process)
    ended = wait_for(world / "ended", process)
    assert process.wait(timeout=60) == 0
    return total + ended - began


def started(world: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.job_recovery", "--process", str(world)]
    log = (world / "out.log").open("ab")
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def wait_for(mark: Path, process: subprocess.Popen[bytes]) -> float:
    """The time that a mark was written at."""
    deadline = time.monotonic() + DEADLINE
    while not mark.exists():
        assert process.poll() is None or mark.exists(), (mark.parent / "out.log").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return mark.stat().st_mtime


def statement(world: Path) -> None:
    """What the process does: warm up on a small table, then the statement, with marks before and after it."""
    spark = session(world)
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    spark.conf.set(RECOVERY, "true")
    spark.sql(f"CREATE TABLE records USING parquet LOCATION '{world / 'records'}'")
    spark.sql(QUERY.format("records TABLESAMPLE (1 ROWS)")).collect()
    (world / "began").touch()
    spark.sql(f"CREATE TABLE result USING delta AS {BOUNDED}")
    (world / "ended").touch()


def chart(result: dict[str, Any]) -> alt.HConcatChart:
    """Seconds with recovery off and on, and of a job that was killed at some time."""
    sides = [{"recovery": side, "seconds": min(taken)} for side, taken in result["recovery"]["seconds"].items()]
    bars = alt.Chart(alt.InlineData(values=sides)).mark_bar().encode(x=alt.X("recovery:N", sort=["off", "on"]), y="seconds:Q")
    at = [{"killed at": "never", "seconds": result["kills"]["whole_seconds"]}]
    at += [{"killed at": fraction, "seconds": each["seconds"]} for fraction, each in result["kills"]["at"].items()]
    killed = alt.Chart(alt.InlineData(values=at)).mark_bar().encode(x=alt.X("killed at:N", sort=None), y="seconds:Q")
    title = f"{result['records']:,} records, {result['keys']:,} keys"
    joined: alt.HConcatChart = alt.hconcat(bars.properties(width=120), killed.properties(width=200)).properties(title=title)
    return joined


if __name__ == "__main__":
    main()
