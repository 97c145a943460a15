"""The dialect: a query comes back as written, save for the part that was changed; our clauses are nodes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlglot import exp
from sqlglot.parsers.databricks import DatabricksParser

from sqlext.errors import SyntaxProblem
from sqlext.sql.dialect import parse_query, to_sql
from sqlext.sql.nodes import HintCall, Stream, StreamOption
from sqlext.sql.source_text import position_of
from sqlext.sql.trees import is_aggregate_call
from tests.support import written_anew

SELECTS = [
    # literals
    "SELECT 1L, 2S, 3Y, 1.5, 1.5D, 2.5F, 3.14BD, 1e10, .5, -7, +8 FROM t",
    "SELECT 'it\\'s', \"double quoted\", r'raw\\n', R\"raw\\t\", '' FROM t",
    "SELECT X'1F', x'deadbeef', true, FALSE, NULL FROM t",
    "SELECT DATE '2024-01-31', TIMESTAMP '2024-01-31 12:00:00', TIMESTAMP_NTZ'2024-01-31 12:00:00', date'2024-02-29' FROM t",
    "SELECT INTERVAL 5 MINUTES, INTERVAL '1-2' YEAR TO MONTH, INTERVAL '3 04:05:06' DAY TO SECOND, INTERVAL 1 DAY 2 HOURS FROM t",
    "SELECT at + INTERVAL '10' SECOND, at - interval 2 weeks FROM t",
    # expressions
    "SELECT a + b * c / d % e - -f, a DIV b, a || b, ~a, a & b | c ^ d, a << 1, a >> 1 >>> 2 FROM t",
    "SELECT a <=> b, a <> b, a != b, a == b, NOT a, a AND b OR c, a BETWEEN 1 AND 2, a NOT BETWEEN 1 AND 2 FROM t",
    "SELECT a LIKE 'x!%' ESCAPE '!', a ILIKE 'X%', a RLIKE r'\\d+', a REGEXP 'x', a NOT LIKE 'y', a LIKE ANY ('x', 'y') FROM t",
    "SELECT a IN (1, 2), a NOT IN (SELECT b FROM u), EXISTS (SELECT 1 FROM u), a IS NULL, a IS NOT NULL, a IS TRUE FROM t",
    "SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM b FROM t",
    "SELECT CASE WHEN a > 1 THEN 'x' WHEN a IS NULL THEN 'y' ELSE 'z' END, CASE a WHEN 1 THEN 2 END FROM t",
    "SELECT CAST(a AS DECIMAL(10, 2)), TRY_CAST(a AS INT), a::string, a::ARRAY<STRUCT<x: INT, y: MAP<STRING, DATE>>> FROM t",
    "SELECT s.a.b, m['k'], xs[0], s.xs[1].y, `odd name`.`a``b`, db.t.a FROM t",
    "SELECT array(1, 2), map('a', 1), named_struct('x', 1), struct(a, b AS c), (1, 'two') FROM t",
    "SELECT v:a.b, v:items[0].price::double, v:['x'] FROM t",
    "SELECT :p + 1, ? FROM t WHERE a = :q",
    # functions
    "SELECT transform(xs, x -> x + 1), filter(xs, (x, i) -> x > i), aggregate(xs, 0, (acc, x) -> acc + x, acc -> acc * 2) FROM t",
    "SELECT exists(xs, x -> x IS NULL), zip_with(a, b, (x, y) -> struct(x, y)), map_filter(m, (k, v) -> k > v) FROM t",
    "SELECT extract(YEAR FROM d), date_trunc('DAY', ts), trim(BOTH 'x' FROM s), substring(s FROM 2), position('b' IN s) FROM t",
    "SELECT date_add(d, 1), dateadd(MONTH, 3, d), timestampdiff(MINUTE, a, b), current_date, current_timestamp(), now() FROM t",
    "SELECT if(a, b, c), nvl(a, b), ifnull(a, b), coalesce(a, b, c), decode(a, 1, 'x', 'y'), greatest(a, b) FROM t",
    "SELECT my_udf(a), db.my_udf(a, b), cat.db.my_udf(x => 1, y => 'a'), `odd name`(1) FROM t",
    "SELECT from_json(s, 'a INT, b STRING'), to_json(struct(a)), get_json_object(s, '$.a'), parse_json(s) FROM t",
    "SELECT stack(2, 1, 'a', 2, 'b') AS (n, s) FROM t",
    # aggregates and windows
    "SELECT count(*), count(DISTINCT a, b), sum(ALL c), avg(d) FILTER (WHERE d > 0) FROM t",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v), listagg(s, ', ') WITHIN GROUP (ORDER BY s DESC), mode(x) FROM t",
    "SELECT first(a) IGNORE NULLS, last(a IGNORE NULLS), any_value(b), max_by(a, b), approx_percentile(v, 0.9) FROM t",
    "SELECT k, sum(v) AS s FROM t GROUP BY k HAVING s > 10 AND count(*) > 1 ORDER BY s DESC NULLS LAST, k LIMIT 10 OFFSET 5",
    "SELECT a, b, sum(c) FROM t GROUP BY ROLLUP (a, b)",
    "SELECT a > 1, sum(c) FROM t GROUP BY ROLLUP (a > 1, b IS NULL AND NOT c), CUBE ((a, b = 2)), GROUPING SETS ((a < 1), ())",
    "SELECT a, b, sum(c) FROM t GROUP BY a, b WITH CUBE",
    "SELECT a, b, sum(c) FROM t GROUP BY GROUPING SETS ((a, b), (a), ())",
    "SELECT a, grouping(a), sum(c) FROM t GROUP BY ALL",
    "SELECT window(at, '10 minutes', '5 minutes').start AS w, count(*) FROM t GROUP BY window(at, '10 minutes', '5 minutes')",
    "SELECT session_window(at, '5 min') AS w, k, count(*) FROM t GROUP BY session_window(at, '5 min'), k",
    "SELECT row_number() OVER (PARTITION BY a ORDER BY b DESC), lag(v, 2, 0) OVER (ORDER BY at) FROM t",
    "SELECT sum(v) OVER w AS a, avg(v) OVER (w ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) FROM t WINDOW w AS (PARTITION BY k)",
    "SELECT sum(v) OVER (ORDER BY at RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND UNBOUNDED FOLLOWING) FROM t",
    "SELECT a FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b) = 1",
    # relations
    "SELECT * FROM a JOIN b ON a.k = b.k LEFT JOIN c USING (k, l) RIGHT OUTER JOIN d ON true",
    "SELECT * FROM a CROSS JOIN b NATURAL JOIN c LEFT SEMI JOIN d USING (k) LEFT ANTI JOIN e ON a.k = e.k",
    "SELECT * FROM a FULL OUTER JOIN b USING (k)",
    "SELECT x.* EXCEPT (a), y.b AS c FROM db.t AS x, (SELECT 1 AS b) y",
    "SELECT k, v FROM t LATERAL VIEW explode(xs) e AS v LATERAL VIEW OUTER posexplode(ys) f AS i, w",
    "SELECT * FROM t, LATERAL (SELECT t.a + 1 AS b) AS l",
    "SELECT * FROM t JOIN LATERAL explode(t.xs) AS e(x) ON true",
    "SELECT * FROM t PIVOT (sum(v) AS s, max(v) AS m FOR k IN ('a' AS x, 'b' AS y))",
    "SELECT * FROM t UNPIVOT (v FOR k IN (a, b, c))",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT) REPEATABLE (7)",
    "SELECT * FROM t VERSION AS OF 3",
    "SELECT * FROM t TIMESTAMP AS OF '2024-01-01' AS old",
    "SELECT * FROM range(1, 10, 2) AS r(n) WHERE n > 3",
    "SELECT * FROM my_tvf(a => 1, b => 'x') AS f",
    "SELECT * FROM my_tvf(TABLE(orders), 3)",
    "SELECT * FROM VALUES (1, 'a'), (2, 'b') AS v(n, s)",
    "SELECT * FROM delta.`/data/events` AS e",
    "SELECT * FROM IDENTIFIER('db.' || 't')",
    "SELECT * FROM `my db`.`my table` `my alias`",
    "SELECT a FROM t WHERE a > (SELECT avg(a) FROM t) AND b IN (SELECT b FROM u WHERE u.k = t.k)",
    "SELECT a FROM (SELECT a FROM (SELECT a FROM t WHERE a > 1) x WHERE a > 2) y",
    # clauses
    "SELECT DISTINCT a, b FROM t",
    "SELECT ALL a FROM t",
    "SELECT a FROM t DISTRIBUTE BY a SORT BY b DESC",
    "SELECT a FROM t CLUSTER BY a",
    "SELECT a AS `select`, b c, d AS e FROM t",
    "FROM t SELECT a, count(*) GROUP BY a",
    "SELECT /*+ BROADCAST(d), REPARTITION(3, k) */ * FROM t JOIN d USING (k)",
    "SELECT /*+ COALESCE(1) */ /*+ MERGE(t) */ a FROM t",
    "WITH a AS (SELECT 1 AS x), b (y) AS (SELECT x FROM a) SELECT x + y FROM a, b",
    "WITH a AS (WITH a AS (SELECT 1 AS n) SELECT n + 1 AS n FROM a) SELECT n FROM a",
    "SELECT * FROM (WITH q AS (SELECT 2 AS z) SELECT z FROM q) WHERE z IN (WITH r AS (SELECT 2 AS z) SELECT z FROM r)",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 10) SELECT n FROM r",
    # comments and white space
    "SELECT a, -- the first\n       b  /* the second */\nFROM   t\nWHERE  a > 1 -- not all\n  AND  b < 2",
    "select\ta ,\r\n\tb\r\nfrom t where a>1 and b<2",
    "SELECT /* a /* nested */ comment */ a FROM t",
    # streams
    "SELECT k, count(*) AS n FROM STREAM t GROUP BY k",
    "SELECT * FROM STREAM(t) WITH ('maxFilesPerTrigger' = '1') AS s WHERE v > 1L",
    "SELECT * FROM STREAM a AS x JOIN STREAM b WATERMARK at DELAY OF INTERVAL 1 HOUR AS y ON x.k = y.k JOIN c USING (k)",
    "SELECT * FROM stream delta.`/x` , STREAM read_files('/data', format => 'json') f",
    "SELECT k, count(*) FROM t GROUP BY k GLOBAL WINDOW END OF STREAM ORDER BY k",
]
OTHERS = [
    "SELECT a FROM t UNION ALL SELECT b FROM u",
    "(SELECT a FROM t) EXCEPT (SELECT a FROM u) UNION ALL SELECT 1 ORDER BY 1",
    "SELECT a FROM t INTERSECT SELECT a FROM u",
    "SELECT sum(v) OVER (ORDER BY at ROWS 3 PRECEDING), sum(v) OVER (ORDER BY at RANGE UNBOUNDED PRECEDING) FROM t",
    "SELECT 'adjacent ' 'strings', 'it''s', \"double \"\"quoted\"\"\" FROM t",
    "SELECT a FROM t MINUS ALL SELECT 1L",
    "(SELECT a FROM t ORDER BY a LIMIT 3)",
    "FROM t |> WHERE a > 1L |> AGGREGATE sum(b) AS s GROUP BY c |> ORDER BY s",
    "SELECT * FROM (FROM t |> SELECT a) WHERE a = r'x'",
    "FROM STREAM t |> WHERE a > 1 |> EXTEND a * 2 AS b |> SELECT a, b",
]
QUERIES = [*SELECTS, *OTHERS]


def parts_of(query: exp.Expr) -> Iterator[exp.Expr]:
    """The pieces of a select that are written on their own: list items, relations, conditions, keys, CTEs."""
    yield from query.expressions
    for clause in ("from_", "where", "having", "qualify"):
        if node := query.args.get(clause):
            yield node.this
    for join in query.args.get("joins") or []:
        yield join.this
        if "on" in join.args:
            yield join.args["on"]
    for clause in ("group", "order", "with_"):
        if node := query.args.get(clause):
            yield from node.expressions


def test_there_are_many_and_each_stands_once() -> None:
    assert len(QUERIES) >= 80
    assert len(set(QUERIES)) == len(QUERIES)


@pytest.mark.parametrize("query", QUERIES)
def test_an_unchanged_query_comes_back_byte_for_byte(query: str) -> None:
    assert to_sql(parse_query(query), query) == query


@pytest.mark.parametrize("query", QUERIES)
def test_blanks_around_the_query_are_no_part_of_it(query: str) -> None:
    source = f"   \n  {query}  \n "
    assert to_sql(parse_query(source), source) == query


@pytest.mark.parametrize("query", QUERIES)
def test_writing_a_query_does_not_change_its_tree(query: str) -> None:
    tree = parse_query(query)
    tree.set("limit", exp.Limit(expression=exp.Literal.number(1)))  # so that it has to be written anew
    before = tree.copy()
    to_sql(tree, query)
    assert tree == before


@pytest.mark.parametrize("query", SELECTS)
def test_all_but_an_added_column_keeps_its_text(query: str) -> None:
    tree = parse_query(query)
    assert isinstance(tree, exp.Select)
    parts = [to_sql(part, query) for part in parts_of(tree)]
    tree.append("expressions", exp.alias_("42", "added"))
    changed = to_sql(tree, query)

    assert [part for part in parts if part not in query] == []
    assert [part for part in parts if part not in changed] == []
    assert changed.count("42 AS added") == 1
    assert parse_query(changed) == tree


@pytest.mark.parametrize("query", SELECTS)
def test_all_but_a_replaced_literal_keeps_its_text(query: str) -> None:
    for index in range(len(list(parse_query(query).find_all(exp.Literal)))):
        tree = parse_query(query)
        literal = list(tree.find_all(exp.Literal))[index]
        others = [to_sql(p, query) for p in parts_of(tree) if not any(node is literal for node in p.walk())]
        literal.replace(exp.Literal.string("new") if literal.is_string else exp.Literal.number(987))
        changed = to_sql(tree, query)

        assert [part for part in others if part not in changed] == [], changed
        assert parse_query(changed) == tree, changed


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT k, count(*) n, r'a\\b' FROM STREAM t AS x GROUP BY k HAVING n > 1L AND k <> 'a' ORDER BY  k",
            "SELECT k, count(*) n, r'a\\b', 42 AS added FROM STREAM t AS x GROUP BY k HAVING n > 1L AND k <> 'a' ORDER BY k",
        ),
        (
            "WITH  c AS (SELECT 1S) , d AS (SELECT  2)\nSELECT *\nFROM c -- why\nWHERE  a  =  1Y\nLIMIT 3",
            "WITH c AS (SELECT 1S), d AS (SELECT  2) SELECT *, 42 AS added FROM c WHERE a  =  1Y LIMIT 3",
        ),
        (
            "select * from a left join stream (b) with ('x'='y')  as c on a.k=c.k",
            "SELECT *, 42 AS added FROM a LEFT JOIN stream (b) with ('x'='y')  as c ON a.k=c.k",
        ),
        (
            "SELECT a FROM t GROUP BY ALL GLOBAL WINDOW END OF STREAM LIMIT 3",
            "SELECT a, 42 AS added FROM t GROUP BY ALL GLOBAL WINDOW END OF STREAM LIMIT 3",
        ),
    ],
)
def test_only_the_frame_of_a_changed_select_is_written_anew(query: str, expected: str) -> None:
    tree = parse_query(query)
    tree.append("expressions", exp.alias_("42", "added"))
    assert to_sql(tree, query) == expected


def test_the_other_side_of_a_changed_condition_keeps_its_text() -> None:
    query = "SELECT a FROM t WHERE b = 1 AND percentile_cont( 0.5 ) WITHIN GROUP (ORDER BY v) > 1L AND c  =  r'\\d'"
    tree = parse_query(query)
    literal = next(node for node in tree.find_all(exp.Literal) if node.name == "1")
    literal.replace(exp.Literal.number(2))
    assert to_sql(tree, query) == query.replace("b = 1", "b = 2")


def test_a_copy_keeps_its_text_too() -> None:
    query = "SELECT a ,  1L FROM STREAM t"
    assert to_sql(parse_query(query).copy(), query) == query


def test_a_node_that_moved_takes_its_text_along() -> None:
    query = "SELECT a FROM t WHERE a  >  1L"
    tree = parse_query(query)
    condition = tree.args["where"].this
    tree.set("where", None)
    tree.append("expressions", exp.alias_(condition, "big"))
    assert to_sql(tree, query) == "SELECT a, a  >  1L AS big FROM t"


def test_the_order_of_set_operations_survives_a_change() -> None:
    query = "SELECT a FROM t EXCEPT SELECT a FROM u INTERSECT SELECT 1"
    tree = parse_query(query)
    next(tree.find_all(exp.Literal)).replace(exp.Literal.number(2))
    assert parse_query(to_sql(tree, query)) == parse_query("SELECT a FROM t EXCEPT (SELECT a FROM u INTERSECT SELECT 2)")


# STREAM


def stream_of(query: str) -> Stream:
    (stream,) = parse_query(query).find_all(Stream)
    return stream


TABLES = {"t": "t", "db.t": "t", "cat.db.`t t`": "t t", "(t)": "t", "(db.t)": "t", "`stream`": "stream", "stream": "stream"}
OPTIONS = {"": {}, "WITH ('a' = 'b', c.d-e = 2, `f` \"g\")": {"a": "b", "c.d-e": "2", "f": "g"}}
WATERMARKS = [
    "",
    "WATERMARK at DELAY OF INTERVAL 5 MINUTES",
    "watermark timestamp_seconds(at) AS ts delay of interval '1' hour",
]
ALIASES = {"": "", "AS s": "s", "s": "s", "AS `s s`": "s s"}


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("watermark", WATERMARKS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("table", TABLES)
def test_a_stream_with_any_of_its_clauses(table: str, options: str, watermark: str, alias: str) -> None:
    relation = " ".join(part for part in (f"STREAM {table}", options, watermark, alias) if part)
    query = f"SELECT * FROM {relation} WHERE a > 1"
    tree = parse_query(query)
    (stream,) = tree.find_all(Stream)

    assert stream.this.name == TABLES[table]
    assert {option.name: option.args["value"] for option in stream.args.get("options") or []} == OPTIONS[options]
    assert (stream.args["watermark"].this if watermark else "") == watermark
    assert stream.alias == ALIASES[alias]
    assert to_sql(stream, query) == relation
    assert to_sql(tree, query) == query

    stream.set("alias", exp.TableAlias(this=exp.to_identifier("z")))
    changed = " ".join(part for part in (f"STREAM {table.strip('()')}", options, watermark, "AS z") if part)
    assert to_sql(stream, query) == changed


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM STREAM a JOIN STREAM b ON a.k = b.k",
        "SELECT * FROM STREAM a, STREAM b",
        "SELECT * FROM STREAM(a) WITH ('x' = 'y') LEFT JOIN STREAM (b) AS c USING (k)",
        "SELECT * FROM STREAM a UNION ALL SELECT * FROM stream b",
        "SELECT * FROM (SELECT * FROM STREAM a) x JOIN (SELECT * FROM STREAM b) y USING (k)",
        "WITH x AS (SELECT * FROM STREAM a) SELECT * FROM x WHERE k IN (SELECT k FROM STREAM b)",
    ],
)
def test_streams_stand_wherever_a_relation_does(query: str) -> None:
    tree = parse_query(query)
    assert sorted(stream.this.name for stream in tree.find_all(Stream)) == ["a", "b"]
    assert to_sql(tree, query) == query


def test_a_stream_may_be_a_table_function() -> None:
    query = "SELECT * FROM STREAM read_files('/data', format => 'json') AS f"
    assert stream_of(query).alias == "f"
    assert to_sql(stream_of(query).this, query) == "read_files('/data', format => 'json')"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT stream, s.stream, stream.k FROM stream",
        "SELECT * FROM stream AS s",
        "SELECT * FROM stream WHERE k > 1",
        "SELECT * FROM stream JOIN flow USING (k)",
        "SELECT * FROM a, stream",
        "SELECT * FROM (stream)",
        "SELECT * FROM `stream` s",
    ],
)
def test_a_table_may_be_called_stream(query: str) -> None:
    tree = parse_query(query)
    assert not tree.find(Stream)
    assert "stream" in [table.name for table in tree.find_all(exp.Table)]
    assert to_sql(tree, query) == query


@pytest.mark.parametrize("written", ["'a.b' = 'c'", '"a.b"="c"', "`a.b` 'c'", "a.b = c", "a.b 'c'", "'a.b'\n=\n'c'"])
def test_a_streams_option_is_kept_as_written(written: str) -> None:
    query = f"SELECT * FROM STREAM t WITH (x = 1, {written})"
    option = list(stream_of(query).find_all(StreamOption))[1]
    assert (option.name, option.args["value"], option.args["source"]) == ("a.b", "c", written)
    position = position_of(option, query)
    assert position is not None
    assert query[position.start : position.stop] == written


# GLOBAL WINDOW END OF STREAM

CLAUSE = "GLOBAL WINDOW END OF STREAM"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT k, count(*) FROM t GROUP BY k {CLAUSE}",
        f"SELECT k, count(*) FROM t GROUP BY k HAVING count(*) > 1 {CLAUSE}",
        f"SELECT k, count(*) FROM t GROUP BY ALL {CLAUSE}",
        f"SELECT k, count(*) FROM t GROUP BY k WITH ROLLUP {CLAUSE}",
        f"SELECT k, count(*) FROM t GROUP BY window(at, '5 min'), k {CLAUSE}",
        f"SELECT count(*) FROM t {CLAUSE}",
        f"SELECT count(*) FROM t AS x {CLAUSE}",
        f"SELECT count(*) FROM t x {CLAUSE}",
        f"SELECT count(*) FROM t WHERE k > 1 {CLAUSE}",
        f"SELECT count(*) FROM STREAM t {CLAUSE}",
        f"SELECT count(*) FROM STREAM t WITH ('a' = 'b') {CLAUSE}",
        f"SELECT count(*) FROM STREAM t WATERMARK at DELAY OF INTERVAL 1 DAY {CLAUSE}",
        f"SELECT count(*) FROM (SELECT * FROM t) {CLAUSE}",
        f"SELECT count(*) FROM range(3) {CLAUSE}",
        f"SELECT count(*) FROM a JOIN b ON a.k = b.k {CLAUSE}",
        f"SELECT count(*) FROM a JOIN b USING (k) {CLAUSE}",
        f"SELECT count(*) FROM a, b {CLAUSE}",
        f"SELECT x FROM t LATERAL VIEW explode(xs) e AS x {CLAUSE}",
        f"SELECT k FROM t GROUP BY k {CLAUSE} ORDER BY k LIMIT 3",
        "SELECT k FROM t GROUP BY k global\nwindow /* at the */ end of stream",
    ],
)
def test_end_of_stream_belongs_to_the_select_it_stands_in(query: str) -> None:
    tree = parse_query(query)
    assert tree.args.get("end_of_stream")
    assert [bool(select.args.get("end_of_stream")) for select in tree.find_all(exp.Select)].count(True) == 1
    assert to_sql(tree, query) == query

    tree.append("expressions", exp.alias_("42", "added"))
    changed = to_sql(tree, query)
    assert parse_query(changed) == tree
    assert changed.count(CLAUSE) == 1


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT * FROM (SELECT k FROM t GROUP BY k {CLAUSE}) x",
        f"SELECT * FROM STREAM o JOIN (SELECT k FROM t GROUP BY k {CLAUSE}) c USING (k)",
        f"WITH c AS (SELECT k FROM t GROUP BY k {CLAUSE}) SELECT * FROM c",
        f"SELECT k FROM t GROUP BY k {CLAUSE} UNION ALL SELECT 1",
        f"(SELECT k FROM t GROUP BY k {CLAUSE})",
    ],
)
def test_end_of_stream_in_a_part_of_a_query(query: str) -> None:
    tree = parse_query(query)
    assert not tree.args.get("end_of_stream")
    assert [select.args["from_"].this.name for select in tree.find_all(exp.Select) if select.args.get("end_of_stream")] == ["t"]
    assert to_sql(tree, query) == query


def test_the_words_of_the_clause_are_names_elsewhere() -> None:
    query = "SELECT global, window, end, of, stream AS global FROM global"
    tree = parse_query(query)
    assert not tree.args.get("end_of_stream")
    assert to_sql(tree, query) == query


# Hints


def hints_of(query: str) -> list[tuple[str, list[str], str]]:
    """Name, arguments and text of every hint."""
    found = parse_query(query).find_all(HintCall)
    return [(hint.name, hint.args.get("arguments") or [], hint.args["source"]) for hint in found]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("/*+ A(x) */", [("A", ["x"], "A(x)")]),
        ("/*+a*/", [("A", [], "a")]),
        ("/*+ a() */", [("A", [], "a()")]),
        ("/*+ A('2 min'), b (x, 3) */", [("A", ["2 min"], "A('2 min')"), ("B", ["x", "3"], "b (x, 3)")]),
        ("/*+ A(x) B(y) C */", [("A", ["x"], "A(x)"), ("B", ["y"], "B(y)"), ("C", [], "C")]),
        ("/*+ A(x) */ /*+ B(y) */", [("A", ["x"], "A(x)"), ("B", ["y"], "B(y)")]),
        ("/* c */ /*+ A(x) */ -- d\n", [("A", ["x"], "A(x)")]),
        ("/*+ A(x) -- the first\n, B(y) */", [("A", ["x"], "A(x)"), ("B", ["y"], "B(y)")]),
        ('/*+ A(db.t, `x y`, "z") */', [("A", ["db.t", "x y", "z"], 'A(db.t, `x y`, "z")')]),
        ("/*+ A(INTERVAL '2' MINUTES) */", [("A", ["INTERVAL '2' MINUTES"], "A(INTERVAL '2' MINUTES)")]),
        ("/*+ A('it, (s)') */", [("A", ["it, (s)"], "A('it, (s)')")]),
    ],
)
def test_hints_are_read_one_by_one(written: str, expected: list[tuple[str, list[str], str]]) -> None:
    assert hints_of(f"SELECT {written} k FROM t") == expected


def test_a_hint_stands_where_it_was_written() -> None:
    query = "SELECT\n  /*+ A(x),\n      B(y) */ k FROM t"
    positions = [position_of(hint, query) for hint in parse_query(query).find_all(HintCall)]
    assert [(p.line, p.column, query[p.start : p.stop]) for p in positions if p] == [(2, 7, "A(x)"), (3, 7, "B(y)")]


def test_the_hints_that_stay_are_written_as_they_were() -> None:
    query = "SELECT /*+ a( x ),B('y'), C */ k FROM t"
    tree = parse_query(query)
    next(tree.find_all(HintCall)).pop()
    assert to_sql(tree, query) == "SELECT /*+ B('y'), C */ k FROM t"


def test_a_hint_that_is_not_after_select_is_an_error() -> None:
    with pytest.raises(SyntaxProblem) as caught:
        parse_query("SELECT DISTINCT /*+ A(x) */ k FROM t")
    assert caught.value.position is not None
    assert caught.value.position.column == 17


# Errors


@pytest.mark.parametrize(
    ("query", "word", "line", "column"),
    [
        ("SELECT a FROM t WHERE", "WHERE", 1, 17),
        ("SELECT a\nFROM t\n  GROUP k", "k", 3, 9),
        ("SELECT a,\n  (b + FROM t", "FROM", 2, 8),
        ("SELECT a FROM STREAM t WITH ('a')", ")", 1, 33),
        ("SELECT a FROM STREAM t WITH ('a' = )", ")", 1, 36),
        ("SELECT a FROM STREAM t WITH ()", ")", 1, 30),
        ("SELECT a FROM STREAM t WATERMARK at INTERVAL 1 DAY", "INTERVAL", 1, 37),
        ("SELECT a FROM STREAM t\n  WATERMARK at DELAY OF 1 DAY", "1", 2, 25),
        ("SELECT a FROM STREAM (t", "t", 1, 23),
        ("SELECT a FROM t\r\nWHERE a = = 1", "=", 2, 11),
        ("SELECT é, 'ü' FROM t GROUP BY a b c", "b", 1, 33),
        ("SELECT a FROM t extra garbage", "garbage", 1, 23),
    ],
)
def test_a_syntax_error_says_where(query: str, word: str, line: int, column: int) -> None:
    with pytest.raises(SyntaxProblem) as caught:
        parse_query(query)
    position = caught.value.position
    assert position is not None
    assert (query[position.start : position.stop], position.line, position.column) == (word, line, column)
    assert f"near `{word}`" in caught.value.message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "nothing"),
        ("  -- only a comment", "nothing"),
        ("INSERT INTO t SELECT 1", "INSERT"),
        ("DROP TABLE t", "DROP"),
        ("UPDATE t SET a = 1", "UPDATE"),
    ],
)
def test_only_a_query_is_a_query(text: str, what: str) -> None:
    with pytest.raises(SyntaxProblem, match=rf"Expected a query \(SELECT ..\) here; found {what}\."):
        parse_query(text)


def test_that_no_query_is_there_is_said_at_its_first_character() -> None:
    with pytest.raises(SyntaxProblem) as caught:
        parse_query("  \n   DROP TABLE t")
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column) == (2, 4)


def test_a_string_without_end_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxProblem, match="cannot be split into tokens"):
        parse_query("SELECT 'a FROM t")


@pytest.mark.parametrize(
    "aggregates",
    ["listagg(v)", "percentile(v, 0.5, n)", "min_by(v, n, 3) AS m, array_agg(v) AS a", "count_if(v > 1) c, Max( v ) AS d"],
)
def test_the_aggregates_of_pivot_stay_as_written(aggregates: str) -> None:
    assert written_anew(f"SELECT * FROM (SELECT v, n, k FROM t) PIVOT ({aggregates} FOR k IN ('a'))").endswith(
        f" PIVOT({aggregates} FOR k IN ('a'))"
    )


def test_all_arguments_of_percentile_are_in_the_tree() -> None:
    call = parse_query("SELECT percentile(DISTINCT v, 0.5, n) FROM t").expressions[0]
    assert is_aggregate_call(call)
    assert {column.name for column in call.find_all(exp.Column)} == {"v", "n"}


@pytest.mark.parametrize(
    ("query", "anew"),
    [
        ("SELECT * FROM d JOIN (TABLE c) x USING (k)", "SELECT * FROM d JOIN (SELECT * FROM c) AS x USING (k)"),
        ("TABLE c", "SELECT * FROM c"),
        ("TABLE `c d` ORDER BY k", "SELECT * FROM `c d` ORDER BY k"),
        ("SELECT 1 UNION ALL TABLE c", "SELECT 1 UNION ALL SELECT * FROM c"),
        ("WITH c AS (TABLE d) TABLE c", "WITH c AS (SELECT * FROM d) SELECT * FROM c"),
        ("SELECT k FROM t WHERE k IN (TABLE c)", "SELECT k FROM t WHERE k IN (SELECT * FROM c)"),
        ("SELECT * FROM IDENTIFIER('c') x", "SELECT * FROM `c` AS x"),
        ("SELECT * FROM STREAM IDENTIFIER('a.`b``c`')", "SELECT * FROM STREAM `a`.`b``c`"),
    ],
)
def test_what_table_and_identifier_name_is_in_the_tree(query: str, anew: str) -> None:
    tree = parse_query(query)
    assert to_sql(tree, query) == query
    for each in tree.walk():
        each.meta.clear()
    assert to_sql(tree, "") == anew


TABLE_COLUMNS = [
    f"SELECT k FROM t WHERE (table {rest}) GROUP BY (table)"
    for rest in ("IS NULL", "AND a", "DIV b > 1", "LIKE 'x'", "IN (1)", "BETWEEN 1 AND 2", "COLLATE x = 'a'", "NOT IN (3)", "= 1")
]


@pytest.mark.parametrize(
    "query", ["SELECT table x FROM t", "SELECT DISTINCT table t FROM table u", "SELECT * FROM a, table b", *TABLE_COLUMNS]
)
def test_a_column_or_table_may_be_called_table(query: str) -> None:
    assert len(list(parse_query(query).find_all(exp.Select))) == 1


@pytest.mark.parametrize(
    ("query", "anew"),
    [
        (
            "SELECT * FROM (SELECT a FROM t) TABLESAMPLE (10 PERCENT) x",
            "SELECT * FROM (SELECT a FROM t) TABLESAMPLE (10 PERCENT) AS x",
        ),
        ("SELECT sum(a) OVER (CLUSTER BY b, c) FROM t", "SELECT SUM(a) OVER (PARTITION BY b, c) FROM t"),
        ("SELECT a !> b, a !< b, a != b FROM t CLUSTER BY a", "SELECT a <= b, a >= b, a <> b FROM t CLUSTER BY a"),
    ],
)
def test_what_spark_reads_otherwise(query: str, anew: str) -> None:
    tree = parse_query(query)
    assert to_sql(tree, query) == query
    for each in tree.walk():
        each.meta.clear()
    assert to_sql(tree, "") == anew


def test_a_line_comment_goes_on_behind_a_backslash() -> None:
    query = "SELECT v, at -- from C:\\data\\\n WHERE v > 1\nFROM t"
    assert parse_query(query).args.get("where") is None
    assert written_anew(query) == "SELECT v, at FROM t"


def test_a_comment_may_stand_in_a_keyword_of_two_words() -> None:
    query = "SELECT sum(v) OVER (PARTITION /* for each */ BY k) FROM t GROUP -- all\n BY k, v ORDER /* by */ BY k"
    assert {"group", "order"} <= {name for name, value in parse_query(query).args.items() if value}


@pytest.mark.parametrize("name", ["window", "offset", "limit", "lock", "values"])
def test_a_key_may_be_called_as_a_clause(name: str) -> None:
    query = f"SELECT k, count(*) FROM t GROUP BY {name}, k HAVING count(*) > 1 LIMIT 3"
    tree = parse_query(query)
    assert [key.name for key in tree.args["group"].expressions] == [name, "k"]
    assert tree.args["limit"] is not None
    parse_query(f"SELECT * FROM (SELECT {name} FROM t GROUP BY {name}) AS x JOIN u USING (k)")
    assert parse_query("SELECT values, window AS w FROM t").named_selects == ["values", "w"]
    assert parse_query("SELECT sum(v) OVER w FROM t GROUP BY window WINDOW w AS (ORDER BY v)").args["windows"]


def test_the_name_of_a_stream_may_begin_with_a_digit() -> None:
    assert stream_of("SELECT * FROM STREAM 2024_events").this.name == "2024_events"


def test_the_alias_of_a_lateral_view_keeps_its_backticks() -> None:
    query = "SELECT * FROM t LATERAL VIEW OUTER explode(xs) `my xs` AS `an x`, y LATERAL VIEW explode(ys) AS z"
    assert written_anew(query) == query


def test_whatever_sqlglot_fails_with_is_a_syntax_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DatabricksParser, "_parse_group", lambda _: [][0])
    with pytest.raises(SyntaxProblem, match="cannot be read: sqlglot fails with IndexError"):
        parse_query("SELECT a FROM t GROUP BY a")


def test_a_comma_between_relations_stays_a_comma() -> None:
    text = "SELECT x FROM a, b AS c JOIN d ON c.x = d.x, e"
    tree = parse_query(text)
    tree.set("expressions", [exp.column("y")])
    assert to_sql(tree, text) == "SELECT y FROM a, b AS c JOIN d ON c.x = d.x, e"
