"""What a flow's first load takes, beside CREATE TABLE .. AS of the same query over the same files, in one run.

python -m tests.benchmarks.first_load                          10,000,000 rows with 1,000,000 keys in 8 files
python -m tests.benchmarks.first_load --rows 8000000
python -m tests.benchmarks.first_load --rows 80000 --keys 8000 --runs 1 --result /tmp/first_load.json

Two queries: counts and sums by key, and the rows as they are. Sides of each: `batch`, CREATE TABLE .. AS. `one`: a flow that
takes all files in one micro-batch. `each`: a flow with a micro-batch for each file. Flows flush every ten seconds. A flow's
clock starts with its CREATE and stops when WAIT FLOW says that all is in its table. The sides take turns, so that the machine's
moods meet all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from pyspark.sql import SparkSession

from tests.benchmarks.common import (
    QUERY,
    Source,
    chart_of_medians,
    check_equal,
    operations,
    run_and_save,
    summary,
    table_folder,
    write_rows,
)

QUERIES = {"aggregate": QUERY, "append": "SELECT k, v FROM {}"}
INTERVAL = "'execution.flush.max-interval' = '10 seconds'"
SIDES = ("batch", "one", "each")
GOALS = {"aggregate": 1.5, "append": 2.0}
"""A flow's seconds to those of the batch."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys they are drawn from")
    parser.add_argument("--files", type=int, default=8, help="that hold them, and micro-batches of `each`")
    parser.add_argument("--runs", type=int, default=3, help="of each side, after one that compiles code")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    run_and_save(run, chart, parser.parse_args(arguments))


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(365)
    source = Source("events", folder / "events")
    source.create(spark)
    for number in range(given.files):
        write_rows(source.folder / f"{number:05d}.parquet", random.integers(0, given.keys, given.rows // given.files), random)
    found = {}
    for kind in QUERIES:
        taken: dict[str, list[float]] = {side: [] for side in SIDES}
        commits = {}
        for _ in range(given.runs + 1):
            for side in SIDES:
                seconds, commits[side] = measure(spark, source.name, kind, side, given.files)
                taken[side].append(round(seconds, 2))
        found[kind] = {**summary(taken), "commits": commits, "goal": GOALS[kind]}
    return {"rows": given.rows, "keys": given.keys, "files": given.files, "queries": found}


def measure(spark: SparkSession, source: str, kind: str, side: str, files: int) -> tuple[float, int]:
    """Make one table, check it, drop it: its seconds, and its commits with rows."""
    name, query = f"{kind}_{side}", QUERIES[kind]
    began = time.perf_counter()
    if side == "batch":
        spark.sql(f"CREATE TABLE {name} USING delta AS {query.format(source)}")
    else:
        stream = f"STREAM {source} WITH ('maxFilesPerTrigger' = '{1 if side == 'each' else files}')"
        spark.sql(f"CREATE STREAMING TABLE {name} TBLPROPERTIES ({INTERVAL}) AS {query.format(stream)}")
        spark.sql(f"WAIT FLOW {name}")
    seconds = time.perf_counter() - began
    folder = table_folder(spark, name)
    commits = sum(operation != "CREATE TABLE" for operation in operations(folder))
    check_equal(spark.table(name), spark.sql(query.format(source)), name)
    spark.sql(f"DROP TABLE {name}" if side == "batch" else f"DROP STREAMING TABLE {name}")
    print(f"{name}: {seconds:.2f} s, {commits} commits, equal to the batch query", flush=True)
    return seconds, commits


def chart(result: dict[str, Any]) -> alt.FacetChart:
    title = f"{result['rows']:,} rows, {result['keys']:,} keys, {result['files']} files"
    return chart_of_medians(result["queries"], title)


if __name__ == "__main__":
    main()
