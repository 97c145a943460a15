"""Materialized views after generated changes equal their queries over the versions that their commits name.

`--rounds N --seed S`, and `--groups 3-5` for some of the rounds, five a group.
"""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from sqlext.execution.delta import long_marks
from sqlext.execution.views import cost, near
from tests.differential.view_changes import SOURCES, kind_of
from tests.differential.view_queries import QUERIES
from tests.differential.view_rounds import (
    Refresh,
    lean,
    location_of,
    newest_commit,
    newest_version,
    run_round,
    statements,
    turn,
    ways_taken,
)

_A_GROUP = 5
_REFRESHES: list[Refresh] = []
_CHANGES: Counter[str] = Counter()
_MOST_IN_FULL = 0.35
_ENOUGH = 100  # refreshes for a share to mean something


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "group" in metafunc.fixturenames:
        count = -(-int(metafunc.config.getoption("--rounds")) // _A_GROUP)
        first, _, last = str(metafunc.config.getoption("--groups")).partition("-")
        metafunc.parametrize("group", range(int(first or 0), min(count, int(last or first or count) + 1)))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--seed"))


@pytest.mark.timeout(1800)
def test_views_equal_their_queries(spark: SparkSession, pytestconfig: pytest.Config, seed: int, group: int) -> None:
    """After each step, all views of the round, each refreshed once.

    In every other round they have partial results beside them, in every other pair of rounds tables are read in parts, and in
    every third round all deletion vectors that were replaced are read by themselves, as those are which differ by many marks.
    """
    last = min((group + 1) * _A_GROUP, int(pytestconfig.getoption("--rounds")))
    stories = []
    for number in range(group * _A_GROUP, last):
        in_parts = 0 if number % 4 in (1, 2) else near.READ_IN_PARTS_BYTES
        with (
            patch.object(cost, "PARTIALS_BYTES", cost.PARTIALS_BYTES if number % 2 else 0),
            patch.object(near, "READ_IN_PARTS_BYTES", in_parts),
            patch.object(long_marks, "MOST_MARKS", long_marks.MOST_MARKS if number % 3 else -1),
        ):
            round_ = run_round(spark, seed, number, statements(spark))
        _REFRESHES.extend(round_.refreshes)
        _CHANGES.update(filter(None, map(kind_of, round_.statements)))
        if round_.failures:
            stories.append(round_.story())
            print(stories[-1])
    assert not stories, f"{len(stories)} of {last - group * _A_GROUP} rounds failed, see above; the first:\n{stories[0]}"


def test_few_refreshes_are_full(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what refreshes did, by query; run after the rounds."""
    if not _REFRESHES:
        pytest.skip("no round was run")
    with capsys.disabled():
        print("\n" + ", ".join(f"{what} {times}" for what, times in _CHANGES.most_common()))
        print(ways_taken(_REFRESHES))
    wrong = [
        f"{each.query.name}: {each.because}"
        for each in _REFRESHES
        if each.done == "full" and each.query.is_incremental and not each.changes_schema
    ]
    assert not wrong, "in full without need: " + "; ".join(wrong)
    if len(_REFRESHES) >= _ENOUGH:
        assert sum(each.done == "full" for each in _REFRESHES) <= _MOST_IN_FULL * len(_REFRESHES)


@pytest.mark.parametrize("change", ["insert", "delete", "overwrite"])
def test_what_another_writes_into_the_view_is_replaced(spark: SparkSession, change: str) -> None:
    """The next refresh is in full, and says which version of the view is not its own."""
    views = statements(spark)
    query = QUERIES["sums"]
    with lean(spark):
        for source in SOURCES:
            spark.sql(f"CREATE TABLE {source.name} USING delta AS {source.select(0, 30, 1)}").collect()
        views.create("v", query.text)
        folder = location_of(spark, "v")
        before = newest_commit(folder)
        if change == "delete":
            spark.sql(f"DELETE FROM delta.`{folder}` WHERE region = 'n' OR region IS NULL").collect()
        else:
            mode = "append" if change == "insert" else "overwrite"
            spark.table("v").limit(2).write.format("delta").mode(mode).save(str(folder))
        foreign = newest_version(folder)
        assert foreign == before.newest + 1
        spark.sql("UPDATE orders SET qty = qty + 1 WHERE oid < 4").collect()
        views.refresh("v")
        after = newest_commit(folder)
        assert (after.version, after.newest, after.done) == (foreign + 1, foreign + 1, "full")
        assert str(foreign) in after.because
        assert after.sources == {"orders": 1}
        assert spark.sql(f"SELECT * FROM v EXCEPT ALL ({query.text})").isEmpty()
        assert spark.sql(f"({query.text}) EXCEPT ALL SELECT * FROM v").isEmpty()
        spark.sql("UPDATE orders SET qty = qty + 1 WHERE oid < 4").collect()
        views.refresh("v")
        assert newest_commit(folder).done != "full"
        spark.sql("DROP MATERIALIZED VIEW v")


def test_forty_rounds_have_all_queries() -> None:
    assert {query.name for number in range(40) for query in turn(24, number)} == set(QUERIES)
