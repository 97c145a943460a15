"""A cursor over the tokens of one statement; it reads the elements that statements have in common, such as names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from sqlext.errors import Position, SyntaxProblem
from sqlext.options import ValueText
from sqlext.sql.statements import Name
from sqlext.sql.tokens import Token, blanked

T = TypeVar("T")


class Cursor:
    """A position before a token of a statement; `grammar.py` reads statements with it.

    Args:
        text: the statement.
        found: the statement's tokens; semicolons at its end are dropped.
    """

    def __init__(self, text: str, found: list[Token]) -> None:
        self._text = text
        while found and found[-1].text == ";":
            found.pop()
        self._tokens = found
        self._at = 0

    def _peek(self, ahead: int = 0) -> Token | None:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def _word(self, ahead: int = 0) -> str:
        token = self._peek(ahead)
        return "" if token is None else token.upper or token.text

    def _take(self, *words: str) -> bool:
        if all(self._word(i) == word for i, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._problem(f"Expected {word}")

    def _position(self) -> Position:
        token = self._peek()
        if token is None:
            return Position.of(self._text, len(self._text.rstrip()))
        return Position.of(self._text, token.start, token.stop)

    def _problem(self, message: str, hint: str = "") -> SyntaxProblem:
        token = self._peek()
        found = f"found `{token.text}`" if token else "the statement ends here"
        return SyntaxProblem(f"{message}; {found}.{hint}", self._position())

    def _end(self, statement: T) -> T:
        if self._peek() is not None:
            raise self._problem("Expected the end of the statement")
        return statement

    def _blank(self) -> str:
        """Return the statement with everything but its line breaks blanked out."""
        return blanked(self._text)

    def _timeout(self) -> ValueText:
        token = self._peek()
        if token is None:
            raise self._problem("Expected a duration, such as 5 minutes")
        position = self._position()
        self._at = len(self._tokens)
        return ValueText(unquoted(self._text[token.start : self._tokens[-1].stop]), position)

    def _properties(self) -> dict[str, ValueText]:
        """Read `('key' = 'value', a.b-c = 2, ..)`."""
        self._expect("(")
        found: dict[str, ValueText] = {}
        while True:
            key, position = self._property_text(("=", ",", ")"))
            self._take("=")
            value, value_position = self._property_text((",", ")"))
            if not key or not value:
                raise self._problem("Expected 'key' = 'value'")
            if key in found:
                raise SyntaxProblem(f"The property `{key}` is given twice.", position)
            found[key] = ValueText(unquoted(value), value_position)
            if not self._take(","):
                break
        self._expect(")")
        return found

    def _property_text(self, ends: tuple[str, ...]) -> tuple[str, Position]:
        position = self._position()
        start = self._at
        while (token := self._peek()) and token.text not in ends:
            gap = self._at > start and token.start != self._tokens[self._at - 1].stop
            if gap and "=" in ends:
                break
            self._at += 1
        if self._at == start:
            return "", position
        raw = self._text[self._tokens[start].start : self._tokens[self._at - 1].stop]
        return (unquoted(raw) if "=" in ends else raw), Position.of(self._text, position.start, self._tokens[self._at - 1].stop)

    def _column_list(self) -> Name:
        self._expect("(")
        columns = [self._identifier()]
        while self._take(","):
            columns.append(self._identifier())
        self._expect(")")
        return tuple(columns)

    def _name(self) -> Name:
        parts = [self._identifier()]
        while self._take("."):
            parts.append(self._identifier())
        return tuple(parts)

    def _identifier(self) -> str:
        token = self._peek()
        if token is None or token.kind not in ("word", "quoted"):
            raise self._problem("Expected a name")
        self._at += 1
        return unquoted(token.text)

    def _string(self) -> str:
        token = self._peek()
        if token is None or token.kind != "text":
            raise self._problem("Expected a string")
        self._at += 1
        return unquoted(token.text)

    def _brackets(self) -> None:
        self._expect("(")
        depth = 1
        while depth:
            if self._peek() is None:
                raise self._problem("Expected )")
            depth += (self._word() == "(") - (self._word() == ")")
            self._at += 1


def unquoted(text: str) -> str:
    """Return the content of a string literal or quoted identifier; any other text unchanged."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"`":
        return text
    body, mark = text[1:-1], text[0]
    if mark == "`":
        return body.replace("``", "`")
    return "".join(_unescaped(body.replace(mark * 2, mark)))


def _unescaped(body: str) -> Iterator[str]:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b"}
    characters = iter(body)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            yield escapes.get(escaped, escaped)
        else:
            yield character
