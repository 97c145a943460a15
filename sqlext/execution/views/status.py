"""What the last refreshes of materialized views did: a small file for each view, which each of its refreshes replaces.

It is for people: a refresh goes on from the view's own commits, and never reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlext.errors import NotFoundError, SetupError
from sqlext.plan.view_spec import RefreshReport, SourceVersion


@dataclass(frozen=True)
class ViewStatus:
    """What became of the last refreshes of a view.

    Attributes:
        report: of the last one that committed; None: not known.
        at: when that ended.
        error: why the newest one failed; empty: it did not.
        next_try: when it is tried again.
    """

    report: RefreshReport | None = None
    at: datetime | None = None
    error: str = ""
    next_try: datetime | None = None

    def to_json(self) -> str:
        """Return the text of a view's file."""
        data = asdict(self)
        return json.dumps(data, default=lambda time: time.isoformat())

    @classmethod
    def from_json(cls, text: str) -> ViewStatus:
        """Read a view's file.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is torn, or another version of sqlext wrote it.
        """
        data: Mapping[str, Any] = json.loads(text)
        report = data["report"]
        return cls(
            report=None if report is None else report_of(report),
            at=_time(data["at"]),
            error=str(data["error"]),
            next_try=_time(data["next_try"]),
        )


def report_of(data: Mapping[str, Any]) -> RefreshReport:
    """Return a report from its fields as JSON has them.

    Raises:
        KeyError, TypeError, AttributeError: they are others.
    """
    versions = {field: {name: SourceVersion(**source) for name, source in data[field].items()} for field in ("sources", "cut")}
    return RefreshReport(**{**data, **versions, "mixed": tuple(data["mixed"])})


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


class File(Protocol):
    """The file operations that a status needs; `HadoopPath` has them."""

    def child(self, *names: str) -> File:
        """Return a path below this one."""

    def read_text(self) -> str:
        """Return the text of a small file; NotFoundError if it does not exist, SetupError if it cannot be read."""

    def write_text(self, text: str) -> None:
        """Write a small file atomically, replacing an existing one."""

    def delete(self) -> None:
        """Delete the file; do nothing if it does not exist."""


class StatusFiles:
    """The files with the status of each view of a home. Any thread may call any method.

    Args:
        home: the folder that holds them.
    """

    def __init__(self, home: File) -> None:
        self._folder = home.child("views", "status")

    def read(self, view_id: str) -> ViewStatus:
        """Return the status of a view; of one that nobody has refreshed, or whose file is torn, nothing is known."""
        try:
            return ViewStatus.from_json(self._file(view_id).read_text())
        except (NotFoundError, SetupError, ValueError, KeyError, TypeError, AttributeError):
            return ViewStatus()

    def write(self, view_id: str, status: ViewStatus) -> None:
        """Replace the status of a view."""
        self._file(view_id).write_text(status.to_json())

    def delete(self, view_id: str) -> None:
        """Delete the status of a view that is gone."""
        self._file(view_id).delete()

    def _file(self, view_id: str) -> File:
        return self._folder.child(f"{view_id}.json")
