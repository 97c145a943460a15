"""The runs of jobs, by the events of the registry that this process writes."""

from __future__ import annotations

from collections.abc import Mapping

from sqlext.execution.coordination.runs import Query, RunEvent, RunKind, Runnable, RunState, tell
from sqlext.execution.jobs.registry import JobEventKind, JobRecord, JobSpec, RegisteredEvent
from sqlext.plan.lineage import Input

_ENDS = {
    JobEventKind.FINISHED: RunState.COMPLETED,
    JobEventKind.FAILED: RunState.FAILED,
    JobEventKind.CANCELED: RunState.STOPPED,
}


def written(event: RegisteredEvent, records: Mapping[str, JobRecord]) -> None:
    """Tell of the run that an event has begun or ended, if it has.

    Args:
        event: which this process has written.
        records: the jobs after it.
    """
    record = records.get(event.job_id)
    if record is None or 0 < event.epoch < record.epoch:
        return
    if event.kind is JobEventKind.STARTED:
        tell(RunEvent(event.job_id, RunState.BEGUN, runnable(record.spec)))
    elif event.kind in _ENDS:
        error = event.detail if event.kind is JobEventKind.FAILED else ""
        tell(RunEvent(event.job_id, _ENDS[event.kind], error=error))


def runnable(spec: JobSpec) -> Runnable:
    """Return a job as what runs; runs of the same table are those of one job, whatever their ids."""
    reads = tuple(Input(tuple(pin.name.split(".")), pin.location) for pin in spec.pins)
    query = Query(spec.query, gives_columns=spec.makes_table)  # INSERT may list the table's columns
    target = Input(spec.target, spec.target_location)
    return Runnable(spec.id, RunKind.JOB, spec.target, spec.text, target, (), reads, query, spec)
