"""Another query for the flow of a streaming table that only reads more streams, in more branches of its UNION ALL.

The streams have names (IDENTIFIED BY), by which Spark keeps their offsets: the flow reads those that it has on from where they
are, and the new ones from their beginning. Nothing in its table or state is touched, so the new query is just recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows.alteration import query_replaced
from sqlext.execution.flows.creation import FlowRequest
from sqlext.execution.state.aggregate_shape import has_state_below
from sqlext.execution.streaming import queries
from sqlext.execution.streaming.streams import leaves_of
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark.added_branches import has_branches_added
from sqlext.spark.jvm import analysed_plan, plan_has_watermark


@dataclass(frozen=True)
class Widened:
    """A flow with a query that reads more streams.

    Attributes:
        spec: the flow with its new query.
        added: the names of the streams that it did not read before.
    """

    spec: FlowSpec
    added: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(f"`{each}`" for each in self.added)
        whose = "stream {} is read from its beginning" if len(self.added) == 1 else "streams {} are read from their beginning"
        return f"the added {whose.format(names)}, and the others on from where they are"


def widened(spec: FlowSpec, request: FlowRequest) -> Widened | None:
    """Return a flow with a query that reads more streams; None: the query is not of this kind.

    Args:
        spec: the flow.
        request: the flow with the new query, analysed in a session like the flow's.

    Raises:
        UnsupportedError: it reads more streams, and the flow cannot go on with it; the message is the reason.
    """
    plan, queries_now = request.plan, request.flow.queries
    reads_others = spec.hybrids or plan.hybrids or spec.prerequisites or plan.prerequisites
    if not spec.owns_target or len(spec.streams) != 1 or len(queries_now) != 1 or reads_others:
        return None
    (query,) = queries_now
    new, aliases = query.frame, [stream.alias for stream in plan.graph.streams]
    old = queries.with_unique_names(request.session.sql(spec.streams[0].sql))
    before, now = _names(old, [source.alias for source in spec.sources]), _names(new, aliases)
    if before is None or now is None or not {*before} < {*now}:
        return None
    added = tuple(name for name in now if name not in before)
    if not has_branches_added(old, new, {*added}) or _columns(old) != _columns(new):
        return None
    _check_state(new)
    stream = replace(spec.streams[0], sql=query.sql)
    if stream.state_fingerprint and (query.aggregate is None or query.aggregate.fingerprint != stream.state_fingerprint):
        raise UnsupportedError("what is stored of its aggregate cannot be read any more: Spark or a source has changed.")
    return Widened(replace(query_replaced(spec, request), streams=(stream,)), added)


def _names(frame: DataFrame, aliases: Sequence[str]) -> list[str] | None:
    """Return the names of a query's streams; None if one has none."""
    leaves = leaves_of(frame, aliases)
    return [leaf.name for leaf in leaves] if all(leaf.is_named for leaf in leaves) else None


def _columns(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, target.ddl_of(field.dataType)) for field in frame.schema]


def _check_state(frame: DataFrame) -> None:
    """See that rows of a stream which comes later are taken as if they had come before."""
    if plan_has_watermark(analysed_plan(frame)):
        raise UnsupportedError(
            "a watermark has passed rows that an added stream still has, and they would be left out as late ones."
        )
    if has_state_below(frame):
        raise UnsupportedError("Spark keeps a state for its joins or DISTINCT, whose operators would get other places.")
