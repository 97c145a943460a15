"""A target lag kept under arrivals, beside a fixed interval: python tests/benchmarks/target_lag.py [--minutes 10] [--lag 30]

A row arrives every two seconds; two views lie above each other. On one side the upper one has the target lag, on the other both
are refreshed at a third of it, as somebody would choose who has only intervals. Each second the upper view is read: how old is
the oldest row that is not in it?
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.common import machine, session

RESULT = Path(__file__).with_suffix(".json")
_ARRIVALS_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of arrivals, on each side")
    parser.add_argument("--lag", type=int, default=30, help="the target lag, in seconds")
    given = parser.parse_args()
    spark = session(Path(tempfile.mkdtemp()))
    pace = f"TRIGGER ON UPDATE AT MOST EVERY INTERVAL {given.lag // 3} SECONDS"
    sides = {"target lag": ("", f"TBLPROPERTIES ('target-lag' = '{given.lag} seconds')"), "fixed interval": (pace, pace)}
    found = {}
    for name, clauses in sides.items():
        found[name] = side(spark, name.replace(" ", "_"), clauses, given.minutes * 60)
        print(f"{name}: {found[name]}", flush=True)
    fewer = found["fixed interval"]["commits"] / max(found["target lag"]["commits"], 1)
    print(f"commits: {fewer:.1f} times as many with a fixed interval; p95 {found['target lag']['p95']} s of {given.lag} s")
    record = {"minutes": given.minutes, "lag": given.lag, "machine": machine(), "sides": found}
    RESULT.write_text(json.dumps(record, indent=2) + "\n")


def side(spark: SparkSession, schema: str, clauses: tuple[str, str], seconds: float) -> dict[str, float]:
    """Let rows arrive for some time; return the lags that were not exceeded, in seconds, and the commits on both views."""
    spark.sql(f"CREATE SCHEMA {schema}")
    raw, low, high = (f"{schema}.{name}" for name in ("raw", "low", "high"))
    spark.sql(f"CREATE TABLE {raw} (id INT, g INT) USING delta")
    spark.sql(f"CREATE MATERIALIZED VIEW {low} {clauses[0]} AS SELECT g, max(id) AS id, count(*) AS n FROM {raw} GROUP BY g")
    spark.sql(f"CREATE MATERIALIZED VIEW {high} {clauses[1]} AS SELECT max(id) AS id, sum(n) AS n FROM {low}")
    arrived: list[float] = []
    ends = time.monotonic() + seconds

    def arrive() -> None:
        while time.monotonic() < ends:
            spark.sql(f"INSERT INTO {raw} VALUES ({len(arrived)}, {len(arrived) % 5})").collect()
            arrived.append(time.monotonic())
            time.sleep(_ARRIVALS_SECONDS)

    arrivals = threading.Thread(target=arrive, name="arrivals")
    arrivals.start()
    ages = []
    while arrivals.is_alive():
        began = time.monotonic()
        newest = spark.table(high).collect()[0].id
        missing = arrived[0 if newest is None else newest + 1 :]
        ages.append(max(time.monotonic() - missing[0], 0.0) if missing else 0.0)
        time.sleep(max(1.0 - (time.monotonic() - began), 0.0))
    arrivals.join()
    ages.sort()
    commits = sum(spark.sql(f"DESCRIBE HISTORY {view}").count() - 2 for view in (low, high))
    for view in (high, low):
        spark.sql(f"DROP MATERIALIZED VIEW {view}").collect()
    share = {
        name: round(ages[min(int(len(ages) * at), len(ages) - 1)], 1) for name, at in (("p50", 0.5), ("p95", 0.95), ("most", 1.0))
    }
    return {**share, "commits": commits, "arrivals": len(arrived)}


if __name__ == "__main__":
    main()
