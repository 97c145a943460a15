"""Quoting of identifiers, string literals and names for Spark SQL. Nothing is ever pasted into SQL unquoted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_are_case_sensitive = ContextVar("_are_case_sensitive", default=False)

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TIMESTAMP = re.compile(r"""'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`|\bTIMESTAMP\b(?!:|\ (?!COMMENT\b|NOT\b|DEFAULT\b)[A-Z])""")
"""The type, as Spark renders it, among texts, quoted names, and names of fields or columns, which a type follows."""

STREAMED = "__sqlext_stream_"
"""The prefix of a table function's streaming twin: the function of the same name that returns a stream."""


def quote(identifier: str) -> str:
    """Return an identifier in backticks.

    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + identifier.replace("`", "``") + "`"


def quote_parts(parts: Iterable[str]) -> str:
    """Return a dotted name with each part in backticks.

    >>> quote_parts(("db", "t"))
    '`db`.`t`'
    """
    return ".".join(quote(part) for part in parts)


def sql_name(parts: Iterable[str]) -> str:
    """Return a dotted name as a person writes it: backticks only around parts that need them.

    >>> sql_name(("db", "a table"))
    'db.`a table`'
    """
    return ".".join(part if _PLAIN.fullmatch(part) else quote(part) for part in parts)


def quote_string(value: str) -> str:
    r"""Return a text as a string literal.

    >>> quote_string("it's")
    "'it\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def zoned(ddl: str) -> str:
    """Return types that Spark has rendered as DDL in a form that means the same in each session.

    `TIMESTAMP`, in which it renders an instant, is read as a local time where `spark.sql.timestampType` says so.

    >>> zoned("STRUCT<TIMESTAMP: TIMESTAMP COMMENT 'a TIMESTAMP', b: MAP<TIMESTAMP_NTZ, TIMESTAMP>>")
    "STRUCT<TIMESTAMP: TIMESTAMP_LTZ COMMENT 'a TIMESTAMP', b: MAP<TIMESTAMP_NTZ, TIMESTAMP_LTZ>>"
    >>> zoned("TIMESTAMP TIMESTAMP,b TIMESTAMP NOT NULL")
    'TIMESTAMP TIMESTAMP_LTZ,b TIMESTAMP_LTZ NOT NULL'
    """
    return _TIMESTAMP.sub(lambda found: "TIMESTAMP_LTZ" if found[0] == "TIMESTAMP" else found[0], ddl)


def fold(name: str) -> str:
    """Return the form of an identifier in which two spellings of one name are equal.

    Case matters only within `case_sensitive_names(True)`, as with `spark.sql.caseSensitive`. Keywords, functions and option keys
    are not identifiers: their case never matters.
    """
    return name if _are_case_sensitive.get() else name.lower()


@contextmanager
def case_sensitive_names(are_case_sensitive: bool) -> Iterator[None]:
    """Let `fold` follow a session's `spark.sql.caseSensitive` on this thread."""
    before = _are_case_sensitive.set(are_case_sensitive)
    try:
        yield
    finally:
        _are_case_sensitive.reset(before)
