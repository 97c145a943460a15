"""From a statement to its answer: plans queries, gathers options, and asks the host of flows to act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sqlext import bounded_sql, grammar, job_sql, jvm, partition_sql, planner, statements
from sqlext.answers import Answer, Deferred, PassOn, Table
from sqlext.bounded_sql import SparkParse
from sqlext.errors import OptionError, Position, UnreadableQuery, UnsupportedError, did_you_mean
from sqlext.execution import queries, target
from sqlext.execution.creation import FlowRequest
from sqlext.execution.host import FlowHost, FlowView
from sqlext.explain import explain_flow
from sqlext.names import quote
from sqlext.option_levels import resolve_levels, session_levels
from sqlext.options import (
    BACKLOG_LAG_THRESHOLD,
    CHECKPOINT_INTERVAL_DURING_BACKLOG,
    CONF_PREFIX,
    HOME_KEY,
    OPTIONS,
    RUNTIME_MODE,
    SORTED_SHUFFLES,
    STATE_BACKEND,
    Given,
    Level,
    Option,
    Options,
    is_option_key,
)
from sqlext.options import option as option_of
from sqlext.options import parse as parse_option
from sqlext.plan import FlowPlan
from sqlext.rewriter import Batch
from sqlext.statements import Query, Statement

_DEFAULT_WAIT = timedelta(hours=1)
_NOT_YET: tuple[tuple[Option[Any], Any, str], ...] = ((STATE_BACKEND, "delta", "aggregates keep their state in RocksDB"),)
_TABLE_AS = (
    "CREATE TABLE .. AS ends, a stream does not. To keep the table up to date, write CREATE STREAMING TABLE .. AS; to read what "
    "is there now and end, put GLOBAL WINDOW END OF STREAM after GROUP BY."
)


class Commands:
    """Answers statements. Holds no state but the host and the rules, so any thread may call it.

    Args:
        host: made on first use; a session that never asks for a flow writes nothing.
        batches: the rules in force.
    """

    def __init__(self, host: Callable[[], FlowHost], batches: Callable[[], tuple[Batch, ...]]) -> None:
        self._host = host
        self._batches = batches

    def answer(self, spark: SparkSession, text: str, spark_parse: SparkParse) -> Answer:
        """Answer one of our statements.

        Args:
            spark: the session it came from.
            text: the statement.
            spark_parse: Spark's own parser; when a query is wrong, its message is the one users know.
        """
        try:
            statement = grammar.parse(text)
        except UnreadableQuery as problem:
            spark_parse(problem.query)  # where Spark does not read it either, its own error is the one users know
            raise
        if isinstance(statement, statements.PartitionQuery):
            return partition_sql.answer(spark, statement, spark_parse)
        return self._answer(spark, statement, text, spark_parse)

    def _answer(self, spark: SparkSession, statement: Statement, text: str, spark_parse: SparkParse) -> Answer:
        if (job := _as_job(spark, statement)) is not None:
            return bounded_sql.answer(spark, job, text, self._batches(), spark_parse, lambda: self._host().jobs)
        match statement:
            case statements.CreateStreamingTable() | statements.Insert():
                return self._create(spark, statement, text)
            case statements.CreateTableAs(position=position):
                raise UnsupportedError(_TABLE_AS, position)
            case statements.Select(query=query, position=position):
                self._refuse_select(query, position)
            case statements.Explain(statement=explained):
                return self._explain(spark, explained, spark_parse)
            case statements.ShowFlows():
                return _flows_table(self._host().views())
            case statements.ShowPartitionFunctions():
                return partition_sql.functions_table()
            case statements.DescribeFlow(name=name):
                return _flow_table(self._host().view(".".join(name)), self._host())
            case statements.FlowCommand():
                return self._flow_command(spark, statement)
            case statements.AlterFlow(name=name, settings=settings):
                values = {option_of(key, given.position).key: given.value for key, given in settings.items()}
                _refuse_what_is_not_here_yet(resolve_levels(spark, {Level.PROPERTY: settings}))
                return Deferred("ALTER FLOW", lambda: [self._host().alter(".".join(name), values)])
            case statements.SetOption():
                return _check_setting(spark, statement)
            case statements.JobCommand():
                return job_sql.answer(spark, statement, self._host().jobs)
        raise AssertionError(f"no answer for {statement!r}")

    # Flows.

    def _create(self, spark: SparkSession, statement: statements.CreateStreamingTable | statements.Insert, text: str) -> Answer:
        own = _own_options(spark, statement)
        plan = self._plan(spark, statement, own)
        if (wrong := _query_that_spark_refuses(spark, statement.query, plan)) is not None:
            return PassOn(wrong)
        request, options = self._request(spark, statement, plan, own, text)
        return Deferred("CREATE FLOW", lambda: [self._host().create(spark, request, options)])

    def _plan(
        self, spark: SparkSession, statement: statements.CreateStreamingTable | statements.Insert, own: Mapping[str, Given]
    ) -> FlowPlan:
        options = resolve_levels(spark, {Level.PROPERTY: own, **session_levels(spark)})
        return planner.plan_flow(statement.query, self._batches(), options[SORTED_SHUFFLES])

    def _request(
        self,
        spark: SparkSession,
        statement: statements.CreateStreamingTable | statements.Insert,
        plan: FlowPlan,
        own: Mapping[str, Given],
        text: str,
    ) -> tuple[FlowRequest, Options]:
        given = {Level.HINT: plan.hints, Level.WITH: _with_level(plan), Level.PROPERTY: own, **session_levels(spark)}
        options = resolve_levels(spark, given)
        _refuse_what_is_not_here_yet(options)
        recorded = {level.name: {key: value.value for key, value in values.items()} for level, values in given.items() if values}
        if isinstance(statement, statements.CreateStreamingTable):
            request = FlowRequest(
                name=".".join(statement.name),
                table=statement.name,
                plan=plan,
                statement=text,
                given=recorded,
                definition=statement.definition,
                properties={key: value.value for key, value in statement.definition.properties.items()},
                refresh=statement.refresh,
                if_not_exists=statement.if_not_exists,
            )
        else:
            request = FlowRequest(
                name=".".join(statement.flow or statement.target),
                table=statement.target,
                plan=plan,
                statement=text,
                given=recorded,
                columns=statement.columns,
                by_name=statement.by_name,
                if_not_exists=statement.if_not_exists,
            )
        return request, options

    def _flow_command(self, spark: SparkSession, command: statements.FlowCommand) -> Answer:
        name = ".".join(command.name)
        timeout = _DEFAULT_WAIT
        if command.timeout is not None:
            try:
                timeout = jvm.parse_duration(spark, command.timeout.value)
            except ValueError as error:
                raise OptionError(
                    f"TIMEOUT cannot be `{command.timeout.value}` ({error}). Give a duration, such as 5 minutes.",
                    command.timeout.position,
                ) from None
        actions: dict[str, Callable[[], str]] = {
            "START": lambda: self._host().start(name),
            "STOP": lambda: self._host().stop(name),
            "FLUSH": lambda: self._host().flush(name),
            "WAIT": lambda: self._host().wait(name, timeout),
            "DROP": lambda: self._host().drop(name, command.if_exists),
        }
        return Deferred(f"{command.verb} FLOW", lambda: [actions[command.verb]()])

    def _explain(self, spark: SparkSession, statement: Statement, spark_parse: SparkParse) -> Answer:
        if (job := _as_job(spark, statement)) is not None:
            return bounded_sql.explain(spark, job, self._batches(), spark_parse)
        if isinstance(statement, (statements.CreateStreamingTable, statements.Insert)):
            own = _own_options(spark, statement)
            plan = self._plan(spark, statement, own)
            if (wrong := _query_that_spark_refuses(spark, statement.query, plan)) is not None:
                return PassOn(wrong)
            request, options = self._request(spark, statement, plan, own, "")
            frames = queries.analyse(jvm.clone_session(spark), plan).streams
            durable = next(filter(None, (queries.durable_because(frame, plan.output_mode) for frame in frames)), "")
            lines = explain_flow(plan, options, ".".join(request.table), durable)
            return Table({"plan": "STRING"}, [{"plan": "\n".join(lines)}])
        answer = self._answer(spark, statement, "", spark_parse)
        name = answer.name if isinstance(answer, Deferred) else type(statement).__name__
        return Table({"plan": "STRING"}, [{"plan": f"sqlext command {name}"}])

    def _refuse_select(self, query: Query, position: Position | None) -> None:
        hints, _ = planner.read_options(query)
        planner.plan_flow(query, self._batches())
        named = ", ".join(hints) or "a backlog hint"
        raise UnsupportedError(
            f"A query with {named} needs a table to keep up to date: write INSERT INTO t SELECT .. or CREATE STREAMING TABLE t "
            "AS SELECT ..",
            position,
        )


def _as_job(spark: SparkSession, statement: Statement) -> statements.BoundedStatement | None:
    """A statement that ends: by END OF STREAM, or since its flow is to run in BATCH mode; None for all others."""
    if isinstance(statement, statements.BoundedStatement):
        return statement
    if not isinstance(statement, (statements.CreateStreamingTable, statements.Insert)):
        return None
    given = {Level.PROPERTY: _own_options(spark, statement), **session_levels(spark)}
    return bounded_sql.job_of(statement) if resolve_levels(spark, given)[RUNTIME_MODE] == "BATCH" else None


def _query_that_spark_refuses(spark: SparkSession, query: Query, plan: FlowPlan) -> str | None:
    """A form of the query that Spark cannot analyse, if it cannot: Spark then says so itself, with its own type and place.

    The query as written comes first, for the places in its messages; what only our rules make sense of fails there too.
    """
    own = jvm.clone_session(spark) if plan.above or plan.stages else spark  # it gets views
    try:
        queries.analyse(own, plan)
    except AnalysisException:
        stages = [stage.sql for stage in plan.stages if not stage.after]
        alone = stages if plan.stages else [each.sql for each in plan.queries]  # all else reads what only `own` knows
        texts = [bounded_sql.without_clauses(query.source), *alone]
        return next((text for text in texts if _is_refused(own, text)), None)
    return None


def _is_refused(spark: SparkSession, sql: str) -> bool:
    try:
        spark.sql(sql)
    except AnalysisException:
        return True
    return False


# Options.


def _with_level(plan: FlowPlan) -> dict[str, Given]:
    """The WITH options of all streams; those that are the whole flow's must not differ."""
    merged: dict[str, Given] = {}
    for source in plan.graph.streams:
        for key, given in source.options.items():
            there = merged.setdefault(key, given)
            is_per_source = key in (BACKLOG_LAG_THRESHOLD.key, CHECKPOINT_INTERVAL_DURING_BACKLOG.key)
            if there.value != given.value and not is_per_source:
                raise OptionError(
                    f"`{key}` is the whole flow's, and two streams give it differently: `{there.value}` and `{given.value}`.",
                    given.position,
                )
    return merged


def _own_options(spark: SparkSession, statement: statements.CreateStreamingTable | statements.Insert) -> dict[str, Given]:
    """Our options among the table's properties."""
    if isinstance(statement, statements.CreateStreamingTable):
        properties = statement.definition.properties.items()
        return {option_of(key, given.position).key: given for key, given in properties if is_option_key(key)}
    return {key: Given(value) for key, value in _table_properties(spark, statement.target).items() if is_option_key(key)}


def _table_properties(spark: SparkSession, name: tuple[str, ...]) -> Mapping[str, str]:
    full = target.qualified(spark, name)
    return target.describe(spark, full).properties if target.exists(spark, full) else {}


def _refuse_what_is_not_here_yet(options: Options) -> None:
    for option, value, instead in _NOT_YET:
        if options[option] == value:
            setting = options.setting(option)
            position = setting.given.position if setting else None
            raise UnsupportedError(f"`{option.key}` = `{options.raw(option)}` is not in this version: {instead}.", position)
    for option in (CHECKPOINT_INTERVAL_DURING_BACKLOG, BACKLOG_LAG_THRESHOLD):
        if (setting := options.setting(option)) is not None and setting.value is not None:
            raise UnsupportedError(
                f"`{option.key}` is not in this version: flows take every micro-batch at the same interval.",
                setting.given.position,
            )


def _check_setting(spark: SparkSession, setting: statements.SetOption) -> PassOn:
    key = setting.key
    if key.lower().startswith(CONF_PREFIX):
        key = key[len(CONF_PREFIX) :]
        if not is_option_key(key):
            known = [HOME_KEY, *(CONF_PREFIX + each for each in OPTIONS)]
            raise OptionError(f"There is no setting `{setting.key}`.{did_you_mean(setting.key, known)}", setting.position)
    option = option_of(key, setting.position)
    if setting.value is not None:
        parse_option(option, Given(setting.value, setting.position), lambda text: jvm.parse_duration(spark, text))
    value = "" if setting.value is None else f" = {setting.value}"
    return PassOn(f"SET {quote(setting.key)}{value}")  # Spark takes a key with dashes only in backticks


# Tables.

_FLOWS = {
    "name": "STRING",
    "target": "STRING",
    "status": "STRING",
    "rows_in": "BIGINT",
    "micro_batches": "BIGINT",
    "buffered": "BIGINT",
    "flushes": "BIGINT",
    "last_flush": "TIMESTAMP",
    "last_reason": "STRING",
    "error": "STRING",
    "note": "STRING",
    "id": "STRING",
}


def _flows_table(views: list[FlowView]) -> Table:
    return Table(_FLOWS, [_flow_row(view) for view in views])


def _flow_row(view: FlowView) -> dict[str, Any]:
    spec, progress = view.record.spec, view.progress
    bound = f"ends with its session: reads {', '.join(spec.session_bound)}" if spec.session_bound else ""
    row: dict[str, Any] = {
        "name": spec.name,
        "target": ".".join(spec.target),
        "status": view.status,
        "error": view.error or None,
        "note": bound or (None if view.is_here or view.status != "RUNNING" else "runs in another process"),
        "id": spec.id,
    }
    if progress is not None:
        row |= {
            "rows_in": progress.rows_in,
            "micro_batches": progress.micro_batches,
            "buffered": progress.buffered_rows,
            "flushes": progress.flushes,
            "last_flush": progress.last_flush,
            "last_reason": progress.last_reason or None,
        }
    return row


def _flow_table(view: FlowView, host: FlowHost) -> Table:
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
    rows |= {
        "epoch": view.record.epoch,
        "since": view.record.since,
        "output_mode": next((stream.output_mode.value for stream in spec.streams), None),
        "key": None if spec.above else ", ".join(key for stream in spec.streams for key in stream.key),
        "buffering": spec.not_idempotent_because or "by execution.flush.max-interval",
        "home": f"{host.home}/flows/{spec.id}",
        "statement": spec.statement,
    }
    rows |= {f"query {stream.relation}".strip(): stream.sql for stream in spec.streams}
    rows |= {"query above": spec.above} if spec.above else {}
    for status, stage in zip(host.stages(view), spec.stages, strict=True):
        rows |= {f"stage {stage.name}": status, f"query {stage.name}": stage.sql}
    rows |= {f"option {key}": f"{value} ({level})" for key, value, level in host.options_of(spec).as_rows()}
    shown = [{"property": key, "value": None if value is None else str(value)} for key, value in rows.items()]
    return Table({"property": "STRING", "value": "STRING"}, shown)
