"""The README shows what EXPLAIN says of the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.integration.workshop import Workshop


@pytest.mark.parametrize("example", readme.examples(), ids=lambda path: path.stem)
def test_explained_examples(sql: Workshop, example: Path) -> None:
    assert readme.explained(example, sql) in readme.README.read_text(), "run `python -m tests.readme`"
