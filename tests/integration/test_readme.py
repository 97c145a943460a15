"""What lies beside the examples is what EXPLAIN says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme
from tests.integration.workshop import Workshop


@pytest.mark.parametrize("example", readme.examples(), ids=lambda path: path.stem)
def test_explained_examples(sql: Workshop, example: Path, request: pytest.FixtureRequest) -> None:
    text, golden = readme.explained(example, sql), readme.golden(example)
    if request.config.getoption("complete"):
        golden.unlink(missing_ok=True)
        if text:
            golden.write_text(text)
    assert (golden.read_text() if golden.exists() else "") == text, "`pytest --complete` writes it; read it before you commit it"
