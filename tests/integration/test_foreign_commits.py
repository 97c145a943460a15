"""What others do to a flow's table or its state stays refused, also after a restart; nobody's row is overwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.execution.delta import commit, delta_log, own_table, transaction
from sqlext.execution.flows.table_writer import TableWriter
from sqlext.execution.state.state_beside import StateBeside
from tests.integration.workshop import BUFFERED, COUNTS, Workshop
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean")

BACKENDS = ("rocksdb", "delta")
DELTA = "TBLPROPERTIES ('state.backend.type' = 'delta'"
MEANS = COUNTS.replace("sum(v)", "avg(v)")
WINDOW = "session_window(timestamp_seconds(v), '3 seconds')"
SESSIONS = f"SELECT {WINDOW} AS w, count(*) AS n FROM {{}} GROUP BY {WINDOW}"
ONE_ROW = "SELECT count(*) AS n, {}(v) AS x FROM {}"


def once(monkeypatch: pytest.MonkeyPatch, kind: Any, method: str, action: Callable[[], object]) -> None:
    """Do something just before a method runs for the first time."""
    to_do, original = [action], getattr(kind, method)

    def after_action(self: Any, *arguments: Any, **named: Any) -> Any:
        if to_do:
            to_do.pop()()
        return original(self, *arguments, **named)

    monkeypatch.setattr(kind, method, after_action)


class Change(NamedTuple):
    """A change of rows by somebody else, in the middle of a flush.

    Attributes:
        owner, method: just before it runs, the change comes.
        because: what the flow says of it.
    """

    table: str
    query: str
    properties: str
    owner: Any
    method: str
    statement: str
    because: str = "changed rows that hold the state"


CHANGES = [
    Change("transaction", COUNTS, f"{DELTA})", transaction, "commit_actions", "INSERT INTO transaction VALUES ('a', 7, 7)"),
    Change(
        "merged",
        COUNTS,
        f"{DELTA}, 'delta.enableChangeDataFeed' = 'true')",
        TableWriter,
        "_merge_rows",
        "DELETE FROM merged WHERE k = 'a'",
    ),
    Change("own", MEANS, f"{DELTA})", StateBeside, "_store", "DELETE FROM delta.`{home}/state`"),
    Change(
        "sessions",
        SESSIONS,
        f"{DELTA})",
        transaction,
        "commit_actions",
        "INSERT INTO delta.`{home}/state` SELECT * FROM delta.`{home}/state`",
    ),
    Change(
        "one_row",
        ONE_ROW.format("sum", "{}"),
        "TBLPROPERTIES ('state.backend.type' = 'rocksdb')",
        commit,
        "merge",
        "INSERT INTO one_row VALUES (-1, -1)",
        "holds rows of others",
    ),
]


def test_a_change_in_the_middle_of_a_flush_stays_refused(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    size = delta_log.table_size

    def as_of_a_large_one(spark: SparkSession, location: str, version: int) -> delta_log.TableSize | None:
        """Of `own`'s state, the size of one too large to be held in hand."""
        found = size(spark, location, version)
        return replace(found, files=own_table._MOST_FILES + 1) if found and location.endswith("/state") else found

    monkeypatch.setattr(own_table, "table_size", as_of_a_large_one)

    def create(change: Change) -> None:
        sql.source(f"to_{change.table}")
        query = change.query.format(f"STREAM to_{change.table}")
        sql(f"CREATE STREAMING TABLE {change.table} {change.properties} AS {query}")
        sql(f"WAIT FLOW {change.table}")

    def started(change: Change) -> None:
        sql(f"START FLOW {change.table}")  # which flushes what a buffer in files has
        sql(f"WAIT FLOW {change.table}")

    def is_refused(change: Change, value: int) -> None:
        sql(f"INSERT INTO to_{change.table} VALUES ('a', {value})")
        with pytest.raises(PySparkException, match=change.because):
            sql(f"WAIT FLOW {change.table}")

    def stays_refused(change: Change) -> None:
        sql(f"INSERT INTO to_{change.table} VALUES ('a', 20)")
        with pytest.raises(PySparkException, match=change.because):
            started(change)

    side_by_side(create, CHANGES)
    for change in CHANGES:
        with monkeypatch.context() as patch:
            statement = change.statement.format(home=sql.home(change.table))
            once(patch, change.owner, change.method, partial(sql, statement))
            is_refused(change, 10)
    for _ in range(2):
        sql.crash()
        side_by_side(stays_refused, CHANGES)


def test_one_row_does_not_overwrite_those_of_others(sql: Workshop) -> None:
    sql.source()
    tables = {f"{function}_{backend}": (function, backend) for backend in BACKENDS for function in ("sum", "avg")}
    state = "sum_delta"  # the table is the state
    told = dict.fromkeys(tables, r"holds rows of others.* Version 2 \(WRITE\) added some")
    told[state] = "changed rows that hold the state"

    def create(table: str) -> None:
        function, backend = tables[table]
        query = ONE_ROW.format(function, "STREAM ev")
        sql(f"CREATE STREAMING TABLE {table} TBLPROPERTIES ('state.backend.type' = '{backend}') AS {query}")
        sql(f"WAIT FLOW {table}")
        sql(f"INSERT INTO {table} VALUES (-1, -1)")

    def is_refused(table: str) -> None:
        with pytest.raises(PySparkException, match=told[table]):
            sql(f"WAIT FLOW {table}")

    def stays_refused(table: str) -> None:
        sql(f"START FLOW {table}")
        is_refused(table)
        assert sql.batch(f"SELECT n FROM {table}") == [(-1,), (3,)]

    def writes_into_an_empty_one(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT * FROM {table}") == sql.batch(ONE_ROW.format(tables[table][0], "ev"))

    side_by_side(create, tables)
    sql("INSERT INTO ev VALUES ('a', 10)")
    side_by_side(is_refused, tables)
    sql.crash()
    side_by_side(stays_refused, tables)

    del tables[state]  # the others' tables are another flow's from then on
    for table in tables:
        sql(f"TRUNCATE TABLE {table}")
        sql(f"START FLOW {table}")
    sql("INSERT INTO ev VALUES ('a', 20)")
    side_by_side(writes_into_an_empty_one, tables)


def test_one_row_into_a_table_that_others_fill(sql: Workshop) -> None:
    """Before the first flush, and after it; what came and went before the flow was made does not matter."""
    sql.source()

    for backend in BACKENDS:
        sql(f"CREATE TABLE {backend} (n BIGINT, x BIGINT) USING delta")
        sql(f"INSERT INTO {backend} VALUES (-1, -1)")
        sql(f"DELETE FROM {backend}")
        sql(f"SET `state.backend.type` = {backend}")
        query = ONE_ROW.format("sum", "STREAM ev").replace("SELECT", "SELECT /*+ FLUSH_INTERVAL('10 minutes') */")
        sql(f"CREATE FLOW {backend} AS INSERT INTO {backend} {query}")
    sql.freeze()

    def is_refused(backend: str) -> None:
        sql.take_in(backend)
        sql(f"INSERT INTO {backend} VALUES (-2, -2)")
        with pytest.raises(PySparkException, match="holds rows of others"):
            sql(f"FLUSH FLOW {backend}")
        assert sql.batch(f"SELECT * FROM {backend}") == [(-2, -2)]
        sql(f"DELETE FROM {backend}")

    def goes_on(backend: str) -> None:
        sql(f"START FLOW {backend}")
        sql(f"WAIT FLOW {backend}")
        assert sql.batch(f"SELECT * FROM {backend}") == [(3, 6)]
        sql(f"UPDATE {backend} SET x = 0")  # the flow's own row: nobody else's is lost

    def takes_in(backend: str) -> None:
        sql(f"WAIT FLOW {backend}")
        assert sql.batch(f"SELECT * FROM {backend}") == [(4, 16)]

    side_by_side(is_refused, BACKENDS)
    sql.crash()
    side_by_side(goes_on, BACKENDS)
    sql("INSERT INTO ev VALUES ('a', 10)")
    side_by_side(takes_in, BACKENDS)


# What is stored, and by whom.


def test_partial_results_are_read_by_the_spark_that_wrote_them(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.source()
    for table, query in (("results", COUNTS), ("partial_results", MEANS)):
        sql(f"CREATE STREAMING TABLE {table} {DELTA}) AS {query.format('STREAM ev')}")
        sql(f"STOP FLOW {table}")
        monkeypatch.setitem(sql.flow(table).session.__dict__, "version", "4.2.99")
    sql("INSERT INTO ev VALUES ('a', 10)")
    sql("START FLOW results")
    sql("WAIT FLOW results")
    assert sql.batch("SELECT * FROM results") == sql.batch(COUNTS.format("ev"))
    with pytest.raises(PySparkException, match="cannot be read any more"):
        sql("START FLOW partial_results")


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
