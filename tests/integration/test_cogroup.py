"""Cogroups on Spark: the rows of each key of two DataFrames, against a plain Python computation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import sqlext
from sqlext.errors import SchemaError, UnsupportedError
from tests.support import rows


@pytest.fixture
def sides(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Keys 0 to 6 and null on the first side, 3 to 9 and null on the second; more rows of a key than an Arrow batch has."""
    first = spark.sql("SELECT nullif(id % 8, 7) AS k, id AS v, struct(id AS n) AS s FROM range(4000)")
    second = spark.sql("SELECT CASE WHEN id % 8 = 7 THEN NULL ELSE 3 + id % 8 END AS key, concat('w', id) AS w FROM range(100)")
    return first, second.where("key IS NULL OR key < 10")


def counted(first: Iterator[Row], second: Iterator[Row]) -> Iterator[tuple[Any, ...]]:
    keys, total, names, seen = set(), 0, 0, 0
    for row in first:
        keys.add(row.k)
        total += row.v
        assert row.s.n == row.v
        seen += 1
    for row in second:
        keys.add(row.key)
        names += len(row.w)
    (key,) = keys
    yield key, seen, total, names


RETURNS = "k BIGINT, n BIGINT, total BIGINT, letters BIGINT"


def test_each_key_of_either_side_comes_once(spark: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    first, second = sides
    found = sqlext.cogroup(first.groupBy("k"), second.groupBy("key"), counted, RETURNS)
    first.createOrReplaceTempView("a")
    second.createOrReplaceTempView("b")
    expected = spark.sql(
        "SELECT coalesce(a.k, b.key), coalesce(n, 0), coalesce(total, 0), coalesce(letters, 0) FROM "
        "(SELECT k, count(*) AS n, sum(v) AS total FROM a GROUP BY k) a FULL JOIN "
        "(SELECT key, sum(length(w)) AS letters FROM b GROUP BY key) b ON a.k <=> b.key"
    )
    assert rows(found) == rows(expected)
    assert found.count() == 11


def test_the_second_side_may_be_read_first(sides: tuple[DataFrame, DataFrame]) -> None:
    def differences(first: Iterator[Row], second: Iterator[Row]) -> list[int]:
        return [len(list(second)) - len(list(first))]

    first, second = sides
    found = sqlext.cogroup(first.groupBy("k"), second.groupBy("key"), differences, "n INT")
    assert sum(row.n for row in found.collect()) == second.count() - first.count()


def test_from_sql(spark: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    first, second = sides
    first.createOrReplaceTempView("a")
    second.createOrReplaceTempView("b")
    sqlext.register_partition_function("counted", counted, returns=RETURNS)
    sqlext.register_partition_function("others", lambda rows: rows, returns="k INT")
    expected = sqlext.cogroup(first.groupBy("k"), second.where("w > 'w3'").groupBy("key"), counted, RETURNS).where("n > 1")
    found = spark.sql(
        "WITH some AS (SELECT * FROM b WHERE w > 'w3') "
        "SELECT * FROM cogroup(TABLE(a) PARTITION BY k, TABLE(some) PARTITION BY key, 'Counted') WHERE n > 1"
    )
    assert rows(found) == rows(expected)
    assert found.count() == 8
    (plan,) = spark.sql("EXPLAIN SELECT * FROM cogroup(TABLE a PARTITION BY k, TABLE b PARTITION BY key, 'counted')").collect()[0]
    assert "PARTITION BY key, 'counted') [is_output_only_after_end_of_stream]" in plan
    for call, message in (
        ("TABLE(a) PARTITION BY k, 'counted'", "Write cogroup(TABLE(a) PARTITION BY k, TABLE(b) PARTITION BY k, 'function')."),
        ("TABLE(a) PARTITION BY k, TABLE(b), 'counted'", "cogroup takes PARTITION BY, and no ORDER BY, after each"),
        ("TABLE(a) PARTITION BY k ORDER BY v, TABLE(b) PARTITION BY key, 'counted'", "and no ORDER BY, after each"),
        ("TABLE(a) PARTITION BY k, TABLE(b) PARTITION BY key, 'counter'", "`counter`. Did you mean `counted`?"),
        (
            "TABLE(a) PARTITION BY k, TABLE(b) PARTITION BY key, 'others'",
            "cogroup cannot call `others`: it is registered for map",
        ),
        ("TABLE(a) PARTITION BY k, TABLE(b) PARTITION BY w, 'counted'", "these are (bigint) and (string)"),
        ("TABLE(a) PARTITION BY k, TABLE(b) PARTITION BY nothing, 'counted'", "nothing"),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.sql(f"SELECT * FROM cogroup({call})")
        assert message in str(caught.value)


@pytest.mark.parametrize("relation", ["a", "c"])
def test_both_tables_may_be_made_of_one(spark: SparkSession, sides: tuple[DataFrame, DataFrame], relation: str) -> None:
    sides[0].createOrReplaceTempView("a")
    sqlext.register_partition_function("sizes", lambda a, b: [(len(list(a)), len(list(b)))], returns="n INT, m INT")
    found = spark.sql(
        "WITH c AS (SELECT * FROM a) SELECT sum(n), sum(m), count(*) FROM cogroup("
        f"TABLE(SELECT * FROM {relation} WHERE v < 1000) PARTITION BY k, TABLE({relation}) PARTITION BY k, 'sizes')"
    )
    assert found.collect() == [(1000, 4000, 8)]


def test_the_plan_exchanges_each_side_and_sorts_by_key(sides: tuple[DataFrame, DataFrame]) -> None:
    first, second = sides
    plan = (
        sqlext.cogroup(first.groupBy("k"), second.groupBy("key"), counted, RETURNS)
        ._jdf.queryExecution()
        .executedPlan()
        .toString()
    )
    assert [plan.count(word) for word in ("Exchange hashpartitioning", "Sort [", "MapInArrow")] == [1, 1, 1]


def test_mistakes(spark: SparkSession, sides: tuple[DataFrame, DataFrame]) -> None:
    first, second = sides
    with pytest.raises(SchemaError, match=r"these are \(bigint\) and \(string\)"):
        sqlext.cogroup(first.groupBy("k"), second.groupBy("w"), counted, RETURNS)
    with pytest.raises(SchemaError, match=r"cogroup takes df\.groupBy"):
        sqlext.cogroup(first, second.groupBy("key"), counted, RETURNS)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(UnsupportedError, match="without columns"):
        sqlext.cogroup(first.groupBy(), second.groupBy("key"), counted, RETURNS)
    with pytest.raises(SchemaError, match="cogroup"):
        sqlext.cogroup(first.groupBy("k"), second.groupBy("key"), lambda rows: rows, RETURNS)  # type: ignore[arg-type, misc]  # the mistake

    def fails(first: Iterator[Row], second: Iterator[Row]) -> list[int]:
        raise ValueError("no, thank you")

    with pytest.raises(PySparkException, match=r"(?s)cogroup.*fails.*no, thank you"):
        sqlext.cogroup(first.groupBy("k"), second.groupBy("key"), fails, "n INT").collect()
