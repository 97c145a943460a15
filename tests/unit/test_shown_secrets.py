"""Secrets on their ways out: EXPLAIN, SHOW, errors, logs, and Spark's own UI."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sqlext import redaction
from sqlext.app.local_session import LocalSession
from sqlext.app.output import Printer
from sqlext.app.script_run import ExitCode, exit_code_of
from sqlext.app.statement_run import Run
from sqlext.commands.answers import Table
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


def test_an_unexpected_error_is_printed_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> ExitCode:
        raise KeyError("password=k3y")

    assert exit_code_of(fail, Printer(), "the log") is ExitCode.STATEMENT_FAILED
    assert capsys.readouterr().err == f"sqlext failed (KeyError: 'password={REDACTED}'). Please report this error; see the log.\n"
