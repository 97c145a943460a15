"""The time to live of a flow's groups: what the options say, and for which queries sqlext can end state."""

from __future__ import annotations

from pyspark.sql import DataFrame

from sqlext.errors import OptionError, UnsupportedError
from sqlext.execution.state.aggregate_shape import has_state_below
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.options import EXPIRED_ROWS, STATE_BACKEND, STATE_TTL, TOMBSTONE_RETENTION, Level, Options, Setting
from sqlext.plan.change_capture import ChangeCapture
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import StateBackend, StateTtl
from sqlext.plan.job_graph import FlowPlan
from sqlext.quoting import fold

_OF_SESSION = (Level.SESSION, Level.CONF)
"""The levels that give options to all flows of a session, whether or not they have groups."""


def ttl_of(plan: FlowPlan, options: FlowOptions) -> StateTtl | None:
    """Return the time to live of a flow's groups; None: state is kept for ever, or the flow has no groups.

    Raises:
        OptionError: streams give it differently, or the state is not to be in a Delta table.
        UnsupportedError: the statement gives it, and its query has no groups.
    """
    if plan.capture is not None:
        return _retention_of(plan.capture, plan, options)
    _refuse_difference(plan, options)
    retention = options.flow.setting(TOMBSTONE_RETENTION)
    if retention is not None and retention.value is not None and retention.level not in _OF_SESSION:
        raise _refused(retention, "only AUTO CDC keeps deletions. Leave it out")
    setting, rows = _setting(plan, options), options.flow.setting(EXPIRED_ROWS)
    if setting is None or setting.value is None:
        if rows is not None and rows.level not in _OF_SESSION:
            raise OptionError(
                f"{rows.name} has no effect while `{STATE_TTL.key}` is null: state is kept for ever. Set that as well.",
                rows.given.position,
            )
        return None
    if plan.appends or plan.runs_once:
        if setting.level in _OF_SESSION:
            return None
        raise _refused(setting, "the query has no streaming aggregate, whose groups would have state that ends. Leave it out")
    _refuse_rocksdb(setting, options)
    return StateTtl(setting.given.value, setting.value.total_seconds(), options.flow[EXPIRED_ROWS] == "keep")


def _retention_of(capture: ChangeCapture, plan: FlowPlan, options: FlowOptions) -> StateTtl | None:
    """Return when the deletions of AUTO CDC leave its state; None: they are kept for ever."""
    ttl = next((own.setting(STATE_TTL) for own in _of_streams(plan, options).values()), None)
    if ttl is not None and ttl.value is not None:
        raise UnsupportedError(
            f"{ttl.name} is `{ttl.given.value}`, and AUTO CDC keeps the newest change of each key for ever: without it, an older "
            f"one that comes late would win. Set `{STATE_TTL.key}` to null in TBLPROPERTIES, or leave it out; "
            f"`{TOMBSTONE_RETENTION.key}` says when deletions may leave.",
            capture.position,
        )
    rows = options.flow.setting(EXPIRED_ROWS)
    if rows is not None and rows.level not in _OF_SESSION:
        raise _refused(rows, "AUTO CDC keeps the newest change of each key for ever. Leave it out")
    setting = options.flow.setting(TOMBSTONE_RETENTION)
    if setting is None or setting.value is None:
        return None
    if because := _keeps_none(capture):
        if setting.level in _OF_SESSION:
            return None
        raise _refused(setting, f"{because}. Leave it out")
    _refuse_rocksdb(setting, options)
    return StateTtl(setting.given.value, setting.value.total_seconds(), keeps_rows=False, only_deletions=True)


def _keeps_none(capture: ChangeCapture) -> str:
    """Return why there are no deletions that could leave the state while the rest of it stays; empty if there are."""
    if capture.keeps_history:
        return "with SCD TYPE 2 every change is part of the history"
    if capture.truncate_when is not None:
        return "with APPLY AS TRUNCATE WHEN a flush computes the table of all keys"
    return "" if capture.delete_when is not None else "without APPLY AS DELETE WHEN there are no deletions"


def _refuse_rocksdb(setting: Setting, options: FlowOptions) -> None:
    backend = options.flow.setting(STATE_BACKEND)
    if backend is not None and backend.value == StateBackend.ROCKSDB:
        raise OptionError(
            f"{setting.name} is `{setting.given.value}`, and {backend.name} is rocksdb: aggregates in Spark's state store have "
            f"no time to live. Set {STATE_BACKEND.key} to delta, or leave it out.",
            setting.given.position or backend.given.position,
        )


def check(
    plan: FlowPlan, options: FlowOptions, frame: DataFrame, aggregate: MergeableAggregate | None, because: str | None
) -> None:
    """Raise UnsupportedError if groups have a time to live, and sqlext cannot end the state of one of the flow's queries.

    Args:
        plan, options: the flow.
        frame: the query, analysed.
        aggregate, because: as `state_choice.state_of` returns them.
    """
    setting = _setting(plan, options)
    if setting is None or setting.value is None:
        return
    if aggregate is None and not plan.appends:
        raise _refused(setting, f"groups can only end where a Delta table holds their state, and here it cannot: {because}")
    if has_state_below(frame):
        raise _refused(setting, "Spark keeps a state of its own for a part of the query, which would not end")
    if aggregate is None:
        return
    if aggregate.session:
        raise _refused(setting, "the query groups by session_window: a late row may merge sessions, however old they are")
    if aggregate.event_time is not None:
        raise _refused(
            setting, "the query groups by the event time of a watermark, which ends its groups. Leave one of the two out"
        )
    if not aggregate.key:
        raise _refused(setting, "the query has no GROUP BY, so it keeps one group for ever")


def _setting(plan: FlowPlan, options: FlowOptions) -> Setting | None:
    if plan.capture is not None:
        return None if _keeps_none(plan.capture) else options.flow.setting(TOMBSTONE_RETENTION)
    return next((own.setting(STATE_TTL) for own in _of_streams(plan, options).values()), options.flow.setting(STATE_TTL))


def _of_streams(plan: FlowPlan, options: FlowOptions) -> dict[str, Options]:
    return {source.alias: options.streams[fold(source.alias)] for source in plan.graph.streams}


def _refuse_difference(plan: FlowPlan, options: FlowOptions) -> None:
    """Refuse streams with different times: a group of a join or union has rows of all of them, and one state."""
    each = list(_of_streams(plan, options).items())
    for alias, own in each:
        other, others = each[0]
        if own[STATE_TTL] != others[STATE_TTL]:
            one, two = own.raw(STATE_TTL) or "null", others.raw(STATE_TTL) or "null"
            given = (own.setting(STATE_TTL), others.setting(STATE_TTL))
            raise OptionError(
                f"`{STATE_TTL.key}` is `{two}` for `{other}` and `{one}` for `{alias}`, and all groups of a flow have one time "
                f"to live. Give the same for each: STATE_TTL({other}, ..), STATE_TTL({alias}, ..).",
                next((each.given.position for each in given if each is not None and each.given.position is not None), None),
            )


def _refused(setting: Setting, because: str) -> UnsupportedError:
    return UnsupportedError(f"{setting.name} is `{setting.given.value}`, but {because.rstrip('.')}.", setting.given.position)
