"""PIVOT over a stream against PIVOT in batch: what is grouped by, how values are cast and called, and counts of nothing."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sqlext.planner.planner import plan_flow
from sqlext.planner.rule_book import rules_in_force
from sqlext.sql.dialect import parse_query
from sqlext.sql.statements import Query
from tests.integration.workshop import Workshop

ROWS = """
    SELECT k, c AS text, try_cast(c AS INT) AS number, try_cast(c AS FLOAT) AS real, try_cast(c AS DECIMAL(10, 2)) AS dec,
        try_cast(c AS BOOLEAN) AS truth, try_cast(c AS DATE) AS day, try_cast(c AS TIMESTAMP) AS at,
        named_struct('k', k || 'x', 'c', c, 'v', v) AS st, v, v * INTERVAL '1' DAY AS span
    FROM VALUES ('p', '1', 1), ('p', '01', 2), ('p', 'abc', 3), ('q', NULL, 4), ('q', 'true', 5), ('q', '2026-01-31', 6),
        ('q', '-1', 7), ('p', '1.5', 8), ('r', '0.1', 9), ('r', '2026-01-31 10:00:00', 10), ('q', 'x y', 11) AS t(k, c, v)
"""
VALUES = (
    "1",
    "'01'",
    "-1",
    "1.5",
    "'0.1'",
    "NULL",
    "true",
    "DATE '2026-01-31'",
    "TIMESTAMP '2026-01-31 10:00:00' AS at",
    "'x y'",
)
COLUMNS = ("text", "number", "real", "dec", "truth", "day", "at")
QUERIES = (
    "SELECT * FROM (SELECT k, text, st FROM {}) PIVOT (sum(st.v) FOR text IN ('abc'))",
    "SELECT * FROM (SELECT k, st, v FROM {}) PIVOT (sum(v) FOR k IN ('p', 'q'))",
    "SELECT * FROM (SELECT k, text, st FROM {}) AS q PIVOT (max(q.st.k) FOR text IN ('abc', '1'))",
    "SELECT * FROM (SELECT k AS v, text, st FROM {}) AS st PIVOT (max(st.v) FOR text IN ('abc', '1'))",
    "SELECT * FROM (SELECT k AS `a b`, text, v FROM {}) PIVOT (sum(v) AS s, count(*) AS n, max(v) AS m FOR text IN ('abc', ''))",
    "SELECT * FROM (SELECT k, text, v, span FROM {}) PIVOT (max(span) AS m, count(v) AS n FOR text IN ('abc', 'x y'))",
    "SELECT * FROM (SELECT k, text, span FROM {}) PIVOT (sum(span) AS m, count(*) AS n FOR text IN ('abc', 'x y'))",
    "SELECT * FROM (SELECT k, text, v FROM {}) PIVOT (stddev(v) AS s, count_if(v > 1) AS n FOR text IN ('abc', 1 AS one))",
    "SELECT * FROM (SELECT text, v FROM {}) PIVOT (count(DISTINCT v) FOR text IN ('abc', 'none'))",
)


def rows_of(spark: SparkSession, sql: str) -> tuple[list[str], list[str]]:
    frame = spark.sql(sql)
    return frame.columns, sorted(map(repr, frame.collect()))


def as_flow(spark: SparkSession, query: str) -> tuple[list[str], list[str]]:
    """The rows of the queries that a flow runs, over the table."""
    plan = plan_flow(Query(parse_query(query), query), rules_in_force())
    for each in plan.aggregates:
        spark.sql(each.sql.replace("STREAM t", "t")).createOrReplaceTempView(each.name)
    return rows_of(spark, (plan.above or plan.sql).replace("STREAM t", "t"))


@pytest.fixture
def table(spark: SparkSession) -> SparkSession:
    spark.sql(ROWS).createOrReplaceTempView("t")
    return spark


@pytest.mark.parametrize("query", QUERIES)
def test_the_queries_of_a_flow_equal_pivot(table: SparkSession, query: str) -> None:
    assert as_flow(table, query.format("STREAM t")) == rows_of(table, query.format("t"))


@pytest.mark.parametrize("column", COLUMNS)
def test_values_are_cast_to_the_type_of_the_column(table: SparkSession, column: str) -> None:
    taken = 0
    for value in VALUES:
        query = f"SELECT * FROM (SELECT k, {column} AS c, v FROM {{}}) PIVOT (sum(v) FOR c IN ({value}))"
        try:
            expected = rows_of(table, query.format("t"))
        except Exception:  # noqa: BLE001  # Spark does not cast the one to the other
            continue
        try:
            found = as_flow(table, query.format("STREAM t"))
        except Exception as error:  # noqa: BLE001  # Spark casts a few that mean nothing, such as a date to a truth value
            assert "INVALID_VARIANT_CAST" in str(error), query  # noqa: PT017
            continue
        assert found == expected, query
        taken += 1
    assert taken >= 3


def test_a_flow_with_pivot_over_commits(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, st STRUCT<k: STRING, c: INT>, c STRING, v INT) USING delta")
    query = "SELECT * FROM (SELECT k, c, st.c AS f, v FROM {}) PIVOT (sum(v) AS s, count(*) AS n FOR c IN (1, 'abc', NULL))"
    sql(f"CREATE STREAMING TABLE t AS {query.format('STREAM ev')}")
    more = (
        "('a', named_struct('k', 'b', 'c', 1), '1', 1), ('a', NULL, '01', 2)",
        "('b', NULL, NULL, 3), ('a', NULL, 'abc', 4)",
    )
    for values in more:
        sql(f"INSERT INTO ev VALUES {values}")
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))


def test_what_spark_refuses_is_refused_in_its_words(sql: Workshop) -> None:
    sql.source()
    query = "SELECT * FROM (SELECT k, v, v > 1 AS c FROM STREAM ev) PIVOT (max(v) FOR c IN ('maybe', 'a' AS b))"
    with pytest.raises(Exception, match=r"'maybe' .* cannot be cast to \"BOOLEAN\""):
        sql(f"CREATE STREAMING TABLE t AS {query}")
    assert sql("SHOW FLOWS") == []
