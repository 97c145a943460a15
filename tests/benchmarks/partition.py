"""Full-partition processing against what Spark does by itself, over the same Parquet file, side by side.

python -m tests.benchmarks.partition
python -m tests.benchmarks.partition --rows 100000 --runs 1 --result /tmp/partition.json
python -m tests.benchmarks.partition --bytes-per-batch 2147483647     no limit, so Spark does not look for it at each row

Each pair takes turns, and the fastest run of each side counts. Goals: map_partition with an Arrow identity function at most 1.05
times mapInArrow; sort_partition at most 1.05 times sortWithinPartitions, with a key selector at most 2 times; aggregate with an
Arrow-batch function not slower than the same function by groupBy(spark_partition_id()). What no function in Python can reach
stands beside that, without a goal: count(*) and sum(v), which Spark compiles, by groupBy(spark_partition_id()).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import sqlext
from sqlext import full_window_partition
from tests.benchmarks.common import in_folder, save, write_rows

FILES = 4
GOALS = {
    "map_partition": 1.05,
    "sort_partition": 1.05,
    "sort_partition by selector": 2.0,
    "aggregate": 1.0,
    "aggregate, built-in": None,
}
"""The most that each may take, as a multiple of Spark's own."""


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def key(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("v")


class Sum(sqlext.AggregateFunction):
    """Count of rows and sum of `v`."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, accumulator: tuple[int, int], value: pa.RecordBatch) -> tuple[int, int]:
        return accumulator[0] + value.num_rows, accumulator[1] + (pc.sum(value.column("v")).as_py() or 0)

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator


def sum_of_group(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, as Spark's applyInArrow takes it."""
    function = Sum()
    accumulator = function.create_accumulator()
    for batch in batches:
        accumulator = function.add(accumulator, batch)
    count, total = function.get_result(accumulator)
    yield pa.RecordBatch.from_pydict({"n": [count], "s": [total]})


def pairs(frame: DataFrame) -> dict[str, tuple[DataFrame, DataFrame]]:
    """Ours and Spark's own, by the name of the goal."""
    window = full_window_partition(frame)
    # The function reads `v` only, as Spark's own aggregate does; Spark leaves the other columns out by itself.
    ours = full_window_partition(frame.select("v")).aggregate(Sum(), "n BIGINT, s BIGINT")
    by_partition = frame.select("v").groupBy(F.spark_partition_id().alias("p"))
    built_in = by_partition.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("n", "s")
    sorted_by_spark = frame.sortWithinPartitions("v")
    return {
        "map_partition": (window.map_partition(identity, frame.schema), frame.mapInArrow(identity, frame.schema)),
        "sort_partition": (window.sort_partition("v"), sorted_by_spark),
        "sort_partition by selector": (window.sort_partition(key, key_type="BIGINT"), sorted_by_spark),
        "aggregate": (ours, by_partition.applyInArrow(sum_of_group, "n BIGINT, s BIGINT")),
        "aggregate, built-in": (ours, built_in),
    }


def seconds(frame: DataFrame) -> float:
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def fastest(ours: DataFrame, spark_own: DataFrame, runs: int) -> tuple[float, float]:
    """The fastest of the runs that take turns; one run of each comes before, for the JIT and Python's workers."""
    seconds(ours), seconds(spark_own)
    taken = [(seconds(ours), seconds(spark_own)) for _ in range(runs)]
    return min(one for one, _ in taken), min(other for _, other in taken)


def measure(spark: SparkSession, folder: Path, rows: int, runs: int, limit: int | None) -> dict[str, Any]:
    if limit is not None:
        spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(limit))
    random = np.random.default_rng(380)
    for number in range(FILES):
        write_rows(folder / "input" / f"{number}.parquet", random.integers(0, rows, rows // FILES), random)
    frame = spark.read.parquet(str(folder / "input"))
    bytes_per_batch = spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch")
    found = {}
    for name, (ours, spark_own) in pairs(frame).items():
        if name.startswith("aggregate"):
            assert sorted(ours.collect()) == sorted(spark_own.collect()), "the aggregates differ"
        own, other = fastest(ours, spark_own, runs)
        found[name] = {"sqlext_s": round(own, 2), "spark_s": round(other, 2), "ratio": round(own / other, 3), "goal": GOALS[name]}
    partitions = frame.rdd.getNumPartitions()
    return {"rows": rows, "partitions": partitions, "runs": runs, "bytes_per_batch": bytes_per_batch, "results": found}


def chart(results: dict[str, dict[str, float]]) -> alt.LayerChart | alt.FacetChart:
    values = alt.InlineData(values=[{"operator": name, **result} for name, result in results.items() if result["goal"]])
    operator = alt.Y("operator:N", title=None)
    ratio = alt.X("ratio:Q", title="time, as a multiple of Spark's own")
    bars = alt.Chart(values).mark_bar().encode(x=ratio, y=operator)
    goals = alt.Chart(values).mark_tick(color="black", thickness=2).encode(x="goal:Q", y=operator)
    return alt.layer(bars, goals).properties(title="Full-partition processing; ticks are the goals")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=5, help="of each side, after one that is not counted")
    parser.add_argument("--bytes-per-batch", type=int, help="on the way to Python; Spark's own limit if not given")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    result = in_folder(folder, lambda spark: measure(spark, folder, given.rows, given.runs, given.bytes_per_batch))
    save(result, chart(result["results"]), given.result)


if __name__ == "__main__":
    main()
