"""Processes of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def is_process(pid: int) -> bool:
    """Return whether a process runs; one that has ended and only waits for its parent to ask how (a zombie) does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:  # not on Linux, or ended just now
        return True
    return state not in ("Z", "X")
