"""Folders and files that only their owner reads."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sqlext.private_files import make_private_file, make_private_folder


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
