"""A flush of some keys of a large table, beside a MERGE of the same rows into such a table, in one run.

python -m tests.benchmarks.changed_keys                                        20,000 of 10,000,000 keys
python -m tests.benchmarks.changed_keys --keys 1000000 --changed 1000
python -m tests.benchmarks.changed_keys --keys 20000 --changed 500 --flushes 2 --result /tmp/changed_keys.json

Two queries: counts and sums by key, where the table is the flow's state; and an average beside them, whose state lies in a table
of its own. Sides of each: `merge`, a MERGE that adds what it computes of a file to a table with deletion vectors. `flush`: FLUSH
FLOW after a micro-batch of the same file, by the flow's own clock, SHOW FLOWS' last flush. `arrival`: that and the micro-batch,
from the file's arrival on. The tables take turns, so that the machine's moods meet all.
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
    BY_COMMAND,
    QUERY,
    Source,
    chart_of_medians,
    check_equal,
    flush,
    listed,
    run_and_save,
    summary,
    write_rows,
)

QUERIES = {"sums": QUERY, "average": QUERY.replace(" FROM", ", avg(v) AS a FROM")}
ADDED = {
    "sums": "t.n = t.n + c.n, t.s = t.s + c.s",
    "average": "t.n = t.n + c.n, t.s = t.s + c.s, t.a = (t.s + c.s) / (t.n + c.n)",
}
GOAL_RATIO = 0.5
SIDES = ("merge", "flush", "arrival")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=10_000_000, help="of each table")
    parser.add_argument("--changed", type=int, default=20_000, help="keys that change between two flushes")
    parser.add_argument("--flushes", type=int, default=7, help="of each table; the first is not counted")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    run_and_save(run, chart, parser.parse_args(arguments))


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(365)
    sources = {kind: Source(f"events_{kind}", folder / f"events_{kind}") for kind in QUERIES}  # nobody else works on an arrival
    first = folder / "ready" / "first.parquet"
    write_rows(first, random.permutation(given.keys), random)
    for kind, source in sources.items():
        source.create(spark)
        source.arrive(first)
        load(spark, kind, source.name)
    taken: dict[str, dict[str, list[float]]] = {kind: {side: [] for side in SIDES} for kind in QUERIES}
    for number in range(given.flushes):
        changes = folder / "ready" / f"{number:05d}.parquet"
        write_rows(changes, random.choice(given.keys, given.changed, replace=False), random)
        for kind, seconds in taken.items():
            seconds["merge"].append(round(merge(spark, kind, changes), 3))
            began = time.perf_counter()
            sources[kind].arrive(changes)
            seconds["flush"].append(round(flush(spark, f"{kind}_flow"), 3))
            seconds["arrival"].append(round(time.perf_counter() - began, 3))
            print(f"{kind}: {', '.join(f'{side} {values[-1]:.2f} s' for side, values in seconds.items())}", flush=True)
    for kind, query in QUERIES.items():
        spark.sql(f"STOP FLOW {kind}_flow")
        spark.catalog.refreshTable(sources[kind].name)  # whose files were listed when the tables were made
        for table in (f"{kind}_merge", f"{kind}_flow"):
            check_equal(spark.table(table), spark.sql(query.format(sources[kind].name)), table)
    shape = {"keys": given.keys, "changed": given.changed, "goal": f"at most {GOAL_RATIO}"}
    return {**shape, "queries": {kind: summary(seconds) for kind, seconds in taken.items()}}


def load(spark: SparkSession, kind: str, source: str) -> None:
    """Both tables of a query, with all keys."""
    query = QUERIES[kind]
    vectors = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    spark.sql(f"CREATE TABLE {kind}_merge USING delta {vectors} AS {query.format(source)}")
    stream = f"STREAM {source} WITH ('maxFilesPerTrigger' = '1')"
    spark.sql(f"CREATE STREAMING TABLE {kind}_flow TBLPROPERTIES ({listed(BY_COMMAND)}) AS {query.format(stream)}")
    print(f"{kind}: {flush(spark, f'{kind}_flow'):.1f} s for the first flush", flush=True)


def merge(spark: SparkSession, kind: str, changes: Path) -> float:
    """What one would write by hand; its seconds."""
    began = time.perf_counter()
    spark.sql(
        f"MERGE INTO {kind}_merge t USING ({QUERIES[kind].format(f'parquet.`{changes}`')}) c ON t.k = c.k"
        f" WHEN MATCHED THEN UPDATE SET {ADDED[kind]} WHEN NOT MATCHED THEN INSERT *"
    )
    return time.perf_counter() - began


def chart(result: dict[str, Any]) -> alt.FacetChart:
    title = f"{result['changed']:,} of {result['keys']:,} keys"
    return chart_of_medians(result["queries"], title)


if __name__ == "__main__":
    main()
