"""Many rows of one file deleted, changed and restored by deletion vectors, whose difference is too long for Delta to read."""

from __future__ import annotations

import pytest

import sqlext
from tests.integration.workshop import Workshop

FIRST = "SELECT id, id % 7 AS g, {weight} FROM range(600000) WHERE id % 1000 = 1"
DELETED = "SELECT id, id % 7 AS g, {weight} FROM range(600000) WHERE id % 20 = 3"
OLD = "SELECT id, id % 7 AS g, {weight} FROM range(600000) WHERE id % 20 = 4"
NEW = "SELECT id, id % 7 + 1 AS g, {weight} FROM range(600000) WHERE id % 20 = 4"
STEPS = (
    ("DELETE FROM t WHERE id % 1000 = 1", [(FIRST, -1)]),
    ("DELETE FROM t WHERE id % 20 = 3", [(DELETED, -1)]),
    ("UPDATE t SET g = g + 1 WHERE id % 20 = 4", [(OLD, -1), (NEW, 1)]),
    ("RESTORE t TO VERSION AS OF 1", [(DELETED, 1), (NEW, -1), (OLD, 1)]),
)
"""Statements, and the rows that each adds, with their weights."""


@pytest.mark.parametrize("has_feed", ["true", "false"])
def test_rows_and_a_view_over_them(sql: Workshop, has_feed: str) -> None:
    sql(
        "CREATE TABLE t USING delta TBLPROPERTIES "
        f"('delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = '{has_feed}') "
        "AS SELECT id, id % 7 AS g FROM range(0, 600000, 1, 1)"
    )
    query = "SELECT g, count(*) AS n, sum(id) AS s FROM t GROUP BY g"
    sql(f"CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {query}")
    for version, (statement, rows) in enumerate(STEPS, start=1):
        sql(statement)
        assert ": full" not in sql("REFRESH MATERIALIZED VIEW v")[0][0]
        assert sorted(sql("TABLE v")) == sorted(sql(query))
        check(sql, version - 1, version, rows)
    check(sql, 0, 2, [(FIRST, -1), (DELETED, -1)])
    check(sql, 0, 4, [(FIRST, -1)])
    check(sql, 1, 4, [])


def check(sql: Workshop, before: int, after: int, rows: list[tuple[str, int]]) -> None:
    """Check that the changes between two versions are these rows."""
    texts = [query.format(weight=f"{weight}L AS _weight") for query, weight in rows] or [DELETED.format(weight="0L") + " LIMIT 0"]
    found, expected = sqlext.changes(sql.spark, "t", before, after), sql.spark.sql(" UNION ALL ".join(texts))
    columns = ["id", "g", "_weight"]
    assert found.columns == columns
    assert found.orderBy(columns).toArrow().to_pydict() == expected.toDF(*columns).orderBy(columns).toArrow().to_pydict()
