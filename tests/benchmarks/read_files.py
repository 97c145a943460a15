"""Many small files into a Delta table: a flow over read_files against Spark's own file source, in one run.

python tests/benchmarks/read_files.py [--files 100000] [--rows 5] [--limit 20000] [--arrivals 20]

Both sides read the same folder of JSON files with the same schema and options. Two times are taken on each: from the start until
all files are in the table, and then from each arrival of one more file until its rows are there, which is the time of a listing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
from pyspark.sql import SparkSession

from tests.benchmarks.common import in_folder, save

SCHEMA = "id BIGINT, item STRING, amount DOUBLE"
_FOLDERS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=5, help="rows a file")
    parser.add_argument("--limit", type=int, default=20_000, help="files a micro-batch")
    parser.add_argument("--arrivals", type=int, default=20, help="files that arrive afterwards, one by one")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()

    def measured(spark: SparkSession) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp())
        sides = {"Spark's file source": of_spark, "read_files": of_sqlext}
        for name, side in sides.items():  # what is compiled once is compiled
            write(folder / f"warm {name}", 200, given.rows)
            side(spark, folder / f"warm {name}", 50, 1, given.rows, "warm_" + side.__name__)
        write(folder / "files", given.files, given.rows)
        found = {}
        for name, side in sides.items():
            found[name] = side(spark, folder / "files", given.limit, given.arrivals, given.rows, side.__name__)
            print(f"{name}: {found[name]}", flush=True)
        return found

    found = in_folder(Path(tempfile.mkdtemp()), measured)
    own, spark = found["read_files"], found["Spark's file source"]
    ratios = {name: round(own[name] / spark[name], 2) for name in own}
    result = {
        "files": given.files,
        "rows a file": given.rows,
        "files a micro-batch": given.limit,
        "sides": found,
        "ratios": ratios,
    }
    save(result, drawn(found), given.out)


def write(folder: Path, files: int, rows: int) -> None:
    """Write files of JSON lines into some folders."""
    for number in range(files):
        write_one(folder, number, rows)


def write_one(folder: Path, number: int, rows: int) -> None:
    day = folder / f"{number % _FOLDERS:02}"
    day.mkdir(parents=True, exist_ok=True)
    made = (json.dumps({"id": number * rows + row, "item": f"item {row}", "amount": row / 4}) for row in range(rows))
    file = day / f".{number:07}"
    file.write_text("\n".join(made) + "\n", encoding="utf-8")
    file.rename(day / f"{number:07}.json")


def of_spark(spark: SparkSession, folder: Path, limit: int, arrivals: int, rows: int, name: str) -> dict[str, float]:
    began = time.monotonic()
    stream = spark.readStream.format("json").schema(SCHEMA).option("maxFilesPerTrigger", limit).load(f"{folder}/*")
    writer = stream.writeStream.format("delta").option("checkpointLocation", tempfile.mkdtemp())
    query = writer.toTable(name)
    try:
        query.processAllAvailable()
        return times(spark, folder, began, arrivals, rows, name, query.processAllAvailable)
    finally:
        query.stop()


def of_sqlext(spark: SparkSession, folder: Path, limit: int, arrivals: int, rows: int, name: str) -> dict[str, float]:
    began = time.monotonic()
    spark.sql(
        f"CREATE STREAMING TABLE {name} AS SELECT id, item, amount FROM STREAM read_files('{folder}/*', format => 'json', "
        f"schema => '{SCHEMA}', maxFilesPerTrigger => {limit})"
    ).collect()
    try:
        spark.sql(f"WAIT FLOW {name}").collect()
        return times(spark, folder, began, arrivals, rows, name, lambda: spark.sql(f"WAIT FLOW {name}").collect())
    finally:
        spark.sql(f"STOP FLOW {name}").collect()


def times(
    spark: SparkSession, folder: Path, began: float, arrivals: int, rows: int, name: str, wait: Callable[[], object]
) -> dict[str, float]:
    """Return seconds: of the files that were there, and the median of those that arrive; see that all rows are in the table."""
    intake = time.monotonic() - began
    there = sum(1 for _ in folder.rglob("*.json"))
    check(spark, name, there * rows)
    single = []
    for number in range(there, there + arrivals):
        write_one(folder, number, rows)
        arrived = time.monotonic()
        wait()
        single.append(time.monotonic() - arrived)
    check(spark, name, (there + arrivals) * rows)
    return {"intake": round(intake, 2), "one arrival": round(statistics.median(single), 2)}


def check(spark: SparkSession, name: str, rows: int) -> None:
    found = spark.sql(f"SELECT count(*) AS n, count(DISTINCT id) AS ids FROM {name}").collect()[0]
    assert (found.n, found.ids) == (rows, rows), f"{name} has {found}, and should have {rows} rows"


def drawn(found: dict[str, dict[str, float]]) -> alt.FacetChart:
    rows = [{"side": side, "what": what, "seconds": value} for side, both in found.items() for what, value in both.items()]
    bars = alt.Chart(pd.DataFrame(rows)).mark_bar().encode(x="seconds:Q", y=alt.Y("side:N", title=None), color="side:N")
    chart: alt.FacetChart = bars.facet(row=alt.Row("what:N", title=None)).resolve_scale(x="independent")
    return chart


if __name__ == "__main__":
    main()
