"""What runs in a session of its own has the catalog and the session variables of the user's session, wherever it is cloned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from sqlext.spark.jvm import clone_session
from tests.integration.workshop import Workshop

ANOTHER = {
    "spark.sql.catalog.lake": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.lake.url": "jdbc:derby:memory:lake;create=true",
    "spark.sql.catalog.lake.driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
}


@pytest.fixture
def in_lake(sql: Workshop) -> Iterator[Workshop]:
    """A session whose current catalog is another one than Spark's own, with a table `ev` in each."""
    sql.source()
    for key, value in ANOTHER.items():
        sql.spark.conf.set(key, value)
    try:
        sql("CREATE NAMESPACE IF NOT EXISTS lake.raw")
        sql("CREATE TABLE lake.raw.ev (k STRING, v INT)")
        sql("INSERT INTO lake.raw.ev VALUES ('of the lake', 7)")
        sql("USE lake.raw")
        yield sql
    finally:
        sql("USE spark_catalog.default")
        sql("DROP TABLE IF EXISTS lake.raw.ev")
        for key in ANOTHER:
            sql.spark.conf.unset(key)


def test_a_job_reads_the_current_catalogs_table(in_lake: Workshop) -> None:
    sql = in_lake
    assert clone_session(sql.spark).catalog.currentCatalog() == "lake"
    sql("CREATE TABLE spark_catalog.default.t (k STRING, n BIGINT) USING delta")
    sql("INSERT INTO spark_catalog.default.t SELECT k, count(*) FROM ev GROUP BY k GLOBAL WINDOW END OF STREAM")
    assert sql("SELECT * FROM spark_catalog.default.t") == [("of the lake", 1)]


def test_a_catalog_without_a_schema_is_current_in_a_clone(in_lake: Workshop) -> None:
    sql = in_lake
    sql("USE lake")
    assert clone_session(sql.spark).catalog.currentCatalog() == "lake"
    sql("CREATE TABLE spark_catalog.default.t (k STRING, n BIGINT) USING delta")
    sql("INSERT INTO spark_catalog.default.t SELECT k, count(*) FROM raw.ev GROUP BY k GLOBAL WINDOW END OF STREAM")
    assert sql("SELECT * FROM spark_catalog.default.t") == [("of the lake", 1)]
    sql("SET spark.sql.defaultCatalog = lake")
    try:
        sql("USE lake.raw")
        assert clone_session(sql.spark).sql("SELECT current_database() AS name").collect()[0].name == "raw"
    finally:
        sql("RESET spark.sql.defaultCatalog")


def test_a_view_reads_the_current_catalogs_table(in_lake: Workshop) -> None:
    sql = in_lake
    sql("CREATE MATERIALIZED VIEW spark_catalog.default.mv AS SELECT k, count(*) AS n FROM ev GROUP BY k")
    assert sql("SELECT * FROM spark_catalog.default.mv") == [("of the lake", 1)]
    sql("INSERT INTO lake.raw.ev VALUES ('later', 8)")
    sql("REFRESH MATERIALIZED VIEW spark_catalog.default.mv")
    assert {row.k for row in sql("SELECT * FROM spark_catalog.default.mv")} == {"of the lake", "later"}


@pytest.fixture
def least(sql: Workshop) -> Iterator[Workshop]:
    """A session with a variable, and a table of which two rows are not below it."""
    sql.source()
    sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 2")
    yield sql
    sql("DROP TEMPORARY VARIABLE least")


def test_a_job_has_the_variables(least: Workshop) -> None:
    sql = least
    sql("CREATE TABLE t (k STRING, n BIGINT) USING delta")
    sql("INSERT INTO t SELECT k, count(*) FROM ev WHERE v >= least GROUP BY k GLOBAL WINDOW END OF STREAM")
    assert sql.batch("SELECT * FROM t") == [("b", 1), (None, 1)]


def test_a_query_above_an_aggregate_has_the_variables_and_so_has_a_refresh_of_the_running_flow(least: Workshop) -> None:
    sql = least
    sql("CREATE STREAMING TABLE t AS SELECT * FROM (SELECT k, max(v) AS n FROM STREAM ev GROUP BY k) WHERE n >= least")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 2), (None, 3)]
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 2), (None, 3)]


def test_a_bounded_stage_of_a_flow_has_the_variables(least: Workshop) -> None:
    sql = least
    sql("CREATE TABLE other (k STRING, v INT) USING delta")
    sql("INSERT INTO other VALUES ('a', 1), ('b', 2), ('b', 3)")
    sql(
        "CREATE STREAMING TABLE t AS SELECT e.k, o.n FROM STREAM ev AS e JOIN "
        "(SELECT k, count(*) AS n FROM other WHERE v >= least GROUP BY k GLOBAL WINDOW END OF STREAM) AS o ON e.k = o.k"
    )
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 2)]


@pytest.mark.parametrize("query", ["SELECT k, v FROM STREAM ev", "SELECT k, max(v) AS v FROM STREAM ev GROUP BY k"])
def test_a_constraint_has_the_variables(least: Workshop, query: str) -> None:
    sql = least
    sql(f"CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (v >= least) ON VIOLATION DROP ROW) AS {query}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 2), (None, 3)]
    sql("INSERT INTO ev VALUES ('c', 1), ('d', 5)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("b", 2), ("d", 5), (None, 3)]


def test_a_flows_session_has_no_variables_that_it_does_not_name(least: Workshop) -> None:
    """It has none of them after a restart either."""
    sql = least
    sql("CREATE STREAMING TABLE t AS SELECT k, v FROM STREAM ev")
    with pytest.raises(PySparkException, match="least"):
        next(iter(sql.host.flows.all.values())).session.sql("SELECT least")


def test_a_temporary_view_hides_no_table_from_what_another_process_has_made(sql: Workshop) -> None:
    sql.source()
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM ev GROUP BY k")
    keys = "(SELECT * FROM ev) AS keys"
    sql(f"CREATE STREAMING TABLE copied AS SELECT k FROM STREAM ev AS ev JOIN {keys} USING (k)")
    sql.crash()
    sql("CREATE TEMPORARY VIEW ev AS SELECT 'hidden' AS k, 0 AS v")
    try:
        assert sql.resume() == ["copied"]
        sql("INSERT INTO spark_catalog.default.ev VALUES ('new', 4)")
        sql("REFRESH MATERIALIZED VIEW counts")
        sql("WAIT FLOW copied")
    finally:
        sql("DROP VIEW ev")
    assert sql.batch("SELECT k, n FROM counts") == [("a", 1), ("b", 1), ("new", 1), (None, 1)]
    assert sql.batch("SELECT k FROM copied") == [("a",), ("b",), ("new",)]
