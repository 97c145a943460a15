"""Answers as SQL: what a table holds reaches Spark as one JSON text, whatever it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.commands.answers import Table, relation_sql
from sqlext.quoting import quote, quote_parts, quote_string
from sqlext.sql.tokens import is_ours, tokens

ONE_COLUMN = {"a": "STRING"}


def unquoted(literal: str) -> str:
    """What Spark reads a literal of ours as: after a backslash a character stands for itself (ours writes no other escapes)."""
    assert literal[0] == literal[-1] == "'"
    return re.sub(r"\\(.)", r"\1", literal[1:-1], flags=re.DOTALL)


def literals(sql: str) -> list[str]:
    """The texts that a query has in hexadecimal digits."""
    return [bytes.fromhex(digits).decode() for digits in re.findall(r"CAST\(X'([0-9a-f]*)' AS STRING\)", sql)]


def rows_of(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows that the query's JSON text holds."""
    data, _ = literals(relation_sql(Table(columns, rows)))
    return json.loads(data)


def test_durations_are_written_as_spark_reads_intervals() -> None:
    durations = [timedelta(days=1, hours=2, seconds=3, microseconds=4), timedelta(hours=23), timedelta()]
    rows = rows_of({"lag": "INTERVAL DAY TO SECOND"}, [{"lag": each} for each in durations])
    assert [row["lag"] for row in rows] == ["1 02:00:03.000004", "0 23:00:00.000000", "0 00:00:00.000000"]


def test_a_table_as_a_query() -> None:
    table = Table({"name": "STRING", "buffered": "BIGINT"}, [{"name": "views", "buffered": 3}, {"name": "it's"}])
    sql = relation_sql(table)
    assert re.sub(r"X'[0-9a-f]*'", "..", sql) == (
        "SELECT row.* FROM (SELECT explode(from_json(CAST(.. AS STRING), CAST(.. AS STRING))) AS row)"
    )
    assert literals(sql) == [
        '[{"name": "views", "buffered": 3}, {"name": "it\'s", "buffered": null}]',
        "ARRAY<STRUCT<`name`: STRING, `buffered`: BIGINT>>",
    ]


def test_nothing_in_a_value_means_something_to_spark() -> None:
    """A variable's value would come in the place of `${`, and a setting decides what backslashes and apostrophes are."""
    sql = relation_sql(Table(ONE_COLUMN, [{"a": "${env:HOME} it's \n"}]))
    assert re.fullmatch(r"[^$\\]*", sql)
    assert sql.count("'") == 4


def test_a_table_without_rows_keeps_its_columns() -> None:
    sql = relation_sql(Table(ONE_COLUMN, []))
    assert literals(sql) == ["[]", "ARRAY<STRUCT<`a`: STRING>>"]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "it's",
        "'",
        "''",
        '"',
        "`",
        "\\",
        "\\'",
        "a\\nb",
        "line\nbreak\r\n\ttab",
        "\u2028\u2029\x00\x1f",
        "é 表 😀",
        "-- /* no comment */",
        "${x} :p ?",
        None,
        True,
        3,
        -2.5,
    ],
)
def test_a_value_arrives_as_it_is(value: object) -> None:
    assert rows_of(ONE_COLUMN, [{"a": value}]) == [{"a": value}]


def test_what_a_row_lacks_is_null_and_what_is_no_column_is_left_out() -> None:
    assert rows_of({"a": "INT", "b": "INT"}, [{"b": 1, "c": 2}, {}]) == [{"a": None, "b": 1}, {"a": None, "b": None}]


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC), "2024-02-29T12:30:15.123+00:00"),
        (datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=-5))), "2024-02-29T00:00:00.000-05:00"),
    ],
)
def test_a_time_travels_with_its_zone_to_the_millisecond(at: datetime, text: str) -> None:
    assert rows_of({"at": "TIMESTAMP"}, [{"at": at}]) == [{"at": text}]


@pytest.mark.parametrize("name", ["a b", "a`b", "it's", "a\\b", "é", "select"])
def test_a_columns_name_is_quoted_twice_over(name: str) -> None:
    _, schema = literals(relation_sql(Table({name: "INT"}, [])))
    assert schema == f"ARRAY<STRUCT<{quote(name)}: INT>>"


VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)


@given(st.lists(st.fixed_dictionaries({"a": VALUES, "it's": VALUES}), max_size=3))
def test_any_rows_arrive_as_they_are(rows: list[dict[str, Any]]) -> None:
    columns = {"a": "STRING", "it's": "STRING"}
    assert rows_of(columns, rows) == rows
    assert len(literals(relation_sql(Table(columns, rows)))) == 2


def test_an_answer_that_speaks_of_our_statements_is_none_of_ours() -> None:
    sql = relation_sql(Table(ONE_COLUMN, [{"a": "CREATE STREAMING TABLE t AS SELECT 1 GLOBAL WINDOW END OF STREAM"}]))
    assert not is_ours(sql)


# Quoting


@given(st.text(max_size=12))
def test_a_quoted_name_is_one_token_that_says_the_name(name: str) -> None:
    (token,) = tokens(quote(name))
    assert token.kind == "quoted"
    assert token.text[1:-1].replace("``", "`") == name


@given(st.text(max_size=12))
def test_a_quoted_string_is_one_token_that_says_the_text(text: str) -> None:
    (token,) = tokens(quote_string(text))
    assert token.kind == "text"
    assert unquoted(token.text) == text


def test_a_dotted_name_is_quoted_part_by_part() -> None:
    assert quote_parts(["cat", "my db", "a.b"]) == "`cat`.`my db`.`a.b`"
    assert quote_parts([]) == ""
