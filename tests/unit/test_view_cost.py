from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sqlext.execution.delta import delta_log
from sqlext.execution.delta.changes import ChangedFiles, changed_files
from sqlext.execution.delta.delta_log import TableSize
from sqlext.execution.views.cost import full_costs_less
from sqlext.plan.view_spec import RefreshReport

MB = 1024**2
LAST = RefreshReport(version=2, number=2, done="merge groups", because="", sources={}, rows_in=1, rows_deleted=0, rows_inserted=1)


@pytest.mark.parametrize(
    ("changed", "is_row_by_row", "is_full"),
    [
        ([ChangedFiles(6 * MB, 100 * MB)], False, True),
        ([ChangedFiles(5 * MB, 100 * MB)], False, False),
        ([ChangedFiles(6 * MB, 100 * MB)], True, False),
        ([ChangedFiles(51 * MB, 100 * MB)], True, True),
        ([ChangedFiles(4 * MB, 4 * MB)], False, False),
        ([ChangedFiles(3 * MB, 10 * MB), None, ChangedFiles(3 * MB, 10 * MB)], False, True),
        ([None], False, False),
    ],
)
def test_much_that_changed_is_computed_in_full(changed: list[ChangedFiles | None], is_row_by_row: bool, is_full: bool) -> None:
    assert bool(full_costs_less(changed, LAST, is_row_by_row)) is is_full


@pytest.mark.parametrize(("alone", "is_full"), [(4.9, True), (3.9, False), (0.0, False)])
def test_what_took_longer_is_computed_in_full(alone: float, is_full: bool) -> None:
    last = replace(LAST, full_seconds=3.0, incremental_seconds=alone)
    assert bool(full_costs_less([], last, is_row_by_row=False)) is is_full


def test_rows_marked_as_deleted_count_by_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def file(path: str, size: int, marks: int = 0, rows: int | None = 100, changes_data: bool = True) -> dict[str, Any]:
        vector = {"deletionVector": {"cardinality": marks}} if marks else {}
        stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
        return {"path": path, "size": size, "dataChange": changes_data, **stats, **vector}

    commits = {
        1: [{"add": file("new", 7)}, {"remove": file("gone", 11)}, {"add": file("moved", 1000, changes_data=False)}],
        2: [{"remove": file("marked", 1000)}, {"add": file("marked", 1000, marks=10)}],
        3: [{"remove": file("marked", 1000, marks=10)}, {"add": file("marked", 1000, marks=30)}],
        4: [{"remove": file("unknown", 1000)}, {"add": file("unknown", 1000, marks=10, rows=None)}],
    }
    monkeypatch.setattr(delta_log, "table_size", lambda *_: TableSize(2, 5000))
    monkeypatch.setattr(delta_log, "actions", lambda _, __, version: commits.get(version))
    assert changed_files(None, "t", 0, 4) == ChangedFiles(7 + 11 + 100 + 200, 5000)  # type: ignore[arg-type]  # no Spark is asked
    assert changed_files(None, "t", 0, 5) is None  # type: ignore[arg-type]
