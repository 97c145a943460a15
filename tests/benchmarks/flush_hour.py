"""What a flush costs at the end of an hour of arrivals against its beginning, in one run.

python -m tests.benchmarks.flush_hour                       5,000 rows every 10 seconds, flushed each minute, state in Delta
python -m tests.benchmarks.flush_hour --state rocksdb
python -m tests.benchmarks.flush_hour --keys 3000000        a table too large to be written anew at each flush
python -m tests.benchmarks.flush_hour --minutes 10 --warm-up 1 --rows 500 --result /tmp/hour.json

The hour is a virtual one: its files lie ready, arrive one after the other as micro-batches of their own, and FLUSH FLOW comes
where a minute ends. All keys come first. Flushes before the hour, until Java has compiled them, are not counted. The compaction
that may follow a flush counts as its own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from pyspark.sql import SparkSession

from sqlext.execution.flows.flush import FlushReason
from sqlext.options import STATE_BACKEND
from tests.benchmarks.common import (
    BY_COMMAND,
    FLOW_DDL,
    QUERY,
    Source,
    check_equal,
    flow_of,
    listed,
    run_and_save,
    take_in,
    write_rows,
)

GOAL_RATIO = 1.2
ARRIVALS_A_MINUTE = 6
NAME = "totals"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60, help="of virtual time; ten or more")
    parser.add_argument("--warm-up", type=int, default=15, help="minutes before those")
    parser.add_argument("--rows", type=int, default=5_000, help="of each arrival")
    parser.add_argument("--keys", type=int, default=20_000, help="of the table")
    parser.add_argument("--state", choices=("rocksdb", "delta"), default="delta", help="state.backend.type")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(365)
    source = Source("events", folder / "events")
    source.create(spark)
    properties = listed({**BY_COMMAND, STATE_BACKEND.key: given.state})
    spark.sql(FLOW_DDL.format(name=NAME, properties=properties, source=source.name))
    first = folder / "ready" / "first.parquet"
    write_rows(first, random.permutation(given.keys), random)
    source.arrive(first)
    flush(spark)
    seconds = []
    for minute in range(-given.warm_up, given.minutes):
        for arrival in range(ARRIVALS_A_MINUTE):
            file = folder / "ready" / f"{minute + given.warm_up:05d}-{arrival}.parquet"
            write_rows(file, random.integers(0, given.keys, given.rows), random)
            source.arrive(file)
            take_in(spark, NAME)
        seconds.append(round(flush(spark), 3))
        print(f"minute {minute}: {seconds[-1]:.2f} s", flush=True)
    spark.sql(f"STOP FLOW {NAME}")
    check_equal(spark.table(NAME), spark.sql(QUERY.format(source.name)), NAME)
    return outcome(seconds[given.warm_up :], given)


def flush(spark: SparkSession) -> float:
    """Flush what was taken in; the seconds of it, and of the compaction after it."""
    take_in(spark, NAME)
    began = time.perf_counter()
    spark.sql(f"FLUSH FLOW {NAME}")
    flusher = flow_of(spark, NAME)._flusher
    assert flusher.wait(flusher.ask(FlushReason.COMMAND), 300), "the compaction does not end"  # finds nothing after it
    return time.perf_counter() - began


def outcome(seconds: Sequence[float], given: argparse.Namespace) -> dict[str, Any]:
    tenth = len(seconds) // 10
    means = {"first tenth": statistics.mean(seconds[:tenth]), "last tenth": statistics.mean(seconds[-tenth:])}
    return {
        "minutes": given.minutes,
        "rows_an_arrival": given.rows,
        "keys": given.keys,
        "state": given.state,
        "seconds": list(seconds),
        "mean_seconds": {name: round(value, 3) for name, value in means.items()},
        "ratio": round(means["last tenth"] / means["first tenth"], 2),
        "ratio_goal": f"at most {GOAL_RATIO}",
    }


def chart(result: dict[str, Any]) -> alt.LayerChart | alt.FacetChart:
    """Each flush as a point, the means of the first and last tenth as lines."""
    points = [{"minute": minute, "seconds": taken} for minute, taken in enumerate(result["seconds"], 1)]
    count = len(points)
    first, last = (result["mean_seconds"][name] for name in ("first tenth", "last tenth"))
    means = [
        {"from": 1, "to": count // 10, "seconds": first},
        {"from": count - count // 10 + 1, "to": count, "seconds": last},
    ]
    y = alt.Y("seconds:Q", title="seconds a flush", scale=alt.Scale(zero=True))
    dots = alt.Chart(alt.InlineData(values=points)).mark_circle(size=40, opacity=0.6)
    lines = alt.Chart(alt.InlineData(values=means)).mark_rule(strokeWidth=3, color="black")
    return alt.layer(
        dots.encode(x=alt.X("minute:Q", title="minute of the hour"), y=y),
        lines.encode(x="from:Q", x2="to:Q", y=y),
    ).properties(width=480, height=220, title=f"{result['keys']:,} keys, state in {result['state']}")


if __name__ == "__main__":
    main()
