"""Tables partitioned by a key: what Delta does not keep in a partition is refused before anything is committed."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

COUNTS = "SELECT k, count(*) AS n, count(DISTINCT v) AS d FROM {} GROUP BY k"
BACKENDS = ("rocksdb", "delta")


def make(sql: Workshop, kind: str, *rows: str, name: str = "seen") -> None:
    sql(f"CREATE TABLE {name} (k {kind}, v INT) USING delta")
    sql(f"INSERT INTO {name} VALUES {', '.join(rows)}")


def refused(sql: Workshop, flow: str = "t") -> str:
    with pytest.raises(PySparkException) as caught:
        sql(f"WAIT FLOW {flow}")
    return str(caught.value)


def test_by_a_string(sql: Workshop) -> None:
    """NULL has a partition of its own; an empty string fails the flow, and leaves the table as it was."""
    make(sql, "STRING", "('a', 1)", "(NULL, 2)", "('x/y=%', 3)")

    def create(backend: str) -> None:
        backed = f"TBLPROPERTIES ('state.backend.type' = '{backend}')"
        sql(f"CREATE STREAMING TABLE {backend} PARTITIONED BY (k) {backed} AS {COUNTS.format('STREAM seen')}")
        sql(f"WAIT FLOW {backend}")

    def equals_batch(backend: str) -> None:
        sql(f"WAIT FLOW {backend}")
        assert sql.batch(f"SELECT k, n, d FROM {backend}") == expected

    def is_refused(backend: str) -> None:
        said = refused(sql, backend)
        assert (
            f"A group of flow `{backend}` has '' in the key `k`, by which spark_catalog.default.{backend} is partitioned" in said
        )
        assert "CLUSTER BY (k)" in said
        assert "nullif(k, '')" in said
        assert sql.batch(f"SELECT k, n, d FROM {backend}") == expected
        assert len(sql.commits(backend)) == commits[backend]

    side_by_side(create, BACKENDS)
    sql("INSERT INTO seen VALUES ('a', 1), (NULL, 4)")
    expected = sql.batch(COUNTS.format("seen"))
    assert expected == [("a", 2, 1), ("x/y=%", 1, 1), (None, 2, 2)]
    side_by_side(equals_batch, BACKENDS)
    commits = {backend: len(sql.commits(backend)) for backend in BACKENDS}
    sql("INSERT INTO seen VALUES ('', 5), (NULL, 6)")
    side_by_side(is_refused, BACKENDS)


def test_an_empty_string_is_refused_where_the_table_is_the_state_and_null_in_rows_that_are_added(sql: Workshop) -> None:
    make(sql, "STRING", "('a', 1)", "('', 2)")
    sql("CREATE STREAMING TABLE t PARTITIONED BY (k) AS SELECT k, count(*) AS n FROM STREAM seen GROUP BY k")
    sql("CREATE STREAMING TABLE added PARTITIONED BY (k) AS SELECT k, v FROM STREAM seen")
    assert sql.flow("t").spec.streams[0].state_columns == ("k", "n")
    assert "has '' in the key `k`" in refused(sql)
    assert sql.batch("SELECT * FROM t") == []
    sql("WAIT FLOW added")
    assert sql.batch("SELECT k, v FROM added") == [("a", 1), (None, 2)]


def test_remedies(sql: Workshop) -> None:
    make(sql, "STRING", "('a', 1)", "(NULL, 2)", "('', 3)")
    query = "SELECT nullif(k, '') AS k, count(*) AS n FROM {} GROUP BY nullif(k, '')"

    def create(backend: str) -> None:
        backed = f"TBLPROPERTIES ('state.backend.type' = '{backend}')"
        sql(f"CREATE STREAMING TABLE t_{backend} PARTITIONED BY (k) {backed} AS {query.format('STREAM seen')}")
        sql(f"CREATE STREAMING TABLE c_{backend} CLUSTER BY (k) {backed} AS {COUNTS.format('STREAM seen')}")

    def take_in(backend: str) -> None:
        sql(f"WAIT FLOW t_{backend}")
        sql(f"WAIT FLOW c_{backend}")

    side_by_side(create, BACKENDS)
    for rows in ("('', 4)", "(NULL, 5), ('', 6)"):
        sql(f"INSERT INTO seen VALUES {rows}")
        side_by_side(take_in, BACKENDS)
    by_null, by_all = sql.batch(query.format("seen")), sql.batch(COUNTS.format("seen"))
    assert by_null == [("a", 1), (None, 5)]
    assert by_all == [("", 3, 3), ("a", 1, 1), (None, 2, 2)]
    for backend in BACKENDS:
        assert sql.batch(f"SELECT k, n FROM t_{backend}") == by_null, backend
        assert sql.batch(f"SELECT k, n, d FROM c_{backend}") == by_all, backend


def test_into_a_table_that_is_there(sql: Workshop) -> None:
    sql("SET spark.sql.session.timeZone = America/New_York")
    values = {
        "STRING": "'__HIVE_DEFAULT_PARTITION__'",
        "BINARY": "X'FF'",
        "TIMESTAMP": "TIMESTAMP '2024-11-03 06:30:00 UTC'",  # 01:30 for the second time that night
    }

    def is_refused(kind: str) -> None:
        make(sql, kind, f"({values[kind]}, 1)", name=f"seen_{kind}")
        sql(f"CREATE TABLE t_{kind} (k {kind}, n BIGINT) USING delta PARTITIONED BY (k)")
        sql(f"INSERT INTO t_{kind} SELECT k, count(*) AS n FROM STREAM seen_{kind} GROUP BY k")
        assert f"in the key `k`, by which spark_catalog.default.t_{kind} is partitioned" in refused(sql, f"t_{kind}")
        assert sql.batch(f"SELECT * FROM t_{kind}") == []

    side_by_side(is_refused, values)


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
