"""A statement's tokens for sqlglot's parser, where Spark cuts it otherwise, or has a name where sqlglot has a keyword."""

from __future__ import annotations

import itertools
from typing import Any

from sqlglot.tokenizer_core import TokenType

from sqlext.sql.tokens import blanked, tokens

UNSIGNED_SHIFT = TokenType.DAMP  # `&&` of other dialects, which Spark does not have
END_OF_STREAM = ("GLOBAL", "WINDOW", "END", "OF", "STREAM")
_NOT = {TokenType.GT: TokenType.LTE, TokenType.LT: TokenType.GTE}  # `!>` and `!<`, two tokens to sqlglot
_CLAUSES_AFTER_GROUP_BY = frozenset((TokenType.FETCH, TokenType.LIMIT, TokenType.LOCK, TokenType.OFFSET))
_AFTER_A_COLUMN = frozenset((TokenType.ALIAS, TokenType.COMMA, TokenType.DOT, TokenType.EQ, TokenType.FROM, TokenType.R_PAREN))


def without_comments(text: str) -> str:
    r"""Return a text with its comments blanked out: to sqlglot, a `\` at the end of a line does not continue its comment.

    sqlglot also knows no comment between the words of a keyword such as GROUP BY. Hints stay.
    """
    parts, at = list[str](), 0
    for token in tokens(text):
        parts += [blanked(text[at : token.start]), token.text]
        at = token.stop
    return "".join([*parts, blanked(text[at:])])


def with_names(found: list[Any]) -> list[Any]:
    """Return sqlglot's tokens with those of our clauses and of Spark's operators, and keywords as names where they are names."""
    found = _with_unsigned_shifts(found)
    for at, token in enumerate(found):
        following = [each.token_type for each in found[at + 1 : at + 3]]
        is_clause = following[1:] == [TokenType.ALIAS] and following[0] != TokenType.R_PAREN
        if token.token_type == TokenType.WINDOW and not is_clause:
            token.token_type = TokenType.VAR  # GROUP BY window(ts, '5 minutes'), or a column; not the clause WINDOW w AS (..)
        elif token.token_type == TokenType.VALUES and not _AFTER_A_COLUMN.isdisjoint(following[:1] or _AFTER_A_COLUMN):
            token.token_type = TokenType.VAR
        elif token.token_type == TokenType.GROUP_BY and following and following[0] in _CLAUSES_AFTER_GROUP_BY:
            found[at + 1].token_type = TokenType.VAR
        if tuple(each.text.upper() for each in found[at : at + 5]) == END_OF_STREAM:
            token.token_type = TokenType.GLOBAL  # neither an alias nor a continuation of GROUP BY ALL
    return found


def _with_unsigned_shifts(found: list[Any]) -> list[Any]:
    """Return the tokens with each `>>>`, three tokens to sqlglot, merged into one, and so `!>` and `!<`."""
    merged: list[Any] = []
    open_types = 0  # ARRAY<STRUCT<a: MAP<..>>> ends with the same characters
    for token in found:
        last = merged[-2:]
        if token.token_type == TokenType.LT and merged and merged[-1].text.upper() in ("ARRAY", "MAP", "STRUCT"):
            open_types += 1
        elif token.token_type == TokenType.GT and open_types:
            open_types -= 1
        elif token.token_type in _NOT and last and last[-1].text == "!" and last[-1].end + 1 == token.start:
            last[-1].token_type, last[-1].end = _NOT[token.token_type], token.end
            continue
        elif _are_one_operator([*last, token]):
            merged.pop()
            merged[-1].token_type, merged[-1].end = UNSIGNED_SHIFT, token.end
            continue
        merged.append(token)
    return merged


def _are_one_operator(found: list[Any]) -> bool:
    """Return whether the tokens are `>>>`, without gaps."""
    are_adjacent = all(one.end + 1 == other.start for one, other in itertools.pairwise(found))
    return len(found) == 3 and are_adjacent and all(each.token_type == TokenType.GT for each in found)
