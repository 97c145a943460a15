"""Groups with a time to live: they end when no micro-batch has a row of theirs for so long, and their rows stay or go.

Expected values are worked out by hand: each row counts in the group that its key has when it comes, or in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.moments import Moment, listened
from sqlext.testing import HandClock
from tests.integration.test_session_windows import write_as
from tests.integration.workshop import Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean", "unhurried")

DAY = 86_400.0
KEPT, GONE = "'table.exec.state.ttl.expired-rows' = 'keep'", "'table.exec.state.ttl.expired-rows' = 'delete'"
BUFFER = "'execution.flush.max-interval' = '10 minutes'"
MEANS = "SELECT /*+ STATE_TTL(e, '7 days') */ k, count(*) AS n, sum(v) AS total, avg(v) AS mean FROM STREAM ev AS e GROUP BY k"
DISTINCT = "SELECT k, count(DISTINCT v) AS n, sum(v) AS total FROM STREAM ev WITH ('table.exec.state.ttl' = '7 days') GROUP BY k"


@pytest.fixture
def clock(sql: Workshop) -> HandClock:
    """A clock that only the test moves; flows take the time of micro-batches from it."""
    sql.clock = sql.installed.clock = clock = HandClock()
    return clock


def create(sql: Workshop, flows: dict[str, tuple[str, str]]) -> None:
    """Create a streaming table of each query, with properties."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    side_by_side(lambda flow: sql(f"CREATE STREAMING TABLE {flow} TBLPROPERTIES ({flows[flow][1]}) AS {flows[flow][0]}"), flows)


def insert(sql: Workshop, values: str, flows: Sequence[str]) -> None:
    """Insert rows in one commit, and have them flushed as one micro-batch."""
    sql(f"INSERT INTO ev VALUES {values}")
    side_by_side(lambda flow: sql(f"WAIT FLOW {flow}"), flows)


def said(sql: Workshop, flow: str, key: str) -> list[Any]:
    """A fact of each of a flow's commits on its table."""
    return [commit[key] for commit in sql.commits(flow)]


def stored(sql: Workshop, flow: str, *columns: str, table: str = "state") -> list[tuple[Any, ...]]:
    """Columns of the state's table, or of that of distinct values."""
    frame = sql.spark.read.format("delta").load(str(sql.home(flow) / table))
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


def described(sql: Workshop, flow: str) -> dict[str, str]:
    return {row.property: row.value for row in sql(f"DESCRIBE FLOW {flow}")}


@pytest.mark.parametrize("writing", ["whole", "marked", "merged"])
def test_rows_of_ended_groups_stay_or_go(sql: Workshop, clock: HandClock, monkeypatch: pytest.MonkeyPatch, writing: str) -> None:
    write_as(writing, monkeypatch)
    flows = ["kept", "gone"]
    create(sql, {"kept": (MEANS, BUFFER), "gone": (MEANS, f"{BUFFER}, {GONE}")})
    insert(sql, "('a', 1), ('b', 2), (NULL, 6)", flows)
    clock.advance(4 * DAY)
    insert(sql, "('b', 3)", flows)
    clock.advance(4 * DAY)
    insert(sql, "('c', 5), ('a', 7), ('a', 8)", flows)  # a and null are 8 days old, b is 4
    assert sql.batch("SELECT k, n, total, mean FROM kept") == [
        ("a", 1, 1, 1.0),
        ("b", 2, 5, 2.5),
        ("c", 1, 5, 5.0),
        (None, 1, 6, 6.0),
    ]
    assert sql.batch("SELECT k, n, total, mean FROM gone") == [("a", 2, 15, 7.5), ("b", 2, 5, 2.5), ("c", 1, 5, 5.0)]
    clock.advance(DAY)
    insert(sql, "('a', 9), ('b', 4), (NULL, 1), (NULL, 2)", flows)
    assert sql.batch("SELECT k, n, total FROM kept") == [("a", 1, 1), ("b", 3, 9), ("c", 1, 5), (None, 1, 6)]
    assert sql.batch("SELECT k, n, total FROM gone") == [("a", 3, 24), ("b", 3, 9), ("c", 1, 5), (None, 2, 3)]

    for flow in flows:
        batches = said(sql, flow, "last_batch")
        assert batches == sorted({*batches})
        assert said(sql, flow, "groups_ended") == [0, 0, 2, 0]
    assert said(sql, "kept", "rows_dropped") == [0, 0, 2, 3]
    assert said(sql, "gone", "rows_dropped") == [0, 0, 0, 0]
    # of an ended group, the key alone is left, or nothing
    keys = [
        (key, count is None, touched is None)
        for key, count, touched in stored(sql, "kept", "__sqlext_k1", "__sqlext_b1", "__sqlext_touched")
    ]
    assert keys == [("a", True, True), ("b", False, False), ("c", False, False), (None, True, True)]
    assert [key for (key,) in stored(sql, "gone", "__sqlext_k1")] == ["a", "b", "c", None]
    found = described(sql, "kept")
    assert (found["groups_ended"], found["rows_dropped"]) == ("2", "5")
    assert "a group's state ends 7 days after its last row: the rows of ended groups stay as they are" in found["state"]
    assert "the rows of ended groups are deleted" in described(sql, "gone")["state"]


def test_what_ends_leaves_the_state(sql: Workshop, clock: HandClock) -> None:
    """Rows that go are deleted by one flush, and the next one deletes what the state had of them; so also after a restart."""
    create(sql, {"gone": (DISTINCT, f"{BUFFER}, {GONE}")})
    insert(sql, "('a', 1), ('a', 2), ('b', 1)", ["gone"])
    clock.advance(8 * DAY)
    insert(sql, "('c', 1)", ["gone"])
    assert sql.batch("SELECT * FROM gone") == [("c", 1, 1)]
    assert stored(sql, "gone", "__sqlext_k1", "__sqlext_v1", table="values") == [("c", 1)]
    sql("STOP FLOW gone")
    sql("INSERT INTO gone VALUES ('z', 0, 0)")  # a row of somebody else
    clock.advance(DAY)
    sql("START FLOW gone")
    insert(sql, "('a', 2)", ["gone"])
    insert(sql, "('c', 3)", ["gone"])
    assert [key for (key,) in stored(sql, "gone", "__sqlext_k1")] == ["a", "c"]
    assert sql.batch("SELECT * FROM gone") == [("a", 1, 2), ("c", 2, 4), ("z", 0, 0)]
    sql("FLUSH FLOW gone")
    clock.advance(30 * DAY)
    sql("FLUSH FLOW gone")
    assert said(sql, "gone", "groups_ended") == [0, 2, 0, 0]  # while nothing comes, nothing ends
    insert(sql, "('d', 1)", ["gone"])
    assert sql.batch("SELECT * FROM gone") == [("d", 1, 1), ("z", 0, 0)]


@pytest.mark.parametrize("moment", [Moment.VALUES_COMMITTED, Moment.STATE_COMMITTED, Moment.FLUSH_COMMITTED])
def test_a_crash_between_the_commits_of_a_flush(sql: Workshop, clock: HandClock, moment: Moment) -> None:
    """The repeated flush ends the same groups as the first one, although time has passed."""
    properties = {"kept": f"{BUFFER}, {KEPT}", "gone": f"{BUFFER}, {GONE}", "each": GONE}
    flows = [*properties]
    create(sql, {flow: (DISTINCT, given) for flow, given in properties.items()})
    insert(sql, "('x', 1), ('x', 2), ('y', 1)", flows)
    clock.advance(2 * DAY)
    insert(sql, "('w', 4)", flows)
    clock.advance(6 * DAY)
    _die_at(sql, moment, "('x', 2), ('x', 3), ('z', 1), ('w', 5)", flows)  # x comes back after its end, y ends, w is 6 days old
    clock.advance(3 * DAY)
    sql.resume()
    insert(sql, "('x', 3), ('x', 4), ('y', 9)", flows)
    assert sql.batch("SELECT * FROM kept") == [("w", 2, 9), ("x", 2, 3), ("y", 1, 1), ("z", 1, 1)]
    for flow in ("gone", "each"):
        assert sql.batch(f"SELECT * FROM {flow}") == [("w", 2, 9), ("x", 3, 12), ("y", 1, 9), ("z", 1, 1)], flow
    for flow in flows:
        batches = said(sql, flow, "last_batch")
        assert batches == sorted({*batches})
        assert sum(said(sql, flow, "groups_ended")) == 2
    assert sum(said(sql, "kept", "rows_dropped")) == 5


def _die_at(sql: Workshop, moment: Moment, values: str, flows: Sequence[str]) -> None:
    def dies(reached: Moment, flow: str) -> None:
        if reached is moment:
            raise OSError("died here")

    def dying(flow: str) -> None:
        with pytest.raises(PySparkException, match="died here"):
            sql(f"WAIT FLOW {flow}")

    with listened(dies):
        sql(f"INSERT INTO ev VALUES {values}")
        side_by_side(dying, flows)
    sql.crash()


ABOVE = {
    "having": "SELECT k, count(*) AS n FROM STREAM ev GROUP BY k HAVING count(*) > 1",
    "above": "SELECT n, count(*) AS groups FROM (SELECT k, count(*) AS n FROM STREAM ev GROUP BY k) GROUP BY n",
}


@pytest.mark.parametrize(
    ("query", "kept", "gone"),
    [
        # kept: a 2, b 1, c 2; gone: a 1, c 2, and then a 2, b 1, c 2
        ("above", [[(1, 1), (2, 2)]] * 2, [[(1, 1), (2, 1)], [(1, 1), (2, 2)]]),
        # the same; b stays ended although HAVING has never let it into the table
        ("having", [[("a", 2), ("c", 2)]] * 2, [[("c", 2)], [("a", 2), ("c", 2)]]),
    ],
)
def test_having_and_queries_above(
    sql: Workshop, clock: HandClock, query: str, kept: list[list[Any]], gone: list[list[Any]]
) -> None:
    sql("SET table.exec.state.ttl = 7 days")
    create(sql, {"kept": (ABOVE[query], KEPT), "gone": (ABOVE[query], GONE)})
    sql("RESET table.exec.state.ttl")
    insert(sql, "('a', 1), ('a', 1), ('b', 1)", ["kept", "gone"])
    clock.advance(8 * DAY)
    insert(sql, "('a', 1), ('c', 1), ('c', 1)", ["kept", "gone"])
    assert [sql.batch(f"SELECT * FROM {flow}") for flow in ("kept", "gone")] == [kept[0], gone[0]]
    sql.crash()
    clock.advance(DAY)
    sql.resume()
    insert(sql, "('b', 1), ('a', 1)", ["kept", "gone"])
    assert [sql.batch(f"SELECT * FROM {flow}") for flow in ("kept", "gone")] == [kept[1], gone[1]]


def test_the_time_since_a_savepoint_does_not_count(sql: Workshop, clock: HandClock) -> None:
    """What came since is read again, and finds the groups as old as they were."""
    flows = ["kept", "gone"]
    create(sql, {"kept": (MEANS, BUFFER), "gone": (MEANS, f"{BUFFER}, {GONE}")})
    insert(sql, "('a', 1), ('b', 2)", flows)
    clock.advance(4 * DAY)
    for flow in flows:
        sql(f"SAVEPOINT FLOW {flow} AS s")
    insert(sql, "('a', 3)", flows)
    then = {flow: sql.batch(f"SELECT * FROM {flow}") for flow in flows}
    clock.advance(20 * DAY)
    for flow in flows:
        sql(f"RESTORE FLOW {flow} TO s")
        sql(f"WAIT FLOW {flow}")
        assert sql.batch(f"SELECT * FROM {flow}") == then[flow]
    clock.advance(4 * DAY)
    insert(sql, "('a', 5), ('b', 6)", flows)  # a is 4 days old, and b is 8
    assert sql.batch("SELECT k, n, total FROM kept") == [("a", 3, 9), ("b", 1, 2)]
    assert sql.batch("SELECT k, n, total FROM gone") == [("a", 3, 9), ("b", 1, 6)]


def test_what_a_savepoint_interrupts_lives_from_when_it_runs_again(sql: Workshop, clock: HandClock) -> None:
    flows = ["kept", "gone"]
    create(sql, {"kept": (MEANS, BUFFER), "gone": (MEANS, f"{BUFFER}, {GONE}")})
    insert(sql, "('a', 1)", flows)
    for flow in flows:
        (sql.home(flow) / "begun" / "1").write_text(clock.now().isoformat())  # all that there is of one that has just begun
        sql(f"SAVEPOINT FLOW {flow} AS s")
    clock.advance(20 * DAY)
    for flow in flows:
        sql(f"RESTORE FLOW {flow} TO s")
    insert(sql, "('c', 1)", flows)
    clock.advance(DAY)
    insert(sql, "('c', 2)", flows)
    for flow in flows:
        assert sql.batch(f"SELECT k, n, total FROM {flow}") == [("a", 1, 1), ("c", 2, 3)]


def test_what_cannot_change(sql: Workshop, clock: HandClock) -> None:
    create(sql, {"t": (MEANS, BUFFER)})
    for key, value in (("table.exec.state.ttl", "8 days"), ("table.exec.state.ttl.expired-rows", "delete")):
        for statement in (
            f"ALTER FLOW t SET ('{key}' = '{value}')",
            f"ALTER STREAMING TABLE t SET TBLPROPERTIES ('{key}' = '{value}')",
        ):
            with pytest.raises(PySparkException, match=f"stays as it is: `{key}` is for new flows"):
                sql(statement)
    with pytest.raises(PySparkException, match=r"definition: `table\.exec\.state\.ttl` differs"):
        sql(f"CREATE OR REFRESH STREAMING TABLE t TBLPROPERTIES ({BUFFER}) AS {MEANS.replace('7', '8')}")
    (answer,) = sql(f"CREATE OR REFRESH STREAMING TABLE t TBLPROPERTIES ({BUFFER}) AS {MEANS}")
    assert "keeps running" in answer[0]


def test_groups_may_live_for_longer_than_there_are_dates(sql: Workshop, clock: HandClock) -> None:
    create(sql, {"t": (MEANS.replace("7 days", "1000000 days"), KEPT)})
    insert(sql, "('a', 1)", ["t"])
    insert(sql, "('a', 3)", ["t"])
    assert sql.batch("SELECT k, n, total FROM t") == [("a", 2, 4)]
    with pytest.raises(PySparkException, match="longer than 999999999 days"):
        sql(f"CREATE STREAMING TABLE u AS {MEANS.replace('7 days', '1000000000 days')}")
