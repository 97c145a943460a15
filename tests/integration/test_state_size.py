"""The size of a flow's state, in DESCRIBE FLOW and for the metrics, against what is in its tables and in Spark's report."""

from __future__ import annotations

from typing import Any

import pytest

from sqlext.plan.flow_spec import StateBackend
from sqlext.spark.state_size import StateSize
from tests.integration.workshop import COUNTS, DEADLINE, Workshop
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")


def state_of(sql: Workshop, name: str) -> dict[StateBackend, StateSize]:
    view = next(each for each in sql.host.flows.views() if each.name == name)
    assert view.progress is not None
    return dict(view.progress.state)


def described(sql: Workshop, name: str) -> dict[str, Any]:
    return {row.property: row.value for row in sql(f"DESCRIBE FLOW {name}")}


def test_state_in_a_table_is_as_large_as_the_table(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('c', 4), ('d', 5)")
    sql("WAIT FLOW t")
    detail = sql("DESCRIBE DETAIL t")[0]
    expected = {StateBackend.DELTA: StateSize(5, detail.sizeInBytes)}  # of five groups
    eventually(lambda: state_of(sql, "t") == expected, DEADLINE, lambda: str(state_of(sql, "t")))
    assert described(sql, "t")["state_rows"] == "5 (delta)"
    assert described(sql, "t")["state_bytes"] == f"{detail.sizeInBytes} (delta)"
    sql("STOP FLOW t")
    sql("START FLOW t")
    assert state_of(sql, "t") == expected  # it is known again before anything arrives


def test_state_beside_the_table_and_its_distinct_values_are_counted(sql: Workshop) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k, avg(v) AS mean FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    state = sql.home("t") / "state"
    assert state.is_dir()
    size = sql(f"DESCRIBE DETAIL delta.`{state}`")[0].sizeInBytes
    expected = {StateBackend.DELTA: StateSize(3, size)}
    eventually(lambda: state_of(sql, "t") == expected, DEADLINE, lambda: str(state_of(sql, "t")))


def test_state_in_rocksdb_is_what_spark_reports(sql: Workshop) -> None:
    sql.source()
    properties = "TBLPROPERTIES ('state.backend.type' = 'rocksdb')"
    sql(f"CREATE STREAMING TABLE t {properties} AS {COUNTS.format('STREAM ev')}")
    sql("WAIT FLOW t")
    eventually(lambda: state_of(sql, "t").get(StateBackend.ROCKSDB), DEADLINE)
    found = state_of(sql, "t")
    assert found.keys() == {StateBackend.ROCKSDB}
    assert found[StateBackend.ROCKSDB].rows is None  # which RocksDB does not count for flows
    assert (found[StateBackend.ROCKSDB].bytes or 0) > 0
    assert described(sql, "t")["state_rows"] is None


def test_a_flow_without_an_aggregate_has_no_state(sql: Workshop) -> None:
    sql.source()
    sql("CREATE STREAMING TABLE t AS SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW t")
    assert state_of(sql, "t") == {}
    assert "state_rows" not in described(sql, "t")
