"""Folders and files on this machine that only their owner reads: what flows and jobs are made of may hold secrets."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Create a folder for its owner alone, those above it as usual; one that is there becomes so.

    A folder that everybody uses, such as /tmp, stays as it is, and so does one of somebody else.

    Raises:
        OSError: it cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 == 0:
        return
    if mode & stat.S_ISVTX or found.st_uid != os.geteuid():
        logger.warning("others may look into %s, which is not this process's own: give it a folder of its own", folder)
        return
    folder.chmod(FOLDER_MODE)


def make_private_file(file: Path) -> None:
    """Create a file for its owner alone; one that is there becomes so.

    Raises:
        OSError: it cannot be created, or is not its user's own.
    """
    number = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, FILE_MODE)
    try:
        os.fchmod(number, FILE_MODE)
    finally:
        os.close(number)
