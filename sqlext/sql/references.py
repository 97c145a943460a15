"""The unqualified names in a text that only Spark parses."""

from __future__ import annotations

from sqlext.plan.job_graph import References
from sqlext.quoting import fold
from sqlext.sql.tokens import Token, tokens

_BEFORE_BRACKETS = frozenset(
    "AND AS ASC BETWEEN BY CASE CHECK DESC DISTINCT ELSE FILTER FROM HAVING IN INTERVAL IS NOT OF ON OR OVER SELECT THEN USING "
    "VALUES WHEN WHERE".split()
)
"""The keywords that may stand before a bracket and call nothing."""


def references_in(text: str) -> References:
    """Return the unqualified names in a query, by its tokens: functions are followed by a bracket, columns may be variables.

    >>> references_in("SELECT max(a.x), `b c` FROM t WHERE session.y > 1")
    References(relations=(), functions=('max',), columns=('select', 'a', 'b c', 'from', 't', 'where', 'session', 'y'))
    """
    found = tokens(text)
    functions: dict[str, None] = {}
    columns: dict[str, None] = {}
    for at, token in enumerate(found):
        name = _identifier(token)
        before = found[at - 1].text if at else ""
        is_qualified = before == "." and found[at - 2].upper != "SESSION"
        if not name or is_qualified:
            continue
        if at + 1 < len(found) and found[at + 1].text == "(" and token.upper not in _BEFORE_BRACKETS:
            functions[name.lower()] = None
        else:
            columns[fold(name)] = None
    return References(functions=tuple(functions), columns=tuple(columns))


def _identifier(token: Token) -> str:
    """Return the name that a token may be; an empty string for literals and symbols."""
    if token.kind == "quoted":
        return token.text[1:-1].replace("``", "`")
    return token.text if token.kind == "word" and not token.text[0].isdigit() else ""
