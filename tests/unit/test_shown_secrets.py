"""Secrets on their ways out: EXPLAIN, SHOW, errors, logs, and Spark's own UI."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sqlext import redaction
from sqlext.app.local_session import LocalSession
from sqlext.app.output import Printer
from sqlext.app.problems import problem_of
from sqlext.app.script_run import ExitCode, ScriptFile, ScriptRunner, StatementFailed, exit_code_of
from sqlext.app.statement_run import Run, StatementRunner
from sqlext.commands.answers import Table
from sqlext.errors import Position, SyntaxProblem
from sqlext.extension.results import Result
from sqlext.plan.explain import explain_flow, lines_of
from sqlext.plan.flow_options import FlowOptions
from sqlext.planner.planner import plan_flow
from sqlext.planner.rule_book import rules_in_force
from sqlext.redaction import REDACTED, RedactedFormatter, Redaction, SqlText, use_patterns
from sqlext.spark.failures import reason_of
from sqlext.sql import grammar
from sqlext.sql.statements import CreateStreamingTable

SECRET = "k3y"


@pytest.fixture
def _pins() -> Iterator[None]:
    """An application that takes pins for secrets."""
    use_patterns("(?i)pin")
    yield
    use_patterns(redaction.SECRET_NAMES)


def test_explain_hides_secrets_after_prose_with_an_apostrophe() -> None:
    statement = grammar.parse(
        f"CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM s WITH ('password' = '{SECRET}', 'a' = 'b') GROUP BY k"
    )
    assert isinstance(statement, CreateStreamingTable)
    plan = plan_flow(statement.query, rules_in_force())
    options = FlowOptions.of_plan(plan, {}, lambda _: timedelta())
    lines = lines_of(explain_flow(plan, options, "t", states=["aggregate: Spark's state store"]))
    (row,) = Table({"plan": "STRING"}, [{"plan": tuple(lines)}]).redacted(Redaction()).rows
    assert SECRET not in row["plan"]
    assert "aggregate: Spark's state store" in row["plan"]
    assert f"WITH ('password' = '{REDACTED}', 'a' = 'b')" in row["plan"]


def test_sql_and_messages_in_one_table() -> None:
    row = {
        "error": "can't reach it with password=k3y",
        "statement": SqlText("SELECT x FROM t WHERE a.password = b.hash"),
        "rows_in": 3,
        "last_flush": None,
    }
    (shown,) = Table({}, [row]).redacted(Redaction()).rows
    assert shown == row | {"error": f"can't reach it with password={REDACTED}"}


@pytest.mark.usefixtures("_pins")
def test_the_application_s_own_pattern_holds_for_errors_and_logs() -> None:
    assert reason_of(ValueError("no answer for pin=k3y")) == f"no answer for pin={REDACTED}"
    record = logging.LogRecord("sqlext", logging.ERROR, "", 0, "option %s", ("pin=k3y",), None)
    assert RedactedFormatter("%(message)s").format(record) == f"option pin={REDACTED}"


class _Spark:
    """Keeps what Spark's UI would show."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.sparkContext = self.conf = self

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:  # Spark's name
        self.shown.append(description)

    def get(self, key: str, default: str) -> str:
        return default

    def sql(self, text: str) -> Any:
        raise ValueError(text)


def test_spark_s_ui_shows_a_statement_without_secrets() -> None:
    spark = _Spark()
    run = Run(f"SELECT *\nFROM t WITH ('password' = '{SECRET}')", "g", 1, None, threading.Event())
    with pytest.raises(ValueError, match=SECRET):
        LocalSession(cast(SparkSession, spark)).execute(run)
    assert spark.shown == [f"SELECT * FROM t WITH ('password' = '{REDACTED}')"]


class _Statements:
    """Answers as Spark's SET does, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def run(self, text: str, watch: object, show: object) -> Result:
        if self._error is not None:
            raise self._error
        key, _, value = text.partition(" ")[2].partition(" = ")
        return Result(["key", "value"], [False, False], [(key, value)])


def _run(text: str, error: Exception | None = None) -> None:
    statements = cast(StatementRunner, _Statements(error))
    ScriptRunner(Printer(), statements, lambda *_: None, problem_of).run([ScriptFile("a.sql", text)])


def test_a_script_s_statements_are_printed_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    _run(f"SET fs.s3a.secret.key = {SECRET}; SET spark.sql.ansi.enabled = true; SELECT pass = word;")
    said = capsys.readouterr().out
    assert SECRET not in said
    assert re.search(r"^pass +word$", said, re.MULTILINE)  # a table's own columns may be called so
    assert f"a.sql:1  SET fs.s3a.secret.key = '{REDACTED}'\n" in said
    assert re.search(r"a\.sql:1  SET spark\.sql\.ansi\.enabled = true\n.*\nspark\.sql\.ansi\.enabled +true\n", said, re.DOTALL)


@pytest.mark.parametrize(
    ("text", "has_excerpt"),
    [
        (f"SELECT x FROM t\nWITH ('password' = '{SECRET}')", False),
        (f"SELECT x; SET fs.s3a.secret.key = {SECRET};", False),
        (f"SELECT x;\nSET fs.s3a.secret.key = {SECRET};", True),
    ],
)
def test_a_script_s_error_has_no_excerpt_where_secrets_are(
    text: str, has_excerpt: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StatementFailed):
        _run(text, SyntaxProblem("there is no x", Position.of(text, 7)))
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert said.err.startswith("a.sql:1:8: there is no x\n")
    assert ("1 | SELECT x" in said.err) is has_excerpt


def test_an_unexpected_error_is_printed_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> ExitCode:
        raise KeyError("password=k3y")

    assert exit_code_of(fail, Printer(), "the log") is ExitCode.STATEMENT_FAILED
    assert capsys.readouterr().err == f"sqlext failed (KeyError: 'password={REDACTED}'). Please report this error; see the log.\n"
