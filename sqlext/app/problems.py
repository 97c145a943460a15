"""A .sql file: its statements with their places, and errors told in terms of the file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from sqlext.detect import Token, tokens
from sqlext.errors import KeyedFunctionError, PartitionFunctionError, Position, SqlextError
from sqlext.jvm import reason_of
from sqlext.redaction import of_application
from sqlext.reference import near_statement


@dataclass(frozen=True)
class ScriptStatement:
    """One statement of a file.

    Attributes:
        text: as written, without the `;` after it and the comments before it.
        line, column: where it begins in the file; both count from 1.
    """

    text: str
    line: int
    column: int

    def in_file(self, line: int, column: int) -> tuple[int, int]:
        """The place in the file of a place in the statement."""
        return self.line + line - 1, column + (self.column - 1 if line == 1 else 0)


def split(script: str) -> list[ScriptStatement]:
    """Cut a file at each `;` that ends a statement: not those in strings, comments, and BEGIN .. END blocks.

    >>> [statement.text for statement in split("SELECT ';'; -- one; two\\nBEGIN SELECT 1; END;")]
    ["SELECT ';'", 'BEGIN SELECT 1; END']
    """
    found: list[ScriptStatement] = []
    current: list[Token] = []
    blocks = _Blocks()
    end = 0
    for token in tokens(script):
        if token.text == ";" and not blocks.are_open:
            if current:
                found.append(_statement(script, current))
            current, blocks, end = [], _Blocks(), token.stop
        else:
            current.append(token)
            blocks.read(token)
    if current:
        found.append(_statement(script, current))
    elif not tokens(script[end:] + "\n\nx"):  # a comment that never ends has swallowed the x: Spark says so best
        rest = script[end:].lstrip()
        place = Position.of(script, len(script) - len(rest))
        found.append(ScriptStatement(rest, place.line, place.column))
    return found


def is_complete(script: str) -> bool:
    """Whether a text that is being typed ends behind the `;` of a statement, or has nothing in it to run.

    >>> is_complete("SELECT 1;"), is_complete("SELECT 1"), is_complete("SELECT ';"), is_complete("BEGIN SELECT 1;")
    (True, False, False, False)
    """
    found = tokens(script)
    is_open = any(token.kind == "symbol" and token.text in "'\"`" for token in found)  # a quote without its end
    if is_open or not tokens(script + "\n\nx")[len(found) :]:  # a comment that never ends has swallowed the x
        return False
    blocks, has_ended = _Blocks(), True
    for token in found:
        has_ended = token.text == ";" and not blocks.are_open
        if has_ended:
            blocks = _Blocks()
        else:
            blocks.read(token)
    return has_ended


def _statement(script: str, found: list[Token]) -> ScriptStatement:
    place = Position.of(script, found[0].start)
    return ScriptStatement(script[found[0].start : found[-1].stop], place.line, place.column)


_OPENERS = frozenset("BEGIN IF CASE WHILE LOOP REPEAT FOR".split())
_BEFORE_A_STATEMENT = frozenset("; : BEGIN ATOMIC THEN ELSE DO LOOP REPEAT".split())
_CASE_EXPRESSION = "CASE .. END"


@dataclass
class _Blocks:
    """The blocks of a SQL script (`BEGIN .. END`) that are open. Outside a script none are: there `begin` and `end` are names."""

    _open: list[str] = field(default_factory=list)
    _is_script: bool | None = None
    _before: str = ""
    _in_handler: bool = False

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    def read(self, token: Token) -> None:
        """Take the next token of the statement."""
        word = token.upper or token.text
        if self._is_script is None:
            self._is_script = word == "BEGIN"
            self._open = ["BEGIN"] if self._is_script else []
        elif self._is_script and self._open:
            self._read_in_script(word)
        self._before = word

    def _read_in_script(self, word: str) -> None:
        in_expression = self._open[-1] == _CASE_EXPRESSION
        begins = self._before in _BEFORE_A_STATEMENT and not in_expression
        if begins:
            self._in_handler = False
        self._in_handler |= word == "HANDLER"
        if word in _OPENERS and (begins or (word == "BEGIN" and self._in_handler)):
            self._open.append(word)
        elif word == "CASE" and self._before != "END":
            self._open.append(_CASE_EXPRESSION)
        elif word == "END" and (begins or in_expression or self._open[-1] == "REPEAT"):
            self._open.pop()


# Where Spark's messages and ours say that something stands in the statement, and what columns count from there.
_PLACE_IN_EXCERPT = re.compile(r"\n== SQL \(line (\d+), position (\d+)\) ==")
_PLACES_AT_THE_END = (
    (re.compile(r"\(line (\d+), pos (\d+)\)$"), 0),
    (re.compile(r"; line (\d+) pos (\d+)$"), 0),
    (re.compile(r"\(line (\d+), column (\d+)\)$"), 1),
)
_AFTER_THE_MESSAGE = re.compile(
    r"\s*(?:\n== SQL|\n\s*at [\w.$]+\(|\n+JVM stacktrace:|\n+Driver stacktrace:|\nTraceback \(|;\n+[ '+]*[A-Za-z]+)", re.DOTALL
)
# What a partition or keyed function failed with: its own traceback, which Spark's and Java's stand around.
_FAILED_FUNCTION = re.compile(
    rf"{SqlextError.__module__}\.(?:{PartitionFunctionError.__name__}|{KeyedFunctionError.__name__}): "
    r"(.*?)\s*(?:\n\s*at [\w.$]+\(|\n+\w+ stacktrace:|$)",
    re.DOTALL,
)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}")
_EXCERPT_WIDTH = 120
_NOISE = ("Search path: ", "To tolerate the error on drop ")


@dataclass(frozen=True)
class Problem:
    """An error, for people.

    Attributes:
        message: what is wrong, without stack and plan.
        line, column: where in the statement, from 1; None where the error does not say.
    """

    message: str
    line: int | None = None
    column: int | None = None


def problem_of(error: BaseException) -> Problem:
    """What a person needs to know of an error that a statement raised."""
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
        return str(error)
    return reason_of(error) if isinstance(error, Py4JJavaError) else f"{type(error).__name__}: {error}"


def report(file: str, source: str, statement: ScriptStatement, problem: Problem) -> str:
    """The error as compilers show it: place, message, and the line with a caret where the place is known.

    Args:
        file: the name of the file; empty for what was typed.
    """
    line, column = statement.in_file(problem.line or 1, problem.column or 1)
    place = f"{file}:{line}:{column}: " if file else f"line {line}, column {column}: " if problem.line else ""
    text = f"{place}{problem.message}{_advice(statement, problem)}"
    lines = source.splitlines()
    if problem.line is None or line > len(lines):
        return text
    number = f"{line}"
    shown = lines[line - 1].replace("\t", " ")
    left = max(0, column - 1 - _EXCERPT_WIDTH // 2) if len(shown) > _EXCERPT_WIDTH else 0
    shown = shown[left : left + _EXCERPT_WIDTH]
    return f"{text}\n  {number} | {shown}\n  {' ' * len(number)} | {' ' * (column - 1 - left)}^"


def _advice(statement: ScriptStatement, problem: Problem) -> str:
    """What may be wrong where Spark's parser can only say that something is."""
    if "PARSE_SYNTAX_ERROR" not in problem.message:
        return ""
    return _missing_quote(statement) or near_statement(statement.text)


def _missing_quote(statement: ScriptStatement) -> str:
    """A quote that is missing shows lines later, where nobody looks for it."""
    for token in tokens(statement.text):
        if token.kind in ("text", "quoted") and "\n" in token.text:
            place = Position.of(statement.text, token.start)
            line, column = statement.in_file(place.line, place.column)
            return f" The quote at line {line}, column {column} is closed only lines later: is one missing?"
    return ""
