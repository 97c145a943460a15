"""TPC-H's 22 queries as materialized views: after each of ten changes, equal to their queries; prints how they were kept."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tests.benchmarks.views import QUERIES, equal, load, rows, steps

REFRESHES = 10
SCALE = 0.01
SHARE = 0.02
"""Of orders and lines, changed at each step."""
IN_FULL = {"Q15", "Q20"}
"""The queries that have no incremental way yet."""


@pytest.mark.usefixtures("lean")
@pytest.mark.timeout(1200)
def test_views_stay_equal_through_ten_refreshes(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    load(spark, SCALE)
    for name, query in QUERIES.items():
        spark.sql(f"CREATE MATERIALIZED VIEW {name} REFRESH POLICY INCREMENTAL AS {query}").collect()
    done: Counter[str] = Counter()
    in_full: set[str] = set()
    different = []
    for what, statements in steps(spark, SHARE, rounds=4)[:REFRESHES]:
        for statement in statements:
            spark.sql(statement).collect()
        for name, query in QUERIES.items():
            said = spark.sql(f"REFRESH MATERIALIZED VIEW {name}").collect()[0][0]
            way = re.split(r", \d|, version", said.split(": ", 1)[1])[0]
            done[way] += 1
            in_full |= {name} if way.startswith("full") else set()
            expected = sorted(map(tuple, spark.sql(query).collect()), key=repr)
            if not equal(rows(spark, name), expected):
                different.append(f"{name} after {what}")
    with capsys.disabled():
        print("\n" + ", ".join(f"{way} {times}" for way, times in done.most_common()))
    assert not different
    assert done.total() == REFRESHES * len(QUERIES)
    assert in_full <= IN_FULL
