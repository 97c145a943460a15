"""Statements about savepoints, from their texts; and what only looks like one."""

from __future__ import annotations

import pytest

from sqlext.errors import SyntaxProblem
from sqlext.sql.grammar import parse
from sqlext.sql.savepoint_statements import DropSavepoint, MakeSavepoint, RestoreFlow, ShowSavepoints
from sqlext.sql.tokens import is_ours


def test_savepoints_are_made_and_gone_back_to() -> None:
    made = parse("savepoint flow s.f as before_it;")
    assert isinstance(made, MakeSavepoint)
    assert (made.flow, made.name) == (("s", "f"), "before_it")
    unnamed = parse("SAVEPOINT FLOW f")
    assert isinstance(unnamed, MakeSavepoint)
    assert unnamed.name == ""
    for text in ("RESTORE FLOW f TO SAVEPOINT `a b`", "RESTORE FLOW f TO `a b`"):
        restore = parse(text)
        assert isinstance(restore, RestoreFlow)
        assert (restore.flow, restore.name) == (("f",), "a b")
    of_that_name = parse("RESTORE FLOW f TO savepoint")
    assert isinstance(of_that_name, RestoreFlow)
    assert of_that_name.name == "savepoint"


def test_savepoints_are_listed_and_dropped() -> None:
    assert parse("SHOW SAVEPOINTS") == ShowSavepoints()
    assert parse("SHOW SAVEPOINTS OF s.f") == ShowSavepoints(("s", "f"))
    drop = parse("DROP SAVEPOINT IF EXISTS s ON FLOW f")
    assert isinstance(drop, DropSavepoint)
    assert (drop.flow, drop.name, drop.if_exists) == (("f",), "s", True)


@pytest.mark.parametrize(
    "text",
    [
        "RESTORE flow TO VERSION AS OF 1",
        "RESTORE flow VERSION AS OF 1",
        "RESTORE flow.t TO VERSION AS OF 1",
        "RESTORE TABLE flow TO VERSION AS OF 1",
        "RESTORE flow FOR VERSION AS OF 1",
        "SELECT savepoint FROM flow",
        "DROP TABLE savepoint",
    ],
)
def test_tables_of_these_names_are_no_flows(text: str) -> None:
    assert not is_ours(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SAVEPOINT FLOW", "Expected a name"),
        ("SAVEPOINT FLOW f s", "Expected the end of the statement"),
        ("RESTORE FLOW f s", "Expected TO"),
        ("RESTORE FLOW f TO SAVEPOINT 'a'", "Expected a name"),
        ("DROP SAVEPOINT s ON f", "Expected FLOW"),
        ("SHOW SAVEPOINTS FOR f", "Expected the end of the statement"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(text: str, expected: str) -> None:
    with pytest.raises(SyntaxProblem, match=expected):
        parse(text)
