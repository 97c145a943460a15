"""What a flush costs when its table grows tenfold and as many keys change, in one run.

python -m tests.benchmarks.flush_growth                    100,000 and 1,000,000 keys
python -m tests.benchmarks.flush_growth --keys 1000000     1,000,000 and 10,000,000 keys
python -m tests.benchmarks.flush_growth --state delta --growth 100 --changed 50000 --memory 1g    100,000 and 10,000,000 keys
python -m tests.benchmarks.flush_growth --keys 2000 --changed 500 --flushes 3 --result /tmp/growth.json

Two flows, each over a source of its own, take in all keys in one large micro-batch. Then flushes in turn, so that the machine's
moods meet both: each one after a micro-batch of as many random keys. The time is the flow's own, SHOW FLOWS' last flush. What
either needs of memory is within `--memory`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from pyspark.sql import SparkSession

from sqlext.options import STATE_BACKEND
from tests.benchmarks.common import (
    BY_COMMAND,
    FLOW_DDL,
    QUERY,
    Source,
    check_equal,
    flush,
    in_folder,
    listed,
    save,
    write_rows,
)

GOAL_RATIOS = {"rocksdb": 1.5, "delta": 2.0}
NAMES = ("small", "large")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the smaller table")
    parser.add_argument("--growth", type=int, default=10, help="how many times more the other has")
    parser.add_argument("--state", choices=("rocksdb", "delta"), default="rocksdb", help="state.backend.type")
    parser.add_argument("--changed", type=int, default=20_000, help="keys that change between two flushes")
    parser.add_argument("--flushes", type=int, default=7, help="of each table; the first is not counted")
    parser.add_argument("--memory", default="4g", help="Java's heap, for all of Spark and both flows")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp())
    result = in_folder(folder, lambda spark: run(spark, folder, given), memory=given.memory)
    save(result, chart(result), given.result)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(365)
    keys = dict(zip(NAMES, (given.keys, given.keys * given.growth), strict=True))
    sources = {name: Source(f"events_{name}", folder / f"events_{name}") for name in NAMES}
    properties = listed({**BY_COMMAND, STATE_BACKEND.key: given.state})
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for name, source in sources.items():
        source.create(spark)
        spark.sql(FLOW_DDL.format(name=name, properties=properties, source=source.name))
        first = folder / "ready" / f"{name}.parquet"
        write_rows(first, random.permutation(keys[name]), random)
        source.arrive(first)
        print(f"{name}: {flush(spark, name):.1f} s for the first flush, of {keys[name]:,} keys", flush=True)
    for number in range(given.flushes):
        for name, source in sources.items():
            changes = folder / "ready" / f"{name}-{number:05d}.parquet"
            write_rows(changes, random.choice(keys[name], given.changed, replace=False), random)
            source.arrive(changes)
            seconds[name].append(round(flush(spark, name), 3))
            print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
    for name, source in sources.items():
        spark.sql(f"STOP FLOW {name}")
        check_equal(spark.table(name), spark.sql(QUERY.format(source.name)), name)
    median = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}  # the first compiles code for both
    return {
        "keys": keys,
        "changed": given.changed,
        "state": given.state,
        "memory": given.memory,
        "seconds": seconds,
        "median_seconds": {name: round(value, 3) for name, value in median.items()},
        "ratio": round(median["large"] / median["small"], 2),
        "ratio_goal": f"at most {GOAL_RATIOS[given.state]}",
    }


def chart(result: dict[str, Any]) -> alt.LayerChart | alt.FacetChart:
    """Each flush as a point, the median as a line."""
    size = {name: f"{result['keys'][name]:,} keys" for name in NAMES}
    points = [{"table": size[name], "seconds": taken} for name in NAMES for taken in result["seconds"][name][1:]]
    medians = [{"table": size[name], "seconds": result["median_seconds"][name]} for name in NAMES]
    table = alt.X("table:N", title=None, sort=list(size.values()), axis=alt.Axis(labelAngle=0))
    seconds = alt.Y("seconds:Q", title="seconds a flush", scale=alt.Scale(zero=True))
    dots = alt.Chart(alt.InlineData(values=points)).mark_circle(size=60, opacity=0.5).encode(x=table, y=seconds)
    lines = alt.Chart(alt.InlineData(values=medians)).mark_tick(thickness=3, width=60, color="black").encode(x=table, y=seconds)
    return alt.layer(dots, lines).properties(width=300, height=240, title=f"{result['changed']:,} changed keys a flush")


if __name__ == "__main__":
    main()
