"""Parameter markers in statements that Spark's own parser cannot read."""

from __future__ import annotations

import pytest

from sqlext.errors import SyntaxProblem
from sqlext.sql.parameters import substitute

CLAUSE = " GROUP BY k GLOBAL WINDOW END OF STREAM"


@pytest.mark.parametrize(
    ("text", "named", "expected"),
    [
        ("WHERE k = :x", {"x": "'a:b'"}, "WHERE k = 'a:b'"),
        ("WHERE k>:x AND v < :y", {"x": "1", "y": "2L"}, "WHERE k>1 AND v < 2L"),
        ("SELECT ':x', a:x, a::int, `:x` /* :x */ -- :x", {"x": "1"}, "SELECT ':x', a:x, a::int, `:x` /* :x */ -- :x"),
        ("WHERE (:x)", {"x": "1"}, "WHERE (1)"),
        ("WHERE v > 5 -:x", {"x": "-1"}, "WHERE v > 5 - -1"),
        ("WHERE v > 5 - :x AND v=:x", {"x": "-1"}, "WHERE v > 5 - -1 AND v=-1"),
    ],
)
def test_named(text: str, named: dict[str, str], expected: str) -> None:
    assert substitute(text + CLAUSE, named, ()) == expected + CLAUSE


def test_positional() -> None:
    assert substitute("SELECT '?', ? WHERE v = ?" + CLAUSE, {}, ("1", "'?'")) == "SELECT '?', 1 WHERE v = '?'" + CLAUSE


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("WHERE v > 5 -?", "-1", "WHERE v > 5 - -1"),
        ("WHERE v > -?-?", "-1", "WHERE v > - -1- -1"),
        ("WHERE v >?AND w", "5", "WHERE v >5 AND w"),
        ("WHERE k = 'a'?", "'b'", "WHERE k = 'a' 'b'"),
        ("WHERE k IN (?,?)", "'b'", "WHERE k IN ('b','b')"),
    ],
)
def test_a_value_does_not_run_together_with_what_stands_beside_it(text: str, value: str, expected: str) -> None:
    assert substitute(text + CLAUSE, {}, (value, value)) == expected + CLAUSE


@pytest.mark.parametrize(("text", "marker"), [("WHERE v = :y", ":y"), ("WHERE v = ? AND w = ?", "?")])
def test_a_marker_without_a_value_is_told(text: str, marker: str) -> None:
    with pytest.raises(SyntaxProblem) as caught:
        substitute(text, {"x": "1"} if ":" in text else {}, () if ":" in text else ("1",))
    assert caught.value.message == f"The parameter `{marker}` has no value."
