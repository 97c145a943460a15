"""Several appending flows into one table: each with its own transactions, whatever dies, and what others make of the table."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.errors import RunsElsewhereError
from sqlext.execution.flows.registry import FlowRecord
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


def test_a_backfill_runs_once_whatever_dies(sql: Workshop) -> None:
    create(sql)
    sql("CREATE TABLE archive (v INT, k STRING) USING delta")
    sql("INSERT INTO archive VALUES (1, 'old'), (2, NULL), (2, NULL)")
    once = "CREATE FLOW history AS INSERT INTO ONCE t BY NAME SELECT k, max(v) AS v FROM archive GROUP BY k"
    expected = f"{UNION} UNION ALL SELECT k, max(v) FROM archive VERSION AS OF 1 GROUP BY k"
    explained = sql(f"EXPLAIN {once}")[0][0]
    assert "Read once" in explained
    assert "archive" in explained
    sql(once)
    for name in ("t", "of_web", "of_shop", "history"):
        sql(f"WAIT FLOW {name}")
    assert rows(sql, "SELECT * FROM t") == rows(sql, expected)
    assert sql.eventually(lambda: next(r for r in sql("SHOW FLOWS") if r.name == "history").status == "DONE")
    assert sql.shown("history").kind == "insert into once"
    sql("INSERT INTO archive VALUES (9, 'new')")
    sql("START FLOW history")  # which finds that it is done
    sql("WAIT FLOW history")
    sql.crash()
    assert sorted(sql.resume()) == ["of_shop", "of_web", "t"]
    assert sql("WAIT FLOW history")[0][0] == "flow history is done"
    assert rows(sql, "SELECT * FROM t") == rows(sql, expected)
    assert [commit["reason"] for commit in sql.commits("t") if commit["flow"] == "history"] == ["once"]


def test_a_backfill_that_fails_is_shown_and_can_be_tried_again(sql: Workshop) -> None:
    sql("CREATE TABLE t (k STRING, v INT) USING delta")
    sql("CREATE TABLE archive (k STRING, v STRING) USING delta")
    sql("INSERT INTO archive VALUES ('a', 'x')")
    sql("CREATE FLOW history AS INSERT INTO ONCE t SELECT k, CAST(v AS INT) FROM archive")
    assert sql.eventually(lambda: sql.shown("history").status == "FAILED")
    assert "CAST_INVALID_INPUT" in sql.shown("history").error or "cannot be cast" in sql.shown("history").error
    sql("UPDATE archive SET v = '7'")
    sql("START FLOW history")
    sql("WAIT FLOW history")
    assert rows(sql, "SELECT * FROM t") == [("a", 7)]
    with pytest.raises(PySparkException, match="INSERT INTO ONCE reads tables as they are, and a stream has no end"):
        sql("CREATE FLOW f AS INSERT INTO ONCE t SELECT k, v FROM STREAM ev")


def test_a_backfill_obeys_the_constraints_of_its_table(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad) AS SELECT k, v FROM STREAM ev")
    sql("CREATE FLOW history AS INSERT INTO ONCE t SELECT k, v + 10 AS v FROM web UNION ALL SELECT 'z', 0")
    sql("WAIT FLOW t")
    sql("WAIT FLOW history")
    assert rows(sql, "SELECT * FROM t") == rows(sql, "SELECT * FROM ev WHERE v > 1 UNION ALL SELECT k, v + 10 FROM web")
    assert rows(sql, "SELECT k, _flow FROM bad") == [("a", "spark_catalog.default.t"), ("z", "spark_catalog.default.history")]


def test_a_constraint_that_comes_later_holds_for_all_flows(sql: Workshop) -> None:
    create(sql)
    sql("ALTER STREAMING TABLE t ADD CONSTRAINT small EXPECT (v < 100) ON VIOLATION DROP ROW")
    for name in SOURCES:
        sql(f"INSERT INTO {name} VALUES ('{name}', 100), ('{name}', 99)")
    for name in ("t", "of_web", "of_shop"):
        sql(f"WAIT FLOW {name}")
    assert rows(sql, "SELECT * FROM t") == rows(sql, f"SELECT * FROM ({UNION}) WHERE v < 100")
    sql("CREATE OR REFRESH STREAMING TABLE t AS SELECT k, v FROM STREAM ev")
    for name in SOURCES:
        sql(f"INSERT INTO {name} VALUES ('{name}', 101)")
    for name in ("t", "of_web", "of_shop"):
        sql(f"WAIT FLOW {name}")
    assert rows(sql, "SELECT * FROM t") == rows(sql, f"SELECT * FROM ({UNION}) WHERE v <> 100")


def test_a_cascade_is_about_the_flows_that_read_and_not_about_others_into_their_table(sql: Workshop) -> None:
    """A table that others go on to fill stays, with its flow and what reads it."""
    sql("CREATE STREAMING TABLE a AS SELECT k, v FROM STREAM web")
    sql("CREATE TABLE log (k STRING, v INT) USING delta")
    sql("CREATE FLOW of_ev AS INSERT INTO log SELECT k, v FROM STREAM ev")
    sql("CREATE FLOW of_a AS INSERT INTO log SELECT k, v FROM STREAM a")
    sql("CREATE STREAMING TABLE t AS SELECT k, v FROM STREAM shop")
    sql("CREATE FLOW into_t AS INSERT INTO t SELECT k, v FROM STREAM a")
    sql("CREATE MATERIALIZED VIEW counts SCHEDULE EVERY 1 HOUR AS SELECT k, count(*) AS n FROM t GROUP BY k")
    with pytest.raises(PySparkException, match=r"flow default\.into_t.* read default\.a") as refused:
        sql("DROP STREAMING TABLE a")
    assert "flow default.of_a" in str(refused.value)
    assert "of_ev" not in str(refused.value)
    said = str(sql("STOP FLOW a CASCADE")[0][0])
    assert all(f"flow {name} stopped" in said for name in ("a", "of_a", "into_t"))
    shown = {name: sql.shown(name).status for name in ("a", "of_a", "into_t", "of_ev", "t", "counts")}
    assert shown == {
        **dict.fromkeys(("a", "of_a", "into_t"), "STOPPED"),
        "of_ev": "RUNNING",
        "t": "RUNNING",
        "counts": "SCHEDULED",
    }
    sql("DROP STREAMING TABLE a CASCADE")
    assert {row.name for row in sql("SHOW FLOWS")} == {"of_ev", "t", "counts"}
    sql("INSERT INTO ev VALUES ('later', 9)")
    sql("WAIT FLOW of_ev")
    assert ("later", 9) in rows(sql, "SELECT * FROM log")


def test_a_cascade_that_another_process_refuses_drops_nothing(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql("CREATE STREAMING TABLE a AS SELECT k, v FROM STREAM web")
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM a GROUP BY k")

    def elsewhere(record: FlowRecord) -> None:
        raise RunsElsewhereError(f"Flow `{record.spec.name}` runs in another process. Send the statement there.")

    with monkeypatch.context() as patch:
        patch.setattr(sql.host.flows, "here", elsewhere)
        with pytest.raises(PySparkException, match="runs in another process"):
            sql("DROP STREAMING TABLE a CASCADE")
    assert {row.name for row in sql("SHOW FLOWS")} == {"a", "counts"}
    assert rows(sql, "SELECT * FROM counts") == []
