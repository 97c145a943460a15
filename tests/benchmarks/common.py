"""What the benchmarks of flushes share: a session, input files that arrive, flows taken step by step, results that are saved."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import sqlext
from sqlext.execution.flows.flow import Flow
from sqlext.extension import session as sqlext_session
from sqlext.options import STATE_BACKEND

Chart = alt.LayerChart | alt.FacetChart | alt.HConcatChart

QUERY = "SELECT k, count(*) AS n, sum(v) AS s FROM {} GROUP BY k"
FLOW_DDL = "CREATE STREAMING TABLE {name} TBLPROPERTIES ({properties}) AS " + QUERY.format(
    "STREAM {source} WITH ('maxFilesPerTrigger' = '1')"
)
BY_COMMAND = {"execution.flush.max-interval": "1 day"}  # a flush comes by FLUSH FLOW only
MEMORY_ONLY = {"execution.flush.memory-buffer-only": "true"}
DELTA_STATE = {STATE_BACKEND.key: "delta"}
ROCKSDB_STATE = {STATE_BACKEND.key: "rocksdb"}


def session(folder: Path, connectors: str = "", memory: str = "4g") -> SparkSession:
    """Two cores and 4 GB, whatever the machine has; the same for all sides."""
    settings = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sqlext.connectors": connectors,
    }
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = sqlext.configure(builder.master("local[2]").appName("benchmark")).getOrCreate()
    return made


def write_rows(path: Path, keys: np.ndarray[Any, np.dtype[np.int64]], random: np.random.Generator) -> None:
    """A Parquet file with a row for each of `keys`, and a value from 0 to 999 in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(random.integers(0, 1000, len(keys)), pa.int64())})
    pq.write_table(table, path)


@dataclass(frozen=True)
class Source:
    """A streaming source whose files lie ready, and arrive when they are told to: nobody's time goes into writing them.

    Attributes:
        name: the table's.
        folder: what has arrived.
    """

    name: str
    folder: Path

    def create(self, spark: SparkSession) -> None:
        self.folder.mkdir(parents=True)
        spark.sql(f"CREATE TABLE {self.name} (k BIGINT, v BIGINT) USING parquet LOCATION '{self.folder}'")

    def arrive(self, *files: Path) -> None:
        for file in files:
            os.link(file, self.folder / file.name)


def flow_of(spark: SparkSession, name: str) -> Flow:
    """A flow of this process."""
    return next(flow for flow in sqlext_session.host_of(spark).flows.all.values() if flow.spec.name == name)


def listed(properties: Mapping[str, str]) -> str:
    """Properties as TBLPROPERTIES takes them."""
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())


def take_in(spark: SparkSession, name: str) -> None:
    """Let a flow take what has arrived into its buffer: WAIT FLOW without its flush."""
    flow_of(spark, name).take_in()


def flush(spark: SparkSession, name: str) -> float:
    """Take in what has arrived, flush it; the flush's seconds."""
    take_in(spark, name)
    before = flow_of(spark, name).status()[1]
    spark.sql(f"FLUSH FLOW {name}")
    after = flow_of(spark, name).status()[1]
    assert (before.buffered_batches, after.flushes) == (1, before.flushes + 1), f"{name}: {before}, then {after}"
    return after.last_flush_seconds


def table_folder(spark: SparkSession, name: str) -> Path:
    return Path(str(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0].location).removeprefix("file:"))


def operations(folder: Path) -> list[str]:
    """The operation of each commit of a Delta table, in order."""
    found: list[str] = []
    for log in sorted((folder / "_delta_log").glob("*.json")):
        actions = map(json.loads, log.read_text(encoding="utf-8").splitlines())
        found.extend(action["commitInfo"]["operation"] for action in actions if "commitInfo" in action)
    return found


def check_equal(found: DataFrame, expected: DataFrame, side: str) -> None:
    """Raise AssertionError when two tables do not hold the same rows, each as often."""
    for label, more, less in (("too many", found, expected), ("missing", expected, found)):
        wrong = more.exceptAll(less.select(more.columns)).head(3)
        assert not wrong, f"{side}: rows {label}, such as {wrong}"


def summary(taken: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The seconds of sides, their medians without the first run, which compiles code, and the ratios to the first side."""
    medians = {side: round(statistics.median(seconds[1:]), 3) for side, seconds in taken.items()}
    first, *others = medians
    return {"seconds": taken, "medians": medians, "ratios": {side: round(medians[side] / medians[first], 2) for side in others}}


def chart_of_medians(queries: Mapping[str, dict[str, Any]], title: str) -> alt.FacetChart:
    """The median of each side as a bar, by query; `queries` have the `summary` of each."""
    rows = [
        {"query": kind, "side": side, "seconds": seconds}
        for kind, found in queries.items()
        for side, seconds in found["medians"].items()
    ]
    bars = alt.Chart(alt.InlineData(values=rows)).mark_bar().properties(width=160, height=240)
    side = alt.X("side:N", title=None, sort=None, axis=alt.Axis(labelAngle=0))
    made: alt.FacetChart = bars.encode(x=side, y="seconds:Q").facet(column=alt.Column("query:N", title=None))
    return made.properties(title=title)


def in_folder(
    folder: Path, action: Callable[[SparkSession], dict[str, Any]], connectors: str = "", memory: str = "4g"
) -> dict[str, Any]:
    """What `action` finds with a session over an empty folder, which is removed again."""
    spark = session(folder, connectors, memory)
    try:
        return action(spark)
    finally:
        sqlext.disable(spark)
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run_and_save(
    run: Callable[[SparkSession, Path, argparse.Namespace], dict[str, Any]],
    chart: Callable[[dict[str, Any]], Chart],
    given: argparse.Namespace,
) -> None:
    """Run a benchmark in an empty folder, and save its result as `given.result` says."""
    folder = Path(tempfile.mkdtemp())
    result = in_folder(folder, lambda spark: run(spark, folder, given))
    save(result, chart(result), given.result)


def machine() -> str:
    """What a benchmark ran on."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def save(result: dict[str, Any], chart: Chart, path: Path) -> None:
    """Print a result, and save it as JSON, with its plot as SVG beside it."""
    result = {**result, "machine": machine()}
    text = json.dumps(result, indent=2)
    print(text)
    path.write_text(text + "\n", encoding="utf-8")
    chart.save(path.with_suffix(".svg"))
