"""What a flush of new distinct values costs in a large group: as rows, and in one cell.

python -m tests.benchmarks.distinct_values                                             1,000,000 values, 10,000 new ones a flush
python -m tests.benchmarks.distinct_values --values 10000000 --memory 2g --only rows   then --only cells: a heap for one of them
python -m tests.benchmarks.distinct_values --values 2000 --new 500 --flushes 2 --result /tmp/distinct.json

Two flows over one table, one group: `count(DISTINCT v)`, whose values are rows, and `size(collect_set(v))`, which stays in one
cell. Both take in all values in one micro-batch. Then flushes in turn, so that the machine's moods meet both: each one after a
micro-batch of new values, and half as many known ones. The time is the flow's own, SHOW FLOWS' last flush.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sqlext.options import STATE_BACKEND
from tests.benchmarks.common import BY_COMMAND, flow_of, in_folder, listed, machine, take_in

FLOWS = {"rows": "count(DISTINCT v)", "cells": "size(collect_set(v))"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--values", type=int, default=1_000_000, help="values of the first micro-batch")
    parser.add_argument("--new", type=int, default=10_000, help="new values between two flushes")
    parser.add_argument("--flushes", type=int, default=7, help="of each flow; the first is not counted")
    parser.add_argument("--only", choices=tuple(FLOWS), help="one of the flows alone")
    parser.add_argument("--memory", default="4g", help="Java's heap, for all of Spark and both flows")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    result = in_folder(Path(tempfile.mkdtemp()), lambda spark: run(spark, given), memory=given.memory)
    text = json.dumps({**result, "machine": machine()}, indent=2)
    print(text)
    given.result.write_text(text + "\n", encoding="utf-8")


def run(spark: SparkSession, given: argparse.Namespace) -> dict[str, Any]:
    names = [given.only] if given.only else list(FLOWS)
    properties = listed({**BY_COMMAND, STATE_BACKEND.key: "delta"})
    spark.sql("CREATE TABLE visits (day DATE, v BIGINT) USING delta")
    insert(spark, 0, given.values)
    first, seconds = dict[str, float](), {name: list[float]() for name in names}
    for name in names:
        query = f"SELECT day, {FLOWS[name]} AS n, count(*) AS visits FROM STREAM visits GROUP BY day"
        spark.sql(f"CREATE STREAMING TABLE {name} TBLPROPERTIES ({properties}) AS {query}")
        first[name] = flush(spark, name)
        print(f"{name}: {first[name]:.1f} s for the first flush, of {given.values:,} values", flush=True)
    for number in range(given.flushes):
        begin = given.values + number * given.new
        insert(spark, begin - given.new // 2, begin + given.new)
        for name in names:
            seconds[name].append(flush(spark, name))
            print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    expected = spark.sql("SELECT day, count(DISTINCT v), count(*) FROM visits GROUP BY day").collect()
    for name in names:
        assert spark.table(name).collect() == expected, name
        spark.sql(f"STOP FLOW {name}")
    median = {name: round(statistics.median(taken[1:]), 3) for name, taken in seconds.items()}  # the first compiles code
    return {
        "values": given.values,
        "new": given.new,
        "memory": given.memory,
        "first_seconds": first,
        "seconds": seconds,
        "median_seconds": median,
        "ratio": None if given.only else round(median["cells"] / median["rows"], 2),
    }


def insert(spark: SparkSession, begin: int, end: int) -> None:
    """Add a row for each of some numbers, whose values are in no order."""
    spark.sql(f"INSERT INTO visits SELECT DATE'2026-01-01', xxhash64(id) FROM range({begin}, {end}, 1, 4)")


def flush(spark: SparkSession, name: str) -> float:
    """Take in what has arrived, flush it; the flush's seconds."""
    take_in(spark, name)
    spark.sql(f"FLUSH FLOW {name}")
    return round(flow_of(spark, name).status()[1].last_flush_seconds, 3)


if __name__ == "__main__":
    main()
