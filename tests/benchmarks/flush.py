"""One commit a flush against one MERGE a micro-batch, over the same arrivals, in one run.

python -m tests.benchmarks.flush                    40 micro-batches of 50,000 rows, 20,000 keys
python -m tests.benchmarks.flush --keys 1000000     hardly a key comes twice between two flushes
python -m tests.benchmarks.flush --batches 4 --rows 5000 --every 2 --result /tmp/flush.json

Sides: `merge`, what one writes by hand: foreachBatch and a MERGE for each micro-batch. `durable`: a flow on RocksDB, flushed
every 10 micro-batches. `memory`: the same with execution.flush.memory-buffer-only. `delta`: as `durable`, without a state store,
with state.backend.type = delta. `interval`: that and execution.flush.memory-buffer-only: each flush takes what has arrived as one
micro-batch.

All sides get the same files, ten at a time, and the next ten when those are taken in. A flow then flushes beside the stream, as
it does when left alone; with --one-by-one it takes nothing in meanwhile, which measures the least it gains. The clock starts when
the table is there and the query runs, and stops when all is in the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from sqlext.spark import jvm, sessions
from tests.benchmarks.common import (
    BY_COMMAND,
    DELTA_STATE,
    FLOW_DDL,
    MEMORY_ONLY,
    QUERY,
    ROCKSDB_STATE,
    Source,
    check_equal,
    flow_of,
    listed,
    operations,
    run_and_save,
    table_folder,
    take_in,
    write_rows,
)

GOAL_RATIO = 4.0
SIDES = {
    "merge": None,
    "durable": BY_COMMAND | ROCKSDB_STATE,
    "memory": BY_COMMAND | ROCKSDB_STATE | MEMORY_ONLY,
    "delta": BY_COMMAND | DELTA_STATE,
    "interval": BY_COMMAND | DELTA_STATE | MEMORY_ONLY,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=40, help="micro-batches")
    parser.add_argument("--rows", type=int, default=50_000, help="rows in each")
    parser.add_argument("--keys", type=int, default=20_000, help="keys they are drawn from")
    parser.add_argument("--every", type=int, default=10, help="micro-batches between two flushes")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), help="which to run, in this order")
    parser.add_argument("--one-by-one", action="store_true", help="no flush runs beside the stream")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(365)
    files = [folder / "ready" / f"{number:05d}.parquet" for number in range(given.batches)]
    for file in files:
        write_rows(file, random.integers(0, given.keys, given.rows), random)
    for name in given.sides:  # each side's code is compiled before it is measured; sides share most of it
        measure(spark, folder, f"warm_up_{name}", name, files[:2], 1, given.one_by_one)
    sides = {name: measure(spark, folder, name, name, files, given.every, given.one_by_one) for name in given.sides}
    result: dict[str, Any] = {
        "batches": given.batches,
        "rows_a_batch": given.rows,
        "keys": given.keys,
        "every": given.every,
        "one_by_one": given.one_by_one,
        "sides": sides,
    }
    if {"merge", "durable"} <= sides.keys():
        result["ratio"] = round(sides["merge"]["seconds"] / sides["durable"]["seconds"], 2)
        result["ratio_goal"] = f"at least {GOAL_RATIO}"
        result["commits_ratio"] = round(sides["merge"]["commits"] / sides["durable"]["commits"], 2)
    for other, goal in (("merge", 10.0), ("durable", 2.0)):
        for one in ("delta", "interval"):
            if {other, one} <= sides.keys():
                result[f"{other}_to_{one}"] = round(sides[other]["seconds"] / sides[one]["seconds"], 2)
                result[f"{other}_to_{one}_goal"] = f"at least {goal}"
    if {"memory", "durable"} <= sides.keys():
        result["memory_to_durable"] = round(sides["memory"]["seconds"] / sides["durable"]["seconds"], 2)
        result["memory_to_durable_goal"] = "at most 1"
    return result


def measure(
    spark: SparkSession, folder: Path, table: str, side: str, files: list[Path], every: int, one_by_one: bool
) -> dict[str, Any]:
    """Run one side over an empty table, and check what it holds.

    Returns:
        Its seconds in all; the commits; the seconds at which each round was in the table; and of a flow the files in its
        buffer's folder before each flush was asked for.
    """
    source = Source(f"events_{table}", folder / f"events_{table}")
    source.create(spark)
    properties = SIDES[side]
    if properties is None:
        take_round, flush, end = by_hand(spark, folder, table, source.name)
    else:
        take_round, flush, end = by_flow(spark, table, source.name, properties)
    began = time.perf_counter()

    def flushed() -> float:
        flush()
        return round(time.perf_counter() - began, 2)

    buffered, flushes = [], []
    with ThreadPoolExecutor(1) as beside:
        for first in range(0, len(files), every):
            source.arrive(*files[first : first + every])
            buffered.append(take_round())
            flushes.append(beside.submit(flushed))
            if one_by_one:
                flushes[-1].result()
        rounds = [each.result() for each in flushes]
    seconds = time.perf_counter() - began
    end()
    check_equal(spark.table(table), spark.sql(QUERY.format(source.name)), table)
    commits = sum(kind in ("MERGE", "WRITE") for kind in operations(table_folder(spark, table)))
    if side in ("memory", "interval"):
        assert not any(buffered), f"files in the buffer's folder: {buffered}"
    print(f"{table}: {seconds:.1f} s, {commits} commits, equal to the batch query", flush=True)
    return {"seconds": round(seconds, 2), "commits": commits, "rounds": rounds, "buffer_files": buffered}


Steps = tuple[Callable[[], int], Callable[[], object], Callable[[], object]]
"""Take a round in, which tells how many files the buffer has; bring it into the table; end the query."""


def by_hand(spark: SparkSession, folder: Path, table: str, source: str) -> Steps:
    """A MERGE for each micro-batch, with a flow's own settings for state and polling; checkpoints are written as Spark does."""
    own = jvm.clone_session(spark)
    sessions.prepare(own, "", lambda: 0)
    # A flow merges from files; here a second look at the source would compute the micro-batch again, so Delta keeps a copy.
    own.conf.unset("spark.databricks.delta.merge.materializeSource")
    own.sql(
        f"CREATE TABLE {table} (k BIGINT, n BIGINT, s BIGINT) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )

    def upsert(frame: DataFrame, _: int) -> None:
        target = DeltaTable.forName(frame.sparkSession, table).alias("t")
        target.merge(frame.alias("s"), "t.k = s.k").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    frame = own.sql(QUERY.format(f"STREAM {source} WITH ('maxFilesPerTrigger' = '1')"))
    writer = frame.writeStream.outputMode("update").foreachBatch(upsert)
    query = writer.option("checkpointLocation", str(folder / f"checkpoint_{table}")).start()

    def take_round() -> int:
        query.processAllAvailable()
        return 0

    return take_round, lambda: None, query.stop


def by_flow(spark: SparkSession, table: str, source: str, properties: dict[str, str]) -> Steps:
    spark.sql(FLOW_DDL.format(name=table, properties=listed(properties), source=source))
    buffer = Path(flow_of(spark, table)._home.child("buffer").location.removeprefix("file:"))

    def take_round() -> int:
        if properties == SIDES["interval"]:
            spark.sql(f"FLUSH FLOW {table}")
        else:
            take_in(spark, table)
        return sum(1 for path in buffer.rglob("*") if path.is_file())

    return take_round, lambda: spark.sql(f"FLUSH FLOW {table}"), lambda: spark.sql(f"STOP FLOW {table}")


def chart(result: dict[str, Any]) -> alt.HConcatChart:
    """How far each table is, by time; and the commits that took."""
    rounds = [
        {"side": side, "seconds": seconds, "batches": min((number + 1) * result["every"], result["batches"])}
        for side, found in result["sides"].items()
        for number, seconds in enumerate(found["rounds"])
    ]
    starts = [{"side": side, "seconds": 0.0, "batches": 0} for side in result["sides"]]
    color = alt.Color("side:N", title=None, sort=list(result["sides"]))
    progress = (
        alt.Chart(alt.InlineData(values=starts + rounds))
        .mark_line(interpolate="step-after", point=True)
        .encode(
            x=alt.X("seconds:Q", title="seconds"),
            y=alt.Y("batches:Q", title="micro-batches in the table", axis=alt.Axis(tickMinStep=1)),
            color=color,
        )
        .properties(width=420, height=240)
    )
    commits = (
        alt.Chart(alt.InlineData(values=[{"side": side, "commits": found["commits"]} for side, found in result["sides"].items()]))
        .mark_bar()
        .encode(
            x=alt.X("side:N", title=None, sort=list(result["sides"])),
            y=alt.Y("commits:Q", title="commits", axis=alt.Axis(tickMinStep=1)),
            color=color,
        )
        .properties(width=120, height=240)
    )
    title = f"{result['batches']} micro-batches of {result['rows_a_batch']:,} rows, {result['keys']:,} keys"
    return alt.hconcat(progress, commits).properties(title=title)


if __name__ == "__main__":
    main()
