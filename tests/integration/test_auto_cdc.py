"""AUTO CDC and tables that are declared for it: statements, what the tables hold, and what is refused, at its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.commands import kept_columns
from sqlext.execution.flows.query_above import QueryAbove
from sqlext.sql.file_calls import FilesCall
from tests.integration.test_session_windows import write_as
from tests.integration.workshop import BUFFERED, Workshop
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")

CLAUSES = "FROM STREAM cdc KEYS (id) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY lsn COLUMNS * EXCEPT (op, lsn)"
FLOW = f"CREATE FLOW f AS AUTO CDC INTO customers {CLAUSES}"


@pytest.fixture(autouse=True)
def cdc(sql: Workshop) -> None:
    sql("CREATE TABLE cdc (op STRING, lsn BIGINT, id INT, name STRING, city STRING) USING delta")
    sql("INSERT INTO cdc VALUES ('I', 1, 1, 'Ann', 'Rome'), ('I', 2, 2, 'Bo', 'Oslo'), ('U', 4, 1, 'Ann', 'Bern')")


def more(sql: Workshop) -> None:
    """A late change, a deletion, a key that comes back, and a change that came before."""
    sql("INSERT INTO cdc VALUES ('U', 3, 1, 'Anna', 'Rome'), ('D', 5, 2, NULL, NULL), ('U', 4, 1, 'Ann', 'Bern')")
    sql("INSERT INTO cdc VALUES ('I', 9, 3, 'Cy', NULL), ('D', 7, 3, NULL, NULL)")


def rows(sql: Workshop, table: str = "customers") -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in sql(f"SELECT * FROM {table}")), key=repr)


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_the_newest_change_of_each_key_is_its_row(sql: Workshop, backend: str) -> None:
    sql(f"CREATE STREAMING TABLE customers TBLPROPERTIES ('state.backend.type' = '{backend}') FLOW AUTO CDC {CLAUSES}")
    sql("WAIT FLOW customers")
    assert rows(sql) == [(1, "Ann", "Bern"), (2, "Bo", "Oslo")]
    more(sql)
    sql("WAIT FLOW customers")
    assert rows(sql) == [(1, "Ann", "Bern"), (3, "Cy", None)]
    sql("INSERT INTO cdc VALUES ('I', 10, 2, 'Bob', 'Kyiv')")
    sql("WAIT FLOW customers")
    assert rows(sql) == [(1, "Ann", "Bern"), (2, "Bob", "Kyiv"), (3, "Cy", None)]


def test_history_has_a_row_for_each_version(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE customers FLOW AUTO CDC {CLAUSES} STORED AS SCD TYPE 2")
    sql("WAIT FLOW customers")
    assert rows(sql) == [(1, "Ann", "Bern", 4, None), (1, "Ann", "Rome", 1, 4), (2, "Bo", "Oslo", 2, None)]
    more(sql)
    sql("WAIT FLOW customers")
    assert rows(sql) == [
        (1, "Ann", "Bern", 4, None),
        (1, "Ann", "Rome", 1, 3),
        (1, "Anna", "Rome", 3, 4),
        (2, "Bo", "Oslo", 2, 5),
        (3, "Cy", None, 9, None),
    ]


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
def test_a_flush_replaces_the_versions_of_the_keys_that_it_changes(
    sql: Workshop, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Rows with other keys stay in their files, unless somebody else has changed the table, or a crash came in between."""
    write_as("marked", monkeypatch)
    head = f"CREATE STREAMING TABLE customers TBLPROPERTIES ('state.backend.type' = '{backend}')"
    sql(f"{head} FLOW AUTO CDC {CLAUSES.replace('(id)', '(name, id)')} STORED AS SCD TYPE 2")
    sql("WAIT FLOW customers")
    first = [(1, "Ann", "Bern", 4, None), (1, "Ann", "Rome", 1, 4), (2, "Bo", "Oslo", 2, None)]
    assert rows(sql) == first
    before = files(sql)
    sql("INSERT INTO cdc VALUES ('D', 5, 2, 'Bo', NULL), ('I', 2, 3, 'Cy', 'Rom')")
    sql("WAIT FLOW customers")
    second = [*first[:2], (2, "Bo", "Oslo", 2, 5), (3, "Cy", "Rom", 2, None)]
    assert rows(sql) == second
    assert files(sql)[1] == before[1]
    assert files(sql)[2] != before[2]

    sql("DELETE FROM customers WHERE id = 1")
    sql("INSERT INTO cdc VALUES ('U', 6, 3, 'Cy', 'Roma')")
    sql("WAIT FLOW customers")
    third = [*second[:3], (3, "Cy", "Rom", 2, 6), (3, "Cy", "Roma", 6, None)]
    assert rows(sql) == third

    def dies(*_: object) -> None:
        raise OSError("died here")

    with monkeypatch.context() as patched:
        patched.setattr(QueryAbove, "replace", dies)
        sql("INSERT INTO cdc VALUES ('U', 3, 1, 'Ann', 'Ulm')")
        with pytest.raises(PySparkException, match="died here"):
            sql("WAIT FLOW customers")
        sql.crash()
    sql.resume()
    sql("INSERT INTO cdc VALUES ('U', 7, 3, 'Cy', 'Rom')")
    sql("WAIT FLOW customers")
    fourth = [first[0], (1, "Ann", "Rome", 1, 3), (1, "Ann", "Ulm", 3, 4), second[2]]
    assert rows(sql) == [*fourth, (3, "Cy", "Rom", 2, 6), (3, "Cy", "Rom", 7, None), (3, "Cy", "Roma", 6, 7)]


def files(sql: Workshop) -> dict[int, str]:
    """The file of each key's first version."""
    found = sql("SELECT id, __START_AT, _metadata.file_path FROM customers ORDER BY id, __START_AT DESC")
    return {row[0]: row[2] for row in found}


def test_a_declared_table_is_filled_by_a_flow_and_made_anew_by_it(sql: Workshop) -> None:
    sql("CREATE OR REFRESH STREAMING TABLE customers (city STRING, id BIGINT COMMENT 'the key', name STRING) COMMENT 'c'")
    assert rows(sql) == []
    said = sql("CREATE OR REFRESH STREAMING TABLE customers (city STRING, id BIGINT, name STRING)")[0][0]
    assert said == "streaming table spark_catalog.default.customers exists already, and stays as it is"
    with pytest.raises(PySparkException, match=r"customers was declared otherwise: columns\. ALTER STREAMING TABLE"):
        sql("CREATE OR REFRESH STREAMING TABLE customers (city STRING, id INT, name STRING)")
    sql(FLOW)
    sql("WAIT FLOW f")
    assert rows(sql) == [("Bern", 1, "Ann"), ("Oslo", 2, "Bo")]
    assert sql.spark.table("customers").schema["id"].metadata == {"comment": "the key"}
    assert sql.shown("f").target == "spark_catalog.default.customers"
    with pytest.raises(PySparkException, match=r"The flow `f` writes to spark_catalog\.default\.customers already"):
        sql(FLOW.replace("FLOW f", "FLOW g"))
    with pytest.raises(PySparkException, match=r"Flow `f` keeps spark_catalog\.default\.customers up to date"):
        sql("CREATE OR REPLACE STREAMING TABLE customers (id INT)")
    more(sql)
    sql("REFRESH STREAMING TABLE customers FULL")
    assert rows(sql) == [("Bern", 1, "Ann"), (None, 3, "Cy")]
    sql("DROP STREAMING TABLE customers")
    assert not sql.spark.catalog.tableExists("customers")
    assert not sql("SHOW FLOWS")


def test_a_flow_that_is_made_again_keeps_what_alter_has_set(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE customers (id INT, name STRING, city STRING, CONSTRAINT c EXPECT (id > 0))")
    sql(FLOW)
    sql("ALTER STREAMING TABLE customers ADD CONSTRAINT named EXPECT (name IS NOT NULL) ON VIOLATION FAIL UPDATE")
    sql("ALTER STREAMING TABLE customers DROP CONSTRAINT c")
    sql("ALTER STREAMING TABLE customers SET TBLPROPERTIES ('team' = 'sales')")
    named = "CONSTRAINT named EXPECT (name  is NOT null) ON VIOLATION FAIL UPDATE"
    said = sql(f"CREATE OR REFRESH STREAMING TABLE customers (ID INT, name STRING, city STRING, {named})")[0][0]
    assert said.endswith("exists already, and stays as it is")
    sql("ALTER TABLE customers ADD CONSTRAINT positive CHECK (id > 0)")
    assert "exists already" in sql(FLOW.replace("FLOW f", "FLOW IF NOT EXISTS f"))[0][0]
    sql("DROP FLOW f")
    with pytest.raises(PySparkException, match="is made anew, and no new table can be given its constraint `positive`"):
        sql(FLOW)
    sql("ALTER TABLE customers DROP CONSTRAINT positive")
    sql(FLOW)
    sql("WAIT FLOW f")
    assert [each.name for each in sql.host.flows.records()[sql.shown("f").id].spec.constraints] == ["named"]
    assert {row.key: row.value for row in sql("SHOW TBLPROPERTIES customers")}["team"] == "sales"
    assert rows(sql) == [(1, "Ann", "Bern"), (2, "Bo", "Oslo")]


def test_keys_that_the_tables_types_would_make_one_are_refused(sql: Workshop) -> None:
    sql("CREATE TABLE rounded (lsn BIGINT, id DECIMAL(3, 1)) USING delta")
    sql("CREATE STREAMING TABLE versions (id INT, __START_AT BIGINT, __END_AT BIGINT)")
    clauses = "FROM STREAM rounded KEYS (id) SEQUENCE BY lsn COLUMNS * EXCEPT (lsn)"
    with pytest.raises(PySparkException, match="several groups would become one row"):
        sql(f"CREATE FLOW f AS AUTO CDC INTO versions {clauses} STORED AS SCD TYPE 2")


def test_nulls_are_ignored_only_where_all_rows_are_the_flows(sql: Workshop) -> None:
    sql("CREATE TABLE c (id INT, name STRING, city STRING) USING delta")
    with pytest.raises(PySparkException, match="a row that is in the table already is not among the changes"):
        sql(f"CREATE FLOW f AS AUTO CDC INTO c {CLAUSES.replace('SEQUENCE', 'IGNORE NULL UPDATES SEQUENCE')}")


def test_a_declared_table_needs_no_columns_and_can_be_dropped(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE customers {BUFFERED}")
    with pytest.raises(PySparkException, match=r"There is a table spark_catalog\.default\.customers already"):
        sql("CREATE STREAMING TABLE customers")
    sql(f"{FLOW} STORED AS SCD TYPE 2")
    sql("WAIT FLOW f")
    assert sql.spark.table("customers").columns == ["id", "name", "city", "__START_AT", "__END_AT"]
    assert any("10 minutes" in str(row.value) for row in sql("DESCRIBE FLOW f"))
    sql("DROP FLOW f")
    sql(f"{FLOW} STORED AS SCD TYPE 1")
    sql("WAIT FLOW f")
    assert rows(sql) == [(1, "Ann", "Bern"), (2, "Bo", "Oslo")]
    sql("DROP STREAMING TABLE customers")
    sql("CREATE STREAMING TABLE IF NOT EXISTS customers (id INT)")
    sql("DROP STREAMING TABLE customers")
    assert not sql.spark.catalog.tableExists("customers")


def test_a_process_that_dies_goes_on_with_the_next_one(sql: Workshop) -> None:
    sql("CREATE STREAMING TABLE customers")
    sql(FLOW)
    sql("WAIT FLOW f")
    sql.crash()
    more(sql)
    sql.resume()
    sql("WAIT FLOW f")
    assert rows(sql) == [(1, "Ann", "Bern"), (3, "Cy", None)]


def test_explain_shows_what_is_kept(sql: Workshop) -> None:
    shown = "\n".join(row.plan for row in sql(f"EXPLAIN CREATE STREAMING TABLE customers FLOW AUTO CDC {CLAUSES}"))
    assert "max" in shown
    assert not sql.spark.catalog.tableExists("customers")


@pytest.mark.parametrize(
    ("change", "message", "place"),
    [
        (("op = 'D'", "opp = 'D'"), "`opp` cannot be resolved", "opp"),
        (("SEQUENCE BY lsn", "SEQUENCE BY ln"), "`ln` cannot be resolved", "ln"),
        (("WHEN op = 'D'", "WHEN op"), "`op` is string, and not a condition", "op SEQUENCE"),
        (("KEYS (id)", "KEYS (idd)"), "The source has no column `idd`", "idd"),
        (("STREAM cdc", "STREAM cdcc"), "`cdcc` cannot be found", "STREAM cdcc"),
        (("SEQUENCE BY lsn", "SEQUENCE BY map(1, lsn)"), "`map(1, lsn)` is map<int,bigint>, whose values have no order", "map"),
        (("INTO customers", "INTO nowhere"), "There is no table spark_catalog.default.nowhere", ""),
    ],
)
def test_what_is_wrong_is_said_at_its_place(sql: Workshop, change: tuple[str, str], message: str, place: str) -> None:
    sql("CREATE STREAMING TABLE customers (id INT, name STRING, city STRING)")
    text = FLOW.replace(*change)
    with pytest.raises(PySparkException) as caught:
        sql(text)
    assert message in str(caught.value)
    if place:
        column = text.index(place)
        assert any(f"line 1{between} pos {column}" in str(caught.value) for between in (",", ""))
    assert not sql("SHOW FLOWS")
    assert rows(sql) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("'U', 6, NULL, 'Di', 'Bonn'", "the key `id` of a change is NULL"),
        ("'U', NULL, 6, 'Di', 'Bonn'", "the sequence `lsn` of a change is NULL"),
    ],
)
def test_a_change_without_a_place_in_the_order_fails_the_flow(sql: Workshop, row: str, message: str) -> None:
    sql(f"CREATE STREAMING TABLE customers FLOW AUTO CDC {CLAUSES}")
    sql("WAIT FLOW customers")
    sql(f"INSERT INTO cdc VALUES ({row})")
    eventually(lambda: message in (sql.shown("customers").error or ""), 60)
    assert rows(sql) == [(1, "Ann", "Bern"), (2, "Bo", "Oslo")]


def test_a_sequence_may_be_a_struct(sql: Workshop) -> None:
    sql(f"CREATE STREAMING TABLE customers FLOW AUTO CDC {CLAUSES.replace('BY lsn', 'BY struct(lsn % 4, lsn)')}")
    sql("WAIT FLOW customers")
    assert rows(sql) == [(1, "Ann", "Rome"), (2, "Bo", "Oslo")]


def test_columns_of_files_are_inferred_once(sql: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('{"lsn": 1, "id": 1, "name": "Ann"}\n{"lsn": 2, "id": 1, "name": "Anna"}\n')
    inferred: list[str] = []
    columns_of = kept_columns._columns

    def noted(spark: SparkSession, text: str, call: FilesCall, is_flow: bool, grows: bool) -> str:
        inferred.append(call.key)
        return columns_of(spark, text, call, is_flow, grows)

    monkeypatch.setattr(kept_columns, "_columns", noted)
    source = f"STREAM read_files('{tmp_path}', format => 'json')"
    sql(f"CREATE STREAMING TABLE people FLOW AUTO CDC FROM {source} KEYS (id) SEQUENCE BY lsn COLUMNS * EXCEPT (lsn)")
    sql("WAIT FLOW people")
    assert rows(sql, "people") == [(1, "Anna")]
    assert len(inferred) == 1


def test_columns_may_have_names_that_the_query_would_use(sql: Workshop) -> None:
    sql("CREATE TABLE races (id INT, run INT, begins STRING, life INT, t INT, at INT) USING delta")
    sql("INSERT INTO races VALUES (1, 7, 'noon', NULL, 3, 1), (1, NULL, NULL, 9, NULL, 2), (1, NULL, 'one', NULL, 4, 2)")
    clauses = "FROM STREAM races KEYS (id) IGNORE NULL UPDATES SEQUENCE BY at COLUMNS * EXCEPT (at)"
    sql(f"CREATE STREAMING TABLE history FLOW AUTO CDC {clauses} STORED AS SCD TYPE 2")
    sql("WAIT FLOW history")
    assert rows(sql, "history") == [(1, 7, "noon", None, 3, 1, 2), (1, 7, "one", 9, 4, 2, None)]
    truncated = clauses.replace("IGNORE", "APPLY AS TRUNCATE WHEN run < 0 IGNORE")
    sql(f"CREATE STREAMING TABLE newest FLOW AUTO CDC {truncated}")
    sql("WAIT FLOW newest")
    assert rows(sql, "newest") == [(1, 7, "one", 9, 4)]
