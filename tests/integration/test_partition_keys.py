"""Tables partitioned by a key: what Delta does not keep in a partition is refused before anything is committed."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import Workshop

COUNTS = "SELECT k, count(*) AS n, count(DISTINCT v) AS d FROM {} GROUP BY k"
BACKENDS = pytest.mark.parametrize("backend", ["rocksdb", "delta"])


def make(sql: Workshop, kind: str, *rows: str) -> None:
    sql(f"CREATE TABLE seen (k {kind}, v INT) USING delta")
    sql(f"INSERT INTO seen VALUES {', '.join(rows)}")


def refused(sql: Workshop) -> str:
    with pytest.raises(PySparkException) as caught:
        sql("WAIT FLOW t")
    return str(caught.value)


@BACKENDS
def test_by_a_string(sql: Workshop, backend: str) -> None:
    """NULL has a partition of its own; an empty string fails the flow, and leaves the table as it was."""
    make(sql, "STRING", "('a', 1)", "(NULL, 2)", "('x/y=%', 3)")
    sql(
        f"CREATE STREAMING TABLE t PARTITIONED BY (k) TBLPROPERTIES ('state.backend.type' = '{backend}') AS "
        + COUNTS.format("STREAM seen")
    )
    sql("WAIT FLOW t")
    sql("INSERT INTO seen VALUES ('a', 1), (NULL, 4)")
    sql("WAIT FLOW t")
    expected = sql.batch(COUNTS.format("seen"))
    assert sql.batch("SELECT k, n, d FROM t") == expected == [("a", 2, 1), ("x/y=%", 1, 1), (None, 2, 2)]
    commits = len(sql.commits("t"))
    sql("INSERT INTO seen VALUES ('', 5), (NULL, 6)")
    said = refused(sql)
    assert "A group of flow `t` has '' in the key `k`, by which spark_catalog.default.t is partitioned" in said
    assert "CLUSTER BY (k)" in said
    assert "nullif(k, '')" in said
    assert sql.batch("SELECT k, n, d FROM t") == expected
    assert len(sql.commits("t")) == commits


def test_the_table_is_its_state(sql: Workshop) -> None:
    make(sql, "STRING", "('a', 1)", "('', 2)")
    sql("CREATE STREAMING TABLE t PARTITIONED BY (k) AS SELECT k, count(*) AS n FROM STREAM seen GROUP BY k")
    assert sql.flow("t").spec.streams[0].state_columns == ("k", "n")
    assert "has '' in the key `k`" in refused(sql)
    assert sql.batch("SELECT * FROM t") == []


@BACKENDS
def test_remedies(sql: Workshop, backend: str) -> None:
    make(sql, "STRING", "('a', 1)", "(NULL, 2)", "('', 3)")
    backed = f"TBLPROPERTIES ('state.backend.type' = '{backend}')"
    query = "SELECT nullif(k, '') AS k, count(*) AS n FROM {} GROUP BY nullif(k, '')"
    sql(f"CREATE STREAMING TABLE t PARTITIONED BY (k) {backed} AS {query.format('STREAM seen')}")
    sql(f"CREATE STREAMING TABLE c CLUSTER BY (k) {backed} AS {COUNTS.format('STREAM seen')}")
    for rows in ("('', 4)", "(NULL, 5), ('', 6)"):
        sql(f"INSERT INTO seen VALUES {rows}")
        sql("WAIT FLOW t")
        sql("WAIT FLOW c")
    assert sql.batch("SELECT k, n FROM t") == sql.batch(query.format("seen")) == [("a", 1), (None, 5)]
    assert sql.batch("SELECT k, n, d FROM c") == sql.batch(COUNTS.format("seen")) == [("", 3, 3), ("a", 1, 1), (None, 2, 2)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("STRING", "'__HIVE_DEFAULT_PARTITION__'"),
        ("BINARY", "X'FF'"),
        ("TIMESTAMP", "TIMESTAMP '2024-11-03 06:30:00 UTC'"),  # 01:30 for the second time that night
    ],
)
def test_into_a_table_that_is_there(sql: Workshop, kind: str, value: str) -> None:
    sql("SET spark.sql.session.timeZone = America/New_York")
    make(sql, kind, f"({value}, 1)")
    sql(f"CREATE TABLE t (k {kind}, n BIGINT) USING delta PARTITIONED BY (k)")
    sql("INSERT INTO t SELECT k, count(*) AS n FROM STREAM seen GROUP BY k")
    assert "in the key `k`, by which spark_catalog.default.t is partitioned" in refused(sql)
    assert sql.batch("SELECT * FROM t") == []


def test_a_result_that_the_table_is_partitioned_by(sql: Workshop) -> None:
    """Its '' becomes NULL as in a batch; the state keeps it."""
    query = "SELECT v % 2 AS g, min(k) AS least FROM {} GROUP BY v % 2"
    make(sql, "STRING", "('', 2)", "('b', 3)")
    sql(f"CREATE STREAMING TABLE t PARTITIONED BY (least) AS {query.format('STREAM seen')}")
    sql("WAIT FLOW t")
    sql("INSERT INTO seen VALUES ('a', 4), ('c', 5)")
    sql("WAIT FLOW t")
    sql(f"CREATE TABLE batch USING delta PARTITIONED BY (least) AS {query.format('seen')}")
    assert sql.batch("SELECT g, least FROM t") == sql.batch("SELECT g, least FROM batch") == [(0, None), (1, "b")]


def test_rows_that_are_only_added(sql: Workshop) -> None:
    make(sql, "STRING", "('a', 1)", "('', 2)")
    sql("CREATE STREAMING TABLE t PARTITIONED BY (k) AS SELECT k, v FROM STREAM seen")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, v FROM t") == [("a", 1), (None, 2)]
