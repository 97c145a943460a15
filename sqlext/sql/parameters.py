"""Parameter markers in our statements. Spark's own substitution parses the text, and does not know our clauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlext.errors import Position, SyntaxProblem
from sqlext.sql.tokens import Token, tokens


def substitute(text: str, named: Mapping[str, str], positional: Sequence[str]) -> str:
    """The text with literals in place of its markers, `:name` or `?`.

    Args:
        named, positional: the values as SQL writes them; one of them is empty.

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
    return "".join(parts) + text[done:]


def _is_named(found: Sequence[Token], at: int) -> bool:
    """Whether `:` begins a marker: a word follows at once, and it does not take a field of what stands right before it."""
    if found[at].text != ":" or at + 1 == len(found) or not found[at + 1].upper or found[at + 1].start != found[at].stop:
        return False
    before = found[at - 1] if at else None
    is_field = (
        before is not None and before.stop == found[at].start and (before.kind in ("word", "quoted") or before.text in ")]:")
    )
    return not is_field
