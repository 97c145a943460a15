"""SAVEPOINT FLOW and RESTORE FLOW: a flow and its table go back to what they were, and on from there to what a batch gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta import transaction
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.moments import Moment
from sqlext.spark import delta_tables
from sqlext.spark.storage import HadoopPath
from sqlext.testing import listened
from tests.integration.workshop import COUNTS, Workshop, local
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

LATER = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes', 'state.backend.type' = '{}'{})"
DELTA, ROCKSDB = LATER.format("delta", ""), LATER.format("rocksdb", "")
MEMORY = LATER.format("rocksdb", ", 'execution.flush.memory-buffer-only' = 'true'")
KINDS = {
    "in_table": (DELTA, COUNTS),
    "beside": (DELTA, "SELECT k, avg(v) AS a, max(v) AS m FROM {} GROUP BY k"),
    "counted": (DELTA, "SELECT k, count(DISTINCT v) AS d, count(*) AS n FROM {} GROUP BY k"),
    "rocks": (ROCKSDB, COUNTS),
    "memory": (MEMORY, COUNTS),
    "appended": ("TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')", "SELECT k, v + 1 AS w FROM {}"),
    "at_once": ("", "SELECT k, v * 2 AS w FROM {}"),
    "above": (DELTA, "SELECT k, n FROM (SELECT k, count(*) AS n FROM {} GROUP BY k) ORDER BY n DESC, k LIMIT 2"),
    "sessions": (
        DELTA,
        "SELECT k, session_window(timestamp_seconds(v), '3 seconds').start AS begun, count(*) AS n FROM {} "
        "GROUP BY k, session_window(timestamp_seconds(v), '3 seconds')",
    ),
}
"""Flows by where their state is: clauses, and the query over a relation."""
TOGETHER = [("appended", "at_once"), ("rocks", "memory"), ("in_table", "beside"), ("counted", "above", "sessions")]


@pytest.fixture
def vacuums(sql: Workshop) -> None:
    sql("SET spark.databricks.delta.retentionDurationCheck.enabled = false")


def query(kind: str, relation: str = "ev") -> str:
    return KINDS[kind][1].format(relation)


def create(sql: Workshop, kind: str, name: str) -> None:
    sql(f"CREATE STREAMING TABLE {name} {KINDS[kind][0]} AS {query(kind, 'STREAM ev')}")


def savepoints(sql: Workshop, flow: str = "") -> list[str]:
    return [row.name for row in sql(f"SHOW SAVEPOINTS {flow and 'OF'} {flow}")]


def restores(sql: Workshop, table: str) -> list[dict[str, Any]]:
    """What the commits say that have set a table back."""
    return [commit for commit in sql.commits(table) if commit["reason"] == "restore"]


def refused(sql: Workshop, statement: str, because: str) -> None:
    with pytest.raises(PySparkException, match=because):
        sql(statement)


@pytest.mark.parametrize("kinds", TOGETHER, ids="-".join)
@pytest.mark.usefixtures("vacuums")
def test_every_kind_of_flow_goes_back_and_on(sql: Workshop, kinds: tuple[str, ...]) -> None:
    """Stopped, and once running, to a savepoint whose table was compacted and vacuumed since."""
    sql.source()
    side_by_side(lambda kind: create(sql, kind, kind), kinds)
    sql("INSERT INTO ev VALUES ('a', 10), ('c', 11), ('c', 11)")
    then = {kind: sql.batch(query(kind)) for kind in kinds}

    def keep(kind: str) -> None:
        sql(f"WAIT FLOW {kind}")
        assert sql.batch(f"SELECT * FROM {kind}") == then[kind]
        sql(f"SAVEPOINT FLOW {kind} AS good")

    side_by_side(keep, kinds)
    sql("INSERT INTO ev VALUES ('a', 666), ('d', 666), (NULL, 11)")
    wrong = {kind: sql.batch(query(kind)) for kind in kinds}

    def go_back(kind: str) -> None:
        sql(f"WAIT FLOW {kind}")
        assert sql.batch(f"SELECT * FROM {kind}") == wrong[kind]
        sql(f"STOP FLOW {kind}")
        sql(f"OPTIMIZE {kind}")
        sql(f"VACUUM {kind} RETAIN 0 HOURS")
        (answer,) = sql(f"RESTORE FLOW {kind} TO SAVEPOINT GOOD")
        assert "it is stopped" in answer[0]
        assert sql.batch(f"SELECT * FROM {kind}") == then[kind]
        assert sql.shown(kind).note.startswith("set back to savepoint good")

    side_by_side(go_back, kinds)
    sql("INSERT INTO ev VALUES ('e', 5), ('a', 6)")
    after = {kind: sql.batch(query(kind)) for kind in kinds}

    def go_on(kind: str) -> None:
        sql(f"START FLOW {kind}")
        sql(f"WAIT FLOW {kind}")
        assert sql.batch(f"SELECT * FROM {kind}") == after[kind]

    side_by_side(go_on, kinds)
    again = kinds[0]
    sql(f"RESTORE FLOW {again} TO good")
    sql(f"WAIT FLOW {again}")
    assert sql.batch(f"SELECT * FROM {again}") == after[again]
    both = [(commit["savepoint"], commit["application"].rsplit("/")[-1]) for commit in restores(sql, again)]
    assert both == [("good", "1"), ("good", "2")]
    assert savepoints(sql) == ["good"] * len(kinds)


def test_two_savepoints_over_a_restart(sql: Workshop) -> None:
    """A table that was changed by hand fails its flow; the newer savepoint, then the older one, make it whole again."""
    sql.source()
    create(sql, "in_table", "t")
    sql("WAIT FLOW t")
    first = sql.batch(query("in_table"))
    (answer,) = sql("SAVEPOINT FLOW t AS first")
    assert answer[0].startswith("savepoint first of flow t: version ")
    sql("INSERT INTO ev VALUES ('a', 4)")
    sql("WAIT FLOW t")
    second = sql.batch(query("in_table"))
    sql("SAVEPOINT FLOW t")
    newer = savepoints(sql, "t")[1]
    assert newer.startswith("sp_2")
    sql.crash()
    assert sql.resume() == ["t"]
    assert savepoints(sql, "t") == ["first", newer]
    sql("DELETE FROM t WHERE k = 'a'")
    refused(sql, "SAVEPOINT FLOW t", r"\(DELETE\) changed rows that hold the state")
    assert savepoints(sql, "t") == ["first", newer]
    sql("INSERT INTO ev VALUES ('b', 5)")
    with pytest.raises(PySparkException, match="changed rows that hold the state"):
        sql("WAIT FLOW t")
    sql.eventually(lambda: sql.shown("t").status == "FAILED")
    with pytest.raises(PySparkException, match=r"Flow `t` is failed: .* START FLOW it first"):
        sql("SAVEPOINT FLOW t")
    (answer,) = sql(f"RESTORE FLOW t TO {newer}")
    assert re.search(r"; versions of others are set back, too: \d+ \(DELETE\); it is stopped", answer[0])
    assert sql.batch("SELECT * FROM t") == second
    assert (sql.shown("t").status, sql.shown("t").error) == ("STOPPED", None)
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    sql("STOP FLOW t")
    sql("RESTORE FLOW t TO first")
    assert sql.batch("SELECT * FROM t") == first
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.equals_batch()
    described = {row.property: row.value for row in sql("DESCRIBE FLOW t")}
    assert ".ev: version 1; " in described["savepoint first"]
    assert ".ev: version 2; " in described[f"savepoint {newer}"]
    sql("DROP SAVEPOINT first ON FLOW t")
    assert savepoints(sql, "t") == [newer]
    folder = sql.home("t")
    assert [len(list(folder.glob("savepoints/*"))), len(list(folder.glob("restored-*")))] == [1, 1]
    next(folder.glob("savepoints/*/target/part-*")).unlink()
    refused(sql, f"RESTORE FLOW t TO {newer}", "is damaged")
    assert sql.equals_batch()
    sql("DROP FLOW t")
    assert not folder.exists()


def crashed(sql: Workshop, moment: Moment, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die at a moment of a statement: what it would clean up afterwards stays."""

    def die(reached: Moment, _: str) -> None:
        if reached is moment:
            raise RuntimeError("the driver dies here")

    with monkeypatch.context() as patch, listened(die):
        patch.setattr(HadoopPath, "delete", lambda _: None)
        refused(sql, statement, "the driver dies here")
    sql.crash()
    if "t" not in sql.resume():  # it was to be resumed, and what died is told as its failure here
        sql("START FLOW t")


def test_a_crash_leaves_the_old_flow_or_the_restored_one(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    create(sql, "beside", "t")
    sql("WAIT FLOW t")
    crashed(sql, Moment.SAVEPOINT_COPIED, "SAVEPOINT FLOW t AS good", monkeypatch)
    assert savepoints(sql) == []
    then = sql.batch("SELECT * FROM t")
    assert then == sql.batch(query("beside"))
    sql("SAVEPOINT FLOW t AS good")
    assert len(list(sql.home("t").glob("savepoints/*"))) == 1
    sql("INSERT INTO ev VALUES ('a', 666), ('d', 7)")
    sql("WAIT FLOW t")
    crashed(sql, Moment.RESTORE_PREPARED, "RESTORE FLOW t TO good", monkeypatch)
    sql("WAIT FLOW t")
    assert (restores(sql, "t"), sql.batch("SELECT * FROM t")) == ([], sql.batch(query("beside")))
    for done, moment in enumerate((Moment.RESTORE_DECIDED, Moment.RESTORE_COMMITTED), 1):
        crashed(sql, moment, "RESTORE FLOW t TO good", monkeypatch)
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(query("beside"))
        assert len(restores(sql, "t")) == done
        at = max(version for version, commit in enumerate(sql.commits("t"), 1) if commit["reason"] == "restore")
        assert sql.batch(f"SELECT * FROM t VERSION AS OF {at}") == then


def test_a_writer_of_the_flow_before_is_closed_out(sql: Workshop) -> None:
    """A driver that has passed its fence, and whose rows nobody else's commit conflicts with, must not add them."""
    sql.source()
    create(sql, "at_once", "t")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS good")
    spec = sql.flow("t").spec
    sql("STOP FLOW t")
    writer = transaction.begun(sql.spark, delta_tables.snapshot(sql.spark, spec.target_location))
    writer.readTxn().addOne(spec.application)
    sql("RESTORE FLOW t TO good")
    operation = transaction.write_operation(sql.spark, "Append")
    with pytest.raises(PySparkException, match="DELTA_CONCURRENT_TRANSACTION"):
        transaction.commit_actions(sql.spark, writer, [], operation, CommitIdentity(spec.application, 7, "{}"))


def test_columns_and_properties_go_back(sql: Workshop) -> None:
    sql.source()
    evolves = "TBLPROPERTIES ('schema-evolution' = 'add columns')"
    sql(f"CREATE STREAMING TABLE t {evolves} AS SELECT * FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS good")
    sql("ALTER TABLE ev ADD COLUMN w INT")
    sql("ALTER STREAMING TABLE t SET TBLPROPERTIES ('delta.appendOnly' = 'false', 'x.note' = 'wrong')")
    sql("INSERT INTO ev VALUES ('w', 1, 2)")
    sql.eventually(lambda: "w" in sql.spark.table("t").columns)
    sql("STOP FLOW t")
    sql("RESTORE FLOW t TO good")
    assert sql.spark.table("t").columns == ["k", "v"]
    assert sql.batch("SELECT * FROM t") == sql.batch("SELECT k, v FROM ev VERSION AS OF 1")
    assert "x.note" not in {row.key for row in sql("SHOW TBLPROPERTIES t")}
    sql("START FLOW t")
    sql.eventually(lambda: "w" in sql.spark.table("t").columns)
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, v, w FROM t") == sql.batch("SELECT * FROM ev")


def test_views_above_follow(sql: Workshop) -> None:
    sql.source()
    create(sql, "in_table", "t")
    sql("WAIT FLOW t")
    sql("CREATE MATERIALIZED VIEW v AS SELECT n, sum(total) AS s FROM t GROUP BY n")
    sql("SAVEPOINT FLOW t AS good")
    then = sql.batch("SELECT * FROM v")
    sql("INSERT INTO ev VALUES ('a', 100), ('d', 7)")
    sql("WAIT FLOW t")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") != then
    sql("STOP FLOW t")
    sql("RESTORE FLOW t TO good")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == then
    sql("START FLOW t")
    sql("WAIT FLOW t")
    sql("REFRESH MATERIALIZED VIEW v")
    assert sql.batch("SELECT * FROM v") == sql.batch(f"SELECT n, sum(total) AS s FROM ({COUNTS.format('ev')}) GROUP BY n")


@pytest.mark.usefixtures("vacuums")
def test_what_cannot_go_back_is_told_before_anything_changes(sql: Workshop) -> None:
    sql.source()
    create(sql, "at_once", "t")
    sql("WAIT FLOW t")
    refused(sql, "RESTORE FLOW t TO good", "There is no savepoint `good` of this flow")
    sql("SAVEPOINT FLOW t AS good")
    refused(sql, "SAVEPOINT FLOW t AS Good", "There is a savepoint `Good` of this flow already")
    refused(sql, "RESTORE FLOW t TO god", "Did you mean `good`")
    refused(sql, "DROP SAVEPOINT god ON FLOW t", "Did you mean `good`")
    assert "there is no savepoint" in sql("DROP SAVEPOINT IF EXISTS god ON FLOW t")[0][0]
    sql("CREATE STREAMING TABLE below AS SELECT k FROM STREAM t")
    refused(sql, "RESTORE FLOW t TO good", "Flow `below` reads .*t as a stream")
    sql("DROP STREAMING TABLE below")
    sql("CREATE FLOW more AS INSERT INTO ONCE t SELECT 'once', 1")
    refused(sql, "RESTORE FLOW t TO good", "cannot be set back alone: flow `more` writes")
    refused(sql, "SAVEPOINT FLOW t", "cannot be set back alone: flow `more` writes")
    refused(sql, "SAVEPOINT FLOW more", "cannot be set back alone")
    sql("WAIT FLOW more")
    sql("DROP FLOW more")
    sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM ev")
    refused(sql, "SAVEPOINT FLOW v", "is a materialized view")

    sql("CREATE TABLE theirs (k STRING, w INT) USING delta")
    sql("CREATE FLOW f AS INSERT INTO theirs SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW f")
    sql("SAVEPOINT FLOW f AS good")
    sql("INSERT INTO theirs VALUES ('mine', 1)")
    refused(sql, "RESTORE FLOW f TO good", r"others have changed rows .* last in version \d+ \(WRITE\)")

    sql("INSERT INTO ev VALUES ('x', 8)")
    sql("WAIT FLOW t")
    before = sql.batch("SELECT * FROM t")
    sql("OPTIMIZE ev")
    sql("VACUUM ev RETAIN 0 HOURS")
    refused(sql, "RESTORE FLOW t TO good", "its file .* is gone: it was vacuumed or deleted")
    sql("DELETE FROM ev WHERE k = 'x'")
    refused(sql, "RESTORE FLOW t TO good", r"version \d+, DELETE, changed or deleted rows")
    assert sql.batch("SELECT * FROM t") == before
    sql("DROP TABLE ev")
    sql.source()
    refused(sql, "RESTORE FLOW t TO good", "was dropped or replaced")
    assert sql.batch("SELECT * FROM t") == before
    assert restores(sql, "t") == []


def test_quarantined_rows_go_back(sql: Workshop) -> None:
    """Each is there once, whether it came before or after the savepoint, and whether it was corrected and replayed since."""
    sql.source()
    sql("CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (v > 1) ON VIOLATION QUARANTINE INTO bad) AS SELECT * FROM STREAM ev")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS good")
    assert sql.batch("SELECT k, v FROM bad") == [("a", 1)]
    sql("INSERT INTO ev VALUES ('c', 0), ('d', 7)")
    sql("WAIT FLOW t")
    sql("UPDATE bad SET v = 100 WHERE k = 'a'")
    sql("REPLAY QUARANTINE bad")
    assert sql.batch("SELECT k, v FROM bad") == [("c", 0)]
    sql("STOP FLOW t")
    sql("RESTORE FLOW t TO good")
    assert sql.batch("SELECT k, v FROM bad") == [("a", 1)]
    assert sql.batch("SELECT k, v FROM t") == sorted([("b", 2), (None, 3)], key=repr)
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, v FROM bad") == [("a", 1), ("c", 0)]
    assert sql.batch("SELECT k, v FROM t") == sorted([("b", 2), ("d", 7), (None, 3)], key=repr)
    sql("REPLAY QUARANTINE bad")
    assert sql.batch("SELECT k, v FROM bad") == [("a", 1), ("c", 0)]


def test_changes_from_a_database_go_back(sql: Workshop) -> None:
    sql("CREATE TABLE feed (id INT, name STRING, op STRING, at INT) USING delta")
    sql("INSERT INTO feed VALUES (1, 'a', 'I', 1), (2, 'b', 'I', 2)")
    for flow, history in (("newest", ""), ("kept", "STORED AS SCD TYPE 2")):
        sql(
            f"CREATE STREAMING TABLE {flow} FLOW AUTO CDC FROM STREAM feed KEYS (id) APPLY AS DELETE WHEN op = 'D' "
            f"SEQUENCE BY at COLUMNS * EXCEPT (op) {history}"
        )
    then = {}
    for flow in ("newest", "kept"):
        sql(f"WAIT FLOW {flow}")
        then[flow] = sql.batch(f"SELECT * FROM {flow}")
        sql(f"SAVEPOINT FLOW {flow} AS good")
    sql("INSERT INTO feed VALUES (1, 'wrong', 'U', 3), (2, 'b', 'D', 4)")
    for flow in ("newest", "kept"):
        sql(f"WAIT FLOW {flow}")
        later = sql.batch(f"SELECT * FROM {flow}")
        sql(f"STOP FLOW {flow}")
        sql(f"RESTORE FLOW {flow} TO good")
        assert sql.batch(f"SELECT * FROM {flow}") == then[flow]
        sql(f"START FLOW {flow}")
        sql(f"WAIT FLOW {flow}")
        assert sql.batch(f"SELECT * FROM {flow}") == later
    assert [row[0] for row in sql.batch("SELECT name FROM newest")] == ["wrong"]


def test_hybrid_sources_and_bounded_stages_go_back(sql: Workshop) -> None:
    """What was read of the history stays read, and a stage that has ended is not run again: its table has changed since."""
    for table in ("past", "live"):
        sql(f"CREATE TABLE {table} (k STRING, v INT) USING delta")
        sql(f"INSERT INTO {table} VALUES ('{table}', 1)")
    sql(
        f"CREATE STREAMING TABLE h {DELTA} AS SELECT k, count(*) AS n FROM STREAM hybrid(TABLE past, STREAM live) AS x GROUP BY k"
    )
    sql(
        "CREATE STREAMING TABLE s AS SELECT l.k, l.v, c.n FROM STREAM live AS l CROSS JOIN "
        "(SELECT count(*) AS n FROM past GLOBAL WINDOW END OF STREAM) AS c"
    )
    for flow in ("h", "s"):
        sql(f"WAIT FLOW {flow}")
        sql(f"SAVEPOINT FLOW {flow} AS good")
    sql("INSERT INTO past VALUES ('past', 2)")
    sql("INSERT INTO live VALUES ('live', 2)")
    for flow, then, now in (
        ("h", [("live", 1), ("past", 1)], [("live", 2), ("past", 1)]),
        ("s", [("live", 1, 1)], [("live", 1, 1), ("live", 2, 1)]),
    ):
        sql(f"WAIT FLOW {flow}")
        assert sql.batch(f"SELECT * FROM {flow}") == now
        sql(f"STOP FLOW {flow}")
        sql(f"RESTORE FLOW {flow} TO good")
        assert sql.batch(f"SELECT * FROM {flow}") == then
        sql(f"START FLOW {flow}")
        sql(f"WAIT FLOW {flow}")
        assert sql.batch(f"SELECT * FROM {flow}") == now


def test_files_that_were_read_since_must_be_there(sql: Workshop, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"k": "a", "v": 1}')
    files = f"read_files('{tmp_path}', format => 'json', schema => 'k STRING, v INT')"
    sql(f"CREATE STREAMING TABLE t AS SELECT k, v FROM STREAM {files}")
    sql("WAIT FLOW t")
    sql("SAVEPOINT FLOW t AS good")
    later = tmp_path / "2 b.json"
    later.write_text('{"k": "b", "v": 2}')
    sql("WAIT FLOW t")
    both = [("a", 1), ("b", 2)]
    assert sql.batch("SELECT * FROM t") == both
    (tmp_path / "1.json").unlink()  # which is in the savepoint
    sql("RESTORE FLOW t TO good")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == both
    later.unlink()
    refused(sql, "RESTORE FLOW t TO good", r"would read the file .*/2 b\.json again, and that is gone")
    assert sql.batch("SELECT * FROM t") == both


def test_a_savepoint_has_all_rows_whatever_the_user_lets_be_left_out(sql: Workshop) -> None:
    sql("SET spark.sql.files.ignoreCorruptFiles = true")
    sql.source()
    create(sql, "in_table", "t")
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    file = local(sql("SELECT input_file_name() AS name FROM t WHERE k = 'a'")[0].name)
    written = file.read_bytes()
    file.write_bytes(b"damaged")
    with pytest.raises(PySparkException):
        sql("SAVEPOINT FLOW t AS bad")
    file.write_bytes(written)
    assert savepoints(sql) == []
