"""Errors of statements as users see them: the message, and its place in the file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.logger import PySparkLogger

from sqlext.app.reference import near_statement
from sqlext.errors import KeyedFunctionError, PartitionFunctionError, Position, SqlextError
from sqlext.redaction import of_application
from sqlext.spark.failures import reason_of
from sqlext.sql.scripts import ScriptStatement, split
from sqlext.sql.tokens import tokens

# How Spark's messages and ours give a place in the statement, and the number of the first column in each.
_PLACE_IN_EXCERPT = re.compile(r"\n== SQL \(line (\d+), position (\d+)\) ==")
_PLACES_AT_THE_END = (
    (re.compile(r"\(line (\d+), pos (\d+)\)$"), 0),
    (re.compile(r"; line (\d+) pos (\d+)$"), 0),
    (re.compile(r"\(line (\d+), column (\d+)\)$"), 1),
)
_AFTER_THE_MESSAGE = re.compile(
    r"\s*(?:\n== SQL|\n\s*at [\w.$]+\(|\n+JVM stacktrace:|\n+Driver stacktrace:|\nTraceback \(|;\n+[ '+]*[A-Za-z]+)", re.DOTALL
)
# The traceback of a failed partition or keyed function, which Spark's and Java's stack traces surround.
_FAILED_FUNCTION = re.compile(
    rf"{SqlextError.__module__}\.(?:{PartitionFunctionError.__name__}|{KeyedFunctionError.__name__}): "
    r"(.*?)\s*(?:\n\s*at [\w.$]+\(|\n+\w+ stacktrace:|$)",
    re.DOTALL,
)
_CLASS_OF_REMOTE = re.compile(r"^\((?:[a-z_]\w*\.)+[A-Z][\w$]*\) ")  # Spark Connect's client names classes that it does not know
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}")
_EXCERPT_WIDTH = 120
_NOISE = ("Search path: ", "To tolerate the error on drop ")


@dataclass(frozen=True)
class Problem:
    """An error as users see it.

    Attributes:
        message: what is wrong, without stack traces and plans.
        line, column: the place in the statement, 1-based; None: the error does not say.
    """

    message: str
    line: int | None = None
    column: int | None = None


def silence_spark() -> None:
    """Keep pyspark from printing each error as JSON before it is even raised."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def problem_of(error: BaseException) -> Problem:
    """Describe a statement's error to the user."""
    if isinstance(error, SqlextError):
        place = error.position
        return Problem(error.message, place.line, place.column) if place else Problem(error.message)
    whole = str(error) if isinstance(error, Py4JJavaError) else _text_of(error).strip()
    if match := _FAILED_FUNCTION.search(whole):
        return Problem(match[1])
    whole = _text_of(error).strip()
    text = _AFTER_THE_MESSAGE.split(whole, maxsplit=1)[0].rstrip()
    line = column = None
    if match := _PLACE_IN_EXCERPT.search(whole):
        line, column = int(match[1]), int(match[2])
    for pattern, first in _PLACES_AT_THE_END:
        if match := pattern.search(text):
            line, column = int(match[1]), int(match[2]) + 1 - first
            text = text[: match.start()]
    lines = [each.strip() for each in _SQLSTATE.sub("", text).splitlines()]
    message = "\n".join(each for each in lines if each and not each.startswith(_NOISE))
    return Problem(of_application().message(message) or type(error).__name__, line, column)


def _text_of(error: BaseException) -> str:
    if isinstance(error, (PySparkException, CapturedException)):
        return _CLASS_OF_REMOTE.sub("", str(error))
    return reason_of(error) if isinstance(error, Py4JJavaError) else f"{type(error).__name__}: {error}"


def report(file: str, source: str, statement: ScriptStatement, problem: Problem) -> str:
    """Format an error as compilers do: place, message, and, where the place is known, the line with a caret.

    A line in which something would have to be redacted is left out: the caret would stand elsewhere.

    Args:
        file: the name of the file; empty for a typed statement.
    """
    line, column = statement.in_file(problem.line or 1, problem.column or 1)
    place = f"{file}:{line}:{column}: " if file else f"line {line}, column {column}: " if problem.line else ""
    text = f"{place}{problem.message}{_advice(statement, problem)}"
    lines = source.split("\n")  # as `Position` counts them
    if problem.line is None or line > len(lines) or _has_secret(source, lines[line - 1], line):
        return text
    number = f"{line}"
    shown = lines[line - 1].rstrip("\r").replace("\t", " ")
    left = max(0, column - 1 - _EXCERPT_WIDTH // 2) if len(shown) > _EXCERPT_WIDTH else 0
    shown = shown[left : left + _EXCERPT_WIDTH]
    return f"{text}\n  {number} | {shown}\n  {' ' * len(number)} | {' ' * (column - 1 - left)}^"


def _has_secret(source: str, text: str, line: int) -> bool:
    """Return whether a line, or a statement of a file that is partly in it, has something to redact."""
    show = of_application().sql
    parts = (each.text for each in split(source) if each.line <= line <= each.line + each.text.count("\n"))
    return any(show(each) != each for each in (text, *parts))


def _advice(statement: ScriptStatement, problem: Problem) -> str:
    """Suggest a cause for a syntax error: Spark's parser suggests none."""
    if "PARSE_SYNTAX_ERROR" not in problem.message:
        return ""
    return _missing_quote(statement) or near_statement(statement.text)


def _missing_quote(statement: ScriptStatement) -> str:
    """Find a quote that is closed only lines later: Spark reports a missing quote far from its place."""
    for token in tokens(statement.text):
        if token.kind in ("text", "quoted") and "\n" in token.text:
            place = Position.of(statement.text, token.start)
            line, column = statement.in_file(place.line, place.column)
            return f" The quote at line {line}, column {column} is closed only lines later: is a quote missing?"
    return ""
