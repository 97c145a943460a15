"""What statements answer, on a terminal and in a file: tables, lines, errors."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pyspark.sql import DataFrame, functions
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROW_LIMIT = 100
_RIGHT = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True)
class Result:
    """The rows of a statement as text.

    Attributes:
        columns: names.
        is_number: by column; numbers are aligned on the right.
        rows: at most ROW_LIMIT; None is NULL.
        has_more: whether rows were left out.
    """

    columns: Sequence[str]
    is_number: Sequence[bool]
    rows: Sequence[Sequence[str | None]]
    has_more: bool = False


def fetch(frame: DataFrame) -> Result:
    """The first rows of a frame; Spark itself writes the values."""
    kinds = [kind.split("(")[0] for _, kind in frame.dtypes]
    names = [f"c{i}" for i in range(len(frame.columns))]  # a result may have the same name twice
    text = frame.toDF(*names).select(*(functions.col(name).cast("string") for name in names))
    rows = [tuple(row) for row in text.take(ROW_LIMIT + 1)]
    return Result(frame.columns, [kind in _RIGHT for kind in kinds], rows[:ROW_LIMIT], len(rows) > ROW_LIMIT)


class Printer:
    """Prints results to stdout, errors and notes to stderr; frames and colours only where somebody looks.

    `is_live` says whether stdout is a terminal.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self.is_live = self.console.is_terminal

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style), soft_wrap=True)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Something about the run, not a result."""
        self._errors.print(Text(text, "dim"))

    def busy(self, doing: str) -> AbstractContextManager[object]:
        """Shows at a terminal that something takes long, for a `with` block."""
        return self.console.status(Text(doing, "dim")) if self.is_live else nullcontext()

    def error(self, text: str) -> None:
        first, _, rest = text.partition("\n")
        self._errors.print(Text.assemble((first, "bold red"), ("\n" if rest else "", ""), (rest, "")))

    def result(self, result: Result) -> None:
        """A text as it is, a table that fits as a table, any other row by row; of a command without columns nothing."""
        if not result.columns:
            return
        if len(result.columns) == 1 and len(result.rows) == 1 and not result.is_number[0]:
            only = result.rows[0][0]
            if only is not None and ("\n" in only or result.columns[0] == "command_output"):
                self.line(only)
                return
        if not self.is_live:
            for line in aligned(result):
                self.line(line)
        elif _width(result) <= self.console.width:
            self.console.print(_framed(result))
        else:
            self._records(result)
        if result.has_more:
            self.line(f"(the first {ROW_LIMIT} rows; there are more)")
        elif not result.rows:
            self.line("(no rows)")

    def _records(self, result: Result) -> None:
        wide = max(len(name) for name in result.columns)
        for number, row in enumerate(result.rows, 1):
            self.line(f"-- row {number}", "dim")
            for name, value in zip(result.columns, row, strict=True):
                shown = "NULL" if value is None else value.replace("\n", "\n" + " " * (wide + 2))
                self.console.print(Text.assemble((name.ljust(wide), "bold"), "  ", (shown, "dim" if value is None else "")))


class ErrorLog(logging.Handler):
    """Prints what the host of flows logs as an error: it happens beside the statements, so none of them can raise it. What comes
    with a traceback is for the log alone.
    """

    def __init__(self, printer: Printer) -> None:
        super().__init__(logging.ERROR)
        self._printer = printer
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text != self._last and not record.exc_info:
            self._last = text
            self._printer.error(text)


def aligned(result: Result) -> list[str]:
    """The rows as lines with columns of equal width, as psql and spark-sql print them."""
    cells = [list(result.columns), *([_plain(value) for value in row] for row in result.rows)]
    widths = [max(len(part) for row in cells for part in row[i].split("\n")) for i in range(len(result.columns))]
    lines = []
    for row in cells:
        parts = [cell.split("\n") for cell in row]
        for i in range(max(map(len, parts))):
            texts = [part[i] if i < len(part) else "" for part in parts]
            padded = (t.rjust(w) if number else t.ljust(w) for t, w, number in zip(texts, widths, result.is_number, strict=True))
            lines.append("  ".join(padded).rstrip())
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]] if lines else []


def _plain(value: str | None) -> str:
    return "NULL" if value is None else value.replace("\t", " ")


def _width(result: Result) -> int:
    """Of the framed table: two blanks and a bar a column."""
    return max(len(line) for line in aligned(result)) + len(result.columns) + 3


def _framed(result: Result) -> Table:
    table = Table(box=box.ROUNDED, header_style="bold")
    for name, number in zip(result.columns, result.is_number, strict=True):
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=False)
    for row in result.rows:
        table.add_row(*(Text("NULL", "dim") if value is None else Text(_plain(value)) for value in row))
    return table
