"""The history of typed statements, in a file that only its owner can read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prompt_toolkit.history import FileHistory

from sqlext.private_files import make_private_file


def history_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the history: in the user's state folder, as the XDG Base Directory Specification says."""
    state = environment.get("XDG_STATE_HOME", "")
    # the specification: a path that is not absolute must be ignored
    folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return folder / "sqlext" / "history"


class PrivateHistory(FileHistory):
    """A history file of mode 0600, whatever its mode was before. Lines that begin with a blank are not kept, as in bash.

    Such lines may hold secrets.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private_file(path)
        super().__init__(path)

    def append_string(self, string: str) -> None:
        if string[:1].isspace() or not string.strip() or self.get_strings()[-1:] == [string]:
            return
        super().append_string(string)
