"""Folders and files on this machine that only their owner can read: the records of flows and jobs may hold secrets."""

from __future__ import annotations

import errno
import logging
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_NEEDS_LINKS = "its file system has no hard links, so that two processes could take one flow; choose a home on one that has them"


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


def replace_file(file: Path, text: str) -> None:
    """Write a small file that only its owner can read, replacing an existing one at once: a reader always finds one of the two.

    Raises:
        OSError: it cannot be written.
    """
    with _written_beside(file, text) as made:
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old one: without, it compares none
        made.replace(file)


def create_file(file: Path, text: str) -> bool:
    """Create a small file that only its owner can read, unless there is one; of all that do so at once, one is told True.

    Raises:
        OSError: it cannot be written, or its file system has no hard links.
    """
    with _written_beside(file, text) as made:
        try:
            os.link(made, file)
        except FileExistsError:
            return made.stat().st_nlink == 2  # it is this one: NFS asks again if an answer was lost
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise OSError(error.errno, _NEEDS_LINKS) from None
            raise
    return True


@contextmanager
def _written_beside(file: Path, text: str) -> Iterator[Path]:
    """Write a text into a new file beside another, which may be moved within the block and is gone at its end."""
    made = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE)
        with os.fdopen(number, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(number)
        yield made
    finally:
        made.unlink(missing_ok=True)
