"""STREAM read_kafka(..): Spark knows STREAM before tables only."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.nodes import Stream


def stream_of_function(query: exp.Query) -> exp.Query:
    """Call the function's twin that gives a stream.

    SELECT o.value FROM STREAM read_kafka(subscribe => 'orders') AS o
    -> SELECT o.value FROM __sqlext_stream_read_kafka(subscribe => 'orders') AS o
    """
    for stream in query.find_all(Stream):
        if stream.function and not stream.args.get("is_bounded"):
            stream.set("is_call", True)
    return query
