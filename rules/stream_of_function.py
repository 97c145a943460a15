"""STREAM read_kafka(..): Spark allows STREAM only before tables."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.nodes import Stream


def stream_of_function(query: exp.Query) -> exp.Query:
    """Mark each streamed function, so that its streaming twin is called.

    SELECT o.value FROM STREAM read_kafka(subscribe => 'orders') AS o
    -> SELECT o.value FROM __sqlext_stream_read_kafka(subscribe => 'orders') AS o
    """
    for stream in query.find_all(Stream):
        if stream.function and not stream.args.get("is_bounded"):
            stream.set("is_call", True)
    return query
