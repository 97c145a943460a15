"""The runs of flows, by the events of the registry that this process writes: each start and each end is one of them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlext.execution.coordination.runs import Query, RunEvent, RunKind, Runnable, RunState, tell
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRecord
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.lineage import Input

_ENDS = {
    EventKind.STOPPED: RunState.COMPLETED,
    EventKind.DONE: RunState.COMPLETED,
    EventKind.DROPPED: RunState.COMPLETED,
    EventKind.FAILED: RunState.FAILED,
    EventKind.RETRYING: RunState.FAILED,
}


def written(event: FlowEvent, records: Mapping[str, FlowRecord]) -> None:
    """Tell of the run that an event has begun or ended, if it has.

    Args:
        event: which this process has written.
        records: the flows after it.
    """
    record = records.get(event.flow_id)
    if record is not None and 0 < event.epoch < record.epoch:
        return  # of a driver that another one has replaced: the run of this name is the other's
    if event.kind is EventKind.STARTED and record is not None:
        tell(RunEvent(event.flow_id, RunState.BEGUN, runnable(record.spec)))
    elif event.kind in _ENDS:
        tell(RunEvent(event.flow_id, _ENDS[event.kind], error=event.detail))


def runnable(spec: FlowSpec) -> Runnable:
    """Return a flow as what runs."""
    columns, query = spec.columns, None
    if len(spec.streams) == 1:
        (stream,) = spec.streams
        columns = columns if spec.above else stream.columns
        if not (spec.hybrids or spec.prerequisites or spec.session_bound):
            goes_to = () if spec.above else tuple((each.output, each.target) for each in columns)
            query = Query(stream.sql, goes_to, gives_columns=not spec.above)
    return Runnable(
        spec.id,
        RunKind.FLOW,
        spec.qualified_name,
        spec.text,
        Input(spec.target, spec.target_location),
        tuple((each.target, each.type) for each in columns),
        spec.reads,
        query,
        spec,
    )
