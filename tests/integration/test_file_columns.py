"""Flows over files that get columns: `schema-evolution` = `add columns` with read_files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sqlext.errors import NewColumnsError, SchemaError
from sqlext.execution.delta.nested_fields import clauses, new_fields
from sqlext.execution.flows.file_columns import FileColumns
from sqlext.spark import files
from sqlext.spark.file_options import FORMATS
from sqlext.spark.file_schemas import Files, with_new_fields
from sqlext.testing import Moment, listened
from tests.integration.test_files import lines, query_of, refused
from tests.integration.workshop import DEADLINE, Workshop, Write
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("lean")

GROWS = "'schema-evolution' = 'add columns'"


def make(sql: Workshop, table: str, query: str, *more: str) -> None:
    sql(f"CREATE STREAMING TABLE {table} TBLPROPERTIES ({', '.join((GROWS, *more))}) AS {query}")


def failure(sql: Workshop, flow: str = "t") -> str:
    """Why a flow has failed for good; one whose files have new columns fails first, and is then started again."""

    def for_good() -> Any:
        row = sql.shown(flow)
        return row.status == "FAILED" and not row.error.endswith("do not name yet.") and row

    return str(eventually(for_good, DEADLINE, lambda: str(sql.shown(flow))).error)


def equals_batch(sql: Workshop, call: str, table: str = "t") -> None:
    """A table has the rows and columns of a batch read of all files."""
    batch = sql.spark.sql(f"SELECT * FROM {call}")
    assert {f.name: f.dataType for f in sql.spark.table(table).schema} == {f.name: f.dataType for f in batch.schema}
    columns = ", ".join(f"`{name}`" for name in batch.columns)
    assert sql.batch(f"SELECT {columns} FROM {table}") == sql.batch(f"SELECT {columns} FROM {call}")


def test_json_gets_columns_also_inside_of_structs_and_over_a_crash(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1, "s": {"a": 1}, "r": [{"a": 1}]}))
    call = f"read_files('{landing}', format => 'json')"
    make(sql, "t", f"SELECT * FROM STREAM {call}")
    sql("WAIT FLOW t")
    write("2.json", lines({"k": 2, "more": 2.5}, {"k": 3, "yet": [{"x": 1}], "more": 1}))
    sql("WAIT FLOW t")
    equals_batch(sql, call)
    write("3.json", lines({"k": 4, "s": {"a": 2, "b": "x"}, "r": [{"a": 2}, {"b": {"c": True}}], "at": "2026-01-01"}))
    sql("WAIT FLOW t")
    assert sql.spark.table("t").schema["s"].dataType.simpleString() == "struct<a:bigint,b:string>"
    equals_batch(sql, call)
    sql.crash()
    sql.resume()
    write("4.json", lines({"k": 5, "yet": [{"x": 2, "y": 2}], "more": 7.5}) + "no JSON\n")
    sql("WAIT FLOW t")
    equals_batch(sql, call)
    (answer,) = sql(f"CREATE OR REFRESH STREAMING TABLE t TBLPROPERTIES ({GROWS}) AS SELECT * FROM STREAM {call}")
    assert "keeps running" in answer[0]
    equals_batch(sql, call)
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    equals_batch(sql, call)


def test_csv_gets_columns_at_the_end_of_its_header(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.csv", "id,name\n1,one\n2,\n")
    call = f"read_files('{landing}', format => 'csv', header => true)"
    make(sql, "t", f"SELECT * FROM STREAM {call}")
    sql("WAIT FLOW t")
    write("2.csv", "id,name,amount,Day\n3,three,1,2026-01-01\n")
    write("3.csv", "ID,name,amount\n4,four,2.5\n5,five,\n")
    sql("WAIT FLOW t")
    write("4.csv", "id,name\n6,six\n")
    sql("WAIT FLOW t")
    kinds = {field.name: field.dataType.simpleString() for field in sql.spark.table("t").schema}
    assert kinds == {"id": "int", "name": "string", "amount": "double", "Day": "date"}
    typed = f"read_files('{landing}/*', format => 'csv', header => true, enforceSchema => true, schema => "
    every = f"{typed}'id INT, name STRING, amount DOUBLE, Day DATE')"
    expected = sql.batch(f"SELECT * FROM {every}")
    assert len(expected) == 6
    assert sql.batch("SELECT id, name, amount, Day FROM t") == expected
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert {field.name: field.dataType.simpleString() for field in sql.spark.table("t").schema} == kinds
    assert sql.batch("SELECT id, name, amount, Day FROM t") == expected

    write("5.csv", "id,new,name\n7,x,seven\n")
    said = failure(sql)
    assert "the header of " in said
    assert "5.csv is `id,new,name`, and the columns are `id,name,amount,Day`. New columns of CSV come after all" in said
    assert sql.batch("SELECT id, name, amount, Day FROM t") == expected


def test_csv_has_types_of_its_own_columns_beside_those_of_folders(sql: Workshop, landing: Path, write: Write) -> None:
    """A shorter header has those of folders where a longer one has others; a column of several kinds is text."""
    write("p=1/1.csv", "id,name\n1,one\n")
    write("p=2/2.csv", "id,name,at,v\n2,two,2026-01-02,5\n")
    write("p=3/3.csv", "id,name,at,v,w\n3,three,2026-01-03,2026-01-04,1\n")
    write("p=4/4.csv", "id,name,at,v,w,u\n4,four,2026-01-05,6,2,2026-01-07\n")
    make(sql, "t", f"SELECT * FROM STREAM read_files('{landing}', format => 'csv', header => true)")
    sql("WAIT FLOW t")
    kinds = {"id": "int", "name": "string", "at": "date", "v": "string", "w": "int", "u": "date", "p": "int"}
    assert {field.name: field.dataType.simpleString() for field in sql.spark.table("t").schema} == kinds
    assert sql.batch("SELECT id, p, CAST(at AS STRING), v, w, CAST(u AS STRING) FROM t") == [
        (1, 1, None, None, None, None),
        (2, 2, "2026-01-02", "5", None, None),
        (3, 3, "2026-01-03", "2026-01-04", 1, None),
        (4, 4, "2026-01-05", "6", 2, "2026-01-07"),
    ]


def test_parquet_gets_columns_and_a_type_that_does_not_fit_is_an_error_as_before(sql: Workshop, landing: Path) -> None:
    spark = sql.spark

    def save(number: int, *columns: str) -> None:
        spark.range(number, number + 1).selectExpr(*columns).coalesce(1).write.parquet(f"{landing}/{number}")

    save(1, "id", "named_struct('a', 1) AS s")
    call = f"read_files('{landing}/*', format => 'parquet')"
    make(sql, "t", f"SELECT *, id + 1 AS next FROM STREAM {call}", "'execution.flush.max-interval' = '10 minutes'")
    sql("WAIT FLOW t")
    save(2, "id", "'x' AS more", "named_struct('b', 2, 'a', 3) AS S")
    sql("WAIT FLOW t")
    expected = "SELECT id, more, s, id + 1 AS next FROM"
    assert sql.batch("SELECT id, more, s, next FROM t") == sql.batch(f"{expected} {call}")
    assert spark.table("t").columns == ["id", "s", "next", "more"]
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT id, more, s, next FROM t") == sql.batch(f"{expected} {call}")
    before = sql.batch("SELECT id, more, s, next FROM t")
    save(3, "'three' AS id", "true AS yet")
    assert "id" in failure(sql)
    assert sql.batch("SELECT id, more, s, next FROM t") == before


def test_avro_xml_and_orc_get_columns(sql: Workshop, landing: Path, write: Write) -> None:
    for kind in ("avro", "orc"):
        frame = sql.spark.range(1)
        frame.selectExpr("id").coalesce(1).write.format(kind).save(f"{landing}/{kind}/1")
    write("xml/1.xml", "<rows><row><k>1</k><s><a>1</a></s></row></rows>")
    rows = f"read_files('{landing}/xml', format => 'xml', rowTag => 'row')"
    calls = {kind: f"read_files('{landing}/{kind}/*', format => '{kind}')" for kind in ("avro", "orc")} | {"xml": rows}
    for kind, call in calls.items():
        make(sql, kind, f"SELECT * FROM STREAM {call}")
    for kind in calls:
        sql(f"WAIT FLOW {kind}")
    for kind in ("avro", "orc"):
        for number, columns in enumerate((["id + 1 AS id", "'x' AS more"], ["id + 2 AS id", "true AS yet"]), 2):
            sql.spark.range(1).selectExpr(*columns).coalesce(1).write.format(kind).save(f"{landing}/{kind}/{number}")
    write("xml/2.xml", "<rows><row n='7'><k>2</k><s><a>2</a><b>x</b></s></row><row><k>3</k><more>2.5</more></row></rows>")
    for kind in calls:
        sql(f"WAIT FLOW {kind}")
    equals_batch(sql, calls["xml"], "xml")
    equals_batch(sql, calls["orc"], "orc")
    assert sql.batch("SELECT id, more, yet FROM avro") == [(0, None, None), (1, "x", None), (2, None, True)]
    sql("REFRESH STREAMING TABLE avro FULL")
    sql("WAIT FLOW avro")
    assert sql.batch("SELECT id, more, yet FROM avro") == [(0, None, None), (1, "x", None), (2, None, True)]


def test_what_a_rescued_column_has_then(sql: Workshop, landing: Path, write: Write) -> None:
    """New fields are columns; what does not fit the type of a column, and names in other cases, are rescued as before."""
    write("1.json", lines({"k": 1}))
    call = f"STREAM read_files('{landing}', format => 'json', rescuedDataColumn => 'rest')"
    make(sql, "t", f"SELECT * FROM {call}")
    sql("WAIT FLOW t")
    write("2.json", lines({"k": 2, "more": "x", "More": "y"}, {"k": "two", "more": "z"}, {"K": 3}) + "none\n")
    sql("WAIT FLOW t")
    found = [(row.k, row.More, row.rest and json.loads(row.rest)) for row in sql("SELECT * FROM t")]
    expected = [
        (1, None, None),
        (2, "y", {"more": "x"}),
        (None, None, {"k": "two", "more": "z"}),
        (None, None, {"K": 3}),
        (None, None, {"_corrupt_record": "none"}),
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    write("3.json", lines({"rest": 1}))
    assert "`rescuedDataColumn` is `rest`, and files of" in failure(sql)


def test_fields_that_cannot_be_columns_are_errors_that_name_them(sql: Workshop, landing: Path, write: Write) -> None:
    """Nothing of the micro-batch is in the table; START FLOW goes on when the files are right."""
    cases = {
        "case": ({"k": 2, "s": {"A": 2}}, "have the field `s.A`, which differs from `s.a` by case only"),
        "name": ({"k": 2, "a b": 2}, "The column `a b` cannot be stored under that name."),
        "taken": ({"k": 2, "Next": 2}, "with which the query has two columns `next`. Name the query's columns."),
    }
    for name in cases:
        write(f"{name}/1.json", lines({"k": 1, "s": {"a": 1}}))
        make(sql, f"of_{name}", f"SELECT *, k + 1 AS next FROM STREAM read_files('{landing}/{name}', format => 'json')")
    for name in cases:
        sql(f"WAIT FLOW of_{name}")
    bad = {name: write(f"{name}/2.json", lines(row)) for name, (row, _) in cases.items()}
    for name, (_, said) in cases.items():
        assert said in failure(sql, f"of_{name}")
        assert sql.batch(f"SELECT k, next FROM of_{name}") == [(1, 2)]
        bad[name].unlink()
        write(f"{name}/2.json", lines({"k": 3}))
        sql(f"START FLOW of_{name}")
        sql(f"WAIT FLOW of_{name}")
        assert sql.batch(f"SELECT k, next FROM of_{name}") == [(1, 2), (3, 4)]


def test_a_type_that_changes_is_not_widened(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}))
    make(sql, "t", f"SELECT * FROM STREAM read_files('{landing}', format => 'json')")
    sql("WAIT FLOW t")
    write("2.json", lines({"k": 2.5, "more": 1}, {"k": "x"}))
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, more FROM t") == [(1, None), (None, 1), (None, None)]  # as Spark reads with a schema
    assert sql.spark.table("t").schema.simpleString() == "struct<k:bigint,more:bigint>"


def test_several_calls_and_folders(sql: Workshop, landing: Path, write: Write) -> None:
    """Both sides of UNION ALL get the column of one; folders that name a column of their own are new columns, too."""
    for side in "ab":
        write(f"{side}/day=1/1.json", lines({"k": side}))
    one, other = (f"read_files('{landing}/{side}', format => 'json')" for side in "ab")
    make(sql, "t", f"SELECT * FROM STREAM {one} UNION ALL SELECT * FROM STREAM {other}")
    sql("WAIT FLOW t")
    write("b/day=2/2.json", lines({"k": "c", "more": {"x": 1}}))
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, day, more FROM t") == [("a", 1, None), ("b", 1, None), ("c", 2, (1,))]
    write("a/day=3/2.json", lines({"k": "d", "more": {"x": 2, "y": 3}}))
    sql("WAIT FLOW t")
    write("b/day=4/3.json", lines({"k": "e", "more": {"x": 4, "y": 5}}))
    sql("WAIT FLOW t")
    batch = "SELECT k, day, more.x, more.y FROM"
    assert sql.batch(f"{batch} t") == sorted([*sql.batch(f"{batch} {one}"), *sql.batch(f"{batch} {other}")], key=repr)


def test_calls_that_get_columns_in_one_micro_batch_get_those_of_all_in_one_order(
    sql: Workshop, landing: Path, write: Write
) -> None:
    """UNION ALL goes by position; a column of two kinds is of both, as where the columns are the first ones."""
    calls = {side: f"read_files('{landing}/{side}', format => 'json')" for side in "abc"}
    for side in calls:
        write(f"{side}/1.json", lines({"k": side, "s": {"z": 0}}))
    make(sql, "t", " UNION ALL ".join(f"SELECT * FROM STREAM {call}" for call in calls.values()))
    sql("WAIT FLOW t")
    sql("STOP FLOW t")
    write("a/2.json", lines({"k": "a2", "x": 1}))
    write("b/2.json", lines({"k": "b2", "y": 2}))
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.spark.table("t").columns == ["k", "s", "x", "y"]
    first = [("a", None, None), ("a2", 1, None), ("b", None, None), ("b2", None, 2), ("c", None, None)]
    assert sql.batch("SELECT k, x, y FROM t") == first
    sql("STOP FLOW t")
    write("a/3.json", lines({"k": "a3", "s": {"d": 3}, "w": 4}))
    write("b/3.json", lines({"k": "b3", "s": {"c": 5}, "w": 6.5, "v": 7}))
    write("c/3.json", lines({"k": "c3", "x": 8}))
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, s.d, s.c, w, v, x FROM t WHERE length(k) = 2 AND k LIKE '%3'") == [
        ("a3", 3, None, 4.0, None, None),
        ("b3", None, 5, 6.5, 7, None),
        ("c3", None, None, None, None, 8),
    ]


def test_of_calls_that_get_columns_in_one_micro_batch_csv_has_its_own_first(sql: Workshop, landing: Path, write: Write) -> None:
    """It is read by position: two with other columns are refused before anything is added."""
    write("j/1.json", lines({"k": 1}))
    write("a/1.csv", "k\n1\n")
    write("b/1.csv", "k\n1\n")
    named = f"STREAM read_files('{landing}/j', format => 'json')"
    csv, other = (f"STREAM read_files('{landing}/{side}', format => 'csv', header => true)" for side in "ab")
    make(sql, "united", f"SELECT * FROM {named} UNION ALL SELECT * FROM {csv}")
    make(sql, "of_csv", f"SELECT * FROM {csv} UNION ALL SELECT * FROM {other}")
    for flow in ("united", "of_csv"):
        sql(f"WAIT FLOW {flow}")
        sql(f"STOP FLOW {flow}")
    write("j/2.json", lines({"k": 2, "x": 3}))
    write("a/2.csv", "k,y\n2,4\n")
    late = write("b/2.csv", "k,z\n2,5\n")
    for flow in ("united", "of_csv"):
        sql(f"START FLOW {flow}")
    sql("WAIT FLOW united")
    assert sql.spark.table("united").columns == ["k", "y", "x"]
    assert sql.batch("SELECT k, x, y FROM united") == [(1, None, None), (1, None, None), (2, 3, None), (2, None, 4)]
    assert "but CSV is read by position, and files of " in failure(sql, "of_csv")
    assert sql.spark.table("of_csv").columns == ["k"]
    late.unlink()
    write("b/2.csv", "k,y\n2,5\n")
    sql("START FLOW of_csv")
    sql("WAIT FLOW of_csv")
    assert sql.batch("SELECT k, y FROM of_csv") == [(1, None), (1, None), (2, 4), (2, 5)]


def test_a_column_that_quarantine_tables_have_beside_the_rows_is_refused(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}))
    constraint = "CONSTRAINT c EXPECT (k > 0) ON VIOLATION QUARANTINE INTO bad"
    call = f"read_files('{landing}', format => 'json')"
    sql(f"CREATE STREAMING TABLE t ({constraint}) TBLPROPERTIES ({GROWS}) AS SELECT * FROM STREAM {call}")
    sql("WAIT FLOW t")
    bad = write("2.json", lines({"k": -2, "_Flow": "of the row"}))
    assert "The column `_Flow` has the name of a column that quarantine tables have beside the row's." in failure(sql)
    assert sql.spark.table("t").columns == ["k"]
    bad.unlink()
    write("2.json", lines({"k": -3}))
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k, _flow IS NOT NULL FROM bad") == [(-3, True)]


def test_what_cannot_get_columns_is_refused_at_its_place(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}))
    write("c/1.csv", "k\n1\n")
    cases = {
        "'{}', format => 'json', schema => 'k INT'": "the columns are given by `schema`, so `schema-evolution` = `add",
        "'{}', format => 'json', singleVariantColumn => 'v'": "the columns are given by `singleVariantColumn`",
        "'{}/c', format => 'csv'": "finds new columns by name, and CSV has names in a header. Give header => true",
        "'{}/c', format => 'csv', header => true, enforceSchema => true": "with `enforceSchema` = `true` columns are read by pos",
        "'{}/c', format => 'csv', header => true, mode => 'failfast'": "which `mode` = `failfast` does not take",
    }
    for number, (arguments, said) in enumerate(cases.items()):
        query = f"SELECT *\nFROM STREAM read_files({arguments.format(landing)})"
        refusal = refused(sql, f"CREATE STREAMING TABLE t TBLPROPERTIES ({GROWS}) AS {query}")
        assert said in refusal
        assert "(line 2, column 13)" in refusal
        if number:
            continue
        sql(f"CREATE STREAMING TABLE t AS {query}")
        assert said in refused(sql, f"ALTER FLOW t SET ({GROWS})")
        sql("WAIT FLOW t")
        assert sql.shown("t").status == "RUNNING"
        sql("DROP TABLE t")


def test_where_columns_are_named_or_the_rows_are_an_aggregate_nothing_is_looked_at(
    sql: Workshop, landing: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = files.columns_with_new

    def noted(spark: SparkSession, call: Files, paths: Sequence[str]) -> StructType:
        looks.append(call.path)
        return look(spark, call, paths)

    monkeypatch.setattr(files, "columns_with_new", noted)
    write("1.json", lines({"k": 1}))
    write("text/1.txt", "one\n")
    call = f"STREAM read_files('{landing}', format => 'json')"
    make(sql, "named", f"SELECT k FROM {call}")
    make(sql, "aggregate", f"SELECT k, count(*) AS n FROM {call} GROUP BY k")
    make(sql, "texts", f"SELECT * FROM STREAM read_files('{landing}/text', format => 'text')")
    sql(f"CREATE STREAMING TABLE off AS SELECT * FROM {call}")
    write("2.json", lines({"k": 2, "more": 1}))
    for flow in ("named", "aggregate", "texts", "off"):
        sql(f"WAIT FLOW {flow}")
    assert sql.batch("SELECT * FROM named") == sql.batch("SELECT * FROM off") == [(1,), (2,)]
    assert sql.batch("SELECT * FROM aggregate") == [(1, 1), (2, 1)]
    assert sql.batch("SELECT * FROM texts") == [("one",)]
    assert looks == []
    sql(f"ALTER FLOW off SET ({GROWS})")
    write("3.json", lines({"k": 3, "more": 2}))
    sql("WAIT FLOW off")
    assert sql.batch("SELECT k, more FROM off") == [(1, None), (2, None), (3, 2)]
    assert set(looks) == {str(landing)}


@pytest.mark.parametrize("moment", [Moment.BATCH_BEGUN, Moment.BATCH_BUFFERED, Moment.FLUSH_BEGUN, Moment.FLUSH_COMMITTED])
def test_nothing_is_lost_by_a_crash_between_the_new_column_and_its_rows(
    sql: Workshop, landing: Path, write: Write, moment: Moment
) -> None:
    write("1.json", lines({"k": 1}))
    call = f"read_files('{landing}', format => 'json')"
    make(sql, "t", f"SELECT * FROM STREAM {call}", "'execution.flush.max-interval' = '1 second'")
    sql("WAIT FLOW t")
    reached: list[str] = []

    def die(now: Moment, _: str) -> None:
        if now is moment and "more" in sql.spark.table("t").columns:
            reached.append(now)
            raise RuntimeError("the process dies here")

    with listened(die):
        write("2.json", lines({"k": 2, "more": "x"}, {"k": 3, "more": None}))
        eventually(lambda: reached, DEADLINE)
        sql.crash()
    write("3.json", lines({"k": 4, "yet": 1}))
    sql.resume()
    sql("START FLOW t")
    sql("WAIT FLOW t")
    equals_batch(sql, call)


def test_a_crash_before_the_column_is_added(sql: Workshop, landing: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look has found it, and nothing more has happened; or it is on record, and the table has it not."""
    write("1.json", lines({"k": 1}))
    call = f"read_files('{landing}', format => 'json')"
    make(sql, "t", f"SELECT * FROM STREAM {call}")
    sql("WAIT FLOW t")
    found: list[object] = []
    new = FileColumns._new

    def frozen(self: FileColumns, grown: Mapping[str, StructType]) -> NewColumnsError:
        found.append(sql.freeze())
        return new(self, grown)

    monkeypatch.setattr(FileColumns, "_new", frozen)
    write("2.json", lines({"k": 2, "more": "x"}))
    eventually(lambda: found, DEADLINE)
    monkeypatch.undo()
    sql.crash()
    assert sql.spark.table("t").columns == ["k"]
    sql.resume()
    sql("WAIT FLOW t")
    equals_batch(sql, call)
    assert "__sqlext_schema => 'k BIGINT,more STRING'" in query_of(sql)


def test_a_storage_fault_of_a_look_passes_and_a_file_that_goes_is_left_out(
    sql: Workshop, landing: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("1.json", lines({"k": 1}))
    call = f"read_files('{landing}', format => 'json')"
    make(sql, "t", f"SELECT * FROM STREAM {call}")
    sql("WAIT FLOW t")
    sums = landing / ".2.json.crc"
    sums.write_bytes(b"crc\0\0\0\x02\0\0\0\0\0")  # Hadoop's checksums, of other bytes: reading the file is an I/O error
    write("2.json", lines({"k": 2, "more": "x"}))
    eventually(lambda: sql.shown("t").status == "RETRYING", DEADLINE, lambda: str(sql.shown("t")))
    assert "cannot be searched for new columns, as json" in sql.shown("t").error
    sums.unlink()
    eventually(lambda: sql.shown("t").status == "RUNNING", DEADLINE, lambda: str(sql.shown("t")))
    sql("WAIT FLOW t")
    equals_batch(sql, call)

    look, lost = FileColumns._found, list[str]()

    def after_a_loss(self: FileColumns, call: Files, paths: Sequence[str]) -> StructType:
        for path in landing.glob("3.json"):
            path.unlink()
            lost.append(path.name)
        return look(self, call, paths)

    monkeypatch.setattr(FileColumns, "_found", after_a_loss)
    sql("STOP FLOW t")
    write("3.json", lines({"k": 3, "lost": 1}))
    write("4.json", lines({"k": 4, "yet": 1}))
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert lost == ["3.json"]
    assert sql.batch("SELECT k, more, yet FROM t") == [(1, None, None), (2, "x", None), (4, None, 1)]


def test_a_table_that_is_there_gets_columns(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}))
    call = f"read_files('{landing}', format => 'json')"
    sql("CREATE TABLE t (k BIGINT, more STRUCT<a: STRING>) USING delta")
    sql(f"CREATE FLOW f AS INSERT INTO t (k) SELECT * FROM STREAM {call}")
    sql("WAIT FLOW f")
    sql(f"ALTER FLOW f SET ({GROWS})")
    write("2.json", lines({"k": 2, "yet": [1, 2]}))
    sql("WAIT FLOW f")
    assert sql.batch("SELECT k, yet FROM t") == [(1, None), (2, [1, 2])]
    write("3.json", lines({"k": 3, "more": "x"}))
    assert "`more` of its table is STRUCT<a: STRING>, which does not take it" in failure(sql, "f")


# Columns that become more.

PLAIN = Files("/a", "json", None, None, "", {})


def columns_of(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("known", "found", "expected"),
    [
        ("k INT", "k STRING", "k INT"),
        ("k INT", "a INT, k INT, b INT", "k INT, a INT, b INT"),
        ("s STRUCT<b: INT>", "s STRUCT<a: INT, b: STRING>", "s STRUCT<b: INT, a: INT>"),
        ("r ARRAY<STRUCT<a: INT>>", "r ARRAY<STRUCT<b: INT>>", "r ARRAY<STRUCT<a: INT, b: INT>>"),
        (
            "m MAP<STRING, STRUCT<a: INT>>",
            "m STRUCT<x: STRUCT<a: INT>, y: STRUCT<b: INT>>",
            "m MAP<STRING, STRUCT<a: INT, b: INT>>",
        ),
        ("m MAP<STRING, STRUCT<a: INT>>", "m MAP<STRING, STRUCT<b: INT>>", "m MAP<STRING, STRUCT<a: INT, b: INT>>"),
        ("m MAP<STRING, INT>, v VARIANT", "m STRUCT<x: INT>, v STRUCT<x: INT>", "m MAP<STRING, INT>, v VARIANT"),
        ("s STRUCT<a: INT>", "s STRING", "s STRUCT<a: INT>"),
    ],
)
def test_fields_that_are_new_are_added_behind_those_that_are_known(
    spark: SparkSession, known: str, found: str, expected: str
) -> None:
    assert with_new_fields(PLAIN, columns_of(known), columns_of(found)) == columns_of(expected)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", FORMATS)
def test_names_that_differ_by_case_are_one_but_in_json(kind: str) -> None:
    known, found = columns_of("k INT, s STRUCT<a: INT>"), columns_of("K INT, S STRUCT<A: INT, b: INT>")
    if kind != "json":
        expected = columns_of("k INT, s STRUCT<a: INT, b: INT>")
        assert with_new_fields(replace(PLAIN, format=kind), known, found) == expected
        return
    with pytest.raises(SchemaError, match="have the field `K`, which differs from `k` by case only"):
        with_new_fields(PLAIN, known, found)
    inside = columns_of("k INT, s STRUCT<a: INT, A: INT>")
    with pytest.raises(SchemaError, match=r"have the field `s\.A`, which differs from `s\.a` by case only"):
        with_new_fields(PLAIN, known, inside)
    assert with_new_fields(replace(PLAIN, rescued="rest"), known, inside) == known


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("INT", "INT", []),
        ("INT", "BIGINT", None),
        ("STRUCT<a: INT>", "STRUCT<a: INT, `b c`: INT>", ["`t`.`b c` INT"]),
        ("STRUCT<a: INT>", "STRUCT<b: INT, a: INT>", None),
        ("STRUCT<a: INT, b: INT>", "STRUCT<a: INT>", None),
        ("STRUCT<a: INT>", "STRUCT<a: BIGINT, b: INT>", None),
        ("STRUCT<a: INT NOT NULL>", "STRUCT<A: INT, b: INT NOT NULL>", ["`t`.`b` INT"]),
        ("ARRAY<STRUCT<a: INT>>", "ARRAY<STRUCT<a: INT, b: INT>>", ["`t`.`element`.`b` INT"]),
        ("MAP<STRING, STRUCT<a: INT>>", "MAP<STRING, STRUCT<a: INT, b: INT>>", ["`t`.`value`.`b` INT"]),
        ("MAP<STRUCT<a: INT>, INT>", "MAP<STRUCT<a: INT, b: INT>, INT>", None),
        (
            "STRUCT<s: STRUCT<a: INT>, x: INT>",
            "STRUCT<s: STRUCT<a: INT, b: INT>, x: INT, y: ARRAY<INT>>",
            ["`t`.`s`.`b` INT", "`t`.`y` ARRAY<INT>"],
        ),
    ],
)
def test_a_type_is_another_one_unless_it_has_only_got_fields(
    spark: SparkSession, before: str, now: str, expected: list[str] | None
) -> None:
    was, is_now = (columns_of(f"c {kind}")["c"].dataType for kind in (before, now))
    found = new_fields(was, is_now, ("t",))
    assert (None if found is None else clauses(found)) == expected
