"""FLIP-140's WordCount: a bounded aggregate, sorted, against the same SQL as a stream and as Spark's own batch query, in one run.

python -m tests.benchmarks.end_of_stream                          40,000,000 records, 4,000,000 random keys
python -m tests.benchmarks.end_of_stream --records 4000000 --keys 400000 --no-stream
python -m tests.benchmarks.end_of_stream --skew 0.25              one key has a quarter of the records

Sides, each for integer and for string keys: `stream`, 10 micro-batches on RocksDB state; `hash`, Spark's own batch query;
`sorted`, GLOBAL WINDOW END OF STREAM. All read the same Parquet files and write nothing. What Java's heap held at most is printed
for each side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.sql import SparkSession

from sqlext.spark import jvm, sessions
from tests.benchmarks.common import check_equal, run_and_save

MICRO_BATCHES = 10
QUERY = "SELECT k, count(*) AS n FROM {} GROUP BY k"
KEYS = {"integer": "k", "string": "concat('key-', k)"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=40_000_000)
    parser.add_argument("--keys", type=int, default=4_000_000, help="keys they are drawn from")
    parser.add_argument("--skew", type=float, default=0.0, help="the part of all records that one key has")
    parser.add_argument("--no-stream", action="store_true", help="leave the stream out, which takes by far the longest")
    parser.add_argument("--partitions", type=int, default=8, help="of the exchange, for all sides")
    parser.add_argument("--runs", type=int, default=2, help="of the batch sides; the fastest counts")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    spark.conf.set("spark.sql.shuffle.partitions", str(given.partitions))
    # A split of the input for each core, on all batch sides: of two cores, three splits leave one idle for a quarter of the time.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1g")
    kinds: dict[str, Any] = {}
    for kind, key in KEYS.items():
        write(spark, folder / kind, key, given)
        spark.sql(f"CREATE TABLE words_{kind} USING parquet LOCATION '{folder / kind}'")
        kinds[kind] = measure(spark, folder, f"words_{kind}", given)
    return {"records": given.records, "keys": given.keys, "skew": given.skew, "partitions": given.partitions, "key types": kinds}


def write(spark: SparkSession, folder: Path, key: str, given: argparse.Namespace) -> None:
    """As many files as there are micro-batches."""
    drawn = f"IF(rand(2) < {given.skew}, -1, CAST(rand(1) * {given.keys} AS BIGINT))"
    frame = spark.range(0, given.records, 1, MICRO_BATCHES).selectExpr(f"{drawn} AS k").selectExpr(f"{key} AS k")
    frame.write.parquet(str(folder))


def measure(spark: SparkSession, folder: Path, table: str, given: argparse.Namespace) -> dict[str, Any]:
    batch = QUERY.format(table)
    bounded = f"{QUERY.format(f'STREAM {table}')} GLOBAL WINDOW END OF STREAM"
    check_equal(spark.sql(bounded), spark.sql(batch), "sorted")  # compiles both, too
    sides: dict[str, Any] = {}
    for side, text in (("hash", batch), ("sorted", bounded)):
        runs = [timed(spark, partial(discard, spark, text)) for _ in range(given.runs)]
        sides[side] = min(runs, key=lambda each: float(each["seconds"]))
        print(f"{table} {side}: {sides[side]}", flush=True)
    result = {"sides": sides, "sorted_to_hash": ratio(sides, "sorted", "hash"), "sorted_to_hash_goal": "at most 1.5"}
    if not given.no_stream:
        sides["stream"] = timed(spark, lambda: stream(spark, folder / f"checkpoint_{table}", table))
        print(f"{table} stream: {sides['stream']}", flush=True)
        result |= {"stream_to_sorted": ratio(sides, "stream", "sorted"), "stream_to_sorted_goal": "at least 10"}
    return result


def ratio(sides: dict[str, Any], one: str, other: str) -> float:
    return round(float(sides[one]["seconds"]) / float(sides[other]["seconds"]), 2)


def discard(spark: SparkSession, query: str) -> None:
    spark.sql(query).write.format("noop").mode("overwrite").save()


def stream(spark: SparkSession, checkpoint: Path, table: str) -> None:
    own = jvm.clone_session(spark)
    sessions.prepare(own, "", lambda: 0)
    frame = own.sql(QUERY.format(f"STREAM {table} WITH ('maxFilesPerTrigger' = '1')"))
    writer = frame.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress is not None
    assert query.lastProgress.batchId == MICRO_BATCHES - 1


def timed(spark: SparkSession, action: Callable[[], None]) -> dict[str, float]:
    """Seconds, and the most that the heap held meanwhile, in MB."""
    java: Any = spark.sparkContext._jvm
    java.System.gc()
    pools = [
        pool
        for pool in java.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        if str(pool.getType()) == "Heap memory"
    ]
    for pool in pools:
        pool.resetPeakUsage()
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 2), "peak_heap_mb": sum(pool.getPeakUsage().getUsed() for pool in pools) // 2**20}


def chart(result: dict[str, Any]) -> alt.FacetChart:
    """Seconds of each side, by type of key."""
    values = [
        {"key type": kind, "side": side, "seconds": found["seconds"]}
        for kind, each in result["key types"].items()
        for side, found in each["sides"].items()
    ]
    bars = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar()
        .encode(
            x=alt.X("side:N", title=None, sort=["hash", "sorted", "stream"]),
            y=alt.Y("seconds:Q"),
            color=alt.Color("side:N", legend=None),
        )
    )
    title = f"{result['records']:,} records, {result['keys']:,} keys"
    faceted: alt.FacetChart = (
        bars.properties(width=160, height=240).facet(column=alt.Column("key type:N")).properties(title=title)
    )
    return faceted


if __name__ == "__main__":
    main()
