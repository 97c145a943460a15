"""The calls of `read_files` in a text, and the columns that a flow keeps of each.

A call without `schema` has the columns of the files that were there when the flow was made. They are written into the call, in
the queries that the flow is recorded with: so the flow has the same columns in whichever process it starts again. The statement
is recorded as the user wrote it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sqlext.quoting import STREAMED
from sqlext.sql.tokens import Token, tokens

READ_FILES = "read_files"
KEPT = "__sqlext_schema"
"""The argument with the columns that a flow keeps; no user writes it."""
GROWING = "__sqlext_grows"
"""The argument that says that the columns of a call may become more; no user writes it, and it is not recorded."""
_NAMES = (READ_FILES.upper(), (STREAMED + READ_FILES).upper())
_AVRO = ("'avro'", '"avro"')


@dataclass(frozen=True)
class FilesCall:
    """One call.

    Attributes:
        start: the 0-based offset of its name.
        stop: the 0-based offset after its closing bracket.
        end_of_arguments: the 0-based offset after its last argument.
        arguments: the text of its arguments, without `KEPT`.
        key: the arguments without comments and white space.
        kept: the literal of `KEPT`, as written; empty: it has none.
        names: the names of its arguments in upper case.
        is_streamed: whether it stands behind STREAM.
    """

    start: int
    stop: int
    end_of_arguments: int
    arguments: str
    key: str
    kept: str
    names: frozenset[str]
    is_streamed: bool

    @property
    def needs_columns(self) -> bool:
        """Whether its columns are those of the files that are there."""
        return not self.kept and "SCHEMA" not in self.names


def calls_in(text: str) -> list[FilesCall]:
    """Return the calls in a text, in its order."""
    found = tokens(text)
    starts = [at for at, (name, bracket) in enumerate(itertools.pairwise(found)) if name.upper in _NAMES and bracket.text == "("]
    return [_call(text, found, at) for at in starts if _end(found, at) is not None]


def with_columns(text: str, columns: Callable[[FilesCall], str]) -> str:
    """Return a text in which each call that needs columns has them.

    Args:
        columns: returns the columns of a call, as a literal.
    """
    for call in reversed(calls_in(text)):
        if call.needs_columns:
            text = f"{text[: call.end_of_arguments]}, {KEPT} => {columns(call)}{text[call.end_of_arguments :]}"
    return text


def with_kept(text: str, columns: Mapping[str, str]) -> str:
    """Return a text in which calls that keep columns keep others.

    Args:
        columns: the columns, as literals, by the `key` of the call; other calls stay as they are.
    """
    for call in reversed(calls_in(text)):
        if call.kept and call.key in columns:
            text = f"{text[: call.end_of_arguments]}, {KEPT} => {columns[call.key]}{text[call.stop - 1 :]}"
    return text


def growing(text: str, keys: Collection[str]) -> str:
    """Return a text in which the calls of these keys say that their columns may become more."""
    for call in reversed(calls_in(text)):
        if call.key in keys:
            text = f"{text[: call.stop - 1]}, {GROWING} => true{text[call.stop - 1 :]}"
    return text


def kept_in(texts: list[str]) -> Mapping[str, str]:
    """Return the columns that recorded queries keep, as literals, by the `key` of the call."""
    return {call.key: call.kept for text in texts for call in calls_in(text) if call.kept}


def names_avro(text: str) -> bool:
    """Return whether statements call the function for files of Avro, and so need Spark's package for them."""
    return any(literal in call.key.lower() for call in calls_in(text) for literal in _AVRO)


def _end(found: list[Token], at: int) -> int | None:
    """Return the index of the closing bracket of the call that begins at an index; None if there is none."""
    depth = 0
    for place in range(at + 1, len(found)):
        depth += (found[place].text == "(") - (found[place].text == ")")
        if depth == 0:
            return place
    return None


def _call(text: str, found: list[Token], at: int) -> FilesCall:
    end = _end(found, at)
    assert end is not None
    inner, names, depth = found[at + 2 : end], set[str](), 0
    for name, equals, greater in zip(inner, inner[1:], inner[2:], strict=False):
        depth += (name.text == "(") - (name.text == ")")
        if depth == 0 and equals.text == "=" and greater.text == ">":
            names.add(name.text.strip("`").upper())
    kept = ""
    if [token.text for token in inner[-5:-1]] == [",", KEPT, "=", ">"]:
        kept, inner = inner[-1].text, inner[:-5]
    first, last = found[at + 1].stop, inner[-1].stop if inner else found[at + 1].stop
    key = " ".join(token.text for token in inner)
    before = [token for token in found[:at] if token.text != "("][-1:]
    is_streamed = any(token.upper == "STREAM" for token in before) or found[at].upper == _NAMES[1]
    return FilesCall(found[at].start, found[end].stop, last, text[first:last], key, kept, frozenset(names), is_streamed)
