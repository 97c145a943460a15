"""A streaming table that is there already: brought up to date, made anew, replaced; and what stays when that fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import table_definition
from sqlext.execution.flows import making, succession
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRegistry
from sqlext.spark.storage import HadoopPath
from tests.integration.workshop import BUFFERED, COUNTS, Workshop, are_contiguous
from tests.support import side_by_side
from tests.unit.test_spec_registry import SPEC

pytestmark = pytest.mark.usefixtures("lean")

STREAM = COUNTS.format("STREAM ev")
PER_KEY = "SELECT k, max(v) AS most FROM {} GROUP BY k"


@pytest.fixture
def flow(sql: Workshop) -> str:
    """The id of a streaming table's flow, whose state is its table."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({buffered('delta')}) AS {STREAM}")
    sql("WAIT FLOW t")
    return str(sql.shown("t").id)


def buffered(backend: str) -> str:
    return f"'execution.flush.max-interval' = '10 minutes', 'state.backend.type' = '{backend}'"


def epoch(sql: Workshop) -> int:
    return int(next(row.value for row in sql("DESCRIBE FLOW t") if row.property == "epoch"))


def ids(sql: Workshop) -> dict[str, str]:
    """The flows' ids by their tables' names."""
    return {row.name: row.id for row in sql("SHOW FLOWS")}


def go_on(sql: Workshop, flows: Mapping[str, str]) -> None:
    """The old flows take in what arrives, and add it to what they had.

    Args:
        flows: their ids by their tables' names.
    """
    sql("INSERT INTO ev VALUES ('a', 10), ('z', 1)")
    expected = sql.batch(COUNTS.format("ev"))

    def takes_in(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT k, n, total FROM {table}") == expected

    side_by_side(takes_in, flows)
    found = [(row.name, row.id, row.status) for row in sql("SHOW FLOWS") if row.name in flows]
    assert sorted(found) == sorted((table, flow, "RUNNING") for table, flow in flows.items())


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
    assert said[0] == f"flow t ({flow}) keeps running"
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
        f"flow t ({flow}) keeps running; altered: backlog.lag-threshold, execution.flush.max-interval, mine, comment, restarted"
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


def test_another_definition_is_an_error_that_names_both_ways(sql: Workshop, flow: str) -> None:
    sql("CREATE SCHEMA s")
    sql("CREATE TABLE s.ev (k STRING, v INT) USING delta")
    refresh = "CREATE OR REFRESH STREAMING TABLE {} {} AS {}"
    backed = f"TBLPROPERTIES ({buffered('delta')})"
    for clauses, query, differs in (
        (backed, COUNTS.format("STREAM ev WHERE v > 1"), "the query"),
        (f"CLUSTER BY (k) {backed}", STREAM, "CLUSTER BY"),
        ("TBLPROPERTIES ('state.backend.type' = 'rocksdb')", STREAM, "`state.backend.type`"),
    ):
        with pytest.raises(PySparkException) as caught:
            sql(refresh.format("t", clauses, query))
        said = str(caught.value)
        assert f"was made from another definition: {differs} differs." in said
        assert "CREATE OR REPLACE STREAMING TABLE t takes the new definition" in said
        assert "REFRESH STREAMING TABLE t FULL" in said
    sql("USE s")  # where the same text is another query
    with pytest.raises(PySparkException, match=r"the schema in which its query finds tables \(it was spark_catalog\.default,"):
        sql(refresh.format("default.t", backed, STREAM))
    sql("USE default")
    go_on(sql, {"t": flow})


def test_another_column_list_is_another_definition(sql: Workshop) -> None:
    sql.source()
    create = "CREATE OR REFRESH STREAMING TABLE t {} AS " + STREAM
    sql(create.format("(k STRING COMMENT 'key', n, total)"))
    flow = sql.shown("t").id
    (said,) = sql(create.format("(K string /* of ev */ COMMENT 'key', n, total)"))
    assert said[0] == f"flow t ({flow}) keeps running"
    others = ("(k STRING COMMENT 'key', many, total)", "(k COMMENT 'key', n DECIMAL(20, 0), total)", "(k, n, total)", "")
    for other in (*others, "(k STRING COMMENT 'key', n NOT NULL, total)"):
        with pytest.raises(PySparkException, match="was made from another definition: the column list differs"):
            sql(create.format(other))
    go_on(sql, {"t": flow})


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
    with pytest.raises(PySparkException, match=r"which a flow made that is gone\. CREATE OR REPLACE .* recreates it"):
        sql(create)
    sql(create.replace("REFRESH", "REPLACE"))
    sql("WAIT FLOW t")
    assert sql.equals_batch()


# REFRESH STREAMING TABLE


def test_refresh_brings_up_to_date_and_full_computes_anew(sql: Workshop, flow: str) -> None:
    sql("STOP FLOW t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    (said,) = sql("REFRESH STREAMING TABLE t")
    assert said[0] == "flow t restarted; flow t is up to date"
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
    assert said[0] == "flow t keeps running"


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
    go_on(sql, {"t": flow})


def test_only_streaming_tables_are_refreshed(sql: Workshop) -> None:
    sql.source()
    sql("CREATE TABLE plain (k STRING, v INT) USING delta")
    sql("CREATE FLOW f AS INSERT INTO plain SELECT k, v FROM STREAM ev")
    with pytest.raises(
        PySparkException, match=r"spark_catalog\.default\.plain is not a streaming table, but an existing table that flow `f`"
    ):
        sql("REFRESH STREAMING TABLE plain")
    with pytest.raises(PySparkException, match=r"There is no streaming table spark_catalog\.default\.ev\."):
        sql("REFRESH STREAMING TABLE ev FULL")


# What stays when a successor fails.


def test_a_refused_successor_touches_nothing(sql: Workshop, flow: str) -> None:
    before = epoch(sql)
    for successor, because in (
        ("AS SELECT map(k, v) AS m, count(*) AS n FROM STREAM ev GROUP BY map(k, v)", "The key `m`"),
        ("AS SELECT k, row_number() OVER (ORDER BY v) AS n FROM STREAM ev", "row_number"),
        ("AS SELECT k, v AS `a b` FROM STREAM ev", "a b"),
        ("AS SELECT nothing FROM STREAM ev", "nothing"),
        (f"PARTITIONED BY (nowhere) AS {STREAM}", "nowhere"),
    ):
        with pytest.raises(PySparkException, match=because):
            sql(f"CREATE OR REPLACE STREAMING TABLE t {successor}")
        assert epoch(sql) == before, successor
    go_on(sql, {"t": flow})


def fails(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is gone")


def fails_after(action: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        action(*arguments, **named)
        return fails()

    return wrapped


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "before the table": (making, "with_table", lambda _: fails),
    "after the table": (table_definition, "create", fails_after),
    "after the state's tables": (making, "with_table", fails_after),
    "before the start": (FlowManager, "_taken", lambda _: fails),
    "in the start": (Flow, "_start_queries", lambda _: fails),
    "after the start": (Flow, "start", fails_after),
}


class Case(NamedTuple):
    """A flow whose place another one takes, with a fault on the way."""

    step: str
    backend: str = "delta"

    @property
    def table(self) -> str:
        return re.sub(r"\W", "_", f"{self.step} {self.backend}")

    def create(self, sql: Workshop) -> None:
        sql(f"CREATE STREAMING TABLE {self.table} TBLPROPERTIES ({buffered(self.backend)}) AS {STREAM}")
        sql(f"WAIT FLOW {self.table}")

    def replace(self, sql: Workshop) -> None:
        backed = f"TBLPROPERTIES ('state.backend.type' = '{self.backend}')"
        sql(f"CREATE OR REPLACE STREAMING TABLE {self.table} {backed} AS {PER_KEY.format('STREAM ev')}")


@pytest.mark.usefixtures("unhurried")
def test_a_fault_at_any_step_leaves_the_old_table_and_its_flow(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    cases = [*(Case(step) for step in FAULTS), Case("in the start", "rocksdb")]
    side_by_side(lambda case: case.create(sql), cases)
    flows = ids(sql)
    sql("INSERT INTO ev VALUES ('b', 5)")
    for case in cases:
        owner, name, fault = FAULTS[case.step]
        with monkeypatch.context() as patch:
            tries = fail_once(patch, owner, name, fault)
            with pytest.raises(PySparkException, match="the disk is gone"):
                case.replace(sql)
        assert tries, case
    go_on(sql, flows)

    expected = sql.batch(PER_KEY.format("ev"))

    def is_replaced(case: Case) -> None:
        case.replace(sql)
        sql(f"WAIT FLOW {case.table}")
        assert sql.batch(f"SELECT * FROM {case.table}") == expected

    side_by_side(is_replaced, cases)
    assert ids(sql).keys() == flows.keys()
    assert not set(ids(sql).values()) & set(flows.values())


def fail_once(patch: pytest.MonkeyPatch, owner: Any, name: str, fault: Callable[[Any], Any]) -> list[str]:
    """Let a step fail the first time; what is returned has an entry for each time."""
    found, tries = getattr(owner, name), []

    def once(*arguments: Any, **named: Any) -> Any:
        tries.append(name)
        return (fault(found) if len(tries) == 1 else found)(*arguments, **named)

    patch.setattr(owner, name, once)
    return tries


def test_a_crash_brings_the_old_flow_back_and_after_the_succession_forgets_it(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql.source()
    middle, after = [Case("after the table"), Case("in the start")], Case("after all")
    side_by_side(lambda case: case.create(sql), [*middle, after])
    flows = ids(sql)
    for case in middle:
        owner, name, fault = FAULTS[case.step]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault(getattr(owner, name)))
            patch.setattr(succession, "undo_table", fails)  # a killed process undoes nothing
            patch.setattr(making.FlowMaker, "_run_again", lambda *_: None)
            patch.setattr(making.FlowMaker, "sweep", lambda _: None)  # nor does it run the next statement
            with pytest.raises(PySparkException, match="the disk is gone"):
                case.replace(sql)
    assert sorted(states(sql, "in_the_start_delta")) == ["RETRYING", "RUNNING"]
    with monkeypatch.context() as patch:
        patch.setattr(FlowManager, "forget", fails)
        patch.setattr(making.FlowMaker, "sweep", lambda _: None)
        with pytest.raises(PySparkException, match="the disk is gone"):
            after.replace(sql)
    assert len(states(sql, after.table)) == 2

    sql.crash()
    assert sorted(sql.resume()) == sorted(flows)
    old = flows.pop(after.table)
    go_on(sql, flows)
    sql(f"WAIT FLOW {after.table}")
    assert len(states(sql, after.table)) == 1
    assert ids(sql)[after.table] != old
    assert sql.batch(f"SELECT * FROM {after.table}") == sql.batch(PER_KEY.format("ev"))


def test_what_could_not_be_undone_does_not_count_as_a_flow_and_is_undone_by_the_next_statement(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql.source()
    create = f"CREATE STREAMING TABLE IF NOT EXISTS t AS {STREAM}"
    owner, name, fault = FAULTS["after the state's tables"]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault(getattr(owner, name)))
        patch.setattr(succession, "undo_table", fails)
        for error in ("the disk is gone", "The flow `t` is just being created"):
            with pytest.raises(PySparkException, match=error):
                sql(create)
    assert states(sql, "t") == ["RESERVED"]
    sql(create)
    assert states(sql, "t") == ["RUNNING"]
    sql("WAIT FLOW t")
    assert sql.equals_batch()


def test_a_flow_that_another_process_is_making_is_not_there_yet(sql: Workshop) -> None:
    sql.source()
    registry, other = sql.host.flows._registry, Lease(HadoopPath(sql.spark, sql.host.home))
    other.beat()
    table = ("spark_catalog", "default", "t")
    spec = replace(SPEC, name="t", full_name=table, target=table, target_location="", owns_target=True, streams=())
    registry.append(FlowEvent(spec.id, EventKind.RESERVED, host=other.host_id, spec=spec.to_json()))
    expected = (
        "The flow `t` is just being created, by another statement. Try again when that has ended; if its process has died, "
        "after 30 s."
    )
    for how in ("STREAMING TABLE IF NOT EXISTS", "OR REFRESH STREAMING TABLE", "OR REPLACE STREAMING TABLE", "STREAMING TABLE"):
        with pytest.raises(PySparkException, match=re.escape(expected)):
            sql(f"CREATE {how} t AS {STREAM}")
    with pytest.raises(PySparkException, match=re.escape(expected)):
        sql("CREATE FLOW IF NOT EXISTS t AS INSERT INTO ev SELECT k, v FROM STREAM ev")
    assert states(sql, "t") == ["RESERVED"]
    other.end()
    sql(f"CREATE STREAMING TABLE IF NOT EXISTS t AS {STREAM}")
    assert states(sql, "t") == ["RUNNING"]


def test_a_reservation_whose_answer_was_lost_is_taken_back(sql: Workshop, flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = epoch(sql)
    for statement in (
        f"CREATE STREAMING TABLE u AS {STREAM}",
        f"CREATE OR REPLACE STREAMING TABLE t AS {PER_KEY.format('STREAM ev')}",
    ):
        with monkeypatch.context() as patch:
            fail_once(patch, FlowRegistry, "append", fails_after)
            with pytest.raises(PySparkException, match="the disk is gone"):
                sql(statement)
    assert ids(sql) == {"t": flow}
    assert epoch(sql) == before, "the old flow was not restarted"
    go_on(sql, {"t": flow})


def states(sql: Workshop, name: str) -> list[str]:
    """The states on record of all flows of a name."""
    return [record.state for record in sql.host.flows._registry.read().values() if record.spec.name == name]


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
