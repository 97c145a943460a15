"""Files from SQL: read as they are, streamed, their columns inferred once, and what does not fit them."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.spark.file_options import FORMATS
from sqlext.spark.java import java_of
from tests.integration.test_backlog import batches
from tests.integration.workshop import DEADLINE, Workshop, Write
from tests.support import eventually


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused(sql: Workshop, statement: str) -> str:
    with pytest.raises(PySparkException) as caught:
        sql(statement)
    return str(caught.value)


def query_of(sql: Workshop, name: str = "t") -> str:
    return str(next(row.value for row in sql(f"DESCRIBE FLOW {name}") if row.property == "query"))


# Read as they are.


def test_json_is_read_with_its_own_columns_or_those_given(sql: Workshop, landing: Path, write: Write) -> None:
    write("a.json", lines({"k": "a", "v": 1}, {"k": "b", "v": 2.5}))
    write("day/b.json", lines({"k": "c", "more": True}))
    write("_c.json", lines({"hidden": 1}))
    assert sql.batch(f"SELECT * FROM read_files('{landing}', format => 'json')") == [("a", 1.0), ("b", 2.5)]
    every = f"read_files(path => '{landing}', FORMAT => 'JSON', recursiveFileLookup => true"
    assert sql.batch(f"SELECT k, more, v FROM {every})") == [("a", None, 1.0), ("b", None, 2.5), ("c", True, None)]
    assert sql.batch(f"SELECT * FROM {every}, schema => 'v INT, k STRING')") == [(1, "a"), (None, "b"), (None, "c")]
    hinted = sql.spark.sql(f"SELECT * FROM {every}, schemaHints => 'V DECIMAL(5, 2), at DATE')")
    assert hinted.schema.simpleString() == "struct<k:string,more:boolean,v:decimal(5,2),at:date>"
    assert {row.v for row in hinted.collect()} == {Decimal("1.00"), Decimal("2.50"), None}


def test_csv_has_a_header_and_types(sql: Workshop, landing: Path, write: Write) -> None:
    write("a.csv", "id;name;at\n1;one;2024-05-01\n2;;\n")
    call = f"read_files('{landing}/*.csv', format => 'csv', header => 'true', sep => ';'"
    assert sql.batch(f"SELECT * FROM {call})") == [(1, "one", datetime.date(2024, 5, 1)), (2, None, None)]
    assert sql.batch(f"SELECT id FROM {call}, inferSchema => false)") == [("1",), ("2",)]


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_formats_with_a_schema_of_their_own(sql: Workshop, landing: Path, kind: str) -> None:
    sql.spark.range(3).selectExpr("id", "id % 2 AS part").write.partitionBy("part").format(kind).save(f"{landing}/x")
    assert sql.batch(f"SELECT id, part FROM read_files('{landing}/x', format => '{kind}')") == [(0, 0), (1, 1), (2, 0)]
    assert sql.batch(f"SELECT * FROM read_files('{landing}/x', format => '{kind}') WHERE part = 1") == [(1, 1)]


def test_texts_bytes_and_xml(sql: Workshop, landing: Path, write: Write) -> None:
    write("a.txt", "one\ntwo\n")
    write("b.xml", "<rows><row><k>1</k></row><row><k>2</k></row></rows>")
    assert sql.batch(f"SELECT * FROM read_files('{landing}/a.txt', format => 'text')") == [("one",), ("two",)]
    assert sql.batch(f"SELECT length, content FROM read_files('{landing}/a.txt', format => 'binaryFile')") == [(8, b"one\ntwo\n")]
    assert sql.batch(f"SELECT k FROM read_files('{landing}/b.xml', format => 'xml', rowTag => 'row')") == [(1,), (2,)]


def test_metadata_says_where_a_row_comes_from(sql: Workshop, landing: Path, write: Write) -> None:
    file = write("a b.json", lines({"k": 1}))
    for more in ("", ", rescuedDataColumn => 'rest'"):
        call = f"read_files('{landing}', format => 'json'{more}) AS f"
        ((name, size, changed),) = sql.batch(
            f"SELECT f._metadata.file_name, _metadata.file_size, f._metadata.file_modification_time FROM {call} WHERE f.k = 1"
        )
        assert (name, size) == ("a%20b.json", file.stat().st_size)
        assert abs(changed.timestamp() - file.stat().st_mtime) < 1


# What does not fit.

SCHEMA = "id INT, at DATE, s STRUCT<a: INT, b: ARRAY<STRUCT<c: INT>>>, m MAP<STRING, INT>, v VARIANT"
FITS = {"id": 1, "at": "2024-05-01", "s": {"a": 1, "b": [{"c": 1}, {}]}, "m": {"x": 1, "y": None}, "v": {"any": [1, "x"]}}
LEFT_OVER: list[tuple[object, object]] = [
    (FITS, None),
    ({}, None),
    ({"id": None, "s": None, "m": None, "v": None}, None),
    ({"id": 2, "more": {"a": [1.5, "x"]}}, {"more": {"a": [1.5, "x"]}}),
    ({"ID": 3}, {"ID": 3}),
    ({"id": "three"}, {"id": "three"}),
    ({"id": 3000000000}, {"id": 3000000000}),
    ({"id": 1, "at": "2024-05-32"}, {"at": "2024-05-32"}),
    ({"s": 5}, {"s": 5}),
    ({"s": {"a": 1, "b": [{"c": 1, "d": 2}]}}, {"s": {"a": 1, "b": [{"c": 1, "d": 2}]}}),
    ({"s": {"a": "x"}}, {"s": {"a": "x"}}),
    ({"s": {"b": [{"c": 1}, {"c": "x"}]}}, {"s": {"b": [{"c": 1}, {"c": "x"}]}}),
    ({"s": {"b": {}}}, {"s": {"b": {}}}),
    ({"m": {"x": "y"}}, {"m": {"x": "y"}}),
    ([1], {"_corrupt_record": "1"}),
    (5, {"_corrupt_record": "5"}),
]
"""Rows, and what the columns of `SCHEMA` do not hold of each."""


def test_the_rescued_column_has_what_the_columns_do_not_hold(sql: Workshop, landing: Path, write: Write) -> None:
    for number, (row, _) in enumerate(LEFT_OVER):
        write(f"{number:03}.json", "\n" + lines(row) + "  \n")
    call = f"read_files('{landing}', format => 'json', schema => '{SCHEMA}', rescuedDataColumn => '_rescued_data')"
    found = sql(f"SELECT _metadata.file_name AS file, _rescued_data AS rest FROM {call} ORDER BY file")
    assert [None if row.rest is None else json.loads(row.rest) for row in found] == [rest for _, rest in LEFT_OVER]
    (whole,) = sql(f"SELECT id, at, to_json(s) AS s, to_json(m) AS m, to_json(v) AS v FROM {call} WHERE s.a = 1 AND id = 1")
    assert (whole.id, whole.at) == (1, datetime.date(2024, 5, 1))
    assert [json.loads(each) for each in (whole.s, whole.m, whole.v)] == [FITS["s"], {"x": 1, "y": None}, FITS["v"]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"k": 1', [(None, {"_corrupt_record": '{"k": 1'})]),
        ('[{"k": 2}, {"k": 3, "x": "y"}]', [(2, None), (3, {"x": "y"})]),
        ('[{"k": 2}, {"k": "x"}]', [(2, None), (None, {"k": "x"})]),
        ("{'k': 4}", [(4, None)]),
        ('{"k": 5} {"k": 6}', [(5, {"_corrupt_record": '{"k": 5} {"k": 6}'})]),
        ('{"k": 5}, null', [(5, {"_corrupt_record": '{"k": 5}, null'})]),
        ('{"k": 5, "k": 6}', [(6, {"_corrupt_record": '{"k": 5, "k": 6}'})]),
        ("[]", []),
        ("null", [(None, {"_corrupt_record": "null"})]),
    ],
)
def test_lines_that_are_no_json_and_arrays_of_rows(
    sql: Workshop, landing: Path, write: Write, line: str, expected: list[Any]
) -> None:
    write("a.json", line + "\n")
    call = f"read_files('{landing}', format => 'json', schema => 'k INT', rescuedDataColumn => 'rest')"
    found = [(row.k, row.rest and json.loads(row.rest)) for row in sql(f"SELECT * FROM {call}")]
    assert found == expected


def test_a_field_deep_inside_is_rescued(sql: Workshop, landing: Path, write: Write) -> None:
    kind, row = "INT", 1
    for _ in range(8):
        kind, row = f"STRUCT<a: {kind}, b: ARRAY<INT>, c: INT>", {"a": row, "b": [1]}  # type: ignore[assignment]
    deep = json.loads(lines(row).replace('"a": 1', '"a": 1, "d": 2'))
    write("a.json", lines({"s": row}, {"s": deep}))
    call = f"read_files('{landing}', format => 'json', schema => 's {kind}', rescuedDataColumn => 'rest')"
    found = sql(f"SELECT s.a.a.a.a.a.a.a.a AS v, rest FROM {call} ORDER BY rest")
    assert [(each.v, each.rest and json.loads(each.rest)) for each in found] == [(1, None), (1, {"s": deep})]


def test_a_number_that_was_rounded_is_rescued(sql: Workshop, landing: Path, write: Write) -> None:
    write("a.json", '{"d": 1.239}\n{"d": 1.25}\n{"d": 7}\n{"d": null}\n{"d": 1e2}\n')
    call = f"read_files('{landing}', format => 'json', schema => 'd DECIMAL(10, 2)', rescuedDataColumn => 'rest')"
    found = sorted((str(each.d), each.rest and json.loads(each.rest)) for each in sql(f"SELECT * FROM {call}"))
    assert found == [("1.24", {"d": 1.239}), ("1.25", None), ("100.00", None), ("7.00", None), ("None", None)]


def test_a_document_a_file_may_have_several_lines(sql: Workshop, landing: Path, write: Write) -> None:
    write("a.json", '[{"k": 1,\n "x": 2},\n {"k": 2}]')
    call = f"read_files('{landing}', format => 'json', multiLine => true, schema => 'k INT', rescuedDataColumn => 'rest')"
    assert sql.batch(f"SELECT * FROM {call}") == [(1, '{"x":2}'), (2, None)]


def test_what_is_inferred_and_what_folders_say_is_beside_the_rescued_column(sql: Workshop, landing: Path, write: Write) -> None:
    write("day=01/a.json", lines({"k": 1}) + "oops\n")
    call = f"read_files('{landing}', format => 'json', rescuedDataColumn => 'rest'"
    assert sql.batch(f"SELECT * FROM {call})") == [(1, 1, None), (None, 1, '{"_corrupt_record":"oops"}')]
    given = sql.batch(f"SELECT * FROM {call}, schema => 'day STRING, k INT')")
    assert given == [("01", 1, None), ("01", None, '{"_corrupt_record":"oops"}')]


def test_of_csv_the_whole_line_is_rescued(sql: Workshop, landing: Path, write: Write) -> None:
    write("a.csv", "id,name\n1,one\nx,two\n3\n4,four,more\n")
    call = (
        f"read_files('{landing}', format => 'csv', header => true, schema => 'id INT, name STRING', rescuedDataColumn => 'rest')"
    )
    expected = [(1, "one", None), (3, None, "3"), (4, "four", "4,four,more"), (None, "two", "x,two")]
    assert sql.batch(f"SELECT * FROM {call}") == expected
    assert sql.batch(f"SELECT rest, id FROM {call} WHERE id > 2") == [("3", 3), ("4,four,more", 4)]


# Mistakes.

MISTAKES = [
    ("", "read_files needs `path` and `format`. Write read_files('/landing/orders', format => 'json')."),
    ("'{landing}'", "read_files needs `path` and `format`."),
    ("'', format => 'json'", "read_files: `path` is empty. Give a file, a folder or a glob"),
    ("NULL, format => 'json'", "read_files: `path` is NULL. Give a value"),
    ("uuid(), format => 'json'", "read_files: `path` is `uuid()`, which is not a constant."),
    ("'{landing}', 'json'", "read_files takes named arguments only. Write read_files('/landing/orders'"),
    ("'{landing}', format => 'jsn'", "read_files: `format` is `jsn`, which is no format of files. Did you mean `json`?"),
    ("'{landing}', format => 'json', multiline => true, multiLine => true", "read_files: `multiLine` is given twice."),
    ("'{landing}', format => 'json', scheme => 'k INT'", "read_files has no argument `scheme`. Did you mean `schema`?"),
    ("'{landing}', format => 'json', header => true", "read_files: `header` is an option of csv, and `format` is `json`."),
    ("'{landing}', format => 'json', schema => 'k INTT'", "read_files: `schema` is `k INTT`, which is no list of columns."),
    ("'{landing}', format => 'json', schema => 'k INT, K INT'", "read_files: `schema` has two columns `k`. Name each once."),
    ("'{landing}', format => 'json', schemaHints => 'k'", "read_files: `schemaHints` is `k`, which is no list of columns."),
    ("'{landing}/none', format => 'json'", "/none`, and there is no such file or folder."),
    ("'{landing}/none*', format => 'json'", "/none*`, and no file or folder is like that."),
    ("'none://x', format => 'json'", "read_files: `path` is `none://x`, which cannot be looked at: "),
    ("'{landing}/empty', format => 'csv'", "/empty` from which columns could be taken. Give them as `schema`"),
    ("'{landing}/empty', format => 'json'", "read_files: there is no json file under `"),
    (
        "'{landing}', format => 'parquet', rescuedDataColumn => 'x'",
        "`rescuedDataColumn` is for json and csv, and `format` is `parq",
    ),
    (
        "'{landing}', format => 'json', mode => 'failfast', rescuedDataColumn => 'x'",
        "with `mode` = `failfast` nothing is left to",
    ),
    (
        "'{landing}', format => 'json', encoding => 'x', rescuedDataColumn => 'x'",
        "`encoding` cannot be given with `rescuedDataCo",
    ),
    ("'{landing}', format => 'json', schema => 'k INT', rescuedDataColumn => 'K'", "and `schema` has a column of that name."),
    ("'{landing}', format => 'parquet'", "cannot be read as parquet: "),
]


@pytest.mark.parametrize(("arguments", "said"), MISTAKES)
def test_a_mistake_is_told_at_its_place(sql: Workshop, landing: Path, write: Write, arguments: str, said: str) -> None:
    write("a.json", lines({"k": 1}))
    (landing / "empty").mkdir()
    call = f"read_files({arguments.format(landing=landing)})"
    of_batch = refused(sql, f"SELECT *\nFROM {call}")
    assert said in of_batch
    assert "(line 2, column 6)" in of_batch
    of_flow = refused(sql, f"CREATE STREAMING TABLE t AS SELECT *\nFROM STREAM {call} AS f")
    if "*`, and no file" not in said:  # a stream with a glob waits for files, if it knows their columns
        assert said in of_flow
    assert "(line 2, column 13)" in of_flow
    assert sql("SHOW FLOWS") == []
    assert not sql.spark.catalog.tableExists("t")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'relative'", "which depends on where a process runs. Give a stream an absolute path"),
        ("'{landing}', maxFilesPerTrigger => 'x'", "read_files: Spark does not take `maxFilesPerTrigger` = `x`: "),
        ("'{landing}', cleanSource => 'archive'", "Archive mode must be used with 'sourceArchiveDir' option."),
        ("'{landing}', modifiedAfter => '2024-01-01T00:00:00'", "Spark has no `modifiedAfter` for streams of files."),
    ],
)
def test_what_a_stream_does_not_take(sql: Workshop, landing: Path, arguments: str, said: str) -> None:
    call = f"read_files({arguments.format(landing=landing)}, format => 'json', schema => 'k INT')"
    assert said in refused(sql, f"CREATE STREAMING TABLE t AS SELECT * FROM STREAM {call}")
    assert sql("SHOW FLOWS") == []


def test_an_option_of_the_source_is_an_argument(sql: Workshop) -> None:
    said = refused(sql, "INSERT INTO t SELECT * FROM STREAM read_files('/x', format => 'text') WITH ('maxFilesPerTrigger' = '1')")
    assert "Give it to read_files as an argument: maxFilesPerTrigger => .." in said


def test_files_with_schemas_that_do_not_fit_together(sql: Workshop, landing: Path, write: Write) -> None:
    frame = sql.spark.range(1)
    frame.selectExpr("id AS k").write.parquet(f"{landing}/p/1")
    frame.selectExpr("'x' AS k").write.parquet(f"{landing}/p/2")
    said = refused(sql, f"CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('{landing}/p/*', format => 'parquet')")
    assert "cannot be read as parquet: " in said
    assert "merge" in said
    write("c/a.csv", "id,name\n1,one\n")
    write("c/b.csv", "name,id\ntwo,2\n")
    call = f"read_files('{landing}/c', format => 'csv', header => true"
    said = refused(sql, f"CREATE STREAMING TABLE t AS SELECT * FROM STREAM {call})")
    assert "cannot be read as csv: " in said
    assert "CSV header does not conform to the schema" in said
    assert (sql("SHOW FLOWS"), sql.spark.catalog.tableExists("t")) == ([], False)
    assert len(sql.batch(f"SELECT * FROM {call}, enforceSchema => true)")) == 2


# Streamed.


def test_a_flow_keeps_the_columns_that_it_has_inferred(sql: Workshop, landing: Path, write: Write) -> None:
    first = write("1.json", lines({"k": "a", "v": 1}))
    statement = (
        f"STREAMING TABLE t AS SELECT *, f._metadata.file_name AS file FROM STREAM read_files('{landing}', format => 'json') f"
    )
    sql(f"CREATE {statement}")
    sql("WAIT FLOW t")
    assert "__sqlext_schema => 'k STRING,v BIGINT'" in query_of(sql)
    first.unlink()
    write("2.json", lines({"k": {"x": 1}, "v": 2.5, "more": 1}))
    sql.crash()
    sql.resume()
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("a", 1, "1.json"), ('{"x": 1}', None, "2.json")]
    (answer,) = sql(f"CREATE OR REFRESH {statement}")
    assert "keeps running" in answer[0]
    (answer,) = sql(f"CREATE OR REFRESH {statement.replace('STREAM read', '/* the files */ STREAM read')}")
    assert "keeps running" in answer[0]
    assert "__sqlext_schema => 'k STRING,v BIGINT'" in query_of(sql)
    sql("REFRESH STREAMING TABLE t FULL")
    sql("WAIT FLOW t")
    assert "__sqlext_schema => 'k STRUCT<x: BIGINT>,more BIGINT,v DOUBLE'" in query_of(sql)
    assert sql.batch("SELECT k.x, more, v FROM t") == [(1, 1, 2.5)]


def test_an_aggregate_a_join_and_a_prerequisite_over_files(sql: Workshop, landing: Path, write: Write) -> None:
    write("facts/1.json", lines({"k": 1, "v": 1}, {"k": 2, "v": 2}))
    write("names.csv", "k,name\n1,one\n2,two\n")
    facts = f"read_files('{landing}/facts', format => 'json')"
    names = f"read_files('{landing}/names.csv', format => 'csv', header => true)"
    sql(
        "CREATE STREAMING TABLE t AS SELECT n.name, count(*) AS n, sum(f.v) AS total, max(a.v) AS most "
        f"FROM STREAM {facts} AS f JOIN {names} AS n ON f.k = n.k JOIN (SELECT k, max(v) AS v FROM STREAM {facts} GROUP BY k "
        "GLOBAL WINDOW END OF STREAM) AS a ON a.k = f.k GROUP BY n.name"
    )
    sql("WAIT FLOW t")
    write("facts/2.json", lines({"k": 1, "v": 10}))
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [("one", 2, 11, 1), ("two", 1, 2, 2)]


def test_a_flow_rescues(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}, {"k": "x", "more": 1}))
    sql(
        "CREATE STREAMING TABLE t AS SELECT *, _metadata.file_name AS file "
        f"FROM STREAM read_files('{landing}', format => 'json', schema => 'k INT', rescuedDataColumn => '_rescued_data')"
    )
    write("2.json", "nothing\n")
    sql("WAIT FLOW t")
    rescued = json.dumps({"_corrupt_record": "nothing"}, separators=(",", ":"))
    expected = [(1, None, "1.json"), (None, '{"k":"x","more":1}', "1.json"), (None, rescued, "2.json")]
    assert sorted(sql.batch("SELECT * FROM t"), key=repr) == sorted(expected, key=repr)


def test_options_of_the_source_work(sql: Workshop, landing: Path, write: Write) -> None:
    for number in range(4):
        write(f"{number}.json", lines({"k": number}))
    archive = landing.parent / "archive"
    sql(
        f"CREATE STREAMING TABLE t AS SELECT k FROM STREAM read_files('{landing}/*.json', format => 'json', "
        f"schema => 'k INT', maxFilesPerTrigger => 1, cleanSource => 'archive', sourceArchiveDir => '{archive}')"
    )
    sql("WAIT FLOW t")
    assert batches(sql) == 4
    assert sql.batch("SELECT k FROM t") == [(0,), (1,), (2,), (3,)]
    for number in range(4, 6):  # a file is cleaned up when a later micro-batch has committed
        write(f"{number}.json", lines({"k": number}))
    sql("WAIT FLOW t")
    eventually(lambda: len([*archive.rglob("*.json")]) >= 4, DEADLINE)


def test_a_glob_waits_for_its_first_file(sql: Workshop, landing: Path, write: Write) -> None:
    sql(f"CREATE STREAMING TABLE t AS SELECT k FROM STREAM read_files('{landing}/*/x', format => 'json', schema => 'k INT')")
    write("a/x/1.json", lines({"k": 1}))
    sql("WAIT FLOW t")
    write("b/x/1.json", lines({"k": 2}))
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k FROM t") == [(1,), (2,)]


def test_a_file_that_changes_after_it_was_read_is_not_read_again(sql: Workshop, landing: Path, write: Write) -> None:
    file = write("1.json", lines({"k": 1}))
    sql(f"CREATE STREAMING TABLE t AS SELECT k FROM STREAM read_files('{landing}', format => 'json', schema => 'k INT')")
    sql("WAIT FLOW t")
    file.write_text(lines({"k": 1}, {"k": 2}))
    write("2.json", lines({"k": 3}))
    sql("WAIT FLOW t")
    assert sql.batch("SELECT k FROM t") == [(1,), (3,)]


def test_an_unreadable_file_fails_the_flow_and_writes_nothing(sql: Workshop, landing: Path, write: Write) -> None:
    sql.spark.range(1).coalesce(1).write.parquet(f"{landing}/good")
    sql(f"CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_files('{landing}/*', format => 'parquet')")
    sql("WAIT FLOW t")
    bad = write("bad/x.parquet", "this is none")
    eventually(lambda: sql.shown("t").status == "FAILED", DEADLINE)
    assert "x.parquet" in sql.shown("t").error
    assert sql.batch("SELECT * FROM t") == [(0,)]
    bad.unlink()
    sql.spark.range(7, 8).coalesce(1).write.mode("overwrite").parquet(f"{landing}/bad")
    next((landing / "bad").glob("*.parquet")).rename(bad)
    sql("START FLOW t")
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(0,), (7,)]


def test_a_query_with_end_of_stream_reads_what_is_there(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}, {"k": 1}))
    call = f"STREAM read_files('{landing}', format => 'json', maxFilesPerTrigger => 1, rescuedDataColumn => 'rest')"
    query = f"SELECT k, count(*) AS n FROM {call} GROUP BY k GLOBAL WINDOW END OF STREAM"
    assert sql.batch(query) == [(1, 2)]
    sql(f"CREATE TABLE t USING delta AS {query}")
    assert sql.batch("SELECT * FROM t") == [(1, 2)]


def test_secrets_among_the_arguments_are_not_shown(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}))
    call = f"read_files('{landing}', format => 'json', `fs.s3a.secret.key` => 'hunter2')"
    sql(f"CREATE STREAMING TABLE t AS SELECT k FROM STREAM {call}")
    shown: list[Any] = [
        *sql("DESCRIBE FLOW t"),
        *sql("SHOW FLOWS"),
        *sql(f"EXPLAIN CREATE STREAMING TABLE u AS SELECT k FROM STREAM {call}"),
    ]
    assert "hunter2" not in str(shown)
    assert "fs.s3a.secret.key" in str(shown)


def test_a_flow_into_a_table_that_is_there_and_a_hybrid_source(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1, "v": "one"}))
    call = f"STREAM read_files('{landing}', format => 'json')"
    sql("CREATE TABLE t (k BIGINT, v STRING) USING delta")
    sql(f"INSERT INTO t SELECT k, v FROM {call}")
    sql("WAIT FLOW t")
    sql("CREATE TABLE history USING delta AS SELECT CAST(0 AS BIGINT) AS k, 'none' AS v")
    sql(f"CREATE STREAMING TABLE u AS SELECT h.k, h.v FROM STREAM hybrid(TABLE history, {call}) AS h")
    write("2.json", lines({"k": 2, "w": 2}))
    sql("WAIT FLOW t")
    sql("WAIT FLOW u")
    assert sql.batch("SELECT * FROM t") == [(1, "one"), (2, None)]
    assert sql.batch("SELECT * FROM u") == [(0, "none"), (1, "one"), (2, None)]


def test_views_read_files_as_they_are(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"k": 1}))
    sql(f"CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS n FROM read_files('{landing}', format => 'json') GROUP BY k")
    sql(f"CREATE VIEW w AS SELECT * FROM read_files('{landing}', format => 'json')")
    write("2.json", lines({"k": 1}))
    sql("REFRESH MATERIALIZED VIEW v")
    assert (sql.batch("SELECT k, n FROM v"), sql.batch("SELECT * FROM w")) == ([(1, 2)], [(1,), (1,)])


def test_the_options_are_those_that_spark_has(spark: SparkSession) -> None:
    of_spark = java_of(spark).org.apache.spark.sql.catalyst
    readers = {"json": of_spark.json.JSONOptions, "csv": of_spark.csv.CSVOptions, "xml": of_spark.xml.XmlOptions}
    for name, options in readers.items():
        assert [each for each in FORMATS[name] if not options.isValidOption(each)] == []


def test_changes_that_come_as_files(sql: Workshop, landing: Path, write: Write) -> None:
    write("1.json", lines({"op": "I", "lsn": 1, "id": 1, "name": "Ann"}, {"op": "I", "lsn": 2, "id": 2, "name": "Bo"}))
    clauses = "KEYS (id) APPLY AS DELETE WHEN op = 'D' SEQUENCE BY lsn COLUMNS * EXCEPT (op, lsn)"
    call = f"STREAM read_files('{landing}', format => 'json')"
    statement = f"STREAMING TABLE t FLOW AUTO CDC FROM {call} {clauses}"
    sql(f"CREATE {statement}")
    sql("WAIT FLOW t")
    write("2.json", lines({"op": "D", "lsn": 4, "id": 2}, {"op": "U", "lsn": 3, "id": 1, "name": "Anna", "city": "Rome"}))
    sql.crash()
    sql.resume()
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == [(1, "Anna")]
    assert "keeps running" in sql(f"CREATE OR REFRESH {statement}")[0][0]
    said = refused(
        sql, "CREATE STREAMING TABLE u FLOW AUTO CDC\nFROM STREAM read_files('/none', format => 'json') KEYS (id) SEQUENCE BY n"
    )
    assert "there is no such file or folder. (line 2, column 13)" in said
