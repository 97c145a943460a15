"""Folders and files that only their owner reads."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

import pytest

from sqlext.private_files import create_file, make_private_file, make_private_folder, replace_file


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o7777)


def test_a_new_folder(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "warehouse" / "home")
    assert mode(tmp_path / "warehouse" / "home") == "0o700"
    assert mode(tmp_path / "warehouse") != "0o700"


def test_a_folder_that_was_open(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o755)
    make_private_folder(tmp_path / "home")
    assert mode(tmp_path / "home") == "0o700"


def test_a_folder_that_everybody_uses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    with caplog.at_level(logging.WARNING):
        make_private_folder(tmp_path / "tmp")
    assert mode(tmp_path / "tmp") == "0o1777"
    assert "give sqlext a folder of its own" in caplog.text


def test_files(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("kept")
    old.chmod(0o644)
    for file in (old, tmp_path / "new"):
        make_private_file(file)
        assert mode(file) == "0o600"
    assert old.read_text() == "kept"


def full(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_replaced(tmp_path: Path) -> None:
    file, checksum = tmp_path / "hosts" / "a", tmp_path / "hosts" / ".a.crc"
    replace_file(file, "first")
    checksum.write_bytes(b"what Hadoop has written with an older version")
    file.chmod(0o644)
    replace_file(file, "Zürich\n")
    assert file.read_bytes() == "Zürich\n".encode()
    assert mode(file) == "0o600"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "a", "first")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        replace_file(tmp_path / "a", "second")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "first")]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    file = tmp_path / "registry" / "1"
    assert [create_file(file, text) for text in ("first", "second")] == [True, False]
    assert (file.read_text(), mode(file)) == ("first", "0o600")
    assert list(file.parent.iterdir()) == [file]


def test_a_file_whose_creation_was_answered_twice_is_this_process_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost: the second answer is that there is a file."""
    link = os.link

    def linked_twice(source: Path, target: Path) -> None:
        with suppress(FileExistsError):
            link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", linked_twice)
    assert [create_file(tmp_path / "1", text) for text in ("first", "second")] == [True, False]
    assert (tmp_path / "1").read_text() == "first"


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(OSError, match="its file system has no hard links"):
        create_file(tmp_path / "1", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_filled_with_what_could_not_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        create_file(tmp_path / "1", "text")
    assert list(tmp_path.iterdir()) == []
