"""Rows that are appended: micro-batches write files of the table, and a flush adds them in one commit, exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from delta.exceptions import ConcurrentTransactionException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.execution.delta import commit, staged_files, transaction
from sqlext.execution.flows.appends import append_batches
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.testing import Moment, listened
from tests.integration.workshop import Workshop, local
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

LATER = "'execution.flush.max-interval' = '10 minutes'"
QUERY = "SELECT k, v * 2 AS twice FROM {} WHERE v > 0"


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    """Nothing is flushed because time passes."""
    workshop = Workshop(spark)
    workshop.source()
    return workshop


def arrive(sql: Workshop, flows: list[str], first: int) -> None:
    """Three commits of the source, each a micro-batch of its own."""
    for number in range(first, first + 3):
        sql(f"INSERT INTO ev VALUES ('n', {number}), (NULL, -{number})")
        side_by_side(sql.take_in, flows)


def versions(sql: Workshop, table: str) -> int:
    return int(sql(f"DESCRIBE HISTORY {table}")[0].version)


def pending(sql: Workshop, flow: str) -> list[Path]:
    return sorted(sql.home(flow).glob("buffer/__sqlext_batch=*/*/staged.json"))


def test_micro_batches_write_files_and_a_flush_is_one_commit(sql: Workshop) -> None:
    tables = {
        "plain": f"TBLPROPERTIES ({LATER})",
        "parted": f"PARTITIONED BY (k) TBLPROPERTIES ({LATER})",
        "named": f"TBLPROPERTIES ({LATER}, 'delta.columnMapping.mode' = 'name')",
        "fed": f"TBLPROPERTIES ({LATER}, 'delta.enableChangeDataFeed' = 'true')",
        "tracked": f"TBLPROPERTIES ({LATER}, 'delta.enableRowTracking' = 'true')",
    }
    for name, clauses in tables.items():
        sql(f"CREATE STREAMING TABLE {name} {clauses} AS {QUERY.format('STREAM ev')}")
    side_by_side(lambda name: sql(f"WAIT FLOW {name}"), tables)
    sql.freeze()
    before = {name: versions(sql, name) for name in tables}
    arrive(sql, [*tables], 10)
    sql("INSERT INTO ev VALUES ('a b=/%c', 13)")
    side_by_side(sql.take_in, tables)

    def is_flushed_at_once(name: str) -> None:
        assert versions(sql, name) == before[name]
        assert len(pending(sql, name)) == 4
        assert sql.shown(name).buffered == 4
        sql(f"FLUSH FLOW {name}")
        assert versions(sql, name) == before[name] + 1
        assert pending(sql, name) == []
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch(QUERY.format("ev"))
        newest = sql.commits(name)[-1]
        assert (newest["rows"], newest["reason"], newest["last_batch"] - newest["first_batch"]) == (4, "command", 3)

    side_by_side(is_flushed_at_once, tables)
    changes = sql(f"SELECT _change_type, count(*) AS n FROM table_changes('fed', {before['fed'] + 1}) GROUP BY _change_type")
    assert [tuple(row) for row in changes] == [("insert", 4)]


@pytest.mark.parametrize("moment", [Moment.BATCH_BUFFERED, Moment.FLUSH_BEGUN, Moment.FLUSH_COMMITTED])
def test_nothing_is_lost_or_doubled_by_a_crash(sql: Workshop, moment: Moment) -> None:
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.freeze()
    arrive(sql, ["t"], 10)

    def fail(found: Moment, flow: str) -> None:
        if found is moment:
            raise RuntimeError("the moment has come")

    with listened(fail):
        sql("INSERT INTO ev VALUES ('last', 7)")
        with pytest.raises(PySparkException, match="the moment has come"):
            sql("WAIT FLOW t")
    sql.crash()
    sql.resume()
    sql("WAIT FLOW t")

    assert sql.batch("SELECT * FROM t") == sql.batch(QUERY.format("ev"))
    assert pending(sql, "t") == []


def test_a_change_of_the_table_in_between(sql: Workshop) -> None:
    changes = {
        "columns": "ALTER TABLE columns ADD COLUMN note STRING",
        "properties": "ALTER TABLE properties SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '1')",
        "names": "ALTER TABLE names SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "rows": "UPDATE rows SET twice = 0",
        "files": "OPTIMIZE files",
    }
    for name in changes:
        sql(f"CREATE STREAMING TABLE {name} TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
    side_by_side(lambda name: sql(f"WAIT FLOW {name}"), changes)
    sql.freeze()
    arrive(sql, [*changes], 10)
    for statement in changes.values():
        sql(statement)
    arrive(sql, [*changes], 20)

    def has_all(name: str) -> None:
        before = versions(sql, name)
        sql(f"WAIT FLOW {name}")
        assert versions(sql, name) == before + 1
        assert len(sql(f"SELECT k FROM {name}")) == len(sql(QUERY.format("ev")))
        assert len(sql(f"SELECT k FROM {name} WHERE twice >= 20")) == 6

    side_by_side(has_all, changes)


def test_a_table_with_columns_of_its_own_gets_its_rows_from_delta(sql: Workshop) -> None:
    sql(
        "CREATE TABLE t (k VARCHAR(4), twice INT, note STRING DEFAULT 'none') USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    hint = "/*+ FLUSH_INTERVAL('10 minutes') */"
    sql(f"CREATE FLOW f AS INSERT INTO t BY NAME {QUERY.format('STREAM ev').replace('SELECT', f'SELECT {hint}')}")
    sql("WAIT FLOW f")
    sql.freeze()
    before = versions(sql, "t")
    arrive(sql, ["f"], 10)

    assert pending(sql, "f") == []
    sql("FLUSH FLOW f")
    assert versions(sql, "t") == before + 1
    assert sql.batch("SELECT * FROM t") == sql.batch(f"SELECT *, 'none' FROM ({QUERY.format('ev')})")


def test_a_file_that_was_vacuumed_is_missed(sql: Workshop) -> None:
    """By the driver whose micro-batch has written it, and by a later one; nothing is committed."""
    for table in ("own", "earlier"):
        sql(f"CREATE STREAMING TABLE {table} TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
        sql(f"WAIT FLOW {table}")
    sql.freeze()
    before = sql.batch("SELECT * FROM own")
    arrive(sql, ["own", "earlier"], 10)

    def vacuum(table: str) -> None:
        (action,) = json.loads(pending(sql, table)[0].read_text())["files"]
        (local(sql(f"DESCRIBE DETAIL {table}")[0].location) / json.loads(action)["add"]["path"]).unlink()

    def is_missed(table: str) -> None:
        with pytest.raises(PySparkException, match="is gone before it was committed: it was vacuumed"):
            sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT * FROM {table}") == before

    vacuum("own")
    is_missed("own")
    sql.crash()
    vacuum("earlier")
    sql.resume()
    is_missed("earlier")


class OtherDriver:
    """One that was taken for dead in the middle of its append, which lands once: of all micro-batches but the last."""

    def __init__(self, sql: Workshop) -> None:
        self._sql = sql
        flow = sql.flow("t")
        self._flow, self._last = flow.spec.id, flow._intakes[0].buffer.batches[-1].last - 1
        self.has_landed = False

    def land(self) -> None:
        """Commit its append, unless it has."""
        if self.has_landed:
            return
        self.has_landed = True
        self._sql.spark.range(1).selectExpr("'other' AS k", "CAST(0 AS INT) AS twice").write.format("delta").mode(
            "append"
        ).options(txnAppId=self._flow, txnVersion=str(self._last)).saveAsTable("t")

    def is_told_apart(self) -> bool:
        """Whether the last micro-batch was added, and none of the others again; and that the commits tell so."""
        rows = self._sql.batch("SELECT k, twice FROM t WHERE k = 'other' OR twice >= 20")
        newest = self._sql.commits("t")[-1]
        return rows == [("n", 24), ("other", 0)] and newest["first_batch"] == newest["last_batch"]


VARCHAR = "(k VARCHAR(9), twice INT)"


def other_driver_of(sql: Workshop, columns: str) -> OtherDriver:
    """Make a flow with micro-batches in its buffer, and return a driver that is about to append some of them."""
    sql(f"CREATE STREAMING TABLE t {columns} TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.freeze()
    arrive(sql, ["t"], 10)
    return OtherDriver(sql)


@pytest.mark.parametrize("columns", ["", VARCHAR], ids=["staged", "buffered"])
def test_an_append_of_fewer_micro_batches_that_lands_in_the_middle_of_one(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    other, append, commit_actions = other_driver_of(sql, columns), commit.append, transaction.commit_actions

    def in_conflict(*arguments: Any) -> int:
        if not other.has_landed:
            other.land()
            raise ConcurrentTransactionException("as Delta finds at the end of a write that has begun before")
        return append(*arguments)

    def after_the_other(*arguments: Any) -> int:
        other.land()
        return commit_actions(*arguments)

    monkeypatch.setattr(commit, "append", in_conflict)
    monkeypatch.setattr(staged_files, "commit_actions", after_the_other)
    sql("FLUSH FLOW t")
    assert other.has_landed
    assert other.is_told_apart()


@pytest.mark.parametrize("columns", ["", VARCHAR], ids=["staged", "buffered"])
def test_an_append_of_fewer_micro_batches_that_lands_before_a_successors(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """After the successor has asked what the table has, and before Delta begins the successor's transaction."""
    other = other_driver_of(sql, columns)
    sql.crash()

    def after_the_other(*arguments: Any) -> None:
        other.land()
        append_batches(*arguments)

    monkeypatch.setattr(f"{TableWriter.__module__}.append_batches", after_the_other)
    sql.resume()
    sql("WAIT FLOW t")
    assert other.has_landed
    assert other.is_told_apart()


def test_an_append_of_fewer_micro_batches_that_lands_while_its_driver_sleeps(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After this driver has asked what the table has, and before Delta begins its transaction: it asks once more."""
    other = other_driver_of(sql, "")

    def after_the_other(*arguments: Any) -> None:
        other.land()
        append_batches(*arguments)

    monkeypatch.setattr(f"{TableWriter.__module__}.append_batches", after_the_other)
    sql("FLUSH FLOW t")
    assert other.has_landed
    assert other.is_told_apart()


def test_of_two_drivers_one_commits(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.freeze()
    arrive(sql, ["t"], 10)
    commit_actions, to_do = transaction.commit_actions, ["the other driver, which has not seen that it is not the only one"]

    def commit_after_the_other(*arguments: Any) -> int:
        if to_do:
            to_do.pop()
            flow, batch = sql.flow("t").spec.id, arguments[4].app_version
            sql.spark.range(1).selectExpr("'other' AS k", "CAST(0 AS INT) AS twice").write.format("delta").mode("append").options(
                txnAppId=flow, txnVersion=str(batch)
            ).saveAsTable("t")
        return commit_actions(*arguments)

    monkeypatch.setattr(staged_files, "commit_actions", commit_after_the_other)
    sql("FLUSH FLOW t")

    assert len(sql("SELECT * FROM t WHERE twice >= 20")) == 0  # as if the other had committed the same rows
    assert len(sql("SELECT * FROM t WHERE k = 'other'")) == 1


def test_a_commit_tells_what_delta_s_writer_would(sql: Workshop) -> None:
    """Its rows and files, in the table's history; and the table's files are compacted by Delta, if its properties say so."""
    sql("SET spark.databricks.delta.autoCompact.minNumFiles = 2")
    sql("CREATE TABLE fed (k STRING, v INT) USING delta TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')")
    sql("CREATE FLOW f AS INSERT INTO fed SELECT k, v FROM STREAM ev WHERE v IS NOT NULL")
    sql("WAIT FLOW f")
    arrive(sql, ["f"], 10)
    arrive(sql, ["f"], 11)
    history = sql("DESCRIBE HISTORY fed")
    written = [row.operationMetrics for row in history if row.operation == "WRITE"]
    assert all(int(each["numFiles"]) > 0 and int(each["numOutputBytes"]) > 0 for each in written)
    assert sum(int(each["numOutputRows"]) for each in written) == len(sql("SELECT * FROM fed"))
    assert "OPTIMIZE" in {row.operation for row in history}


def test_files_have_the_types_that_the_table_has_got(sql: Workshop) -> None:
    """Delta allows narrower ones only in files from before the change."""
    sql("CREATE TABLE fed (k STRING, v INT) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    sql("CREATE FLOW f AS INSERT INTO fed SELECT k, v FROM STREAM ev")
    sql("WAIT FLOW f")
    before = {*local(sql("DESCRIBE DETAIL fed")[0].location).glob("*.parquet")}
    sql("ALTER TABLE fed ALTER COLUMN v TYPE BIGINT")
    arrive(sql, ["f"], 10)
    newer = {*local(sql("DESCRIBE DETAIL fed")[0].location).glob("*.parquet")} - before
    assert {str(pq.read_schema(file).field("v").type) for file in newer} == {"int64"}


def test_a_column_that_has_become_another_one_takes_values_as_insert_gives_them(sql: Workshop) -> None:
    mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    sql(f"CREATE TABLE fed (k STRING, v BIGINT, a ARRAY<INT>, s STRUCT<x: INT>) USING delta {mapped}")
    sql("CREATE FLOW f AS INSERT INTO fed SELECT k, v, array(v), struct(v) FROM STREAM ev WHERE k IS NOT NULL")
    sql("WAIT FLOW f")
    sql("ALTER TABLE fed DROP COLUMNS (v, a, s)")
    sql("ALTER TABLE fed ADD COLUMNS (v STRING, a ARRAY<BIGINT>, s STRUCT<x: STRING>)")
    sql("INSERT INTO ev VALUES ('new', 10)")
    sql("WAIT FLOW f")
    assert sql.batch("SELECT v, a, s.x FROM fed WHERE k = 'new'") == [("10", [10], "10")]
    assert sql.batch("SELECT k, v FROM fed WHERE k <> 'new'") == [("a", None), ("b", None)]


def test_a_column_that_has_become_another_one_in_a_table_of_groups(sql: Workshop) -> None:
    """A flow owns it, and would rewrite it."""
    mapped = "'delta.columnMapping.mode' = 'name', 'state.backend.type'"
    query = "SELECT k, array(max(v)) AS a, max(v) AS v FROM STREAM ev GROUP BY k"
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({mapped} = 'rocksdb') AS {query}")
    sql("WAIT FLOW t")
    sql("ALTER TABLE t DROP COLUMNS (a, v)")
    sql("ALTER TABLE t ADD COLUMNS (a ARRAY<STRING>, v STRING)")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT a, v FROM t WHERE k = 'a'") == [(["10"], "10")]
