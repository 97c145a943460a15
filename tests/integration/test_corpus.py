"""Statements that are not ours come out of a session with sqlext exactly as they come out of Spark and Delta alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from tests.corpus import ERRORS, CorpusStatement, load

STATEMENTS = load()
KINDS = sorted({statement.kind for statement in STATEMENTS})

# What two parses of one text do not share: expression ids, the labels of unlabelled script blocks, object identities.
_FRESH = re.compile(
    r"""
    \#\d+L?
  | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b
  | (?:\$\$Lambda[^@]*)?@[0-9a-f]+\b
    """,
    re.VERBOSE,
)

# Plans that spell out every field and every row.
_VERBOSE = {
    "spark.sql.debug.maxToStringFields": "10000",
    "spark.sql.parser.eagerEvalOfUnresolvedInlineTable": "false",
}


class Parsers:
    """Parses with the session's parser, which is ours around Delta's around Spark's, and with the same two alone.

    Delta's own `parsePlanWithParameters` drops the parameters, so there the plain one is Spark's.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._state = spark._jsparkSession.sessionState()
        self._ours = self._state.sqlParser()
        self._spark_alone = self._jvm.org.apache.spark.sql.execution.SparkSqlParser()
        self._plain = self._jvm.io.delta.sql.parser.DeltaSqlParser(self._spark_alone)

    def ours(self, statement: CorpusStatement) -> str:
        """The plan, or the error, that the session with sqlext gives."""
        return self._outcome(self._ours, statement)

    def plain(self, statement: CorpusStatement) -> str:
        """The plan, or the error, that Spark and Delta give."""
        return self._outcome(self._plain if statement.parameters is None else self._spark_alone, statement)

    def _outcome(self, parser: Any, statement: CorpusStatement) -> str:
        try:
            if statement.parameters is None:
                plan = parser.parsePlan(statement.text)
            else:
                plan = parser.parsePlanWithParameters(statement.text, self._context(statement.parameters))
            if statement.kind == ERRORS:  # some are wrong in a way that only analysis sees
                self._state.executePlan(plan, self._companion("execution.CommandExecutionMode").SKIP()).assertAnalyzed()
            return "plan: " + _FRESH.sub("#", plan.toString())
        except CapturedException as error:
            return self._describe(error._origin)
        except Py4JJavaError as error:
            return self._describe(error.java_exception)

    def _describe(self, error: Any) -> str:
        described = f"error: {error.getClass().getName()}\n{error.getMessage()}"
        if is_instance_of(self._gateway, error, "org.apache.spark.SparkThrowable"):
            described += f"\n{error.getCondition()} {error.getSqlState()}"
        if is_instance_of(self._gateway, error, "org.apache.spark.sql.AnalysisException"):
            described += f"\nline {error.line().toString()}, position {error.startPosition().toString()}"
        return _FRESH.sub("#", described)

    def _context(self, parameters: dict[str, Any] | list[Any]) -> Any:
        """What `spark.sql(text, args)` hands to the parser."""
        literal = self._companion("catalyst.expressions.Literal").apply
        contexts = self._jvm.org.apache.spark.sql.catalyst.parser
        scala = self._jvm.org.apache.spark.api.python.PythonUtils
        if isinstance(parameters, dict):
            by_name = self._jvm.java.util.HashMap()
            for name, value in parameters.items():
                by_name.put(name, literal(value))
            return contexts.NamedParameterContext(scala.toScalaMap(by_name))
        return contexts.PositionalParameterContext(scala.toSeq([literal(value) for value in parameters]))

    def _companion(self, name: str) -> Any:
        package: Any = self._jvm.org.apache.spark.sql
        *path, last = name.split(".")
        for part in path:
            package = getattr(package, part)
        return getattr(getattr(package, last + "$"), "MODULE$")


@pytest.fixture(scope="module")
def parsers(spark: SparkSession) -> Iterator[Parsers]:
    """The parsers, with verbose plans, and without a log entry for each error that they are to give."""
    before = {key: spark.conf.get(key) for key in _VERBOSE}
    for key, value in _VERBOSE.items():
        spark.conf.set(key, value)
    logging.disable(logging.ERROR)
    yield Parsers(spark)
    logging.disable(logging.NOTSET)
    for key, old in before.items():
        spark.conf.set(key, old or "")


def report(kind: str, problem: Callable[[CorpusStatement], str | None]) -> str:
    """Every statement of `kind` that has a problem, with its place; an empty string when none has."""
    found = ((s, problem(s)) for s in STATEMENTS if s.kind == kind)
    return "\n\n".join(f"{s.place}: {s.text}\n{wrong}" for s, wrong in found if wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_plan_or_error_is_sparks_own(parsers: Parsers, kind: str) -> None:
    def problem(statement: CorpusStatement) -> str | None:
        ours, plain = parsers.ours(statement), parsers.plain(statement)
        return None if ours == plain else f"--- with sqlext\n{ours}\n--- Spark alone\n{plain}"

    wrong = report(kind, problem)
    assert not wrong, wrong


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_wrong_and_the_rest_parses(parsers: Parsers, kind: str) -> None:
    expected = "error: " if kind == ERRORS else "plan: "

    def problem(statement: CorpusStatement) -> str | None:
        plain = parsers.plain(statement)
        return None if plain.startswith(expected) else plain

    wrong = report(kind, problem)
    assert not wrong, wrong
