"""Remove our hints: they have been read as options, and Spark would only log that it does not know them."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.trees import our_hints


def remove_hints(query: exp.Query) -> exp.Query:
    """Remove our hints; Spark's own stay.

    SELECT /*+ FLUSH_INTERVAL('2 min'), BROADCAST(d) */ a FROM STREAM t
    -> SELECT /*+ BROADCAST(d) */ a FROM STREAM t
    """
    for call in our_hints(query):
        hint = call.parent
        call.pop()
        if isinstance(hint, exp.Hint) and not hint.expressions:
            hint.pop()
    return query
