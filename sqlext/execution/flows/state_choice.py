"""Where the state of each of a flow's aggregates is to live: in a Delta table, or in Spark's state store, and why."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from sqlext.errors import OptionError, UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows.interval_trigger import other_pace
from sqlext.execution.state import distinct_values, expiring_state, session_state
from sqlext.execution.state.aggregate_shape import is_by_session
from sqlext.execution.state.delta_state import state_in
from sqlext.execution.state.mergeable import MergeableAggregate, mergeable
from sqlext.execution.streaming import queries
from sqlext.options import (
    EXPIRED_ROWS,
    FLUSH_MAX_INTERVAL,
    FLUSH_MEMORY_BUFFER_ONLY,
    STATE_BACKEND,
    STATE_TTL,
    TOMBSTONE_RETENTION,
    Option,
)
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import ROCKSDB_ASKED_FOR, StateBackend, StateTtl, StreamSpec, delta_state_shown
from sqlext.plan.job_graph import OutputMode
from sqlext.spark.storage import HadoopPath

FIXED = (STATE_BACKEND.key, STATE_TTL.key, EXPIRED_ROWS.key, TOMBSTONE_RETENTION.key)
"""The keys of options that decide about a flow's state when the flow is made."""


def changes(before: FlowOptions, now: FlowOptions) -> list[str]:
    """Return the keys of `FIXED` that other options give another value."""
    flow_wide: tuple[Option[Any], ...] = (STATE_BACKEND, EXPIRED_ROWS, TOMBSTONE_RETENTION)
    changed = [option.key for option in flow_wide if before.flow[option] != now.flow[option]]
    ttl_before, ttl_now = ({own[STATE_TTL] for own in options.streams.values()} for options in (before, now))
    return changed if ttl_before == ttl_now else [*changed, STATE_TTL.key]


def state_of(
    frame: DataFrame, mode: OutputMode, options: FlowOptions, ttl: StateTtl | None
) -> tuple[MergeableAggregate | None, str | None]:
    """Return a streaming query whose state a Delta table is to hold; or None, and why it is in RocksDB, if there is any.

    Args:
        ttl: the time to live of its groups; None: they have none.

    Raises:
        UnsupportedError: it groups by session windows and sqlext cannot keep it up to date; Spark's streams never can.
        OptionError: a Delta table is asked for, and cannot hold its state.
    """
    if mode is OutputMode.APPEND:
        return None, None
    if is_by_session(frame):
        return _by_session(frame, options), None
    rocksdb_because = None if ttl is not None else _no_delta_state(frame, mode, options)
    counts_rows = ttl is not None and ttl.keeps_rows
    aggregate, because = (None, rocksdb_because) if rocksdb_because else mergeable(frame, counts_rows)
    if because and options.flow[STATE_BACKEND] == StateBackend.DELTA:
        raise OptionError(
            f"The option `{STATE_BACKEND.key}` is delta, and a Delta table cannot hold the state of this query's aggregate: "
            f"{because} Set it to auto or rocksdb; the state lives in RocksDB then."
        )
    return aggregate, because


def _by_session(frame: DataFrame, options: FlowOptions) -> MergeableAggregate:
    if options.flow[STATE_BACKEND] == StateBackend.ROCKSDB:
        raise UnsupportedError(
            f"{STATE_BACKEND.key} is rocksdb, and Spark's state store has no sessions that change as rows come: it gives session "
            f"windows in append and complete mode only. Set {STATE_BACKEND.key} to delta, or leave it out."
        )
    try:
        return MergeableAggregate(frame)
    except UnsupportedError as error:
        raise UnsupportedError(
            "This aggregate by session_window cannot be kept up to date, since sessions are put together from partial results: "
            f"{error}"
        ) from None


def _no_delta_state(frame: DataFrame, mode: OutputMode, options: FlowOptions) -> str | None:
    """Return why the options keep a query's state in RocksDB; None: a Delta table holds it, where it can.

    A Delta table is cheaper: written once a flush, where a state store is at each micro-batch. But where partial results would be
    buffered in files, a state store allows a buffer in memory only, except for queries whose lost rows it could not restore.
    """
    backend = options.flow[STATE_BACKEND]
    if backend == StateBackend.ROCKSDB:
        return ROCKSDB_ASKED_FOR
    is_memory_only = options.flow[FLUSH_MEMORY_BUFFER_ONLY] and options.flow[FLUSH_MAX_INTERVAL] is not None
    pace = other_pace((), options) if is_memory_only and backend != StateBackend.DELTA else None
    if pace is None or queries.durable_because(frame, mode):
        return None
    return f"partial results would be buffered in files: {pace}."


def state_shown(
    aggregate: MergeableAggregate | None,
    rocksdb_because: str | None,
    has_qualifies: bool,
    is_ours: bool,
    is_checked: bool,
    ttl: StateTtl | None,
) -> str | None:
    """Return where the state of a streaming query's aggregate will live, and why; None when it has none.

    Args:
        aggregate, rocksdb_because: as `state_of` returns them.
        has_qualifies: whether groups may be missing in the query's table.
        is_ours: whether nobody else has written the query's table.
        is_checked: whether constraints check the rows of the query's table.
        ttl: when the state of its groups ends; None: never.
    """
    if aggregate is None:
        return f"rocksdb: {rocksdb_because}" if rocksdb_because else None
    is_in_table = bool(aggregate.results_stored) and is_ours and not has_qualifies and not is_checked and ttl is None
    has_values = aggregate.distinct is not None
    return delta_state_shown(is_in_table, is_ours, has_qualifies, bool(aggregate.session), is_checked, has_values, ttl)


def with_state(
    stream: StreamSpec,
    aggregate: MergeableAggregate | None,
    rocksdb_because: str | None,
    home: HadoopPath,
    is_ours: bool,
    is_checked: bool,
    lossy_columns: Set[str],
) -> StreamSpec:
    """Return the record of a streaming query, with its state backend; create the state's own table if it needs one.

    Args:
        is_ours: whether nobody else has written the query's table, so that it can be the state.
        is_checked: whether constraints check the rows of the query's table, which are results then, and no state.
        lossy_columns: columns of the query's table that do not give back all values; only keys are looked after in them.
    """
    if aggregate is None:
        return replace(stream, rocksdb_because=rocksdb_because or "")
    columns = {column.output: column for column in stream.columns}
    pairs = zip(aggregate.results_stored, aggregate.schema, strict=False)  # one for one, or no results
    same = tuple(columns[name].target for name, field in pairs if columns[name].type == target.ddl_of(field.dataType))
    is_whole = len(same) == len(aggregate.schema) and not lossy_columns & {*same} - {*stream.key}
    is_target = is_ours and not stream.has_qualifies and not is_checked and is_whole and stream.ttl is None
    if not is_target:
        schema = session_state.schema_of(aggregate) if aggregate.session else aggregate.schema
        schema = schema if stream.ttl is None else expiring_state.schema_of(aggregate)
        target.create_at(aggregate.input.sparkSession, state_in(home, stream.revision), schema)
    if aggregate.distinct is not None and not stream.revision:  # another query has the same values
        schema = distinct_values.schema_of(aggregate.distinct)
        target.create_at(aggregate.input.sparkSession, distinct_values.values_in(home), schema)
    return replace(
        stream,
        durable_because="partial results are only in the buffer until they are flushed",
        state_backend=StateBackend.DELTA,
        state_fingerprint=aggregate.fingerprint,
        state_columns=same if is_target else (),
        has_sessions=bool(aggregate.session),
        has_distinct_values=aggregate.distinct is not None,
    )
