"""Splitting of a .sql file into statements with their positions."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlext.errors import Position
from sqlext.sql.tokens import Token, tokens


@dataclass(frozen=True)
class ScriptStatement:
    """A statement of a file.

    Attributes:
        text: the statement as written, without the `;` after it and the comments before it.
        line: the 1-based line in the file where it begins.
        column: the 1-based column in the file where it begins.
    """

    text: str
    line: int
    column: int

    def in_file(self, line: int, column: int) -> tuple[int, int]:
        """Convert a line and column in the statement to those in the file."""
        return self.line + line - 1, column + (self.column - 1 if line == 1 else 0)


def split(script: str) -> list[ScriptStatement]:
    r"""Split a file at each `;` that ends a statement, not at those in strings, comments and BEGIN .. END blocks.

    >>> [statement.text for statement in split("SELECT ';'; -- one; two\nBEGIN SELECT 1; END;")]
    ["SELECT ';'", 'BEGIN SELECT 1; END']
    """
    found: list[ScriptStatement] = []
    current: list[Token] = []
    blocks = _Blocks()
    end = 0
    for token in tokens(script):
        if token.text == ";" and not blocks.are_open:
            if current:
                found.append(_statement(script, current))
            current, blocks, end = [], _Blocks(), token.stop
        else:
            current.append(token)
            blocks.read(token)
    if current:
        found.append(_statement(script, current))
    elif not tokens(script[end:] + "\n\nx"):  # a comment that never ends has swallowed the x: Spark's message is the best
        rest = script[end:].lstrip()
        place = Position.of(script, len(script) - len(rest))
        found.append(ScriptStatement(rest, place.line, place.column))
    return found


def is_complete(script: str) -> bool:
    """Return whether a text that is being typed ends after the `;` of a statement, or has nothing to run.

    >>> is_complete("SELECT 1;"), is_complete("SELECT 1"), is_complete("SELECT ';"), is_complete("BEGIN SELECT 1;")
    (True, False, False, False)
    """
    found = tokens(script)
    is_open = any(token.kind == "symbol" and token.text in "'\"`" for token in found)  # a quote without its end
    if is_open or not tokens(script + "\n\nx")[len(found) :]:  # a comment that never ends has swallowed the x
        return False
    blocks, has_ended = _Blocks(), True
    for token in found:
        has_ended = token.text == ";" and not blocks.are_open
        if has_ended:
            blocks = _Blocks()
        else:
            blocks.read(token)
    return has_ended


def _statement(script: str, found: list[Token]) -> ScriptStatement:
    place = Position.of(script, found[0].start)
    return ScriptStatement(script[found[0].start : found[-1].stop], place.line, place.column)


_OPENERS = frozenset("BEGIN IF CASE WHILE LOOP REPEAT FOR".split())
_BEFORE_A_STATEMENT = frozenset("; : BEGIN ATOMIC THEN ELSE DO LOOP REPEAT".split())
_CASE_EXPRESSION = "CASE .. END"


@dataclass
class _Blocks:
    """The open blocks of a SQL script (`BEGIN .. END`). Outside a script there are none: there `begin` and `end` are names."""

    _open: list[str] = field(default_factory=list)
    _is_script: bool | None = None
    _before: str = ""
    _in_handler: bool = False

    @property
    def are_open(self) -> bool:
        """Whether a block is open."""
        return bool(self._open)

    def read(self, token: Token) -> None:
        """Read the next token of the statement."""
        word = token.upper or token.text
        if self._is_script is None:
            self._is_script = word == "BEGIN"
            self._open = ["BEGIN"] if self._is_script else []
        elif self._is_script and self._open:
            self._read_in_script(word)
        self._before = word

    def _read_in_script(self, word: str) -> None:
        in_expression = self._open[-1] == _CASE_EXPRESSION
        begins = self._before in _BEFORE_A_STATEMENT and not in_expression
        if begins:
            self._in_handler = False
        self._in_handler |= word == "HANDLER"
        if word in _OPENERS and (begins or (word == "BEGIN" and self._in_handler)):
            self._open.append(word)
        elif word == "CASE" and self._before != "END":
            self._open.append(_CASE_EXPRESSION)
        elif word == "END" and (begins or in_expression or self._open[-1] == "REPEAT"):
            self._open.pop()
