"""Rows that are appended: micro-batches write files of the table, and a flush adds them in one commit, exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.execution.delta import staged_files, transaction
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

    def is_flushed_at_once(name: str) -> None:
        assert versions(sql, name) == before[name]
        assert len(pending(sql, name)) == 3
        assert sql.shown(name).buffered == 3
        sql(f"FLUSH FLOW {name}")
        assert versions(sql, name) == before[name] + 1
        assert pending(sql, name) == []
        assert sql.batch(f"SELECT * FROM {name}") == sql.batch(QUERY.format("ev"))
        newest = sql.commits(name)[-1]
        assert (newest["rows"], newest["reason"], newest["last_batch"] - newest["first_batch"]) == (3, "command", 2)

    side_by_side(is_flushed_at_once, tables)
    changes = sql(f"SELECT _change_type, count(*) AS n FROM table_changes('fed', {before['fed'] + 1}) GROUP BY _change_type")
    assert [tuple(row) for row in changes] == [("insert", 3)]


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
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.freeze()
    arrive(sql, ["t"], 10)
    folder = local(sql("DESCRIBE DETAIL t")[0].location)
    sql.crash()
    (action,) = json.loads(pending(sql, "t")[0].read_text())["files"]
    (folder / json.loads(action)["add"]["path"]).unlink()
    sql.resume()

    with pytest.raises(PySparkException, match="is gone before it was committed: it was vacuumed while the flow did not run"):
        sql("WAIT FLOW t")


def test_of_two_drivers_one_commits(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({LATER}) AS {QUERY.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql.freeze()
    arrive(sql, ["t"], 10)
    commit, to_do = transaction.commit_actions, ["the other driver, which has not seen that it is not the only one"]

    def commit_after_the_other(*arguments: Any) -> int:
        if to_do:
            to_do.pop()
            flow, batch = sql.flow("t").spec.id, arguments[-1].app_version
            sql.spark.range(1).selectExpr("'other' AS k", "CAST(0 AS INT) AS twice").write.format("delta").mode("append").options(
                txnAppId=flow, txnVersion=str(batch)
            ).saveAsTable("t")
        return commit(*arguments)

    monkeypatch.setattr(staged_files, "commit_actions", commit_after_the_other)
    sql("FLUSH FLOW t")

    assert len(sql("SELECT * FROM t WHERE twice >= 20")) == 0  # as if the other had committed the same rows
    assert len(sql("SELECT * FROM t WHERE k = 'other'")) == 1
