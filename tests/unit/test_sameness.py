"""Two expressions are one only where they surely mean the same."""

from __future__ import annotations

import pytest
from sqlglot import exp

from sqlext.planner.sameness import Sameness
from sqlext.quoting import case_sensitive_names
from sqlext.sql.dialect import parse_query


def both(one: str, other: str, relations: str) -> tuple[Sameness, list[exp.Expr]]:
    text = f"SELECT {one}, {other} FROM {relations}"
    tree = parse_query(text)
    assert isinstance(tree, exp.Select)
    return Sameness(tree, text), tree.expressions


def are_same(one: str, other: str, relations: str = "STREAM db.t") -> bool:
    sameness, expressions = both(one, other, relations)
    return sameness.same(*expressions)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("k", "K"),
        ("k", "`k`"),
        ("k", "t.k"),
        ("T.k", "db.t.K"),
        ("payload.id", "t.payload.id"),
        ("upper( k )", "UPPER(t.k)"),
        ("(a + b)", "a /* and */ + b"),
        ("case WHEN a then 'x' END", "CASE when a THEN 'x' end"),
        ("t.a.b.c.d.e", "a.b.c.d.e"),
        ("max(v:x[0].y::INT)", "MAX(T.V:`x`[0].y::int)"),
    ],
)
def test_same(one: str, other: str) -> None:
    assert are_same(one, other)
    assert are_same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("id", "payload.id"),
        ("max(ts)", "max(meta.ts)"),
        ("s RLIKE r'A'", "s RLIKE r'a'"),
        ("get_json_object(j, '$.x')", "get_json_object(j, '$.X')"),
        ("to_date(x)", "to_date(x, 'yyyy-MM-dd')"),
        ("to_date(x, 'yyyy-MM-dd')", "to_date(x, 'yyyy-mm-dd')"),
        ("v:x", "v:X"),
        ("max(v:x::INT)", "max(v:X::INT)"),
        ("v:x[0].y", "v:x[0].Y"),
        ("v:x.y[0].date", "v:x.y[0].DATE"),
        ("a + b", "b + a"),
        ("`a.b`", "a.b"),
        ("'k'", "k"),
        ('"a"', '"A"'),
        ("(SELECT max(k) FROM u WHERE u.v = t.k)", "(SELECT max(k) FROM u WHERE u.v = k)"),
    ],
)
def test_different(one: str, other: str) -> None:
    assert not are_same(one, other)
    assert not are_same(other, one)


@pytest.mark.parametrize(
    ("relations", "one", "other", "expected"),
    [
        ("STREAM a JOIN b ON a.k = b.j", "a.x", "b.x", False),
        ("STREAM a JOIN b USING (k)", "k", "a.k", True),
        ("STREAM a JOIN b USING (k)", "k", "b.k", False),
        ("STREAM a RIGHT JOIN b USING (k)", "k", "a.k", False),
        ("STREAM a FULL JOIN b USING (k)", "k", "b.k", False),
        ("STREAM a NATURAL JOIN b", "v", "b.v", False),
        ("STREAM t AS payload", "payload.payload.id", "payload.id", False),
    ],
)
def test_a_name_may_be_qualified_where_that_makes_no_difference(relations: str, one: str, other: str, expected: bool) -> None:
    assert are_same(one, other, relations) is expected


@pytest.mark.parametrize(
    ("relations", "one", "other"),
    [
        ("STREAM a JOIN b ON a.k = b.j", "x", "b.x"),
        ("STREAM a FULL JOIN b USING (k)", "v", "b.v"),
        ("STREAM t AS s LATERAL VIEW explode(xs) e AS x", "e.x", "x"),
    ],
)
def test_a_relation_may_be_called_like_a_struct(relations: str, one: str, other: str) -> None:
    assert not are_same(one, other, relations)
    sameness, expressions = both(one, other, relations)
    assert sameness.may_be_same(*expressions)


def test_case_makes_a_difference_where_the_session_says_so() -> None:
    with case_sensitive_names(True):
        assert not are_same("k", "K")
        assert are_same("UPPER(k) IS NULL", "upper(k) is null")
        assert not are_same("max(Date)", "max(date)")
    assert are_same("k", "K")
