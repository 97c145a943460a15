"""What others do to a flow's table or its state stays refused, also after a restart; nobody's row is overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.delta.transaction import TableTransaction
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.execution.state import delta_state
from sqlext.execution.state.delta_state import DeltaState
from tests.integration.workshop import BUFFERED, COUNTS, Workshop

DELTA = "TBLPROPERTIES ('state.backend.type' = 'delta'"
MEANS = COUNTS.replace("sum(v)", "avg(v)")
ONE_ROW = "SELECT count(*) AS n, {}(v) AS x FROM {}"


def once(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, action: Callable[[], object]) -> None:
    """Do something just before a method runs for the first time."""
    to_do, original = [action], getattr(kind, method)

    def after_action(self: Any, *arguments: Any, **named: Any) -> Any:
        if to_do:
            to_do.pop()()
        return original(self, *arguments, **named)

    monkeypatch.setattr(kind, method, after_action)


@pytest.mark.parametrize(
    ("query", "properties", "kind", "method", "statement"),
    [
        (COUNTS, ")", TableTransaction, "_commit", "INSERT INTO t VALUES ('a', 7, 7)"),
        (COUNTS, ", 'delta.enableChangeDataFeed' = 'true')", TableWriter, "_merge_rows", "DELETE FROM t WHERE k = 'a'"),
        (MEANS, ")", DeltaState, "_store", "DELETE FROM delta.`{home}/state`"),
    ],
    ids=["transaction", "merged", "own"],
)
def test_a_change_in_the_middle_of_a_flush_stays_refused(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, query: str, properties: str, kind: type, method: str, statement: str
) -> None:
    if method == "_store":
        monkeypatch.setattr(delta_state, "_MOST_FILES", -1)  # as of a state too large to be held in hand
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA}{properties} AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    once(monkeypatch, kind, method, lambda: sql(statement.format(home=sql.home("t"))))
    sql("INSERT INTO ev VALUES ('a', 10)")
    with pytest.raises(PySparkException, match="changed rows that hold the state"):
        sql("WAIT FLOW t")
    for _ in range(2):
        sql.crash()
        sql("START FLOW t")
        sql("INSERT INTO ev VALUES ('a', 20)")
        with pytest.raises(PySparkException, match="changed rows that hold the state"):
            sql("WAIT FLOW t")


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@pytest.mark.parametrize("function", ["sum", "avg"])
def test_one_row_does_not_overwrite_those_of_others(sql: Workshop, backend: str, function: str) -> None:
    sql.source()
    query = ONE_ROW.format(function, "STREAM ev")
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = '{backend}') AS {query}")
    sql("WAIT FLOW t")
    sql("INSERT INTO t VALUES (-1, -1)")
    sql("INSERT INTO ev VALUES ('a', 10)")
    is_state = backend == "delta" and function == "sum"
    because = "changed rows that hold the state" if is_state else r"holds rows of others.* Version 2 \(WRITE\) added some"
    with pytest.raises(PySparkException, match=because):
        sql("WAIT FLOW t")
    sql.crash()
    sql("START FLOW t")
    with pytest.raises(PySparkException, match=because):
        sql("WAIT FLOW t")
    assert sql.batch("SELECT n FROM t") == [(-1,), (3,)]
    if not is_state:  # whose table is another flow's from then on
        sql("TRUNCATE TABLE t")
        sql("START FLOW t")
        sql("INSERT INTO ev VALUES ('a', 20)")
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(ONE_ROW.format(function, "ev"))


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_one_row_into_a_table_that_others_fill(sql: Workshop, backend: str) -> None:
    """Before the first flush, and after it; what came and went before the flow was made does not matter."""
    sql.source()
    sql("CREATE TABLE t (n BIGINT, x BIGINT) USING delta")
    sql("INSERT INTO t VALUES (-1, -1)")
    sql("DELETE FROM t")
    sql(f"SET `state.backend.type` = {backend}")
    query = ONE_ROW.format("sum", "STREAM ev")
    sql(f"CREATE FLOW f AS INSERT INTO t {query.replace('SELECT', '''SELECT /*+ FLUSH_INTERVAL('10 minutes') */''')}")
    sql.freeze()
    sql.take_in("f")
    sql("INSERT INTO t VALUES (-2, -2)")
    with pytest.raises(PySparkException, match="holds rows of others"):
        sql("FLUSH FLOW f")
    assert sql.batch("SELECT * FROM t") == [(-2, -2)]
    sql("DELETE FROM t")
    sql.crash()
    sql("START FLOW f")
    sql("WAIT FLOW f")
    assert sql.batch("SELECT * FROM t") == [(3, 6)]
    sql("UPDATE t SET x = 0")  # the flow's own row: nobody else's is lost
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("WAIT FLOW f")
    assert sql.batch("SELECT * FROM t") == [(4, 16)]


def test_a_row_that_comes_just_before_the_merge_is_told(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlext.execution.delta import commit

    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = 'rocksdb') AS {ONE_ROW.format('sum', 'STREAM ev')}")
    sql("WAIT FLOW t")
    to_do, merge = ["INSERT INTO t VALUES (-1, -1)"], commit.merge

    def after_insert(*arguments: Any) -> None:
        if to_do:
            sql(to_do.pop())
        merge(*arguments)

    monkeypatch.setattr(commit, "merge", after_insert)
    for value in (10, 20):
        sql(f"INSERT INTO ev VALUES ('a', {value})")
        with pytest.raises(PySparkException, match="holds rows of others"):
            sql("WAIT FLOW t")
        sql.crash()
        sql("START FLOW t")


# What is stored, and by whom.


@pytest.mark.parametrize(("query", "is_readable"), [(COUNTS, True), (MEANS, False)], ids=["results", "partial results"])
def test_partial_results_are_read_by_the_spark_that_wrote_them(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, query: str, is_readable: bool
) -> None:
    sql.source()
    sql(f"CREATE STREAMING TABLE t {DELTA}) AS {query.format('STREAM ev')}")
    sql("STOP FLOW t")
    monkeypatch.setitem(sql.flow("t").session.__dict__, "version", "4.2.99")
    sql("INSERT INTO ev VALUES ('a', 10)")
    if is_readable:
        sql("START FLOW t")
        sql("WAIT FLOW t")
        assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))
    else:
        with pytest.raises(PySparkException, match="cannot be read any more"):
            sql("START FLOW t")


def test_a_woken_driver_and_its_successor(sql: Workshop) -> None:
    """A driver that was given up takes a micro-batch in behind its successor's back, and then another start finds both."""
    sql.source()
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    sql.freeze()
    sql.take_in("t")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql.take_in("t")
    old = sql.flow("t")._intakes[0].buffer
    left = old.batches
    sql.crash()
    assert sql.resume() == ["t"]  # what the earlier epoch has buffered is flushed
    assert sql.equals_batch()
    sql.freeze()
    sql("INSERT INTO ev VALUES ('b', 20)")
    sql.take_in("t")
    new = sql.flow("t")._intakes[0].buffer
    (batch,) = new.batches
    rows = new.rows(sql.spark, [batch])
    before = sorted(rows.collect())
    woken = old._durable.write(rows.drop("__sqlext_batch").limit(0), batch.last, 0.0, ())
    assert woken.place != batch.place
    assert sorted(new.rows(sql.spark, [batch]).collect()) == before
    assert [found.place for found in new._durable.find(0.0)] == [batch.place]
    old._durable.drop([woken, *left])
    assert sorted(new.rows(sql.spark, [batch]).collect()) == before
    sql("FLUSH FLOW t")
    assert sql.equals_batch()
    assert list((sql.home("t") / "buffer").iterdir()) == []
