"""isBacklog of what each operator of a flow puts out, from that of its sources (FLIP-309, FLIP-327's RecordAttributes)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlext.plan.flow_spec import OperatorSpec


def is_backlog(operators: Sequence[OperatorSpec], streams: Collection[str]) -> tuple[bool, ...]:
    """Of each operator: a union's output is backlog when all its inputs are, any other's when one of them is.

    Args:
        operators: inputs before those that read them; the last one feeds the sink.
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
