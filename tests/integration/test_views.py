"""Materialized views through SQL: created, refreshed, by hand and by themselves, shown, altered, dropped; what a crash leaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from sqlext.errors import StatementCanceledError
from sqlext.execution.host import Host
from sqlext.execution.views import live, making
from sqlext.execution.views.manager import ViewManager
from sqlext.execution.views.refresh import Refresher
from sqlext.execution.views.registry import ViewEvent, ViewEventKind
from sqlext.execution.views.writing import ViewTable
from sqlext.plan.view_spec import VIEW_PROPERTY, RefreshReport
from sqlext.testing import HandClock
from tests.integration.workshop import Workshop, local
from tests.support import eventually, side_by_side

pytestmark = pytest.mark.usefixtures("lean")

DEADLINE = 180.0
SUMS = "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o JOIN customers c ON o.cid = c.id GROUP BY c.region"
CHANGES = (
    "INSERT INTO orders VALUES (4, 2, 40), (5, 1, 50)",
    "UPDATE orders SET amount = amount + 1 WHERE id = 1",
    "DELETE FROM orders WHERE id = 3",
    "UPDATE customers SET region = 'south' WHERE id = 1",
)


def tables(sql: Workshop) -> None:
    sql("CREATE TABLE orders (id INT, cid INT, amount INT) USING delta")
    sql("INSERT INTO orders VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30)")
    sql("CREATE TABLE customers (id INT, region STRING) USING delta")
    sql("INSERT INTO customers VALUES (1, 'north'), (2, 'south')")


def shown(sql: Workshop, name: str = "v") -> Any:
    return next(row for row in sql("SHOW MATERIALIZED VIEWS") if row.name == name)


def equals_query(sql: Workshop, query: str = SUMS, view: str = "v") -> bool:
    return sql.batch(f"SELECT * FROM {view}") == sql.batch(query)


def said(sql: Workshop, statement: str) -> str:
    return str(sql(statement)[0][0])


def no_room(*_: object, **__: object) -> None:
    raise RuntimeError("no room")


# By hand.


def test_a_view_equals_its_query_after_each_refresh(sql: Workshop) -> None:
    tables(sql)
    assert said(sql, f"CREATE MATERIALIZED VIEW v COMMENT 'by region' AS {SUMS}") == "materialized view default.v created: 2 rows"
    assert equals_query(sql)
    for change in CHANGES:
        sql(change)
        assert shown(sql).behind
        assert said(sql, "REFRESH MATERIALIZED VIEW v").startswith("materialized view default.v: ")
        assert equals_query(sql), change
        assert not shown(sql).behind
    before = shown(sql)
    assert "no change" in said(sql, "REFRESH MATERIALIZED VIEW v")
    assert shown(sql).version == before.version
    assert ": full" in said(sql, "REFRESH MATERIALIZED VIEW v FULL")
    row = shown(sql)
    assert (row.status, row.policy, row.schedule, row.comment) == ("IDLE", "AUTO", None, "by region")
    assert row.full_name == "spark_catalog.default.v"
    assert "spark_catalog.default.orders@" in row.sources
    assert row.error is None


def test_a_view_has_the_columns_properties_and_partitions_that_it_was_given(sql: Workshop) -> None:
    tables(sql)
    listed = "(area COMMENT 'of customers', many BIGINT NOT NULL, total DECIMAL(20, 0))"
    clauses = "PARTITIONED BY (area) TBLPROPERTIES ('team' = 'sales')"
    sql(f"CREATE MATERIALIZED VIEW v {listed} {clauses} AS {SUMS}")
    described = [tuple(row) for row in sql("DESCRIBE TABLE v")][:3]
    assert described[0] == ("area", "string", "of customers")
    assert [row[1] for row in described] == ["string", "bigint", "decimal(20,0)"]
    properties = {row.key: row.value for row in sql("SHOW TBLPROPERTIES v")}
    assert properties["team"] == "sales"
    assert properties[VIEW_PROPERTY] == shown(sql).id
    assert sql("DESCRIBE DETAIL v")[0].partitionColumns == ["area"]
    sql(CHANGES[0])
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT area, many, CAST(total AS BIGINT) FROM v") == sql.batch(SUMS)


def test_a_view_keeps_the_settings_schema_and_variables_of_its_session(sql: Workshop) -> None:
    sql("CREATE SCHEMA other")
    sql("USE other")
    sql("CREATE TABLE t (k STRING, v INT) USING delta")
    sql("INSERT INTO t VALUES ('1', 1), ('x', 2)")
    sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 1")
    sql("SET spark.sql.ansi.enabled = false")
    query = "SELECT CAST(k AS INT) AS k, v FROM t WHERE v >= least"
    sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    sql("SET spark.sql.ansi.enabled = true")
    sql("SET VARIABLE least = 100")
    sql("USE default")
    sql.crash()
    sql("INSERT INTO other.t VALUES ('y', 3), ('z', 0)")
    sql("REFRESH MATERIALIZED VIEW OTHER.V")
    assert sql.batch("SELECT * FROM other.v") == [(1, 1), (None, 2), (None, 3)]
    sql("DROP TEMPORARY VARIABLE least")


def test_a_view_over_a_temporary_view_lives_with_its_process(sql: Workshop) -> None:
    tables(sql)
    sql("CREATE TEMPORARY VIEW large AS SELECT * FROM orders WHERE amount > 10")
    made = said(sql, "CREATE MATERIALIZED VIEW v AS SELECT id, amount FROM large")
    assert "it reads large and so can be refreshed only while" in made
    sql(CHANGES[0])
    sql("REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql, "SELECT id, amount FROM large")
    sql.crash()
    assert shown(sql).status == "LOST"
    with pytest.raises(PySparkException, match="reads large, which only the process that created it has"):
        sql("REFRESH MATERIALIZED VIEW v")
    sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id, amount FROM large")
    assert shown(sql).status == "IDLE"


def test_a_refresh_that_waits_for_another_one_sees_what_came_before_it(sql: Workshop) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")

    def change_and_refresh(number: int) -> None:
        sql(f"INSERT INTO orders VALUES ({10 + number}, 1, {number})")
        sql(f"REFRESH MATERIALIZED VIEW v {'FULL' if number == 2 else ''}")
        assert sql.batch("SELECT sum(n) FROM v")[0][0] >= 4

    side_by_side(change_and_refresh, range(5))
    assert equals_query(sql)
    sql(CHANGES[1])
    assert "the refresh begins" in said(sql, "REFRESH MATERIALIZED VIEW v ASYNC")
    eventually(lambda: equals_query(sql), DEADLINE)


# Names that are taken, and the place of another.


def test_names_that_are_taken_are_told_with_the_ways(sql: Workshop) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    version = shown(sql).version
    with pytest.raises(PySparkException, match=r"a materialized view default\.v already\. CREATE OR REPLACE .* IF NOT EXISTS"):
        sql("CREATE MATERIALIZED VIEW V AS SELECT * FROM orders")
    assert "stays as it is" in said(sql, "CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT * FROM orders")
    assert shown(sql).version == version
    sql("CREATE VIEW plain AS SELECT 1 AS a")
    for name in ("orders", "plain"):
        for verb in ("CREATE", "CREATE OR REPLACE"):
            with pytest.raises(PySparkException, match=rf"a table or view default\.{name} already, which is no materialized"):
                sql(f"{verb} MATERIALIZED VIEW {name} AS SELECT id FROM customers")
    sql("CREATE STREAMING TABLE s AS SELECT id FROM STREAM orders")
    with pytest.raises(PySparkException, match=r"The flow `s` writes to default\.s"):
        sql("CREATE OR REPLACE MATERIALIZED VIEW s AS SELECT id FROM customers")
    sql("CREATE FLOW f AS INSERT INTO customers SELECT id, 'x' FROM STREAM orders")
    sql("STOP FLOW s")
    assert {row.name: row.kind for row in sql("SHOW FLOWS")} == {
        "s": "streaming table",
        "f": "insert into",
        "v": "materialized view",
    }
    assert sql("DESCRIBE FLOW v")[0].value == "materialized view"


WRITES = (
    "INSERT INTO {} SELECT id, amount FROM STREAM orders",
    "CREATE FLOW f AS INSERT INTO {} SELECT id, amount FROM STREAM orders",
    "INSERT INTO {} SELECT id, max(amount) AS amount FROM STREAM orders GROUP BY id GLOBAL WINDOW END OF STREAM",
    "CREATE STREAMING TABLE {} AS SELECT id, amount FROM STREAM orders",
    "CREATE STREAMING TABLE IF NOT EXISTS {} AS SELECT id, amount FROM STREAM orders",
    "CREATE OR REPLACE STREAMING TABLE {} AS SELECT id, amount FROM STREAM orders",
    "CREATE OR REPLACE TABLE {} USING delta AS SELECT id, max(amount) AS amount FROM STREAM orders GROUP BY id GLOBAL WINDOW "
    "END OF STREAM",
)


def test_nothing_but_refreshes_writes_to_a_view(sql: Workshop) -> None:
    tables(sql)
    sql("CREATE MATERIALIZED VIEW v AS SELECT id, amount FROM orders")
    location = sql("DESCRIBE DETAIL v")[0].location
    for write in (*WRITES, WRITES[0].format(f"delta.`{location}`")):
        with pytest.raises(PySparkException, match=r"the table of the materialized view default\.v, and only its refreshes"):
            sql(write.format("V"))
    sql("SET spark.sqlext.execution.runtime-mode = BATCH")
    with pytest.raises(PySparkException, match=r"V is the table of the materialized view default\.v"):
        sql(WRITES[5].format("V"))
    assert [row.name for row in sql("SHOW FLOWS")] == ["v"]
    sql("RESET `spark.sqlext.execution.runtime-mode`")


def test_wait_for_a_view_refreshes_it_and_ends_in_time_while_the_refresh_goes_on(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    sql(CHANGES[0])
    assert said(sql, "WAIT FLOW v TIMEOUT 2 minutes").startswith("materialized view default.v: ")
    assert equals_query(sql)
    refresh, may_go_on = Refresher.refresh, threading.Event()

    def late(self: Refresher, *rest: Any) -> RefreshReport:
        may_go_on.wait(DEADLINE)
        return refresh(self, *rest)

    monkeypatch.setattr(Refresher, "refresh", late)
    sql(CHANGES[1])
    with pytest.raises(PySparkException, match=r"default\.v has not ended after 1 s\. It goes on"):
        sql("WAIT FLOW v TIMEOUT 1 second")
    assert shown(sql).status == "REFRESHING"
    may_go_on.set()
    eventually(lambda: equals_query(sql), DEADLINE)
    with pytest.raises(PySparkException, match="TIMEOUT cannot be `soon`"):
        sql("WAIT FLOW v TIMEOUT soon")


def test_or_replace_takes_the_place_of_a_view_and_of_nothing_half(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(sql)
    sql(f"CREATE OR REPLACE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS {SUMS}")  # whatever it costs here
    old = shown(sql)
    with pytest.raises(PySparkException, match="nothing_there"):
        sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT nothing_there FROM orders")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no room")

    sql(CHANGES[0])
    with monkeypatch.context() as patched:
        patched.setattr(Refresher, "refresh", fail)
        with pytest.raises(PySparkException, match="no room"):
            sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders")
    assert shown(sql).id == old.id
    assert [row.col_name for row in sql("DESCRIBE TABLE v")] == ["region", "n", "total"]
    assert shown(sql).behind
    assert ": full" not in said(sql, "REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql)
    sql(CHANGES[1])
    with monkeypatch.context() as patched:
        patched.setattr(live.LiveView, "_note_success", fail)  # the new rows are committed
        with pytest.raises(PySparkException, match="no room"):
            sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders")
    assert (shown(sql).id, shown(sql).behind) == (old.id, True)
    assert [row.col_name for row in sql("DESCRIBE TABLE v")] == ["region", "n", "total"]
    assert ": full" not in said(sql, "REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql)
    assert said(sql, "CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders").startswith(
        "materialized view default.v rep"
    )
    assert equals_query(sql, "SELECT id FROM orders")
    assert shown(sql).id != old.id
    assert len(sql("SHOW MATERIALIZED VIEWS")) == 1


IDS = "SELECT id, amount FROM orders"
DEFINITIONS = {
    "PARTITIONED BY (region)": SUMS,
    "(a COMMENT 'area', b BIGINT NOT NULL, c) COMMENT 'new' PARTITIONED BY (a, b) TBLPROPERTIES ('team' = 'x')": SUMS,
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')": "SELECT id AS `the id`, amount FROM orders",
    "CLUSTER BY (id)": IDS,
}


NO_REPLACEMENTS = {
    "PARTITIONED BY (id)": "was CLUSTER BY by one that is",
    "LOCATION '/elsewhere'": "is another place",
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = true)": "Leave delta.enableChangeData",
}


def test_a_view_that_is_replaced_shows_its_old_rows_until_one_commit_brings_the_new_ones(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    refresh, seen, places = Refresher.refresh, list[Any](), list[Any]()

    def look_and_refresh(self: Refresher, *rest: Any) -> RefreshReport:
        seen.append(sql.batch("SELECT * FROM v"))
        return refresh(self, *rest)

    monkeypatch.setattr(Refresher, "refresh", look_and_refresh)
    for version, (clauses, query) in enumerate(DEFINITIONS.items(), 1):
        before = sql.batch("SELECT * FROM v")
        made = said(sql, f"CREATE OR REPLACE MATERIALIZED VIEW v {clauses} AS {query}")
        assert made.startswith("materialized view default.v replaced"), clauses
        assert seen.pop() == before, clauses
        assert equals_query(sql, query), clauses
        commit, detail = sql("DESCRIBE HISTORY v")[0], sql("DESCRIBE DETAIL v")[0]
        assert (commit.operation, commit.version) == ("CREATE OR REPLACE TABLE AS SELECT", version + 1)
        places.append((detail.partitionColumns, detail.clusteringColumns))
        if version == 2:
            assert sql("SHOW TBLPROPERTIES v ('team')")[0].value == "x"
            assert (shown(sql).comment, sql.spark.catalog.getTable("v").description) == ("new", "new")
            assert sql("DESCRIBE TABLE v")[0].comment == "area"
    assert places == [(["region"], []), (["a", "b"], []), ([], []), ([], ["id"])]
    assert sql.batch("SELECT * FROM v VERSION AS OF 2") == sql.batch(SUMS)
    for clause, message in NO_REPLACEMENTS.items():
        with pytest.raises(PySparkException, match=message):
            sql(f"CREATE OR REPLACE MATERIALIZED VIEW v {clause} AS {IDS}")
    sql(CHANGES[0])
    assert ": append" in said(sql, "REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql, IDS)
    assert "team" not in {row.key for row in sql("SHOW TBLPROPERTIES v")}


def test_a_first_refresh_that_fails_leaves_nothing(sql: Workshop) -> None:
    tables(sql)
    with pytest.raises(PySparkException, match=r"DIVIDE_BY_ZERO|division by zero"):
        sql("CREATE MATERIALIZED VIEW v AS SELECT id / (id - 1) AS x FROM orders")
    assert sql("SHOW MATERIALIZED VIEWS") == []
    assert not sql.spark.catalog.tableExists("v")
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    assert equals_query(sql)


def test_a_process_that_dies_while_a_view_is_replaced_leaves_the_old_one(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Refresher, "refresh", fail)
        patched.setattr("sqlext.execution.views.making.ViewMaker._undo", lambda *_: None)
        with pytest.raises(PySparkException):
            sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders")
        with pytest.raises(PySparkException):
            sql("CREATE MATERIALIZED VIEW w AS SELECT id FROM orders")
        sql.crash()
    sql(CHANGES[0])
    eventually(lambda: sql.host and not sql.spark.catalog.tableExists("w"), DEADLINE)
    eventually(lambda: len(sql.batch("DESCRIBE TABLE v")) == 3, DEADLINE)
    sql("REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql)
    sql("CREATE MATERIALIZED VIEW w AS SELECT id FROM orders")
    assert equals_query(sql, "SELECT id FROM orders", "w")


@contextmanager
def beside(sql: Workshop, clock: HandClock) -> Iterator[Host]:
    """Another process on the home of this one, which has looked round already."""
    other = Host(sql.spark, sql.host.home, clock)
    try:
        eventually(lambda: other.views._took_over is not None, DEADLINE)
        assert other.views.resume() == []  # after what the ticker does at first
        yield other
    finally:
        other.close()
        assert sql.host  # whose home the next test does not find


def test_a_process_that_runs_undoes_what_one_that_has_died_left_half_made(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.clock = sql.installed.clock = clock = HandClock()
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    with beside(sql, clock) as other:
        with monkeypatch.context() as patched:
            patched.setattr(Refresher, "refresh", no_room)
            patched.setattr("sqlext.execution.views.making.ViewMaker._undo", lambda *_: None)
            with pytest.raises(PySparkException):
                sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders")
            sql.crash()
        assert len(other.views._registry.read()) == 2
        clock.advance(30)
        eventually(lambda: len(other.views._registry.read()) == 1, 30)
        sql(CHANGES[0])
        other.views.refresh(("spark_catalog", "default", "v"), is_full=False, waits=True)
        assert equals_query(sql)


def test_what_could_not_be_undone_at_once_is_undone_later(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(sql)
    with monkeypatch.context() as patched:
        patched.setattr(Refresher, "refresh", no_room)
        patched.setattr("sqlext.execution.views.making.undo_table", no_room)
        with pytest.raises(PySparkException, match="no room"):
            sql("CREATE MATERIALIZED VIEW v AS SELECT id FROM orders")
    assert sql.spark.catalog.tableExists("v")
    sql.host.views.resume()
    assert not sql.spark.catalog.tableExists("v")
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    assert equals_query(sql)


@pytest.mark.parametrize("is_there", [True, False])
def test_of_two_statements_that_make_a_view_at_once_one_is_refused(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    tables(sql)
    if is_there:
        sql(f"CREATE MATERIALIZED VIEW v AS {IDS}")
    check, others = making.ViewMaker.check, ["CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders"]

    def check_late(self: making.ViewMaker, *rest: Any) -> None:
        check(self, *rest)
        while others:
            sql(others.pop())

    monkeypatch.setattr(making.ViewMaker, "check", check_late)
    with pytest.raises(PySparkException, match=r"default\.v was made, replaced or dropped by another statement just now"):
        sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {SUMS}")
    assert len(sql.host.views._registry.read()) == 1
    assert ": no change" in said(sql, "REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql, "SELECT id FROM orders")


@pytest.mark.parametrize("moment", ["before its commit", "after its commit"])
def test_a_process_that_was_taken_for_dead_while_it_replaced_a_view_leaves_the_old_one(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    old = shown(sql)
    registry = sql.host.views._registry
    patched, name = (ViewTable, "_refuse_lost_values") if moment == "before its commit" else (live.LiveView, "_note_success")
    step = getattr(patched, name)

    def step_and_undo(self: Any, *rest: Any) -> None:
        for key, record in registry.read().items():
            if record.is_reserved:  # another process takes the reservation back
                registry.append(ViewEvent(key, ViewEventKind.DROPPED))
        step(self, *rest)

    with monkeypatch.context() as late:
        late.setattr(patched, name, step_and_undo)
        with pytest.raises(PySparkException, match=r"default\.v was (dropped or replaced|not made: .*Send the statement again)"):
            sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id FROM orders")
    assert (shown(sql).id, list(registry.read())) == (old.id, [old.id])
    assert [row.col_name for row in sql("DESCRIBE TABLE v")] == ["region", "n", "total"]
    sql(CHANGES[0])
    sql("REFRESH MATERIALIZED VIEW v")
    assert equals_query(sql)


def test_a_view_cannot_read_itself(sql: Workshop) -> None:
    tables(sql)
    sql("CREATE MATERIALIZED VIEW low AS SELECT id, amount FROM orders")
    sql("CREATE VIEW between AS SELECT * FROM low")
    sql("CREATE MATERIALIZED VIEW high AS SELECT id, max(amount) AS amount FROM between GROUP BY id")
    assert "spark_catalog.default.low@" in shown(sql, "high").sources
    for reads, way in (("low", "low reads default.low"), ("high", "low reads default.high reads default.low")):
        with pytest.raises(PySparkException, match=rf"cannot read itself: default\.{way}"):
            sql(f"CREATE OR REPLACE MATERIALIZED VIEW low AS SELECT * FROM {reads}")
    folders = {name: sql(f"DESCRIBE DETAIL {name}")[0].location for name in ("low", "high")}
    for reads, way in (("low", "low reads default.low"), ("high", "low reads default.high reads default.low")):
        with pytest.raises(PySparkException, match=rf"cannot read itself: default\.{way}"):
            sql(f"CREATE OR REPLACE MATERIALIZED VIEW low AS SELECT * FROM delta.`{folders[reads]}`")
    sql(f"CREATE OR REPLACE MATERIALIZED VIEW high AS SELECT * FROM delta.`{folders['low']}`")
    with pytest.raises(PySparkException, match=r"cannot read itself: default\.low reads default\.high reads default\.low"):
        sql("CREATE OR REPLACE MATERIALIZED VIEW low AS SELECT * FROM high")
    sql(CHANGES[0])
    for name in ("low", "high"):
        sql(f"REFRESH MATERIALIZED VIEW {name}")
    assert equals_query(sql, "SELECT id, amount FROM orders", "high")


BAD = [
    ("AS SELECT nothing FROM orders", r"\[UNRESOLVED_COLUMN"),
    ("AS SELECT * FROM nothing", r"(?s)TABLE_OR_VIEW_NOT_FOUND.*line 1 pos 44"),
    ("AS SELECT id, id FROM orders", "would have two columns `id`"),
    ("AS SELECT count(*) FROM orders", r"The column `count\(1\)` cannot be stored under that name"),
    ("AS SELECT NULL AS x FROM orders", "`x` is NULL, without a type"),
    ("(a) AS SELECT id, cid FROM orders", "The column list has 1 columns"),
    ("(a DATE) AS SELECT id FROM orders", "`a` of the column list is DATE"),
    ("TBLPROPERTIES ('execution.flush.max-interval' = '1 min') AS SELECT id FROM orders", "is an option of flows and jobs"),
    ("SCHEDULE EVERY 0 MINUTES AS SELECT id FROM orders", "SCHEDULE EVERY cannot be `0 MINUTES`: it must be longer"),
    ("TRIGGER ON UPDATE AT MOST EVERY 'a while' AS SELECT id FROM orders", "AT MOST EVERY cannot be `a while`"),
    ("PARTITIONED BY (nothing) AS SELECT id FROM orders", "nothing"),
]


def test_what_cannot_be_a_view_is_refused_and_nothing_is_made(sql: Workshop) -> None:
    tables(sql)

    def is_refused(case: tuple[str, str]) -> None:
        definition, message = case
        with pytest.raises(PySparkException, match=message):
            sql(f"CREATE MATERIALIZED VIEW v {definition}")

    side_by_side(is_refused, BAD)
    sql.spark.readStream.table("orders").createOrReplaceTempView("streamed")
    with pytest.raises(PySparkException, match="its query reads a stream"):
        sql("CREATE MATERIALIZED VIEW v AS SELECT id FROM streamed")
    assert not sql.spark.catalog.tableExists("v")
    assert sql("SHOW MATERIALIZED VIEWS") == []


def test_a_query_that_spark_refuses_is_told_with_its_place_in_the_statement(sql: Workshop) -> None:
    tables(sql)
    with pytest.raises(AnalysisException) as refused:
        sql("CREATE MATERIALIZED VIEW v\nAS SELECT id,\n nothing FROM orders")
    assert "line 3 pos 1" in str(refused.value)


# ALTER and DROP.


def test_alter_changes_schedule_policy_and_table(sql: Workshop) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    sql("ALTER MATERIALIZED VIEW v ADD SCHEDULE EVERY 2 HOURS")
    assert (shown(sql).schedule, shown(sql).status) == ("EVERY 2 HOURS", "SCHEDULED")
    sql("ALTER MATERIALIZED VIEW v ALTER TRIGGER ON UPDATE AT MOST EVERY INTERVAL 10 MINUTES")
    assert shown(sql).schedule == "TRIGGER ON UPDATE AT MOST EVERY 10 MINUTES"
    sql("ALTER MATERIALIZED VIEW v DROP SCHEDULE")
    sql("ALTER MATERIALIZED VIEW v SET REFRESH POLICY FULL")
    assert (shown(sql).schedule, shown(sql).policy) == (None, "FULL")
    sql(CHANGES[0])
    assert ": full" in said(sql, "REFRESH MATERIALIZED VIEW v")
    sql("ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ('team' = 'web')")
    assert {row.key: row.value for row in sql("SHOW TBLPROPERTIES v")}["team"] == "web"
    assert "no change" in said(sql, "REFRESH MATERIALIZED VIEW v")
    for statement in ("ALTER MATERIALIZED VIEW orders SET REFRESH POLICY FULL", "REFRESH MATERIALIZED VIEW orders"):
        with pytest.raises(PySparkException, match=r"no materialized view `orders` in spark_catalog\.default"):
            sql(statement)
    with pytest.raises(PySparkException, match="SCHEDULE EVERY cannot be"):
        sql("ALTER MATERIALIZED VIEW v ADD SCHEDULE EVERY 0 SECONDS")


def test_drop_takes_the_view_and_its_table_and_no_other(sql: Workshop) -> None:
    tables(sql)
    for name in ("totals", "total_2"):
        sql(f"CREATE MATERIALIZED VIEW {name} AS {SUMS}")
    assert said(sql, "DROP MATERIALIZED VIEW TOTALS") == "materialized view default.totals dropped"
    assert not sql.spark.catalog.tableExists("totals")
    assert said(sql, "DROP MATERIALIZED VIEW IF EXISTS totals") == "there is no materialized view default.totals"
    for name, message in (("totals", "Did you mean `total_2`"), ("orders", "orders is no materialized")):
        with pytest.raises(PySparkException, match=message):
            sql(f"DROP MATERIALIZED VIEW {name}")
    sql("DROP TABLE total_2")
    sql("CREATE TABLE total_2 USING delta AS SELECT 1 AS mine")
    for statement in ("REFRESH MATERIALIZED VIEW total_2", "ALTER MATERIALIZED VIEW total_2 SET TBLPROPERTIES ('a' = 'b')"):
        with pytest.raises(PySparkException, match=r"was dropped or replaced|not the table of the materialized view"):
            sql(statement)
    assert "stays: it is not the view's" in said(sql, "DROP MATERIALIZED VIEW total_2")
    assert sql.batch("SELECT * FROM total_2") == [(1,)]


# By themselves.


def test_a_view_with_a_schedule_is_refreshed_when_it_is_due_also_by_the_next_process(sql: Workshop) -> None:
    sql.clock = sql.installed.clock = clock = HandClock()
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v SCHEDULE EVERY 10 MINUTES AS {SUMS}")
    sql(CHANGES[0])
    clock.advance(599)
    assert not equals_query(sql)
    clock.advance(1)
    eventually(lambda: equals_query(sql), DEADLINE)
    sql.crash()
    sql(CHANGES[1])
    clock.advance(3600)
    assert sql.host.views
    eventually(lambda: equals_query(sql), DEADLINE)
    assert shown(sql).status == "SCHEDULED"


def test_a_process_that_runs_takes_over_the_schedules_of_one_that_has_died(sql: Workshop) -> None:
    sql.clock = sql.installed.clock = clock = HandClock()
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v SCHEDULE EVERY 10 MINUTES AS {SUMS}")
    with beside(sql, clock) as other:
        sql(CHANGES[0])
        sql.crash()
        clock.advance(30)
        eventually(lambda: other.views.resumed == ("default.v",), DEADLINE)
        clock.advance(600)
        eventually(lambda: equals_query(sql), DEADLINE)


def test_a_change_of_a_source_refreshes_views_in_the_order_of_their_dependencies(sql: Workshop) -> None:
    tables(sql)
    trigger = "TRIGGER ON UPDATE AT MOST EVERY INTERVAL 1 SECOND"
    sql(f"CREATE MATERIALIZED VIEW low {trigger} AS SELECT id, amount FROM orders")
    sql(f"CREATE MATERIALIZED VIEW high {trigger} AS SELECT sum(amount) AS total FROM low")
    sql(CHANGES[0])
    eventually(lambda: sql.batch("SELECT * FROM high") == sql.batch("SELECT sum(amount) FROM orders"), DEADLINE)


def test_a_refresh_that_is_canceled_leaves_what_was_due(sql: Workshop) -> None:
    sql.clock = sql.installed.clock = clock = HandClock()
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v SCHEDULE EVERY 10 MINUTES AS {SUMS}")
    sql(CHANGES[0])
    clock.advance(300)
    canceled = threading.Event()
    canceled.set()
    with pytest.raises(StatementCanceledError):
        sql.host.views.refresh(("spark_catalog", "default", "v"), is_full=False, waits=True, canceled=canceled)
    clock.advance(300)
    eventually(lambda: equals_query(sql), 30)


def test_a_refresh_that_fails_is_tried_again_and_told(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.clock = sql.installed.clock = clock = HandClock()
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v SCHEDULE EVERY 10 MINUTES AS {SUMS}")
    refresh = Refresher.refresh

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Refresher, "refresh", fail)
    sql(CHANGES[0])
    clock.advance(600)
    eventually(lambda: shown(sql).status == "FAILED", DEADLINE)
    assert "the disk is full" in shown(sql).error
    assert shown(sql).next_try is not None
    monkeypatch.setattr(Refresher, "refresh", refresh)
    clock.advance(5)
    eventually(lambda: shown(sql).status == "SCHEDULED", DEADLINE, lambda: str(shown(sql)))
    assert shown(sql).error is None
    assert equals_query(sql)


def test_what_a_view_has_at_each_version_is_told_by_the_commit(sql: Workshop) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    for change in CHANGES:
        sql(change)
        sql("REFRESH MATERIALIZED VIEW v")
    log = local(sql("DESCRIBE DETAIL v")[0].location) / "_delta_log"
    for version in range(1, shown(sql).version + 1):
        actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        sources = json.loads(info["userMetadata"])["sqlext"]["sources"]
        query = SUMS
        for name, alias in (("orders", "o"), ("customers", "c")):
            at = sources[f"spark_catalog.default.{name}"]["version"]
            query = query.replace(f"{name} {alias}", f"{name} VERSION AS OF {at} AS {alias}")
        assert equals_query(sql, query, f"v VERSION AS OF {version}")


def test_a_view_that_must_be_incremental_is_refused_if_it_cannot_be(sql: Workshop) -> None:
    tables(sql)
    strict = "CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL STRICT AS {}"
    with pytest.raises(PySparkException, match=r"default\.v cannot be refreshed incrementally: .*rand"):
        sql(strict.format("SELECT id, rand() AS r FROM orders"))
    assert sql("SHOW MATERIALIZED VIEWS") == []
    sql(strict.format(SUMS))
    sql("CREATE MATERIALIZED VIEW w AS SELECT id, rand() AS r FROM orders")
    with pytest.raises(PySparkException, match=r"default\.w cannot be refreshed incrementally"):
        sql("ALTER MATERIALIZED VIEW w SET REFRESH POLICY INCREMENTAL STRICT")
    assert shown(sql, "w").policy == "AUTO"


def test_explain_tells_how_a_view_would_be_refreshed_and_makes_nothing(sql: Workshop) -> None:
    tables(sql)
    assert sql(f"EXPLAIN CREATE MATERIALIZED VIEW v AS {SUMS}")[0].plan
    with pytest.raises(PySparkException, match="would have two columns"):
        sql("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT id, id FROM orders")
    assert sql("SHOW MATERIALIZED VIEWS") == []
    assert not sql.spark.catalog.tableExists("v")


def test_a_view_that_is_closed_commits_nothing(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(sql)
    sql(f"CREATE MATERIALIZED VIEW v AS {SUMS}")
    views: ViewManager = sql.host.views
    version = shown(sql).version
    check = live.LiveView._check

    def close_and_check(self: live.LiveView, run: Any) -> None:
        if self.session.sparkContext.getLocalProperty("spark.jobGroup.id"):
            self.stop()
        check(self, run)

    sql(CHANGES[0])
    monkeypatch.setattr(live.LiveView, "_check", close_and_check)
    with pytest.raises(PySparkException, match="its process ends"):
        sql("REFRESH MATERIALIZED VIEW v")
    monkeypatch.undo()
    views.forget(shown(sql).id)
    assert max(row.version for row in sql("DESCRIBE HISTORY v")) == version
