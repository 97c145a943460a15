"""Many small tables over one source, in one run on both sides: python tests/benchmarks/many_flows.py [--flows 30]

One side is plain Spark: a stream a table, whose foreachBatch brings each micro-batch into its table with a MERGE. The other is a
flow a table. Measured are the seconds from a commit of 100 rows in the source until all tables have them, and the share of a core
that the process takes while nothing arrives. The tables of both sides are compared with a batch query.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.benchmarks.common import QUERY, check_equal, in_folder, save

RESULT = Path(__file__).with_suffix(".json")
COLOURS = {"plain Spark, a MERGE a micro-batch": "#8a8a8a", "flows": "#1f6feb"}
WARM_UP = 4
Start = Callable[[SparkSession, int, Path], Callable[[], None]]
"""The function that starts to keep tables, and returns one that waits until they have all there is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=30, help="how many tables are kept")
    parser.add_argument("--arrivals", type=int, default=12, help="how many commits the source gets, of which four warm up")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds in which nothing arrives")
    given = parser.parse_args()
    found = {}
    for side, start in zip(COLOURS, (plain, flows), strict=True):
        folder = Path(tempfile.mkdtemp())
        found[side] = in_folder(folder, partial(measured, start, folder, given))
    report(found, given.flows)


def measured(start: Start, folder: Path, given: argparse.Namespace, spark: SparkSession) -> dict[str, Any]:
    """Return the seconds of each arrival, and the share of a core without one."""
    spark.sql("CREATE TABLE source (k INT, v INT) USING delta")
    wait = start(spark, given.flows, folder)
    seconds = []
    for _ in range(given.arrivals):
        spark.sql("INSERT INTO source SELECT id % 50, id FROM range(100)")
        began = time.perf_counter()
        wait()
        seconds.append(time.perf_counter() - began)
    time.sleep(5)  # what follows the last arrival is not idleness
    before = cpu_seconds()
    time.sleep(given.idle)
    idle = (cpu_seconds() - before) / given.idle
    for at in (0, given.flows - 1):
        check_equal(spark.table(f"t{at}"), spark.sql(QUERY.format("source")), f"t{at}")
    for query in spark.streams.active:
        if not (query.name or "").startswith("sqlext-"):
            query.stop()
    return {"seconds": seconds[WARM_UP:], "idle": idle}


def plain(spark: SparkSession, number: int, folder: Path) -> Callable[[], None]:
    """Start a stream a table, each with a MERGE a micro-batch; return what waits for them."""
    queries = []
    for at in range(number):
        spark.sql(f"CREATE TABLE t{at} (k INT, n BIGINT, s BIGINT) USING delta")

        def merge(rows: DataFrame, _: int, at: int = at) -> None:
            counted = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
            table = DeltaTable.forName(rows.sparkSession, f"t{at}").alias("t")
            added: dict[str, str | Column] = {"n": "t.n + s.n", "s": "t.s + s.s"}
            table.merge(counted.alias("s"), "t.k <=> s.k").whenMatchedUpdate(set=added).whenNotMatchedInsertAll().execute()

        writer = spark.readStream.table("source").writeStream.foreachBatch(merge)
        queries.append(writer.option("checkpointLocation", str(folder / f"checkpoint{at}")).start())

    def wait() -> None:
        for query in queries:
            query.processAllAvailable()

    return wait


def flows(spark: SparkSession, number: int, _: Path) -> Callable[[], None]:
    """Create a flow a table; return what waits for them."""
    for at in range(number):
        spark.sql(f"CREATE STREAMING TABLE t{at} AS {QUERY.format('STREAM source')}")

    def wait() -> None:
        for at in range(number):
            spark.sql(f"WAIT FLOW t{at}")

    return wait


def cpu_seconds() -> float:
    """Return the CPU time of this process, and of Java below it."""
    java = subprocess.run(["pgrep", "-f", "org.apache.spark.deploy.SparkSubmit"], capture_output=True, text=True, check=True)
    ticks = 0
    for pid in (*java.stdout.split(), "self"):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def report(found: dict[str, Any], number: int) -> None:
    medians = {side: statistics.median(each["seconds"]) for side, each in found.items()}
    slow, quick = COLOURS
    result = {
        "tables": number,
        "seconds from an arrival to all tables": {side: round(value, 2) for side, value in medians.items()},
        "ratio": round(medians[slow] / medians[quick], 2),
        "share of a core without arrivals": {side: round(each["idle"], 3) for side, each in found.items()},
    }
    rows = [
        {"side": side, "arrival": at + 1, "seconds": value}
        for side, each in found.items()
        for at, value in enumerate(each["seconds"])
    ]
    scale = alt.Scale(domain=[*COLOURS], range=[*COLOURS.values()])
    lines = (
        alt.Chart(alt.InlineData(values=rows), title=f"Seconds from an arrival until all of {number} tables have it")
        .mark_line(point=True)
        .encode(
            x=alt.X("arrival:O", title="arrival"),
            y=alt.Y("seconds:Q", title="seconds", scale=alt.Scale(domainMin=0)),
            color=alt.Color("side:N", title=None, scale=scale),
            shape=alt.Shape("side:N", title=None),
        )
    )
    save(result, alt.layer(lines), RESULT)


if __name__ == "__main__":
    main()
