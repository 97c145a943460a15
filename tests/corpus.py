"""The statement corpus: ordinary Spark SQL that sqlext has to hand on untouched.

`tests/fixtures/corpus/*.sql` holds it, one file a kind. A line that is just `--;;` separates two statements, because a
statement may hold semicolons and blank lines itself. Lines of these forms at the head of a statement are about it
and no part of it:

    -- params: {"low": 1}     values of its named parameters, a JSON object
    -- args: [1, "x"]         values of its positional parameters, a JSON array
    -- newline: crlf          its lines end in carriage return and line feed
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "fixtures" / "corpus"
SEPARATOR = "--;;"
ERRORS = "errors"  # the kind whose statements are wrong on purpose


@dataclass(frozen=True)
class CorpusStatement:
    """One statement of the corpus.

    Attributes:
        file: name of the file, `joins.sql`.
        line: 1-based line of the statement's first line in it.
        text: the SQL, without the headers and without the line break before the separator.
        parameters: a dict for `:named` parameters, a list for `?`, None for neither.
        kind: name of the file without its suffix.
    """

    file: str
    line: int
    text: str
    parameters: dict[str, Any] | list[Any] | None
    kind: str

    @property
    def place(self) -> str:
        """Where it stands, as `file:line`."""
        return f"{self.file}:{self.line}"


def load() -> list[CorpusStatement]:
    """Every statement, by file name and then in the order of the file.

    Raises:
        ValueError: a statement is empty, or a header does not hold what it should.
    """
    return [statement for path in sorted(CORPUS.glob("*.sql")) for statement in _read(path)]


def _read(path: Path) -> Iterator[CorpusStatement]:
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    start = 0
    for end in [*(i for i, line in enumerate(lines) if line == SEPARATOR), len(lines)]:
        yield _statement(path, start, lines[start:end])
        start = end + 1


def _statement(path: Path, start: int, lines: list[str]) -> CorpusStatement:
    parameters: dict[str, Any] | list[Any] | None = None
    newline, head = "\n", 0
    for line in lines:
        name, _, value = line.removeprefix("-- ").partition(": ")
        if line.startswith("-- ") and name in ("params", "args"):
            parameters = json.loads(value)
            if not isinstance(parameters, dict if name == "params" else list):
                raise ValueError(f"{path.name}:{start + head + 1}: {name} holds {value}")
        elif line == "-- newline: crlf":
            newline = "\r\n"
        else:
            break
        head += 1
    text = newline.join(lines[head:])
    if not text.strip():
        raise ValueError(f"{path.name}:{start + 1}: an empty statement; is there a separator too many?")
    return CorpusStatement(path.name, start + head + 1, text, parameters, path.stem)
