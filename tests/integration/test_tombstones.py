"""The deletions of AUTO CDC leave the state after a retention; rows that are there never do.

Expected values are worked out by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.moments import Moment, listened
from sqlext.testing import HandClock
from tests.integration.test_session_windows import write_as
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean", "unhurried")

DAY = 86_400.0
RETENTION = "'auto-cdc.tombstone-retention' = '7 days'"
CLAUSES = "FROM STREAM cdc KEYS (b, a) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY at COLUMNS * EXCEPT (op, at)"
CREATE = f"CREATE STREAMING TABLE t TBLPROPERTIES ({RETENTION}, 'execution.flush.max-interval' = '1 h') FLOW AUTO CDC {CLAUSES}"


@pytest.fixture
def clock(sql: Workshop) -> HandClock:
    """A clock that only the test moves; flows take the time of micro-batches from it."""
    sql.clock = sql.installed.clock = clock = HandClock()
    return clock


@pytest.fixture(autouse=True)
def cdc(sql: Workshop, clock: HandClock) -> None:
    """The columns of the key do not come in the order of KEYS, and their types differ."""
    sql("CREATE TABLE cdc (op STRING, at INT, a STRING, b INT, v INT) USING delta")


def come(sql: Workshop, values: str) -> list[tuple[Any, ...]]:
    """Let changes come in one commit, flushed as one micro-batch; return the table's rows."""
    sql(f"INSERT INTO cdc VALUES {values}")
    sql("WAIT FLOW t")
    return sql.batch("SELECT * FROM t")


def stored(sql: Workshop) -> list[tuple[str, int]]:
    """The keys whose newest change the state holds."""
    frame = sql.spark.read.format("delta").load(str(sql.home("t") / "state"))
    return sorted((row[1] or "", row[0]) for row in frame.select("__sqlext_k1", "__sqlext_k2").collect())


@pytest.mark.parametrize("writing", ["whole", "marked", "merged"])
def test_deletions_leave_and_rows_stay(sql: Workshop, clock: HandClock, monkeypatch: pytest.MonkeyPatch, writing: str) -> None:
    write_as(writing, monkeypatch)
    sql(CREATE)
    assert come(sql, "('I', 1, 'x', 1, 10), ('I', 2, 'y', 1, 20), ('I', 5, 'y', 2, 30)") == [
        ("x", 1, 10),
        ("y", 1, 20),
        ("y", 2, 30),
    ]
    assert come(sql, "('D', 8, 'x', 1, NULL), ('D', 9, 'y', 2, NULL)") == [("y", 1, 20)]
    clock.advance(6 * DAY)
    assert come(sql, "('U', 7, 'x', 1, 11), ('I', 3, 'z', 3, 40)") == [
        ("y", 1, 20),
        ("z", 3, 40),
    ]  # x is renewed, and stays deleted
    clock.advance(2 * DAY)
    assert come(sql, "('U', 4, 'z', 3, 41)") == [("y", 1, 20), ("z", 3, 41)]  # y 2 ends
    assert come(sql, "('U', 5, 'z', 3, 42)") == [("y", 1, 20), ("z", 3, 42)]
    assert stored(sql) == [("x", 1), ("y", 1), ("z", 3)]
    # an older change than the deletion that has left; one than the row that is there; one than the deletion that is kept
    changes = "('U', 6, 'y', 2, 31), ('U', 1, 'y', 1, 19), ('U', 6, 'x', 1, 12)"
    assert come(sql, changes) == [("y", 1, 20), ("y", 2, 31), ("z", 3, 42)]
    clock.advance(100 * DAY)
    assert come(sql, "('U', 1, 'y', 1, 18), ('I', 1, 'k', 4, 1)") == [
        ("k", 4, 1),
        ("y", 1, 20),
        ("y", 2, 31),
        ("z", 3, 42),
    ]
    assert come(sql, "('D', 2, 'k', 4, 1)") == [("y", 1, 20), ("y", 2, 31), ("z", 3, 42)]
    assert stored(sql) == [("k", 4), ("y", 1), ("y", 2), ("z", 3)]
    assert [commit["groups_ended"] for commit in sql.commits("t")] == [0, 0, 0, 1, 0, 0, 1, 0]
    described = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert described["groups_ended"] == "2"
    assert "a deletion leaves the state 7 days after the last change of its key" in described["state"]


@pytest.mark.parametrize("moment", [Moment.STATE_COMMITTED, Moment.FLUSH_COMMITTED])
def test_a_crash_between_the_commits_of_a_flush(sql: Workshop, clock: HandClock, moment: Moment) -> None:
    """The repeated flush ends the same deletions as the first one, although time has passed."""
    sql(CREATE)
    come(sql, "('I', 1, 'x', 1, 10), ('I', 2, 'y', 1, 20)")
    come(sql, "('D', 3, 'x', 1, NULL)")
    clock.advance(8 * DAY)

    def dies(reached: Moment, flow: str) -> None:
        if reached is moment:
            raise OSError("died here")

    with listened(dies), pytest.raises(PySparkException, match="died here"):
        come(sql, "('D', 4, 'y', 1, NULL), ('I', 5, 'z', 1, 30)")
    sql.crash()
    clock.advance(8 * DAY)
    sql.resume()
    assert come(sql, "('I', 1, 'w', 1, 40)") == [("w", 1, 40), ("z", 1, 30)]
    assert come(sql, "('U', 2, 'w', 1, 41)") == [("w", 1, 41), ("z", 1, 30)]
    assert stored(sql) == [("w", 1), ("z", 1)]
    assert sum(commit["groups_ended"] for commit in sql.commits("t")) == 2


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"{CREATE} STORED AS SCD TYPE 2", "with SCD TYPE 2 every change is part of the history"),
        (CREATE.replace("DELETE WHEN", "TRUNCATE WHEN"), "with APPLY AS TRUNCATE WHEN a flush computes the table of all keys"),
        (CREATE.replace("APPLY AS DELETE WHEN op = 'D' ", ""), "without APPLY AS DELETE WHEN there are no deletions"),
        (
            CREATE.replace(RETENTION, f"{RETENTION}, 'state.backend.type' = 'rocksdb'"),
            "is rocksdb: aggregates in Spark's state store have no time to live",
        ),
        (
            f"CREATE STREAMING TABLE t TBLPROPERTIES ({RETENTION}) AS SELECT a, count(*) AS n FROM STREAM cdc GROUP BY a",
            "only AUTO CDC",
        ),
        (
            CREATE.replace(RETENTION, f"{RETENTION}, 'execution.runtime-mode' = 'BATCH'"),
            "this query ends: it has no state that could",
        ),
        (CREATE.replace("7 days", "7"), "cannot be `7`"),
    ],
)
def test_what_has_no_deletions_that_could_leave_is_refused(sql: Workshop, statement: str, message: str) -> None:
    with pytest.raises(PySparkException) as caught:
        sql(statement)
    assert "auto-cdc.tombstone-retention" in str(caught.value)
    assert message in str(caught.value)
    assert not sql.spark.catalog.tableExists("t")


def test_a_default_of_the_session_is_for_flows_with_deletions(sql: Workshop) -> None:
    sql("SET auto-cdc.tombstone-retention = 7 days")
    sql("INSERT INTO cdc VALUES ('I', 1, 'x', 1, 10)")
    sql(f"CREATE STREAMING TABLE history FLOW AUTO CDC {CLAUSES} STORED AS SCD TYPE 2")
    sql("CREATE STREAMING TABLE counts AS SELECT a, count(*) AS n FROM STREAM cdc GROUP BY a")
    sql(f"CREATE STREAMING TABLE t FLOW AUTO CDC {CLAUSES}")
    sql("RESET `auto-cdc.tombstone-retention`")
    with pytest.raises(PySparkException, match=r"stays as it is: `auto-cdc\.tombstone-retention` is for new flows"):
        sql(f"ALTER FLOW t SET ({RETENTION.replace('7', '8')})")
    described = [str(sql(f"DESCRIBE FLOW {flow}")) for flow in ("history", "counts", "t")]
    assert ["a deletion leaves" in each for each in described] == [False, False, True]
