"""The README says what the code says."""

from __future__ import annotations

import pytest

from tests import readme


@pytest.mark.parametrize("part", sorted(readme.PARTS))
def test_readme_is_as_the_code_writes_it(part: str) -> None:
    assert readme.PARTS[part]() in readme.README.read_text(), "run `python -m tests.readme`"
