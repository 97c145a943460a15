"""AUTO CDC: changes in any order, twice, and in any commits give the table that plain Python computes: `--cases N --seed S`.

A case is the changes of some keys; thirty of them share a table, whose flows die or stop between the commits.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.changes_by_hand import Change, history, newest
from tests.differential.view_rounds import lean
from tests.integration.workshop import Workshop

_TOGETHER = 30
_KEYS = 4
"""Keys of a case."""
_VALUES = st.none() | st.integers(0, 2)
_CHANGE = st.builds(Change, st.integers(0, _KEYS - 1), st.integers(0, 9), st.sampled_from("UUUUD"), _VALUES, _VALUES)
_CASE = st.lists(_CHANGE, max_size=12)
_END = st.builds(Change, st.just(-1), st.integers(0, 7), st.just("T"))
_COMMITS = 3
_HEAD = "CREATE STREAMING TABLE {} TBLPROPERTIES ({}) FLOW AUTO CDC FROM STREAM {} KEYS (k)"
_RETENTION = "'auto-cdc.tombstone-retention' = '1 day'"  # longer than the test: no deletion leaves
_TAIL = "APPLY AS DELETE WHEN op = 'D' SEQUENCE BY at COLUMNS (k, a, b)"
_FLOWS = {
    "newest": ("changes", ""),
    "patched": ("changes", "IGNORE NULL UPDATES"),
    "cut": ("with_ends", "APPLY AS TRUNCATE WHEN op = 'T'"),
    "cut_patched": ("with_ends", "APPLY AS TRUNCATE WHEN op = 'T' IGNORE NULL UPDATES"),
    "versions": ("changes", "STORED AS SCD TYPE 2"),
    "versions_of_a": ("changes", "STORED AS SCD TYPE 2 TRACK HISTORY ON a"),
    "versions_patched": ("changes", "STORED AS SCD TYPE 2 IGNORE NULL UPDATES"),
}


@pytest.mark.timeout(3600)
def test_any_order_gives_the_same_table(spark: SparkSession, pytestconfig: pytest.Config) -> None:
    sql = Workshop(spark)

    # One example takes seconds, so hypothesis does not look for a smaller one: a failure shows the changes of its keys alone.
    @seed(pytestconfig.getoption("--seed"))
    @settings(
        max_examples=1 - (-int(pytestconfig.getoption("--cases")) // _TOGETHER),  # the first one is the smallest: no changes
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(st.lists(_CASE, min_size=_TOGETHER, max_size=_TOGETHER), st.lists(_END, max_size=2), st.randoms(use_true_random=False))
    def check(cases: list[list[Change]], ends: list[Change], random_: random.Random) -> None:
        changes = [replace(each, key=number * _KEYS + each.key) for number, case in enumerate(cases) for each in case]
        _check(sql, changes, ends, random_)

    with lean(spark):
        check()


def _check(sql: Workshop, changes: list[Change], ends: list[Change], random_: random.Random) -> None:
    """Keep all tables over the changes, and compare each with what it must hold."""
    with_ends = changes + ends
    expected = {
        "newest": newest(changes),
        "patched": newest(changes, ignores_nulls=True),
        "cut": newest(with_ends, truncates=True),
        "cut_patched": newest(with_ends, ignores_nulls=True, truncates=True),
        "versions": history(changes),
        "versions_of_a": history(changes, tracks_only_a=True),
        "versions_patched": history(changes, ignores_nulls=True),
    }
    for source in ("changes", "with_ends"):
        sql(f"CREATE TABLE {source} (k INT, at INT, op STRING, a INT, b INT) USING delta")
    properties = f"'state.backend.type' = '{random_.choice(('rocksdb', 'delta'))}'"
    has_retention = random_.random() < 0.5
    for name, (source, clauses) in _FLOWS.items():
        given = _RETENTION if has_retention and name in ("newest", "patched") else properties
        sql(f"{_HEAD.format(name, given, source)} {clauses} {_TAIL}")
    twice = changes + random_.choices(changes, k=len(changes) // 5) if changes else []
    for ours, theirs in zip(_commits(twice, random_), _commits(with_ends, random_), strict=True):
        _insert(sql, "changes", ours)
        _insert(sql, "with_ends", theirs)
        _restart(sql, random_.choice(("crash", "stop", "")))
    for name in _FLOWS:
        sql(f"WAIT FLOW {name}")
    found = {name: {tuple(row) for row in sql(f"SELECT * FROM {name}")} for name in _FLOWS}
    for name in _FLOWS:
        wrong = {row[0] for row in found[name] ^ expected[name]}
        story = [each for each in with_ends if each.key in wrong or each.op == "T"]
        assert not wrong, (
            f"{name}, {properties}: {story}\n{sorted(found[name] - expected[name], key=repr)}, not {expected[name] - found[name]}"
        )
    for name in _FLOWS:
        sql(f"DROP STREAMING TABLE {name}")
    for source in ("changes", "with_ends"):
        sql(f"DROP TABLE {source}")


def _commits(changes: list[Change], random_: random.Random) -> list[list[Change]]:
    """Changes in another order, cut into commits."""
    shuffled = random_.sample(changes, len(changes))
    cuts = sorted(random_.randrange(len(changes) + 1) for _ in range(_COMMITS - 1))
    return [shuffled[start:stop] for start, stop in pairwise([0, *cuts, len(changes)])]


def _insert(sql: Workshop, table: str, changes: list[Change]) -> None:
    if changes:
        rows = [(None if each.op == "T" else each.key, each.at, each.op, each.a, each.b) for each in changes]
        frame = sql.spark.createDataFrame(rows, "k INT, at INT, op STRING, a INT, b INT")
        frame.coalesce(1).write.format("delta").mode("append").saveAsTable(table)


def _restart(sql: Workshop, how: str) -> None:
    if how == "crash":
        sql.crash()
        sql.resume()
    elif how == "stop":
        for verb in ("STOP", "START"):
            for name in _FLOWS:
                sql(f"{verb} FLOW {name}")
