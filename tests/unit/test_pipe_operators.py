"""Pipe operators: as written while nothing changes, and as subqueries, in their order, where a query is written anew."""

from __future__ import annotations

import pytest
from sqlglot import exp

from sqlext.errors import SyntaxProblem
from sqlext.planner.planner import plan_flow
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query, to_sql
from sqlext.sql.statements import Query
from tests.support import written_anew

QUERIES = {
    "FROM t |> WHERE a > 1 |> LIMIT 3 |> WHERE b > 2": (
        "SELECT * FROM (SELECT * FROM (SELECT * FROM t WHERE a > 1) LIMIT 3) WHERE b > 2"
    ),
    "FROM t |> LIMIT 10 |> ORDER BY k": "SELECT * FROM (SELECT * FROM t LIMIT 10) ORDER BY k",
    "FROM t |> LIMIT 10 ORDER BY k": "SELECT * FROM (SELECT * FROM t LIMIT 10) ORDER BY k",
    "FROM t |> WHERE a > 1 ORDER BY k LIMIT 2 OFFSET 1": "SELECT * FROM t WHERE a > 1 ORDER BY k LIMIT 2 OFFSET 1",
    "SELECT k, v*2 AS v FROM t |> WHERE v > 10": "SELECT * FROM (SELECT k, v*2 AS v FROM t) WHERE v > 10",
    "SELECT k, min(v) AS v FROM t GROUP BY k |> WHERE v > 1": (
        "SELECT * FROM (SELECT k, min(v) AS v FROM t GROUP BY k) WHERE v > 1"
    ),
    "FROM t |> AGGREGATE sum(v) AS s, count(*) GROUP BY k, year(at) AS y |> ORDER BY s": (
        "SELECT * FROM (SELECT k, year(at) AS y, sum(v) AS s, count(*) FROM t GROUP BY k, year(at)) ORDER BY s"
    ),
    "FROM t |> EXTEND a * 2 AS b |> DROP a |> SELECT DISTINCT b AS c": (
        "SELECT DISTINCT b AS c FROM (SELECT * EXCEPT (a) FROM (SELECT *, a * 2 AS b FROM t))"
    ),
    "FROM t |> SET a = a + 1, b = a |> WHERE a > 1": "SELECT * FROM (SELECT * FROM t |> SET a = a + 1, b = a) WHERE a > 1",
    "FROM a AS x |> JOIN b ON x.k = b.k |> LEFT JOIN c USING (k) |> WHERE x.v > 1 |> SELECT v": (
        "SELECT v FROM (SELECT * FROM a AS x JOIN b ON x.k = b.k LEFT JOIN c USING (k) WHERE x.v > 1)"
    ),
    "FROM a, b |> JOIN c ON c.k = 1": "SELECT * FROM (SELECT * FROM a, b) JOIN c ON c.k = 1",
    "FROM t |> WHERE a > 1 |> AS x |> JOIN d ON x.k = d.k": (
        "SELECT * FROM (SELECT * FROM t WHERE a > 1) AS x JOIN d ON x.k = d.k"
    ),
    "FROM t |> SELECT a |> UNION ALL SELECT 0 |> INTERSECT (SELECT 1)": (
        "SELECT * FROM (SELECT a FROM t UNION ALL SELECT 0) INTERSECT (SELECT 1)"
    ),
    "SELECT 1 AS a UNION ALL SELECT 2 |> WHERE a > 1": "SELECT * FROM (SELECT 1 AS a UNION ALL SELECT 2) WHERE a > 1",
    "(SELECT 1 AS a) UNION ALL (SELECT 2) |> WHERE a > 1": "SELECT * FROM ((SELECT 1 AS a) UNION ALL (SELECT 2)) WHERE a > 1",
    "FROM t |> PIVOT (sum(v) FOR k IN ('a')) |> LIMIT 1": (
        "SELECT * FROM (SELECT * FROM (SELECT * FROM t) PIVOT(sum(v) FOR k IN ('a'))) LIMIT 1"
    ),
    "FROM t |> TABLESAMPLE (10 ROWS) |> WHERE a > 1": (
        "SELECT * FROM (SELECT * FROM (SELECT * FROM t) TABLESAMPLE (10 ROWS)) WHERE a > 1"
    ),
    "WITH c AS (FROM t |> WHERE a > 1) FROM c |> SELECT a": "WITH c AS (SELECT * FROM t WHERE a > 1) SELECT a FROM c",
    "SELECT * FROM (FROM t |> LIMIT 3 |> WHERE a > 1) x, LATERAL (SELECT 1)": (
        "SELECT * FROM (SELECT * FROM (SELECT * FROM t LIMIT 3) WHERE a > 1) AS x, LATERAL (SELECT 1)"
    ),
    "FROM t, LATERAL (SELECT t.a AS b) |> WHERE b > 2": "SELECT * FROM t, LATERAL (SELECT t.a AS b) WHERE b > 2",
    "SELECT k, max(v) AS v FROM t GROUP BY k GLOBAL WINDOW END OF STREAM |> WHERE v > 1": (
        "SELECT * FROM (SELECT k, max(v) AS v FROM t GROUP BY k GLOBAL WINDOW END OF STREAM) WHERE v > 1"
    ),
    "FROM t |> LIMIT 3 GLOBAL WINDOW END OF STREAM ORDER BY k": (
        "SELECT * FROM (SELECT * FROM t LIMIT 3) GLOBAL WINDOW END OF STREAM ORDER BY k"
    ),
}


@pytest.mark.parametrize("query", QUERIES)
def test_an_operator_is_over_what_stands_before_it(query: str) -> None:
    assert written_anew(query) == QUERIES[query]


@pytest.mark.parametrize("query", [query for query in QUERIES if "GLOBAL" not in query and not query.startswith("(")])
def test_an_unchanged_query_stays_as_written(query: str) -> None:
    tree = parse_query(query)
    assert to_sql(tree, query) == query
    assert isinstance(parse_query(to_sql(tree, query)), exp.Query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("FROM t |> SELECT a WHERE b = 1", r"\|> SELECT takes no other clause"),
        ("FROM t |> LIMIT 3 WHERE b = 1", r"near `WHERE`: \|> LIMIT ends before this.* or write subqueries"),
        ("FROM t |> EXTEND count(*) AS n", r"\|> EXTEND cannot aggregate. Write \|> AGGREGATE"),
        ("FROM t |> SET a = sum(b)", r"\|> SET cannot aggregate. Write \|> AGGREGATE"),
        ("FROM t |> AGGREGATE count(*) GROUP BY 1", r"takes no position here. Name the column"),
        ("FROM t |> AGGREGATE count(*) GROUP BY ROLLUP (a)", r"groups by expressions only. Write SELECT .. GROUP BY"),
        ("FROM t |> AGGREGATE count(*) GROUP BY a WITH ROLLUP", r"\|> AGGREGATE ends before this"),
        ("FROM t |> AGGREGATE", r"Expected \|> AGGREGATE expressions GROUP BY keys"),
        ("FROM t |> EXTEND", r"Expected \|> EXTEND expressions"),
        ("FROM t |> DROP", r"Expected \|> DROP columns"),
        ("FROM t |> SET a", r"Expected \|> SET column = expression"),
        ("FROM t |> , b", r"`\|> ,` is not an operator that can be read here. Write subqueries"),
        ("FROM t |> GROUP BY a", r"`\|> GROUP BY` is not an operator that can be read here. Write subqueries"),
    ],
)
def test_what_has_no_faithful_form_is_refused_by_name(query: str, message: str) -> None:
    with pytest.raises(SyntaxProblem, match=message):
        parse_query(query)


@pytest.mark.parametrize(
    ("query", "sql", "above"),
    [
        (
            "SELECT k, v*2 AS v FROM STREAM t WITH ('backlog.lag-threshold'='5 min') |> WHERE v > 10",
            "SELECT * FROM (SELECT k, v*2 AS v FROM STREAM t) WHERE v > 10",
            "",
        ),
        (
            "SELECT /*+ FLUSH_INTERVAL('2 min') */ k, min(v) AS v FROM STREAM t GROUP BY k |> WHERE v > 10",
            "",
            "SELECT * FROM (SELECT __sqlext_k1 AS k, __sqlext_a1 AS v FROM __sqlext_aggregate_1) WHERE v > 10",
        ),
        (
            "FROM STREAM t |> AGGREGATE count(*) AS n GROUP BY k |> ORDER BY n DESC |> LIMIT 10 |> WHERE k <> 'x'",
            "",
            "SELECT * FROM (SELECT * FROM (SELECT * FROM (SELECT __sqlext_k1 AS k, __sqlext_a1 AS n FROM __sqlext_aggregate_1) "
            "ORDER BY n DESC) LIMIT 10) WHERE k <> 'x'",
        ),
        (
            "FROM STREAM t |> WHERE v > 1 |> AGGREGATE count(DISTINCT v) AS n GROUP BY k",
            "SELECT k, CAST(SIZE(COLLECT_SET(v)) AS BIGINT) AS n FROM (SELECT * FROM STREAM t WHERE v > 1) GROUP BY k",
            "",
        ),
    ],
)
def test_a_plan_keeps_the_order_of_the_operators(query: str, sql: str, above: str) -> None:
    plan = plan_flow(Query(parse_query(query), query), BATCHES)
    assert (plan.sql, plan.above) == (sql, above)
