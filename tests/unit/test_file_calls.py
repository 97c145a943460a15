"""Calls of `read_files` in a text, and the columns that a flow keeps of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sqlext.app.script_run import ScriptFile
from sqlext.cli import _connectors
from sqlext.errors import SchemaError, SetupError
from sqlext.planner.planner import plan_flow
from sqlext.quoting import quote_string
from sqlext.rules import BATCHES
from sqlext.spark import files
from sqlext.spark.file_options import FORMATS, argument_named, format_named
from sqlext.spark.file_schemas import Files
from sqlext.sql import grammar
from sqlext.sql.file_calls import calls_in, growing, kept_in, names_avro, with_columns, with_kept
from sqlext.sql.statements import CreateStreamingTable

DDL = "id BIGINT COMMENT 'it\\'s', `a b` STRUCT<c: INT>"


def kept(text: str) -> str:
    return with_columns(text, lambda _: quote_string(DDL))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("SELECT * FROM read_files('/a', format => 'json')", ["'/a', format => 'json'"]),
        ("SELECT * FROM Read_Files ( path=>'/a)' )", ["path=>'/a)'"]),
        ("SELECT 'read_files(x)' AS read_files FROM t -- read_files('/a')", []),
        ("SELECT * FROM __sqlext_stream_read_files(concat('/a', '/b')) JOIN read_files('/c')", ["concat('/a', '/b')", "'/c'"]),
        ("SELECT * FROM read_files('/a'", []),
        ("SELECT * FROM read_files()", [""]),
    ],
)
def test_calls_are_found(text: str, arguments: list[str]) -> None:
    found = calls_in(text)
    assert [call.arguments.strip() for call in found] == arguments
    assert all(text[call.start : call.stop].lower().endswith(")") for call in found)


def test_columns_are_put_behind_the_last_argument_and_found_again() -> None:
    text = "SELECT * FROM read_files('/a', format => 'json' -- lines\n) AS f, __sqlext_stream_read_files('/b' , format=>'csv')"
    changed = kept(text)
    assert changed.endswith(f"__sqlext_stream_read_files('/b' , format=>'csv', __sqlext_schema => {quote_string(DDL)})")
    assert "'json', __sqlext_schema =>" in changed
    assert kept_in([changed]) == {call.key: quote_string(DDL) for call in calls_in(text)}
    assert [call.key for call in calls_in(changed)] == [call.key for call in calls_in(text)]
    assert kept(changed) == changed, "each call has its columns"


@pytest.mark.parametrize("schema", ["schema => 'id INT'", "SCHEMA=>'id INT', format => 'csv'", "`schema` => 'id INT'"])
def test_a_call_with_a_schema_keeps_no_other(schema: str) -> None:
    text = f"SELECT * FROM read_files('/a', {schema})"
    assert kept(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM STREAM read_files('/a')", True),
        ("SELECT * FROM STREAM(read_files('/a'))", True),
        ("SELECT * FROM __sqlext_stream_read_files('/a')", True),
        ("SELECT * FROM STREAM t, read_files('/a')", False),
        ("FROM read_files('/a') SELECT *", False),
    ],
)
def test_whether_a_call_is_streamed(text: str, expected: bool) -> None:
    assert [call.is_streamed for call in calls_in(text)] == [expected]


def test_an_argument_inside_of_another_one_is_none() -> None:
    (call,) = calls_in("SELECT * FROM read_files(path => f(schema => 'x'), format => 'json')")
    assert call.names == {"PATH", "FORMAT"}
    assert call.needs_columns


def test_what_a_flow_runs_has_the_call_as_the_user_wrote_it() -> None:
    """Its columns are found by its text, in the statement and in what the planner makes of it."""
    statement = grammar.parse(
        "CREATE STREAMING TABLE t AS SELECT f.k, count(DISTINCT f.v) AS n\n"
        "FROM STREAM read_files('/a', /* all */ format  => 'json',\n  `fs.s3a.endpoint` => 'x') AS f GROUP BY f.k"
    )
    assert isinstance(statement, CreateStreamingTable)
    plan = plan_flow(statement.query, BATCHES)
    (call,) = calls_in(statement.query.source)
    assert {each.key for text in (plan.sql, plan.written) for each in calls_in(text)} == {call.key}
    assert statement.query.source[call.start :].startswith("read_files('/a'"), "the offsets are those of the statement"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM STREAM read_files('/a', format => 'avro')", True),
        ("SELECT * FROM read_files('/a', format => \"AVRO\")", True),
        ("SELECT * FROM read_files('/avro', format => 'json')", False),
        ("SELECT 'avro' FROM t", False),
    ],
)
def test_whether_avro_is_read(text: str, expected: bool) -> None:
    assert names_avro(text) is expected


# Arguments.


def test_names_are_found_in_any_case() -> None:
    assert (format_named("JSON"), format_named("binaryfile")) == ("json", "binaryFile")
    assert argument_named("MAXFILESPERTRIGGER", "text") == "maxFilesPerTrigger"
    assert argument_named("fs.s3a.endpoint", "orc") == "fs.s3a.endpoint"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "rescueDataColumn",
            "read_files has no argument `rescueDataColumn`. Did you mean `rescuedDataColumn`? For json it takes path, ",
        ),
        ("header", "read_files: `header` is an option of csv, and `format` is `json`."),
        ("mergeSchema", "read_files: `mergeSchema` is an option of parquet and orc, and `format` is `json`."),
        ("nonsense", "read_files has no argument `nonsense`. For json it takes path, format, schema, "),
    ],
)
def test_an_unknown_argument_is_told(name: str, said: str) -> None:
    with pytest.raises(SchemaError) as caught:
        argument_named(name, "json")
    assert str(caught.value).startswith(said)


def test_an_unknown_format_is_told() -> None:
    with pytest.raises(SchemaError) as caught:
        format_named("jsn")
    assert str(caught.value) == (
        f"read_files: `format` is `jsn`, which is no format of files. Did you mean `json`? It reads {', '.join(FORMATS)}."
    )


class NoPackages:
    """What Py4J gives for classes that are not on the class path."""

    def __getattr__(self, name: str) -> NoPackages:
        return self


def test_avro_without_its_package_is_refused() -> None:
    spark = cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(_jvm=NoPackages())))
    with pytest.raises(SetupError) as caught:
        files._check_class_path(spark, Files("/a", "avro", None, None, "", {}))
    assert str(caught.value) == (
        "Spark's package for Avro is not on the class path. Set `spark.sqlext.connectors` to `avro` on the builder given to "
        "sqlext.configure, or with --conf; `sqlext run` sets it by itself if the file calls read_files for avro."
    )


def test_a_file_says_which_connectors_it_needs() -> None:
    avro = ScriptFile("a.sql", "SELECT * FROM STREAM read_files('/a', format => 'avro')")
    kafka = ScriptFile("b.sql", "SELECT * FROM read_kafka(subscribe => 't')")
    assert (_connectors([]), _connectors([avro]), _connectors([avro, kafka])) == ("", "avro", "kafka,avro")


def test_kept_columns_are_replaced_by_the_key_of_the_call() -> None:
    text = kept("SELECT * FROM read_files('/a', format => 'json' -- lines\n) UNION ALL SELECT * FROM read_files('/b' )")
    key = "'/a' , format = > 'json'"
    changed = with_kept(text, {key: "'k INT'", "'/c'": "'c INT'"})
    assert kept_in([changed]) == {key: "'k INT'", "'/b'": quote_string(DDL)}
    assert with_kept(changed, {key: quote_string(DDL)}) == with_kept(text, {key: quote_string(DDL)})
    assert with_kept("SELECT * FROM read_files('/b')", {"'/b'": "'k INT'"}) == "SELECT * FROM read_files('/b')"


def test_only_the_calls_of_given_keys_grow() -> None:
    text = kept("SELECT * FROM read_files('/a') JOIN read_files('/b')")
    assert growing(text, []) == text
    literal = quote_string(DDL)
    assert growing(text, ["'/b'"]).endswith(f"read_files('/b', __sqlext_schema => {literal}, __sqlext_grows => true)")
    assert "read_files('/a', __sqlext_schema => " + literal + ") JOIN" in growing(text, ["'/b'"])
