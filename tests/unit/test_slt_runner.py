"""SQL logic test files: what is read, what fails and how it is told, what `--complete` writes."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from tests.slt.runner import (
    Failure,
    Query,
    Restart,
    SltSyntaxError,
    Statement,
    Wait,
    completed,
    message_of,
    parse,
    run,
    text_of,
)


class FakeSession:
    """Answers from a dict; an exception in it is raised. Notes what it was asked, in order."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[str] = []

    def execute(self, sql: str) -> Sequence[Sequence[Any]]:
        self.asked.append(sql)
        answer = self.answers.get(sql, [])
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def wait(self, flow: str) -> None:
        self.asked.append(f"wait {flow}")

    def restart(self) -> None:
        self.asked.append("restart")


def failures(text: str, answers: dict[str, Any] | None = None) -> list[Failure]:
    return list(run(parse(text, "x.slt"), FakeSession(answers)))


def query(expected: str, rows: Sequence[Sequence[Any]], mode: str = "query") -> list[Failure]:
    """The failures of one query with these expected lines and these rows."""
    return failures(f"{mode}\nQ\n----\n{expected}", {"Q": rows})


def test_every_kind_of_record_is_read() -> None:
    text = (
        "# c\n\nstatement ok\nA\nB\n\nstatement error x+\nC\n# d\n\n$ wait `a b`\n$ restart\n"
        "query rowsort\nD\n----\n1 2\n\nquery\nE\n----\n"
    )
    found = parse(text, "x.slt")

    assert [type(record) for record in found] == [Statement, Statement, Wait, Restart, Query, Query]
    assert [record.line for record in found] == [3, 7, 11, 12, 13, 18]
    ok, error, wait, _, rowsort, plain = found
    assert isinstance(ok, Statement)
    assert (ok.sql, ok.error) == ("A\nB", None)
    assert isinstance(error, Statement)
    assert error.error is not None
    assert (error.sql, error.error.pattern) == ("C\n# d", "x+")
    assert isinstance(wait, Wait)
    assert wait.flow == "`a b`"
    assert isinstance(rowsort, Query)
    assert (rowsort.sql, rowsort.is_sorted, rowsort.expected) == ("D", True, ("1 2",))
    assert isinstance(plain, Query)
    assert (plain.sql, plain.is_sorted, plain.expected) == ("E", False, ())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("statment ok\nA", "x.slt:1"),
        ("\nstatement\nA", "x.slt:2"),
        ("statement error\nA", "x.slt:1"),
        ("statement error (\nA", "x.slt:1"),
        ("statement ok\n", "x.slt:1"),
        ("statement ok\n\nA", "x.slt:1"),
        ("query\nA", "x.slt:1"),
        ("query sorted\nA\n----", "x.slt:1"),
        ("query\n----\n1", "x.slt:1"),
        ("statement ok\nA\n----\n1", "x.slt:3"),
        ("$ sleep 3", "x.slt:1"),
        ("$ wait", "x.slt:1"),
        ("statement ok\nA\n\n1 2", "x.slt:4"),
    ],
)
def test_a_line_that_is_no_part_of_the_format_is_an_error(text: str, place: str) -> None:
    with pytest.raises(SltSyntaxError, match=f"^{place}: "):
        parse(text, "x.slt")


def test_records_run_in_order() -> None:
    session = FakeSession()

    assert list(run(parse("statement ok\nA\n\n$ wait f\n$ restart\n\nquery\nB\n----\n", "x.slt"), session)) == []
    assert session.asked == ["A", "wait f", "restart", "B"]


def test_values_are_compared_as_text() -> None:
    assert query("a 1 NULL", [("a", 1, None)]) == []
    assert query("a\tb c\t1", [("a", "b c", 1)]) == []
    assert query("a    1", [("a", 1)]) == []
    assert query("a b", [("a b",)]) == []
    assert query("", []) == []


def test_order_counts_unless_rows_are_sorted() -> None:
    rows = [("b", 1), ("a", 2)]

    assert query("a 2\nb 1", rows, "query rowsort") == []
    assert len(query("a 2\nb 1", rows)) == 1


def test_a_star_fits_any_value() -> None:
    assert query("a * 2", [("a", "anything", 2)]) == []
    assert len(query("a * 3", [("a", "anything", 2)])) == 1


@pytest.mark.parametrize("expected", ["a 1", "a 1\nb 2\nc 3", "a 1\nb 2 3", "a 1\nb 3", ""])
def test_other_rows_are_told_with_both_sides(expected: str) -> None:
    (failure,) = query(expected, [("a", 1), ("b", 2)])

    assert failure.line == 1
    assert failure.text == "\n".join(["expected", *(f"  {line}" for line in expected.splitlines()), "got", "  a 1", "  b 2"])


def test_no_rows_where_some_are_expected() -> None:
    (failure,) = query("a 1", [])

    assert failure.text == "expected\n  a 1\ngot"


def test_a_single_text_with_line_breaks_is_many_lines() -> None:
    assert query("one\n  two", [("one\n\n  two",)]) == []


def test_a_statement_that_fails_ends_the_file() -> None:
    session = FakeSession({"A": AnalysisException("no such\n  thing")})

    (failure,) = run(parse("statement ok\nA\n\nstatement ok\nB", "x.slt"), session)

    assert (failure.line, failure.text) == (1, "expected no error\ngot no such thing")
    assert session.asked == ["A"]


def test_a_query_that_differs_does_not_end_the_file() -> None:
    text = "query\nA\n----\n1\n\nquery\nA\n----\n2"

    assert [failure.line for failure in failures(text, {"A": [(3,)]})] == [1, 6]


def test_errors_are_matched_by_pattern() -> None:
    error = AnalysisException("There is no flow `f`.\n== SQL ==\nSTOP FLOW g")

    assert failures("statement error no flow `.`\\.$\nA", {"A": error}) == []
    (other,) = failures("statement error FLOW g\nA", {"A": error})
    assert other.text == "expected an error that matches FLOW g\ngot There is no flow `f`."
    (none,) = failures("statement error x\nA", {})
    assert none.text == "expected an error that matches x\ngot none"


def test_a_traceback_is_no_message() -> None:
    (failure,) = failures("statement error x\nA", {"A": AnalysisException("x\nTraceback (most recent call last)")})

    assert failure.text.startswith("expected a sentence\ngot a traceback")


def test_an_error_of_the_session_itself_is_not_taken_for_the_statements() -> None:
    with pytest.raises(ConnectionError):
        failures("statement error x\nA", {"A": ConnectionError("x")})


def test_message_is_one_line_without_the_excerpt() -> None:
    assert message_of(AnalysisException("\na  b (line 1, pos 2)\n\n== SQL (line 1) ==\nSELECT")) == "a b (line 1, pos 2)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (1.0, "1.0"),
        (decimal.Decimal("1.10"), "1.10"),
        ("", "(empty)"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        (datetime.datetime(2024, 1, 2, 3, 4, 5), "2024-01-02 03:04:05"),
        ([1, None], "[1,NULL]"),
        ((1, ("a", False)), "{1,{a,false}}"),
        ({"k": [1]}, "{k:[1]}"),
    ],
)
def test_text_of_values(value: Any, text: str) -> None:
    assert text_of(value) == text


def test_complete_writes_the_rows_and_leaves_the_rest() -> None:
    text = "# c\nquery\nA\n----\nold\nolder\n\nquery rowsort\nB\n----\n\nquery\nC\n----\n5 6\n"
    answers = {"A": [(1, "x"), (2, None)], "B": [("p q", 1)], "C": [(5, 6)]}
    found = failures(text, answers)

    after = completed(text, found)

    assert after == "# c\nquery\nA\n----\n1 x\n2 NULL\n\nquery rowsort\nB\n----\np q\t1\n\nquery\nC\n----\n5 6\n"
    assert failures(after, answers) == []
