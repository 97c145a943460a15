"""Where the state of each of a flow's aggregates is to live: in a Delta table, or in Spark's state store, and why."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from pyspark.sql import DataFrame

from sqlext.errors import OptionError, UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows.interval_trigger import other_pace
from sqlext.execution.state import session_state
from sqlext.execution.state.delta_state import state_in
from sqlext.execution.state.mergeable import MergeableAggregate, is_by_session, mergeable
from sqlext.options import (
    FLUSH_MAX_INTERVAL,
    FLUSH_MEMORY_BUFFER_ONLY,
    STATE_BACKEND,
    Options,
)
from sqlext.plan.flow_spec import ROCKSDB_ASKED_FOR, StateBackend, StreamSpec, delta_state_shown
from sqlext.plan.job_graph import QUALIFIES, OutputMode
from sqlext.spark.storage import HadoopPath


def check_sessions(frame: DataFrame, options: Options) -> None:
    """Raise UnsupportedError when sqlext cannot keep an aggregate by session windows up to date; Spark's streams never can."""
    if options[STATE_BACKEND] == StateBackend.ROCKSDB:
        raise UnsupportedError(
            f"{STATE_BACKEND.key} is rocksdb, and Spark's state store has no sessions that change as rows come: it gives session "
            f"windows in append and complete mode only. Set {STATE_BACKEND.key} to delta, or leave it out."
        )
    try:
        MergeableAggregate(frame)
    except UnsupportedError as error:
        raise UnsupportedError(
            "This aggregate by session_window cannot be kept up to date, since sessions are put together from partial results: "
            f"{error}"
        ) from None


def no_delta_state(options: Options, may_be_in_backlog: bool) -> str | None:
    """Why the options keep all state in RocksDB; None: a Delta table holds it, where it can.

    A Delta table is cheaper: written once a flush, where a state store is at each micro-batch.

    Args:
        may_be_in_backlog: as for `other_pace`.
    """
    backend = options[STATE_BACKEND]
    if backend == StateBackend.ROCKSDB:
        return ROCKSDB_ASKED_FOR
    is_memory_only = options[FLUSH_MEMORY_BUFFER_ONLY] and options[FLUSH_MAX_INTERVAL] is not None
    pace = other_pace((), options, may_be_in_backlog) if is_memory_only else None
    return f"partial results would be buffered in files: {pace}." if pace and backend != StateBackend.DELTA else None


def state_of(frame: DataFrame, mode: OutputMode, rocksdb_because: str | None) -> tuple[MergeableAggregate | None, str | None]:
    """A streaming query whose state a Delta table is to hold; or None, and why it is in RocksDB, if there is any.

    Args:
        rocksdb_because: as `no_delta_state` tells.
    """
    if mode is OutputMode.APPEND:
        return None, None
    if is_by_session(frame):
        return MergeableAggregate(frame), None  # else Spark cannot run it: `check_query`
    return (None, rocksdb_because) if rocksdb_because else mergeable(frame)


def check_state(frames: Sequence[DataFrame], mode: OutputMode, rocksdb_because: str | None) -> None:
    """See whether the state of streaming queries can be in Delta tables, which is asked for.

    Args:
        rocksdb_because: as `no_delta_state` tells.

    Raises:
        OptionError: that of one cannot; says why.
    """
    for frame in frames:
        _, because = state_of(frame, mode, rocksdb_because)
        if because:
            raise OptionError(
                f"The option `{STATE_BACKEND.key}` is delta, and a Delta table cannot hold the state of this query's aggregate: "
                f"{because} Set it to auto or rocksdb; the state lives in RocksDB then."
            )


def backend_of(aggregate: MergeableAggregate | None) -> StateBackend:
    """Where the state of an aggregate lives that `state_of` has found, or none."""
    return StateBackend.ROCKSDB if aggregate is None else StateBackend.DELTA


def state_shown(frame: DataFrame, aggregate: MergeableAggregate | None, rocksdb_because: str | None, is_ours: bool) -> str | None:
    """Where the state of a streaming query's aggregate will live, and why; None when it has none.

    Args:
        aggregate, rocksdb_because: as `state_of` gives them.
        is_ours: whether nobody else has written the query's table.
    """
    if aggregate is None:
        return f"rocksdb: {rocksdb_because}" if rocksdb_because else None
    has_qualifies = QUALIFIES in frame.columns
    is_in_table = bool(aggregate.results_stored) and is_ours and not has_qualifies
    return delta_state_shown(is_in_table, is_ours, has_qualifies, bool(aggregate.session))


def with_state(
    stream: StreamSpec,
    aggregate: MergeableAggregate | None,
    rocksdb_because: str | None,
    home: HadoopPath,
    is_ours: bool,
    lossy_columns: Set[str],
) -> StreamSpec:
    """The record of a streaming query with where its state lives; makes the table of its own that the state may need.

    Args:
        is_ours: whether nobody else has written the query's table, so that it can be the state.
        lossy_columns: columns of the query's table that do not give back all values; only keys are looked after in them.
    """
    if aggregate is None:
        return replace(stream, rocksdb_because=rocksdb_because or "")
    columns = {column.output: column for column in stream.columns}
    pairs = zip(aggregate.results_stored, aggregate.schema, strict=False)  # one for one, or no results
    same = tuple(columns[name].target for name, field in pairs if columns[name].type == target.ddl_of(field.dataType))
    is_whole = len(same) == len(aggregate.schema) and not lossy_columns & {*same} - {*stream.key}
    is_target = is_ours and not stream.has_qualifies and is_whole
    if not is_target:
        schema = session_state.schema_of(aggregate) if aggregate.session else aggregate.schema
        target.create_at(aggregate.input.sparkSession, state_in(home), schema)
    return replace(
        stream,
        durable_because="partial results are only in the buffer until they are flushed",
        state_backend=StateBackend.DELTA,
        state_fingerprint=aggregate.fingerprint,
        state_columns=same if is_target else (),
        has_sessions=bool(aggregate.session),
    )
