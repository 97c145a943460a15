"""Layers of tables: the graph, waves over one cut, what reads what is dropped or stopped, and waits for a whole chain."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import sqlext
from sqlext.clock import SystemClock
from sqlext.errors import UnsupportedError
from sqlext.execution.host import Host
from sqlext.execution.views.registry import ViewEvent, ViewEventKind
from tests.integration.workshop import DEADLINE, Workshop
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")

BRONZE = "CREATE STREAMING TABLE bronze AS SELECT k, v FROM STREAM raw"
SILVER = "CREATE MATERIALIZED VIEW silver {} AS SELECT k, sum(v) AS total, count(*) AS n FROM raw GROUP BY k"
SIDE = "CREATE MATERIALIZED VIEW side {} AS SELECT max(v) AS most FROM raw"
GOLD = "CREATE MATERIALIZED VIEW gold {} AS SELECT s.k, s.total, d.name FROM silver s JOIN dim d USING (k)"
TOP = "CREATE MATERIALIZED VIEW top {} AS SELECT name, total, most FROM gold CROSS JOIN side"


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    made = Workshop(spark)
    made("CREATE TABLE raw (k STRING, v INT) USING delta")
    made("INSERT INTO raw VALUES ('a', 1), ('b', 2), ('a', 3)")
    made("CREATE TABLE dim (k STRING, name STRING) USING delta")
    made("INSERT INTO dim VALUES ('a', 'one'), ('b', 'two')")
    return made


def layers(sql: Workshop, schedule: str = "") -> None:
    for each in (SILVER, SIDE, GOLD, TOP):
        sql(each.format(schedule))


def report(sql: Workshop, table: str) -> dict[str, Any]:
    """What the newest commit of a view says."""
    history = sql(f"DESCRIBE HISTORY {table} LIMIT 1")
    return dict(json.loads(history[0].userMetadata)["sqlext"])


def cut(sql: Workshop, table: str) -> dict[str, int]:
    """The cut of a view's newest version: the version of each first source, by the table's own name."""
    found = report(sql, table)
    assert found["mixed"] == []
    return {name.split(".")[-1]: each["version"] for name, each in found["cut"].items()}


def composed(sql: Workshop, at: dict[str, int]) -> set[tuple[Any, ...]]:
    """The rows of `top` at a cut, by its query and those below it composed."""
    return {
        tuple(row)
        for row in sql(
            f"""SELECT name, total, most FROM (SELECT k, sum(v) AS total FROM raw VERSION AS OF {at["raw"]} GROUP BY k)
                JOIN dim VERSION AS OF {at["dim"]} USING (k)
                CROSS JOIN (SELECT max(v) AS most FROM raw VERSION AS OF {at["raw"]})"""
        )
    }


def rows(sql: Workshop, table: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in sql(f"SELECT * FROM {table}")}


def test_the_graph_is_shown_over_flows_and_views(sql: Workshop) -> None:
    sql(BRONZE)
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM bronze GROUP BY k")
    sql("CREATE SCHEMA other")
    try:
        sql("CREATE MATERIALIZED VIEW other.names AS SELECT name, n FROM counts JOIN dim USING (k)")
        found = {(r.source, r.target): r for r in sql("SHOW LINEAGE")}
        assert {(*key, r.target_kind, r.layer, r.is_stream) for key, r in found.items()} == {
            ("default.raw", "default.bronze", "streaming table", 1, True),
            ("default.bronze", "default.counts", "materialized view", 2, False),
            ("default.counts", "other.names", "materialized view", 3, False),
            ("default.dim", "other.names", "materialized view", 3, False),
        }
        assert found["default.dim", "other.names"].version == 1
        assert {(r.source, r.target) for r in sql("SHOW LINEAGE OF bronze")} == {*found} - {("default.dim", "other.names")}
        assert {(r.source, r.target) for r in sql("SHOW LINEAGE OF DIM")} == {("default.dim", "other.names")}
        with pytest.raises(PySparkException, match=r"keeps or reads a table default\.bronse\. Did you"):
            sql("SHOW LINEAGE OF bronse")
    finally:
        sql("DROP MATERIALIZED VIEW IF EXISTS other.names")
        sql("DROP SCHEMA other")


def test_a_chain_cannot_run_in_a_circle_through_a_flow(sql: Workshop) -> None:
    sql(BRONZE)
    sql("CREATE MATERIALIZED VIEW dims AS SELECT k, max(v) AS v FROM bronze GROUP BY k")
    with pytest.raises(PySparkException, match=r"bronze reads default\.dims reads default\.bronze"):
        sql("CREATE OR REPLACE STREAMING TABLE bronze AS SELECT r.k, r.v FROM STREAM raw r JOIN dims USING (k)")
    with pytest.raises(PySparkException, match=r"raw reads default\.bronze reads default\.raw"):
        sql("CREATE FLOW f AS INSERT INTO raw SELECT k, v FROM STREAM bronze")


def test_a_view_that_a_new_definition_below_makes_read_itself_is_not_refreshed(sql: Workshop) -> None:
    sql("CREATE VIEW below AS SELECT k, v FROM raw")
    sql("CREATE MATERIALIZED VIEW v AS SELECT k, v FROM below")
    assert [(r.source, r.target) for r in sql("SHOW LINEAGE")] == [("default.raw", "default.v")]
    sql("CREATE OR REPLACE VIEW below AS SELECT k, v FROM v")
    with pytest.raises(PySparkException, match=r"A materialized view cannot read itself: default\.v reads default\.v"):
        sql("REFRESH MATERIALIZED VIEW v")
    sql("CREATE OR REPLACE VIEW below AS SELECT k, 0 AS v FROM dim")
    sql("REFRESH MATERIALIZED VIEW v")
    assert [(r.source, r.target) for r in sql("SHOW LINEAGE")] == [("default.dim", "default.v")]


def test_cascade_refreshes_a_chain_over_one_cut(sql: Workshop) -> None:
    layers(sql)
    assert cut(sql, "top") == {"raw": 1, "dim": 1}
    sql("INSERT INTO raw VALUES ('b', 9)")
    sql("UPDATE dim SET name = 'uno' WHERE k = 'a'")
    said = str(sql("REFRESH MATERIALIZED VIEW silver CASCADE")[0][0])
    assert [name in said for name in ("silver", "gold", "top")] == [True] * 3
    assert cut(sql, "gold") == {"raw": 2, "dim": 2}
    assert report(sql, "top")["mixed"] == ["spark_catalog.default.raw"]  # `side` is no part of the chain, and refreshed by hand
    sql("REFRESH MATERIALIZED VIEW top CASCADE")
    assert cut(sql, "top") == {"raw": 2, "dim": 2}
    assert rows(sql, "top") == composed(sql, {"raw": 2, "dim": 2})


def test_a_refresh_by_hand_takes_what_is_newest_and_says_that_it_is_mixed(sql: Workshop) -> None:
    layers(sql)
    sql("INSERT INTO raw VALUES ('a', 5)")
    sql("REFRESH MATERIALIZED VIEW silver")
    sql("REFRESH MATERIALIZED VIEW gold")
    sql("REFRESH MATERIALIZED VIEW top")
    assert report(sql, "top")["mixed"] == ["spark_catalog.default.raw"]
    assert list(report(sql, "top")["cut"]) == ["spark_catalog.default.dim"]


def test_a_cut_goes_through_flows(sql: Workshop) -> None:
    sql(BRONZE)
    sql("CREATE MATERIALIZED VIEW both AS SELECT b.k, count(*) AS n FROM bronze b JOIN raw r USING (k) GROUP BY b.k")
    sql("INSERT INTO raw VALUES ('a', 7)")
    sql("WAIT FLOW both")
    assert cut(sql, "both") == {"raw": 2}
    assert list(report(sql, "both")["cut"]) == ["spark_catalog.default.raw"]
    assert report(sql, "bronze")["sources"]["spark_catalog.default.raw"]["version"] == 2
    assert rows(sql, "both") == {("a", 9), ("b", 1)}


def test_a_chain_that_runs_by_itself_is_at_one_cut_in_each_version(sql: Workshop) -> None:
    layers(sql, "TRIGGER ON UPDATE AT MOST EVERY INTERVAL 1 SECOND")
    for number in range(3):
        sql(f"INSERT INTO raw VALUES ('a', {number})")
        sql(f"UPDATE dim SET name = concat(name, '{number}') WHERE k = 'b'")
    newest = {name: sql(f"DESCRIBE HISTORY {name} LIMIT 1")[0].version for name in ("raw", "dim")}
    eventually(lambda: cut(sql, "top") == newest, DEADLINE, lambda: str(report(sql, "top")))
    for row in sql("DESCRIBE HISTORY top"):
        if row.userMetadata:
            said = json.loads(row.userMetadata)["sqlext"]
            assert said["mixed"] == []
            at = {name.split(".")[-1]: each["version"] for name, each in said["cut"].items()}
            found = {tuple(each) for each in sql(f"SELECT * FROM top VERSION AS OF {row.version}")}
            assert found == composed(sql, at), at


def test_what_others_read_is_dropped_with_them_only(sql: Workshop) -> None:
    sql(BRONZE)
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM bronze GROUP BY k")
    sql("CREATE MATERIALIZED VIEW most AS SELECT max(n) AS n FROM counts")
    with pytest.raises(PySparkException, match=r"materialized view default\.most reads default\.counts.* CASCADE drops it, too"):
        sql("DROP MATERIALIZED VIEW counts")
    with pytest.raises(PySparkException, match=r"default\.counts, materialized view default\.most read default\.bronze"):
        sql("DROP STREAMING TABLE bronze RESTRICT")
    assert len(sql("SHOW FLOWS")) == 3
    said = str(sql("DROP STREAMING TABLE bronze CASCADE")[0][0])
    assert said.index("most") < said.index("counts") < said.index("bronze")
    assert sql("SHOW FLOWS") == sql("SHOW LINEAGE") == []
    assert not [each for each in sql("SHOW TABLES") if each.tableName in ("bronze", "counts", "most")]


def test_a_flow_and_a_view_have_different_names(sql: Workshop) -> None:
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM raw GROUP BY k")
    sql("CREATE TABLE plain (k STRING, v INT) USING delta")
    with pytest.raises(PySparkException, match=r"There is a materialized view default\.counts already"):
        sql("CREATE FLOW counts AS INSERT INTO plain SELECT k, v FROM STREAM raw")
    sql("CREATE FLOW fill AS INSERT INTO plain SELECT k, v FROM STREAM raw")
    with pytest.raises(PySparkException, match=r"There is a flow default\.fill already, into default\.plain"):
        sql("CREATE MATERIALIZED VIEW fill AS SELECT k FROM raw")
    assert {row.name for row in sql("SHOW FLOWS")} == {"counts", "fill"}


@pytest.mark.parametrize("cascade", ["", " CASCADE"])
def test_a_drop_of_the_wrong_kind_drops_nothing(sql: Workshop, cascade: str) -> None:
    sql(BRONZE)
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM bronze GROUP BY k")
    sql("CREATE MATERIALIZED VIEW most AS SELECT max(n) AS n FROM counts")
    with pytest.raises(PySparkException, match=r"default\.bronze is no materialized view: flows write it\. DROP STREAMING TABLE"):
        sql(f"DROP MATERIALIZED VIEW bronze{cascade}")
    with pytest.raises(PySparkException, match=r"default\.counts is no streaming table, but a materialized view\."):
        sql(f"DROP STREAMING TABLE counts{cascade}")
    sql("CREATE TABLE plain (k STRING, n BIGINT) USING delta")
    sql("CREATE FLOW fill AS INSERT INTO plain SELECT k, v FROM STREAM raw")
    sql("CREATE MATERIALIZED VIEW filled AS SELECT k, count(*) AS n FROM plain GROUP BY k")
    with pytest.raises(PySparkException, match=r"default\.plain is no streaming table, but a table that flows may write into"):
        sql(f"DROP STREAMING TABLE plain{cascade}")
    assert {row.name for row in sql("SHOW FLOWS")} == {"bronze", "counts", "most", "fill", "filled"}


def test_a_stop_says_what_reads_the_table_and_stops_that_too_if_asked(sql: Workshop) -> None:
    sql(BRONZE)
    sql("CREATE MATERIALIZED VIEW counts SCHEDULE EVERY 1 HOUR AS SELECT k, count(*) AS n FROM bronze GROUP BY k")
    assert "materialized view default.counts reads its table" in str(sql("STOP FLOW bronze")[0][0])
    assert sql.shown("counts").status == "SCHEDULED"
    sql("START FLOW bronze")
    assert "counts stopped" in str(sql("STOP FLOW bronze CASCADE")[0][0])
    assert {name: sql.shown(name).status for name in ("bronze", "counts")} == {"bronze": "STOPPED", "counts": "STOPPED"}


def test_a_wait_is_for_all_that_a_table_is_made_of(sql: Workshop) -> None:
    sql(BRONZE.replace("AS SELECT", "TBLPROPERTIES ('execution.flush.max-interval' = '1 hour') AS SELECT"))
    sql("CREATE MATERIALIZED VIEW counts AS SELECT k, count(*) AS n FROM bronze GROUP BY k")
    sql("CREATE MATERIALIZED VIEW most AS SELECT max(n) AS n FROM counts")
    sql("INSERT INTO raw VALUES ('a', 1), ('a', 2)")
    sql("WAIT FLOW most")
    assert rows(sql, "most") == {(4,)}
    sql("STOP FLOW bronze")
    assert "bronze is stopped" in str(sql("WAIT FLOW most")[0][0])


def test_a_view_that_fails_holds_back_what_is_below_it(sql: Workshop) -> None:
    sql("CREATE TABLE gone (k STRING) USING delta")
    sql("CREATE MATERIALIZED VIEW low AS SELECT k FROM gone")
    sql("CREATE MATERIALIZED VIEW high AS SELECT count(*) AS n FROM low")
    sql("CREATE MATERIALIZED VIEW beside AS SELECT count(*) AS n FROM raw")
    sql("DROP TABLE gone")
    with pytest.raises(PySparkException, match="gone"):
        sql("REFRESH MATERIALIZED VIEW low CASCADE")
    shown = {row.name: row for row in sql("SHOW MATERIALIZED VIEWS")}
    assert shown["low"].status == "FAILED"
    assert shown["high"].waits_for == "default.low"
    assert shown["beside"].waits_for is None


def test_a_flow_says_which_failed_flow_it_waits_for(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE first AS SELECT k, v FROM STREAM raw")
    sql("WAIT FLOW first")
    sql("CREATE STREAMING TABLE second AS SELECT k, count(*) AS n FROM STREAM first GROUP BY k")
    sql("CREATE MATERIALIZED VIEW third AS SELECT count(*) AS n FROM second")
    sql("WAIT FLOW second")
    assert {row.note for row in sql("SHOW FLOWS")} == {None}
    sql("DELETE FROM raw WHERE k = 'a'")
    eventually(lambda: sql.shown("first").status == "FAILED", DEADLINE)
    notes = {row.name: row.note for row in sql("SHOW FLOWS")}
    waiting = "waits for default.first, which has failed"
    assert notes == {"first": None, "second": waiting, "third": waiting}


def test_versions_that_belong_together_are_found(sql: Workshop) -> None:
    layers(sql)
    sql("INSERT INTO raw VALUES ('a', 5)")
    sql("REFRESH MATERIALIZED VIEW silver")
    sql("INSERT INTO raw VALUES ('a', 6)")
    sql("REFRESH MATERIALIZED VIEW side")
    assert sqlext.consistent_versions(sql.spark, ["silver", "side", "top"]) == {"silver": 1, "side": 1, "top": 1}
    sql("CREATE MATERIALIZED VIEW late AS SELECT count(*) AS n FROM raw")
    with pytest.raises(UnsupportedError, match=r"silver, late have no versions .* CASCADE brings a chain to one cut"):
        sqlext.consistent_versions(sql.spark, ["silver", "late"])
    sql("REFRESH MATERIALIZED VIEW top CASCADE")
    sql("INSERT INTO raw VALUES ('c', 7)")
    sql("REFRESH MATERIALIZED VIEW silver")
    newest = {name: sql(f"DESCRIBE HISTORY {name} LIMIT 1")[0].version for name in ("raw", "silver", "side")}
    found = sqlext.consistent_versions(sql.spark, ["silver", "side", "raw"])
    assert found == {"silver": newest["silver"] - 1, "side": newest["side"], "raw": newest["raw"] - 1}
    shown = {row.table_name: row for row in sql("SELECT * FROM consistent_versions('silver', 'side', 'raw')")}
    assert {name: row.version for name, row in shown.items()} == found
    assert {row.cut["spark_catalog.default.raw"] for row in shown.values()} == {newest["raw"] - 1}
    assert rows(sql, f"silver VERSION AS OF {found['silver']}") == {
        tuple(each) for each in sql(f"SELECT k, sum(v), count(*) FROM raw VERSION AS OF {found['raw']} GROUP BY k")
    }
    for call in ("consistent_versions()", "consistent_versions(1)", "consistent_versions(concat('a', uuid()))"):
        with pytest.raises(PySparkException, match="takes the names of tables as strings"):
            sql(f"SELECT * FROM {call}")


def test_every_flow_and_view_says_how_far_it_is_behind(sql: Workshop) -> None:
    slow = "TBLPROPERTIES ('execution.checkpointing.interval' = '1 hour')"
    sql(f"CREATE STREAMING TABLE counts {slow} AS SELECT k, count(*) AS n FROM STREAM raw GROUP BY k")
    layers(sql)
    eventually(lambda: sql.shown("counts").unread == 0, DEADLINE)
    up_to_date = {row.name: row for row in sql("SHOW FLOWS")}
    assert {name: (row.lag, row.unread) for name, row in up_to_date.items()} == dict.fromkeys(
        ("counts", "silver", "side", "gold", "top"), (timedelta(), 0)
    )
    sql("INSERT INTO raw VALUES ('a', 5)")
    sql("REFRESH MATERIALIZED VIEW silver")
    behind = {row.name: row for row in sql("SHOW MATERIALIZED VIEWS")}
    assert {name: row.lag > timedelta() for name, row in behind.items()} == {
        "silver": False, "side": True, "gold": True, "top": True,
    }  # fmt: skip
    assert behind["side"].unread_bytes > 0
    flow = sql.shown("counts")
    assert flow.lag > timedelta()
    assert (flow.unread > 0, flow.unread_unit) == (True, "bytes")


def test_a_target_lag_brings_up_all_below_it_as_late_as_it_allows(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE bronze TBLPROPERTIES ('target-lag' = 'downstream') AS SELECT k, v FROM STREAM raw")
    sql("CREATE MATERIALIZED VIEW low AS SELECT k, sum(v) AS total FROM bronze GROUP BY k")
    sql("CREATE MATERIALIZED VIEW kept SCHEDULE EVERY 1 HOUR AS SELECT count(*) AS n FROM bronze")
    lag, select = "TBLPROPERTIES ('target-lag' = '8 seconds')", "SELECT max(total) AS most, count(*) AS n FROM low"
    query = f"CREATE MATERIALIZED VIEW high {lag} AS {select}"
    plan = "\n".join(row[0] for row in sql(f"EXPLAIN {query}"))
    assert "refreshed by itself: TARGET LAG 8 SECONDS\n  default.low: at least every 8 SECONDS" in plan
    sql(query)
    sql("INSERT INTO raw VALUES ('a', 100)")
    eventually(lambda: rows(sql, "high") == {(104, 2)}, DEADLINE, lambda: str(sql("SHOW FLOWS")))
    found = {row.name: row for row in sql("SHOW MATERIALIZED VIEWS")}
    assert {name: row.derived_interval for name, row in found.items()} == {
        "low": timedelta(seconds=8), "high": timedelta(seconds=8), "kept": None,
    }  # fmt: skip
    assert (found["high"].schedule, found["low"].schedule) == ("TARGET LAG 8 SECONDS", None)
    eventually(lambda: sql("SHOW MATERIALIZED VIEWS")[0].lag_p95 is not None, DEADLINE)
    sql("ALTER MATERIALIZED VIEW high SET TBLPROPERTIES ('target-lag' = '1 hour')")
    assert next(r for r in sql("SHOW MATERIALIZED VIEWS") if r.name == "high").schedule == "TARGET LAG 1 HOUR"


def test_a_view_without_a_schedule_below_a_target_lag_is_refreshed_by_the_next_process(sql: Workshop) -> None:
    sql(SILVER.format(""))
    sql("CREATE MATERIALIZED VIEW alone AS SELECT count(*) AS n FROM raw")
    sql("CREATE MATERIALIZED VIEW high TBLPROPERTIES ('target-lag' = '8 seconds') AS SELECT max(total) AS most FROM silver")
    sql.crash()
    sql("INSERT INTO raw VALUES ('a', 100)")
    assert sql.host.views
    eventually(lambda: rows(sql, "high") == {(104,)}, DEADLINE, lambda: str(sql("SHOW FLOWS")))
    eventually(lambda: sorted(sql.host.views.resumed) == ["default.high", "default.silver"], DEADLINE)
    assert rows(sql, "alone") == {(3,)}


def test_a_view_of_another_process_is_refreshed_there_for_a_target_lag(sql: Workshop) -> None:
    sql("CREATE MATERIALIZED VIEW low AS SELECT k, sum(v) AS total FROM raw GROUP BY k")
    sql("CREATE MATERIALIZED VIEW high TBLPROPERTIES ('target-lag' = '4 seconds') AS SELECT max(total) AS most FROM low")
    other, registry = Host(sql.spark, sql.host.home, SystemClock()), sql.host.views._registry
    try:
        other.views._lease.beat()
        registry.append(ViewEvent(sql.shown("high").id, ViewEventKind.TAKEN, host=other.views._lease.host_id))
        for each in (sql.host, other):
            each.views._sync()
        sql("INSERT INTO raw VALUES ('a', 100)")
        eventually(lambda: rows(sql, "high") == {(104,)}, 60, lambda: str(sql("SHOW FLOWS")))
    finally:
        other.close()


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ("TBLPROPERTIES ('target-lag' = 'soon')", "`target-lag` cannot be `soon`.*a duration longer than 0.*or `DOWNSTREAM`"),
        ("TBLPROPERTIES ('target-lag' = '0')", "`target-lag` cannot be `0`"),
        ("SCHEDULE EVERY 1 HOUR TBLPROPERTIES ('target-lag' = '1 minute')", "so does EVERY 1 HOUR. Give one of them"),
        ("TBLPROPERTIES ('target-lags' = '1 minute')", "has no option `target-lags`|an option of flows"),
    ],
)
def test_a_lag_that_cannot_be_is_refused(sql: Workshop, clauses: str, message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        sql(f"CREATE MATERIALIZED VIEW v {clauses} AS SELECT k FROM raw")
    assert sql("SHOW MATERIALIZED VIEWS") == []


def test_a_flow_has_a_target_lag_or_an_interval(sql: Workshop) -> None:
    both = "'target-lag' = '1 minute', 'execution.flush.max-interval' = '10 seconds'"
    with pytest.raises(PySparkException, match=r"`target-lag`.* says when the table is brought up to date, and so does"):
        sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({both}) AS SELECT k, count(*) AS n FROM STREAM raw GROUP BY k")
    sql(
        "CREATE STREAMING TABLE t TBLPROPERTIES ('target-lag' = '1 minute') AS SELECT k, count(*) AS n FROM STREAM raw GROUP BY k"
    )
    described = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert described["option execution.flush.max-interval"].startswith("42 seconds")


def test_rows_that_no_flow_takes_are_read_all_the_same(sql: Workshop) -> None:
    """A micro-batch without rows moves the cut of the flow's table: what is read together with it is not held back."""
    sql("CREATE STREAMING TABLE bronze AS SELECT k, v FROM STREAM raw WHERE v > 100")
    sql("CREATE MATERIALIZED VIEW both AS SELECT count(*) AS n, (SELECT count(*) FROM bronze) AS big FROM raw")
    sql("INSERT INTO raw VALUES ('c', 4)")
    sql("WAIT FLOW bronze")
    sql("REFRESH MATERIALIZED VIEW both CASCADE")
    assert sql.batch("SELECT * FROM both") == [(4, 0)]
