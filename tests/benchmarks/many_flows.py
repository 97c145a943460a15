"""Many flows over one table, from an arrival until the tables of all hold it, beside a query with a MERGE for each of them.

python -m tests.benchmarks.many_flows                                              30 flows, 10 arrivals of 1,000 rows
python -m tests.benchmarks.many_flows --flows 5 --arrivals 2 --result /tmp/many_flows.json

Each flow and query counts and sums other rows of the source by key. An arrival is one commit of the source and one of each table;
the times are those of the files in their logs, so nothing is asked while they work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from sqlext.spark.java import java_of
from tests.benchmarks.common import check_equal, run_and_save, table_folder
from tests.benchmarks.idle import processor_seconds
from tests.support import eventually

SOURCE = "arrivals"
SELECTED = "SELECT k, count(*) AS n, sum(v) AS s FROM {source} WHERE v % 1000 <> {number} GROUP BY k"
SIDES = ("flows", "merges")
GOAL_SECONDS = 4
_KEYS = 100
_DEADLINE = 600.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flows", type=int, default=30)
    parser.add_argument("--arrivals", type=int, default=10, help="that are measured, after two that are not")
    parser.add_argument("--rows", type=int, default=1000, help="in each")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="which to run, in this order")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    spark.sql(f"CREATE TABLE {SOURCE} (k BIGINT, v BIGINT) USING delta")
    arrive(spark, given.rows, 0)
    sides = {side: measure(spark, folder, side, given) for side in given.sides}
    shape = {"flows": given.flows, "arrivals": given.arrivals, "rows": given.rows}
    ratio = {"merges_to_flows": round(sides["merges"]["seconds"] / sides["flows"]["seconds"], 2)} if len(sides) > 1 else {}
    return {**shape, "sides": sides, **ratio, "goal": f"{GOAL_SECONDS} s with 30 flows"}


def measure(spark: SparkSession, folder: Path, side: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run one side, and check what its tables hold."""
    names = [f"{side}_{number}" for number in range(given.flows)]
    queries = [by_flow(spark, name, at) if side == "flows" else by_hand(spark, folder, name, at) for at, name in enumerate(names)]
    source, *logs = [table_folder(spark, name) / "_delta_log" for name in (SOURCE, *names)]
    pids = (os.getpid(), int(java_of(spark).java.lang.ProcessHandle.current().pid()))
    took, used = [], []
    for number in range(given.arrivals + 2):
        before = sum(map(processor_seconds, pids))
        took.append(one_arrival(spark, given.rows, number + 1, source, logs))
        used.append(sum(map(processor_seconds, pids)) - before)
        print(f"{side}: {took[-1]:.2f} s, {used[-1]:.2f} s of processors", flush=True)
    for query in queries:
        query.stop() if isinstance(query, StreamingQuery) else spark.sql(f"STOP FLOW {query}")
    for at, name in enumerate(names):
        check_equal(spark.table(name), spark.sql(SELECTED.format(source=SOURCE, number=at)), name)
    seconds, of_processors = statistics.median(took[2:]), statistics.median(used[2:])
    return {"seconds": round(seconds, 2), "longest": round(max(took[2:]), 2), "of_processors": round(of_processors, 2)}


def one_arrival(spark: SparkSession, rows: int, number: int, source: Path, logs: Sequence[Path]) -> float:
    """The seconds from a commit of the source until each table has one more."""
    versions = [len(commits(log)) for log in logs]
    arrive(spark, rows, number)
    arrived = commits(source)[-1].stat().st_mtime

    def have_all() -> bool:
        return all(len(commits(log)) > before for log, before in zip(logs, versions, strict=True))

    eventually(have_all, _DEADLINE)
    seconds = max(commits(log)[-1].stat().st_mtime for log in logs) - arrived
    time.sleep(1)  # what comes after a commit belongs to the work that is measured
    return seconds


def arrive(spark: SparkSession, rows: int, number: int) -> None:
    spark.sql(f"INSERT INTO {SOURCE} SELECT id % {_KEYS}, id * {number + 7} % 1000 FROM range(0, {rows}, 1, 1)")


def commits(log: Path) -> list[Path]:
    return sorted(log.glob("*.json"))


def by_flow(spark: SparkSession, name: str, number: int) -> str:
    spark.sql(f"CREATE STREAMING TABLE {name} AS {SELECTED.format(source=f'STREAM {SOURCE}', number=number)}")
    spark.sql(f"WAIT FLOW {name}")
    return name


def by_hand(spark: SparkSession, folder: Path, name: str, number: int) -> StreamingQuery:
    """What one would write without sqlext, if results need not be right after a crash."""
    spark.sql(f"CREATE TABLE {name} (k BIGINT, n BIGINT, s BIGINT) USING delta")
    rows = spark.readStream.table(SOURCE).where(f"v % 1000 <> {number}")
    writer = rows.writeStream.foreachBatch(partial(merge, name)).option("checkpointLocation", str(folder / f"checkpoint_{name}"))
    query = writer.start()
    query.processAllAvailable()
    return query


def merge(name: str, rows: DataFrame, batch: int) -> None:
    new = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    builder = DeltaTable.forName(rows.sparkSession, name).alias("t").merge(new.alias("s"), "t.k = s.k")
    builder.whenMatchedUpdate(set={"n": "t.n + s.n", "s": "t.s + s.s"}).whenNotMatchedInsertAll().execute()


def chart(result: dict[str, Any]) -> alt.HConcatChart:
    """The seconds of each side, and those of the processors."""
    rows = [{"side": side, **found} for side, found in result["sides"].items()]
    bars = alt.Chart(alt.InlineData(values=rows)).mark_bar().properties(width=200, height=240)
    side = alt.X("side:N", title=None, sort=list(SIDES))
    title = f"{result['flows']} tables over one source, an arrival of {result['rows']:,} rows"
    return alt.hconcat(bars.encode(x=side, y="seconds:Q"), bars.encode(x=side, y="of_processors:Q")).properties(title=title)


if __name__ == "__main__":
    main()
