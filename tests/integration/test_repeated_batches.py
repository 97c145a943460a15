"""Micro-batches that Spark computes again, after the table or its state has them, of tables that have changed meanwhile."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

JOINED = "SELECT d.region, count(*) AS n, avg(e.v) AS m FROM STREAM ev AS e LEFT JOIN dim AS d ON e.k = d.k GROUP BY d.region"


@pytest.fixture(autouse=True)
def tables(sql: Workshop) -> None:
    sql("CREATE TABLE dim (k INT, region STRING) USING delta")
    sql("INSERT INTO dim VALUES (1, 'EU')")
    sql("CREATE TABLE ev (k INT, v INT) USING delta")


def rows(sql: Workshop) -> list[tuple[object, ...]]:
    return sql.batch("SELECT * FROM t")


def died_at(sql: Workshop, wanted: Moment, values: str, table: str = "ev") -> None:
    """Let rows come; the driver dies when their flush is at a moment."""

    def dies(moment: Moment, flow: str) -> None:
        if moment is wanted:
            raise OSError("died here")

    sql(f"INSERT INTO {table} VALUES {values}")
    with listened(dies), pytest.raises(PySparkException, match="died here"):
        sql("WAIT FLOW t")
    sql.crash()


def test_what_a_constraint_has_refused_is_not_in_the_state(sql: Workshop) -> None:
    """So it comes as it is when the user has put it right."""
    known = "(CONSTRAINT known EXPECT (region IS NOT NULL) ON VIOLATION FAIL UPDATE)"
    sql(f"CREATE STREAMING TABLE t {known} AS {JOINED}")
    sql("INSERT INTO ev VALUES (1, 5)")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES (2, 10)")
    assert sql.eventually(lambda: sql.shown("t").status == "FAILED")
    assert "The constraint `known`" in sql.shown("t").error
    sql("INSERT INTO dim VALUES (2, 'US')")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert rows(sql) == [("EU", 1, 5.0), ("US", 1, 10.0)]
    sql("INSERT INTO ev VALUES (1, 7), (2, 20)")
    sql("WAIT FLOW t")
    assert rows(sql) == [("EU", 2, 6.0), ("US", 2, 15.0)]


@pytest.mark.parametrize(
    "constraint", ["", "(CONSTRAINT few EXPECT (n < 100) ON VIOLATION FAIL UPDATE)"], ids=["plain", "checked"]
)
def test_a_group_that_only_the_state_has(sql: Workshop, constraint: str) -> None:
    """The state has the rows in the group that they had when it was written; the table gets this group."""
    sql(f"CREATE STREAMING TABLE t {constraint} AS {JOINED}")
    sql("INSERT INTO ev VALUES (1, 5)")
    sql("WAIT FLOW t")
    sql("INSERT INTO dim VALUES (2, 'ASIA')")
    died_at(sql, Moment.STATE_COMMITTED, "(2, 10)")
    sql("UPDATE dim SET region = 'US' WHERE k = 2")
    sql.resume()
    sql("WAIT FLOW t")
    assert rows(sql) == [("ASIA", 1, 10.0), ("EU", 1, 5.0)]
    sql("INSERT INTO ev VALUES (2, 20)")
    sql("WAIT FLOW t")
    assert rows(sql) == [("ASIA", 1, 10.0), ("EU", 1, 5.0), ("US", 1, 20.0)]


STATES = {
    "sessions": (
        "SELECT d.region, session_window(e.at, '5 minutes').start AS at, count(*) AS n, avg(e.v) AS m FROM {} AS e"
        " LEFT JOIN dim AS d ON e.k = d.k GROUP BY d.region, session_window(e.at, '5 minutes')",
        Moment.STATE_COMMITTED,  # the table has them, the state does not
        "",
    ),
    "values ahead of the state": (
        "SELECT d.region, count(*) AS n, count(DISTINCT e.v) AS m FROM {} AS e LEFT JOIN dim AS d ON e.k = d.k GROUP BY d.region",
        Moment.VALUES_COMMITTED,
        "'state.backend.type' = 'delta'",
    ),
    "values": (
        "SELECT d.region, count(*) AS n, avg(DISTINCT e.v) AS m FROM {} AS e LEFT JOIN dim AS d ON e.k = d.k GROUP BY d.region",
        Moment.STATE_COMMITTED,
        "'state.backend.type' = 'delta'",
    ),
    "with a time to live": (
        "SELECT d.region, count(*) AS n, avg(e.v) AS m FROM {} AS e LEFT JOIN dim AS d ON e.k = d.k GROUP BY d.region",
        Moment.STATE_COMMITTED,
        "'table.exec.state.ttl' = '1 day'",
    ),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_flush_that_takes_several_commits_has_the_rows_that_it_had(sql: Workshop, kind: str) -> None:
    """The table below changes after the crash: the micro-batch counts as it was computed before."""
    query, moment, options = STATES[kind]
    sql("CREATE TABLE late (k INT, v INT, at TIMESTAMP) USING delta")
    properties = f"TBLPROPERTIES ({options})" if options else ""
    sql(f"CREATE STREAMING TABLE t {properties} AS {query.format('STREAM late')}")
    sql("INSERT INTO late VALUES (1, 5, TIMESTAMP'2026-01-01 00:00:00')")
    sql("WAIT FLOW t")
    sql("INSERT INTO dim VALUES (2, 'ASIA')")
    died_at(sql, moment, "(2, 10, TIMESTAMP'2026-01-01 00:00:00')", "late")
    sql("UPDATE dim SET region = 'US' WHERE k = 2")
    sql.resume()
    sql("INSERT INTO dim VALUES (3, 'ASIA')")
    sql("WAIT FLOW t")
    sql("CREATE TABLE before USING delta AS SELECT * FROM VALUES (1, 'EU'), (2, 'ASIA') AS d (k, region)")
    assert rows(sql) == sql.batch(query.format("late").replace("dim AS d", "before AS d"))
    sql("INSERT INTO late VALUES (3, 20, TIMESTAMP'2026-01-01 00:01:00'), (2, 30, TIMESTAMP'2026-01-01 00:01:00')")
    sql("WAIT FLOW t")
    sql("CREATE TABLE was USING delta AS SELECT * FROM VALUES (1, 'EU'), (20, 'ASIA'), (3, 'ASIA'), (2, 'US') AS d (k, region)")
    sql("UPDATE late SET k = 20 WHERE v = 10")
    assert rows(sql) == sql.batch(query.format("late").replace("dim AS d", "was AS d"))


def test_a_join_of_streams_below_gets_a_repeated_micro_batch(sql: Workshop) -> None:
    """Spark keeps the rows of the join, and refuses a micro-batch that does not reach them."""
    sql("CREATE TABLE two (k INT, w STRING) USING delta")
    sql("INSERT INTO two VALUES (1, 'x'), (2, 'y')")
    joined = "SELECT d.w, count(*) AS n, avg(e.v) AS m FROM STREAM ev AS e JOIN STREAM two AS d ON e.k = d.k GROUP BY d.w"
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = 'delta') AS {joined}")
    sql("INSERT INTO ev VALUES (1, 5)")
    sql("WAIT FLOW t")
    died_at(sql, Moment.FLUSH_COMMITTED, "(1, 7), (2, 4)")
    sql.resume()
    sql("INSERT INTO two VALUES (2, 'z')")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES (2, 6)")
    sql("WAIT FLOW t")
    assert rows(sql) == [("x", 2, 6.0), ("y", 2, 5.0), ("z", 2, 5.0)]


def test_a_table_that_is_read_at_two_versions_is_read_at_none(sql: Workshop) -> None:
    sql("INSERT INTO ev VALUES (1, 1)")
    sql("INSERT INTO ev VALUES (1, 2)")
    slow, fast = (f"SELECT v FROM STREAM ev WITH ('maxFilesPerTrigger' = '{files}')" for files in (1, 100))
    sql(f"CREATE STREAMING TABLE t AS {slow} UNION ALL {fast}")
    sql("WAIT FLOW t")
    first, *_, last = sql.commits("t")
    assert first["mixed"] == ["spark_catalog.default.ev"]
    assert list(last["sources"]) == ["spark_catalog.default.ev"]
    assert rows(sql) == [(1,), (1,), (2,), (2,)]


def test_a_group_that_only_the_state_has_and_no_row_any_more(sql: Workshop) -> None:
    """The repeated micro-batch has no rows: its group is shown all the same."""
    sql("INSERT INTO dim VALUES (2, 'ASIA')")
    sql("CREATE TABLE t (region STRING, n BIGINT, m DOUBLE) USING delta")
    joined = "SELECT d.region, count(*), avg(e.v) FROM STREAM ev AS e JOIN dim AS d ON e.k = d.k GROUP BY d.region"
    sql(f"CREATE FLOW t AS INSERT INTO t {joined}")
    sql("INSERT INTO ev VALUES (1, 5)")
    sql("WAIT FLOW t")

    died_at(sql, Moment.STATE_COMMITTED, "(2, 10)")
    sql("DELETE FROM dim WHERE k = 2")
    sql.resume()
    sql("INSERT INTO ev VALUES (1, 7)")
    sql("WAIT FLOW t")
    assert rows(sql) == [("ASIA", 1, 10.0), ("EU", 2, 6.0)]


FORGETS = "delta.setTransactionRetentionDuration"


def test_a_table_that_forgets_what_was_committed_to_it_is_refused(sql: Workshop) -> None:
    query = "SELECT * FROM STREAM ev"
    refused = pytest.raises(PySparkException, match=r"UNSET TBLPROPERTIES \('delta.setTransactionRetentionDuration'\)")
    with refused:
        sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('{FORGETS.lower()}' = 'interval 1 day') AS {query}")
    sql(f"CREATE TABLE t (k INT, v INT) USING delta TBLPROPERTIES ('{FORGETS}' = 'interval 1 day')")
    with refused:
        sql(f"CREATE FLOW t AS INSERT INTO t {query}")
    sql(f"ALTER TABLE t UNSET TBLPROPERTIES ('{FORGETS}')")
    sql(f"CREATE FLOW t AS INSERT INTO t {query}")
    sql("INSERT INTO ev VALUES (1, 1)")
    sql("WAIT FLOW t")
    sql(f"ALTER TABLE t SET TBLPROPERTIES ('{FORGETS}' = 'interval 1 day')")
    sql("INSERT INTO ev VALUES (2, 2)")
    with refused:
        sql("WAIT FLOW t")
    with refused:
        sql("START FLOW t")
    sql(f"ALTER TABLE t UNSET TBLPROPERTIES ('{FORGETS}')")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert rows(sql) == [(1, 1), (2, 2)]


def test_no_table_of_a_flow_is_made_as_one_that_forgets(sql: Workshop) -> None:
    sql(f"SET spark.databricks.delta.properties.defaults.{FORGETS.removeprefix('delta.')} = interval 0 seconds")
    checked = "CONSTRAINT c EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad"
    sql(f"CREATE STREAMING TABLE good ({checked}) AS SELECT * FROM STREAM ev")
    sql("CREATE STREAMING TABLE t AS SELECT k, avg(v) AS m FROM STREAM ev GROUP BY k")
    sql("INSERT INTO ev VALUES (1, 1), (2, 2)")
    sql("WAIT FLOW t")
    sql("WAIT FLOW good")
    sql("ALTER FLOW t AS SELECT k, avg(v) AS m, max(v) AS top FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    assert rows(sql) == [(1, 1.0, 1), (2, 2.0, 2)]
    made = [sql(f"DESCRIBE DETAIL {name}")[0].properties for name in ("good", "bad", "t")]
    assert not any(FORGETS in each for each in made)
