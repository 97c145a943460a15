"""TPC-H's 22 queries as materialized views: after each of some changes, equal to their queries; prints how they were kept."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tests.benchmarks.views import QUERIES, equal, load, rows_of, steps, way_of

SCALE = 0.01
SHARE = 0.02
"""Of orders and lines, changed at each step."""
IN_FULL = {"Q15", "Q20"}
"""The queries that have no incremental way yet."""


@pytest.mark.usefixtures("lean")
@pytest.mark.timeout(3600)
def test_views_stay_equal(spark: SparkSession, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config) -> None:
    refreshes = int(pytestconfig.getoption("--refreshes"))
    load(spark, SCALE)
    for name, query in QUERIES.items():
        spark.sql(f"CREATE MATERIALIZED VIEW {name} REFRESH POLICY INCREMENTAL AS {query}").collect()
    done: Counter[str] = Counter()
    in_full, different = set(), []
    for what, statements in steps(spark, SHARE, rounds=-(-refreshes // 3))[:refreshes]:
        for statement in statements:
            spark.sql(statement).collect()
        for name, query in QUERIES.items():
            way = way_of(spark.sql(f"REFRESH MATERIALIZED VIEW {name}").collect()[0][0])
            done[way] += 1
            in_full |= {name} if way.startswith("full") else set()
            if not equal(rows_of(spark.table(name)), rows_of(spark.sql(query))):
                different.append(f"{name} after {what}")
    ways = ", ".join(f"{way} {times}" for way, times in done.most_common())
    with capsys.disabled():
        print(f"\n{refreshes} refreshes of {len(QUERIES)} views: {ways}")
    assert not different
    assert in_full <= IN_FULL
