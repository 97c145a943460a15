"""The cost of constraints on rows: one appending flow without any and with three, of each kind, over the same files, in one run.

python -m tests.benchmarks.constraints                      10 micro-batches of 500,000 rows, each side three times, in turn
python -m tests.benchmarks.constraints --batches 2 --rows 5000 --runs 1 --result /tmp/constraints.json

Sides: `without`; `counted`, `dropped` and `quarantined`: three constraints, by what becomes of the rows that violate them, one in
a thousand. All get the same files, one a micro-batch, and commit them together; the clock stops at the commit.
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
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.benchmarks.common import BY_COMMAND, check_equal, listed, run_and_save, take_in

GOAL_RATIO = 1.05
COLUMNS = "id BIGINT, account BIGINT, amount DOUBLE, currency STRING, at TIMESTAMP"
CONDITIONS = ("amount > 0", "account IS NOT NULL", "currency IN ('EUR', 'USD', 'CHF')")
SIDES = {
    "without": None,
    "counted": "",
    "dropped": "ON VIOLATION DROP ROW",
    "quarantined": "ON VIOLATION QUARANTINE INTO {}_bad",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=10, help="micro-batches")
    parser.add_argument("--rows", type=int, default=500_000, help="rows in each")
    parser.add_argument("--runs", type=int, default=3, help="how often each side runs; the median counts")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(29)
    files = [folder / "ready" / f"{number:05d}.parquet" for number in range(given.batches)]
    for number, file in enumerate(files):
        write(file, number * given.rows, given.rows, random)
    for side in SIDES:  # each side's code is compiled before it is measured
        measure(spark, folder, f"warm_up_{side}", side, files[:2])
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(given.runs):
        for side in SIDES:
            found[side].append(measure(spark, folder, f"{side}_{number}", side, files))
    seconds = {side: round(statistics.median(each), 2) for side, each in found.items()}
    ratios = {f"{side}_to_without": round(seconds[side] / seconds["without"], 3) for side in SIDES if side != "without"}
    shape = {"batches": given.batches, "rows_a_batch": given.rows, "runs": given.runs}
    return {**shape, "sides": {side: {"seconds": each} for side, each in seconds.items()}, **ratios, "goal": GOAL_RATIO}


def write(path: Path, first: int, rows: int, random: np.random.Generator) -> None:
    """A file of payments with the ids from `first` on; one in a thousand has no positive amount."""
    path.parent.mkdir(parents=True, exist_ok=True)
    amounts = np.where(random.random(rows) < 0.001, -1.0, random.random(rows) * 1000 + 0.01)
    columns = {
        "id": pa.array(np.arange(first, first + rows), pa.int64()),
        "account": pa.array(random.integers(0, 100_000, rows), pa.int64()),
        "amount": pa.array(amounts, pa.float64()),
        "currency": pa.array(random.choice(["EUR", "USD", "CHF"], rows)),
        "at": pa.array(np.arange(first, first + rows) * 1000, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), path)


def measure(spark: SparkSession, folder: Path, table: str, side: str, files: list[Path]) -> float:
    """Run one side into an empty table, check what it holds, and return the seconds."""
    arrived = folder / f"events_{table}"
    arrived.mkdir()
    spark.sql(f"CREATE TABLE events_{table} ({COLUMNS}) USING parquet LOCATION '{arrived}'")
    violation = SIDES[side]
    constraints = ", ".join(
        f"CONSTRAINT c{at} EXPECT ({each}) {(violation or '').format(table)}" for at, each in enumerate(CONDITIONS)
    )
    clause = "" if violation is None else f"({constraints})"
    properties = listed(BY_COMMAND)
    stream = f"STREAM events_{table} WITH ('maxFilesPerTrigger' = '1')"
    spark.sql(f"CREATE STREAMING TABLE {table} {clause} TBLPROPERTIES ({properties}) AS SELECT * FROM {stream}")
    began = time.perf_counter()
    for file in files:
        (arrived / file.name).hardlink_to(file)
    take_in(spark, table)
    spark.sql(f"FLUSH FLOW {table}")
    seconds = time.perf_counter() - began
    spark.sql(f"STOP FLOW {table}")
    kept = "true" if not violation else " AND ".join(CONDITIONS)
    check_equal(spark.table(table), spark.sql(f"SELECT * FROM events_{table} WHERE {kept}"), table)
    print(f"{table}: {seconds:.2f} s", flush=True)
    return seconds


def chart(result: dict[str, Any]) -> alt.HConcatChart:
    """What each side took."""
    rows = [{"side": side, **found} for side, found in result["sides"].items()]
    title = f"{result['batches']} micro-batches of {result['rows_a_batch']:,} rows, three constraints"
    bars = alt.Chart(alt.InlineData(values=rows), title=title).mark_bar().properties(width=300, height=240)
    return alt.hconcat(bars.encode(x=alt.X("side:N", title=None, sort=list(result["sides"])), y="seconds:Q"))


if __name__ == "__main__":
    main()
