"""Hybrid sources: `STREAM hybrid(TABLE history, STREAM live, on => column)`, relations read one after the other (FLIP-309).

A flow's query reads a hybrid source as a view; which of the relations the view shows changes while the flow runs.
"""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.options import is_option_key
from sqlext.plan.job_graph import HYBRID_PREFIX, HybridRelation, HybridSource
from sqlext.quoting import fold
from sqlext.sql.dialect import to_sql
from sqlext.sql.nodes import Hybrid, HybridPart, Stream, function_of
from sqlext.sql.source_text import position_of
from sqlext.sql.trees import is_end_of_stream

_USAGE = "Write STREAM hybrid(TABLE history, STREAM live, on => column)."


def cut_hybrids(tree: exp.Query, source: str) -> tuple[exp.Query, tuple[HybridSource, ...]]:
    """Replace the hybrid source of a query by a view; return the changed copy, and the source.

    Raises:
        UnsupportedError: there are several, it is below END OF STREAM, or its relations are not tables followed by a stream.
    """
    tree = tree.copy()
    found: list[HybridSource] = []
    for stream in [each for each in tree.find_all(Stream) if isinstance(each.this, Hybrid)]:
        position = position_of(stream, source)
        if found:
            raise UnsupportedError("A flow has at most one hybrid source.", position)
        if any(isinstance(each, exp.Query) and is_end_of_stream(each) for each in _above(stream)):
            raise UnsupportedError(
                "A hybrid source ends with a stream, so GLOBAL WINDOW END OF STREAM has no meaning over it. Read its relations "
                "with UNION ALL instead.",
                position,
            )
        name = f"{HYBRID_PREFIX}{len(found) + 1}"
        found.append(_source(name, stream, source))
        stream.set("this", exp.to_table(name))
        stream.set("options", None)
    return tree, tuple(found)


def _source(name: str, stream: Stream, source: str) -> HybridSource:
    hybrid: Hybrid = stream.this
    parts: list[HybridPart] = hybrid.args["parts"]
    position = position_of(stream, source)
    if len(parts) < 2 or not parts[-1].args["is_stream"] or any(part.args["is_stream"] for part in parts[:-1]):
        raise UnsupportedError(f"A hybrid source is one or more tables, followed by one stream. {_USAGE}", position)
    on = hybrid.args.get("on")
    relations = tuple(_relation(part, source) for part in parts)
    return HybridSource(name, fold(stream.alias), relations, on.name if on is not None else "")


def _relation(part: HybridPart, source: str) -> HybridRelation:
    table = part.this
    kept = [option.copy() for option in part.args.get("options") or [] if not is_option_key(option.name)]  # ours are for the flow
    streamed = Stream(this=table.copy(), options=kept or None)
    if function_of(table):
        streamed.set("is_call", True)
    names = () if function_of(table) else tuple(each.name for each in table.parts)
    return HybridRelation("SELECT * FROM " + to_sql(streamed, source), names)  # noqa: S608  # the user's own text


def _above(node: exp.Expr) -> list[exp.Expr]:
    found: list[exp.Expr] = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found
