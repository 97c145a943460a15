"""What is known of statements: how they begin, and which one somebody meant."""

from __future__ import annotations

import pytest

from sqlext.app.problems import Problem, report
from sqlext.app.reference import HEADS, STATEMENTS, near_statement, statements_like
from sqlext.sql.scripts import split


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("SHOW FLOW", "SHOW FLOWS"),
        ("show jbos", "SHOW JOBS"),
        ("STOP FLWO page_views", "STOP FLOW"),
        ("CREATE STREAMNG TABLE t AS SELECT 1", "CREATE STREAMING TABLE"),
        ("CREATE MATERIALISED VIEW v AS SELECT 1", "CREATE MATERIALIZED VIEW"),
        ("/* so */ SELCT 1", "SELECT"),
        ("SHOW FLOWS NOW", ""),  # it begins as it should; what is wrong stands behind
        ("SELECT FROM WHERE", ""),
        ("whatever", ""),
        ("", ""),
    ],
)
def test_a_statement_that_is_nearly_one(text: str, meant: str) -> None:
    assert near_statement(text) == (f" Did you mean `{meant}`?" if meant else "")


def test_no_statement_is_taken_for_another() -> None:
    assert [head for head in HEADS if near_statement(f"{head} x")] == []


def test_a_head_has_no_part_that_can_be_left_out() -> None:
    heads = {each.syntax: each.head for each in STATEMENTS}
    assert heads["DROP FLOW [IF EXISTS] f"] == "DROP FLOW"
    assert "CREATE STREAMING TABLE" in heads.values()
    assert heads["SHOW PARTITION FUNCTIONS"] == "SHOW PARTITION FUNCTIONS"


def test_statements_by_their_words() -> None:
    assert [each.head for each in statements_like("job events")] == ["SHOW JOB EVENTS"]
    assert len(statements_like("")) == len(STATEMENTS)


def test_the_advice_stands_behind_what_spark_s_parser_says() -> None:
    (statement,) = split("SHOW FLOW;")
    problem = Problem("[PARSE_SYNTAX_ERROR] Syntax error at or near end of input.", 1, 10)
    assert report("", "SHOW FLOW;", statement, problem) == (
        "line 1, column 10: [PARSE_SYNTAX_ERROR] Syntax error at or near end of input. Did you mean `SHOW FLOWS`?\n"
        "  1 | SHOW FLOW;\n    |          ^"
    )
    assert report("a.sql", "SHOW FLOW;", statement, Problem("no")) == "a.sql:1:1: no"


def test_the_excerpt_is_the_line_that_the_place_counts() -> None:
    """Only a line feed ends a line, not all that Python takes for an end."""
    text = "SELECT 'a\u2028b\x85c\x0cd';\r\nSELECT x;"
    *_, statement = split(text)
    assert report("a.sql", text, statement, Problem("There is no x.", 1, 8)) == (
        "a.sql:2:8: There is no x.\n  2 | SELECT x;\n    |        ^"
    )
    first = split("SELECT x,\r\n1;")[0]
    assert report("", "SELECT x,\r\n1;", first, Problem("There is no x.", 1, 8)).endswith("  1 | SELECT x,\n    |        ^")
