"""SQL logic tests: reads `*.slt` files and runs them. After sqllogictest and Materialize's testdrive.

A file is a list of records, with blank lines between them. A record's SQL ends at the first blank line, at `----` or at
the end of the file; it may span lines, and no semicolon stands behind it.

    # A comment stands between records, at the start of a line.

    statement ok
    CREATE TABLE t (k STRING, n INT) USING delta

    statement error There is no flow `\\w+`
    START FLOW nope

    query rowsort
    SELECT k, n FROM t
    ----
    a     1
    NULL  2

    $ wait t
    $ restart

- `statement error` takes a regular expression, which is searched for in the error's message: one line, runs of white space
  as one space, without the excerpt of the SQL, and with the place in it, `(line 1, pos 26)`.
- `query` compares rows in their order, `query rowsort` in whichever order. Values stand apart by tabs; in a line without a
  tab, by spaces. A result of one column has one value a line, spaces and all; if it holds line breaks it is as many lines,
  without the blank ones.
- Values: NULL, true, 1.5, 2024-01-01, 2024-01-01 00:00:00, [1,2], {1,a} for a struct, {k:v} for a map; `(empty)` is a string
  without characters. An expected value `*` fits any value; with `rowsort` it stands behind what tells the rows apart.
- `$ wait FLOW` returns when all that has arrived is in the flow's target. `$ restart` stops this process's flows without
  dropping them and takes them up again, as a new process would.

A file is one test. A query whose rows differ does not end it, so that one run shows all of them; any other failure does.
`pytest --complete` writes the rows that came back into the file; read them before you commit them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pyspark.errors import PySparkException

_RULE = "----"
_ANY = "*"


class SltSyntaxError(ValueError):
    """A line that is no part of the format; says where it stands."""


@dataclass(frozen=True)
class Statement:
    """A statement; `error` is the pattern of the message it must fail with, None when it must not fail."""

    line: int
    sql: str
    error: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Query:
    """A query; `first` and `last` say which of the file's lines, counted from 0, hold `expected`: `lines[first:last]`."""

    line: int
    sql: str
    is_sorted: bool
    expected: tuple[str, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Restart:
    """`$ restart`"""

    line: int


@dataclass(frozen=True)
class Wait:
    """`$ wait FLOW`"""

    line: int
    flow: str


Record = Statement | Query | Restart | Wait


@dataclass(frozen=True)
class Failure:
    """A record that did not do what the file says; `rows` are a query's own, as the file would have them."""

    line: int
    text: str
    query: Query | None = None
    rows: tuple[str, ...] = ()


class Session(Protocol):
    """What runs the records."""

    def execute(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows; a PySparkException when it fails."""

    def wait(self, flow: str) -> None: ...

    def restart(self) -> None: ...


# Reading.


def parse(text: str, name: str) -> list[Record]:
    """The records of a file.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        SltSyntaxError: a line is no part of the format.
    """
    return list(_Reader(text, name).records())


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self._lines = [line.rstrip() for line in text.split("\n")]
        self._name = name
        self._at = 0

    def records(self) -> Iterator[Record]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line or line.startswith("#"):
                self._at += 1
            elif line.startswith("$"):
                yield self._control(line.removeprefix("$").strip())
            else:
                yield self._record(*line.partition(" ")[::2])

    def _record(self, kind: str, rest: str) -> Record:
        start = self._at
        line = start + 1
        if kind == "statement" and rest == "ok":
            return Statement(line, self._sql())
        if kind == "statement" and rest.startswith("error "):
            try:
                pattern = re.compile(rest.removeprefix("error "))
            except re.error as problem:
                raise self._problem(start, f"a pattern that is none ({problem})") from None
            return Statement(line, self._sql(), pattern)
        if kind == "query" and rest in ("", "rowsort"):
            sql = self._sql()
            if self._at == len(self._lines) or self._lines[self._at] != _RULE:
                raise self._problem(start, f"a query without {_RULE}")
            self._at += 1
            first = self._at
            while self._at < len(self._lines) and self._lines[self._at]:
                self._at += 1
            return Query(line, sql, rest == "rowsort", tuple(self._lines[first : self._at]), first, self._at)
        raise self._problem(start, "a line that is no part of the format")

    def _sql(self) -> str:
        head = self._at
        self._at += 1
        start = self._at
        while self._at < len(self._lines) and self._lines[self._at] not in ("", _RULE):
            self._at += 1
        if self._at == start:
            raise self._problem(head, "a record without SQL")
        return "\n".join(self._lines[start : self._at])

    def _control(self, command: str) -> Record:
        self._at += 1
        if command == "restart":
            return Restart(self._at)
        if flow := command.removeprefix("wait ").strip() if command.startswith("wait ") else "":
            return Wait(self._at, flow)
        raise self._problem(self._at - 1, "a command that is none")

    def _problem(self, index: int, what: str) -> SltSyntaxError:
        return SltSyntaxError(f"{self._name}:{index + 1}: {what}: {self._lines[index]}")


# Running.


def run(records: Sequence[Record], session: Session) -> Iterator[Failure]:
    """Run records in order; yields the failures as they come."""
    for record in records:
        try:
            match record:
                case Statement():
                    failure = _run_statement(record, session)
                case Query():
                    failure = _run_query(record, session)
                case Restart():
                    session.restart()
                    continue
                case Wait():
                    session.wait(record.flow)
                    continue
        except PySparkException as error:
            failure = Failure(record.line, f"expected no error\ngot {message_of(error)}")
        if failure is not None:
            yield failure
            if failure.query is None:
                return


def _run_statement(statement: Statement, session: Session) -> Failure | None:
    if statement.error is None:
        session.execute(statement.sql)
        return None
    expected = f"expected an error that matches {statement.error.pattern}"
    try:
        session.execute(statement.sql)
    except PySparkException as error:
        message = message_of(error)
        if "Traceback" in message:
            return Failure(statement.line, f"expected a sentence\ngot a traceback: {message}")
        return None if statement.error.search(message) else Failure(statement.line, f"{expected}\ngot {message}")
    return Failure(statement.line, f"{expected}\ngot none")


def _run_query(query: Query, session: Session) -> Failure | None:
    rows = session.execute(query.sql)
    columns = len(rows[0]) if rows else 1
    got = _as_lines([[text_of(value) for value in row] for row in rows])
    expected = [_split(line, columns) for line in query.expected]
    found = [_split(line, columns) for line in got]
    if query.is_sorted:
        expected, found = sorted(expected), sorted(found)
    fits = len(expected) == len(found) and all(_fits(*pair) for pair in zip(expected, found, strict=True))
    if fits:
        return None
    text = "\n".join(["expected", *(f"  {line}" for line in query.expected), "got", *(f"  {line}" for line in got)])
    return Failure(query.line, text, query, tuple(got))


def _fits(expected: Sequence[str], found: Sequence[str]) -> bool:
    return len(expected) == len(found) and all(e in (_ANY, f) for e, f in zip(expected, found, strict=True))


def _split(line: str, columns: int) -> list[str]:
    if columns == 1:
        return [line]
    return line.split("\t") if "\t" in line else line.split()


def _as_lines(rows: list[list[str]]) -> list[str]:
    if any(len(row) == 1 for row in rows):
        return [line.rstrip() for row in rows for line in row[0].split("\n") if line.strip()]
    separator = "\t" if any(" " in value or "\t" in value for row in rows for value in row) else " "
    return [separator.join(row) for row in rows]


def message_of(error: Exception) -> str:
    """An error's message on one line, without the excerpt of the SQL."""
    return " ".join(str(error).split("== SQL")[0].split())


def text_of(value: Any) -> str:
    """A value as a file has it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat(sep=" ")
        case str():
            return value or "(empty)"
        case tuple():  # a struct; Spark's Row is one
            return "{" + ",".join(map(text_of, value)) + "}"
        case list():
            return "[" + ",".join(map(text_of, value)) + "]"
        case Mapping():
            return "{" + ",".join(f"{text_of(k)}:{text_of(v)}" for k, v in value.items()) + "}"
    return str(value)


def completed(text: str, failures: Sequence[Failure]) -> str:
    """The file with the rows that came back in place of those that were expected."""
    lines = text.split("\n")
    for failure in sorted(failures, key=lambda each: each.line, reverse=True):
        if failure.query is not None:
            lines[failure.query.first : failure.query.last] = failure.rows
    return "\n".join(lines)
