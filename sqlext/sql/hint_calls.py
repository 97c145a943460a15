"""The calls in a hint comment."""

from __future__ import annotations

from collections.abc import Iterator

from sqlext.sql.nodes import HintCall
from sqlext.sql.source_text import note
from sqlext.sql.tokens import Token, tokens


def hint_calls(text: str, start: int, stop: int) -> Iterator[HintCall]:
    """Parse `NAME`, `NAME(a, 'b', c)` and lists of them, with or without commas."""
    body = [Token(t.kind, t.text, t.start + start) for t in tokens(text[start:stop])]
    at = 0
    while at < len(body):
        name = body[at]
        at += 1
        if name.text == ",":
            continue
        depth, first = 0, at
        while at < len(body) and (depth or (at == first and body[at].text == "(")):
            depth += (body[at].text == "(") - (body[at].text == ")")
            at += 1
        arguments = _split_at_commas(text, body[first + 1 : at - 1])
        last = body[at - 1]
        call = HintCall(this=name.text.upper(), arguments=arguments, source=text[name.start : last.stop])
        note(call, name.start, last.stop)
        yield call


def _split_at_commas(text: str, body: list[Token]) -> list[str]:
    arguments: list[list[Token]] = [[]]
    for token in body:
        if token.text == ",":
            arguments.append([])
        else:
            arguments[-1].append(token)
    return [text[a[0].start : a[-1].stop].strip("'\"`") for a in arguments if a]
