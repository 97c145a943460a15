"""Parameter markers in our statements: Spark's own substitution parses the text and does not know our clauses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlext.errors import Position, SyntaxProblem
from sqlext.sql.tokens import Token, tokens


def substitute(text: str, named: Mapping[str, str], positional: Sequence[str]) -> str:
    """Replace the markers of a statement, `:name` or `?`, by literals.

    Args:
        text: the statement.
        named: the values by name, as SQL literals; empty if the markers are positional.
        positional: the values in order, as SQL literals; empty if the markers are named.

    Raises:
        SyntaxProblem: a marker has no value.
    """
    found = tokens(text)
    parts, done, number = [], 0, 0
    for at, token in enumerate(found):
        if token.text == "?" and positional:
            value, stop = positional[number] if number < len(positional) else None, token.stop
            number += 1
        elif named and _is_named(found, at):
            value, stop = named.get(found[at + 1].text), found[at + 1].stop
        else:
            continue
        if value is None:
            place = Position.of(text, token.start, stop)
            raise SyntaxProblem(f"The parameter `{text[token.start : stop]}` has no value.", place)
        parts += [text[done : token.start], value]
        done = stop
    return "".join(_set_apart([*parts, text[done:]]))


def _set_apart(parts: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a text, with a blank between those that would run together: `-` and `-1` begin a comment."""
    before = ""
    for part in parts:
        last, first = before[-1:], part[:1]
        runs_on = (last == first and first in ("-", "'", '"')) or (_is_of_word(last) and _is_of_word(first))
        yield f" {part}" if runs_on else part
        before = part or before


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _is_named(found: Sequence[Token], at: int) -> bool:
    """Return whether `:` begins a marker: a word follows without a gap, and it is not a field access as in `column:field`."""
    if found[at].text != ":" or at + 1 == len(found) or not found[at + 1].upper or found[at + 1].start != found[at].stop:
        return False
    before = found[at - 1] if at else None
    is_field = (
        before is not None and before.stop == found[at].start and (before.kind in ("word", "quoted") or before.text in ")]:")
    )
    return not is_field
