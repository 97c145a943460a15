"""SHOW FLOWS and DESCRIBE FLOW: flows as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlext.commands.answers import Table, properties
from sqlext.commands.savepoint_statements import shown
from sqlext.execution.backlog.propagation import is_backlog
from sqlext.execution.backlog.status import BacklogStatus, describe
from sqlext.execution.flows.restoration import note_of
from sqlext.execution.flows.status import FlowProgress
from sqlext.execution.flows.views import FlowView
from sqlext.execution.host import Host
from sqlext.plan.flow_spec import FlowSpec, StateBackend, StreamSpec, delta_state_shown
from sqlext.quoting import sql_name
from sqlext.redaction import SqlText
from sqlext.spark.state_size import StateSize

_FLOWS = {
    "name": "STRING",
    "kind": "STRING",
    "target": "STRING",
    "status": "STRING",
    "phase": "STRING",
    "lag": "INTERVAL DAY TO SECOND",
    "unread": "BIGINT",
    "unread_unit": "STRING",
    "catch_up": "INTERVAL DAY TO SECOND",
    "rows_in": "BIGINT",
    "micro_batches": "BIGINT",
    "buffered": "BIGINT",
    "flushes": "BIGINT",
    "last_flush": "TIMESTAMP",
    "last_reason": "STRING",
    "error": "STRING",
    "note": "STRING",
    "id": "STRING",
    "comment": "STRING",
    "full_name": "STRING",
    "next_try": "TIMESTAMP",
    "violations": "BIGINT",
}


def flows(views: list[FlowView], waits: Mapping[str, str], others: Sequence[Mapping[str, Any]]) -> Table:
    """SHOW FLOWS.

    Args:
        views: the flows.
        waits: by the id of a flow that is made of a table that could not be brought up to date, the name of that table.
        others: the rows of what else is kept up to date.
    """
    return Table(_FLOWS, [*(_flow_row(view, waits.get(view.record.spec.id, "")) for view in views), *others])


def _flow_row(view: FlowView, waits_for: str = "") -> dict[str, Any]:
    spec, progress = view.record.spec, view.progress
    waits = f"waits for {waits_for}, which has failed" if waits_for else ""
    bound = f"ends with its session: reads {', '.join(spec.session_bound)}" if spec.session_bound else ""
    elsewhere = "" if bound or view.is_here or view.status != "RUNNING" else "runs in another process"
    state = f"state in RocksDB: {spec.rocksdb_because.rstrip('.')}" if spec.rocksdb_because else ""
    row: dict[str, Any] = {
        "name": view.name,
        "kind": spec.kind,
        "target": ".".join(spec.target),
        "status": view.status,
        "error": view.error or None,
        "note": "; ".join(filter(None, (waits, note_of(spec), bound, elsewhere, state))) or None,
        "id": spec.id,
        "comment": spec.comment or None,
        "full_name": sql_name(spec.qualified_name),
        "next_try": view.next_try,
    }
    if progress is not None:
        row |= {
            "phase": progress.backlog.phase.value,
            "lag": _lag(progress),
            **_unread(progress.backlog),
            "catch_up": progress.backlog.catch_up,
            "rows_in": progress.rows_in,
            "micro_batches": progress.micro_batches,
            "buffered": progress.buffered_rows,
            "flushes": progress.flushes,
            "last_flush": progress.last_flush,
            "last_reason": progress.last_reason or None,
            "violations": sum(progress.violations.values()) if spec.constraints else None,
        }
    return row


def _lag(progress: FlowProgress) -> timedelta | None:
    """Return the age of the oldest record that is not in the table: unread, or in the buffer; None: not known."""
    buffered = timedelta() if progress.oldest_arrival is None else datetime.now(UTC) - progress.oldest_arrival
    return None if progress.backlog.lag is None else max(progress.backlog.lag, buffered)


def _unread(backlog: BacklogStatus) -> dict[str, Any]:
    """Return what no micro-batch has read yet, if all sources count it in one unit."""
    units = {source.look.unit for source in backlog.sources.values() if source.look.unit}
    if backlog.unread is None or len(units) != 1:
        return {}
    return {"unread": round(backlog.unread), "unread_unit": units.pop()}


def flow(view: FlowView, host: Host) -> Table:
    """DESCRIBE FLOW."""
    spec, progress = view.record.spec, view.progress
    rows: dict[str, Any] = _flow_row(view)
    if progress is not None:
        rows |= {
            "buffered_batches": progress.buffered_batches,
            "oldest_buffered": progress.oldest_arrival,
            "rows_flushed": progress.rows_flushed,
            "micro_batches_per_flush": f"{progress.batches_flushed / max(progress.flushes, 1):.1f}",
            "flush_reasons": ", ".join(f"{reason} {times}" for reason, times in sorted(progress.reasons.items())),
            "last_flush_seconds": f"{progress.last_flush_seconds:.1f}",
            "watermark": progress.watermark,
        }
        if any(stream.ttl is not None for stream in spec.streams):
            rows |= {"groups_ended": progress.ended.groups, "rows_dropped": progress.ended.rows_dropped}
    rows |= {
        "epoch": view.record.epoch,
        "since": view.record.since,
        "output_mode": next((stream.output_mode.value for stream in spec.streams), None),
        "key": None if spec.above else ", ".join(key for stream in spec.streams for key in stream.key),
        "buffering": spec.one_commit_a_batch_because or "by execution.flush.max-interval",
        "home": f"{host.home}/flows/{spec.id}",
        "statement": SqlText(spec.text),
    }
    rows |= _constraint_rows(spec, {} if progress is None else progress.violations)
    rows |= _backlog_rows(spec, progress.backlog) if progress is not None else {}
    rows |= {f"query {stream.relation}".strip(): SqlText(stream.sql) for stream in spec.streams}
    rows |= {f"state {stream.relation}".strip(): where for stream in spec.streams if (where := _state_of(spec, stream))}
    rows |= _state_sizes({} if progress is None else progress.state)
    rows |= {f"savepoint {each.name}": shown(each) for each in host.flows.savepoints.of(spec)}
    rows |= {"query above": SqlText(spec.above)} if spec.above else {}
    for status, each in zip(host.flows.prerequisites_of(view), spec.prerequisites, strict=True):
        rows |= {f"stage {each.name}": status, f"query {each.name}": SqlText(each.sql)}
    rows |= {f"option {key}": f"{value} ({level})" for key, value, level in host.flows.options_of(spec).flow.as_rows()}
    return properties(rows)


def _state_of(spec: FlowSpec, stream: StreamSpec) -> str | None:
    """Where an aggregate's state lives, and why; None when there is no aggregate."""
    if stream.state_backend is StateBackend.DELTA:
        is_ours = not stream.writes_target or spec.owns_target
        return delta_state_shown(
            bool(stream.state_columns),
            is_ours,
            stream.has_qualifies,
            stream.has_sessions,
            is_checked=stream.writes_target and bool(spec.constraints),
            has_distinct_values=stream.has_distinct_values,
            ttl=stream.ttl,
        )
    return f"rocksdb: {stream.rocksdb_because}" if stream.rocksdb_because else None


def _state_sizes(sizes: Mapping[StateBackend, StateSize]) -> dict[str, str | None]:
    """Return the rows and bytes of the state of a flow that runs here, as far as they are known."""
    rows = [f"{size.rows} ({backend.value})" for backend, size in sizes.items() if size.rows is not None]
    taken = [f"{size.bytes} ({backend.value})" for backend, size in sizes.items() if size.bytes is not None]
    return {"state_rows": ", ".join(rows) or None, "state_bytes": ", ".join(taken) or None} if sizes else {}


def _constraint_rows(spec: FlowSpec, violations: Mapping[str, int]) -> dict[str, SqlText]:
    """Return what each constraint wants, and how many rows have violated it since the flow started here."""
    return {
        f"constraint {each.name}": SqlText(f"{each.wanted}; violated by {violations.get(each.name, 0)} rows")
        for each in spec.constraints
    }


def _backlog_rows(spec: FlowSpec, backlog: BacklogStatus) -> dict[str, str]:
    """How far each source is, and isBacklog through the graph."""
    rows = {f"source {name}": describe(source.look) for name, source in backlog.sources.items()}
    through = is_backlog(spec.operators, backlog.streams) if backlog.sources else ()
    rows |= {
        f"operator {at} {operator.kind}": f"isBacklog {str(found).lower()}"
        for at, (operator, found) in enumerate(zip(spec.operators, through, strict=bool(backlog.sources)))
    }
    rows |= {
        f"switch {at}": f"{s.phase.value} at {s.at.astimezone():%Y-%m-%d %H:%M:%S}: {s.because}"
        for at, s in enumerate(backlog.switches, 1)
    }
    return rows
