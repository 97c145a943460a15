"""What a compaction makes of an error: it warns, and tries again later."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sqlext.errors import SetupError, TornFileError
from sqlext.execution.delta import compaction
from sqlext.execution.delta.compaction import Compaction

LOCATION = "file:/tables/t"


@pytest.mark.parametrize("error", [SetupError("no answer"), TornFileError("no answer"), PermissionError(13, "no answer")])
def test_a_log_that_cannot_be_read_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def table_size(*table: Any) -> None:
        raise error

    monkeypatch.setattr(compaction, "table_size", table_size)
    one = Compaction("f", "1", LOCATION, is_hidden=False)
    for _ in range(2 * compaction._FLUSHES_BETWEEN_LOOKS):
        one.after_flush(cast(Any, None), cast(Any, None))
    (first, second) = caplog.records
    assert first.message == second.message
    assert LOCATION in first.message
    assert "no answer" in first.message
