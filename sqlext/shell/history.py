"""What was typed before, in a file that only its owner reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prompt_toolkit.history import FileHistory

from sqlext.private_files import make_private_file


def history_path(environment: Mapping[str, str]) -> Path:
    """Where the history lies: in the user's state folder, as the XDG Base Directory Specification has it."""
    state = environment.get("XDG_STATE_HOME", "")
    # the specification: a path that is not absolute is to be ignored
    folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return folder / "sqlext" / "history"


class PrivateHistory(FileHistory):
    """A file of mode 0600, whatever it was before. What begins with a blank is not kept, as in bash: it may hold a secret.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private_file(path)
        super().__init__(path)

    def append_string(self, string: str) -> None:
        if string[:1].isspace() or not string.strip() or self.get_strings()[-1:] == [string]:
            return
        super().append_string(string)
