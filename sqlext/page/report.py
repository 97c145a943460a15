"""`sqlext report`: the page of a flow, view or job as one file, from a warehouse that may be in use."""

from __future__ import annotations

from pathlib import Path

from sqlext.errors import SetupError
from sqlext.page.app import saved
from sqlext.page.painter import Painter
from sqlext.page.render import Renderer
from sqlext.page.stored import StoredHome


def write_report(name: str, warehouse: Path, output: Path, home: str = "") -> str:
    """Write the page of a flow, view or job.

    Args:
        name: the flow's or view's name, or the job's id or the beginning of it; empty: the page of all, with their graph.
        output: the file to write; an existing file is overwritten.
        home: see `StoredHome`.

    Returns:
        A sentence on what was written.

    Raises:
        SetupError: there is no warehouse or home, or the file cannot be written.
        NotFoundError: there is no such flow, view or job; the message suggests the nearest name.
    """
    stored = StoredHome(warehouse, home)
    if not name:
        return _written(output, Renderer().overview(stored.overview(), is_saved=True))
    detail = stored.detail(name)
    with Painter() as painter:
        return _written(output, saved(Renderer(), stored.overview(), detail, painter.svg))


def _written(output: Path, html: str) -> str:
    try:
        output.write_text(html, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"The report cannot be written to {output}: {error.strerror}.") from None
    return f"{output}: {len(html.encode()) / 1024:,.0f} KB"
