"""REFRESH STREAMING TABLE and CREATE OR REPLACE STREAMING TABLE as they are read, and when two texts are one."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType

from sqlext.errors import SyntaxProblem
from sqlext.execution.delta.column_comments import comments_of, with_comments
from sqlext.execution.flows.definition import listed
from sqlext.execution.flows.renewal import _clauses
from sqlext.sql.grammar import parse
from sqlext.sql.statements import BoundedStatement, CreateStreamingTable, CreateTableAs, RefreshStreamingTable
from sqlext.sql.tokens import is_ours, normal_text


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


def test_case_counts_in_the_path_of_a_variant() -> None:
    text = "SELECT v:Name.first[0].Last::INT AS n, CAST(x AS STRUCT<A: ARRAY<INT>>) FROM STREAM s"
    same = "select V:Name.first[0].Last :: int as N, cast(X as struct<a: array<int>>) from stream S"
    assert normal_text(same, folds_case=True) == normal_text(text, folds_case=True)
    for field in ("Name", "first", "Last"):
        assert normal_text(text.replace(field, field.swapcase()), folds_case=True) != normal_text(text, folds_case=True)


def test_case_of_names_counts_where_it_tells_columns_apart() -> None:
    assert normal_text("SELECT k", folds_case=False) != normal_text("SELECT K", folds_case=False)


# What is compared of a column list, and what of a table is kept when it is made anew.


def columns_of(text: str) -> tuple[str, ...]:
    statement = parse(f"CREATE STREAMING TABLE t ({text}) AS SELECT k, v FROM STREAM s")
    assert isinstance(statement, CreateStreamingTable)
    return listed(statement.definition.columns, folds_case=True)


@pytest.mark.parametrize("other", ["K string NOT NULL COMMENT 'x',\n  v", "`k` /* key */ STRING NOT NULL  COMMENT 'x', V"])
def test_what_does_not_count_in_a_column_list(other: str) -> None:
    assert columns_of(other) == columns_of("k STRING NOT NULL COMMENT 'x', v")


@pytest.mark.parametrize(
    "other",
    [
        "key STRING NOT NULL COMMENT 'x', v",
        "k CHAR(3) NOT NULL COMMENT 'x', v",
        "k STRING COMMENT 'x', v",
        "k STRING NOT NULL COMMENT 'X', v",
        "k STRING NOT NULL, v",
        "k STRING NOT NULL COMMENT 'x', v INT",
        "k STRING NOT NULL COMMENT 'x'",
    ],
)
def test_what_counts_in_a_column_list(other: str) -> None:
    assert columns_of(other) != columns_of("k STRING NOT NULL COMMENT 'x', v")


@pytest.mark.parametrize(
    ("written", "comment", "clustering", "kept"),
    [
        (("COMMENT 'old'", "LOCATION '/x'"), "it's new", (), ("LOCATION '/x'", "COMMENT 'it\\'s new'")),
        (("COMMENT 'old'", "PARTITIONED BY (k)"), None, (), ("PARTITIONED BY (k)",)),
        (("CLUSTER BY (k)",), None, ("v", "s.a", "`x.y`"), ("CLUSTER BY (`v`, `s`.`a`, `x.y`)",)),
        (("CLUSTER BY (k)",), None, (), ()),
        (("cluster by none",), None, (), ("cluster by none",)),
        ((), None, ("k",), ("CLUSTER BY (`k`)",)),
    ],
)
def test_a_new_table_has_comment_and_clustering_of_the_old_one(
    written: tuple[str, ...], comment: str | None, clustering: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    assert _clauses(written, comment, clustering) == kept


def test_comments_are_found_by_their_paths_and_put_back() -> None:
    inner = StructType([StructField("A", IntegerType(), metadata={"comment": "inside"}), StructField("b", IntegerType())])
    table = StructType(
        [
            StructField("K", StringType(), metadata={"comment": "the key", "other": 1}),
            StructField("many", ArrayType(MapType(StringType(), inner))),
        ]
    )
    comments = comments_of(table)
    assert comments == {("k",): "the key", ("many", "element", "value", "a"): "inside"}
    bare = StructType([StructField("A", IntegerType()), StructField("b", IntegerType(), metadata={"comment": "its own"})])
    plain = StructType([StructField("K", StringType()), StructField("many", ArrayType(MapType(StringType(), bare)))])
    found = comments_of(with_comments(plain, (), comments))
    assert found == {**comments, ("many", "element", "value", "b"): "its own"}
