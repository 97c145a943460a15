"""Distinct values as rows of a table of the flow's own, where state lives in Delta: counts equal those of a batch query."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta import commit, compaction
from sqlext.execution.flows.flush import FlushReason
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.moments import Moment, listened
from tests.integration.workshop import DEADLINE, Workshop, are_contiguous
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

DELTA = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', 'state.backend.type' = 'delta')"
ONE_FILE = "STREAM ev WITH ('maxFilesPerTrigger' = '1')"
QUERIES = {
    "alone": "SELECT k, count(DISTINCT v) AS n FROM {} GROUP BY k",
    "beside": "SELECT k, count(DISTINCT v) AS n, sum(v) AS total, count(*) AS rows, avg(v) AS mean FROM {} GROUP BY k",
    "filters": "SELECT k, count(DISTINCT v) AS n, count(DISTINCT v) FILTER (WHERE b) AS b, "
    "count(DISTINCT v) FILTER (WHERE v > 3) AS more, count(DISTINCT s) FILTER (WHERE b) AS s FROM {} GROUP BY k",
    "several": "SELECT k, count(DISTINCT v) AS n, sum(v) AS a, sum(v) FILTER (WHERE b) AS some, "
    "sum(v) FILTER (WHERE v > 3) AS more, count(*) FILTER (WHERE b) AS rows FROM {} GROUP BY k",
    "pairs": "SELECT k, count(DISTINCT v, s) AS n, count(DISTINCT s) AS s, count(DISTINCT d) AS d FROM {} GROUP BY k",
    "whole": "SELECT count(DISTINCT v) AS n, count(DISTINCT s) AS s, max(s) AS most FROM {}",
    "having": "SELECT k, count(DISTINCT v) AS n FROM {} GROUP BY k HAVING count(DISTINCT v) > 2",
    "guarded": "SELECT k, count(DISTINCT 12 / v) FILTER (WHERE v <> 0) AS n, count(DISTINCT v) FILTER (WHERE false) AS none, "
    "count(DISTINCT k, named_struct('s', s, 'l', array(d))) AS m FROM {} GROUP BY k",
    "sums": "SELECT k, sum(DISTINCT v) AS s, avg(DISTINCT v) AS a, count(DISTINCT v) AS n, max(v) AS most, "
    "sum(DISTINCT v) FILTER (WHERE b) AS f, sum(DISTINCT CAST(v AS DECIMAL(9, 2))) AS m, bit_xor(DISTINCT v) AS x FROM {} "
    "GROUP BY k",
    "casts": "SELECT k, sum(DISTINCT s) AS s, stddev(DISTINCT v) AS d, count(DISTINCT v) AS n FROM {} WHERE s <> 'x' GROUP BY k",
    "reordered": "SELECT k, m, n, b, a FROM (SELECT k, count(DISTINCT v) AS n, sum(v) AS a, count(DISTINCT s) AS m, "
    "sum(length(s)) AS b FROM {} GROUP BY k) q",
    "constant": "SELECT 'all' AS k, count(DISTINCT v) AS n, count(DISTINCT 1) AS one FROM {} GROUP BY 1",
    "rollup": "SELECT k, s, count(DISTINCT v) AS n FROM {} GROUP BY ROLLUP (k, s)",
    "above": "SELECT n, count(*) AS groups FROM (SELECT k, count(DISTINCT v) AS n FROM {} GROUP BY k) GROUP BY n",
    "computed": "SELECT upper(k) AS u, 1 + count(DISTINCT v) AS n, first(v IS NULL) AS f FROM {} GROUP BY upper(k)",
    "nulls": "SELECT k, CAST(size(collect_set(v) RESPECT NULLS) AS BIGINT) AS n, count(DISTINCT v) AS d FROM {} GROUP BY k",
    "cells": "SELECT k, count(DISTINCT v) AS n, array_sort(collect_set(v)) AS vs, count(DISTINCT s) AS s FROM {} GROUP BY k",
    "many": "SELECT k, count(DISTINCT v) AS n, percentile(v, 0.5) AS half, array_sort(collect_list(v)) AS vs FROM {} GROUP BY k",
}
ROWS = (
    "SELECT CAST(id % 3 AS STRING) AS k, id % 7 AS v, CAST(id % 4 AS STRING) AS s, id % 2 = 0 AS b, "
    "element_at(array(0.0D, -0.0D, double('NaN'), CAST(id % 5 AS DOUBLE), NULL), CAST(id % 5 AS INT) + 1) AS d "
    "FROM range({}, {}, 1, 1) UNION ALL SELECT NULL, NULL, NULL, NULL, NULL UNION ALL SELECT '0', NULL, 'x', true, 1.0D"
)


def state(sql: Workshop, flow: str = "t") -> str:
    return next(str(row.value) for row in sql(f"DESCRIBE FLOW {flow}") if row.property.split()[0] == "state")


@pytest.mark.usefixtures("unhurried")
def test_counts_equal_those_of_a_batch_query(sql: Workshop) -> None:
    sql(f"CREATE TABLE ev USING delta AS {ROWS.format(0, 5)}")
    side_by_side(lambda flow: sql(f"CREATE STREAMING TABLE {flow} {DELTA} AS {QUERIES[flow].format(ONE_FILE)}"), QUERIES)

    def equals_batch(flow: str) -> None:
        sql(f"WAIT FLOW {flow}")
        query = QUERIES[flow].format("ev").replace("12 / v", "try_divide(12, v)")  # Spark's batch divides what FILTER excludes
        assert sql.batch(f"SELECT * FROM {flow}") == sql.batch(query), flow

    side_by_side(equals_batch, QUERIES)
    sql(f"INSERT INTO ev {ROWS.format(3, 12)}")
    side_by_side(equals_batch, QUERIES)
    sql(f"INSERT INTO ev {ROWS.format(0, 30)}")
    sql(f"INSERT INTO ev {ROWS.format(20, 50)}")
    side_by_side(equals_batch, QUERIES)
    in_cells = {
        flow for flow in QUERIES if not state(sql, flow).endswith("distinct values are rows of a table of the flow's own")
    }
    assert in_cells == {"casts", "constant", "nulls", "several"}


def test_a_flush_adds_what_is_new(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT, b BOOLEAN) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1, true), ('a', 1, false), ('a', 2, false), ('b', 1, NULL), ('b', NULL, true)")
    query = "SELECT k, count(DISTINCT v) AS n, count(DISTINCT v) FILTER (WHERE b) AS of_b FROM {} GROUP BY k"
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    assert values(sql) == [("a", 1, 3), ("a", 2, 1), ("b", 1, 1)]
    sql("INSERT INTO ev VALUES ('a', 1, true), ('b', 1, false)")  # nothing is new
    sql("WAIT FLOW t")
    assert versions(sql) == 1
    sql("INSERT INTO ev VALUES ('a', 2, true), ('b', 3, true)")  # another FILTER lets 2 through
    sql("WAIT FLOW t")
    assert values(sql) == [("a", 1, 3), ("a", 2, 1), ("a", 2, 2), ("b", 1, 1), ("b", 3, 3)]
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev")) == [("a", 2, 2), ("b", 2, 1)]
    sql("STOP FLOW t")
    sql("INSERT INTO ev VALUES ('a', 4, true), ('a', 1, true)")
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 3, 3), ("b", 2, 1)]


def values(sql: Workshop) -> list[Any]:
    """The key, value and FILTERs of each stored value."""
    table = sql.spark.read.format("delta").load(str(sql.home("t") / "values"))
    return sorted(tuple(row) for row in table.select("__sqlext_k1", "__sqlext_v1", "__sqlext_seen").collect())


def versions(sql: Workshop) -> int:
    return max(int(path.stem) for path in (sql.home("t") / "values" / "_delta_log").glob("*.json"))


def test_a_change_of_values_by_somebody_else_is_refused_until_all_is_computed_anew(sql: Workshop) -> None:
    query = QUERIES["alone"]
    sql(f"CREATE TABLE ev USING delta AS {ROWS.format(0, 9)}")
    sql(f"CREATE OR REFRESH STREAMING TABLE t {DELTA} AS {query.format(ONE_FILE)}")
    sql("WAIT FLOW t")
    first = sql.home("t")
    sql(f"DELETE FROM delta.`{first}/values` WHERE __sqlext_v1 = 1")
    sql(f"INSERT INTO ev {ROWS.format(5, 12)}")
    with pytest.raises(PySparkException, match=r"Version 2 of the table in .*values \(DELETE\) changed rows"):
        sql("WAIT FLOW t")
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))
    assert not first.exists()
    last = sql.home("t")
    sql("DROP FLOW t")
    assert not last.exists()


def test_a_state_with_sets_in_cells_is_refused_by_name(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As versions before had them: a flow whose record has other partial results."""
    sql(f"CREATE TABLE ev USING delta AS {ROWS.format(0, 9)}")
    with monkeypatch.context() as patched:
        patched.setattr(MergeableAggregate, "_plan_by_value", lambda *_: None)
        sql(f"CREATE STREAMING TABLE t {DELTA} AS {QUERIES['alone'].format(ONE_FILE)}")
        sql("WAIT FLOW t")
        assert "distinct values" not in state(sql)
    sql("STOP FLOW t")
    with pytest.raises(PySparkException, match="What is stored of this query's aggregate cannot be read any more"):
        sql("START FLOW t")
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(QUERIES["alone"].format("ev"))


def test_each_micro_batch_is_flushed_as_it_comes(sql: Workshop) -> None:
    """Without an interval, partial results and values are held in memory."""
    sql(f"CREATE TABLE ev USING delta AS {ROWS.format(0, 5)}")
    properties = "TBLPROPERTIES ('state.backend.type' = 'delta')"
    sql(f"CREATE STREAMING TABLE t {properties} AS {QUERIES['beside'].format(ONE_FILE)}")
    for first in range(0, 9, 3):
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(QUERIES["beside"].format("ev"))
        sql(f"INSERT INTO ev {ROWS.format(first, first + 6)}")
    _die_at(sql, Moment.VALUES_COMMITTED)
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(QUERIES["beside"].format("ev"))


def test_flushes_that_are_too_large_for_a_transaction(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to every executor, tables are merged into, and the files of values are compacted."""
    monkeypatch.setattr(commit, "are_few", lambda *_: False)
    monkeypatch.setattr(compaction, "_FLUSHES_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(compaction, "_SMALL_FILES", 3)
    queries = {"t": QUERIES["filters"], "fed": QUERIES["alone"], "others": QUERIES["beside"], "random": QUERIES["alone"]}
    sql(f"CREATE TABLE ev USING delta AS {ROWS.format(0, 5)}")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {queries['t'].format(ONE_FILE)}")
    feed = f"{DELTA[:-1]}, 'delta.enableChangeDataFeed' = 'true')"
    sql(f"CREATE STREAMING TABLE fed {feed} AS {queries['fed'].format(ONE_FILE)}")
    sql(f"CREATE TABLE others (k STRING, n BIGINT, total BIGINT, rows BIGINT, mean DOUBLE) USING delta {DELTA}")
    sql(f"CREATE FLOW others AS INSERT INTO others {queries['others'].format(ONE_FILE)}")
    sql(f"CREATE STREAMING TABLE random {DELTA} AS {queries['random'].format(f'{ONE_FILE} WHERE rand() < 2')}")

    def equals_batch(flow: str) -> None:
        sql(f"WAIT FLOW {flow}")
        assert sql.batch(f"SELECT * FROM {flow}") == sql.batch(queries[flow].format("ev")), flow

    for first in range(0, 15, 3):
        side_by_side(equals_batch, queries)
        sql(f"INSERT INTO ev {ROWS.format(first, first + 4)}")
    side_by_side(equals_batch, queries)
    flusher = sql.flow("t")._flusher
    assert flusher.wait(flusher.ask(FlushReason.COMMAND), DEADLINE)  # after what follows the last flush
    assert "OPTIMIZE" in {row.operation for row in sql(f"DESCRIBE HISTORY delta.`{sql.home('t')}/values`")}
    assert "distinct values" not in state(sql, "random")


# Crashes.


@pytest.mark.parametrize("query", ["beside", "filters", "sums"])
def test_a_crash_between_the_commits_of_a_flush(sql: Workshop, query: str) -> None:
    """Values are stored, the state is not: the same micro-batches are flushed again, together with others."""
    moments = [Moment.VALUES_COMMITTED, Moment.FLUSH_COMMITTED]
    if query in ("beside", "sums"):
        moments.append(Moment.STATE_COMMITTED)  # the state has a table of its own
    sql(f"CREATE TABLE ev USING delta AS {ROWS.format(0, 5)}")
    sql(f"CREATE STREAMING TABLE t {DELTA} AS {QUERIES[query].format(ONE_FILE)}")
    sql("WAIT FLOW t")
    for at, moment in enumerate(moments):
        sql(f"INSERT INTO ev {ROWS.format(3 * at + 3, 3 * at + 9)}")
        _die_at(sql, moment)
        sql(f"INSERT INTO ev {ROWS.format(3 * at + 5, 3 * at + 12)}")
        sql("START FLOW t")
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(QUERIES[query].format("ev")), moment
        assert are_contiguous(sql.commits("t"))


def _die_at(sql: Workshop, moment: Moment) -> None:
    def dies(reached: Moment, flow: str) -> None:
        if reached is moment:
            raise OSError("died here")

    with listened(dies), pytest.raises(PySparkException, match="died here"):
        sql("WAIT FLOW t")
    sql.crash()


def test_a_time_from_before_zones_had_whole_minutes(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of files in Spark's legacy format have such times some minutes off: Shanghai was at +08:05:43 in 1900."""
    monkeypatch.setattr(commit, "SMALL_TABLE_BYTES", -1)
    sql("SET spark.sql.legacy.timeParserPolicy = LEGACY")
    sql("SET spark.sql.session.timeZone = Asia/Shanghai")
    sql("CREATE TABLE ev (at TIMESTAMP, v INT) USING delta")
    queries = {"alone": "count(DISTINCT v)", "rewritten": "count(*)", "merged": "count(*)"}
    for flow, call in queries.items():
        feed = ", 'delta.enableChangeDataFeed' = 'true'" if flow == "merged" else ""
        options = f"TBLPROPERTIES ('state.backend.type' = 'delta'{feed})"
        sql(f"CREATE STREAMING TABLE {flow} {options} AS SELECT at, {call} AS n FROM STREAM ev GROUP BY at")
    for _ in range(2):
        sql("INSERT INTO ev VALUES (TIMESTAMP'1900-01-01 00:00:00', 1)")
        side_by_side(lambda flow: sql(f"WAIT FLOW {flow}"), queries)
    found = {flow: [row.n for row in sql(f"SELECT n FROM {flow}")] for flow in queries}
    assert found == {"alone": [1], "rewritten": [2], "merged": [2]}
