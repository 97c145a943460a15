"""What cannot be kept up to date, or is not buffered: each query has its reason, with its place or in EXPLAIN."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sqlext.errors import SqlextError, UnsupportedError
from sqlext.functions.scalar import FUNCTIONS, PythonFunction
from sqlext.options import Level, LevelTexts, ValueText
from sqlext.plan.explain import explain_flow, lines_of
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.job_graph import FlowPlan
from sqlext.planner.planner import plan_flow
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query
from sqlext.sql.statements import Query


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One aggregate written in Python of which only all values count, and no other."""
    newest = PythonFunction("newest", lambda values: values, "DOUBLE", is_aggregate=True, is_output_idempotent=False)
    monkeypatch.setattr(FUNCTIONS, "_functions", {"newest": newest})


def plan(text: str) -> FlowPlan:
    return plan_flow(Query(parse_query(text), text), BATCHES)


def all_rows(what: str) -> str:
    return (
        f"The rows of this stream are appended as they arrive, but {what} needs all rows at once. Use it in the queries that "
        "read the table, or in a view over it; above an aggregate with GROUP BY it is allowed here."
    )


def beside(stream: str) -> str:
    return (
        f"The rows of `{stream}` are combined with an aggregate over a stream, and only the aggregate is kept. Aggregate these "
        "rows as well, read them without STREAM, or keep the whole query, without STREAM, by CREATE MATERIALIZED VIEW."
    )


def depends(column: str) -> str:
    return (
        f"This streaming aggregate depends on the query around it through `{column}`, so it cannot be kept on its own. Group it "
        "by that column in a subquery, and join the two."
    )


WINDOW = all_rows("a window function")
RANK = f"{WINDOW} So is ROW_NUMBER() OVER (PARTITION BY .. ORDER BY ..) AS r in a subquery that WHERE r <= 3 filters."
SETS = (
    "UNION, EXCEPT and INTERSECT of streams need all rows at once. Use UNION ALL, or a set operation of aggregates: give each "
    "side a GROUP BY."
)
HIDDEN = "A `*` hides which columns this aggregate groups by. Name the columns."
BEHIND = "A `*` hides the keys of this aggregate, and the query above it needs their names. Name the columns."
ORDINAL = "GROUP BY {} is not the position of a column of the select list that can be grouped by."
MEANINGS = (
    "GROUP BY k may mean a column of the input or `{} AS k`. Give the alias another name, or write the column with its table's "
    "name."
)
TWICE = "A grouping set is given twice here, so two rows would have the same key. Give each grouping set once."
NOT_IDEMPOTENT = (
    "No query can be evaluated above this aggregate: the function newest is registered as not output-idempotent. Keep it in a "
    "streaming table of its own, and read that table in a view."
)
PIVOT = (
    "PIVOT over a stream must follow a subquery with named columns, FOR one column IN literals: (SELECT k, c, v FROM STREAM t) "
    "PIVOT (sum(v) FOR c IN ('a', 'b')). Otherwise write one aggregate with FILTER for each column: "
    "sum(v) FILTER (WHERE c = 'a') AS a, with GROUP BY."
)
BEFORE_DISTINCT = (
    "{} comes before DISTINCT, so it needs all rows of the stream at once, duplicates too. To evaluate it over the distinct "
    "rows, write FROM (SELECT DISTINCT ..); otherwise keep the whole query, without STREAM, by CREATE MATERIALIZED VIEW."
)
COUNTED = "SELECT DISTINCT k, count(*) OVER (PARTITION BY k) AS c FROM STREAM t"
IN_WINDOWS = BEFORE_DISTINCT.format("A window function")
AGGREGATE = "SELECT k, count(*) AS n FROM STREAM t GROUP BY k"


@pytest.mark.parametrize(
    ("query", "message", "marked"),
    [
        # no aggregate: rows are appended
        ("SELECT k FROM STREAM t ORDER BY  k", all_rows("ORDER BY"), "k"),
        ("SELECT k FROM STREAM t LIMIT 3", all_rows("LIMIT"), "3"),
        ("SELECT k FROM STREAM t OFFSET 3", all_rows("OFFSET"), "3"),
        ("SELECT k FROM STREAM t SORT BY k", all_rows("SORT BY"), "k"),
        ("SELECT k FROM STREAM t CLUSTER BY k", all_rows("CLUSTER BY"), "k"),
        ("SELECT k FROM STREAM t QUALIFY max(k) OVER () = k", all_rows("QUALIFY"), "max(k) OVER () = k"),
        ("SELECT k FROM STREAM t UNION ALL SELECT k FROM STREAM u LIMIT 3", all_rows("LIMIT"), "3"),
        ("SELECT 1 + sum(v) OVER (PARTITION BY k) FROM STREAM t", WINDOW, "sum(v) OVER (PARTITION BY k)"),
        ("SELECT rank() OVER w FROM STREAM t WINDOW w AS (ORDER BY v)", RANK, "rank() OVER w"),
        ("SELECT r FROM (SELECT rank() OVER (ORDER BY v) AS r FROM STREAM t) x", RANK, "rank() OVER (ORDER BY v)"),
        ("WITH c AS (SELECT k FROM STREAM t LIMIT 5) SELECT k, count(*) AS n FROM c GROUP BY k", all_rows("LIMIT"), "5"),
        ("SELECT k FROM STREAM t UNION SELECT k FROM STREAM u", SETS, None),
        ("SELECT k FROM STREAM t EXCEPT SELECT k FROM d", SETS, None),
        ("SELECT k FROM STREAM t INTERSECT SELECT k FROM d", SETS, None),
        ("SELECT k FROM STREAM t MINUS SELECT k FROM d", SETS, None),
        ("SELECT count(*) AS n FROM (SELECT k FROM STREAM t UNION SELECT k FROM d) x", SETS, None),
        ("SELECT * FROM STREAM t PIVOT (sum(v) FOR k IN ('a', 'b'))", PIVOT, None),
        (
            "SELECT * FROM (SELECT k, v, row_number() OVER (ORDER BY v) r FROM STREAM t) TABLESAMPLE (10 PERCENT) WHERE r = 1",
            "TABLESAMPLE is taken of all rows that ROW_NUMBER() numbers, and only the first rows of each partition are kept. "
            "Leave it out, or take the sample of the table that the query fills.",
            None,
        ),
        # DISTINCT is evaluated last
        (COUNTED, IN_WINDOWS, "count(*) OVER (PARTITION BY k)"),
        (f"{COUNTED} ORDER BY c DESC LIMIT 10", IN_WINDOWS, "count(*) OVER (PARTITION BY k)"),
        (f"SELECT k FROM ({COUNTED}) WHERE c > 1", IN_WINDOWS, "count(*) OVER (PARTITION BY k)"),
        (
            "SELECT DISTINCT k FROM STREAM t QUALIFY row_number() OVER (ORDER BY k) <= 3",
            BEFORE_DISTINCT.format("QUALIFY"),
            "row_number() OVER (ORDER BY k) <= 3",
        ),
        # rows of a stream beside an aggregate
        (f"{AGGREGATE} UNION ALL SELECT k, 1 FROM STREAM u", beside("STREAM u"), "STREAM u"),
        (f"SELECT x.k FROM STREAM  u JOIN ({AGGREGATE}) x ON u.k = x.k", beside("STREAM u"), "STREAM  u"),
        ("SELECT k FROM STREAM t WHERE v IN (SELECT max(v) FROM STREAM u)", beside("STREAM t"), "STREAM t"),
        ("SELECT k, (SELECT count(*) FROM STREAM u) AS n FROM STREAM t", beside("STREAM t"), "STREAM t"),
        (f"{AGGREGATE} HAVING k IN (SELECT k FROM STREAM u)", beside("STREAM u"), "STREAM u"),
        (f"SELECT * FROM ({AGGREGATE}) x WHERE EXISTS (SELECT 1 FROM STREAM u)", beside("STREAM u"), "STREAM u"),
        (
            "WITH s AS (SELECT * FROM STREAM t), c AS (SELECT max(v) AS m FROM s) SELECT * FROM s JOIN c ON v = m",
            beside("s"),
            "s",
        ),
        # correlated
        ("SELECT * FROM d WHERE x > (SELECT count(*) FROM STREAM t WHERE t.k = d.k)", depends("d.k"), "d.k"),
        ("SELECT * FROM d AS e, LATERAL (SELECT max(v) AS m FROM STREAM t WHERE t.k = e.k) x", depends("e.k"), "e.k"),
        # keys
        ("SELECT * FROM (SELECT *, count(*) AS n FROM STREAM t GROUP BY ALL) x", BEHIND, "*"),
        ("SELECT DISTINCT * FROM STREAM t LIMIT 3", BEHIND, None),
        ("SELECT t.*, count(*) AS n FROM STREAM t GROUP BY k, v LIMIT 1", HIDDEN, None),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY 3 LIMIT 1", ORDINAL.format(3), "3"),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY 2 LIMIT 1", ORDINAL.format(2), "2"),
        ("SELECT a, count(*) AS n FROM STREAM t GROUP BY a, ROLLUP (a)", TWICE, None),
        ("SELECT v AS k, count(*) AS n FROM STREAM t GROUP BY v, k", MEANINGS.format("v"), "k"),
        ("SELECT 'x' AS k, count(*) AS n FROM STREAM t GROUP BY k LIMIT 1", MEANINGS.format("'x'"), "k"),
        # others
        ("SELECT k, newest(v) AS n FROM STREAM t GROUP BY k ORDER BY n", NOT_IDEMPOTENT, "newest(v)"),
    ],
)
def test_what_cannot_be_kept_up_to_date_is_refused_with_its_place(query: str, message: str, marked: str | None) -> None:
    with pytest.raises(SqlextError) as caught:
        plan(query)
    assert (type(caught.value), caught.value.message) == (UnsupportedError, message)
    position = caught.value.position
    assert position is not None
    assert marked in (None, query[position.start : position.stop])


APPENDED = (
    "Written as they come, committed together: execution.flush.max-interval is 2 min (SET). Each row counts and none replaces "
    "another, so micro-batches write files of the table, and a flush adds them in one commit."
)
REGISTERED = "Not buffered, one commit per micro-batch: the function newest is registered as not output-idempotent."


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM STREAM t", APPENDED),
        ("SELECT k, upper(v) AS v FROM STREAM t WHERE v > 1", APPENDED),
        ("SELECT t.k FROM STREAM t JOIN STREAM u ON t.k = u.k", APPENDED),
        ("SELECT k FROM STREAM t UNION ALL SELECT k FROM STREAM u", APPENDED),
        ("SELECT k, n FROM STREAM t UNION ALL SELECT k, count(*) AS n FROM d GROUP BY k", APPENDED),
        ("SELECT k FROM STREAM t JOIN (SELECT k, count(*) AS n FROM d GROUP BY k) c USING (k)", APPENDED),
        ("SELECT k FROM STREAM t WHERE k IN (SELECT k FROM d ORDER BY k LIMIT 3)", APPENDED),
        ("WITH c AS (SELECT * FROM STREAM t) SELECT k FROM c", APPENDED),
        ("SELECT k FROM STREAM t LATERAL VIEW explode(xs) e AS x", APPENDED),
        ("SELECT k, newest(v) AS n FROM STREAM t GROUP BY k", REGISTERED),
        ("SELECT k, 1 + newest(v) AS n FROM STREAM t GROUP BY k HAVING n > 1", REGISTERED),
    ],
)
def test_explain_says_why_rows_are_not_buffered(query: str, reason: str) -> None:
    given: LevelTexts = {Level.SESSION: {"execution.flush.max-interval": ValueText("2 min")}}
    options = FlowOptions.of_plan(plan(query), given, lambda _: timedelta(minutes=2))
    assert reason in lines_of(explain_flow(plan(query), options, "x"))
