"""Colours for SQL while it is typed."""

from __future__ import annotations

from collections.abc import Iterator

from prompt_toolkit.styles import Style
from pygments.lexers.sql import SqlLexer
from pygments.token import Comment, Keyword, Name, String

from sqlext.app.reference import HEADS, PHRASES

_OURS = frozenset(word for text in (*HEADS, *PHRASES) for word in text.split())

STYLE = Style.from_dict(
    {  # from the terminal's palette, so that they are readable on light and dark
        "pygments.keyword": "ansiblue bold",
        "pygments.literal.string": "ansigreen",
        "pygments.literal.number": "ansicyan",
        "pygments.comment": "ansibrightblack italic",
        "pygments.comment.special": "ansimagenta",
        "pygments.name.builtin": "ansiblue",
        "bottom-toolbar": "noreverse ansibrightblack",
    }
)


class SqlextLexer(SqlLexer):  # type: ignore[misc]  # pygments ships no types
    """A lexer of SQL with sqlext's keywords, Spark's quoted names, and hints."""

    name = "sqlext"
    aliases = ("sqlext",)

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]:
        in_hint = False
        for at, kind, value in super().get_tokens_unprocessed(text):
            if kind in Comment.Multiline and text.startswith("/*+", at):
                in_hint = True
            if in_hint:
                yield at, Comment.Special, value
                in_hint = not value.endswith("*/")
            elif kind in Name and value.upper() in _OURS:
                yield at, Keyword, value
            elif value.startswith('"'):
                yield at, String, value
            else:
                yield at, kind, value
