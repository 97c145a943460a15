"""EXPECT (NO ERROR): rows whose columns cannot be computed are counted, dropped or quarantined, and the flow goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

QUARANTINED = "CONSTRAINT parsed EXPECT (NO ERROR) ON VIOLATION QUARANTINE INTO bad"
PARSED = "SELECT id, CAST(raw AS INT) AS v, 10 / CAST(raw AS INT) AS share, raw FROM STREAM lines WHERE id > 0"
GOOD = [(1, 5, 2.0, "5"), (4, 4, 2.5, "4")]


@pytest.fixture(autouse=True)
def lines(sql: Workshop) -> None:
    sql("CREATE TABLE lines (id INT, raw STRING) USING delta")
    come(sql, "(1, '5'), (2, 'x'), (3, '0'), (4, '4'), (0, 'y')")


def come(sql: Workshop, rows: str) -> None:
    sql(f"INSERT INTO lines VALUES {rows}")


def rows_of(sql: Workshop, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in sql.spark.sql(query).collect())


def bad(sql: Workshop) -> list[tuple[Any, ...]]:
    found = sql.spark.sql("SELECT id, v, share, _constraints, _input FROM bad").collect()
    return sorted((row.id, row.v, row.share, row._constraints, json.loads(row._input)) for row in found)


def test_rows_that_cannot_be_computed_are_quarantined_with_their_input(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE t ({QUARANTINED}) AS {PARSED}")
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT * FROM t") == GOOD
    assert bad(sql) == [
        (2, None, None, ["parsed"], {"id": 2, "raw": "x"}),
        (3, 0, None, ["parsed"], {"id": 3, "raw": "0"}),
    ]
    assert sql.commits("t")[-1]["violations"] == {"parsed": 2}
    sql.crash()
    come(sql, "(5, 'z'), (6, '1')")
    sql.resume()
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT * FROM t") == [*GOOD, (6, 1, 10.0, "1")]
    assert [row[0] for row in bad(sql)] == [2, 3, 5]


def test_a_row_comes_back_when_its_input_is_gone(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE t ({QUARANTINED}) AS {PARSED}")
    sql("WAIT FLOW t")
    sql("REPLAY QUARANTINE bad")
    assert rows_of(sql, "SELECT * FROM t") == GOOD
    sql("UPDATE bad SET v = 2, share = 5.0, raw = '2', _input = NULL WHERE id = 2")
    sql("REPLAY QUARANTINE bad")
    assert rows_of(sql, "SELECT * FROM t") == [GOOD[0], (2, 2, 5.0, "2"), GOOD[1]]
    assert [row[0] for row in bad(sql)] == [3]


@pytest.mark.parametrize(
    ("violation", "expected"),
    [("", [GOOD[0], (2, None, None, "x"), (3, 0, None, "0"), GOOD[1]]), ("ON VIOLATION DROP ROW", GOOD)],
    ids=["counted", "dropped"],
)
def test_rows_are_counted_or_dropped(sql: Workshop, violation: str, expected: list[tuple[Any, ...]]) -> None:
    sql(f"CREATE STREAMING TABLE t (CONSTRAINT parsed EXPECT (no  error) {violation}) AS {PARSED}")
    sql("WAIT FLOW t")
    found = sql.spark.sql("SELECT * FROM t").collect()
    assert sorted((tuple(row) for row in found), key=lambda row: row[0]) == expected
    assert sql.commits("t")[-1]["violations"] == {"parsed": 2}


def test_conditions_that_fail_and_branches_and_what_is_computed_in_steps(sql: Workshop) -> None:
    """A row passes every WHERE above what has failed, and its input is that of its branch."""
    sql("CREATE TABLE more (what STRING, n BIGINT) USING delta")
    sql("INSERT INTO more VALUES ('7', 9), ('q', 8), ('-1', 1)")
    sql(
        f"""CREATE STREAMING TABLE t ({QUARANTINED}) AS
        SELECT v + 1 AS v FROM (
          SELECT CAST(raw AS INT) AS v FROM STREAM lines WHERE 10 / CAST(raw AS INT) > 2
          UNION ALL SELECT CAST(what AS INT) FROM STREAM more WHERE n > 0
        ) AS parts WHERE v > 0"""
    )
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT * FROM t") == [(5,), (8,)]
    inputs = sorted(row._input for row in sql.spark.sql("SELECT _input FROM bad").collect())
    assert [json.loads(each) for each in inputs] == [
        {"id": 0, "raw": "y"},
        {"id": 2, "raw": "x"},
        {"id": 3, "raw": "0"},
        {"what": "q", "n": 8},
    ]


def test_a_row_that_fails_above_a_union_has_the_columns_of_the_union_as_its_input(sql: Workshop) -> None:
    """Of unions in unions, those of the nearest below the failure; and the input of a row that fails in a branch stays that."""
    for name in ("inner_rows", "outer_rows"):
        sql(f"CREATE TABLE {name} (what INT, n BIGINT) USING delta")
        sql(f"INSERT INTO {name} VALUES (7, 0), (8, 5)")
    sql(
        f"""CREATE STREAMING TABLE t ({QUARANTINED}) AS
        SELECT id, 10 / v AS share FROM (
          SELECT id, 100 / (w - 5) AS v FROM (
            SELECT id, CAST(raw AS INT) AS w FROM STREAM lines UNION ALL SELECT what, n FROM STREAM inner_rows
          ) UNION ALL SELECT what, n FROM STREAM outer_rows
        )"""
    )
    sql("WAIT FLOW t")
    good = [(3, -0.5), (4, -0.1), (7, -0.5), (8, 2.0)]
    assert rows_of(sql, "SELECT * FROM t") == good
    found = sql.spark.sql("SELECT id, _input FROM bad").collect()
    assert sorted(((row.id, json.loads(row._input)) for row in found), key=str) == [
        (0, {"id": 0, "raw": "y"}),
        (1, {"id": 1, "w": 5}),
        (2, {"id": 2, "raw": "x"}),
        (7, {"id": 7, "v": 0.0}),
        (8, {"id": 8, "w": 5}),
    ]
    sql("REPLAY QUARANTINE bad")
    assert rows_of(sql, "SELECT * FROM t") == good


def test_it_stands_beside_other_constraints(sql: Workshop) -> None:
    """What is not known of a row is held against no other constraint."""
    others = "CONSTRAINT low EXPECT (v < 5) ON VIOLATION DROP ROW, CONSTRAINT small EXPECT (v < 100) ON VIOLATION FAIL UPDATE"
    sql(f"CREATE STREAMING TABLE t ({others}, {QUARANTINED}) AS {PARSED}")
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT id FROM t") == [(4,)]
    assert [(row[0], row[3]) for row in bad(sql)] == [(2, ["parsed"]), (3, ["parsed"])]
    assert sql.commits("t")[-1]["violations"] == {"low": 1, "small": 0, "parsed": 2}


def test_a_row_that_stays_with_nulls_must_hold_the_others(sql: Workshop) -> None:
    sql(
        "CREATE STREAMING TABLE t (CONSTRAINT parsed EXPECT (NO ERROR), CONSTRAINT known EXPECT (v IS NOT NULL) ON VIOLATION "
        f"DROP ROW) AS {PARSED}"
    )
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT id FROM t") == [(1,), (3,), (4,)]
    assert sql.commits("t")[-1]["violations"] == {"parsed": 2, "known": 1}


def test_it_is_added_to_a_flow_that_has_failed_and_dropped_again(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE t AS {PARSED}")
    with pytest.raises(PySparkException, match=r"cannot be cast to|Division by zero"):
        sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT parsed EXPECT (NO ERROR) ON VIOLATION QUARANTINE INTO bad")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT * FROM t") == GOOD
    assert [row[0] for row in bad(sql)] == [2, 3]
    sql("ALTER STREAMING TABLE t DROP CONSTRAINT parsed")
    come(sql, "(7, 'x')")
    with pytest.raises(PySparkException, match="cannot be cast to"):
        sql("WAIT FLOW t")


def test_values_that_do_not_fit_the_table_and_a_flow_that_runs_once(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE t (id INT, v TINYINT, {QUARANTINED})")
    sql("CREATE FLOW f AS INSERT INTO t SELECT id, CAST(raw AS INT) AS v FROM STREAM lines")
    sql("CREATE FLOW once AS INSERT INTO ONCE t SELECT id, CAST(raw AS INT) * 100 AS v FROM lines WHERE id IN (3, 4)")
    come(sql, "(8, '300')")
    sql("WAIT FLOW f")
    sql("WAIT FLOW once")
    assert rows_of(sql, "SELECT * FROM t") == [(1, 5), (3, 0), (3, 0), (4, 4)]
    found = sql.spark.sql("SELECT id, v, _flow FROM bad").collect()
    assert sorted((row.id, row.v, row._flow.split(".")[-1]) for row in found) == [
        (0, None, "f"),
        (2, None, "f"),
        (4, None, "once"),
        (8, None, "f"),
    ]


@pytest.mark.parametrize("moment", [Moment.BATCH_BUFFERED, Moment.FLUSH_COMMITTED], ids=str)
def test_a_crash_quarantines_each_row_once(sql: Workshop, moment: Moment) -> None:
    sql(f"CREATE STREAMING TABLE t ({QUARANTINED}) TBLPROPERTIES ('execution.flush.max-interval' = '1 h') AS {PARSED}")
    sql("WAIT FLOW t")

    def dies(reached: Moment, flow: str) -> None:
        if reached is moment:
            raise OSError("died here")

    come(sql, "(5, 'z'), (6, '1')")
    with listened(dies), pytest.raises(PySparkException, match="died here"):
        sql("WAIT FLOW t")
    sql.crash()
    sql.resume()
    sql("WAIT FLOW t")
    assert rows_of(sql, "SELECT id FROM t") == [(1,), (4,), (6,)]
    assert [row[0] for row in bad(sql)] == [2, 3, 5]


def test_where_it_has_no_meaning_it_is_refused(sql: Workshop) -> None:
    refused = {
        f"CREATE STREAMING TABLE t ({QUARANTINED}) AS SELECT raw, count(*) AS n FROM STREAM lines GROUP BY raw": (
            "is about single rows of a stream"
        ),
        "CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (NO ERROR)) AS SELECT raw, count(*) AS n FROM STREAM lines GROUP BY raw": (
            "is about single rows of a stream"
        ),
        f"CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (NO ERROR) ON VIOLATION FAIL UPDATE) AS {PARSED}": (
            "is what a flow does without it"
        ),
        "CREATE MATERIALIZED VIEW t (CONSTRAINT c EXPECT (NO ERROR)) AS SELECT id FROM lines": "is about single rows of a stream",
        f"CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (NO ERRORS)) AS {PARSED}": "cannot be checked",
    }
    for statement, because in refused.items():
        with pytest.raises(PySparkException, match=because):
            sql(statement)
        assert not sql.spark.catalog.tableExists("t")
