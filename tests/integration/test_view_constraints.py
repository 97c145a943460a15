"""Constraints on the rows of materialized views: rows left out, counted, or refused, at every kind of refresh."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import Workshop

pytestmark = pytest.mark.usefixtures("lean")

SUMS = "SELECT k, sum(v) AS total FROM ev GROUP BY k"


@pytest.fixture(autouse=True)
def ev(sql: Workshop) -> None:
    sql.source()
    sql("INSERT INTO ev VALUES ('c', 30), ('d', 4)")


def rows(sql: Workshop, table: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in sql(f"SELECT * FROM {table}")), key=repr)


def violations(sql: Workshop, table: str) -> dict[str, int]:
    found: dict[str, int] = sql.commits(table)[-1]["violations"]
    return found


@pytest.mark.parametrize("policy", ["INCREMENTAL", "FULL"])
def test_rows_are_left_out_and_others_counted_as_they_change(sql: Workshop, policy: str) -> None:
    constraints = "CONSTRAINT some EXPECT (total > 2) ON VIOLATION DROP ROW, CONSTRAINT few EXPECT (total < 10)"
    sql(f"CREATE MATERIALIZED VIEW s ({constraints}) REFRESH POLICY {policy} AS {SUMS}")
    assert rows(sql, "s") == sorted([(None, 3), ("c", 30), ("d", 4)], key=repr)
    assert violations(sql, "s") == {"few": 1}
    sql("INSERT INTO ev VALUES ('a', 5), ('b', 50)")
    sql("DELETE FROM ev WHERE k = 'd'")
    sql("REFRESH MATERIALIZED VIEW s")
    assert rows(sql, "s") == sorted([(None, 3), ("a", 6), ("b", 52), ("c", 30)], key=repr)
    assert violations(sql, "s") == {"few": 2 if policy == "FULL" else 1}
    described = {row.property: row.value for row in sql("DESCRIBE FLOW s")}
    assert described["constraint some"] == "total > 2; rows that violate it are dropped"
    number = 2 if policy == "FULL" else 1
    assert described["constraint few"].endswith(f"; violated by {number} rows of the last refresh")


def test_a_row_that_must_not_be_fails_the_refresh_and_leaves_the_view(sql: Workshop) -> None:
    few = "k STRING, total DECIMAL(9, 1), CONSTRAINT few EXPECT (total < 40) ON VIOLATION FAIL UPDATE"
    sql(f"CREATE MATERIALIZED VIEW s ({few}) AS {SUMS}")
    before = rows(sql, "s")
    sql("INSERT INTO ev VALUES ('c', 10)")
    with pytest.raises(
        PySparkException, match=r'The constraint `few` .* by 1 row of this refresh, such as \{"k":"c","total":40.0\}'
    ):
        sql("REFRESH MATERIALIZED VIEW s")
    assert rows(sql, "s") == before
    sql("DELETE FROM ev WHERE v = 10")
    sql("INSERT INTO ev VALUES ('c', 1)")
    sql("REFRESH MATERIALIZED VIEW s")
    assert dict(rows(sql, "s"))["c"] == 31
    with pytest.raises(PySparkException, match="The constraint `few`"):
        sql(f"CREATE MATERIALIZED VIEW other ({few.replace('40', '4')}) AS {SUMS}")
    assert not sql.spark.catalog.tableExists("other")


def test_conditions_are_over_the_columns_of_the_list(sql: Workshop) -> None:
    listed = "name STRING, n STRING, CONSTRAINT short EXPECT (length(n) < 2) ON VIOLATION DROP ROW"
    sql(f"CREATE MATERIALIZED VIEW s ({listed}) AS {SUMS} -- sums")
    assert rows(sql, "s") == sorted([(None, "3"), ("a", "1"), ("b", "2"), ("d", "4")], key=repr)


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("(total > 0) ON VIOLATION QUARANTINE INTO bad", "a second view with WHERE NOT"),
        ("(v > 0)", "cannot be checked: A column"),
        ("(total > rand())", "gives a row different results"),
    ],
)
def test_what_cannot_be_checked_is_refused(sql: Workshop, constraint: str, said: str) -> None:
    with pytest.raises(PySparkException) as refused:
        sql(f"CREATE MATERIALIZED VIEW s (CONSTRAINT c EXPECT {constraint}) AS {SUMS}")
    assert said in str(refused.value)
    assert f"\n{'-' * 28}^^^" in str(refused.value)
