"""A streaming table that is there already: brought up to date, made anew, replaced; and what stays when that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta import target
from sqlext.execution.flows import making, succession
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.manager import FlowManager
from tests.integration.workshop import BUFFERED, COUNTS, Workshop, are_contiguous

STREAM = COUNTS.format("STREAM ev")
PER_KEY = "SELECT k, max(v) AS most FROM {} GROUP BY k"


@pytest.fixture(params=["delta"])
def flow(sql: Workshop, request: pytest.FixtureRequest) -> str:
    """The id of a streaming table's flow; what it has its state in is the fixture's parameter."""
    sql(f"SET `spark.sqlext.state.backend.type` = {request.param}")
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {STREAM}")
    sql("WAIT FLOW t")
    return str(sql.shown("t").id)


def epoch(sql: Workshop) -> int:
    return int(next(row.value for row in sql("DESCRIBE FLOW t") if row.property == "epoch"))


def goes_on(sql: Workshop, flow: str) -> None:
    """The old flow takes in what arrives, and adds it to what it had."""
    sql("INSERT INTO ev VALUES ('a', 10), ('z', 1)")
    sql("WAIT FLOW t")
    assert sql.shown("t").id == flow
    assert sql.shown("t").status == "RUNNING"
    assert sql.equals_batch()
    assert len(sql("SHOW FLOWS")) == 1


# CREATE OR REFRESH


def test_or_refresh_makes_what_is_not_there_and_goes_on_with_what_is(sql: Workshop) -> None:
    sql.source()
    create = f"CREATE OR REFRESH STREAMING TABLE t {BUFFERED} AS {STREAM}"
    (made,) = sql(create)
    assert made[0].endswith("started into spark_catalog.default.t")
    sql("WAIT FLOW t")
    flow, before = sql.shown("t").id, epoch(sql)
    sql("INSERT INTO ev VALUES ('a', 10)")

    written_otherwise = create.lower().replace("select", "-- the same\nselect").replace("from stream ev", "FROM   STREAM ev\n")
    written_otherwise = written_otherwise.replace("tblproperties ('execution", "TBLPROPERTIES ('execution")
    (said,) = sql(written_otherwise)
    assert said[0] == f"flow t ({flow}) goes on"
    sql("WAIT FLOW t")
    assert (sql.shown("t").id, epoch(sql)) == (flow, before)
    assert sql.equals_batch()
    assert are_contiguous(sql.commits("t"))


def test_or_refresh_starts_a_stopped_flow_and_applies_options_properties_and_comment(sql: Workshop) -> None:
    sql.source()
    create = "CREATE OR REFRESH STREAMING TABLE t {} AS " + STREAM
    properties = "'execution.flush.max-interval' = '10 minutes', 'mine' = 'x', 'backlog.lag-threshold' = '1 h'"
    old = f"COMMENT 'old' TBLPROPERTIES ({properties})"
    sql(create.format(old))
    flow = sql.shown("t").id
    sql("WAIT FLOW t")
    sql("ALTER FLOW t SET ('execution.checkpointing.interval' = '1 second')")
    sql("STOP FLOW t")
    (said,) = sql(create.format("COMMENT 'new' TBLPROPERTIES ('execution.flush.max-interval' = '5 minutes', 'mine' = 'y')"))
    assert said[0] == (
        f"flow t ({flow}) goes on; altered: backlog.lag-threshold, execution.flush.max-interval, mine, comment, started again"
    )
    described = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert described["option execution.flush.max-interval"] == "5 minutes (table property)"
    assert described["option execution.checkpointing.interval"] == "1 second (table property)", "what ALTER FLOW has set stays"
    assert "option backlog.lag-threshold" not in described
    detail = sql("DESCRIBE DETAIL t")[0]
    assert (detail.description, detail.properties["mine"]) == ("new", "y")
    assert "backlog.lag-threshold" not in detail.properties
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.equals_batch()


@pytest.mark.parametrize(
    ("clauses", "query", "differs"),
    [
        (BUFFERED, COUNTS.format("STREAM ev WHERE v > 1"), "the query"),
        (f"CLUSTER BY (k) {BUFFERED}", STREAM, "CLUSTER BY"),
        ("TBLPROPERTIES ('state.backend.type' = 'rocksdb')", STREAM, "`state.backend.type`"),
    ],
)
def test_another_definition_is_an_error_that_names_both_ways(sql: Workshop, clauses: str, query: str, differs: str) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {STREAM}")
    sql("WAIT FLOW t")
    flow = sql.shown("t").id
    with pytest.raises(PySparkException) as caught:
        sql(f"CREATE OR REFRESH STREAMING TABLE t {clauses} AS {query}")
    said = str(caught.value)
    assert f"was made from another definition: {differs} differs." in said
    assert "CREATE OR REPLACE STREAMING TABLE t takes the new definition" in said
    assert "REFRESH STREAMING TABLE t FULL" in said
    goes_on(sql, flow)


def test_another_column_list_is_another_definition(sql: Workshop) -> None:
    sql.source()
    create = "CREATE OR REFRESH STREAMING TABLE t {} AS " + STREAM
    sql(create.format("(k STRING COMMENT 'key', n, total)"))
    sql("WAIT FLOW t")
    flow = sql.shown("t").id
    (said,) = sql(create.format("(K string /* of ev */ COMMENT 'key', n, total)"))
    assert said[0] == f"flow t ({flow}) goes on"
    others = ("(k STRING COMMENT 'key', many, total)", "(k COMMENT 'key', n DECIMAL(20, 0), total)", "(k, n, total)", "")
    for other in (*others, "(k STRING COMMENT 'key', n NOT NULL, total)"):
        with pytest.raises(PySparkException, match="was made from another definition: the column list differs"):
            sql(create.format(other))
    goes_on(sql, flow)


def test_the_same_text_in_another_schema_is_another_query(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {STREAM}")
    sql("CREATE SCHEMA s")
    sql("USE s")
    sql.source()
    with pytest.raises(PySparkException, match=r"the schema in which its query finds tables \(it was spark_catalog\.default,"):
        sql(f"CREATE OR REFRESH STREAMING TABLE default.t {BUFFERED} AS {STREAM}")


def test_a_table_that_was_dropped_is_made_again(sql: Workshop) -> None:
    sql.source()
    create = f"CREATE OR REFRESH STREAMING TABLE t {BUFFERED} AS {STREAM}"
    sql(create)
    sql("WAIT FLOW t")
    sql("DROP TABLE t")
    sql(create)
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    sql("DROP FLOW t")
    with pytest.raises(PySparkException, match=r"which a flow made that is gone\. CREATE OR REPLACE STREAMING TABLE makes it"):
        sql(create)
    sql(create.replace("REFRESH", "REPLACE"))
    sql("WAIT FLOW t")
    assert sql.equals_batch()


# REFRESH STREAMING TABLE


def test_refresh_brings_up_to_date_and_full_computes_anew(sql: Workshop, flow: str) -> None:
    sql("STOP FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    (said,) = sql("REFRESH STREAMING TABLE t")
    assert said[0] == "flow t started again; flow t is up to date"
    assert sql.shown("t").id == flow
    assert sql.equals_batch()

    sql("ALTER FLOW t SET ('execution.flush.max-interval' = '7 minutes')")
    sql("UPDATE ev SET v = v * 100 WHERE k = 'a'")  # no stream goes on over this
    sql("REFRESH STREAMING TABLE default.T FULL SYNC")
    assert sql.equals_batch()
    assert sql.shown("t").id != flow
    described = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert described["option execution.flush.max-interval"] == "7 minutes (table property)"

    (said,) = sql("REFRESH STREAMING TABLE t ASYNC")
    assert said[0] == "flow t goes on"


def test_full_keeps_name_and_table_of_a_flow_whose_statement_came_from_another_schema(sql: Workshop) -> None:
    sql.source()
    query = COUNTS.format("STREAM default.ev")
    sql("CREATE SCHEMA s")
    sql(f"CREATE STREAMING TABLE s.t AS {query}")
    sql("USE s")
    sql(f"CREATE OR REFRESH STREAMING TABLE t AS {query}")
    sql("USE default")
    sql("REFRESH STREAMING TABLE s.t FULL")
    (flow,) = sql("SHOW FLOWS")
    assert (flow.full_name, flow.target) == ("spark_catalog.s.t", "spark_catalog.s.t")
    assert sql.equals_batch("s.t")
    assert not sql.spark.catalog.tableExists("default.t")


def test_full_keeps_what_alter_has_set(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, v INT, s STRUCT<a: INT, b: INT>) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1, NULL)")
    properties = "'mine' = 'x', 'gone' = 'x', 'delta.columnMapping.mode' = 'name'"
    sql(f"CREATE STREAMING TABLE t COMMENT 'old' CLUSTER BY (v) TBLPROPERTIES ({properties}) AS SELECT * FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("ALTER STREAMING TABLE t SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'mine' = 'y')")
    sql("ALTER STREAMING TABLE t SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    sql("ALTER STREAMING TABLE t UNSET TBLPROPERTIES ('gone')")
    sql("ALTER STREAMING TABLE t CLUSTER BY (k)")
    sql("ALTER STREAMING TABLE t ALTER COLUMN v COMMENT 'it''s v'")
    sql("ALTER STREAMING TABLE t ALTER COLUMN s.b COMMENT 'inside'")
    sql("COMMENT ON TABLE t IS 'new'")
    flow = sql.shown("t").id
    before, text = sql("DESCRIBE DETAIL t")[0], sql.spark.table("t").schema.json()
    sql("REFRESH STREAMING TABLE t FULL")
    after = sql("DESCRIBE DETAIL t")[0]
    assert sql.shown("t").id != flow
    own = ("sqlext.flow", "delta.columnMapping.maxColumnId")
    kept = [{k: v for k, v in each.properties.items() if k not in own and "materialized" not in k} for each in (before, after)]
    assert kept[0] == kept[1]
    assert kept[1].items() >= {"delta.enableChangeDataFeed": "true", "mine": "y"}.items()
    assert "gone" not in kept[1]
    assert (after.description, after.clusteringColumns) == ("new", ["k"])
    assert sql.spark.table("t").schema.json() == text
    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT * FROM ev")

    sql("ALTER TABLE t ADD CONSTRAINT positive CHECK (v > 0)")
    with pytest.raises(PySparkException, match="no new table can be given its constraint `positive`"):
        sql("REFRESH STREAMING TABLE t FULL")
    assert sql.shown("t").status == "RUNNING"


def test_a_job_does_not_replace_what_a_flow_keeps(sql: Workshop, flow: str) -> None:
    sql("SET execution.runtime-mode = BATCH")
    for way in ("REFRESH", "REPLACE"):
        with pytest.raises(PySparkException, match=r"Flow `t` keeps spark_catalog\.default\.t up to date"):
            sql(f"CREATE OR {way} STREAMING TABLE t AS {PER_KEY.format('STREAM ev')}")
        sql(f"CREATE OR {way} STREAMING TABLE other AS {STREAM}")
    assert sql.equals_batch("other")
    sql("SET execution.runtime-mode = STREAMING")
    goes_on(sql, flow)


def test_only_streaming_tables_are_refreshed(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE plain (k STRING, v INT) USING delta")
    sql("CREATE FLOW f AS INSERT INTO plain SELECT k, v FROM STREAM ev")
    with pytest.raises(PySparkException, match=r"spark_catalog\.default\.plain is no streaming table, but one that flow `f`"):
        sql("REFRESH STREAMING TABLE plain")
    with pytest.raises(PySparkException, match=r"There is no streaming table spark_catalog\.default\.ev\."):
        sql("REFRESH STREAMING TABLE ev FULL")


# What stays when a successor fails.


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT map(k, v) AS m, count(*) AS n FROM STREAM ev GROUP BY map(k, v)",  # refused by its key
        "SELECT k, row_number() OVER (ORDER BY v) AS n FROM STREAM ev",  # refused by the planner
        "SELECT k, v AS `a b` FROM STREAM ev",  # a name that Delta does not store
        "SELECT nothing FROM STREAM ev",  # refused by Spark
    ],
)
def test_a_refused_successor_touches_nothing(sql: Workshop, statement: str) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {STREAM}")
    sql("WAIT FLOW t")
    flow, before = sql.shown("t").id, epoch(sql)
    with pytest.raises(PySparkException):
        sql(f"CREATE OR REPLACE STREAMING TABLE t AS {statement}")
    assert epoch(sql) == before
    goes_on(sql, flow)


def test_a_definition_that_delta_refuses_touches_nothing(sql: Workshop) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {STREAM}")
    sql("WAIT FLOW t")
    flow, before = sql.shown("t").id, epoch(sql)
    with pytest.raises(PySparkException, match="nowhere"):
        sql(f"CREATE OR REPLACE STREAMING TABLE t PARTITIONED BY (nowhere) AS {STREAM}")
    assert epoch(sql) == before
    goes_on(sql, flow)


def fails(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is gone")


def fails_after(action: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        action(*arguments, **named)
        return fails()

    return wrapped


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "before the table": (making, "with_table", lambda _: fails),
    "after the table": (target, "create", fails_after),
    "after the state's tables": (making, "with_table", fails_after),
    "before the start": (FlowManager, "_started", lambda _: fails),
    "in the start": (Flow, "_start_queries", lambda _: fails),
    "after the start": (Flow, "start", fails_after),
}


@pytest.mark.parametrize(
    ("flow", "step"), [*(("delta", step) for step in FAULTS), ("rocksdb", "in the start")], indirect=["flow"]
)
def test_a_fault_at_any_step_leaves_the_old_table_and_its_flow(
    sql: Workshop, flow: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    owner, name, fault = FAULTS[step]
    found = getattr(owner, name)
    tries: list[str] = []

    def once(*arguments: Any, **named: Any) -> Any:
        tries.append(name)
        return (fault(found) if len(tries) == 1 else found)(*arguments, **named)

    monkeypatch.setattr(owner, name, once)
    sql("INSERT INTO ev VALUES ('b', 5)")
    with pytest.raises(PySparkException, match="the disk is gone"):
        sql(f"CREATE OR REPLACE STREAMING TABLE t AS {PER_KEY.format('STREAM ev')}")
    assert tries
    goes_on(sql, flow)
    sql(f"CREATE OR REPLACE STREAMING TABLE t AS {PER_KEY.format('STREAM ev')}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(PER_KEY.format("ev"))
    assert sql.shown("t").id != flow


@pytest.mark.parametrize("step", ["after the table", "in the start"])
def test_a_crash_in_the_middle_of_a_succession_brings_the_old_flow_back(
    sql: Workshop, flow: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    owner, name, fault = FAULTS[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault(getattr(owner, name)))
        patch.setattr(succession, "undo_table", fails)  # a killed process undoes nothing
        patch.setattr(making.FlowMaker, "_run_again", lambda *_: None)
        with pytest.raises(PySparkException, match="the disk is gone"):
            sql(f"CREATE OR REPLACE STREAMING TABLE t AS {PER_KEY.format('STREAM ev')}")
    if step == "in the start":
        assert {record.state for record in sql.host.flows._registry.read().values()} == {"RUNNING", "RETRYING"}
    sql.crash()
    assert sql.resume() == ["t"]
    goes_on(sql, flow)


def test_a_crash_after_a_succession_forgets_the_old_flow(sql: Workshop, flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FlowManager, "forget", fails)
        with pytest.raises(PySparkException, match="the disk is gone"):
            sql(f"CREATE OR REPLACE STREAMING TABLE t AS {PER_KEY.format('STREAM ev')}")
    assert len(sql.host.flows._registry.read()) == 2
    sql.crash()
    assert sql.resume() == ["t"]
    sql("INSERT INTO ev VALUES ('b', 50)")
    sql("WAIT FLOW t")
    (record,) = sql.host.flows._registry.read().values()
    assert record.spec.id != flow
    assert sql.batch("SELECT * FROM t") == sql.batch(PER_KEY.format("ev"))


def test_a_map_is_refused_as_a_key_by_its_name(sql: Workshop) -> None:
    sql("CREATE TABLE maps (m MAP<STRING, INT>, v INT) USING delta")
    sql("INSERT INTO maps VALUES (map('x', 1, 'y', 2), 1), (map('y', 2, 'x', 1), 2)")
    with pytest.raises(PySparkException, match=r"The key `m` of the query is MAP<STRING, INT>, .* array_sort\(map_entries"):
        sql("CREATE STREAMING TABLE t AS SELECT m, sum(v) AS s FROM STREAM maps GROUP BY m")
    assert sql("SHOW TABLES LIKE 't'") == []
    query = "SELECT array_sort(map_entries(m)) AS m, sum(v) AS s FROM {} GROUP BY array_sort(map_entries(m))"
    sql(f"CREATE STREAMING TABLE t AS {query.format('STREAM maps')}")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("maps"))
