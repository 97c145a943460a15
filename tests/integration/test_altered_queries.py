"""ALTER FLOW .. AS and CREATE OR REFRESH with another query: the table is the batch query of the new text, in one commit."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sqlext.errors import FlowError
from sqlext.execution.delta import target
from sqlext.execution.delta.transaction import CommitIdentity, KnownFiles, TableTransaction
from sqlext.execution.flows.alteration import Note
from sqlext.testing import Moment, listened
from tests.integration.workshop import DEADLINE, Workshop

MORE = "INSERT INTO ev VALUES ('a', 10), ('c', NULL), (NULL, 7), ('d', 4)"
FIRST = "SELECT k, count(*) AS n, sum(v) AS total FROM STREAM ev WHERE v IS NULL OR v > 0 GROUP BY k"


def by(columns: str, tail: str = "GROUP BY k") -> str:
    return f"SELECT {columns} FROM STREAM ev WHERE v IS NULL OR v > 0 {tail}"


def version(sql: Workshop, table: str = "t") -> int:
    return int(sql(f"DESCRIBE HISTORY {table} LIMIT 1")[0].version)


def columns(sql: Workshop, table: str = "t") -> list[str]:
    return list(sql.spark.table(table).columns)


def equals_batch(sql: Workshop, query: str, table: str = "t") -> bool:
    batch = sql.spark.sql(query.replace("STREAM ", ""))
    return columns(sql, table) == batch.columns and sql.batch(f"SELECT * FROM {table}") == sql.batch(query.replace("STREAM ", ""))


def altered(sql: Workshop, query: str) -> str:
    """Alter the flow, with rows in its source that it has not read; readers see one commit."""
    sql(MORE)
    sql("WAIT FLOW t")
    before = version(sql)
    said = str(sql(f"ALTER FLOW t AS {query}")[0][0])
    assert version(sql) == before + 1
    assert equals_batch(sql, query)
    sql("INSERT INTO ev VALUES ('a', -1), ('e', 3), (NULL, NULL)")
    sql("WAIT FLOW t")
    assert equals_batch(sql, query)
    return said


def test_columns_of_a_state_in_the_table_are_added_removed_and_renamed(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t COMMENT 'sums' AS {FIRST}")
    sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t ALTER COLUMN k COMMENT 'who'")
    home = sql.home("t")
    for query, said in (
        (by("k, count(*) AS n, sum(v) AS total, max(v) AS top"), "`top` added, computed over the history"),
        (by("count(1) AS n, k AS key"), "`key` renamed from `k`; `total` removed; `top` removed"),
    ):
        assert said in altered(sql, query)
    assert sql.home("t") == home
    assert sql("DESCRIBE DETAIL t")[0].description == "sums"
    assert [row.comment for row in sql("DESCRIBE t")] == [None, "who"]
    sql.crash()
    assert sql.resume() == ["t"]
    sql(MORE)
    sql("WAIT FLOW t")
    assert equals_batch(sql, by("count(1) AS n, k AS key"))


@pytest.mark.parametrize(
    "changes",
    [
        [
            (by("k, avg(v) AS mean, count(*) AS n, min(v) AS least"), "`mean` added, computed over the history"),
            (by("min(v) AS least, k AS key, avg(v) AS mean"), "`key` renamed from `k`; `n` removed"),
        ],
        [
            (
                by("k, avg(v) AS n, avg(v) * 2 AS twice", "GROUP BY k HAVING avg(v) > 2"),
                "HAVING added, computed over the history",
            ),
            (by("k, avg(v) AS mean"), "HAVING removed"),
        ],
    ],
    ids=["averages", "having"],
)
def test_columns_of_a_state_beside_the_table_are_added_removed_and_renamed(
    sql: Workshop, lean: None, changes: list[tuple[str, str]]
) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    for query, said in changes:
        assert said in altered(sql, query)
    assert [each.name for each in sql.home("t").glob("state*")] == ["state-2"]
    assert [each.name for each in sql.home("t").glob("history*")] == []
    sql("ALTER FLOW t AS " + by("k, count(*) AS n"))
    assert equals_batch(sql, by("k, count(*) AS n"))
    assert [each.name for each in sql.home("t").glob("state*")] == []


def test_rows_are_checked_under_the_names_that_their_columns_get(sql: Workshop, lean: None) -> None:
    sql.source()
    sql("INSERT INTO ev VALUES ('c', -5)")
    dropping = "(CONSTRAINT c EXPECT (least > 0) ON VIOLATION DROP ROW)"
    query = "SELECT k, min(v) AS least, min(-v) AS negated FROM STREAM ev GROUP BY k"
    sql(f"CREATE STREAMING TABLE t {dropping} AS {query}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 1, -1), ("b", 2, -2), (None, 3, -3)]
    said = sql("ALTER FLOW t AS SELECT k, min(-v) AS least, min(v) AS negated FROM STREAM ev GROUP BY k")[0][0]
    assert "`least` a copy of `negated`" in said
    assert sql.batch("SELECT * FROM t") == [("c", 5, -5)]


REFUSED = (
    (FIRST.replace("v > 0", "v > 1"), "WHERE differs"),
    (FIRST.replace("GROUP BY k", "GROUP BY k, v").replace("k,", "k, v,", 1), "GROUP BY differs"),
    (FIRST.replace("STREAM ev", "STREAM ev2"), "FROM differs"),
    ("SELECT k, v FROM STREAM ev WHERE v IS NULL OR v > 0", "it keeps an aggregate, and the new query appends rows"),
    (FIRST.replace("k, count", "k, first(v) AS f, count"), "depends on the order in which rows arrived"),
    (FIRST.replace("k, count", "k, count(DISTINCT v) AS d, count"), "the DISTINCT values of its functions are others"),
    (FIRST.replace("k, count", "k, max(current_timestamp()) AS f, count"), "depends on when a row is read"),
    (FIRST.replace("k, count", "k, max(v) AS k, count"), "called `k`"),
    (FIRST + " ORDER BY n LIMIT 1", "operators above its aggregate"),
    (FIRST.replace("n,", "n, nothing,"), "nothing"),
)


def test_what_cannot_be_changed_in_place_is_refused_and_nothing_is_touched(sql: Workshop, lean: None) -> None:
    sql.source()
    sql.source("ev2")
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")
    before, flow = version(sql), sql.flow("t")
    for query, because in REFUSED:
        for verb in ("", "EXPLAIN "):
            with pytest.raises(PySparkException, match=because):
                sql(f"{verb}ALTER FLOW t AS {query}")
    with pytest.raises(PySparkException, match=r"the query differs\. It cannot be changed in place: WHERE differs"):
        sql(f"CREATE OR REFRESH STREAMING TABLE t AS {REFUSED[0][0]}")
    with pytest.raises(PySparkException, match="There is no flow `u`"):
        sql(f"ALTER FLOW u AS {FIRST}")
    assert (version(sql), sql.flow("t"), sql.shown("t").status) == (before, flow, "RUNNING")


def test_explain_says_what_becomes_of_each_column(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    plan = sql(f"EXPLAIN ALTER FLOW t AS {by('k AS key, count(*) AS n, avg(v) AS mean')}")[0].plan.splitlines()
    assert plan[1:] == [
        "  `key` renamed from `k`",
        "  `n` kept",
        "  `mean` added, computed over the history",
        "  `total` removed",
        "  state: aggregate: delta: partial results are kept in a table of the flow's own, since the aggregate cannot be "
        "continued from its results",
    ]


def test_refresh_with_another_query_changes_it_in_place(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE OR REFRESH STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")
    flow = sql.shown("t").id
    query = by("k, max(v) AS top, count(*) AS n")
    said = sql(f"CREATE OR REFRESH STREAMING TABLE t COMMENT 'tops' AS {query}")[0][0]
    assert "`top` added" in said
    assert "`total` removed" in said
    sql(MORE)
    sql("WAIT FLOW t")
    assert equals_batch(sql, query)
    assert sql("DESCRIBE DETAIL t")[0].description == "tops"
    assert sql.shown("t").id == flow
    before = version(sql)
    sql(f"CREATE OR REFRESH STREAMING TABLE t COMMENT 'tops' AS {query}")
    assert version(sql) == before
    sql("STOP FLOW t")
    again = by("k, avg(v) AS mean, max(v) AS top")
    sql(f"ALTER FLOW t AS {again}")
    assert sql.shown("t").status == "STOPPED"
    assert equals_batch(sql, again)
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert equals_batch(sql, again)


MOMENTS = [
    (Moment.ALTERATION_NOTED, False),
    (Moment.ALTERATION_STATE_COMMITTED, False),
    (Moment.ALTERATION_COMMITTED, True),
    (Moment.ALTERATION_RECORDED, True),
]


@pytest.mark.parametrize("goes_on", [False, True], ids=["dies", "wakes up"])
def test_a_crash_leaves_the_old_query_or_the_new_one(sql: Workshop, lean: None, goes_on: bool) -> None:
    sql.source()
    old, new = by("k, avg(v) AS mean"), by("k, avg(v) AS mean, sum(v) AS total")
    sql(f"CREATE STREAMING TABLE t AS {old}")
    for at, is_new in MOMENTS:
        sql("WAIT FLOW t")

        def crash(moment: Moment, _: str, at: Moment = at) -> None:
            if moment is at:
                sql.crash()
                assert sql.resume() == ["t"]
                if not goes_on:
                    raise RuntimeError("the driver dies here")

        with listened(crash), pytest.raises(PySparkException):
            sql(f"ALTER FLOW t AS {new}")
        sql(MORE)
        sql("WAIT FLOW t")
        assert equals_batch(sql, new if is_new else old), at
        assert sql.shown("t").status == "RUNNING"
        assert [each.name for each in sql.home("t").glob("alteration*")] == []
        assert len([*sql.home("t").glob("state*")]) == 1
        if is_new:
            sql(f"ALTER FLOW t AS {old}")


def test_an_error_on_the_way_leaves_the_old_flow_running(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")

    def fail(moment: Moment, _: str) -> None:
        if moment is Moment.ALTERATION_STATE_COMMITTED:
            raise RuntimeError("no space left on device")

    with listened(fail), pytest.raises(PySparkException, match="no space left"):
        sql(f"ALTER FLOW t AS {by('k, avg(v) AS mean')}")
    sql(MORE)
    sql("WAIT FLOW t")
    assert equals_batch(sql, FIRST)


def test_a_history_that_is_not_all_there_is_refused(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")
    sql("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    sql("OPTIMIZE ev")
    sql("INSERT INTO ev VALUES ('f', 2)")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("DELETE FROM ev WHERE k = 'a'")
    sql("OPTIMIZE ev")
    sql("VACUUM ev RETAIN 0 HOURS")
    before = sql.batch("SELECT * FROM t")
    with pytest.raises(PySparkException, match="cannot be changed in place: its history cannot be computed"):
        sql(f"ALTER FLOW t AS {by('k, max(v) AS top')}")
    assert sql.batch("SELECT * FROM t") == before
    assert sql.shown("t").status == "STOPPED"
    sql(f"ALTER FLOW t AS {by('k, sum(v) AS total')}")
    assert columns(sql) == ["k", "total"]


def test_an_aggregate_of_one_row_over_a_part_of_a_version(sql: Workshop, lean: None) -> None:
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    for at in range(4):
        sql(f"INSERT INTO ev VALUES ('a', {at})")
    reads = "FROM STREAM ev WITH ('maxFilesPerTrigger' = '1')"
    paced = "TBLPROPERTIES ('execution.checkpointing.interval' = '10 minutes')"
    sql(f"CREATE STREAMING TABLE t {paced} AS SELECT sum(v) AS total {reads}")
    sql.eventually(lambda: sql("SELECT * FROM t"))
    sql(f"ALTER FLOW t AS SELECT max(v) AS top, count(*) AS n, sum(v) AS total {reads}")
    read = next(each for each in sql.commits("t") if each["reason"] == "altered")["last_batch"] + 1
    assert read < 4
    at = next(each.version for each in sql("DESCRIBE HISTORY t") if '"altered"' in str(each.userMetadata))
    assert sql.batch(f"SELECT * FROM t VERSION AS OF {at}") == [(read - 1, read, sum(range(read)))]
    sql("ALTER FLOW t SET ('execution.checkpointing.interval' = '1 second')")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(3, 4, 6)]


def test_distinct_values_stay_beside_other_changes(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {by('k, count(DISTINCT v) AS d, count(*) AS n')}")
    altered(sql, by("k, max(v) AS top, count(DISTINCT v) AS d"))
    with pytest.raises(PySparkException, match="one more function over the same DISTINCT values"):
        sql(f"ALTER FLOW t AS {by('k, max(v) AS top, count(DISTINCT v) AS d, sum(DISTINCT v) AS s')}")
    altered(sql, by("k, max(v) AS top"))
    assert [each.name for each in sql.home("t").glob("values")] == []


def test_constraints_check_the_rows_of_the_new_query(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(
        "CREATE STREAMING TABLE t (CONSTRAINT many EXPECT (n > 1) ON VIOLATION DROP ROW) AS SELECT k, count(*) AS n FROM STREAM "
        "ev GROUP BY k"
    )
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    with pytest.raises(PySparkException, match="The constraint `many` cannot be checked"):
        sql("ALTER FLOW t AS SELECT k, max(v) AS top FROM STREAM ev GROUP BY k")
    sql("ALTER FLOW t AS SELECT k, max(v) AS top, count(*) AS n FROM STREAM ev GROUP BY k")
    assert sql.batch("SELECT * FROM t") == [("a", 10, 2)]
    sql("INSERT INTO ev VALUES ('b', 5)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 10, 2), ("b", 5, 2)]


def test_windows_with_a_watermark_get_what_is_stored_and_no_history(sql: Workshop, lean: None) -> None:
    sql("CREATE TABLE ev (ts TIMESTAMP, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('2026-01-01 00:01:00', 1), ('2026-01-01 00:20:00', 2)")
    windows = "FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 MINUTE GROUP BY window(ts, '10 minutes')"
    sql(f"CREATE STREAMING TABLE t AS SELECT window.start AS at, count(*) AS n, avg(v) AS mean {windows}")
    sql("WAIT FLOW t")
    with pytest.raises(PySparkException, match="a watermark has left late rows out"):
        sql(f"ALTER FLOW t AS SELECT window.start AS at, max(v) AS top {windows}")
    with pytest.raises(PySparkException, match="WATERMARK differs"):
        sql(f"ALTER FLOW t AS SELECT window.start AS at, avg(v) AS mean {windows.replace('1 MINUTE', '2 MINUTE')}")
    sql(f"ALTER FLOW t AS SELECT avg(v) AS average, window.start AS at {windows}")
    sql("INSERT INTO ev VALUES ('2026-01-01 00:02:00', 5), ('2026-01-01 00:21:00', 4)")
    sql("WAIT FLOW t")
    assert [tuple(map(str, row)) for row in sql("SELECT * FROM t ORDER BY at")] == [
        ("1.0", "2026-01-01 00:00:00"),
        ("3.0", "2026-01-01 00:20:00"),
    ]


def test_windows_that_have_left_the_state_are_not_lost_under_constraints(sql: Workshop, lean: None) -> None:
    """A constraint must look at renamed columns again, and only the table has those rows."""
    sql("CREATE TABLE ev (ts TIMESTAMP, v INT) USING delta")
    windows = "FROM STREAM ev WATERMARK ts DELAY OF INTERVAL 1 MINUTE GROUP BY window(ts, '10 minutes')"
    query = f"SELECT window.start AS at, count(*) AS n, avg(v) AS mean {windows}"
    sql(f"CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (n > 0)) AS {query}")
    for minute in ("01", "20", "40", "55"):
        sql(f"INSERT INTO ev VALUES ('2026-01-01 00:{minute}:00', {minute})")
        sql("WAIT FLOW t")
    rows = sql.batch("SELECT CAST(at AS STRING), n FROM t")
    assert len(rows) == 4
    with pytest.raises(PySparkException, match=r"a watermark has let groups leave the state.* and a constraint would look at"):
        sql(f"ALTER FLOW t AS SELECT window.start AS at, count(*) AS n, avg(v) AS average {windows}")
    sql(f"ALTER FLOW t AS SELECT window.start AS at, count(*) AS n {windows}")
    assert sql.batch("SELECT CAST(at AS STRING), n FROM t") == rows


def test_a_state_in_rocksdb_is_refused_by_name(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = 'rocksdb') AS {FIRST}")
    with pytest.raises(PySparkException, match=r"its state is in RocksDB.*state\.backend\.type = delta"):
        sql(f"ALTER FLOW t AS {by('k, count(*) AS n')}")


def test_a_process_that_sleeps_before_its_commit_does_not_make_it_when_another_has_undone_it(
    sql: Workshop, lean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")
    write, slept = TableTransaction.write_whole, list[bool]()

    def sleeping(transaction: TableTransaction, rows: DataFrame, identity: CommitIdentity) -> KnownFiles:
        if identity.app_id.endswith("/query") and not slept:
            slept.append(True)
            sql.crash()
            assert sql.resume() == ["t"]
        return write(transaction, rows, identity)

    monkeypatch.setattr(TableTransaction, "write_whole", sleeping)
    with pytest.raises(PySparkException):
        sql(f"ALTER FLOW t AS {by('k, avg(v) AS mean')}")
    sql(MORE)
    sql("WAIT FLOW t")
    assert equals_batch(sql, FIRST)


def test_a_start_that_failed_is_no_other_driver(sql: Workshop, lean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    with monkeypatch.context() as patch:
        patch.setattr(target, "check_same_table", Mock(side_effect=FlowError("the catalog does not answer")))
        with pytest.raises(PySparkException, match="does not answer"):
            sql("START FLOW t")
    sql("STOP FLOW t")
    new = by("k, avg(v) AS mean")
    sql(f"ALTER FLOW t AS {new}")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert equals_batch(sql, new)


def test_a_wait_ends_with_its_time_also_while_a_statement_changes_the_flow(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with sql.host.flows.turn_at(("spark_catalog", "default", "t")):
            begun.set()
            ended.wait(DEADLINE)

    holder = threading.Thread(target=hold, name="holder")
    holder.start()
    try:
        assert begun.wait(DEADLINE)
        with pytest.raises(PySparkException, match="Another statement is about the flow"):
            sql("WAIT FLOW t TIMEOUT 1 SECOND")
    finally:
        ended.set()
        holder.join(DEADLINE)
    sql("WAIT FLOW t")


def test_a_statement_that_is_refused_takes_no_flow_from_a_process_that_alters_it(sql: Workshop, lean: None) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {FIRST}")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    note = sql.home("t") / "alteration"
    note.write_text(Note(None, "another process").to_json())
    before = sql.flow("t").epoch
    with pytest.raises(PySparkException, match="not all that it has read is in its table"):
        sql(f"ALTER FLOW t AS {by('k, avg(v) AS mean')}")
    assert sql.flow("t").epoch == before
    note.unlink()
