"""AUTO CDC against a MERGE of each key's newest change in each micro-batch, written by hand, over the same changes, in one run.

python -m tests.benchmarks.auto_cdc                      20 micro-batches of 50,000 changes, 200,000 keys
python -m tests.benchmarks.auto_cdc --batches 4 --rows 5000 --every 2 --result /tmp/auto_cdc.json

Sides: `merge`, foreachBatch with a window for the newest change and a MERGE. `rocksdb`, `delta`: AUTO CDC with its state there,
flushed every 10 micro-batches. `versions`: the same changes as SCD TYPE 2, which nobody writes by hand in one MERGE.

The changes come in order, since a MERGE by hand forgets what it has deleted. A twentieth of them delete. All sides get the same
files, ten at a time; the clock stops when all is in the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from sqlext.spark import jvm, sessions
from tests.benchmarks.common import check_equal, operations, run_and_save, table_folder, take_in

GOAL_RATIO = 4.0
COLUMNS = "k BIGINT, lsn BIGINT, op STRING, v BIGINT"
STREAM = "STREAM {} WITH ('maxFilesPerTrigger' = '1')"
NEWEST = "SELECT k, max_by(v, lsn) AS v FROM {} GROUP BY k HAVING max_by(op, lsn) <> 'D'"
CAPTURE = """
CREATE STREAMING TABLE {table} TBLPROPERTIES ('execution.flush.max-interval' = '1 day', 'state.backend.type' = '{state}')
FLOW AUTO CDC FROM {stream} KEYS (k) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY lsn COLUMNS (k, v) STORED AS SCD TYPE {kind}
"""
SIDES = {"merge": None, "rocksdb": ("rocksdb", 1), "delta": ("delta", 1), "versions": ("rocksdb", 2)}
Steps = tuple[Callable[[], object], Callable[[], object], Callable[[], object]]
"""Take a round in; bring it into the table; end the query."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=20, help="micro-batches")
    parser.add_argument("--rows", type=int, default=50_000, help="changes in each")
    parser.add_argument("--keys", type=int, default=200_000, help="keys they are drawn from")
    parser.add_argument("--every", type=int, default=10, help="micro-batches between two flushes")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), help="which to run, in this order")
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    run_and_save(run, chart, given)


def run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    files = [folder / "ready" / f"{number:05d}.parquet" for number in range(given.batches)]
    random = np.random.default_rng(29)
    for number, file in enumerate(files):
        write(file, number * given.rows, given.rows, given.keys, random)
    for side in given.sides:  # each side's code is compiled before it is measured
        measure(spark, folder, f"warm_up_{side}", side, files[:2], 1)
    sides = {side: measure(spark, folder, side, side, files, given.every) for side in given.sides}
    shape = {"batches": given.batches, "rows_a_batch": given.rows, "keys": given.keys, "every": given.every}
    ratios = {
        f"merge_to_{side}": round(sides["merge"]["seconds"] / found["seconds"], 2)
        for side, found in sides.items()
        if side != "merge" and "merge" in sides
    }
    return {**shape, "sides": sides, **ratios, "goal": f"at least {GOAL_RATIO} of rocksdb and delta"}


def write(path: Path, first: int, rows: int, keys: int, random: np.random.Generator) -> None:
    """A file of changes with the sequences from `first` on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "k": pa.array(random.integers(0, keys, rows), pa.int64()),
        "lsn": pa.array(np.arange(first, first + rows), pa.int64()),
        "op": pa.array(np.where(random.random(rows) < 0.05, "D", "U")),
        "v": pa.array(random.integers(0, 1000, rows), pa.int64()),
    }
    pq.write_table(pa.table(columns), path)


def measure(spark: SparkSession, folder: Path, table: str, side: str, files: list[Path], every: int) -> dict[str, Any]:
    """Run one side over an empty table, and check what it holds."""
    source, arrived = f"changes_{table}", folder / f"changes_{table}"
    arrived.mkdir()
    spark.sql(f"CREATE TABLE {source} ({COLUMNS}) USING parquet LOCATION '{arrived}'")
    shape = SIDES[side]
    take_round, flush, end = by_hand(spark, folder, table, source) if shape is None else by_flow(spark, table, source, *shape)
    began = time.perf_counter()
    for first in range(0, len(files), every):
        for file in files[first : first + every]:
            (arrived / file.name).hardlink_to(file)
        take_round()
        flush()
    seconds = time.perf_counter() - began
    end()
    rows = spark.table(table)
    newest = rows.where("__END_AT IS NULL") if side == "versions" else rows
    check_equal(newest.select("k", "v"), spark.sql(NEWEST.format(source)), table)
    commits = len(operations(table_folder(spark, table))) - 1  # the first one created it
    print(f"{table}: {seconds:.1f} s, {commits} commits, equal to the batch query", flush=True)
    return {"seconds": round(seconds, 2), "commits": commits}


def by_hand(spark: SparkSession, folder: Path, table: str, source: str) -> Steps:
    """A MERGE for each micro-batch, with a flow's own settings for polling and Delta."""
    own = jvm.clone_session(spark)
    sessions.prepare(own, "", lambda: 0)
    own.conf.unset("spark.databricks.delta.merge.materializeSource")  # the window would be computed again at each look
    own.sql(
        f"CREATE TABLE {table} (k BIGINT, lsn BIGINT, v BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )

    def upsert(frame: DataFrame, _: int) -> None:
        by_key = Window.partitionBy("k").orderBy(F.desc("lsn"))
        newest = frame.withColumn("place", F.row_number().over(by_key)).where("place = 1").drop("place")
        builder = DeltaTable.forName(frame.sparkSession, table).alias("t").merge(newest.alias("s"), "t.k = s.k")
        builder = builder.whenMatchedDelete("s.op = 'D' AND s.lsn > t.lsn")
        builder = builder.whenMatchedUpdate("s.lsn > t.lsn", {"lsn": "s.lsn", "v": "s.v"})
        builder.whenNotMatchedInsert("s.op <> 'D'", {"k": "s.k", "lsn": "s.lsn", "v": "s.v"}).execute()

    writer = own.sql(f"SELECT * FROM {STREAM.format(source)}").writeStream.foreachBatch(upsert)
    query = writer.option("checkpointLocation", str(folder / f"checkpoint_{table}")).start()
    return query.processAllAvailable, lambda: None, query.stop


def by_flow(spark: SparkSession, table: str, source: str, state: str, kind: int) -> Steps:
    spark.sql(CAPTURE.format(table=table, state=state, stream=STREAM.format(source), kind=kind))
    return (
        lambda: take_in(spark, table),
        lambda: spark.sql(f"FLUSH FLOW {table}"),
        lambda: spark.sql(f"STOP FLOW {table}"),
    )


def chart(result: dict[str, Any]) -> alt.HConcatChart:
    """What each side took, and how many commits."""
    rows = [{"side": side, **found} for side, found in result["sides"].items()]
    bars = alt.Chart(alt.InlineData(values=rows)).mark_bar().properties(width=200, height=240)
    side = alt.X("side:N", title=None, sort=list(result["sides"]))
    title = f"{result['batches']} micro-batches of {result['rows_a_batch']:,} changes, {result['keys']:,} keys"
    return alt.hconcat(bars.encode(x=side, y="seconds:Q"), bars.encode(x=side, y="commits:Q")).properties(title=title)


if __name__ == "__main__":
    main()
