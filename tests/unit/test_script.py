"""The splitter of .sql files, and errors told in terms of the file."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from sqlext.app.problems import Problem, problem_of, report
from sqlext.errors import OptionError, Position
from sqlext.sql.scripts import ScriptStatement, split


def texts(script: str) -> list[str]:
    return [statement.text for statement in split(script)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (" \n\t", []),
        (";;; ;", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        ("SELECT 1;\nSELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT 1 ;; SELECT 2 ; ", ["SELECT 1", "SELECT 2"]),
    ],
)
def test_a_semicolon_ends_a_statement(script: str, expected: list[str]) -> None:
    assert texts(script) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'a;b'",
        'SELECT "a;b"',
        r"SELECT 'it\'s; fine'",
        "SELECT 'it''s; fine'",
        r"SELECT r'\' AS c",
        "SELECT `a;b` FROM t",
        "SELECT 1 -- one; two\n, 3",
        "SELECT 1 /* one; /* two; */ three; */ , 3",
        "SELECT /*+ BROADCAST(t) ; */ * FROM t",
        "SELECT 'a\n;\nb'",
    ],
)
def test_a_semicolon_in_a_string_or_comment_does_not(statement: str) -> None:
    assert texts(f"{statement};\nSELECT 2;") == [statement, "SELECT 2"]


@pytest.mark.parametrize(
    "script",
    [
        "BEGIN SELECT 1; SELECT 2; END",
        "begin\n  DECLARE x INT DEFAULT 1;\n  SET x = 2;\nend",
        "BEGIN BEGIN SELECT 1; END; SELECT 2; END",
        "BEGIN outer: BEGIN SELECT 1; END outer; SELECT 2; END",
        "BEGIN IF x THEN SELECT 1; ELSEIF y THEN SELECT 2; ELSE SELECT 3; END IF; END",
        "BEGIN SELECT if(a, 1, 2), repeat('x', 3); SELECT CASE WHEN a THEN if(b, 1, 2) ELSE 3 END; END",
        "BEGIN WHILE i < 3 DO SET i = i + 1; END WHILE; END",
        "BEGIN LOOP LEAVE l; END LOOP; END",
        "BEGIN REPEAT SET i = i + 1; UNTIL i > 3 END REPEAT; SELECT i; END",
        "BEGIN FOR row AS SELECT 1 DO SELECT row.a; END FOR; SELECT 2; END",
        "BEGIN CASE x WHEN 1 THEN SELECT 1; ELSE SELECT CASE WHEN b THEN 1 END; END CASE; SELECT 2; END",
        "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN SELECT 1; SELECT 2; END; SELECT 3; END",
        "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION SET x = 1; SELECT 3; END",
        "BEGIN NOT ATOMIC SELECT 1; END",
        "BEGIN SELECT begin, end FROM t; SELECT 2; END",
    ],
)
def test_a_block_is_one_statement(script: str) -> None:
    assert texts(f"SELECT 0; {script};\nSELECT 9;") == ["SELECT 0", script, "SELECT 9"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT begin, end FROM t",
        "SELECT CASE WHEN a THEN 1",
        "SELECT if(a, 1, 2)",
        "DROP TABLE IF EXISTS t",
        "SELECT 1 AS begin",
    ],
)
def test_outside_a_script_no_block_opens(statement: str) -> None:
    assert texts(f"{statement}; SELECT 2;") == [statement, "SELECT 2"]


def test_comments_before_a_statement_are_left_out_and_those_within_stay() -> None:
    assert texts("-- first\n/* then */ SELECT /* why */ 1 -- one\n;\n-- the end\n") == ["SELECT /* why */ 1"]


def test_a_comment_that_never_ends_is_spark_to_refuse() -> None:
    assert texts("SELECT 1;\n /* SELECT 2;\n") == ["SELECT 1", "/* SELECT 2;\n"]


def test_statements_know_their_place() -> None:
    assert split("-- title\nSELECT 1; SELECT\n  2;\n\n  SELECT 3") == [
        ScriptStatement("SELECT 1", 2, 1),
        ScriptStatement("SELECT\n  2", 2, 11),
        ScriptStatement("SELECT 3", 5, 3),
    ]


def test_a_place_in_a_statement_is_a_place_in_the_file() -> None:
    statement = ScriptStatement("SELECT\n  x", 7, 11)
    assert statement.in_file(1, 1) == (7, 11)
    assert statement.in_file(2, 3) == (8, 3)


class FromSpark(AnalysisException):
    """An error with the text that Spark's have, without a JVM."""

    def __init__(self, text: str) -> None:
        super().__init__(message=text)
        self.text = text

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "\n[PARSE_SYNTAX_ERROR] Error at 'ev'. SQLSTATE: 42601 (line 2, pos 13)\n\n== SQL ==\nselect * fro\n--^^^\n",
            Problem("[PARSE_SYNTAX_ERROR] Error at 'ev'.", 2, 14),
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] No table `t`. Verify the spelling.\nSearch path: [`a`].\nOr qualify it.\n"
            "To tolerate the error on drop use IF EXISTS. SQLSTATE: 42P01; "
            "line 1 pos 14;\n'Project [*]\n+- 'UnresolvedRelation [t], [], false\n",
            Problem("[TABLE_OR_VIEW_NOT_FOUND] No table `t`. Verify the spelling.\nOr qualify it.", 1, 15),
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL (line 1, position 8) ==\nselect 1/0\n       ^^^\n",
            Problem("[DIVIDE_BY_ZERO] Division by zero.", 1, 8),
        ),
        ("[X] In a view. SQLSTATE: 22012\n== SQL of VIEW v (line 1, position 8) ==\nselect 1/0\n", Problem("[X] In a view.")),
        ("Queries with streaming sources must not.;\ndelta", Problem("Queries with streaming sources must not.")),
        (
            "Task failed\nTraceback (most recent call last):\nsqlext.errors.KeyedFunctionError: process_keyed: the function `f` "
            "failed at k = 1, row Row(k=1):\nValueError: no luck\n\n\tat org.apache.Y.z(Z.java:3)",
            Problem("process_keyed: the function `f` failed at k = 1, row Row(k=1):\nValueError: no luck"),
        ),
        ("Failed.\n\nJVM stacktrace:\njava.lang.X\n\tat org.apache.Y(Z.java)", Problem("Failed.")),
        ("Failed.\n\tat org.apache.Y.z(Z.java:3)\nCaused by: a", Problem("Failed.")),
    ],
)
def test_of_an_error_only_the_sentences_and_the_place_remain(text: str, expected: Problem) -> None:
    assert problem_of(FromSpark(text)) == expected


def test_an_error_of_ours_brings_its_place() -> None:
    assert problem_of(OptionError("No option `x`.", Position(3, 5, 20, 21))) == Problem("No option `x`.", 3, 5)
    assert problem_of(OptionError("No option `x`.")) == Problem("No option `x`.")


def test_a_report_has_the_place_in_the_file_and_a_caret() -> None:
    source = "SELECT 1; SELECT\n  nope;\n"
    statement = split(source)[1]
    assert report("a.sql", source, statement, Problem("No column.", 2, 3)) == ("a.sql:2:3: No column.\n  2 |   nope;\n    |   ^")
    assert report("a.sql", source, statement, Problem("It failed.")) == "a.sql:1:11: It failed."
