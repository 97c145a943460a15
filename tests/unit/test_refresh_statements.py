"""REFRESH STREAMING TABLE and CREATE OR REPLACE STREAMING TABLE as they are read, and when two texts are one."""

from __future__ import annotations

import pytest

from sqlext.detect import is_ours, normal_text
from sqlext.errors import SyntaxProblem
from sqlext.grammar import parse
from sqlext.statements import BoundedStatement, CreateStreamingTable, CreateTableAs, RefreshStreamingTable


@pytest.mark.parametrize(
    ("text", "is_full", "waits"),
    [
        ("REFRESH STREAMING TABLE s.t", False, True),
        ("refresh streaming table s.t sync;", False, True),
        ("REFRESH STREAMING TABLE s.t ASYNC", False, False),
        ("/* dbt */ REFRESH STREAMING TABLE s.t FULL", True, True),
        ("REFRESH STREAMING TABLE s.t FULL ASYNC", True, False),
    ],
)
def test_refresh_is_ours(text: str, is_full: bool, waits: bool) -> None:
    assert is_ours(text)
    statement = parse(text)
    assert isinstance(statement, RefreshStreamingTable)
    assert (statement.name, statement.is_full, statement.waits) == (("s", "t"), is_full, waits)


@pytest.mark.parametrize(
    "text", ["REFRESH STREAMING TABLE", "REFRESH STREAMING TABLE t ASYNC FULL", "REFRESH STREAMING TABLE t SOON"]
)
def test_refresh_has_a_grammar(text: str) -> None:
    with pytest.raises(SyntaxProblem):
        parse(text)


@pytest.mark.parametrize("text", ["REFRESH TABLE t", "REFRESH FUNCTION f", "REFRESH '/path/streaming'"])
def test_sparks_own_refresh_is_sparks(text: str) -> None:
    assert not is_ours(text)


def test_or_replace_is_no_table_of_sparks() -> None:
    made = parse("CREATE OR REPLACE STREAMING TABLE t AS SELECT k FROM STREAM s")
    assert isinstance(made, CreateStreamingTable)
    assert (made.refresh, made.replace) == (False, True)
    assert isinstance(parse("CREATE OR REPLACE TABLE t AS SELECT k FROM STREAM s"), CreateTableAs)
    staged = "SELECT * FROM STREAM s JOIN (SELECT k FROM u GROUP BY k GLOBAL WINDOW END OF STREAM) USING (k)"
    assert isinstance(parse(f"CREATE OR REPLACE STREAMING TABLE t AS {staged}"), CreateStreamingTable)
    assert isinstance(
        parse("CREATE OR REPLACE TABLE t AS SELECT k FROM u GROUP BY k GLOBAL WINDOW END OF STREAM"), BoundedStatement
    )


@pytest.mark.parametrize(
    "other",
    [
        "select K, 'A'  from\tstream S",
        "SELECT k, /* what /* a */ name */ 'A' FROM STREAM s",
        "SELECT k, 'A' -- so\nFROM STREAM s",
    ],
)
def test_what_does_not_count_in_a_text(other: str) -> None:
    assert normal_text(other, folds_case=True) == normal_text("SELECT k, 'A' FROM STREAM s", folds_case=True)


@pytest.mark.parametrize(
    "other", ["SELECT k, 'a' FROM STREAM s", "SELECT k, 'A ' FROM STREAM s", "SELECT `K`, 'A' FROM STREAM s"]
)
def test_what_counts_in_a_text(other: str) -> None:
    assert normal_text(other, folds_case=True) != normal_text("SELECT k, 'A' FROM STREAM s", folds_case=True)


def test_case_of_names_counts_where_it_tells_columns_apart() -> None:
    assert normal_text("SELECT k", folds_case=False) != normal_text("SELECT K", folds_case=False)
