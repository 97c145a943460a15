"""`sqlext docs`: the documentation, laid out on a terminal, as Markdown elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markdown import Markdown
from rich.table import Table

from sqlext.app.output import Printer
from sqlext.docs import Page


def print_topics(printer: Printer, pages: Sequence[Page]) -> None:
    """Print each topic with its summary."""
    if printer.is_live:
        table = Table.grid(padding=(0, 2))
        for page in pages:
            table.add_row(page.topic, page.summary)
        printer.console.print(table)
        return
    width = max(len(page.topic) for page in pages)
    for page in pages:
        printer.line(f"{page.topic:{width}}  {page.summary}")


def print_page(printer: Printer, page: Page) -> None:
    """Print the page of a topic."""
    if printer.is_live:
        printer.console.print(Markdown(page.text, hyperlinks=False))  # a link's address names the topic that it leads to
    else:
        printer.line(page.text.rstrip("\n"))
