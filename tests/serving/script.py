"""`all_statements.sql`: the statements, and what each answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlext.sql.scripts import split

FILE = Path(__file__).with_name("all_statements.sql")
_MARK = "--> "


@dataclass(frozen=True)
class Case:
    """A statement and its answer: a row a line, `...` is any text."""

    sql: str
    expected: str

    def fits(self, answer: str) -> bool:
        pattern = ".*".join(map(re.escape, self.expected.split("...")))
        return re.fullmatch(pattern, answer, re.DOTALL) is not None


def cases() -> list[Case]:
    text = FILE.read_text()
    found, lines = split(text), text.splitlines()
    ends = [*(statement.line - 1 for statement in found[1:]), len(lines)]
    expected = [
        "\n".join(line.removeprefix(_MARK) for line in lines[statement.line - 1 : end] if line.startswith(_MARK))
        for statement, end in zip(found, ends, strict=True)
    ]
    return [Case(statement.text, answer) for statement, answer in zip(found, expected, strict=True)]


def row(values: list[Any] | tuple[Any, ...]) -> str:
    """A row as all clients show it."""
    return " | ".join("NULL" if value is None else str(value) for value in values)


def settled(answer: str, database: str) -> str:
    """An answer without what differs from run to run."""
    answer = re.sub(r"\bj?[0-9a-f]{32}\b", "<id>", answer.strip().replace(database, "<database>"))
    return re.sub(r"\b\d+\.\d s\b", "<seconds>", answer)
