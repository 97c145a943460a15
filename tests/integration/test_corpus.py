"""Statements that are not ours come out of a session with sqlext exactly as they come out of Spark and Delta alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

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


@dataclass(frozen=True)
class Outcome:
    """What a parser made of a statement.

    Attributes:
        text: the plan, or the error with its class, message and position.
        condition: the error's condition and SQLSTATE; empty for a plan.
        is_checked: an error that a Java proxy, and so a parser in Python, cannot throw: Java hides it in an
            UndeclaredThrowableException, unless it is translated first.
    """

    text: str
    condition: str = ""
    is_checked: bool = False

    def is_matched_by(self, ours: Outcome) -> bool:
        """Whether `ours` is as good as this: the same, or of the same condition where it has to be a translation."""
        return ours.condition == self.condition if self.is_checked else ours == self


class Parsers:
    """Parses with the session's parser, which is ours around Delta's around Spark's, and with the other two alone.

    Delta's own `parsePlanWithParameters` drops the parameters, so there the plain one is Spark's.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = cast(Any, spark._jvm)
        self._gateway = cast(Any, spark.sparkContext._gateway)
        self._state = spark._jsparkSession.sessionState()
        self._ours = self._state.sqlParser()
        self._spark_alone = self._jvm.org.apache.spark.sql.execution.SparkSqlParser()
        self._plain = self._jvm.io.delta.sql.parser.DeltaSqlParser(self._spark_alone)
        self._skip_commands = self._companion("execution.CommandExecutionMode").SKIP()

    def ours(self, statement: CorpusStatement) -> Outcome:
        """What the session with sqlext makes of it."""
        return self._outcome(self._ours, statement)

    def plain(self, statement: CorpusStatement) -> Outcome:
        """What Spark and Delta make of it."""
        return self._outcome(self._plain if statement.parameters is None else self._spark_alone, statement)

    def _outcome(self, parser: Any, statement: CorpusStatement) -> Outcome:
        try:
            if statement.parameters is None:
                plan = parser.parsePlan(statement.text)
            else:
                plan = parser.parsePlanWithParameters(statement.text, self._context(statement.parameters))
            if statement.kind == ERRORS:  # some are wrong in a way that only analysis sees
                self._state.executePlan(plan, self._skip_commands).assertAnalyzed()
            return Outcome(_FRESH.sub("#", plan.toString()))
        except CapturedException as error:
            return self._error(error._origin)
        except Py4JJavaError as error:
            return self._error(error.java_exception)

    def _error(self, error: Any) -> Outcome:
        name = error.getClass().getName()
        text = f"{name}: {error.getMessage()}"
        if is_instance_of(self._gateway, error, "org.apache.spark.sql.AnalysisException"):
            text += f"\nline {error.line().toString()}, position {error.startPosition().toString()}"
        condition = name
        if is_instance_of(self._gateway, error, "org.apache.spark.SparkThrowable"):
            condition = f"{error.getCondition()} {error.getSqlState()}"
        return Outcome(_FRESH.sub("#", text), condition, name.endswith(".SqlScriptingException"))

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


@pytest.mark.parametrize("kind", KINDS)
def test_plan_or_error_is_sparks_own(parsers: Parsers, kind: str) -> None:
    wrong = []
    for statement in (s for s in STATEMENTS if s.kind == kind):
        ours, plain = parsers.ours(statement), parsers.plain(statement)
        if bool(plain.condition) != (kind == ERRORS):
            wrong.append(f"{statement.place}: {statement.text}\n--- of the wrong kind: Spark says\n{plain.text}")
        elif not plain.is_matched_by(ours):
            wrong.append(f"{statement.place}: {statement.text}\n--- sqlext\n{ours.text}\n--- Spark\n{plain.text}")
    assert not wrong, "\n\n".join(wrong)
