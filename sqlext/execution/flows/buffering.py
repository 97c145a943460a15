"""How the streaming queries of a flow are buffered, by the flow's options and by what its queries are."""

from __future__ import annotations

from math import inf

from sqlext.execution.delta import target
from sqlext.execution.flows.file_columns import may_grow
from sqlext.execution.flows.flush import FlushPolicy
from sqlext.execution.flows.intake_settings import IntakeSettings
from sqlext.execution.flows.interval_trigger import other_pace
from sqlext.execution.state.row_checks import FlowChecks
from sqlext.options import CACHE_MAX_ENTRIES, FLUSH_MAX_INTERVAL, FLUSH_MEMORY_BUFFER_ONLY
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec, StreamSpec
from sqlext.plan.job_graph import OutputMode
from sqlext.spark.storage import HadoopPath


def policy_of(spec: FlowSpec, options: FlowOptions) -> FlushPolicy:
    """Return when a flow is flushed by the clock."""
    return FlushPolicy(None if spec.one_commit_a_batch_because else options.flow[FLUSH_MAX_INTERVAL])


def takes_intervals(spec: FlowSpec, options: FlowOptions) -> bool:
    """Return whether new rows wait in their source until a flush takes all of them as one micro-batch."""
    return _is_memory_only(spec, options) and not other_pace([s.state_backend for s in spec.streams], options)


def intake_settings(spec: FlowSpec, options: FlowOptions, stream: StreamSpec, home: HadoopPath, epoch: int) -> IntakeSettings:
    """Return how a streaming query of a flow runs.

    Args:
        spec, options: the flow.
        stream: the query.
        home: the flow's folder.
        epoch: of the driver.
    """
    is_flushed_first = takes_intervals(spec, options) or policy_of(spec, options).max_interval is None
    checks = FlowChecks(spec) if spec.appends and spec.constraints else None
    max_entries: float | None = None
    if is_flushed_first and not spec.appends and not stream.repeats_flushes:
        max_entries = inf
    elif _is_memory_only(spec, options) and not stream.durable_because:
        max_entries = options.flow[CACHE_MAX_ENTRIES]
    return IntakeSettings(
        flow=spec.name,
        name=f"sqlext-{spec.name}-{spec.id}-{epoch}{stream.relation}",
        hybrid=next((each for each in spec.hybrids if each.name in stream.sql), None),
        home=target.home_of(home, stream.relation),
        epoch=epoch,
        max_entries=max_entries,
        takes_all=takes_intervals(spec, options),
        is_own=spec.owns_target,
        staged_in=spec.target_location if spec.appends else None,
        checks=checks,
        flushes_empty=spec.appends and bool(spec.reads) and all(each.is_stream for each in spec.reads),
        flushes_first=bool(spec.above) or (stream.output_mode is OutputMode.UPDATE and not stream.key),
        grows=may_grow(spec, options.flow),
    )


def _is_memory_only(spec: FlowSpec, options: FlowOptions) -> bool:
    is_buffered = policy_of(spec, options).max_interval is not None
    return is_buffered and options.flow[FLUSH_MEMORY_BUFFER_ONLY] and not spec.appends
