"""Folders and files on this machine that only their owner can read: the records of flows and jobs may hold secrets."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can read, or make an existing one so; parent folders get the usual permissions.

    A shared folder, such as /tmp, keeps its permissions, and so does a folder of another user.

    Raises:
        OSError: the folder cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077 == 0:
        return
    if mode & stat.S_ISVTX or found.st_uid != os.geteuid():
        logger.warning("%s is shared or belongs to another user, so others may read it: give sqlext a folder of its own", folder)
        return
    folder.chmod(FOLDER_MODE)


def make_private_file(file: Path) -> None:
    """Create a file that only its owner can read, or make an existing one so.

    Raises:
        OSError: the file cannot be created, or belongs to another user.
    """
    number = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, FILE_MODE)
    try:
        os.fchmod(number, FILE_MODE)
    finally:
        os.close(number)
