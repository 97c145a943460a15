"""Nexmark's queries as flows into Delta tables, beside the same as batch queries over the same files, in one run.

python -m tests.benchmarks.nexmark                                          5,000,000 events in 8 files, all queries
python -m tests.benchmarks.nexmark --events 500000 --queries q0 q5 q18 --result /tmp/nexmark.json
python -m tests.benchmarks.nexmark --queries q5 q8 --watermark '4 seconds' --backends delta rocksdb --result /tmp/windows.json
                                                                            the same windows with both state backends

A flow takes one file of each table in a micro-batch, and is done when WAIT FLOW says so: creation, all micro-batches and flushes
count. Each of its tables must equal the batch query's; q12's windows are of processing time, so only its counts must. Goal: no
query takes more than 6 times its batch query.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.benchmarks.common import in_folder, save
from tests.benchmarks.nexmark.generator import TABLES, write

TEXTS = {
    file.stem: file.read_text()
    for file in sorted(Path(__file__).with_name("queries").glob("q*.sql"), key=lambda f: int(f.stem[1:]))
}
STREAM = "STREAM {} WITH ('maxFilesPerTrigger' = '1')"
INTERVAL = "'execution.flush.max-interval' = '10 seconds'"
PARTITIONS = {"q10": "PARTITIONED BY (dt, hm)"}
BY_ARRIVAL = {"q12": "SELECT bidder, sum(bid_count) AS bid_count FROM {} GROUP BY bidder"}
GOAL_RATIO = 6.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=8, help="of each table; a micro-batch takes one")
    parser.add_argument("--queries", nargs="*", default=[*TEXTS], choices=[*TEXTS])
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--watermark", default="", help="the delay of every stream's watermark; without it, there is none")
    parser.add_argument("--backends", nargs="+", default=["auto"], choices=["auto", "delta", "rocksdb"], help="of the state")
    parser.add_argument("--result", type=Path, default=Path(__file__).parents[1] / "nexmark.json")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp())
    write(folder / "events", given.events, given.files, given.seed)
    result = in_folder(folder, lambda spark: run(spark, folder, given))
    save(result, chart(result), given.result)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    for name in TABLES:
        spark.sql(f"CREATE TABLE {name} USING parquet LOCATION '{folder / 'events' / name}'")
    spark.sql("CREATE TABLE side_input USING parquet AS SELECT id AS key, concat('value ', id) AS value FROM range(10000)")
    for name in ("q0", given.queries[0]):  # what Java compiles for every query counts for none
        one_query(spark, name, given)
    found = {}
    for name in given.queries:
        found[name] = one_query(spark, name, given)
        print(name, found[name], flush=True)
    cores = spark.sparkContext.defaultParallelism
    for each in found.values():
        if "flow" in each:
            each["events a second and core"] = round(given.events / each["flow"] / cores)
    return {"events": given.events, "micro-batches": given.files, "goal": GOAL_RATIO, "queries": found}


def one_query(spark: SparkSession, name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the batch query and of the flow, and their ratio; or why the flow was refused.

    With several state backends, those of the first are the flow's, and the others' follow under their names.
    """
    batch = TEXTS[name].format(**{table: table for table in TABLES})
    late = f" WATERMARK dateTime DELAY OF INTERVAL {given.watermark}" if given.watermark else ""
    flow = TEXTS[name].format(**{table: STREAM.format(table) + late for table in TABLES})
    in_batch = timed(spark, f"CREATE TABLE {name}_batch USING delta AS {batch}")
    try:
        as_flow, *others = [one_flow(spark, name, flow, backend) for backend in given.backends]
    except PySparkException as error:
        return {"batch": round(in_batch, 2), "refused": str(error).strip().splitlines()[0]}
    finally:
        spark.sql(f"DROP TABLE {name}_batch")
    found = {"batch": round(in_batch, 2), "flow": round(as_flow, 2), "ratio": round(as_flow / in_batch, 2)}
    return found | {backend: round(seconds, 2) for backend, seconds in zip(given.backends[1:], others, strict=True)}


def one_flow(spark: SparkSession, name: str, flow: str, backend: str) -> float:
    """Seconds of a flow with one state backend, until all is in its table."""
    started = time.monotonic()
    properties = f"TBLPROPERTIES ({INTERVAL}, 'state.backend.type' = '{backend}')"
    spark.sql(f"CREATE STREAMING TABLE {name}_flow {PARTITIONS.get(name, '')} {properties} AS {flow}")
    spark.sql(f"WAIT FLOW {name}_flow TIMEOUT 30 minutes")
    seconds = time.monotonic() - started
    check(spark, name)
    spark.sql(f"DROP STREAMING TABLE {name}_flow")
    return seconds


def check(spark: SparkSession, name: str) -> None:
    """Raise AssertionError unless both tables have the same rows, each as often: by their number and the sum of their hashes."""
    shape = BY_ARRIVAL.get(name, "SELECT * FROM {}")
    sides = []
    for side in ("flow", "batch"):
        rows = spark.sql(shape.format(f"{name}_{side}"))
        sides.append(rows.selectExpr("xxhash64(*) AS h").selectExpr("count(*)", "sum(CAST(h AS DECIMAL(38, 0)))").first())
    assert sides[0] == sides[1], f"{name}: the flow's table is not the batch query's: {sides}"


def timed(spark: SparkSession, statement: str) -> float:
    started = time.monotonic()
    spark.sql(statement)
    return time.monotonic() - started


def chart(result: dict[str, Any]) -> alt.LayerChart | alt.FacetChart:
    """Seconds of both sides by query."""
    rows = [
        {"query": name, "side": side, "seconds": each[side]}
        for name, each in result["queries"].items()
        for side in ("batch", "flow")
        if side in each
    ]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("query:N", sort=[*result["queries"]], title=None),
            xOffset="side:N",
            y=alt.Y("seconds:Q", title="seconds"),
            color=alt.Color("side:N", title=None),
        )
    )
    return alt.layer(bars).properties(title=f"Nexmark, {result['events']:,} events, {result['micro-batches']} micro-batches")


if __name__ == "__main__":
    main()
