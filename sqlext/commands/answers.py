"""What a statement of ours answers: a table, something to run, or nothing of ours after all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from sqlext.quoting import quote, zoned
from sqlext.redaction import Redaction
from sqlext.spark import cancellation


@dataclass(frozen=True)
class Table:
    """Rows with real columns.

    Attributes:
        columns: name and Spark type of each, in order.
        rows: one mapping a row, by column; what is missing is null. Timestamps are aware datetimes. A text that is SQL is a
            `SqlText`; a tuple of texts is shown line by line.
    """

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]

    def redacted(self, show: Redaction) -> Table:
        """Return the table without secrets: SQL is redacted as SQL, other texts as messages.

        Each text is redacted alone, because the meaning of an apostrophe depends on which of the two it is.
        """
        return Table(self.columns, [{name: _shown(value, show) for name, value in row.items()} for row in self.rows])


def _shown(value: Any, show: Redaction) -> Any:
    if isinstance(value, tuple):
        return "\n".join(map(show.text, value))
    return show.text(value) if isinstance(value, str) else value


def properties(values: Mapping[str, Any]) -> Table:
    """Return a table of named values, one a row, as DESCRIBE has it."""
    shown = [{"property": k, "value": v if v is None or isinstance(v, str) else str(v)} for k, v in values.items()]
    return Table({"property": "STRING", "value": "STRING"}, shown)


@dataclass(frozen=True)
class DeferredCommand:
    """A command: `run` is called when Spark executes it, and returns the lines to show."""

    name: str
    run: Callable[[], list[str]]


@dataclass(frozen=True)
class SparkStatement:
    """Spark's to do.

    Attributes:
        text: what Spark is to parse instead of the statement; None: the statement as it is.
    """

    text: str | None = None


Answer = Table | DeferredCommand | SparkStatement


def whole_command(spark: SparkSession, name: str, change: Callable[[threading.Event], str]) -> DeferredCommand:
    """Return a command that is not left half done when its client cancels it; see `cancellation.to_its_end`."""
    return DeferredCommand(name, lambda: [cancellation.to_its_end(spark, name, change)])


def relation_sql(table: Table) -> str:
    """Return a query whose result is the table: plain SQL of Spark, which needs no session and no job.

    The values travel as one JSON text.
    """
    rows = json.dumps([{name: _json_value(row.get(name)) for name in table.columns} for row in table.rows])
    fields = ", ".join(f"{quote(name)}: {zoned(kind)}" for name, kind in table.columns.items())
    arguments = f"{_hexadecimal(rows)}, {_hexadecimal(f'ARRAY<STRUCT<{fields}>>')}"
    return f"SELECT row.* FROM (SELECT explode(from_json({arguments})) AS row)"  # noqa: S608  # only digits


def _hexadecimal(text: str) -> str:
    """Return a text as an expression of digits: what an apostrophe, a backslash or `${` means depends on the session's settings.

    >>> _hexadecimal("it's")
    "CAST(X'69742773' AS STRING)"
    """
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _json_value(value: Any) -> Any:
    if isinstance(value, timedelta):  # as Spark reads INTERVAL DAY TO SECOND, of which none here is below zero
        return f"{value.days} {timedelta(seconds=value.seconds)!s:0>8}.{value.microseconds:06}"
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value
