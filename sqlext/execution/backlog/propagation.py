"""isBacklog of each operator's output in a flow, derived from that of its sources (FLIP-309, FLIP-327's RecordAttributes)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlext.plan.flow_spec import OperatorSpec


def is_backlog(operators: Sequence[OperatorSpec], streams: Collection[str]) -> tuple[bool, ...]:
    """Return isBacklog of each operator's output: a union's if all its inputs are backlog, any other's if one of them is.

    Args:
        operators: the operators, inputs before those that read them; the last one feeds the sink.
        streams: the aliases of the streams that process backlog.
    """
    found: list[bool] = []
    for operator in operators:
        inputs = [found[at] for at in operator.inputs]
        if operator.stream:
            found.append(operator.stream in streams)
        else:
            found.append(bool(inputs) and (all(inputs) if operator.kind == "Union" else any(inputs)))
    return tuple(found)
