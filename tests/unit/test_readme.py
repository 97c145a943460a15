"""The README says what the code says."""

from __future__ import annotations

from pathlib import Path

from sqlext import options

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_readme_lists_every_option() -> None:
    assert options.reference() in README
