"""A cursor over the tokens of one statement; it reads the elements that statements have in common, such as names."""

from __future__ import annotations

import re
import sys
from typing import TypeVar

from sqlext.errors import Position, SyntaxProblem
from sqlext.options import ValueText
from sqlext.sql.statements import Name
from sqlext.sql.tokens import Token, blanked, tokens

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
            before = self._at
            value, value_position = self._property_text((",", ")"))
            if not key or self._at == before:
                raise self._problem("Expected 'key' = 'value'")
            if key in found:
                raise SyntaxProblem(f"The property `{key}` is given twice.", position)
            found[key] = ValueText(value, value_position)
            if not self._take(","):
                break
        self._expect(")")
        return found

    def _property_text(self, ends: tuple[str, ...]) -> tuple[str, Position]:
        position = self._position()
        start = self._at
        self._skip_key_of_strings(ends)
        while (token := self._peek()) and token.text not in ends:
            gap = self._at > start and token.start != self._tokens[self._at - 1].stop
            if gap and "=" in ends:
                break
            self._at += 1
        if self._at == start:
            return "", position
        taken = self._tokens[start : self._at]
        place = Position.of(self._text, position.start, taken[-1].stop)
        if all(token.kind == "text" for token in taken):
            return "".join(unquoted(token.text) for token in taken), place  # Spark joins strings that stand side by side
        raw = self._text[taken[0].start : taken[-1].stop]
        if taken[0].kind == "text":
            raise SyntaxProblem(f"`{raw}` is neither a string nor a word. Write one string: 'key' = 'value'.", place)
        return unquoted(raw), place

    def _skip_key_of_strings(self, ends: tuple[str, ...]) -> None:
        """Take the strings that are one key: `'a' 'b' = 'c'`; of `'a' 'b'`, the second is the value."""
        length = 0
        while "=" in ends and (token := self._peek(length)) and token.kind == "text":
            length += 1
        if self._word(length) == "=":
            self._at += length

    def _column_list(self) -> Name:
        self._expect("(")
        columns = [self._identifier()]
        while self._take(","):
            columns.append(self._identifier())
        self._expect(")")
        return tuple(columns)

    def _name(self) -> Name:
        if (self._word(), self._word(1)) == ("IDENTIFIER", "("):
            return self._name_in_text()
        parts = [self._identifier()]
        while self._take("."):
            parts.append(self._identifier())
        return tuple(parts)

    def _name_in_text(self) -> Name:
        """Read Spark's IDENTIFIER('db.t')."""
        self._at += 2
        position = self._position()
        try:
            text = self._string()
            inner = Cursor(text, tokens(text))
            name = inner._name()
            inner._end(name)
        except SyntaxProblem:
            name = ()
        if not name or not self._take(")"):
            raise SyntaxProblem("IDENTIFIER(..) takes the text of a name here, such as IDENTIFIER('db.t').", position)
        return name

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
        found = list[str]()
        while token is not None and token.kind == "text":  # Spark joins strings that stand side by side
            found.append(unquoted(token.text))
            self._at += 1
            token = self._peek()
        return "".join(found)

    def _brackets(self) -> None:
        self._expect("(")
        depth = 1
        while depth:
            if self._peek() is None:
                raise self._problem("Expected )")
            depth += (self._word() == "(") - (self._word() == ")")
            self._at += 1


_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([01][0-7]{2})|\\(.)", re.DOTALL)
_CHARACTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def unquoted(text: str) -> str:
    r"""Return the content of a string literal or quoted identifier; any other text unchanged.

    Literals mean what they mean to Spark's parser (`SparkParserUtils.unescapeSQLString`).

    >>> unquoted(r"'Stra\u00dfe'"), unquoted(r"r'C:\data'")
    ('Straße', 'C:\\data')
    """
    is_raw = text[:1] in ("r", "R")
    body = text[1:] if is_raw else text
    if len(body) < 2 or body[0] != body[-1] or body[0] not in ("'\"" if is_raw else "'\"`"):
        return text
    body, mark = body[1:-1], body[0]
    if is_raw:
        return body
    body = body.replace(mark * 2, mark)
    if mark == "`" or "\\" not in body:
        return body
    return _ESCAPE.sub(_character, body).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    short, long, octal, other = escape.groups()
    if other is not None:
        return _CHARACTERS.get(other, other)
    code = int(octal, 8) if octal else int(short or long, 16)
    return chr(code) if code <= sys.maxunicode else escape.group()
