"""Our statements: every field of every one, and for each mistake what is said of it and where."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from sqlglot import exp

from sqlext.errors import Position, SqlextError, SyntaxProblem, UnreadableQuery, UnsupportedError
from sqlext.options import ValueText
from sqlext.plan.job_graph import TableDefinition
from sqlext.sql.grammar import parse
from sqlext.sql.statements import (
    AlterFlow,
    AlterFlowQuery,
    CreateStreamingTable,
    CreateTableAs,
    DescribeFlow,
    Explain,
    FlowCommand,
    Insert,
    JobCommand,
    Name,
    Query,
    Select,
    SetOption,
    ShowFlows,
)

T = TypeVar("T")


def parsed(text: str, kind: type[T]) -> T:
    statement = parse(text)
    assert isinstance(statement, kind)
    return statement


@pytest.mark.parametrize(("text", "name"), [("'t'", ("t",)), ("'db.`a t`'", ("db", "a t")), (r"r'db.t'", ("db", "t"))])
def test_a_name_may_be_a_text(text: str, name: Name) -> None:
    assert parsed(f"CREATE STREAMING TABLE IDENTIFIER({text}) AS SELECT k FROM STREAM ev", CreateStreamingTable).name == name
    assert parsed(f"INSERT INTO IDENTIFIER({text}) SELECT k FROM STREAM ev", Insert).target == name


@pytest.mark.parametrize("text", ["'a' || 'b'", "'a b'", "''", "'a', 'b'", "k"])
def test_a_name_is_one_text(text: str) -> None:
    with pytest.raises(SyntaxProblem, match="takes the text of a name here"):
        parse(f"INSERT INTO IDENTIFIER({text}) SELECT k FROM STREAM ev")


def test_texts_mean_what_they_mean_to_spark() -> None:
    text = r"""CREATE STREAMING TABLE t (k INT COMMENT 'Stra\u00dfe', d INT COMMENT r'C:\data\')
        TBLPROPERTIES ('x' = r"a\b", 'y' = 'a\%b\u0041\101\U0001F600\\\n''', 'z' = '\uD83D\uDE00')
        AS SELECT * FROM STREAM ev"""
    found = parsed(text, CreateStreamingTable)
    assert [column.comment for column in found.definition.columns] == ["Straße", "C:\\data\\"]
    assert [value.value for value in found.definition.properties.values()] == ["a\\b", "a\\%bAA😀\\\n'", "😀"]


def place(text: str, part: str, nth: int = 0) -> Position:
    """Where `part` stands in `text` for the n-th time."""
    start = -1
    for _ in range(nth + 1):
        start = text.index(part, start + 1)
    return Position.of(text, start, start + len(part))


def given(text: str, part: str, value: str | None = None, nth: int = 0) -> ValueText:
    """A value as written at `part`; `value` when it is quoted there."""
    return ValueText(part if value is None else value, place(text, part, nth))


def problem(text: str) -> SqlextError:
    with pytest.raises(SqlextError) as caught:
        parse(text)
    return caught.value


def check_query(query: Query, text: str, written: str) -> None:
    """The query is what is `written` in `text`, at the same place, and nothing else."""
    assert query.text == written
    assert len(query.source) <= len(text)
    assert all(ours in (theirs, " ") for ours, theirs in zip(query.source, text, strict=False))
    assert query.source.count("\n") == text[: len(query.source)].count("\n")
    assert isinstance(query.tree, exp.Query)


# CREATE STREAMING TABLE


def test_a_streaming_table_with_nothing_but_a_query() -> None:
    text = "CREATE STREAMING TABLE t AS SELECT k FROM STREAM s"
    table = parsed(text, CreateStreamingTable)
    assert (table.name, table.refresh, table.if_not_exists) == (("t",), False, False)
    assert table.definition == TableDefinition()
    assert table.position == Position(1, 1, 0, 6)
    check_query(table.query, text, "SELECT k FROM STREAM s")


def test_a_streaming_table_with_every_clause() -> None:
    text = """/* dbt */ create or refresh streaming table if not exists cat.`my db`.t
  COMMENT 'it''s'
  PARTITIONED BY (day, bucket(4, id))
  CLUSTER BY (a, b)
  LOCATION "/data/t"
  TBLPROPERTIES (
    'execution.flush.max-interval' = '2 min',  -- often
    state.backend.type=delta,
    `quoted` "double ""x"" y",
    delta.appendOnly = false,
    n 3,
    execution.checkpointing.interval = 30 s
  )
AS WITH c AS (SELECT 1)
SELECT k FROM STREAM s -- the end
;
"""
    table = parsed(text, CreateStreamingTable)
    assert (table.name, table.refresh, table.if_not_exists) == (("cat", "my db", "t"), True, True)
    assert table.definition.clauses == (
        "COMMENT 'it''s'",
        "PARTITIONED BY (day, bucket(4, id))",
        "CLUSTER BY (a, b)",
        'LOCATION "/data/t"',
    )
    assert table.definition.properties == {
        "execution.flush.max-interval": given(text, "'2 min'", "2 min"),
        "state.backend.type": given(text, "delta"),
        "quoted": given(text, '"double ""x"" y"', 'double "x" y'),
        "delta.appendOnly": given(text, "false"),
        "n": given(text, "3"),
        "execution.checkpointing.interval": given(text, "30 s"),
    }
    assert table.position == place(text, "create")
    check_query(table.query, text, "WITH c AS (SELECT 1)\nSELECT k FROM STREAM s")


@pytest.mark.parametrize("clause", ["CLUSTER BY AUTO", "CLUSTER BY NONE", "PARTITIONED BY ((a), b)", "COMMENT r'x\\'"])
def test_a_table_clause_is_kept_as_written(clause: str) -> None:
    table = parsed(f"CREATE STREAMING TABLE t {clause} AS SELECT 1", CreateStreamingTable)
    assert table.definition.clauses == (clause,)


def test_using_delta_may_be_said() -> None:
    table = parsed("CREATE STREAMING TABLE t USING DELTA AS SELECT 1", CreateStreamingTable)
    assert "".join(table.definition.clauses) == ""


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'a b'", "a b"),
        ('"a b"', "a b"),
        (r"'it\'s'", "it's"),
        (r"'a\nb\tc\\d'", "a\nb\tc\\d"),
        ("'it''s'", "it's"),
        ("''", ""),
        ("`a``b`", "a`b"),
        ("true", "true"),
        ("-1.5", "-1.5"),
        ("2 min", "2 min"),
        ("INTERVAL '2' MINUTES", "INTERVAL '2' MINUTES"),
        ("'2' ' min'", "2 min"),
        ("'it''s' -- so\n\"x\" r'\\y'", "it'sx\\y"),
    ],
)
def test_a_propertys_value_is_its_text_without_the_quotes(written: str, value: str) -> None:
    text = f"ALTER FLOW f SET ('k' = {written})"
    assert parsed(text, AlterFlow).settings == {"k": given(text, written, value)}


def test_strings_side_by_side_are_one_key_and_one_comment() -> None:
    text = "CREATE STREAMING TABLE t COMMENT 'a' 'b' TBLPROPERTIES ('a.' 'b' = 'x' 'y', 'c' 'd', e 'f') AS SELECT k FROM STREAM s"
    definition = parsed(text, CreateStreamingTable).definition
    assert {key: value.value for key, value in definition.properties.items()} == {"a.b": "xy", "c": "d", "e": "f"}
    assert definition.clauses == ("COMMENT 'a' 'b'",)


def test_a_string_beside_something_else_is_no_value() -> None:
    text = "ALTER FLOW f SET ('k' = 'x' || 'y')"
    caught = problem(text)
    assert caught.message.startswith("`'x' || 'y'` is neither a string nor a word.")
    assert caught.position is not None
    assert text[caught.position.start : caught.position.stop] == "'x' || 'y'"


# INSERT and CREATE FLOW


def test_an_insert() -> None:
    text = "INSERT INTO t SELECT k FROM STREAM s"
    insert = parsed(text, Insert)
    assert (insert.target, insert.columns, insert.by_name, insert.flow, insert.if_not_exists) == (("t",), (), False, (), False)
    assert insert.position == Position(1, 1, 0, 6)
    check_query(insert.query, text, "SELECT k FROM STREAM s")


@pytest.mark.parametrize(
    ("head", "target", "columns", "by_name"),
    [
        ("insert into table cat.db.t", ("cat", "db", "t"), (), False),
        ("INSERT INTO `a.b`.`c``d`", ("a.b", "c`d"), (), False),
        ("INSERT INTO t BY NAME", ("t",), (), True),
        ("INSERT INTO t (a, `b c`)", ("t",), ("a", "b c"), False),
        ("INSERT INTO t(a)", ("t",), ("a",), False),
        ("INSERT INTO t (from, to)", ("t",), ("from", "to"), False),
        ("INSERT INTO from (select, with)", ("from",), ("select", "with"), False),
    ],
)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM STREAM s",
        "(SELECT k FROM STREAM s)",
        "WITH c AS (SELECT 1) SELECT k FROM STREAM s",
        "FROM STREAM s SELECT k",
        "SELECT k FROM STREAM s UNION ALL SELECT k FROM STREAM u",
    ],
)
def test_an_inserts_head_and_query(head: str, target: Name, columns: Name, by_name: bool, query: str) -> None:
    text = f"{head}\n{query}"
    insert = parsed(text, Insert)
    assert (insert.target, insert.columns, insert.by_name) == (target, columns, by_name)
    check_query(insert.query, text, query)


def test_a_with_clause_before_insert_is_part_of_the_query() -> None:
    text = "WITH c AS (\n  SELECT 'INSERT INTO' AS x\n)\nINSERT INTO t (a)\nSELECT x FROM c, STREAM s"
    insert = parsed(text, Insert)
    assert (insert.target, insert.columns) == (("t",), ("a",))
    assert insert.query.text.split() == "WITH c AS ( SELECT 'INSERT INTO' AS x ) SELECT x FROM c, STREAM s".split()
    assert [cte.alias for cte in insert.query.tree.find_all(exp.CTE)] == ["c"]
    assert insert.query.source.index("SELECT x") == text.index("SELECT x")
    assert insert.position == place(text, "WITH")


def test_a_flow() -> None:
    text = "CREATE FLOW f AS INSERT INTO db.t BY NAME SELECT k FROM STREAM s"
    flow = parsed(text, Insert)
    assert (flow.flow, flow.target, flow.by_name, flow.if_not_exists) == (("f",), ("db", "t"), True, False)
    assert flow.position == Position(1, 1, 0, 6)
    check_query(flow.query, text, "SELECT k FROM STREAM s")


def test_a_flow_with_every_clause() -> None:
    text = "create flow if not exists `my flow` comment 'x' as with c as (select 1) insert into t (a) select k from stream s"
    flow = parsed(text, Insert)
    assert (flow.flow, flow.target, flow.columns, flow.if_not_exists) == (("my flow",), ("t",), ("a",), True)
    assert flow.query.text.split() == "with c as (select 1) select k from stream s".split()


# Queries without a target


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t AS SELECT k FROM STREAM s",
        "create or replace table db.t using delta comment 'AS SELECT' partitioned by (k) as select k from stream s",
        "REPLACE TABLE t AS SELECT k FROM STREAM s",
        "CREATE TABLE IF NOT EXISTS t AS (SELECT k FROM STREAM s)",
        "CREATE TABLE t AS WITH c AS (SELECT 1) SELECT k FROM STREAM s",
        "CREATE TABLE t TBLPROPERTIES ('a' = 'b') AS FROM STREAM s SELECT k",
    ],
)
def test_create_table_as(text: str) -> None:
    table = parsed(text, CreateTableAs)
    assert table.position == Position(1, 1, 0, text.index(" "))
    at = max(text.upper().rfind(word) for word in (" AS (SELECT K", " AS WITH", " AS SELECT K", " AS FROM")) + 4
    check_query(table.query, text, text[at:])


@pytest.mark.parametrize(
    "text",
    [
        "SELECT /*+ FLUSH_INTERVAL('2 min') */ k AS insert FROM STREAM s",
        "FROM s SELECT /*+ FLUSH_INTERVAL('2 min') */ k",
    ],
)
def test_a_select(text: str) -> None:
    select = parsed(text, Select)
    assert select.position is not None
    assert select.position.start == 0
    check_query(select.query, text, text)


# Operations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SHOW FLOWS", ShowFlows()),
        ("show flows ; ;", ShowFlows()),
        ("DESCRIBE FLOW f", DescribeFlow(("f",))),
        ("desc flow `my flow`", DescribeFlow(("my flow",))),
        ("START FLOW f", FlowCommand("START", ("f",))),
        ("STOP FLOW f", FlowCommand("STOP", ("f",))),
        ("FLUSH FLOW f", FlowCommand("FLUSH", ("f",))),
        ("wait flow f", FlowCommand("WAIT", ("f",))),
        ("DROP FLOW f", FlowCommand("DROP", ("f",))),
        ("DROP FLOW IF EXISTS f", FlowCommand("DROP", ("f",), if_exists=True)),
        ("DROP FLOW `if`", FlowCommand("DROP", ("if",))),
        ("STOP FLOW db.f", FlowCommand("STOP", ("db", "f"))),
        ("SHOW JOBS", JobCommand("SHOW JOBS")),
        ("SHOW JOB EVENTS j_1", JobCommand("SHOW JOB EVENTS", ("j_1",))),
        ("RESUME JOB `a-b`", JobCommand("RESUME JOB", ("a-b",))),
        ("CANCEL JOB 17", JobCommand("CANCEL JOB", ("17",))),
    ],
)
def test_an_operation(text: str, expected: object) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5 minutes", "5 minutes"),
        ("'5 minutes'", "5 minutes"),
        ("INTERVAL 5 MINUTES", "INTERVAL 5 MINUTES"),
        ("PT5M", "PT5M"),
        ("0", "0"),
    ],
)
def test_wait_takes_a_timeout_as_written(written: str, value: str) -> None:
    command = parsed(f"WAIT FLOW f TIMEOUT {written};", FlowCommand)
    assert command.timeout is not None
    assert command.timeout.value == value
    assert command.timeout.position is not None
    assert command.timeout.position.start == 20


@pytest.mark.parametrize("before", ["", "EXPLAIN "])
def test_alter_flow_takes_another_query(before: str) -> None:
    query = "SELECT k, count(*) AS n FROM STREAM t GROUP BY k"
    statement = parse(f"{before}ALTER FLOW s.f AS\n{query};")
    altered = statement.statement if isinstance(statement, Explain) else statement
    assert isinstance(altered, AlterFlowQuery)
    assert altered.name == ("s", "f")
    assert altered.query.text == query
    assert isinstance(statement, Explain) == bool(before)


def test_alter_flow() -> None:
    text = "ALTER FLOW f SET ('execution.flush.max-interval' = '5 min', state.backend.type = delta)"
    assert parse(text) == AlterFlow(
        ("f",),
        {"execution.flush.max-interval": given(text, "'5 min'", "5 min"), "state.backend.type": given(text, "delta")},
    )


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("SET execution.flush.max-interval = 2 min", "execution.flush.max-interval", "2 min"),
        ("set execution.flush.max-interval='2 min' ;", "execution.flush.max-interval", "2 min"),
        ("SET `execution.flush.max-interval` = null", "execution.flush.max-interval", "null"),
        ("SET spark.sqlext.state.backend.type = delta", "spark.sqlext.state.backend.type", "delta"),
        ("SET execution.flush.max-interval", "execution.flush.max-interval", None),
        ("SET execution.flush.max-interval =", "execution.flush.max-interval", ""),
        ("SET execution.x = a = b", "execution.x", "a = b"),
    ],
)
def test_set(text: str, key: str, value: str | None) -> None:
    setting = parsed(text, SetOption)
    assert (setting.key, setting.value) == (key, value)
    assert setting.position.start == 4


@pytest.mark.parametrize(
    ("mode", "extended"), [("", False), ("EXTENDED ", True), ("FORMATTED ", False), ("COST ", False), ("codegen ", False)]
)
def test_explain_wraps_a_statement(mode: str, extended: bool) -> None:
    text = f"EXPLAIN {mode}CREATE STREAMING TABLE t AS SELECT k FROM STREAM s"
    explain = parsed(text, Explain)
    assert explain.extended == extended
    assert isinstance(explain.statement, CreateStreamingTable)
    assert explain.statement.position == place(text, "CREATE")
    check_query(explain.statement.query, text, "SELECT k FROM STREAM s")


def test_explain_of_an_operation() -> None:
    assert parse("EXPLAIN SHOW FLOWS") == Explain(ShowFlows())


# Mistakes: the message, and the text the position marks ("" at the end of the statement)

COLUMNS = "Expected NOT NULL or COMMENT '..' after the column `a`"
CLAUSES = "Expected one of COMMENT, LOCATION, PARTITIONED BY, CLUSTER BY, TBLPROPERTIES, FLOW AUTO CDC, AS"
PAIR = "Expected 'key' = 'value'"
END = "Expected the end of the statement"
MEANT_PROPERTIES = " Did you mean `TBLPROPERTIES`?"
MEANT_BY = " Did you mean `PARTITIONED BY`?"
PARTITION = "A flow writes to the whole table, so PARTITION is not allowed here"
NO_MORE = "the statement ends here."

MISTAKES: list[tuple[str, str, str]] = [
    ("CREATE STREAMING TABLE t AS", f"Expected a query; {NO_MORE}", ""),
    ("CREATE STREAMING TABLE t AS ;", f"Expected a query; {NO_MORE}", ""),
    ("CREATE STREAMING TABLE t SELECT 1", f"{CLAUSES}; found `SELECT`.", "SELECT"),
    (
        "CREATE STREAMING TABLE t (a INT DEFAULT 1) AS SELECT 1",
        f"{COLUMNS}; found `DEFAULT`. All values of a streaming table come from its query.",
        "DEFAULT",
    ),
    ("CREATE STREAMING TABLE 't' AS SELECT 1", "Expected a name; found `'t'`.", "'t'"),
    ("CREATE STREAMING TABLE t. AS SELECT 1", f"{CLAUSES}; found `SELECT`.", "SELECT"),
    ("CREATE STREAMING TABLE", f"Expected a name; {NO_MORE}", ""),
    ("CREATE OR REFRESH STREAMING VIEW v AS SELECT 1", "Expected TABLE; found `VIEW`.", "VIEW"),
    ("CREATE STREAMING TABLE t COMENT 'x' AS SELECT 1", f"{CLAUSES}; found `COMENT`. Did you mean `COMMENT`?", "COMENT"),
    ("CREATE STREAMING TABLE t tblprop ('a' = 'b') AS SELECT 1", f"{CLAUSES}; found `tblprop`.{MEANT_PROPERTIES}", "tblprop"),
    ("CREATE STREAMING TABLE t PARTITIONED (a) AS SELECT 1", f"{CLAUSES}; found `PARTITIONED`.{MEANT_BY}", "PARTITIONED"),
    ("CREATE STREAMING TABLE t STORED AS orc AS SELECT 1", f"{CLAUSES}; found `STORED`.", "STORED"),
    ("CREATE STREAMING TABLE t USING parquet AS SELECT 1", "A streaming table is a Delta table; found `parquet`.", "parquet"),
    ("CREATE STREAMING TABLE t COMMENT x AS SELECT 1", "Expected a string; found `x`.", "x"),
    ("CREATE STREAMING TABLE t LOCATION", f"Expected a string; {NO_MORE}", ""),
    ("CREATE STREAMING TABLE t PARTITIONED BY a AS SELECT 1", "Expected (; found `a`.", "a"),
    ("CREATE STREAMING TABLE t PARTITIONED BY (a", f"Expected ); {NO_MORE}", ""),
    ("CREATE STREAMING TABLE t TBLPROPERTIES 'a' = 'b' AS SELECT 1", "Expected (; found `'a'`.", "'a'"),
    ("CREATE STREAMING TABLE t TBLPROPERTIES () AS SELECT 1", f"{PAIR}; found `)`.", ")"),
    ("CREATE STREAMING TABLE t TBLPROPERTIES ('a') AS SELECT 1", f"{PAIR}; found `)`.", ")"),
    ("CREATE STREAMING TABLE t TBLPROPERTIES ('a' = ) AS SELECT 1", f"{PAIR}; found `)`.", ")"),
    ("CREATE STREAMING TABLE t TBLPROPERTIES ('a' = 'b',) AS SELECT 1", f"{PAIR}; found `)`.", ")"),
    ("CREATE STREAMING TABLE t TBLPROPERTIES (= 'b') AS SELECT 1", f"{PAIR}; found `)`.", ")"),
    ("CREATE STREAMING TABLE t TBLPROPERTIES ('a' = 'b'", f"Expected ); {NO_MORE}", ""),
    ("ALTER FLOW f SET ('a' = '1', \"a\" = '2')", "The property `a` is given twice.", '"a"'),
    ("CREATE FLOW f", f"Expected AS; {NO_MORE}", ""),
    ("CREATE FLOW f AS", f"Expected INSERT INTO table SELECT ..; {NO_MORE}", ""),
    ("CREATE FLOW f INSERT INTO t SELECT 1", "Expected AS; found `INSERT`.", "INSERT"),
    ("CREATE FLOW f AS INSERT t SELECT 1", "Expected INTO; found `t`.", "t SELECT"),
    ("CREATE FLOW f AS INSERT", f"Expected INTO; {NO_MORE}", ""),
    ("INSERT INTO t PARTITION (d = 1) SELECT * FROM STREAM s", f"{PARTITION}; found `PARTITION`.", "PARTITION"),
    ("INSERT INTO 't' SELECT * FROM STREAM s", "Expected a name; found `'t'`.", "'t'"),
    ("INSERT INTO t (a, ) SELECT * FROM STREAM s", "Expected a name; found `)`.", ")"),
    ("INSERT INTO t (a b) SELECT * FROM STREAM s", "Expected ); found `b`.", "b"),
    ("SHOW FLOWS LIKE 'x'", f"{END}; found `LIKE`.", "LIKE"),
    ("SHOW JOBS j", f"{END}; found `j`.", "j"),
    ("SHOW JOB EVENTS", f"Expected a name; {NO_MORE}", ""),
    ("SHOW JOB EVENTS a b", f"{END}; found `b`.", "b"),
    ("DESCRIBE FLOW f g", f"{END}; found `g`.", "g"),
    ("DROP FLOW", f"Expected a name; {NO_MORE}", ""),
    ("DROP FLOW 'f'", "Expected a name; found `'f'`.", "'f'"),
    ("DROP FLOW f CASCADE", f"{END}; found `CASCADE`.", "CASCADE"),
    ("STOP FLOW IF EXISTS f", f"{END}; found `EXISTS`.", "EXISTS"),
    ("STOP FLOW f TIMEOUT 5 min", f"{END}; found `TIMEOUT`.", "TIMEOUT"),
    ("WAIT FLOW f 5 min", f"{END}; found `5`.", "5"),
    ("WAIT FLOW f TIMEOUT", f"Expected a duration, such as 5 minutes; {NO_MORE}", ""),
    ("ALTER FLOW f", f"Expected SET or AS; {NO_MORE}", ""),
    ("ALTER FLOW f RENAME TO g", "Expected SET or AS; found `RENAME`.", "RENAME"),
    ("ALTER FLOW f SET ('a' = 'b') now", f"{END}; found `now`.", "now"),
    ("ALTER FLOW f SET (", f"{PAIR}; {NO_MORE}", ""),
    ("CANCEL JOB a-b", f"{END}; found `-`.", "-"),
    ("SET execution.flush.max-interval 2 min", "Expected = after `execution.flush.max-interval`; found `2`.", "2"),
    ("EXPLAIN", f"Expected a statement; {NO_MORE}", ""),
    ("EXPLAIN EXTENDED", f"Expected a statement; {NO_MORE}", ""),
]


@pytest.mark.parametrize(("text", "message", "marked"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_a_mistake_is_named_and_placed(text: str, message: str, marked: str) -> None:
    error = problem(text)
    assert type(error) is SyntaxProblem
    assert error.message == message
    assert error.position is not None
    end = len(text.rstrip("; "))
    start = text.rindex(marked) if marked else end
    assert error.position.start == start or (not marked and error.position.start >= end)
    assert error.position.column == error.position.start + 1


@pytest.mark.parametrize(("text", "message", "marked"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_a_mistake_on_a_later_line_is_placed_there(text: str, message: str, marked: str) -> None:
    plain, below = problem(text), problem("-- one\n/* two\n*/   " + text)
    assert below.message == message
    assert plain.position is not None
    assert below.position is not None
    assert below.position.line == 3
    assert below.position.column == plain.position.column + 5


@pytest.mark.parametrize("text", ["INSERT OVERWRITE t SELECT * FROM STREAM s", "INSERT OVERWRITE TABLE t SELECT * FROM STREAM s"])
def test_insert_overwrite_is_refused_with_the_ways_there_are(text: str) -> None:
    error = problem(text)
    assert isinstance(error, UnsupportedError)
    assert error.message == (
        "INSERT OVERWRITE cannot read a stream: a stream has no end at which to overwrite. Use INSERT INTO, or CREATE OR "
        "REPLACE STREAMING TABLE."
    )
    assert error.position == place(text, "OVERWRITE")


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 1", "INSERT WITH SCHEMA EVOLUTION cannot read a stream.", "WITH"),
        ("WITH c AS (SELECT 1) INSERT WITH SCHEMA EVOLUTION INTO t TABLE c", "INSERT WITH SCHEMA EVOLUTION", "WITH SCHEMA"),
        ("INSERT INTO t WITH ('mergeSchema'='true') SELECT 1", "INSERT INTO .. WITH (..) cannot read a stream", "WITH"),
        ("INSERT INTO t WITH (a.b = 1) BY NAME SELECT 1", "INSERT INTO .. WITH (..) cannot read a stream", "WITH"),
        ("INSERT INTO t REPLACE WHERE k = 1 SELECT 1", "INSERT INTO .. REPLACE cannot read a stream", "REPLACE"),
        ("INSERT INTO t AS x REPLACE ON x.k = q.k (SELECT 1) AS q", "INSERT INTO .. REPLACE cannot read a stream", "AS x"),
        ("INSERT INTO t x REPLACE USING (k) SELECT 1", "INSERT INTO .. REPLACE cannot read a stream", "x REPLACE"),
    ],
)
def test_an_insert_with_a_clause_that_flows_do_not_have_is_refused_by_its_name(text: str, message: str, marked: str) -> None:
    error = problem(text)
    assert isinstance(error, UnsupportedError)
    assert error.message.startswith(message)
    assert error.position is not None
    assert error.position.start == text.index(marked)


def test_a_multi_insert_is_refused() -> None:
    error = problem("\nFROM STREAM s INSERT INTO a SELECT k INSERT INTO b SELECT v")
    assert isinstance(error, UnsupportedError)
    assert error.message == "A multi-insert cannot read a stream. Write one INSERT for each target."
    assert error.position == Position(2, 1, 1, 5)


def test_a_flow_without_insert_is_refused() -> None:
    error = problem("CREATE FLOW f AS SELECT * FROM STREAM s")
    assert error.message.startswith("A flow needs a target: expected INSERT INTO table SELECT ..")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("CREATE STREAMING TABLE t AS SELECT k FROM STREAM s extra garbage", "garbage"),
        ("INSERT INTO t\nSELECT k,\n  (v + FROM STREAM s", "FROM"),
        ("WITH c AS (SELECT 1 +) INSERT INTO t SELECT * FROM STREAM s", ")"),
        ("CREATE FLOW f AS INSERT INTO t SELECT * FROM STREAM s WATERMARK at", "at"),
        ("CREATE TABLE t AS SELECT * FROM STREAM s WHERE", "WHERE"),
        ("SELECT k FROM s GROUP BY k GLOBAL WINDOW END OF STREAM HAVING k > 1 )", ")"),
    ],
)
def test_a_query_that_cannot_be_read_is_handed_over_with_its_place(text: str, near: str) -> None:
    error = problem(text)
    assert isinstance(error, UnreadableQuery)
    assert error.position is not None
    assert text[error.position.start : error.position.stop] == near
    assert error.position == Position.of(text, error.position.start, error.position.stop)
    assert len(error.query) <= len(text)
    assert error.query.count("\n") == text.count("\n")
    assert "INTO" not in error.query
    assert "GLOBAL WINDOW" not in error.query


@pytest.mark.parametrize("text", ["CREATE STREAMING TABLE t AS INSERT INTO u SELECT 1", "CREATE FLOW f AS\n DROP TABLE u"])
def test_what_is_no_query_is_said_where_it_begins(text: str) -> None:
    error = problem(text)
    assert error.position is not None
    assert error.position.start == text.index(" AS") + 4 + text.count("\n")


def test_positions_are_those_of_the_statement_as_written() -> None:
    text = "-- a flow\nCREATE FLOW f AS\n  INSERT INTO t\n  SELECT k,\n    count(*) AS n\n  FROM STREAM s\n  GROUP BY k"
    query = parsed(text, Insert).query
    columns: list[Any] = [column.this.meta for column in query.tree.find_all(exp.Column)]
    assert sorted(text[meta["start"] : meta["end"] + 1] for meta in columns) == ["k", "k"]
    assert sorted(meta["line"] for meta in columns) == [4, 7]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER STREAMING TABLE t SET TBLPROPERTIES ('a' = 'b', 'sqlext.flow' = 'x')",
        "ALTER STREAMING TABLE t UNSET TBLPROPERTIES IF EXISTS ('a', 'sqlext.flow')",
        "ALTER STREAMING TABLE t UNSET TBLPROPERTIES (sqlext.flow)",
        "CREATE OR REFRESH STREAMING TABLE t TBLPROPERTIES (sqlext.flow = 'x') AS SELECT k FROM STREAM s",
    ],
)
def test_the_mark_of_a_flow_on_its_table_is_not_the_user_s(text: str) -> None:
    error = problem(text)
    assert "The property `sqlext.flow` names the flow that made the table" in error.message
    assert error.position is not None


def test_an_option_cannot_be_taken_back_however_it_is_written() -> None:
    for key in ("'state.backend.type'", "state.backend.type"):
        assert "cannot be unset" in problem(f"ALTER STREAMING TABLE t UNSET TBLPROPERTIES ('a', {key})").message
    parse("ALTER STREAMING TABLE t UNSET TBLPROPERTIES IF EXISTS ('a', b.c);")
    assert isinstance(problem("ALTER STREAMING TABLE t UNSET TBLPROPERTIES ()"), SyntaxProblem)


@pytest.mark.parametrize(
    ("into", "target", "once"),
    [
        ("ONCE t", ("t",), True),
        ("once `a b`.t BY NAME", ("a b", "t"), True),
        ("ONCE TABLE t (k)", ("t",), True),
        ("once", ("once",), False),
        ("once BY NAME", ("once",), False),
        ("once.t", ("once", "t"), False),
        ("once (k)", ("once",), False),
    ],
)
def test_once_stands_before_a_table_or_is_one(into: str, target: tuple[str, ...], once: bool) -> None:
    statement = parse(f"CREATE FLOW f AS INSERT INTO {into} SELECT k FROM t")
    assert isinstance(statement, Insert)
    assert (statement.target, statement.once, statement.flow) == (target, once, ("f",))
