"""A chain of 60 tables of which one source changes: python tests/benchmarks/chain.py

Six sources and 54 views in four layers, of which the last one reads all others. Printed are the seconds until a wave's first view
begins, which views a change of one source has refreshed, and what a wave costs when nothing has changed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from sqlext.execution.views.wave import Wave
from tests.benchmarks.common import machine, session

RESULT = Path(__file__).with_suffix(".json")
SOURCES, LAYERS = 6, (24, 18, 11, 1)
WAVES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000, help="of each source")
    given = parser.parse_args()
    spark = session(Path(tempfile.mkdtemp()))
    reads = graph()
    set_up(spark, reads, given.rows)
    print(f"{SOURCES + len(reads)} tables", flush=True)
    changed, idle = [], []
    for _ in range(WAVES):
        idle.append(wave(spark, reads, set()))
        spark.sql("INSERT INTO s0 SELECT id, id % 7, id FROM range(3)")
        changed.append(wave(spark, reads, below(reads, "s0")))
    found = {
        "tables": SOURCES + len(reads),
        "below the changed source": len(below(reads, "s0")),
        "planning seconds": min(each[0] for each in changed),
        "seconds, one source changed": min(each[1] for each in changed),
        "seconds, nothing changed": min(each[1] for each in idle),
        "milliseconds a view, nothing changed": round(1000 * min(each[1] for each in idle) / len(reads), 1),
        "machine": machine(),
    }
    for name, value in found.items():
        print(f"{name}: {value}")
    RESULT.write_text(json.dumps(found, indent=2) + "\n")


def graph() -> dict[str, list[str]]:
    """What each view reads, layer by layer."""
    reads: dict[str, list[str]] = {}
    above = [f"s{number}" for number in range(SOURCES)]
    for layer, count in enumerate(LAYERS, 1):
        names = [f"l{layer}_{number}" for number in range(count)]
        if layer == 1:
            reads |= {name: [above[number * len(above) // count]] for number, name in enumerate(names)}
        elif count == 1:
            reads |= dict.fromkeys(names, above)
        else:
            reads |= {name: [above[number], above[number + 1]] for number, name in enumerate(names)}
        above = names
    return reads


def below(reads: dict[str, list[str]], name: str) -> set[str]:
    """The views that are made of a table."""
    found = {name}
    for view, read in reads.items():  # layer by layer
        if found & {*read}:
            found.add(view)
    return found - {name}


def set_up(spark: SparkSession, reads: dict[str, list[str]], rows: int) -> None:
    for number in range(SOURCES):
        spark.sql(f"CREATE TABLE s{number} USING delta AS SELECT id, id % 7 AS g, id AS v FROM range({rows})")
    for view, read in reads.items():
        union = " UNION ALL ".join(f"SELECT g, v FROM {each}" for each in read)
        spark.sql(f"CREATE MATERIALIZED VIEW {view} AS SELECT g, sum(v) AS v, count(*) AS n FROM ({union}) GROUP BY g")


def wave(spark: SparkSession, reads: dict[str, list[str]], expected: set[str]) -> tuple[float, float]:
    """Refresh all; return the seconds until the first view began, and until all were done."""
    before = versions(spark)
    with planned() as at:
        began = time.perf_counter()
        spark.sql(f"REFRESH MATERIALIZED VIEW {next(reversed(reads))} CASCADE").collect()
        seconds = time.perf_counter() - began
    after = versions(spark)
    moved = {name for name, version in after.items() if version != before[name]}
    if moved != expected:
        raise AssertionError(f"refreshed were {sorted(moved)}, and not {sorted(expected)}")
    print(f"{len(moved)} views refreshed: planned in {at[0] - began:.3f} s, {seconds:.2f} s", flush=True)
    return round(at[0] - began, 3), round(seconds, 2)


def versions(spark: SparkSession) -> dict[str, int]:
    return {row.name.split(".")[-1]: row.version for row in spark.sql("SHOW MATERIALIZED VIEWS").collect()}


@contextmanager
def planned() -> Iterator[list[float]]:
    """Note when a wave hands out its first views: its graph and its cut are known then."""
    at: list[float] = []
    hand_out = Wave._hand_out

    def noting(self: Wave) -> None:
        at.append(time.perf_counter())
        hand_out(self)

    with patch.object(Wave, "_hand_out", noting):
        yield at


if __name__ == "__main__":
    main()
