"""When a view is asked whether it is behind, and when the versions of its tables say so."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sqlext.execution.views import looks
from sqlext.execution.views.looks import Looks
from sqlext.execution.views.refresh import Refresher
from tests.support import TableVersions


class View:
    """A view that counts how often it is asked."""

    def __init__(self, *tables: str) -> None:
        self.tables = frozenset(tables) or None
        self.answer = False
        self.asked = 0

    def is_behind(self) -> bool:
        self.asked += 1
        return self.answer

    def is_other(self) -> bool:
        return self.is_behind()


def asked(found: Looks, view: View) -> int:
    """Look once; return how often the view has been asked so far."""
    assert found.is_behind(cast(Refresher, view)) is view.answer
    return view.asked


@pytest.fixture
def logs() -> TableVersions:
    return TableVersions(view=4, orders=7)


def test_a_view_is_asked_once_a_version(logs: TableVersions) -> None:
    found, view = Looks(cast(Any, logs)), View("view", "orders")
    assert [asked(found, view) for _ in range(3)] == [1, 1, 1]
    logs.versions["orders"] += 1
    assert [asked(found, view) for _ in range(3)] == [2, 2, 2], "OPTIMIZE is a version, and no change"
    logs.versions["view"] += 1
    assert asked(found, view) == 3, "somebody else may have changed the view's own table"


def test_a_view_that_is_behind_is_asked_each_time(logs: TableVersions) -> None:
    found, view = Looks(cast(Any, logs)), View("view", "orders")
    view.answer = True
    assert [asked(found, view) for _ in range(2)] == [1, 2]
    view.answer = False
    assert [asked(found, view) for _ in range(2)] == [3, 3]


def test_another_definition_is_asked(logs: TableVersions) -> None:
    found, view, redefined = Looks(cast(Any, logs)), View("view", "orders"), View("view", "orders")
    assert asked(found, view) == 1
    assert asked(found, redefined) == 1


@pytest.mark.parametrize("tables", [(), ("view", "dropped")], ids=["not known", "gone"])
def test_where_versions_say_nothing_the_view_is_asked(logs: TableVersions, tables: tuple[str, ...]) -> None:
    found, view = Looks(cast(Any, logs)), View(*tables)
    assert [asked(found, view) for _ in range(2)] == [1, 2]


def test_versions_are_believed_for_a_while(logs: TableVersions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_BELIEVED_SECONDS", 0.0)
    found, view = Looks(cast(Any, logs)), View("view", "orders")
    assert [asked(found, view) for _ in range(2)] == [1, 2]


def test_whether_the_query_means_something_else_is_asked_from_time_to_time(
    logs: TableVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, view = Looks(cast(Any, logs)), View("view", "orders")
    view.answer = True
    assert [found.is_other(cast(Refresher, view)) for _ in range(3)] == [True, False, False]
    monkeypatch.setattr(looks, "_BELIEVED_SECONDS", 0.0)
    assert found.is_other(cast(Refresher, view))
    assert view.asked == 2
