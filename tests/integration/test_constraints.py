"""Constraints on the rows of streaming tables: which rows come through, what is counted, quarantined and replayed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta import table_copy
from sqlext.testing import Moment, listened
from tests.integration.workshop import BUFFERED, DEADLINE, Workshop
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")

CLEAN = (
    "CREATE STREAMING TABLE clean (CONSTRAINT known EXPECT (k IS NOT NULL), CONSTRAINT positive EXPECT (v > 0) ON VIOLATION "
    "{violation}) {options} AS SELECT k, v FROM STREAM ev"
)


@pytest.fixture(autouse=True)
def ev(sql: Workshop) -> None:
    sql.source()
    sql("INSERT INTO ev VALUES ('c', -1), (NULL, NULL), ('d', 4), (NULL, 5)")


def rows(sql: Workshop, table: str, columns: str = "*") -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in sql(f"SELECT {columns} FROM {table}")), key=repr)


GOOD = sorted([("a", 1), ("b", 2), (None, 3), ("d", 4), (None, 5)], key=repr)


@pytest.mark.parametrize("options", ["", BUFFERED])
def test_rows_pass_or_are_dropped_and_are_counted(sql: Workshop, options: str) -> None:
    sql(CLEAN.format(violation="DROP ROW", options=options))
    sql("WAIT FLOW clean")
    assert rows(sql, "clean") == GOOD
    assert {key: sum(c["violations"][key] for c in sql.commits("clean")) for key in ("known", "positive")} == {
        "known": 3,
        "positive": 2,
    }
    assert sql.shown("clean").violations == 5
    described = {row.property: row.value for row in sql("DESCRIBE FLOW clean")}
    assert described["constraint known"] == "k IS NOT NULL; rows that violate it are counted; violated by 3 rows"
    assert described["constraint positive"] == "v > 0; rows that violate it are dropped; violated by 2 rows"
    sql("INSERT INTO ev VALUES ('e', -7)")  # nothing for the table, but something to tell
    sql("WAIT FLOW clean")
    assert rows(sql, "clean") == GOOD
    assert sql.commits("clean")[-1]["violations"] == {"known": 0, "positive": 1}


@pytest.mark.parametrize("options", ["", BUFFERED])
def test_rows_are_quarantined_once_and_come_back_once(sql: Workshop, options: str) -> None:
    sql(CLEAN.format(violation="QUARANTINE INTO bad", options=options))
    sql("WAIT FLOW clean")
    assert sql.shown("clean").rows_in == sql.spark.table("ev").count(), "although the micro-batch is read twice"
    assert rows(sql, "clean") == GOOD
    assert rows(sql, "bad", "k, v, _constraints, _flow, _micro_batch IS NOT NULL, _quarantined_at IS NOT NULL") == sorted(
        [
            ("c", -1, ["positive"], "spark_catalog.default.clean", True, True),
            (None, None, ["known", "positive"], "spark_catalog.default.clean", True, True),
        ],
        key=repr,
    )
    assert sql("REPLAY QUARANTINE bad")[0][0] == (
        "0 rows replayed into spark_catalog.default.clean; 2 rows stay: they still violate its constraints"
    )
    sql("UPDATE bad SET v = 10 WHERE k = 'c'")
    sql("UPDATE bad SET v = 11 WHERE k IS NULL")
    assert sql("REPLAY QUARANTINE bad WHERE k = 'c'")[0][0] == "1 rows replayed into spark_catalog.default.clean"
    assert rows(sql, "clean") == sorted([*GOOD, ("c", 10)], key=repr)
    assert rows(sql, "bad", "k, v") == [(None, 11)]
    sql("ALTER STREAMING TABLE clean ADD CONSTRAINT small EXPECT (v < 11) ON VIOLATION QUARANTINE INTO bad")
    assert sql("REPLAY QUARANTINE bad")[0][0].startswith("0 rows replayed")
    sql("ALTER STREAMING TABLE clean DROP CONSTRAINT small")
    sql("REPLAY QUARANTINE bad")
    assert rows(sql, "clean") == sorted([*GOOD, ("c", 10), (None, 11)], key=repr)
    assert rows(sql, "bad") == []
    assert sql("REPLAY QUARANTINE bad")[0][0] == "there are no such rows in spark_catalog.default.bad"


def test_a_crash_within_a_micro_batch_quarantines_nothing_twice(sql: Workshop) -> None:
    sql(CLEAN.format(violation="QUARANTINE INTO bad", options=BUFFERED))
    sql("WAIT FLOW clean")
    sql("INSERT INTO ev VALUES ('e', -2), ('f', 6)")

    def crash(moment: Moment, _: str) -> None:
        if moment is Moment.BATCH_BUFFERED:
            raise RuntimeError("the driver dies here")

    with listened(crash):
        assert sql.eventually(lambda: sql.shown("clean").status == "FAILED")
    sql.crash()
    sql.resume()
    sql("START FLOW clean")
    sql("WAIT FLOW clean")
    assert rows(sql, "clean") == sorted([*GOOD, ("f", 6)], key=repr)
    assert rows(sql, "bad", "k") == sorted([("c",), ("e",), (None,)], key=repr)


def test_a_crash_between_the_quarantine_and_the_table_loses_and_doubles_nothing(sql: Workshop) -> None:
    sql(CLEAN.format(violation="QUARANTINE INTO bad", options=BUFFERED))
    sql("WAIT FLOW clean")
    commits = len(sql.commits("bad"))

    def crash(moment: Moment, _: str) -> None:
        if moment is Moment.ROWS_QUARANTINED:
            raise RuntimeError("the driver dies here")

    for value in (2, 3):
        sql(f"INSERT INTO ev VALUES ('e', -{value}), ('f', {value})")
        sql.take_in("clean")
    with listened(crash), pytest.raises(PySparkException, match="dies here"):
        sql("FLUSH FLOW clean")
    assert rows(sql, "clean") == GOOD
    assert len(sql.commits("bad")) == commits + 1, "the micro-batches of a flush are one commit"
    sql.crash()
    sql("INSERT INTO ev VALUES ('e', -4), ('f', 4)")  # the next flush has more than the one that did not come to its end
    sql.resume()
    sql("START FLOW clean")
    sql("WAIT FLOW clean")
    assert rows(sql, "clean") == sorted([*GOOD, ("f", 2), ("f", 3), ("f", 4)], key=repr)
    assert rows(sql, "bad", "v") == sorted([(-1,), (None,), (-2,), (-3,), (-4,)], key=repr)
    assert not [*sql.home("clean").glob("buffer/*")]


def test_a_crash_between_the_commits_of_a_replay_loses_and_doubles_nothing(sql: Workshop) -> None:
    sql(CLEAN.format(violation="QUARANTINE INTO bad", options=""))
    sql("WAIT FLOW clean")
    sql("UPDATE bad SET v = 10")

    def crash(moment: Moment, _: str) -> None:
        if moment is Moment.REPLAY_BEGUN:
            raise RuntimeError("the driver dies here")

    with listened(crash), pytest.raises(PySparkException):
        sql("REPLAY QUARANTINE bad")
    assert rows(sql, "bad") == []
    assert rows(sql, "clean") == GOOD
    sql("INSERT INTO ev VALUES ('e', -2)")
    sql("WAIT FLOW clean")
    sql("REPLAY QUARANTINE bad")
    assert rows(sql, "clean") == sorted([*GOOD, ("c", 10), (None, 10)], key=repr)
    assert rows(sql, "bad", "k") == [("e",)]


def test_fail_update_ends_the_flow_before_anything_of_the_micro_batch_is_there(sql: Workshop) -> None:
    small = "CONSTRAINT small EXPECT (v IS NULL OR v < 10) ON VIOLATION FAIL UPDATE"
    sql(f"CREATE STREAMING TABLE clean ({small}) AS SELECT k, v + 0 AS v FROM STREAM ev")
    sql("WAIT FLOW clean")
    before = rows(sql, "clean")
    sql("INSERT INTO ev VALUES ('x', 1), ('y', 12)")
    assert sql.eventually(lambda: sql.shown("clean").status == "FAILED")
    error = sql.shown("clean").error
    assert "The constraint `small`" in error
    assert "by 1 row of micro-batch" in error
    assert '{"k":"y","v":12}' in error
    assert rows(sql, "clean") == before
    sql("ALTER STREAMING TABLE clean DROP CONSTRAINT small")
    sql("START FLOW clean")
    sql("WAIT FLOW clean")
    assert rows(sql, "clean") == sorted([*before, ("x", 1), ("y", 12)], key=repr)


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@pytest.mark.parametrize("options", ["", "'execution.flush.max-interval' = '10 minutes', "])
def test_groups_that_violate_a_constraint_are_not_in_the_table_as_long_as_they_do(
    sql: Workshop, backend: str, options: str
) -> None:
    constraints = "CONSTRAINT many EXPECT (n > 1) ON VIOLATION DROP ROW, CONSTRAINT known EXPECT (k IS NOT NULL)"
    query = "SELECT k, count(*) AS n, sum(v) AS total FROM STREAM ev GROUP BY k"
    sql(f"CREATE STREAMING TABLE t ({constraints}) TBLPROPERTIES ({options}'state.backend.type' = '{backend}') AS {query}")
    sql("WAIT FLOW t")
    assert rows(sql, "t") == [(None, 3, 8)]
    assert sql.commits("t")[-1]["violations"] == {"many": 4, "known": 1}
    sql("INSERT INTO ev VALUES ('a', 5)")
    sql("WAIT FLOW t")
    assert rows(sql, "t") == [("a", 2, 6), (None, 3, 8)]
    sql("STOP FLOW t")
    sql("START FLOW t")
    sql("INSERT INTO ev VALUES ('b', 5), ('new', 1)")
    sql("WAIT FLOW t")
    assert rows(sql, "t") == [("a", 2, 6), ("b", 2, 7), (None, 3, 8)]
    state = next(row.value for row in sql("DESCRIBE FLOW t") if row.property.strip() == "state") if backend == "delta" else ""
    assert backend == "rocksdb" or "constraints check the table's rows" in state


def test_a_group_that_must_not_be_fails_the_flush_and_the_table_catches_up_without_it(sql: Workshop) -> None:
    few = "CONSTRAINT few EXPECT (n < 5) ON VIOLATION FAIL UPDATE"
    sql(f"CREATE STREAMING TABLE t ({few}) AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    before = rows(sql, "t")
    sql("INSERT INTO ev VALUES ('a', 1), (NULL, 1), (NULL, 1)")
    assert sql.eventually(lambda: sql.shown("t").status == "FAILED")
    assert "The constraint `few`" in sql.shown("t").error
    assert rows(sql, "t") == before
    sql("ALTER STREAMING TABLE t DROP CONSTRAINT few")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert rows(sql, "t") == rows(sql, "(SELECT k, count(*) AS n FROM ev GROUP BY k)")


def test_rows_of_a_query_above_and_of_changes_are_checked_too(sql: Workshop) -> None:
    checked = "CONSTRAINT c EXPECT (n > 1) ON VIOLATION DROP ROW, CONSTRAINT d EXPECT (n > 2)"
    above = "SELECT k, count(*) AS n FROM STREAM ev GROUP BY k ORDER BY n DESC, k LIMIT 3"
    sql(f"CREATE STREAMING TABLE top ({checked}) AS {above}")
    sql("CREATE TABLE cdc (id INT, v INT, at INT) USING delta")
    sql("INSERT INTO cdc VALUES (1, 10, 1), (2, -1, 2), (1, -2, 3), (3, 5, 4)")
    sql("CREATE STREAMING TABLE latest (id INT, v INT, CONSTRAINT p EXPECT (v > 0) ON VIOLATION DROP ROW)")
    sql("CREATE FLOW changes AS AUTO CDC INTO latest FROM STREAM cdc KEYS (id) SEQUENCE BY at COLUMNS * EXCEPT (at)")
    sql("WAIT FLOW top")
    assert rows(sql, "top") == [(None, 3)]
    assert sql.commits("top")[-1]["violations"] == {"c": 2, "d": 2}
    sql("WAIT FLOW changes")
    assert rows(sql, "latest") == [(3, 5)]
    sql("INSERT INTO cdc VALUES (2, 7, 9), (3, 0, 10)")
    sql("WAIT FLOW changes")
    assert rows(sql, "latest") == [(2, 7)]


def test_constraints_are_changed_by_the_statement_and_kept_by_a_full_refresh(sql: Workshop) -> None:
    create = "CREATE OR REFRESH STREAMING TABLE clean {} AS SELECT k, v FROM STREAM ev"
    sql(create.format("(CONSTRAINT p EXPECT (v > 0) ON VIOLATION QUARANTINE INTO bad)"))
    sql("WAIT FLOW clean")
    assert len(rows(sql, "bad")) == 2
    said = sql(create.format("(CONSTRAINT q EXPECT (v <> 1))"))[0][0]
    assert "altered: sqlext.expect.p, sqlext.expect.q" in said
    sql("INSERT INTO ev VALUES ('e', -9)")
    sql("WAIT FLOW clean")
    assert ("e", -9) in rows(sql, "clean")
    sql("ALTER STREAMING TABLE clean ADD CONSTRAINT p EXPECT (v > 0) ON VIOLATION QUARANTINE INTO bad")
    sql("REFRESH STREAMING TABLE clean FULL")
    assert rows(sql, "clean") == GOOD
    assert rows(sql, "bad", "k") == sorted([("c",), ("e",), (None,)], key=repr)
    assert "sqlext.expect.p" in {row.key for row in sql("SHOW TBLPROPERTIES clean")}


def test_a_declared_table_checks_the_rows_of_the_flow_that_fills_it(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE t (k STRING, v INT, CONSTRAINT p EXPECT (v > 0) ON VIOLATION DROP ROW)")
    sql("CREATE FLOW f AS INSERT INTO t BY NAME SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW f")
    assert rows(sql, "t") == GOOD


BAD = {
    "(CONSTRAINT c EXPECT (nope > 0)) AS SELECT k, v FROM STREAM ev": ("The constraint `c` cannot be checked", "`nope`"),
    "(CONSTRAINT c EXPECT (v + 1)) AS SELECT k, v FROM STREAM ev": ("The constraint `c` cannot be checked", "boolean"),
    "(CONSTRAINT c EXPECT (v >)) AS SELECT k, v FROM STREAM ev": ("The constraint `c` cannot be checked", ""),
    "(CONSTRAINT c EXPECT (max(v) > 0)) AS SELECT k, v FROM STREAM ev": ("The constraint `c` cannot be checked", ""),
    "(CONSTRAINT c EXPECT (v > rand())) AS SELECT k, v FROM STREAM ev": ("gives a row different results", "line 1, column 27"),
    "(CONSTRAINT c EXPECT (v IN (SELECT v FROM ev))) AS SELECT k, v FROM STREAM ev": ("reads other rows", ""),
    "(CONSTRAINT c EXPECT (v > 0) ON VIOLATION QUARANTINE INTO t) AS SELECT k, v FROM STREAM ev": ("whose rows are checked", ""),
    "(CONSTRAINT c EXPECT (v > 0) ON VIOLATION QUARANTINE INTO ev) AS SELECT k, v FROM STREAM ev": ("which the query reads", ""),
    "(CONSTRAINT c EXPECT (v > 0) ON VIOLATION QUARANTINE INTO other) AS SELECT k, v FROM STREAM ev": ("its columns are", ""),
    "(CONSTRAINT c EXPECT (v > 0) ON VIOLATION QUARANTINE INTO bad) AS SELECT k, v AS _flow FROM STREAM ev": (
        "The constraint `c` cannot be checked",
        "",
    ),
    "(CONSTRAINT c EXPECT (v > 0) ON VIOLATION QUARANTINE INTO bad) AS SELECT v, k AS _flow FROM STREAM ev": ("`_flow` has", ""),
    "(CONSTRAINT c EXPECT (n > 0) ON VIOLATION QUARANTINE INTO bad) AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k": (
        "those of this query change",
        "",
    ),
}


@pytest.mark.parametrize("statement", BAD, ids=range(len(BAD)))
def test_what_cannot_be_checked_is_refused_and_nothing_is_made(sql: Workshop, statement: str) -> None:
    sql("CREATE TABLE other (k STRING) USING delta")
    with pytest.raises(PySparkException) as refused:
        sql(f"CREATE STREAMING TABLE t {statement}")
    for text in BAD[statement]:
        assert text in str(refused.value)
    assert "(line 1, column" in str(refused.value)
    assert {row.tableName for row in sql("SHOW TABLES")} == {"ev", "other"}
    assert sql("SHOW FLOWS") == []


def test_explain_shows_the_constraints(sql: Workshop) -> None:
    lines = sql("EXPLAIN " + CLEAN.format(violation="QUARANTINE INTO s.bad", options=""))[0][0].splitlines()
    at = lines.index("== Constraints ==")
    assert lines[at + 1] == "known: k IS NOT NULL; rows that violate it are counted"
    assert lines[at + 2] == "positive: v > 0; rows that violate it are quarantined in s.bad"


def test_a_replay_waits_for_a_savepoint(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the copy of the table and that of the quarantine, its rows would be in none of the two."""
    copy, started = table_copy.copy_rows, list[threading.Thread]()

    def copied(*given: Any) -> None:
        copy(*given)
        if not started:
            started.append(threading.Thread(target=lambda: sql("REPLAY QUARANTINE bad"), name="replay"))
            started[0].start()
            started[0].join(5)

    sql(CLEAN.format(violation="QUARANTINE INTO bad", options=""))
    sql("WAIT FLOW clean")
    sql("UPDATE bad SET v = 9, k = 'right'")
    monkeypatch.setattr(table_copy, "copy_rows", copied)
    sql("SAVEPOINT FLOW clean AS good")
    started[0].join(DEADLINE)
    assert len(rows(sql, "clean")) == len(GOOD) + 2
    sql("RESTORE FLOW clean TO good")
    assert rows(sql, "clean") == GOOD
    assert len(rows(sql, "bad")) == 2
    sql("REPLAY QUARANTINE bad")
    assert len(rows(sql, "clean")) == len(GOOD) + 2


def test_one_quarantine_table_in_two_spellings_is_one(sql: Workshop) -> None:
    sql(
        "CREATE STREAMING TABLE t (CONSTRAINT high EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad, "
        "CONSTRAINT known EXPECT (k IS NOT NULL) ON VIOLATION QUARANTINE INTO Bad) AS SELECT k, v FROM STREAM ev"
    )
    sql("INSERT INTO ev VALUES ('low', -1), (NULL, 5)")
    sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT few EXPECT (v < 100) ON VIOLATION QUARANTINE INTO BAD")
    sql("INSERT INTO ev VALUES ('low', -2), (NULL, 6), ('many', 100)")
    sql("WAIT FLOW t")
    wanted = "v > 1 AND k IS NOT NULL AND v < 100"
    assert sql.batch("SELECT k, v FROM t") == sql.batch(f"SELECT * FROM ev WHERE {wanted}")
    assert sql.batch("SELECT k, v FROM bad") == sql.batch(f"SELECT * FROM ev WHERE NOT ({wanted})")


def test_rows_are_not_quarantined_in_what_the_flow_reads(sql: Workshop) -> None:
    sql(CLEAN.format(violation="QUARANTINE INTO bad", options=""))
    sql("WAIT FLOW clean")
    sql("CREATE STREAMING TABLE fixed AS SELECT k, v FROM STREAM bad")
    with pytest.raises(PySparkException, match="which the query reads"):
        sql("ALTER STREAMING TABLE fixed ADD CONSTRAINT c EXPECT (v > 0) ON VIOLATION QUARANTINE INTO Bad")


def test_a_replay_takes_columns_and_fields_by_name(sql: Workshop) -> None:
    sql("CREATE TABLE raw (id INT, s STRUCT<a: INT>) USING delta")
    sql("INSERT INTO raw VALUES (-1, named_struct('a', 1)), (2, named_struct('a', 2))")
    sql(
        "CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (id > 0) ON VIOLATION QUARANTINE INTO bad) "
        "TBLPROPERTIES ('schema-evolution' = 'add columns') AS SELECT * FROM STREAM raw"
    )
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    sql("ALTER TABLE raw ADD COLUMNS (s.b INT, more INT)")
    sql("INSERT INTO raw VALUES (3, named_struct('a', 3, 'b', 4), 5)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT d EXPECT (more IS NULL OR more > 0) ON VIOLATION DROP ROW")
    sql("UPDATE bad SET id = 1")
    assert "1 rows replayed" in str(sql("REPLAY QUARANTINE Bad")[0][0])
    assert sql.batch("SELECT id, s.a, s.b, more FROM t") == [(1, 1, None, None), (2, 2, None, None), (3, 3, 4, 5)]


def test_an_alter_that_delta_refuses_sets_no_option(sql: Workshop) -> None:
    sql(CLEAN.format(violation="DROP ROW", options=""))
    with pytest.raises(PySparkException):
        sql("ALTER STREAMING TABLE clean SET TBLPROPERTIES ('execution.flush.max-interval' = '7 min', 'delta.nonsense' = 'x')")
    assert "7 min" not in str(sql.flow("clean").spec.given)


def test_a_row_that_time_alone_makes_wrong_stays_until_its_group_changes(sql: Workshop) -> None:
    """As in a table that is too large to be written anew at each flush."""
    sql("CREATE TABLE seen (k STRING, v INT, until TIMESTAMP) USING delta")
    sql("INSERT INTO seen VALUES ('c', 1, TIMESTAMP'2100-01-01')")
    sql(
        "CREATE STREAMING TABLE fresh (CONSTRAINT in_time EXPECT (until > current_timestamp()) ON VIOLATION DROP ROW) "
        f"{BUFFERED} AS SELECT k, avg(v) AS mean, max(until) AS until FROM STREAM seen GROUP BY k"
    )
    sql("WAIT FLOW fresh")

    def is_there(seconds: int) -> bool:
        sql(f"INSERT INTO seen VALUES ('a', 2, current_timestamp() + INTERVAL {seconds} SECONDS)")
        sql("WAIT FLOW fresh")
        return rows(sql, "fresh", "k, mean") == [("a", 2.0), ("c", 1.0)]

    assert any(map(is_there, (10, 60, 300)))  # a busy machine may need longer for its flush
    eventually(lambda: sql("SELECT max(until) < current_timestamp() AS passed FROM seen WHERE k = 'a'")[0].passed, DEADLINE)
    sql("INSERT INTO seen VALUES ('b', 3, TIMESTAMP'2100-01-01')")
    sql("WAIT FLOW fresh")
    assert rows(sql, "fresh", "k, mean") == [("a", 2.0), ("b", 3.0), ("c", 1.0)]
    sql("INSERT INTO seen VALUES ('a', 4, NULL)")
    sql("WAIT FLOW fresh")
    assert rows(sql, "fresh", "k, mean") == [("b", 3.0), ("c", 1.0)]
