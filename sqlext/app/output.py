"""The output of statements, on a terminal or in a file: tables, lines, errors."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from rich import box
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from sqlext.extension.results import LiveBatch, Result


class Printer:
    """The output of this process: results on stdout, errors and notes on stderr; frames and colours only on a terminal.

    Attributes:
        console: the console of stdout.
        is_live: whether stdout is a terminal.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self.is_live = self.console.is_terminal

    def line(self, text: str, style: str = "") -> None:
        """Print text without wrapping it."""
        self.console.print(Text(text, style), soft_wrap=True)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print something about the run that is not a result."""
        self._errors.print(Text(text, "dim"))

    def busy(self, doing: str) -> AbstractContextManager[object]:
        """Show on a terminal that something takes long, for a `with` block."""
        return self.console.status(Text(doing, "dim")) if self.is_live else nullcontext()

    def error(self, text: str) -> None:
        """Print an error, with its first line emphasised."""
        first, _, rest = text.partition("\n")
        self._errors.print(Text.assemble((first, "bold red"), ("\n" if rest else "", ""), (rest, "")))

    def result(self, result: Result) -> None:
        """Print a result; nothing for a command without columns.

        On a terminal, rows are a framed table if it fits, else one record each; elsewhere they are aligned lines.
        """
        if not result.columns:
            return
        if result.text is not None:
            self.line(result.text)
            return
        if not self.is_live:
            for line in aligned(result):
                self.line(line)
        elif _width(result) <= self.console.width or _wraps_well(result, self.console.width):
            self.console.print(_framed(result, "fold"))
        else:
            self._records(result)
        if text := _not_shown(result):
            self.line(text)

    def live_batch(self, batch: LiveBatch) -> None:
        """Print the rows of a live query's micro-batch."""
        self.line(f"-- {time.strftime('%H:%M:%S')}, micro-batch {batch.number}: {batch.what}", "dim")
        self.result(batch.result)

    def drawn(self, result: Result) -> RenderableType:
        """Return a result for the caller to print, no wider than the terminal.

        A result that is too wide loses its empty columns, is then transposed, and is cut if even that is too wide.
        """
        if not result.columns:
            return Text("")
        if result.text is not None:
            return Text(result.text)
        if _width(result) > self.console.width:
            result = _without_empty_columns(result)
        if _width(result) > self.console.width:
            result = _turned(result)
        return Group(_framed(result), *([Text(text)] if (text := _not_shown(result)) else []))

    def _records(self, result: Result) -> None:
        wide = max(len(name) for name in result.columns)
        for number, row in enumerate(result.rows, 1):
            self.line(f"-- row {number}", "dim")
            for name, value in zip(result.columns, row, strict=True):
                shown = "NULL" if value is None else value.replace("\n", "\n" + " " * (wide + 2))
                self.console.print(Text.assemble((name.ljust(wide), "bold"), "  ", (shown, "dim" if value is None else "")))


class ErrorLog(logging.Handler):
    """A log handler that prints errors of flows, which run beside the statements, so that no statement can raise them.

    Records with a traceback are for the log only.
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
    """Return the rows as lines with aligned columns, as psql and spark-sql print them."""
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


def _not_shown(result: Result) -> str:
    if result.left_out:
        return f"(the first {len(result.rows)} rows; {'more than ' * result.has_more}{result.left_out:,} left out)"
    if result.has_more:
        return f"(the first {len(result.rows)} rows; there are more)"
    return "" if result.rows else "(no rows)"


def _without_empty_columns(result: Result) -> Result:
    kept = [at for at in range(len(result.columns)) if any(row[at] is not None for row in result.rows)] or [0]
    rows = [[row[at] for at in kept] for row in result.rows]
    return replace(
        result, columns=[result.columns[at] for at in kept], is_number=[result.is_number[at] for at in kept], rows=rows
    )


def _turned(result: Result) -> Result:
    """Transpose a result; the first column's values become the column names."""
    heads = [_plain(row[0]) for row in result.rows]
    rows = [[name, *(row[at] for row in result.rows)] for at, name in enumerate(result.columns) if at > 0]
    return replace(result, columns=[result.columns[0], *heads], is_number=[False] * (len(heads) + 1), rows=rows)


def _plain(value: str | None) -> str:
    return "NULL" if value is None else value.replace("\t", " ")


def _width(result: Result) -> int:
    """Return the width of the framed table: two blanks and a bar for each column are added."""
    return max(len(line) for line in aligned(result)) + len(result.columns) + 3


def _wraps_well(result: Result, width: int) -> bool:
    """Return whether a result is names and values, as of DESCRIBE, whose long values may wrap."""
    first = max(len(_plain(row[0])) for row in result.rows) if result.rows else 0
    return len(result.columns) == 2 and first * 3 < width


def _framed(result: Result, overflow: OverflowMethod = "ellipsis") -> Table:
    table = Table(box=box.ROUNDED, header_style="bold")
    for name, number in zip(result.columns, result.is_number, strict=True):
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=False, overflow=overflow)
    for row in result.rows:
        table.add_row(*(Text("NULL", "dim") if value is None else Text(_plain(value)) for value in row))
    return table
