"""Every error that sqlext raises, in one class hierarchy; each is a builtin error too.

A message is one sentence on what is wrong, with the name and the value, and one on what to do.
`Position` is the place in the SQL text; `extension/parser.py` passes it on to Spark's clients.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """A place in a statement.

    Attributes:
        line: 1-based line.
        column: 1-based column.
        start: 0-based offset of the first character.
        stop: 0-based offset just after the last character.
    """

    line: int
    column: int
    start: int
    stop: int

    @classmethod
    def of(cls, text: str, start: int, stop: int | None = None) -> Position:
        """Return the position of `text[start:stop]`; without `stop`, of one character."""
        line = text.count("\n", 0, start) + 1
        column = start - (text.rfind("\n", 0, start) + 1) + 1
        return cls(line, column, start, start + 1 if stop is None else stop)

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class SqlextError(Exception):
    """The base class of all errors of sqlext.

    Args:
        message: what is wrong and what to do, in full sentences.
        position: the place in the SQL text; None: the error is not about a place.
    """

    def __init__(self, message: str, position: Position | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} ({self.position})" if self.position else self.message


class SyntaxProblem(SqlextError, ValueError):  # noqa: N818  # `SyntaxError` is a builtin that means Python's own syntax
    """A statement of sqlext does not follow the grammar."""


class UnreadableQuery(SyntaxProblem):
    """The query in a statement of sqlext cannot be parsed.

    Attributes:
        query: the statement with everything but the query blanked out: Spark's own parser may have a better message for it.
    """

    def __init__(self, message: str, position: Position | None, query: str) -> None:
        super().__init__(message, position)
        self.query = query


class OptionError(SqlextError, ValueError):
    """An option or hint is unknown, badly formed or out of range."""


class UnsupportedError(SqlextError, NotImplementedError):
    """A query that sqlext cannot keep up to date, or a feature this version does not have."""


class NameTakenError(SqlextError, ValueError):
    """A flow, table or function of that name, or a flow that writes that target, already exists."""


class NotFoundError(SqlextError, LookupError):
    """No flow, table, function or file has that name."""


class SchemaError(SqlextError, TypeError):
    """The query's columns do not fit the target's."""


class NewColumnsError(SchemaError):
    """Files have columns that their flow does not have yet: it is started again with them.

    Attributes:
        columns: all columns of each call of read_files, as literals, by the `key` of the call.
    """

    def __init__(self, message: str, columns: Mapping[str, str]) -> None:
        super().__init__(message)
        self.columns = columns


class RuleError(SqlextError, RuntimeError):
    """A rewrite rule cannot be registered, failed, or does not converge."""


class FlowError(SqlextError, RuntimeError):
    """A flow failed, was fenced by another driver, or is in the wrong state for the statement."""


class RunsElsewhereError(FlowError):
    """A flow runs in another process, which is alive."""


class ConstraintError(SqlextError, ValueError):
    """A row violates a constraint with ON VIOLATION FAIL UPDATE."""


class ViewError(SqlextError, RuntimeError):
    """A materialized view cannot be refreshed, or is in the wrong state for the statement."""


class DependentsError(SqlextError, RuntimeError):
    """What is to be dropped is read by others that are kept up to date."""


class JobError(SqlextError, RuntimeError):
    """A bounded job cannot be run or resumed."""


class PartitionFunctionError(SqlextError, RuntimeError):
    """A function over a partition failed, or its rows differ from its declaration; carries the function's own traceback."""


class KeyedFunctionError(SqlextError, RuntimeError):
    """A keyed function failed, its rows differ from its declaration, or it used state without a key; carries its traceback."""


class WaitTimeoutError(SqlextError, TimeoutError):
    """A wait reached its deadline."""


class StatementCanceledError(SqlextError, InterruptedError):
    """The client canceled the statement while it waited or while its job ran."""


class SetupError(SqlextError, EnvironmentError):
    """Java, a JAR, a directory or a setting that sqlext needs is missing or unusable."""


class ConnectionLostError(SqlextError, ConnectionError):
    """The host that a client is connected to has ended, does not answer or has ended the session."""


class TornFileError(SetupError):
    """A small file does not match the checksum beside it, or is no text: a process is just writing it, or died while it did."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean `x`?" with the nearest of `known`, or an empty string when none is near."""
    by_fold = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_fold, n=1, cutoff=0.6)
    return f" Did you mean `{by_fold[near[0]]}`?" if near else ""
