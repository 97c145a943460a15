"""Catching up with a backlog against the same flow at its live interval, on Delta and on Kafka, in one run (FLIP-309).

python -m tests.benchmarks.backlog                                    10,000,000 rows in 100 commits, or on a topic
python -m tests.benchmarks.backlog --rows 1000000 --parts 20 --result /tmp/backlog.json

Two flows keep the same aggregate of the same source, `live` without and `backlog` with
`execution.checkpointing.interval-during-backlog`; all else is the same: a base interval, a rate limit of one part a micro-batch,
a flush interval. Both are made, stopped, and started again, one after the other, when the producer has written its rows. The
clock runs from START FLOW until all is in the table. Then, with the `backlog` flow alone, small parts arrive, somewhat slower
than the limit lets it take them, and the staleness of each is the time until the commit on the table that has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
from pyspark.sql import SparkSession

from tests.benchmarks.common import check_equal, flow_of, in_folder, save, table_folder
from tests.kafka import Broker

BASE, FLUSH, BACKLOG = 2.0, 10.0, "1 minute"
LIVE_PROPERTIES = (
    f"""'execution.checkpointing.interval' = '{BASE:.0f} seconds', 'execution.flush.max-interval' = '{FLUSH:.0f} seconds'"""
)
BACKLOG_PROPERTIES = (
    f"{LIVE_PROPERTIES}, 'execution.checkpointing.interval-during-backlog' = '{BACKLOG}', 'backlog.lag-threshold' = '20 seconds'"
)
TIMEOUT = "2 hours"


@dataclass(frozen=True)
class Input:
    """A source of one kind.

    Attributes:
        stream: as a flow reads it, with columns k and v.
        batch: the same, as a query reads it to its end.
        produce: writes so many rows in so many parts.
        end: how far an offset of Spark's, as JSON, has read it; to be compared with `written`.
        written: how far it is written.
    """

    stream: str
    batch: str
    produce: Callable[[int, int], None]
    end: Callable[[str], int]
    written: Callable[[], int]


def delta_input(spark: SparkSession, keys: int, rows_a_part: int) -> Input:
    spark.sql("CREATE TABLE events (k STRING, v BIGINT) USING delta")
    log = table_folder(spark, "events") / "_delta_log"
    seeds = iter(range(1_000_000_000))

    def produce(rows: int, parts: int) -> None:
        for _ in range(parts):
            drawn = spark.range(0, rows // parts, 1, 1)
            part = drawn.selectExpr(f"CAST(CAST(rand({next(seeds)}) * {keys} AS INT) AS STRING) AS k", "id % 1000 AS v")
            part.write.format("delta").mode("append").saveAsTable("events")

    return Input(
        "STREAM events WITH ('maxFilesPerTrigger' = '1') AS e",
        "events",
        produce,
        lambda offset: int(json.loads(offset)["reservoirVersion"]) - 1,
        lambda: max(int(file.stem) for file in log.glob("*.json")),
    )


def kafka_input(broker: Broker, keys: int, rows_a_part: int) -> Input:
    broker.create("events")
    written = [0]

    def produce(rows: int, parts: int) -> None:
        first = written[0]
        messages = ((str(at * 7919 % keys), b'{"v": %d}' % (at % 1000)) for at in range(first, first + rows))
        broker.send("events", messages)
        written[0] += rows

    call = f"read_kafka(bootstrapServers => '{broker.servers}', subscribe => 'events', startingOffsets => 'earliest'{{}})"
    decoded = "(SELECT CAST(key AS STRING) AS k, from_json(CAST(value AS STRING), 'v BIGINT').v AS v FROM {})"
    limit = f", maxOffsetsPerTrigger => '{rows_a_part}'"
    return Input(
        decoded.format("STREAM " + call.format(limit) + " AS e"),
        decoded.format(call.format("")),
        produce,
        lambda offset: sum(json.loads(offset)["events"].values()),
        lambda: written[0],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--parts", type=int, default=100, help="commits, or micro-batches at the live limit")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--arrivals", type=int, default=40, help="how many small parts arrive afterwards")
    parser.add_argument("--sources", nargs="+", choices=["delta", "kafka"], default=["delta", "kafka"])
    parser.add_argument("--result", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args(arguments)
    result: dict[str, Any] = {
        "rows": given.rows,
        "keys": given.keys,
        "base_interval": BASE,
        "flush_interval": FLUSH,
        "sources": {},
    }
    for source in given.sources:
        folder = Path(tempfile.mkdtemp())
        with ExitStack() as ended:
            broker = None
            if source == "kafka":
                broker = Broker(Path(tempfile.mkdtemp()))
                ended.callback(broker.stop)

            def measured(spark: SparkSession, broker: Broker | None = broker) -> dict[str, Any]:
                part = given.rows // given.parts
                made = kafka_input(broker, given.keys, part) if broker else delta_input(spark, given.keys, part)
                return run(spark, made, given)

            result["sources"][source] = in_folder(folder, measured, "kafka")
    save(result, chart(result), given.result)


def run(spark: SparkSession, source: Input, given: argparse.Namespace) -> dict[str, Any]:
    query = "SELECT k, count(*) AS n, sum(v) AS s FROM {} GROUP BY k"
    for side, properties in (("live", LIVE_PROPERTIES), ("backlog", BACKLOG_PROPERTIES)):
        spark.sql(f"CREATE STREAMING TABLE {side} TBLPROPERTIES ({properties}) AS {query.format(source.stream)}")
    source.produce(2 * given.keys, 2)  # each side's code is compiled before it is measured
    for side in ("live", "backlog"):
        spark.sql(f"WAIT FLOW {side}")
        spark.sql(f"STOP FLOW {side}")
    source.produce(given.rows, given.parts)
    time.sleep(25)  # the last part is older than the threshold too, as after a night
    expected = spark.sql(query.format(source.batch))
    sides = {side: caught_up(spark, side) for side in ("live", "backlog")}
    for side in sides:
        check_equal(spark.table(side), expected, side)
    ratio = round(sides["live"]["seconds"] / sides["backlog"]["seconds"], 2)
    return {"sides": sides, "ratio": ratio, "ratio_goal": "at least 5", "live_again": staleness(spark, source, given)}


def caught_up(spark: SparkSession, side: str) -> dict[str, Any]:
    began = time.perf_counter()
    spark.sql(f"START FLOW {side}")
    spark.sql(f"WAIT FLOW {side} TIMEOUT {TIMEOUT}")
    seconds = round(time.perf_counter() - began, 1)
    shown = next(row for row in spark.sql("SHOW FLOWS").collect() if row.name == side)
    switches = [each.phase.value for each in flow_of(spark, side)._backlog.status.switches]
    found = {"seconds": seconds, "micro_batches": shown.micro_batches, "flushes": shown.flushes, "switches": switches}
    if side == "live":
        spark.sql("STOP FLOW live")
    print(f"{side}: {found}", flush=True)
    return found


def staleness(spark: SparkSession, source: Input, given: argparse.Namespace) -> dict[str, Any]:
    """Of each arrival, seconds until the commit that has it; told from checkpoints and logs, so that no look costs anything."""
    arrivals: list[tuple[float, int]] = []
    for _ in range(given.arrivals):
        began = time.time()
        source.produce(1000, 1)
        arrivals.append((time.time(), source.written()))
        time.sleep(max(0.0, 1.25 * BASE - (time.time() - began)))
    spark.sql("WAIT FLOW backlog")
    flow = flow_of(spark, "backlog")
    checkpoint = Path(flow._intakes[0].checkpoint.location.removeprefix("file:")) / "offsets"
    ends = {int(file.name): source.end(file.read_text().splitlines()[2]) for file in checkpoint.iterdir() if file.name.isdigit()}
    commits = committed(table_folder(spark, "backlog"))
    found = []
    for at, position in arrivals:
        batch = min(number for number, end in ends.items() if end >= position)
        found.append(min(when for when, last in commits if last >= batch) - at)
    recent = flow._intakes[0].query.recentProgress if flow._intakes[0].query else []
    longest = max(progress.batchDuration for progress in recent[-20:]) / 1000
    bound = BASE + FLUSH + longest
    p95 = statistics.quantiles(found, n=20)[-1]
    print(f"staleness: p95 {p95:.1f} s of at most {bound:.1f} s", flush=True)
    return {"p95_staleness": round(p95, 1), "p95_goal": round(bound, 1), "longest_micro_batch": round(longest, 1)}


def committed(folder: Path) -> list[tuple[float, int]]:
    """When each flush was committed, and its last micro-batch."""
    return [
        (log.stat().st_mtime, int(json.loads(text)["sqlext"]["last_batch"]))
        for log in sorted((folder / "_delta_log").glob("*.json"))
        for action in map(json.loads, log.read_text(encoding="utf-8").splitlines())
        if (text := action.get("commitInfo", {}).get("userMetadata")) is not None
    ]


def chart(result: dict[str, Any]) -> alt.FacetChart:
    """Seconds to catch up, for each source and side."""
    values = [
        {"source": source, "side": side, "seconds": each["seconds"]}
        for source, found in result["sources"].items()
        for side, each in found["sides"].items()
    ]
    bars = alt.Chart(alt.InlineData(values=values)).mark_bar().encode(x=alt.X("side:N", sort=["live", "backlog"]), y="seconds:Q")
    faceted: alt.FacetChart = bars.properties(width=120).facet(column="source:N").properties(title=f"{result['rows']:,} rows")
    return faceted


if __name__ == "__main__":
    main()
