"""How rows get into a table that a flow owns: an empty one is written, a small one rewritten, of a large one rows are marked.

Where that would lose something which Delta's MERGE keeps, MERGE does it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.catalog import Catalog

from sqlext.execution.delta import commit, own_table
from tests.integration.workshop import Workshop, are_contiguous
from tests.support import side_by_side

pytestmark = pytest.mark.usefixtures("lean", "unhurried")

BACKENDS = ("rocksdb", "delta")
QUERY = "SELECT k, p, count(*) AS n, avg(v) AS mean FROM {} GROUP BY k, p HAVING count(*) <> 2"
TABLES = {
    "plain": ("", ""),
    "parts": ("PARTITIONED BY (p)", ""),
    "mapped": ("", ", 'delta.columnMapping.mode' = 'name'"),
    "feed": ("", ", 'delta.enableChangeDataFeed' = 'true'"),
    "tracked": ("", ", 'delta.enableRowTracking' = 'true'"),
    "unmarked": ("", ", 'delta.enableDeletionVectors' = 'false'"),
}
NEED_MERGE = {"feed", "tracked"}
ARRIVALS = (
    "('a', 1, 1), ('b', 1, 2), (NULL, 2, 3), ('c', 2, 4), ('c', 2, 5)",
    "('a', 1, 5), ('d', 3, 1)",  # `a` no longer qualifies
    "('a', 1, NULL), (NULL, NULL, 7), ('c', 2, 9)",  # and does again; so does `c`
    "('b', 1, 2), ('e', 1, 1)",
)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each flow runs a MERGE."""
    found: Counter[str] = Counter()
    merge = commit.merge

    def counted(*arguments: Any, **named: Any) -> None:
        (info,) = (each for each in arguments if isinstance(each, commit.CommitInfo))
        found[info.flow] += 1
        merge(*arguments, **named)

    monkeypatch.setattr(commit, "merge", counted)
    return found


def keep(sql: Workshop, tables: dict[str, tuple[str, str]]) -> list[str]:
    """Keep a table of each kind up to date over some flushes, each of which must give what a batch query gives."""
    flows = [f"{name}_{backend}" for name in tables for backend in (BACKENDS if name == "plain" else BACKENDS[:1])]
    sql("CREATE TABLE ev (k STRING, p INT, v INT) USING delta")
    sql(f"INSERT INTO ev VALUES {ARRIVALS[0]}")

    def create(flow: str) -> None:
        name, backend = flow.split("_")
        clause, properties = tables[name]
        options = f"TBLPROPERTIES ('state.backend.type' = '{backend}'{properties})"
        sql(f"CREATE STREAMING TABLE {flow} {clause} {options} AS {QUERY.format('STREAM ev')}")

    side_by_side(create, flows)
    for values in (None, *ARRIVALS[1:]):
        if values is not None:
            sql(f"INSERT INTO ev VALUES {values}")
        expected = sql.batch(QUERY.format("ev"))

        def equals_batch(flow: str, expected: list[tuple[Any, ...]] = expected) -> None:
            sql(f"WAIT FLOW {flow}")
            assert sql.batch(f"SELECT k, p, n, mean FROM {flow}") == expected

        side_by_side(equals_batch, flows)
    for flow in flows:
        assert are_contiguous(sql.commits(flow))
    return flows


def test_small_tables_are_rewritten(sql: Workshop, merges: Counter[str]) -> None:
    """Also into one file, however many flushes there are."""
    flows = keep(sql, {name: table for name, table in TABLES.items() if name != "unmarked"})
    assert {flow.split("_")[0] for flow in merges} == NEED_MERGE
    for flow in flows:
        if flow.split("_")[0] not in NEED_MERGE | {"parts"}:
            assert sql(f"DESCRIBE DETAIL {flow}")[0].numFiles == 1, flow


def test_rows_of_large_tables_are_marked(sql: Workshop, merges: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "SMALL_TABLE_BYTES", -1)
    keep(sql, {name: TABLES[name] for name in ("plain", "parts", "unmarked")})
    assert {flow.split("_")[0] for flow in merges} == {"unmarked"}


def test_of_too_many_rows_only_the_first_load_is_written(
    sql: Workshop, merges: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "are_few", lambda *_: False)
    keep(sql, {"plain": TABLES["plain"]})
    later = len(ARRIVALS) - 1
    assert merges == {"plain_rocksdb": later, "plain_delta": 2 * later}


def test_what_others_have_in_the_table_stays(sql: Workshop) -> None:
    """A column that a user has added, and fills."""
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1), ('b', 2)")
    sql(
        "CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = 'rocksdb') "
        "AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k"
    )
    sql("WAIT FLOW t")
    sql("ALTER TABLE t ADD COLUMN note STRING")
    sql("UPDATE t SET note = upper(k)")
    sql("INSERT INTO ev VALUES ('a', 1), ('c', 2)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, n, note FROM t") == [("a", 2, "A"), ("b", 1, "B"), ("c", 1, None)]


CONSTRAINED = {  # the column `s` of a table, a statement on the table, a value that it does not take, and the error
    "short": ("s VARCHAR(3)", "SELECT 1", "'abcdef'", "exceeds char/varchar type length limitation"),
    "filled": ("s STRING NOT NULL", "SELECT 1", "NULL", "NOT NULL constraint violated"),
    "checked": ("s STRING", "ALTER TABLE checked ADD CONSTRAINT few CHECK (length(s) < 4)", "'abcdef'", "CHECK constraint few"),
}


@pytest.mark.parametrize("table", CONSTRAINED)
def test_what_a_table_does_not_take_is_an_error(sql: Workshop, table: str) -> None:
    column, statement, value, message = CONSTRAINED[table]
    sql("CREATE TABLE ev (k STRING, s STRING) USING delta")
    sql("INSERT INTO ev VALUES ('a', 'x'), ('b', 'y')")
    properties = "TBLPROPERTIES ('state.backend.type' = 'rocksdb')"
    sql(f"CREATE STREAMING TABLE {table} (k STRING, {column}) {properties} AS SELECT k, max(s) AS s FROM STREAM ev GROUP BY k")
    sql(f"WAIT FLOW {table}")
    sql(statement)
    sql("INSERT INTO ev VALUES ('a', 'z')")
    sql(f"WAIT FLOW {table}")
    sql(f"INSERT INTO ev VALUES ('c', {value})")
    with pytest.raises(PySparkException, match=message):
        sql(f"WAIT FLOW {table}")
    assert sql.batch(f"SELECT k, s FROM {table}") == [("a", "z"), ("b", "y")]


def test_a_commit_that_is_there_is_not_repeated(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies after its commit, before its buffer is emptied."""
    sql.source()
    options = "TBLPROPERTIES ('state.backend.type' = 'rocksdb', 'execution.flush.max-interval' = '10 minutes')"
    sql(f"CREATE STREAMING TABLE t {options} AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k")
    sql("WAIT FLOW t")
    version = sql.commits("t")
    original = own_table.OwnTable.upsert

    def twice(self: own_table.OwnTable, *arguments: Any) -> bool:
        return original(self, *arguments) and original(self, *arguments)

    monkeypatch.setattr(own_table.OwnTable, "upsert", twice)
    sql("INSERT INTO ev VALUES ('a', 1)")
    sql("WAIT FLOW t")
    assert len(sql.commits("t")) == len(version) + 1
    assert sql.batch("SELECT k, n FROM t") == [("a", 2), ("b", 1), (None, 1)]


def test_what_is_cached_follows_each_commit(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By transactions, by files that were written before, and by MERGE, which reads the table where it is the state."""
    tables = {
        "counts": "SELECT k, count(*) AS n, count(*) > 2 AS is_hot FROM {} GROUP BY k",
        "means": "SELECT k, avg(v) AS mean FROM {} GROUP BY k",
        "rows": "SELECT k, v FROM {}",
    }
    sql.source()
    for table, query in tables.items():
        properties = ", 'execution.flush.max-interval' = '10 minutes'" if table == "rows" else ""
        options = f"TBLPROPERTIES ('state.backend.type' = 'delta'{properties})"
        sql(f"CREATE STREAMING TABLE {table} {options} AS {query.format('STREAM ev')}")
        sql(f"WAIT FLOW {table}")
        sql(f"CACHE TABLE {table}")

    def equals_batch(table: str) -> None:
        sql(f"WAIT FLOW {table}")
        assert sql.batch(f"SELECT * FROM {table}") == sql.batch(tables[table].format("ev"))

    for is_few in (True, False):
        if not is_few:
            monkeypatch.setattr(commit, "are_few", lambda *_: False)
        sql("INSERT INTO ev VALUES ('a', 4)")
        side_by_side(equals_batch, tables)
    assert sql.batch("SELECT n, is_hot FROM counts WHERE k = 'a'") == [(3, True)]


def test_what_is_stored_is_never_what_is_cached(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another application has kept the flow meanwhile: its commits are unknown to this one's cache."""
    query = "SELECT k, count(*) AS n, count(*) > 2 AS is_hot FROM {} GROUP BY k"
    sql.source()
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ('state.backend.type' = 'delta') AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("CACHE TABLE t")
    monkeypatch.setattr(Catalog, "refreshByPath", lambda *_: None)
    for is_few in (True, False):
        if not is_few:
            monkeypatch.setattr(commit, "are_few", lambda *_: False)
        sql("INSERT INTO ev VALUES ('a', 4)")
        sql("WAIT FLOW t")
    sql("UNCACHE TABLE t")
    assert sql.batch("SELECT * FROM t") == [("a", 3, True), ("b", 1, False), (None, 1, False)]


def test_tables_that_nobody_reads_are_rewritten_whatever_others_are_to_note(sql: Workshop, merges: Counter[str]) -> None:
    for name in ("enableChangeDataFeed", "enableRowTracking"):
        sql(f"SET spark.databricks.delta.properties.defaults.{name} = true")
    sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    sql("INSERT INTO ev VALUES ('a', 1), ('b', 2)")
    query = "SELECT k, avg(v) AS mean FROM {} GROUP BY k ORDER BY mean DESC LIMIT 3"
    sql(f"CREATE STREAMING TABLE t AS {query.format('STREAM ev')}")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('a', 4), ('c', 2)")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))
    assert not merges
    assert dict(sql("SHOW TBLPROPERTIES t"))["delta.enableChangeDataFeed"] == "true"
