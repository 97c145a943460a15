from __future__ import annotations

from typing import Any

import pytest

from sqlext.execution.delta.long_marks import MOST_MARKS, apart

MANY = MOST_MARKS + 1


def file(path: str, marks: int, changes_data: bool = True) -> dict[str, Any]:
    vector = {"deletionVector": {"storageType": "u", "cardinality": marks}} if marks else {}
    return {"path": path, "dataChange": changes_data, **vector}


def commit(*pairs: tuple[int, int], operation: str = "DELETE") -> list[dict[str, Any]]:
    """The actions that replace files' deletion vectors, by the numbers of marks before and after; 0: the file has no vector."""
    files = [{kind: file(f"f{at}", marks[way])} for at, marks in enumerate(pairs) for way, kind in enumerate(("remove", "add"))]
    return [{"commitInfo": {"operation": operation}}, *files]


@pytest.mark.parametrize(
    "actions",
    [
        commit((1, MANY)),
        commit((MANY, 2 * MOST_MARKS)),
        commit((0, MANY)),
        commit((MANY, 0)),
        commit((MOST_MARKS, 1), operation="RESTORE"),
        [{"add": file("f0", MANY)}, {"remove": file("f1", 1)}],
        [{"remove": file("f0", 1, changes_data=False)}, {"add": file("f0", 2 * MANY, changes_data=False)}],
        [],
    ],
)
def test_what_delta_can_read_is_left_as_it_is(actions: list[dict[str, Any]]) -> None:
    assert apart({3: actions}, is_from_files=True) == []


@pytest.mark.parametrize(
    ("marks", "operation"),
    [((1, MANY + 1), "UPDATE"), ((MANY + 1, 1), "MERGE"), ((MANY, MANY), "RESTORE"), ((5, MANY), "RESTORE")],
)
def test_too_many_marks_are_read_by_themselves(marks: tuple[int, int], operation: str) -> None:
    plain, short = [{"add": file("g", 0)}], (7, 8)
    info, old_short, new_short, old, new = commit(short, marks, operation=operation)
    deleted, inserted = apart({3: plain, 4: [info, old_short, new_short, old, new]}, is_from_files=True)
    assert deleted == {3: plain, 4: [info, old_short, new_short, {"remove": file("f1", 0)}, new]}
    assert inserted == {3: [], 4: [info, old, {"add": file("f1", 0)}]}


def test_a_feed_of_changes_is_read_instead_of_the_files() -> None:
    actions = [*commit((1, 2 * MANY)), {"cdc": {"path": "c"}}]
    assert apart({3: actions}, is_from_files=False) == []
    assert len(apart({3: actions}, is_from_files=True)) == 2
