"""CREATE, REFRESH, ALTER, DROP and SHOW MATERIALIZED VIEW, and EXPLAIN of the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sqlext.commands.answers import Answer, DeferredCommand, SparkStatement, Table, properties, whole_command
from sqlext.commands.bounded_statements import SparkParse
from sqlext.errors import NameTakenError, OptionError, ViewError
from sqlext.execution.delta import target
from sqlext.execution.views.creation import ViewRequest, check_policy, temporary_views_in, without_dropped_rows
from sqlext.execution.views.explain import explain as explain_refresh
from sqlext.execution.views.manager import ViewManager
from sqlext.execution.views.ownership import is_table_of
from sqlext.execution.views.rows import ViewRow
from sqlext.options import DOWNSTREAM, TARGET_LAG, ValueText, is_option_key
from sqlext.options import parse as parse_option
from sqlext.plan.constraints import Constraint
from sqlext.plan.job_graph import References
from sqlext.plan.lineage import shown
from sqlext.plan.view_spec import RefreshPolicy, Schedule
from sqlext.quoting import sql_name
from sqlext.redaction import SqlText
from sqlext.spark import jvm, sessions
from sqlext.sql.constraint_grammar import constraints_of
from sqlext.sql.references import references_in
from sqlext.sql.statements import (
    AlterMaterializedView,
    CreateMaterializedView,
    FlowCommand,
    RefreshMaterializedView,
    ScheduleClause,
    ShowMaterializedViews,
)

ViewStatement = RefreshMaterializedView | AlterMaterializedView | ShowMaterializedViews

_KIND = "materialized view"
_COLUMNS = {
    "name": "STRING",
    "status": "STRING",
    "policy": "STRING",
    "schedule": "STRING",
    "derived_interval": "INTERVAL DAY TO SECOND",
    "last_refresh": "TIMESTAMP",
    "done": "STRING",
    "because": "STRING",
    "rows_in": "BIGINT",
    "rows_deleted": "BIGINT",
    "rows_inserted": "BIGINT",
    "seconds": "DOUBLE",
    "version": "BIGINT",
    "behind": "BOOLEAN",
    "lag": "INTERVAL DAY TO SECOND",
    "lag_p50": "INTERVAL DAY TO SECOND",
    "lag_p95": "INTERVAL DAY TO SECOND",
    "unread_bytes": "BIGINT",
    "error": "STRING",
    "waits_for": "STRING",
    "next_try": "TIMESTAMP",
    "sources": "STRING",
    "id": "STRING",
    "full_name": "STRING",
    "comment": "STRING",
}


def create(
    spark: SparkSession, statement: CreateMaterializedView, text: str, spark_parse: SparkParse, views: ViewManager
) -> Answer:
    """Make a materialized view, when Spark executes the command.

    Args:
        spark: the session of the client.
        statement: the statement.
        text: its text.
        spark_parse: Spark's own parser.
        views: of this process.
    """
    request = _request(spark, statement, text, spark_parse)
    if isinstance(request, SparkStatement):
        return request
    return whole_command(spark, "CREATE MATERIALIZED VIEW", lambda canceled: views.create(request, canceled))


def explain(spark: SparkSession, statement: CreateMaterializedView, spark_parse: SparkParse, views: ViewManager) -> Answer:
    """Explain how a view would be refreshed. What CREATE refuses is refused here too, but its name may be taken."""
    request = _request(spark, statement, "", spark_parse)
    if isinstance(request, SparkStatement):
        return request
    views.check(request)
    constraints = [SqlText(f"constraint {each.name}: {each.wanted}") for each in request.constraints]
    lines = [*explain_refresh(request.session, request.query, request.policy), *_pace(request, views), *constraints]
    return Table({"plan": "STRING"}, [{"plan": tuple(lines)}])


def _pace(request: ViewRequest, views: ViewManager) -> list[str]:
    """Return the lines of EXPLAIN about when a view would be refreshed by itself, and what it reads with it."""
    text, lag = schedule_text(request.schedule), request.schedule.target_lag
    if text is None:
        return []
    below = [] if lag is None else views.needed_by(request.name, request.inputs, lag)
    return [f"refreshed by itself: {text}", *(f"  {name}: at least every {_duration_text(every)}" for name, every in below)]


def answer(spark: SparkSession, statement: ViewStatement, views: ViewManager) -> Answer:
    """Answer a statement about a view that is there."""
    if isinstance(statement, ShowMaterializedViews):
        return Table(_COLUMNS, [_row(each) for each in views.views()])
    name = target.qualified(spark, statement.name)
    match statement:
        case RefreshMaterializedView(is_full=is_full, waits=waits, cascade=cascade):
            verb = "REFRESH MATERIALIZED VIEW"
            return whole_command(spark, verb, lambda canceled: views.refresh(name, is_full, waits, canceled, cascade))
        case AlterMaterializedView():
            schedule = None if statement.schedule is None else _schedule(spark, statement.schedule)
            return whole_command(spark, "ALTER MATERIALIZED VIEW", lambda _: _alter(spark, statement, name, schedule, views))


def flow_command(spark: SparkSession, command: FlowCommand, name: tuple[str, ...], views: ViewManager) -> Answer:
    """Answer a statement about flows that names a view: FLUSH refreshes it, START is about its schedule.

    Args:
        spark: the session of the client.
        command: the statement.
        name: the view's, qualified.
        views: of this process.
    """
    match command.verb:
        case "START":
            return whole_command(spark, "START FLOW", lambda _: views.suspend(name, is_stopped=False))
        case "DROP":
            raise ViewError(f"{shown(name)} is a materialized view. DROP MATERIALIZED VIEW drops it.")
        case _:
            return whole_command(spark, "FLUSH FLOW", lambda canceled: views.refresh(name, False, True, canceled))


def unless_kept(
    spark: SparkSession, written: tuple[str, ...], flow: tuple[str, ...], found: Answer, views: Callable[[], ViewManager]
) -> Answer:
    """Return the answer of a statement that writes to a table. As a command it fails if the table or the flow's name is a view's.

    Args:
        spark: the session of the client.
        written: the table, as written.
        flow: the name of its flow, as written; empty: the statement gives none.
        found: the answer.
        views: returns those of this process.
    """
    if not isinstance(found, DeferredCommand):
        return found
    name, command = target.qualified(spark, written), found

    def run() -> list[str]:
        views().refuse_as_target(spark, name)
        if flow and views().has(own := target.qualified(spark, flow)):
            raise NameTakenError(f"There is a materialized view {shown(own)} already. Choose another name for the flow.")
        return command.run()

    return DeferredCommand(command.name, run)


def described(name: tuple[str, ...], views: ViewManager) -> Table:
    """DESCRIBE FLOW of a view."""
    record = views.record(name)
    row = next(each for each in views.views() if each.record.spec.id == record.spec.id)
    rows = {"kind": _KIND, **_row(row), "query": SqlText(record.spec.query), "location": record.spec.location}
    violations = {} if row.status.report is None else row.status.report.violations
    rows |= {f"constraint {each.name}": SqlText(_wanted(each, violations)) for each in record.spec.constraints}
    return properties(rows)


def _wanted(constraint: Constraint, violations: Mapping[str, int]) -> str:
    """Return what a constraint wants, and by how many of the rows of the last refresh it was violated, if that is counted."""
    number = violations.get(constraint.name)
    return constraint.wanted + ("" if number is None else f"; violated by {number} rows of the last refresh")


def as_flows(views: list[ViewRow]) -> list[dict[str, Any]]:
    """Return the rows of views in SHOW FLOWS."""
    return [
        {
            "name": view.name,
            "kind": _KIND,
            "target": ".".join(view.record.spec.name),
            "status": view.state,
            "lag": None if view.lag is None else view.lag.age,
            "unread": None if view.lag is None else view.lag.unread_bytes,
            "unread_unit": None if view.lag is None or view.lag.unread_bytes is None else "bytes",
            "note": f"waits for {view.waits_for}, which has failed" if view.waits_for else None,
            "last_flush": view.status.at,
            "last_reason": None if view.status.report is None else view.status.report.done,
            "error": view.status.error or None,
            "id": view.record.spec.id,
            "comment": view.record.spec.comment or None,
            "full_name": sql_name(view.record.spec.name),
            "next_try": view.status.next_try,
        }
        for view in views
    ]


def _alter(
    spark: SparkSession, statement: AlterMaterializedView, name: tuple[str, ...], schedule: Schedule | None, views: ViewManager
) -> str:
    spec = views.record(name).spec
    if statement.policy is RefreshPolicy.STRICT:
        check_policy(sessions.restored_session(spark, spec), spec.name, spec.query, statement.policy)
    if schedule is not None or statement.policy is not None:
        return views.alter(name, schedule, statement.policy)
    lagging = _with_lag(spark, spec.schedule, statement.settings)
    if not is_table_of(spark, spec):
        raise ViewError(f"{shown(name)} is not the table of the materialized view any more, so it is not altered.")
    spark.sql(statement.text)
    if lagging != spec.schedule:
        return views.alter(name, lagging)
    return f"materialized view {shown(spec.name)} altered"


# CREATE.


def _request(
    spark: SparkSession, statement: CreateMaterializedView, text: str, spark_parse: SparkParse
) -> ViewRequest | SparkStatement:
    """Return what a statement wants; or its query, if Spark refuses it: Spark then says so, with the place in the statement."""
    _refuse_options(statement)
    schedule = _with_lag(spark, _schedule(spark, statement.schedule), statement.definition.properties)
    source = statement.source
    constraints = constraints_of(statement.definition.properties)
    references = references_in(" ".join([source, *(each.condition for each in constraints)]))
    own = sessions.session_for(spark, references)
    try:
        frame = own.sql(source)
    except AnalysisException:
        if jvm.refusal_of(spark, spark_parse(source)) is None:
            raise
        return SparkStatement(source)
    request = ViewRequest(
        name=target.qualified(spark, statement.name),
        session=own,
        frame=frame,
        text=text,
        query=source.strip(),
        definition=statement.definition,
        schedule=schedule,
        policy=statement.policy,
        replace=statement.replace,
        if_not_exists=statement.if_not_exists,
        variables=sessions.variables_of(own, references),
        session_bound=(*temporary_views_in(frame), *sessions.bound_to(own, References(functions=references.functions))),
        constraints=constraints,
        position=statement.position,
    )
    return without_dropped_rows(request)


def _refuse_options(statement: CreateMaterializedView) -> None:
    """Refuse options of flows among the table's properties: they would do nothing."""
    for key, given in statement.definition.properties.items():
        if is_option_key(key) and key.lower() != TARGET_LAG.key:
            raise OptionError(
                f"`{key}` is an option of flows and jobs, and a materialized view has none. Leave it out; SCHEDULE and REFRESH "
                "POLICY say when and how a view is refreshed.",
                given.position,
            )


def _schedule(spark: SparkSession, clause: ScheduleClause) -> Schedule:
    """Return the schedule that a clause says.

    Raises:
        OptionError: a duration cannot be read, or is not positive.
    """
    every = None if clause.every is None else _seconds(spark, "SCHEDULE EVERY", clause.every)
    if clause.at_most_every is None:
        return Schedule(every, clause.on_update)
    return Schedule(every, clause.on_update, _seconds(spark, "AT MOST EVERY", clause.at_most_every))


def _with_lag(spark: SparkSession, schedule: Schedule, properties: Mapping[str, ValueText]) -> Schedule:
    """Return a schedule with the target lag among a table's properties, if there is one.

    Raises:
        OptionError: it cannot be read, or there are times to refresh the view, too.
    """
    given = next((given for key, given in properties.items() if key.lower() == TARGET_LAG.key), None)
    if given is None:
        return schedule
    lag = parse_option(TARGET_LAG, given, lambda text: jvm.parse_duration(spark, text))
    if lag is not None and schedule.has_pace:
        raise OptionError(
            f"`{TARGET_LAG.key}` says when the view is refreshed, and so does {schedule_text(schedule)}. Give one of them.",
            given.position,
        )
    if lag is None or isinstance(lag, str):
        return replace(schedule, target_lag=None, is_downstream=lag is not None)
    return replace(schedule, target_lag=lag.total_seconds(), is_downstream=False)


def _seconds(spark: SparkSession, clause: str, given: ValueText) -> float:
    try:
        seconds = jvm.parse_duration(spark, given.value).total_seconds()
    except ValueError as error:
        raise OptionError(
            f"{clause} cannot be `{given.value}` ({error}). Give a duration, such as 10 MINUTES.", given.position
        ) from None
    if seconds <= 0:
        raise OptionError(f"{clause} cannot be `{given.value}`: it must be longer than nothing.", given.position)
    return seconds


# SHOW.


def _row(view: ViewRow) -> Mapping[str, Any]:
    spec, status = view.record.spec, view.status
    row: dict[str, Any] = {
        "name": view.name,
        "status": view.state,
        "policy": spec.policy.value,
        "schedule": schedule_text(spec.schedule),
        "derived_interval": None if view.needed is None or spec.schedule.has_pace else timedelta(seconds=view.needed),
        "last_refresh": status.at,
        "behind": view.is_behind,
        "lag": None if view.lag is None else view.lag.age,
        "lag_p50": view.lags[0],
        "lag_p95": view.lags[1],
        "unread_bytes": None if view.lag is None else view.lag.unread_bytes,
        "error": status.error or None,
        "waits_for": view.waits_for or None,
        "next_try": status.next_try,
        "id": spec.id,
        "full_name": sql_name(spec.name),
        "comment": spec.comment or None,
    }
    if (report := status.report) is not None:
        row |= {
            "done": report.done,
            "because": report.because or None,
            "rows_in": _counted(report.rows_in),
            "rows_deleted": _counted(report.rows_deleted),
            "rows_inserted": _counted(report.rows_inserted),
            "seconds": report.seconds,
            "version": report.version,
            "sources": ", ".join(f"{name}@{source.version}" for name, source in report.sources.items()),
        }
    return row


def _counted(rows: int) -> int | None:
    return rows if rows >= 0 else None


def schedule_text(schedule: Schedule) -> str | None:
    """Return a schedule as its clause; None if the view is refreshed by hand only.

    >>> schedule_text(Schedule(every=600.0)), schedule_text(Schedule(on_update=True, at_most_every=90.0))
    ('EVERY 10 MINUTES', 'TRIGGER ON UPDATE AT MOST EVERY 90 SECONDS')
    """
    if schedule.is_downstream:
        return f"TARGET LAG {DOWNSTREAM}"
    if schedule.target_lag is not None:
        return f"TARGET LAG {_duration_text(schedule.target_lag)}"
    if schedule.every is not None:
        return f"EVERY {_duration_text(schedule.every)}"
    return f"TRIGGER ON UPDATE AT MOST EVERY {_duration_text(schedule.at_most_every)}" if schedule.on_update else None


def _duration_text(seconds: float) -> str:
    """Return a duration in the largest unit that it is a whole number of."""
    units = (("DAY", 86400), ("HOUR", 3600), ("MINUTE", 60))
    unit, length = next((each for each in units if seconds % each[1] == 0), ("SECOND", 1))
    count = seconds / length
    return f"{count:g} {unit}{'' if count == 1 else 'S'}"
