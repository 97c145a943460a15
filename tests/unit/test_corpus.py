"""The statement corpus is as large and as varied as the other tests rely on, and none of it is taken for ours."""

from __future__ import annotations

from collections import Counter

import pytest

from sqlext.sql.tokens import is_ours
from tests.corpus import CORPUS, ERRORS, CorpusStatement, load

STATEMENTS = load()


def test_is_large() -> None:
    assert len(STATEMENTS) >= 550
    assert sum(statement.kind == ERRORS for statement in STATEMENTS) >= 60
    assert sum(statement.text.count("\n") >= 15 for statement in STATEMENTS) >= 20


def test_every_file_holds_statements() -> None:
    held = Counter(statement.file for statement in STATEMENTS)

    assert sorted(held) == sorted(path.name for path in CORPUS.iterdir())
    assert min(held.values()) >= 10


def test_no_statement_stands_twice() -> None:
    places: dict[str, list[str]] = {}
    for statement in STATEMENTS:
        places.setdefault(statement.text, []).append(statement.place)

    assert [doubles for doubles in places.values() if len(doubles) > 1] == []


def test_place_is_the_line_of_the_first_word() -> None:
    for statement in STATEMENTS:
        lines = (CORPUS / statement.file).read_text(encoding="utf-8").split("\n")
        assert lines[statement.line - 1] == statement.text.splitlines()[0]


def test_parameters_are_the_header_and_not_the_text() -> None:
    named, positional = (next(s for s in STATEMENTS if isinstance(s.parameters, kind) and s.parameters) for kind in (dict, list))

    assert set(named.parameters or ()) == {"low"}
    assert ":low" in named.text
    assert positional.parameters == [1]
    assert positional.text == "SELECT ?"


def test_line_breaks_are_what_the_header_says() -> None:
    broken = [statement for statement in STATEMENTS if "\r" in statement.text]

    assert broken
    assert all(statement.text.count("\n") == statement.text.count("\r\n") for statement in broken)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.place)
def test_is_not_ours(statement: CorpusStatement) -> None:
    assert not is_ours(statement.text)
