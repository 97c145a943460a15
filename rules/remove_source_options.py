"""Remove our options from a stream's WITH clause: they are for the flow, and a source would not know them."""

from __future__ import annotations

from sqlglot import exp

from sqlext.options import is_option_key
from sqlext.sql.nodes import StreamOption


def remove_source_options(query: exp.Query) -> exp.Query:
    """Remove our options; the source's own stay.

    SELECT a FROM STREAM t WITH ('backlog.lag-threshold' = '5 min', 'maxFilesPerTrigger' = '1')
    -> SELECT a FROM STREAM t WITH ('maxFilesPerTrigger' = '1')
    """
    for option in list(query.find_all(StreamOption)):
        if is_option_key(option.name.strip("'\"`")):
            option.pop()
    return query
