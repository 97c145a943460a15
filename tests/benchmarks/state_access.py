"""FLIP-140's microbenchmark of state: the same keyed function on the single-key backend and on transformWithState, in one run.

python -m tests.benchmarks.state_access
python -m tests.benchmarks.state_access --rows 2000 --keys 100 --result /tmp/state.json

Sides: `single key`, process_keyed over a batch; `transformWithState`, the same over a stream, on RocksDB, in one micro-batch.
The function measures itself, around its accesses only, so neither the way of the rows to Python nor the sort is in the figures.
As Flink's `ValueStateBenchmark` has it: `add` writes the first value of a key, `get` reads, `update` writes over a value.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.sql import Row, SparkSession

import sqlext
from sqlext.spark import sessions
from tests.benchmarks.common import run_and_save

GOAL = 10
RETURNS = "operation STRING, accesses BIGINT, seconds DOUBLE"


class Accesses(sqlext.KeyedProcessFunction):
    """Of each row's key, adds a value if it is the key's first row, and then reads and writes it over and over.

    Args:
        times: a row.
    """

    def __init__(self, times: int) -> None:
        self.times = times

    def open(self, runtime_context: sqlext.RuntimeContext) -> None:
        self.value = runtime_context.get_value_state("value", "n BIGINT")

    def process_element(self, row: Row, context: sqlext.KeyedContext) -> Iterator[tuple[str, int, float]]:
        value, numbers = self.value, range(self.times)
        if row.is_first:
            began = time.perf_counter()
            value.update(0)
            yield "add", 1, time.perf_counter() - began
        began = time.perf_counter()
        for _ in numbers:
            value.value()
        yield "get", self.times, time.perf_counter() - began
        began = time.perf_counter()
        for number in numbers:
            value.update(number)
        yield "update", self.times, time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--times", type=int, default=20, help="reads, and writes, a row")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    sessions.prepare(spark, "", lambda: 0)
    files, checkpoint = str(folder / "rows"), str(folder / "checkpoint")
    numbers = spark.range(0, given.rows, 1, 2)
    numbers.selectExpr(f"id % {given.keys} AS k", "id AS at", f"id < {given.keys} AS is_first").write.parquet(files)
    batch = spark.read.parquet(files)
    stream = spark.readStream.schema(batch.schema).parquet(files)
    function = Accesses(given.times)
    bounded = sqlext.process_keyed(batch.groupBy("k"), function, RETURNS, order_by="at")
    sides = {"single key": nanoseconds(bounded.collect())}
    print(sides, flush=True)
    endless = sqlext.process_keyed(stream.groupBy("k"), function, RETURNS, order_by="at")
    writer = endless.writeStream.format("memory").queryName("found").outputMode("append")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    sides["transformWithState"] = nanoseconds(spark.table("found").collect())
    ratios = {name: round(sides["transformWithState"][name] / sides["single key"][name], 1) for name in sides["single key"]}
    return {
        "rows": given.rows,
        "keys": given.keys,
        "accesses_a_row": given.times,
        "nanoseconds_an_access": sides,
        "ratio": ratios,
        "ratio_goal": f"at least {GOAL}",
    }


def nanoseconds(found: list[Row]) -> dict[str, float]:
    """The mean of an access, by operation."""
    result = {}
    for name in ("add", "get", "update"):
        mine = [row for row in found if row.operation == name]
        result[name] = round(sum(row.seconds for row in mine) / sum(row.accesses for row in mine) * 1e9, 1)
    return result


def chart(result: dict[str, Any]) -> alt.FacetChart:
    """Nanoseconds an access of each side, by operation."""
    values = [
        {"operation": name, "side": side, "nanoseconds": value}
        for side, found in result["nanoseconds_an_access"].items()
        for name, value in found.items()
    ]
    bars = (
        alt.Chart(alt.InlineData(values=values))
        .mark_bar()
        .encode(
            x=alt.X("side:N", title=None),
            y=alt.Y("nanoseconds:Q", title="nanoseconds an access").scale(type="log"),
            color=alt.Color("side:N", legend=None),
        )
    )
    faceted: alt.FacetChart = bars.properties(width=160, height=240).facet(column=alt.Column("operation:N"))
    return faceted


if __name__ == "__main__":
    main()
