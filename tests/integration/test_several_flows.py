"""Several appending flows into one table: each with its own transactions, whatever dies, and what others make of the table."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.integration.workshop import BUFFERED, Workshop

pytestmark = pytest.mark.usefixtures("lean")

SOURCES = ("ev", "web", "shop")
UNION = " UNION ALL ".join(f"SELECT k, v FROM {name}" for name in SOURCES)


@pytest.fixture(autouse=True)
def sources(sql: Workshop) -> None:
    for name in SOURCES:
        sql.source(name)


def create(sql: Workshop, first: str = "") -> None:
    sql(f"CREATE STREAMING TABLE t {first} AS SELECT k, v FROM STREAM ev")
    sql("CREATE FLOW of_web AS INSERT INTO t BY NAME SELECT v, k FROM STREAM web")
    sql("CREATE FLOW of_shop AS INSERT INTO t SELECT /*+ FLUSH_INTERVAL('10 minutes') */ k, v FROM STREAM shop")


def arrive(sql: Workshop, more: int) -> None:
    for at, name in enumerate(SOURCES):
        sql(f"INSERT INTO {name} VALUES ('{name}', {10 * more + at}), (NULL, {more})")


def rows(sql: Workshop, query: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in sql(query)), key=repr)


@pytest.mark.parametrize("options", ["", BUFFERED])
def test_a_table_has_the_rows_of_all_flows_each_once(sql: Workshop, options: str) -> None:
    create(sql, options)
    arrive(sql, 1)
    for name in ("t", "of_web", "of_shop"):
        sql(f"WAIT FLOW {name}")
    assert rows(sql, "SELECT * FROM t") == rows(sql, UNION)
    sql.freeze()
    arrive(sql, 2)
    for name in ("t", "of_web", "of_shop"):
        sql.take_in(name)
    sql.crash()
    assert sorted(sql.resume()) == ["of_shop", "of_web", "t"]
    arrive(sql, 3)
    for name in ("t", "of_web", "of_shop"):
        sql(f"WAIT FLOW {name}")
    assert rows(sql, "SELECT * FROM t") == rows(sql, UNION)
    assert {commit["flow"] for commit in sql.commits("t")} == {"t", "of_web", "of_shop"}


def test_what_is_made_of_the_table_waits_for_all_flows_and_follows_all(sql: Workshop) -> None:
    create(sql)
    sql("CREATE STREAMING TABLE sums AS SELECT k, sum(v) AS total FROM STREAM t GROUP BY k")
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM t GROUP BY k")
    arrive(sql, 1)
    sql("WAIT FLOW sums")
    assert rows(sql, "SELECT * FROM sums") == rows(sql, f"SELECT k, sum(v) FROM ({UNION}) GROUP BY k")
    sql("WAIT FLOW counts")
    assert rows(sql, "SELECT * FROM counts") == rows(sql, f"SELECT k, count(*) FROM ({UNION}) GROUP BY k")
    lineage = {(row.source, row.target) for row in sql("SHOW LINEAGE")}
    assert lineage == {
        *((f"default.{name}", "default.t") for name in SOURCES),
        *(("default.t", f"default.{n}") for n in ("sums", "counts")),
    }
    assert list(sql.commits("counts")[-1]["cut"]) == ["spark_catalog.default.t"]  # no one flow tells of what its rows are made


def test_what_would_undo_the_rows_of_others_is_refused(sql: Workshop) -> None:
    create(sql)
    before = rows(sql, "SHOW FLOWS")
    only = "Only flows that append rows share a table"
    for statement, said in {
        "CREATE FLOW sums AS INSERT INTO t SELECT k, count(*) FROM STREAM ev GROUP BY k": only,
        "REFRESH STREAMING TABLE t FULL": "a statement that makes it anew",
        "CREATE OR REPLACE STREAMING TABLE t AS SELECT k, v FROM STREAM ev": "a statement that makes it anew",
        "DROP STREAMING TABLE t": "flow default.of_web, flow default.of_shop",
    }.items():
        with pytest.raises(PySparkException) as refused:
            sql(statement)
        assert said in str(refused.value)
    assert [row[0] for row in rows(sql, "SHOW FLOWS")] == [row[0] for row in before]
    said = sql("CREATE OR REFRESH STREAMING TABLE t AS SELECT k, v FROM STREAM ev")[0][0]
    assert "keeps running" in said
    sql("DROP STREAMING TABLE t CASCADE")
    assert sql("SHOW FLOWS") == []
    assert not sql.spark.catalog.tableExists("t")


def test_a_flow_that_is_dropped_leaves_its_rows_and_the_others(sql: Workshop) -> None:
    create(sql)
    for name in ("t", "of_web", "of_shop"):
        sql(f"WAIT FLOW {name}")
    sql("DROP FLOW of_web")
    arrive(sql, 1)
    sql("WAIT FLOW t")
    sql("WAIT FLOW of_shop")
    expected = UNION.replace("FROM web", "FROM web VERSION AS OF 1")
    assert rows(sql, "SELECT * FROM t") == rows(sql, expected)
