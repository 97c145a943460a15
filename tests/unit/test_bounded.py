"""GLOBAL WINDOW END OF STREAM: what statements are read as, and what Spark gets for them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sqlext.commands.bounded_statements import without_clauses
from sqlext.errors import OptionError, SqlextError, UnsupportedError
from sqlext.planner.planner import plan_bounded, plan_once
from sqlext.planner.statement_plans import job_of, plan_statement
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query
from sqlext.sql.end_of_stream import is_bounded
from sqlext.sql.grammar import parse
from sqlext.sql.rewriter import Batch, Once
from sqlext.sql.statements import BoundedStatement, CreateStreamingTable, Insert, Query


def query_of(text: str) -> Query:
    return Query(parse_query(text), text)


def spark_sql(text: str, is_sorted: bool = True) -> str:
    return plan_bounded(query_of(text), BATCHES, is_sorted).sql


def called(inner: str, mode: str = "sorted") -> str:
    return f"SELECT * FROM __sqlext_end_of_stream(TABLE({inner}), '{mode}')"


END = "GLOBAL WINDOW END OF STREAM"


@pytest.mark.parametrize(
    ("written", "inner"),
    [
        (f"SELECT k, count(*) FROM t GROUP BY k {END}", "SELECT k, count(*) FROM t GROUP BY k"),
        (f"SELECT count(*) FROM t {END}", "SELECT count(*) FROM t"),
        (f"SELECT k FROM t GROUP BY k HAVING max(v) > 1L {END}", "SELECT k FROM t GROUP BY k HAVING max(v) > 1L"),
        (f"SELECT k FROM t GROUP BY k {END} ORDER BY 1 LIMIT 3", "SELECT k FROM t GROUP BY k ORDER BY 1 LIMIT 3"),
        (f"SELECT a.k FROM a JOIN b USING (k) {END}", "SELECT a.k FROM a JOIN b USING (k)"),
        (f"SELECT count(DISTINCT v) FILTER (WHERE v > 1) FROM t {END}", "SELECT count(DISTINCT v) FILTER (WHERE v > 1) FROM t"),
        (f"WITH c AS (SELECT 1 AS x) SELECT x FROM c GROUP BY x {END}", "WITH c AS (SELECT 1 AS x) SELECT x FROM c GROUP BY x"),
        # streams are read as tables, without their rate limits and our options
        (f"SELECT k FROM STREAM t GROUP BY k {END}", "SELECT k FROM t GROUP BY k"),
        (f"SELECT k FROM STREAM t AS s GROUP BY k {END}", "SELECT k FROM t AS s GROUP BY k"),
        (f"SELECT k FROM STREAM t WITH ('maxFilesPerTrigger' = 1) GROUP BY k {END}", "SELECT k FROM t GROUP BY k"),
        (
            f"SELECT k FROM STREAM t WITH ('maxFilesPerTrigger' = 1, 'startingOffsets' = 'earliest') GROUP BY k {END}",
            "SELECT k FROM t WITH ('startingOffsets' = 'earliest') GROUP BY k",
        ),
        (f"SELECT k FROM STREAM t WITH ('backlog.lag-threshold' = '1 min') GROUP BY k {END}", "SELECT k FROM t GROUP BY k"),
        (
            f"SELECT count(*) FROM STREAM t WATERMARK ts DELAY OF INTERVAL 5 MINUTES {END}",
            "SELECT count(*) FROM t WATERMARK ts DELAY OF INTERVAL 5 MINUTES",
        ),
        # rules are for streams that do not end
        (f"SELECT DISTINCT a FROM STREAM t {END}", "SELECT DISTINCT a FROM t"),
        (f"SELECT count(DISTINCT a), listagg(b) FROM STREAM t {END}", "SELECT count(DISTINCT a), listagg(b) FROM t"),
    ],
)
def test_a_query_becomes_the_argument_of_a_call(written: str, inner: str) -> None:
    assert spark_sql(written) == called(inner)
    assert spark_sql(written, is_sorted=False) == called(inner, "unsorted")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            f"SELECT * FROM (SELECT k FROM t GROUP BY k {END}) x WHERE k > 1",
            f"SELECT * FROM ({called('SELECT k FROM t GROUP BY k')}) AS x WHERE k > 1",
        ),
        (f"SELECT 1 UNION ALL SELECT max(v) FROM t {END}", f"SELECT 1 UNION ALL {called('SELECT max(v) FROM t')}"),
        (
            f"WITH c AS (SELECT k FROM t GROUP BY k {END}) SELECT * FROM c",
            f"WITH c AS ({called('SELECT k FROM t GROUP BY k')}) SELECT * FROM c",
        ),
        # a call stands by itself, so it brings the CTEs that it reads, and only those
        (
            f"WITH a AS (SELECT 1 AS k), z AS (SELECT 2), b AS (SELECT k FROM a GROUP BY k {END}) SELECT * FROM b, z",
            "WITH a AS (SELECT 1 AS k), z AS (SELECT 2), "
            f"b AS ({called('WITH a AS (SELECT 1 AS k) SELECT k FROM a GROUP BY k')}) SELECT * FROM b, z",
        ),
        # one in the other
        (
            f"SELECT max(n) FROM (SELECT count(*) AS n FROM t GROUP BY k {END}) x {END}",
            called(f"SELECT max(n) FROM ({called('SELECT count(*) AS n FROM t GROUP BY k')}) AS x"),
        ),
    ],
)
def test_calls_stand_where_the_queries_stood(written: str, expected: str) -> None:
    assert spark_sql(written) == expected


def test_a_cte_with_the_clause_that_another_reads_is_a_call_in_both() -> None:
    text = f"WITH a AS (SELECT k FROM t GROUP BY k {END}), b AS (SELECT max(k) FROM a {END}) SELECT * FROM b"
    a = called("SELECT k FROM t GROUP BY k")
    assert spark_sql(text) == f"WITH a AS ({a}), b AS ({called(f'WITH a AS ({a}) SELECT max(k) FROM a')}) SELECT * FROM b"


def test_rules_of_users_see_a_bounded_query() -> None:
    def rename(query):  # type: ignore[no-untyped-def]
        return query.transform(lambda node: node)

    plan = plan_bounded(query_of(f"SELECT k FROM t GROUP BY k {END}"), (Batch("mine", Once(), (rename,)),), True)
    assert plan.firings == ()
    assert plan.sql == called("SELECT k FROM t GROUP BY k")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"SELECT k FROM t GROUP BY k {END}", True),
        (f"SELECT k FROM STREAM t GROUP BY k {END}", True),
        (f"SELECT * FROM t JOIN (SELECT k FROM STREAM t GROUP BY k {END}) x USING (k)", True),
        (f"SELECT * FROM STREAM o JOIN (SELECT k FROM t GROUP BY k {END}) x USING (k)", False),
        ("SELECT k FROM t GROUP BY k", False),
    ],
)
def test_a_query_is_bounded_when_no_stream_is_left(text: str, expected: bool) -> None:
    assert is_bounded(query_of(text)) is expected


@pytest.mark.parametrize(
    ("text", "error", "message", "marked"),
    [
        (
            f"SELECT k FROM STREAM t WITH ('startingVersion' = 3) GROUP BY k {END}",
            UnsupportedError,
            "`startingVersion` has no meaning here: a query with GLOBAL WINDOW END OF STREAM reads all that the table holds now. "
            "Leave it out, or filter the rows.",
            "'startingVersion' = 3",
        ),
        (
            f"SELECT /*+ BACKLOG_INTERVAL(x, '1 min') */ k FROM STREAM t GROUP BY k {END}",
            OptionError,
            "The hint BACKLOG_INTERVAL(x, '1 min') names `x`, which is not a stream of this query. Its streams are t.",
            "BACKLOG_INTERVAL(x, '1 min')",
        ),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, error: type[SqlextError], message: str, marked: str) -> None:
    with pytest.raises(error) as caught:
        spark_sql(text)
    assert caught.value.message == message
    assert caught.value.position is not None
    assert text[caught.value.position.start : caught.value.position.stop] == marked


# Statements


@pytest.mark.parametrize(
    ("head", "target"),
    [
        ("", ()),
        ("INSERT INTO t", ("t",)),
        ("INSERT INTO TABLE db.t (a, b)", ("db", "t")),
        ("INSERT INTO t BY NAME", ("t",)),
        ("INSERT OVERWRITE TABLE t PARTITION (p = 1)", ("t",)),
        ("INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet", ()),
        ("INSERT WITH SCHEMA EVOLUTION INTO t", ("t",)),
        ("INSERT WITH SCHEMA EVOLUTION OVERWRITE TABLE db.t (k)", ("db", "t")),
        ("INSERT INTO t WITH ('mergeSchema'='true', a.b = 1) BY NAME", ("t",)),
        ("INSERT INTO t (from, to, select, with)", ("t",)),
        ("INSERT INTO t (with, from)", ("t",)),
        ("INSERT INTO db.from (select)", ("db", "from")),
        ("INSERT OVERWRITE t PARTITION (select = 1, from) IF NOT EXISTS (with)", ("t",)),
        ("INSERT INTO IDENTIFIER('db.t') (from)", ("db", "t")),
        ("INSERT INTO t REPLACE USING (from)", ("t",)),
        ("INSERT INTO t BY NAME REPLACE WHERE k IN (SELECT k FROM d) AND v = (SELECT 1) AND NOT v IS DISTINCT FROM w", ("t",)),
        ("INSERT INTO t AS x REPLACE ON x.k = v", ("t",)),
        ("CREATE TABLE IF NOT EXISTS t USING delta AS", ("t",)),
        ("CREATE OR REPLACE TABLE `a b`.t COMMENT 'as' AS", ("a b", "t")),
        ("REPLACE TABLE t AS", ("t",)),
        ("CREATE TEMP VIEW v (k) AS", ()),
    ],
)
@pytest.mark.parametrize("brackets", ["{}", "({})"])
def test_a_statement_of_sparks_keeps_its_head(head: str, target: tuple[str, ...], brackets: str) -> None:
    query = f"SELECT k FROM t GROUP BY k {END}"
    statement = parse(f"/* dbt */ {head} {brackets.format(query)};")
    assert isinstance(statement, BoundedStatement)
    assert (statement.head, statement.target) == (head, target)
    assert plan_bounded(statement.query, (), True).sql == called("SELECT k FROM t GROUP BY k")


@pytest.mark.parametrize("name", ["AS q", "q"])
def test_the_query_of_replace_on_has_no_name(name: str) -> None:
    text = f"INSERT INTO t AS x REPLACE ON x.k = q.k (SELECT k FROM STREAM s {END}) {name}"
    with pytest.raises(UnsupportedError, match=r"The query of INSERT INTO \.\. REPLACE ON cannot have a name") as caught:
        parse(text)
    assert caught.value.position is not None
    assert text[caught.value.position.start :].split()[0] == name.split()[0]


def test_the_properties_of_the_table_that_it_makes_are_read() -> None:
    statement = parse(
        "CREATE OR REPLACE TABLE t USING delta TBLPROPERTIES ('execution.batch.job-recovery.enabled' = 'true', 'a.b' = 1) "
        f"COMMENT 'tblproperties' AS SELECT k FROM t GROUP BY k {END}"
    )
    assert isinstance(statement, BoundedStatement)
    given = {key: value.value for key, value in statement.properties.items()}
    assert given == {"execution.batch.job-recovery.enabled": "true", "a.b": "1"}
    insert = parse(f"INSERT INTO t SELECT tblproperties FROM t {END}")
    assert isinstance(insert, BoundedStatement)
    assert not insert.properties


def test_a_with_clause_before_insert_goes_to_the_query() -> None:
    statement = parse(f"WITH c AS (SELECT 1 AS insert) INSERT INTO t SELECT * FROM c {END}")
    assert isinstance(statement, BoundedStatement)
    assert (statement.head, statement.target) == ("INSERT INTO t", ("t",))
    assert plan_bounded(statement.query, (), True).sql == called("WITH c AS (SELECT 1 AS insert) SELECT * FROM c")


def test_the_clause_may_stand_in_a_with_before_insert() -> None:
    statement = parse(f"WITH c AS (SELECT k FROM s GROUP BY k {END}) INSERT INTO t SELECT * FROM c")
    assert isinstance(statement, BoundedStatement)
    assert (statement.head, statement.target) == ("INSERT INTO t", ("t",))
    flow = parse(f"WITH c AS (SELECT k FROM s GROUP BY k {END}) INSERT INTO t SELECT * FROM c JOIN STREAM u USING (k)")
    assert isinstance(flow, Insert)


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        (f"DELETE FROM t WHERE k IN (SELECT k FROM t {END})", "DELETE"),
        (f"CREATE TABLE t (a INT) {END}", "CREATE"),
        (f"DROP TABLE t {END}", "DROP"),
        (f"MERGE INTO t USING (SELECT k FROM s {END}) s ON t.k = s.k WHEN MATCHED THEN DELETE", "MERGE"),
    ],
)
def test_where_it_means_nothing_the_clause_is_an_error(text: str, verb: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse(text)
    assert caught.value.message.startswith(f"GLOBAL WINDOW END OF STREAM has no meaning in this {verb}. Write it in a query")
    assert caught.value.position is not None
    assert text[caught.value.position.start : caught.value.position.stop] == "GLOBAL"


def test_the_statement_without_the_clause_keeps_its_places() -> None:
    text = f"SELECT nope, '{END}'\nFROM t GROUP BY k global  window END\nOF STREAM ORDER BY 1"
    plain = without_clauses(text)
    assert plain == f"SELECT nope, '{END}'\nFROM t GROUP BY k                   \n          ORDER BY 1"
    assert len(plain) == len(text)


def test_a_flows_statement_as_a_job() -> None:
    table = parse(
        "CREATE STREAMING TABLE IF NOT EXISTS `a b` COMMENT 'it''s' PARTITIONED BY (k) TBLPROPERTIES ('x' = 'y') "
        "AS SELECT k, count(*) FROM STREAM t GROUP BY k"
    )
    assert isinstance(table, CreateStreamingTable)
    job = job_of(table)
    assert job.target == ("a b",)
    assert " ".join(job.head.split()) == (
        "CREATE TABLE IF NOT EXISTS `a b` USING delta COMMENT 'it''s' PARTITIONED BY (k) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'x' = 'y') AS"
    )
    assert plan_bounded(job.query, BATCHES, True).sql == called("SELECT k, count(*) FROM t GROUP BY k")
    assert list(job.properties) == ["x"]
    insert = parse("INSERT INTO db.t BY NAME SELECT k FROM STREAM a UNION ALL SELECT k FROM STREAM b")
    assert isinstance(insert, Insert)
    assert job_of(insert).head == "INSERT INTO `db`.`t` BY NAME"
    assert plan_bounded(job_of(insert).query, BATCHES, True).sql == called("SELECT k FROM a UNION ALL SELECT k FROM b")


# WITH queries: the names that they hide, and those that they do not


OF_NUMBERS = "r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5)"


@pytest.mark.parametrize(
    ("with_", "query", "needed"),
    [
        ("WITH a AS (SELECT * FROM a WHERE v > 1)", "SELECT max(v) FROM a", "WITH a AS (SELECT * FROM a WHERE v > 1)"),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT 1 AS v)", "SELECT max(v) FROM a", "WITH a AS (SELECT * FROM b)"),
        (f"WITH RECURSIVE {OF_NUMBERS}", "SELECT max(n) FROM r", f"WITH RECURSIVE {OF_NUMBERS}"),
    ],
)
def test_a_with_query_may_have_the_name_of_what_it_reads(with_: str, query: str, needed: str) -> None:
    found = plan_bounded(query_of(f"{with_} SELECT * FROM ({query} {END}) AS q"), BATCHES, True)
    assert found.sql == f"{with_} SELECT * FROM ({called(f'{needed} {query}')}) AS q"
    assert plan_bounded(query_of(f"{with_} {query} {END}"), BATCHES, True).sql == called(f"{with_} {query}")


def test_a_with_query_keeps_the_meaning_of_its_names_below_the_clause() -> None:
    written = f"WITH a AS (SELECT 1 AS x) SELECT * FROM (SELECT max(x) FROM b {END}) AS q"
    found = spark_sql(f"WITH a AS (SELECT 2 AS x), b AS (SELECT * FROM a) SELECT * FROM ({written}) AS p")
    assert called("WITH a AS (SELECT 2 AS x), b AS (SELECT * FROM a) SELECT max(x) FROM b") in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"WITH a AS (SELECT 1 AS x), b AS (SELECT * FROM a) SELECT * FROM (WITH a AS (SELECT 2 AS x) SELECT * FROM "
            f"(SELECT max(x) FROM b JOIN a USING (x) {END}) AS q) AS p",
            "Two WITH queries named `a` are read in a part of the query that runs alone. Give each its own name.",
        ),
        (
            f"WITH a AS (SELECT 1 AS x) SELECT * FROM (WITH a AS (SELECT * FROM a) SELECT max(x) FROM a {END}) AS q",
            "Two WITH queries named `a` are read in a part of the query that runs alone. Give each its own name.",
        ),
        (
            f"WITH RECURSIVE {OF_NUMBERS} SELECT * FROM (WITH d AS (SELECT * FROM d) SELECT * FROM (SELECT 1 FROM r, d {END}))",
            "The WITH query `d` reads a table of its own name, and is needed beside a WITH RECURSIVE, where that name would mean "
            "itself. Give the WITH query another name.",
        ),
        *(
            (
                f"WITH a AS (SELECT * FROM {rows}) SELECT * FROM a JOIN (SELECT max(x) AS x FROM a {END}) AS q USING (x)",
                f"`a` has values by chance ({chance}) and is read by a query with GLOBAL WINDOW END OF STREAM and outside of "
                "it, and each would see others. Keep it in a table, and read that.",
            )
            for rows, chance in (("t WHERE rand() < 0.1", "rand"), ("t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"))
        ),
    ],
)
def test_refuses_with_queries_that_would_mean_something_else(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        spark_sql(text)
    assert caught.value.message == message
    assert caught.value.position is not None


def test_a_sample_that_only_one_part_reads_is_one() -> None:
    query = f"WITH a AS (SELECT * FROM t WHERE rand() < 0.1) SELECT * FROM (SELECT max(x) AS x FROM a {END}) AS q"
    assert called("WITH a AS (SELECT * FROM t WHERE rand() < 0.1) SELECT max(x) AS x FROM a") in spark_sql(query)


# Hints and options of flows


@pytest.mark.parametrize("hint", ["FLUSH_INTERVAL('bananas')", "FLUSH_INTERVAL('1 min')", "BACKLOG_INTERVAL(t, '1 min')"])
@pytest.mark.parametrize(
    "query", [f"SELECT /*+ {{}} */ max(v) FROM STREAM t {END}", f"SELECT 1 FROM (SELECT /*+ {{}} */ 1 FROM STREAM t {END})"]
)
def test_a_query_that_ends_has_no_hints_of_flows(hint: str, query: str) -> None:
    with pytest.raises(OptionError) as caught:
        spark_sql(query.format(hint))
    assert caught.value.message == f"The hint {hint} is for a flow, and this query ends. Leave it out."
    assert caught.value.position is not None


def test_hints_of_spark_stay() -> None:
    assert spark_sql(f"SELECT /*+ BROADCAST(t) */ max(v) FROM t {END}") == called("SELECT /*+ BROADCAST(t) */ max(v) FROM t")


def test_an_insert_that_runs_once_has_no_hints_of_flows() -> None:
    with pytest.raises(OptionError, match="is for a flow, and this query ends"):
        plan_once(query_of("SELECT /*+ FLUSH_INTERVAL('1 min') */ k FROM t"), BATCHES, True)


def test_the_options_of_streams_that_end_are_checked() -> None:
    statement = parse(f"INSERT INTO x SELECT max(v) FROM STREAM t WITH ('backlog.lag-threshold' = 'bananas') {END}")
    assert isinstance(statement, BoundedStatement)
    with pytest.raises(OptionError, match=r"`backlog.lag-threshold` \(WITH clause\) cannot be `bananas`"):
        plan_statement(statement, {}, BATCHES, no_duration)


def no_duration(text: str) -> timedelta:
    raise ValueError(text)
