"""What running flows and views cost while nothing arrives: the processor, memory and threads, by their number.

python -m tests.benchmarks.idle                                                    0, 20, 50 and 100 of them, for a minute each
python -m tests.benchmarks.idle --numbers 0 10 --seconds 10 --result /tmp/idle.json

Of five, two are streaming tables with an aggregate, two are such that append, and one is a materialized view with TRIGGER ON
UPDATE. They read ten Delta tables. Memory is what the JVM's heap holds after a collection, and what the processes have.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.sql import SparkSession

from sqlext.spark.java import java_of
from tests.benchmarks.common import in_folder, save

SOURCES = 10
STATEMENTS = (
    "CREATE STREAMING TABLE {name} AS SELECT k, count(*) AS n, sum(v) AS s FROM STREAM {source} GROUP BY k",
    "CREATE STREAMING TABLE {name} AS SELECT k, v FROM STREAM {source} WHERE v > 3",
    "CREATE STREAMING TABLE {name} AS SELECT k, max(v) AS m FROM STREAM {source} GROUP BY k",
    "CREATE STREAMING TABLE {name} AS SELECT k, v, v * 2 AS w FROM STREAM {source}",
    "CREATE MATERIALIZED VIEW {name} TRIGGER ON UPDATE AS SELECT k, sum(v) AS s FROM {source} GROUP BY k",
)
_TICKS = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--numbers", type=int, nargs="+", default=[0, 20, 50, 100], help="of flows and views, growing")
    parser.add_argument("--seconds", type=float, default=60, help="for which each number is watched")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    result = in_folder(Path(tempfile.mkdtemp()), lambda spark: run(spark, given.numbers, given.seconds))
    save(result, chart(result), given.result)


def run(spark: SparkSession, numbers: Sequence[int], seconds: float) -> dict[str, Any]:
    for number in range(SOURCES):
        spark.sql(f"CREATE TABLE s{number} (k BIGINT, v BIGINT) USING delta")
        spark.sql(f"INSERT INTO s{number} SELECT id % 7, id FROM range(100)")
    found, there = [], 0
    for wanted in numbers:
        while there < wanted:
            make(spark, there)
            there += 1
        found.append({"number": there, **watched(spark, seconds)})
        print(found[-1], flush=True)
    return {"seconds": seconds, "found": found}


def make(spark: SparkSession, number: int) -> None:
    name = f"t{number}"
    statement = STATEMENTS[number % len(STATEMENTS)]
    spark.sql(statement.format(name=name, source=f"s{number // len(STATEMENTS) % SOURCES}"))
    if "STREAMING" in statement:
        spark.sql(f"WAIT FLOW {name}")


def watched(spark: SparkSession, seconds: float) -> dict[str, float]:
    """Watch this process and its JVM."""
    java = java_of(spark).java.lang
    pids = (os.getpid(), int(java.ProcessHandle.current().pid()))
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
    before, began = [processor_seconds(pid) for pid in pids], time.monotonic()
    threading.Event().wait(seconds)
    took = time.monotonic() - began
    python, jvm = (100 * (processor_seconds(pid) - at) / took for pid, at in zip(pids, before, strict=True))
    return {
        "percent of a core, Python": round(python, 2),
        "percent of a core, JVM": round(jvm, 2),
        "MB of heap": round(heap),
        "MB of both processes": round(sum(map(resident, pids))),
        "threads, Python": threads(pids[0]),
        "threads, JVM": threads(pids[1]),
    }


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS  # utime and stime


def resident(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def chart(result: dict[str, Any]) -> alt.HConcatChart:
    """The processor, memory and threads by the number of flows and views."""
    rows = [
        {"number": each["number"], "of": key, "value": value}
        for each in result["found"]
        for key, value in each.items()
        if key != "number"
    ]
    base = alt.Chart(alt.InlineData(values=rows)).mark_line(point=True).properties(width=240, height=200)
    parts = []
    for word, title in (("percent", "percent of a core"), ("MB", "MB"), ("threads", "threads")):
        chosen = base.transform_filter(f"indexof(datum.of, '{word}') == 0")
        x, y = alt.X("number:Q", title="flows and views"), alt.Y("value:Q", title=title)
        parts.append(chosen.encode(x=x, y=y, color=alt.Color("of:N", title=None)))
    made: alt.HConcatChart = alt.hconcat(*parts).resolve_scale(color="independent")
    return made


if __name__ == "__main__":
    main()
