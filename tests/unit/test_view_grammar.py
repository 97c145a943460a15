"""The statements of materialized views: what is ours, every field, and for each mistake what is said of it and where."""

from __future__ import annotations

from typing import TypeVar

import pytest

from sqlext.errors import Position, SqlextError, SyntaxProblem, UnsupportedError
from sqlext.options import ValueText
from sqlext.plan.job_graph import ColumnDefinition, TableDefinition
from sqlext.plan.view_spec import RefreshPolicy
from sqlext.sql.grammar import parse
from sqlext.sql.statements import (
    AlterMaterializedView,
    AlterStreamingTable,
    CreateMaterializedView,
    DropMaterializedView,
    Explain,
    RefreshMaterializedView,
    ScheduleClause,
    ShowMaterializedViews,
)
from sqlext.sql.tokens import is_ours

T = TypeVar("T")
BY_HAND = ScheduleClause()


def parsed(text: str, kind: type[T]) -> T:
    assert is_ours(text)
    statement = parse(text)
    assert isinstance(statement, kind)
    return statement


def created(clauses: str) -> CreateMaterializedView:
    return parsed(f"CREATE MATERIALIZED VIEW v {clauses} AS SELECT 1 AS k", CreateMaterializedView)


def altered(change: str) -> AlterMaterializedView:
    return parsed(f"ALTER MATERIALIZED VIEW s.v {change}", AlterMaterializedView)


def place(text: str, part: str, nth: int = 0) -> Position:
    """Where `part` stands in `text` for the n-th time."""
    start = -1
    for _ in range(nth + 1):
        start = text.index(part, start + 1)
    return Position.of(text, start, start + len(part))


def given(text: str, part: str, value: str | None = None) -> ValueText:
    """A value as written at `part`; `value` when it is read otherwise."""
    return ValueText(part if value is None else value, place(text, part))


def problem(text: str) -> SqlextError:
    assert is_ours(text)
    with pytest.raises(SqlextError) as caught:
        parse(text)
    return caught.value


# CREATE MATERIALIZED VIEW


def test_a_view_with_nothing_but_a_query() -> None:
    text = "CREATE MATERIALIZED VIEW v AS SELECT k FROM t;"
    view = parsed(text, CreateMaterializedView)
    assert view == CreateMaterializedView(("v",), " " * 30 + "SELECT k FROM t", TableDefinition(), position=Position(1, 1, 0, 6))
    assert (view.schedule, view.policy, view.replace, view.if_not_exists) == (BY_HAND, RefreshPolicy.AUTO, False, False)
    assert view.text == "SELECT k FROM t"


def test_a_view_with_every_clause() -> None:
    text = """/* dbt */ create materialized view if not exists cat.`my db`.v (
  k BIGINT NOT NULL COMMENT 'the key', n, CONSTRAINT pk PRIMARY KEY (k) RELY
)
  refresh policy incremental strict
  TBLPROPERTIES (delta.appendOnly = false)
  USING delta
  SCHEDULE EVERY 1 HOUR -- often
  COMMENT 'it''s'
  PARTITIONED BY (day, bucket(4, id))
  CLUSTER BY (a, b)
  LOCATION "/data/v"
AS
  SELECT k, count(*) AS n /* so many */
  FROM t -- the table
  GROUP BY k"""
    view = parsed(text, CreateMaterializedView)
    assert (view.name, view.replace, view.if_not_exists) == (("cat", "my db", "v"), False, True)
    key = text.index("CONSTRAINT"), text.index("CONSTRAINT") + len("CONSTRAINT")
    assert view.definition == TableDefinition(
        ("COMMENT 'it''s'", "PARTITIONED BY (day, bucket(4, id))", "CLUSTER BY (a, b)", 'LOCATION "/data/v"'),
        {
            "sqlext.constraint.pk": ValueText("PRIMARY KEY (k) RELY", Position.of(text, *key)),
            "delta.appendOnly": given(text, "false"),
        },
        (ColumnDefinition("k", "BIGINT", True, "the key"), ColumnDefinition("n")),
    )
    assert view.schedule == ScheduleClause(every=given(text, "1 HOUR"))
    assert view.policy is RefreshPolicy.STRICT
    assert view.position == place(text, "create")
    query = text[text.index("SELECT") :]
    assert view.text == query
    assert view.source.count("\n") == text.count("\n")
    assert view.source.index("SELECT") == text.index("SELECT")


def test_or_replace() -> None:
    view = parsed("CREATE OR REPLACE MATERIALIZED VIEW v AS VALUES (1)", CreateMaterializedView)
    assert (view.replace, view.if_not_exists, view.text) == (True, False, "VALUES (1)")


@pytest.mark.parametrize(
    ("clause", "policy"),
    [
        ("REFRESH POLICY AUTO", RefreshPolicy.AUTO),
        ("REFRESH POLICY INCREMENTAL", RefreshPolicy.INCREMENTAL),
        ("REFRESH POLICY INCREMENTAL STRICT", RefreshPolicy.STRICT),
        ("refresh policy full", RefreshPolicy.FULL),
    ],
)
def test_policies(clause: str, policy: RefreshPolicy) -> None:
    assert created(clause).policy is policy
    assert altered(f"SET {clause}") == AlterMaterializedView(("s", "v"), policy=policy, position=Position(1, 25, 24, 25))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("10 MINUTES", "10 MINUTES"),
        ("1 hour", "1 HOUR"),
        ("1 HOUR /* and */ 30 MINUTES", "1 HOUR 30 MINUTES"),
        ("'2 min'", "2 min"),
        ("'1' DAY", "1 DAY"),
        ('"PT2M"', "PT2M"),
        ("2 min", "2 MIN"),
    ],
)
def test_durations_are_kept_as_text(written: str, value: str) -> None:
    for interval in ("", "INTERVAL "):
        for head in ("SCHEDULE EVERY", "SCHEDULE REFRESH EVERY"):
            text = f"CREATE MATERIALIZED VIEW v {head} {interval}{written} COMMENT 'x' AS SELECT 1"
            view = parsed(text, CreateMaterializedView)
            assert view.schedule == ScheduleClause(every=given(text, written, value))
            assert view.definition.clauses == ("COMMENT 'x'",)
        text = f"ALTER MATERIALIZED VIEW v ADD TRIGGER ON UPDATE AT MOST EVERY {interval}{written}"
        schedule = ScheduleClause(on_update=True, at_most_every=given(text, written, value))
        assert parsed(text, AlterMaterializedView).schedule == schedule


def test_a_trigger_needs_no_duration() -> None:
    assert created("TRIGGER ON UPDATE").schedule == ScheduleClause(on_update=True)
    assert created("TRIGGER ON UPDATE REFRESH POLICY FULL").policy is RefreshPolicy.FULL


@pytest.mark.parametrize(
    "query",
    [
        "WITH c AS (SELECT 1 AS k), d (a) AS (SELECT 2) SELECT * FROM c, d",
        "WITH RECURSIVE c (n) MAX RECURSION LEVEL 5 AS (SELECT 1) SELECT n FROM c",
        "WITH c AS (SELECT 1) (SELECT * FROM c)",
        "FROM t SELECT k",
        "FROM t |> WHERE k > 1 |> AGGREGATE count(*) GROUP BY k",  # sqlglot need not know it
        "TABLE t",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "((SELECT stream, flow, insert FROM stream JOIN into USING (k)))",
        "SELECT a:b.c::INT, TRANSFORM(a) USING 'cat' FROM stream",
        "SELECT /*+ BROADCAST(d) */ k FROM t JOIN d USING (k)",
        "SELECT 'FROM STREAM s' AS c -- GLOBAL WINDOW END OF STREAM",
        "SELECT nonsense (",  # Spark says what is wrong
    ],
)
def test_a_query_is_sparks(query: str) -> None:
    view = parsed(f"CREATE MATERIALIZED VIEW v AS {query}", CreateMaterializedView)
    assert view.text == query.partition(" --")[0]


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE t",
        "INSERT INTO t SELECT 1",
        "FROM t INSERT INTO u SELECT k",
        "WITH c AS (SELECT 1) INSERT INTO t SELECT * FROM c",
        "WITH c (a) AS (SELECT 1) FROM c INSERT OVERWRITE t SELECT *",
        "WITH c AS (SELECT 1) DELETE FROM t",
        "WITH c AS (SELECT 1), d AS (SELECT 2) UPDATE t SET k = 1",
    ],
)
def test_what_is_no_query(query: str) -> None:
    text = f"CREATE MATERIALIZED VIEW v AS {query}"
    error = problem(text)
    word = query.split()[0]
    assert error.message == f"Expected a query; found `{word}`."
    assert error.position == Position.of(text, 30, 30 + len(word))


@pytest.mark.parametrize(
    ("query", "part", "what"),
    [
        ("SELECT * FROM STREAM s", "STREAM", "STREAM has"),
        ("SELECT * FROM t JOIN STREAM(s) USING (k)", "STREAM", "STREAM has"),
        ("SELECT * FROM (SELECT k FROM\n STREAM s)", "STREAM", "STREAM has"),
        (
            "SELECT k FROM t GROUP BY k GLOBAL WINDOW END OF STREAM",
            "GLOBAL WINDOW END OF STREAM",
            "GLOBAL WINDOW END OF STREAM has",
        ),
        ("SELECT * FROM STREAM s GLOBAL WINDOW END OF STREAM", "GLOBAL WINDOW END OF STREAM", "GLOBAL WINDOW END OF STREAM has"),
        ("SELECT /*+ FLUSH_INTERVAL('1 s') */ k FROM t", "/*+ FLUSH_INTERVAL('1 s') */", "the hint FLUSH_INTERVAL has"),
    ],
)
def test_a_view_reads_no_streams(query: str, part: str, what: str) -> None:
    for head in ("CREATE MATERIALIZED VIEW v AS", "EXPLAIN CREATE OR REPLACE MATERIALIZED VIEW v AS"):
        text = f"{head} {query}"
        error = problem(text)
        assert isinstance(error, UnsupportedError)
        assert error.message == (
            f"A materialized view reads tables, so {what} no meaning in it. Leave it out, or use CREATE STREAMING TABLE, which "
            "reads streams."
        )
        assert error.position == place(text, part)


def test_a_partition_operator_is_in_sparks_form() -> None:
    view = parsed("CREATE MATERIALIZED VIEW v AS SELECT * FROM map_partition(TABLE t, 'f')", CreateMaterializedView)
    assert view.text == "SELECT * FROM map_partition(TABLE(t), 'f')"
    assert isinstance(
        problem("CREATE MATERIALIZED VIEW v AS SELECT * FROM map_partition(TABLE(STREAM t), 'f')"), UnsupportedError
    )


# Mistakes in CREATE


@pytest.mark.parametrize(
    ("clauses", "part", "nth", "message"),
    [
        ("COMMENT 'a' COMMENT 'b'", "COMMENT", 1, "The clause COMMENT is given twice."),
        ("SCHEDULE EVERY 1 DAY SCHEDULE EVERY 1 HOUR", "SCHEDULE", 1, "The clause SCHEDULE is given twice."),
        ("TRIGGER ON UPDATE TRIGGER ON UPDATE", "TRIGGER", 1, "The clause TRIGGER is given twice."),
        ("REFRESH POLICY AUTO REFRESH POLICY FULL", "REFRESH", 1, "The clause REFRESH is given twice."),
        ("TBLPROPERTIES (a = 1) TBLPROPERTIES (b = 2)", "TBLPROPERTIES", 1, "The clause TBLPROPERTIES is given twice."),
        (
            "SCHEDULE EVERY 1 DAY COMMENT 'x' TRIGGER ON UPDATE",
            "TRIGGER",
            0,
            "SCHEDULE and TRIGGER ON UPDATE exclude each other. Leave one of them out.",
        ),
        (
            "TRIGGER ON UPDATE SCHEDULE EVERY 1 DAY",
            "SCHEDULE",
            0,
            "SCHEDULE and TRIGGER ON UPDATE exclude each other. Leave one of them out.",
        ),
        ("USING parquet", "parquet", 0, "A materialized view is a Delta table; found `parquet`."),
        ("SCHEDULE HOURLY", "HOURLY", 0, "Expected EVERY; found `HOURLY`."),
        ("SCHEDULE EVERY HOUR", "HOUR", 0, "Expected a duration, such as 10 MINUTES; found `HOUR`."),
        (
            "SCHEDULE EVERY 2 MINTUES",
            "MINTUES",
            0,
            "Expected SECONDS, MINUTES, HOURS, DAYS or WEEKS; found `MINTUES`. Did you mean `MINUTES`?",
        ),
        ("TRIGGER UPDATE", "UPDATE", 0, "Expected ON; found `UPDATE`."),
        ("TRIGGER ON INSERT", "INSERT", 0, "Expected UPDATE; found `INSERT`."),
        ("TRIGGER ON UPDATE AT EVERY 1 DAY", "EVERY", 0, "Expected MOST; found `EVERY`."),
        ("TRIGGER ON UPDATE AT MOST 1 DAY", "1", 0, "Expected EVERY; found `1`."),
        (
            "REFRESH POLICY INCREMENTL",
            "INCREMENTL",
            0,
            "Expected AUTO, INCREMENTAL, INCREMENTAL STRICT or FULL; found `INCREMENTL`. Did you mean `INCREMENTAL`?",
        ),
        (
            "SCEDULE EVERY 1 DAY",
            "SCEDULE",
            0,
            "Expected one of COMMENT, LOCATION, PARTITIONED BY, CLUSTER BY, TBLPROPERTIES, SCHEDULE, TRIGGER ON UPDATE, "
            "REFRESH POLICY, AS; found `SCEDULE`. Did you mean `SCHEDULE`?",
        ),
        ("(k DEFAULT 1)", "DEFAULT", 0, None),
        ("(k, CONSTRAINT c CHECK (k > 1))", "CHECK", 0, None),
        ("(k, PRIMARY KEY (k) ENFORCED)", "ENFORCED", 0, None),
    ],
)
def test_mistakes_in_clauses(clauses: str, part: str, nth: int, message: str | None) -> None:
    text = f"CREATE MATERIALIZED VIEW v\n  {clauses} AS SELECT 1 AS k"
    error = problem(text)
    if message is None:
        assert "materialized view" in error.message
    else:
        assert error.message == message
    assert error.position == place(text, part, nth)
    assert isinstance(error, SyntaxProblem | UnsupportedError)


@pytest.mark.parametrize("head", ["CREATE MATERIALIZED VIEW v SCHEDULE", "ALTER MATERIALIZED VIEW v ADD SCHEDULE REFRESH"])
def test_cron_is_refused_by_name(head: str) -> None:
    text = f"{head} CRON '0 0 * * * ?' AT TIME ZONE 'UTC' AS SELECT 1"
    error = problem(text)
    assert isinstance(error, UnsupportedError)
    assert error.message == "SCHEDULE CRON is not supported. Use SCHEDULE EVERY and a duration, such as SCHEDULE EVERY 1 HOUR."
    assert error.position == place(text, "CRON")


def test_pipelines_own_form_is_refused_with_what_there_is_instead() -> None:
    text = "/* x */ CREATE OR REFRESH MATERIALIZED VIEW v AS SELECT * FROM STREAM s"
    error = problem(text)
    assert isinstance(error, UnsupportedError)
    assert error.message == (
        "CREATE OR REFRESH MATERIALIZED VIEW is a statement of pipelines. Use CREATE MATERIALIZED VIEW IF NOT EXISTS, and "
        "REFRESH MATERIALIZED VIEW."
    )
    assert error.position == place(text, "CREATE OR REFRESH MATERIALIZED VIEW")


def test_or_replace_and_if_not_exists() -> None:
    text = "CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1"
    error = problem(text)
    assert error.message == "OR REPLACE and IF NOT EXISTS exclude each other. Leave one of them out."
    assert error.position == place(text, "IF")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE MATERIALIZED VIEW", "Expected a name"),
        ("CREATE MATERIALIZED VIEW v", "Expected AS and a query"),
        ("CREATE MATERIALIZED VIEW v COMMENT 'x'", "Expected AS and a query"),
        ("CREATE MATERIALIZED VIEW v AS", "Expected a query"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE EVERY 5", "Expected SECONDS, MINUTES, HOURS, DAYS or WEEKS"),
        ("REFRESH MATERIALIZED VIEW", "Expected a name"),
        ("DROP MATERIALIZED VIEW IF EXISTS", "Expected a name"),
        ("ALTER MATERIALIZED VIEW v SET REFRESH", "Expected POLICY"),
    ],
)
def test_statements_that_end_too_early(text: str, message: str) -> None:
    error = problem(text)
    assert error.message == f"{message}; the statement ends here."
    assert error.position == Position.of(text, len(text))


@pytest.mark.parametrize("mark", ["sqlext.view", "sqlext.flow", "SQLEXT.View"])
@pytest.mark.parametrize(
    "text",
    [
        "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('{}' = 'x') AS SELECT 1",
        "ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ('{}' = 'x')",
        "ALTER MATERIALIZED VIEW v UNSET TBLPROPERTIES ('{}')",
        "ALTER STREAMING TABLE v SET TBLPROPERTIES ('{}' = 'x')",
    ],
)
def test_a_mark_is_set_by_us_alone(text: str, mark: str) -> None:
    error = problem(text.format(mark))
    assert isinstance(error, UnsupportedError)
    assert error.message.startswith(f"The property `{mark}` names the ")
    assert error.message.endswith("so only sqlext may set or unset it. Leave it out.")


# REFRESH, DROP, SHOW, EXPLAIN


@pytest.mark.parametrize(
    ("text", "is_full", "waits"),
    [
        ("REFRESH MATERIALIZED VIEW s.v", False, True),
        ("refresh materialized view s.v sync;", False, True),
        ("REFRESH MATERIALIZED VIEW s.v ASYNC", False, False),
        ("REFRESH MATERIALIZED VIEW s.v FULL", True, True),
        ("REFRESH MATERIALIZED VIEW s.v FULL ASYNC", True, False),
    ],
)
def test_refresh(text: str, is_full: bool, waits: bool) -> None:
    statement = parsed(text, RefreshMaterializedView)
    assert statement == RefreshMaterializedView(("s", "v"), is_full, waits, Position(1, 9, 8, 20))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("REFRESH MATERIALIZED VIEW v ASYNC FULL", "FULL"),
        ("REFRESH MATERIALIZED VIEW v SOON", "SOON"),
        ("DROP MATERIALIZED VIEW v CASCADES", "CASCADES"),
        ("SHOW MATERIALIZED VIEWS IN s", "IN"),
        ("ALTER MATERIALIZED VIEW v DROP SCHEDULE NOW", "NOW"),
        ("ALTER MATERIALIZED VIEW v ADD SCHEDULE EVERY 1 DAY TRIGGER ON UPDATE", "TRIGGER"),
        ("ALTER MATERIALIZED VIEW v SET REFRESH POLICY AUTO STRICT", "STRICT"),
        ("ALTER MATERIALIZED VIEW v SET TBLPROPERTIES (a = 1) x", "x"),
    ],
)
def test_what_follows_a_statement(text: str, part: str) -> None:
    error = problem(text)
    assert error.message == f"Expected the end of the statement; found `{part}`."
    assert error.position == place(text, part)


def test_drop_and_show() -> None:
    assert parsed("DROP MATERIALIZED VIEW s.v;", DropMaterializedView) == DropMaterializedView(("s", "v"))
    assert parsed("drop materialized view if exists `v`", DropMaterializedView) == DropMaterializedView(("v",), True)
    assert parsed("SHOW MATERIALIZED VIEWS", ShowMaterializedViews) == ShowMaterializedViews()


@pytest.mark.parametrize("extended", [False, True])
def test_explain(extended: bool) -> None:
    text = f"EXPLAIN {'EXTENDED ' if extended else ''}CREATE MATERIALIZED VIEW v AS SELECT 1"
    explained = parsed(text, Explain)
    assert explained.extended == extended
    assert isinstance(explained.statement, CreateMaterializedView)
    assert explained.statement.text == "SELECT 1"


# ALTER MATERIALIZED VIEW


@pytest.mark.parametrize("verb", ["ADD", "ALTER"])
def test_schedules_are_added_and_altered(verb: str) -> None:
    text = f"ALTER MATERIALIZED VIEW v {verb} SCHEDULE REFRESH EVERY 5 MINUTES"
    expected = ScheduleClause(every=given(text, "5 MINUTES"))
    assert parsed(text, AlterMaterializedView) == AlterMaterializedView(("v",), expected, position=Position(1, 25, 24, 25))
    assert altered(f"{verb} TRIGGER ON UPDATE").schedule == ScheduleClause(on_update=True)


@pytest.mark.parametrize("change", ["DROP SCHEDULE", "drop trigger"])
def test_a_view_without_a_schedule_is_refreshed_by_hand(change: str) -> None:
    assert altered(change) == AlterMaterializedView(("s", "v"), BY_HAND, position=Position(1, 25, 24, 25))


@pytest.mark.parametrize(
    "change",
    [
        "SET TBLPROPERTIES ('a' = 'b', delta.appendOnly = true)",
        "UNSET TBLPROPERTIES IF EXISTS ('a')",
        "CLUSTER BY (k, n)",
        "CLUSTER BY NONE",
        "ALTER COLUMN k COMMENT 'x'",
        "ALTER schedule COMMENT 'a column'",
        "ALTER trigger.at COMMENT 'a field'",
    ],
)
def test_other_changes_are_those_of_its_table(change: str) -> None:
    view = altered(change)
    assert view.text == f"ALTER TABLE{' ' * 13}s.v {change}"
    assert (view.schedule, view.policy) == (None, None)
    assert view.text.index(change) == len("ALTER MATERIALIZED VIEW s.v ")


def test_a_change_stays_at_its_place() -> None:
    text = "/* x */ ALTER MATERIALIZED\n  -- so\n VIEW v CLUSTER BY (k);"
    assert parsed(text, AlterMaterializedView).text == "/* x */ ALTER TABLE       \n  -- so\n      v CLUSTER BY (k)"
    explained = parse(f"EXPLAIN {text}")
    assert isinstance(explained, Explain)
    assert isinstance(explained.statement, AlterMaterializedView)
    table = parsed("ALTER STREAMING TABLE t CLUSTER BY (k)", AlterStreamingTable)
    assert table.text == "ALTER TABLE           t CLUSTER BY (k)"


@pytest.mark.parametrize("change", ["SET LOCATION '/x'", "RENAME TO w", "DROP COLUMN k", "ADD COLUMN k INT", "AS SELECT 1", ""])
def test_changes_that_are_not_possible(change: str) -> None:
    error = problem(f"ALTER MATERIALIZED VIEW v {change}")
    assert error.message.startswith(
        "Expected ADD SCHEDULE EVERY .., ADD TRIGGER ON UPDATE, DROP SCHEDULE, DROP TRIGGER, SET REFRESH POLICY .., SET "
        "TBLPROPERTIES (..), UNSET TBLPROPERTIES (..), ALTER COLUMN c COMMENT '..' or CLUSTER BY (..); "
    )
    assert error.message.endswith(" To change anything else, use CREATE OR REPLACE MATERIALIZED VIEW.")


# Statements of Spark's


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 AS materialized",
        "SELECT materialized view FROM t",
        "CREATE VIEW materialized AS SELECT 1",
        "CREATE OR REPLACE VIEW materialized AS SELECT 1",
        "CREATE TABLE materialized AS SELECT 1 AS view",
        "DROP VIEW materialized",
        "ALTER VIEW materialized AS SELECT 1",
        "REFRESH TABLE materialized",
        "REFRESH materialized",
        "SHOW VIEWS LIKE 'MATERIALIZED VIEWS'",
        "SHOW MATERIALIZED",
        "DESCRIBE materialized",
        "/* CREATE MATERIALIZED VIEW v AS */ SELECT 1",
        "SELECT 'CREATE MATERIALIZED VIEW v AS SELECT 1'",
        "CREATE `MATERIALIZED` VIEW v AS SELECT 1",
        "BEGIN CREATE MATERIALIZED VIEW v AS SELECT 1; END",
        "WITH c AS MATERIALIZED (SELECT 1) SELECT * FROM c",
    ],
)
def test_sparks_own_statements_are_sparks(text: str) -> None:
    assert not is_ours(text)
