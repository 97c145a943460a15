"""TPC-H as materialized views, refreshed incrementally and in full, in one run: python tests/benchmarks/views.py [--scale 1]

Tables by `tpchgen-cli`, all 22 queries as views, refreshed as one wave after each change: RF1 and RF2 (0.1% of the orders with
their lines inserted, and as many deleted), then an UPDATE of 0.1% of the lines; `--share` for another share. Each side has views
of its own, and the sides take turns in which comes first. With `--at-once`, several views of a wave are refreshed side by side,
as the host does by itself. Before them, a sum by 1,000,000 groups, of which 1,000 rows change.
After each wave the rows of both sides are compared.

`--full-at-end` is for sizes at which that takes hours: no views are refreshed in full beside the others, but each of these once,
after the last wave, which is compared with what it was; and that time stands for each of its refreshes which had work to do.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import altair as alt
from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.common import session

RESULT = Path(__file__).with_suffix(".json")
TABLES = "customer lineitem nation orders part partsupp region supplier".split()
QUERIES = {
    name: text.replace("{end}", "")
    for name, text in re.findall(
        r"^-- (Q\d+)\n(.*?);$", (Path(__file__).parents[1] / "fixtures/tpch.sql").read_text(), re.MULTILINE | re.DOTALL
    )
}
SIDES = ("INCREMENTAL", "FULL")
DIGITS = 1e-9
"""The relative difference that two sums in floating point may have: their order is Spark's."""


@dataclass
class Times:
    """What the refreshes of one query took, in seconds, and what the incremental ones did."""

    sides: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    idle: list[bool] = field(default_factory=list)
    """Of each incremental refresh that is measured, whether it made no commit: no source had changed."""
    version: str = "1"
    """The view's, after its last incremental refresh; that of a new view is 1."""
    done: Counter[str] = field(default_factory=Counter)

    def median(self, side: str) -> float:
        return statistics.median(self.sides[side])

    @property
    def ratio(self) -> float:
        return self.median("FULL") / self.median("INCREMENTAL")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H's scale factor")
    parser.add_argument("--share", type=float, default=0.001, help="of the orders and lines that change at each step")
    parser.add_argument("--rounds", type=int, default=2, help="of insertions, deletions, updates; of several, the first warms up")
    parser.add_argument("--at-once", type=int, default=1, help="views that are refreshed side by side")
    parser.add_argument("--full-at-end", action="store_true", help="each view in full once, after the last wave")
    parser.add_argument("--policy", default="INCREMENTAL", choices=("INCREMENTAL", "AUTO"), help="of the views not kept in full")
    parser.add_argument("--memory", default="4g", help="Java's heap")
    parser.add_argument("--only", default="", help="these queries alone, such as Q1,Q6")
    parser.add_argument("--result", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.full_at_end and given.at_once > 1:
        parser.error("--full-at-end adds up what is refreshed one after the other, so it goes without --at-once")
    sides = SIDES[:1] if given.full_at_end else SIDES
    spark = session(Path(tempfile.mkdtemp()), memory=given.memory)
    groups = sum_by_groups(spark)
    load(spark, given.scale)
    chosen = {name: text for name, text in QUERIES.items() if not given.only or name in given.only.split(",")}
    for name, text in chosen.items():
        for side in sides:
            policy = given.policy if side == "INCREMENTAL" else side
            spark.sql(f"CREATE MATERIALIZED VIEW {name}_{side} REFRESH POLICY {policy} AS {text}").collect()
    times = {name: Times() for name in chosen}
    waves: dict[str, float] = dict.fromkeys(SIDES, 0.0)
    changes = steps(spark, given.share, given.rounds)
    for number, (what, statements) in enumerate(changes):
        for statement in statements:
            spark.sql(statement).collect()
        is_measured = given.rounds == 1 or number >= len(changes) // given.rounds
        for side in sides if number % 2 else reversed(sides):
            taken = wave(spark, times, side, is_measured, given.at_once)
            waves[side] += taken if is_measured else 0
        if not given.full_at_end:
            tables = {name: [spark.table(f"{name}_{side}") for side in SIDES] for name in chosen}
            check(what, [name for name, both in tables.items() if not equal(*map(rows_of, both))], len(chosen))
    if given.full_at_end:
        waves["FULL"] = full_at_end(spark, times)
    report(times, waves, groups, given)


def load(spark: SparkSession, scale: float) -> None:
    """Make the tables."""
    with tempfile.TemporaryDirectory() as folder:
        generator = f"{sysconfig.get_path('scripts')}/tpchgen-cli"
        command = [generator, "parquet", "--scale-factor", f"{scale:g}", "--output-dir", folder, "--quiet"]
        subprocess.run(command, check=True, capture_output=True, timeout=1800)
        for table in TABLES:
            spark.sql(
                f"CREATE TABLE {table} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
                f"AS SELECT * FROM parquet.`{folder}/{table}.parquet`"
            ).collect()


def steps(spark: SparkSession, share: float, rounds: int) -> list[tuple[str, list[str]]]:
    """Return what changes, step by step: statements with a name.

    New orders are copies of others under new keys, with their lines.
    """
    every = round(1 / share)
    row = spark.sql("SELECT max(o_orderkey) FROM orders").first()
    assert row is not None
    largest = int(row[0])
    found = []
    for at in range(rounds):
        shift = largest * (at + 1)
        columns = {
            table: ", ".join(f"{key} + {shift} AS {key}" if each == key else each for each in spark.table(table).columns)
            for table, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey"))
        }
        chosen = {
            table: f"pmod(hash({key}), {every}) = {at} AND {key} <= {largest}"
            for table, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey"))
        }
        gone = {table: text.replace(f"= {at}", f"= {every - 1 - at}") for table, text in chosen.items()}
        found += [
            ("insert", [f"INSERT INTO {table} SELECT {columns[table]} FROM {table} WHERE {chosen[table]}" for table in columns]),
            ("delete", [f"DELETE FROM {table} WHERE {gone[table]}" for table in columns]),
            (
                "update",
                [
                    "UPDATE lineitem SET l_quantity = l_quantity + 1, l_extendedprice = l_extendedprice + 10 "
                    f"WHERE pmod(hash(l_orderkey, l_linenumber, 1), {every}) = {at}"
                ],
            ),
        ]
    return found


def wave(spark: SparkSession, times: dict[str, Times], side: str, is_measured: bool, at_once: int) -> float:
    """Refresh all views of a side, some side by side, and return how many seconds that took."""

    def refresh(name: str) -> None:
        found, began = times[name], time.perf_counter()
        said = str(spark.sql(f"REFRESH MATERIALIZED VIEW {name}_{side}").collect()[0][0])
        taken = time.perf_counter() - began
        print(f"{name} {side}: {taken:.2f} s, {said}", flush=True)
        if is_measured:
            found.sides[side].append(taken)
        if side == "INCREMENTAL":
            before, found.version = found.version, said.rsplit(" ", 1)[1]
            found.idle += [found.version == before] if is_measured else []
            found.done[way_of(said)] += 1

    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(refresh, times))
    return time.perf_counter() - began


def full_at_end(spark: SparkSession, times: dict[str, Times]) -> float:
    """Refresh each view in full, compare it with what it was, and return the seconds of all refreshes, had they been in full."""
    different = []
    for name, found in times.items():
        view = f"{name}_INCREMENTAL"
        kept = rows_of(spark.table(view))
        taken = seconds(spark, f"REFRESH MATERIALIZED VIEW {view} FULL")
        is_equal = equal(kept, rows_of(spark.table(view)))
        print(f"{name} in full: {taken:.2f} s, {'equal' if is_equal else 'different'}", flush=True)
        different += [] if is_equal else [name]
        idle = zip(found.idle, found.sides["INCREMENTAL"], strict=True)
        found.sides["FULL"] = [alone if is_idle else taken for is_idle, alone in idle]
    check("at the end", different, len(times))
    return sum(sum(found.sides["FULL"]) for found in times.values())


def way_of(said: str) -> str:
    """Return how a refresh was done, of what it said: such as "merge groups" or "no change"."""
    return re.split(r", \d|, version", said.split(": ", 1)[1])[0]


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return its rows, in an order that depends on nothing else."""
    return sorted(map(tuple, frame.collect()), key=repr)


def equal(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> bool:
    """Return whether they are the same rows, floating point up to `DIGITS`."""
    pairs = [pair for left, right in zip(one, other, strict=False) for pair in zip(left, right, strict=True)]
    return len(one) == len(other) and all(
        left == right or (isinstance(left, float) and isinstance(right, float) and abs(left - right) <= DIGITS * abs(right))
        for left, right in pairs
    )


def check(what: str, different: list[str], count: int) -> None:
    print(f"{what}: {count - len(different)} of {count} equal", flush=True)
    assert not different, different


def sum_by_groups(spark: SparkSession) -> dict[str, float]:
    """Return what both sides take for a sum by 1,000,000 groups after 1,000 rows have changed, and a refresh with no change."""
    spark.sql(
        "CREATE TABLE sales USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
        "AS SELECT id, pmod(hash(id), 1000000) AS g, id % 97 AS v FROM range(4000000)"
    ).collect()
    for side in SIDES:
        spark.sql(
            f"CREATE MATERIALIZED VIEW sums_{side} REFRESH POLICY {side} AS "
            "SELECT g, count(*) AS n, sum(v) AS s FROM sales GROUP BY g"
        ).collect()
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for step in range(4):
        spark.sql(f"UPDATE sales SET v = v + 1 WHERE id >= {step * 1000} AND id < {step * 1000 + 1000}").collect()
        for side in SIDES if step % 2 else reversed(SIDES):
            times[side].append(seconds(spark, f"REFRESH MATERIALIZED VIEW sums_{side}"))
    assert spark.sql("SELECT * FROM sums_FULL EXCEPT ALL SELECT * FROM sums_INCREMENTAL").isEmpty()
    idle = seconds(spark, "REFRESH MATERIALIZED VIEW sums_INCREMENTAL")
    found = {side: round(statistics.median(each[1:]), 2) for side, each in times.items()} | {"no change": round(idle, 3)}
    print(f"sum by 1,000,000 groups, 1,000 rows changed: {found}", flush=True)
    return found


def seconds(spark: SparkSession, statement: str) -> float:
    began = time.perf_counter()
    spark.sql(statement).collect()
    return time.perf_counter() - began


def report(times: dict[str, Times], waves: dict[str, float], groups: dict[str, float], given: argparse.Namespace) -> None:
    """Print both sides, and save them."""
    for name, each in times.items():
        full, alone = each.median("FULL"), each.median("INCREMENTAL")
        print(f"{name}: full {full:.2f} s, incremental {alone:.2f} s: {each.ratio:.1f} ({listed(each.done)})")
    sums = {side: round(sum(each.median(side) for each in times.values()), 2) for side in SIDES}
    ways = sum((each.done for each in times.values()), Counter[str]())
    in_full = sum(count for what, count in ways.items() if what.startswith("full"))
    print(f"all: full {sums['FULL']} s, incremental {sums['INCREMENTAL']} s: {sums['FULL'] / sums['INCREMENTAL']:.1f}")
    walls = {side: round(each, 2) for side, each in waves.items()}
    print(f"waves, {given.at_once} at once: {walls}: {waves['FULL'] / waves['INCREMENTAL']:.2f}")
    print(f"refreshes: {ways.total()}, in full {in_full}: {listed(ways)}")
    found = {name: {side: round(each.median(side), 2) for side in SIDES} for name, each in times.items()}
    result = {
        "scale": given.scale,
        "share": given.share,
        "policy": given.policy,
        "memory": given.memory,
        "full at end": given.full_at_end,
        "seconds": found,
        "done": {name: dict(each.done) for name, each in times.items()},
        "sum": sums,
        "waves": walls | {"at once": given.at_once},
        "sum by 1,000,000 groups": groups,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    given.result.write_text(json.dumps(result, indent=2) + "\n")
    bars = [{"query": name, "refresh": side, "seconds": each} for name, sides in found.items() for side, each in sides.items()]
    chart = (
        alt.Chart(alt.InlineData(values=bars))
        .mark_bar()
        .encode(x="seconds:Q", y="refresh:N", color="refresh:N", row=alt.Row("query:N", sort=[*found]))
    )
    chart.save(str(given.result.with_suffix(".svg")))


def listed(done: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in done.most_common())


if __name__ == "__main__":
    main()
