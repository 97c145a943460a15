"""From a statement to its answer: plans queries, gathers options, and asks the host of flows to act."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sqlext.commands import bounded_statements, flow_tables, job_statements, partition_statements, streaming_tables
from sqlext.commands.answers import Answer, DeferredCommand, SparkStatement, Table
from sqlext.commands.bounded_statements import SparkParse
from sqlext.commands.option_levels import options_of_streams, resolve_levels, session_levels, with_level
from sqlext.errors import OptionError, Position, UnreadableQuery, UnsupportedError, did_you_mean
from sqlext.execution.delta import target
from sqlext.execution.flows.creation import FlowRequest
from sqlext.execution.flows.definition import listed
from sqlext.execution.flows.interval_trigger import other_pace
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.flows.preparation import checked
from sqlext.execution.flows.renewal import renewed
from sqlext.execution.flows.state_choice import backend_of, check_sessions, check_state, no_delta_state, state_of, state_shown
from sqlext.execution.host import Host
from sqlext.execution.state.mergeable import is_by_session
from sqlext.execution.streaming import queries
from sqlext.options import (
    CHECKPOINT_INTERVAL_DURING_BACKLOG,
    CONF_PREFIX,
    CONNECTORS_KEY,
    HOME_KEY,
    OPTIONS,
    RUNTIME_MODE,
    SORTED_SHUFFLES,
    STATE_BACKEND,
    Level,
    Options,
    ValueText,
    is_option_key,
    texts_by_level,
)
from sqlext.options import option as option_of
from sqlext.options import parse as parse_option
from sqlext.plan.explain import explain_flow, explain_memory
from sqlext.plan.flow_spec import StateBackend
from sqlext.plan.job_graph import FlowPlan
from sqlext.planner import planner
from sqlext.quoting import quote
from sqlext.spark import cancellation, jvm
from sqlext.sql import grammar, statements
from sqlext.sql.rewriter import Batch
from sqlext.sql.statements import Query, Statement
from sqlext.sql.tokens import normal_text

_DEFAULT_WAIT = timedelta(hours=1)
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

    def __init__(self, host: Callable[[], Host], batches: Callable[[], tuple[Batch, ...]]) -> None:
        self._host = host
        self._batches = batches

    @property
    def _flows(self) -> FlowManager:
        """Made on first use, with its host."""
        return self._host().flows

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
            found = partition_statements.answer(spark, statement, spark_parse)
        else:
            with jvm.names_as_in(spark):
                found = self._answer(spark, statement, text, spark_parse)
        return found.redacted(jvm.redaction(spark)) if isinstance(found, Table) else found

    def _answer(self, spark: SparkSession, statement: Statement, text: str, spark_parse: SparkParse) -> Answer:
        if (job := _as_job(spark, statement)) is not None:
            found = bounded_statements.answer(spark, job, text, self._batches(), spark_parse, lambda: self._host().jobs)
            if isinstance(statement, statements.CreateStreamingTable) and isinstance(found, DeferredCommand):
                return streaming_tables.unless_kept(spark, statement, found, self._host)
            return found
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
                return flow_tables.flows(self._flows.views())
            case statements.ShowPartitionFunctions():
                return partition_statements.functions_table()
            case statements.DescribeFlow(name=name):
                return flow_tables.flow(self._flows.view(target.qualified(spark, name)), self._host())
            case statements.FlowCommand():
                return self._flow_command(spark, statement)
            case statements.RefreshStreamingTable():
                return self._refresh(spark, statement)
            case statements.AlterFlow(name=name, settings=settings):
                values = {option_of(key, given.position).key: given.value for key, given in settings.items()}
                resolve_levels(spark, {Level.PROPERTY: settings})  # refuses what is no value
                full_name = target.qualified(spark, name)
                return _change(spark, "ALTER FLOW", lambda _: self._flows.alter(full_name, values))
            case statements.DropStreamingTable() | statements.AlterStreamingTable():
                return streaming_tables.answer(spark, statement, self._host)
            case statements.SetOption():
                return _check_setting(spark, statement)
            case statements.JobCommand():
                return job_statements.answer(spark, statement, self._host().jobs)
        raise AssertionError(f"no answer for {statement!r}")

    # Flows.

    def _create(self, spark: SparkSession, statement: statements.CreateStreamingTable | statements.Insert, text: str) -> Answer:
        own = _own_options(spark, statement)
        plan = self._plan(spark, statement, own)
        if (wrong := _query_that_spark_refuses(spark, statement.query, plan)) is not None:
            return SparkStatement(wrong)
        request, options, _ = self._request(spark, statement, plan, own, text)
        return _change(spark, "CREATE FLOW", lambda canceled: self._flows.create(spark, request, options, canceled))

    def _plan(
        self, spark: SparkSession, statement: statements.CreateStreamingTable | statements.Insert, own: Mapping[str, ValueText]
    ) -> FlowPlan:
        options = resolve_levels(spark, {Level.PROPERTY: own, **session_levels(spark)})
        return planner.plan_flow(statement.query, self._batches(), options[SORTED_SHUFFLES])

    def _request(
        self,
        spark: SparkSession,
        statement: statements.CreateStreamingTable | statements.Insert,
        plan: FlowPlan,
        own: Mapping[str, ValueText],
        text: str,
    ) -> tuple[FlowRequest, Options, dict[str, Options]]:
        given = {Level.HINT: plan.hints, Level.WITH: with_level(plan), Level.PROPERTY: own, **session_levels(spark)}
        options = resolve_levels(spark, given)
        of_streams = options_of_streams(spark, plan, given)
        recorded = texts_by_level(given)
        folds_case = not jvm.are_names_case_sensitive(spark)
        query = normal_text(statement.query.source, folds_case)
        if isinstance(statement, statements.CreateStreamingTable):
            request = FlowRequest(
                name=statement.name,
                table=statement.name,
                plan=plan,
                text=text,
                given=recorded,
                definition=statement.definition,
                properties={key: value.value for key, value in statement.definition.properties.items()},
                refresh=statement.refresh,
                replace=statement.replace,
                if_not_exists=statement.if_not_exists,
                query=query,
                clauses=tuple(normal_text(clause, folds_case) for clause in statement.definition.clauses),
                listed=listed(statement.definition.columns, folds_case),
            )
        else:
            request = FlowRequest(
                name=statement.flow or statement.target,
                table=statement.target,
                plan=plan,
                text=text,
                given=recorded,
                columns=statement.columns,
                by_name=statement.by_name,
                if_not_exists=statement.if_not_exists,
                comment=statement.comment,
                query=query,
            )
        return request, options, of_streams

    def _flow_command(self, spark: SparkSession, command: statements.FlowCommand) -> Answer:
        name = target.qualified(spark, command.name)
        timeout = _DEFAULT_WAIT
        if command.timeout is not None:
            try:
                timeout = jvm.parse_duration(spark, command.timeout.value)
            except ValueError as error:
                raise OptionError(
                    f"TIMEOUT cannot be `{command.timeout.value}` ({error}). Give a duration, such as 5 minutes.",
                    command.timeout.position,
                ) from None
        waits: dict[str, Callable[[], str]] = {
            "FLUSH": lambda: self._flows.flush(name),
            "WAIT": lambda: self._flows.wait(name, timeout),
        }
        if (wait := waits.get(command.verb)) is not None:
            return DeferredCommand(f"{command.verb} FLOW", lambda: [wait()])
        changes: dict[str, Callable[[threading.Event], str]] = {
            "START": lambda _: self._flows.start(name),
            "STOP": lambda canceled: self._flows.stop(name, canceled),
            "DROP": lambda _: self._flows.drop(name, command.if_exists),
        }
        return _change(spark, f"{command.verb} FLOW", changes[command.verb])

    def _refresh(self, spark: SparkSession, command: statements.RefreshStreamingTable) -> Answer:
        """Bring a streaming table up to date; FULL: make it anew by its own statement, in the session that its flow has."""
        name = target.qualified(spark, command.name)

        def refresh(canceled: threading.Event) -> str:
            return self._make_anew(name, canceled) if command.is_full else self._flows.refresh(name)

        def run() -> list[str]:
            said = cancellation.to_its_end(spark, "REFRESH STREAMING TABLE", refresh)
            if command.waits:
                said = f"{said}; {self._flows.wait(self._flows.record_of_table(name).spec.qualified_name, _DEFAULT_WAIT)}"
            return [said]

        return DeferredCommand("REFRESH STREAMING TABLE", run)

    def _make_anew(self, name: tuple[str, ...], canceled: threading.Event) -> str:
        spec = self._flows.record_of_table(name).spec
        session = self._flows.session_of(spec)
        statement = grammar.parse(spec.text)
        if not isinstance(statement, statements.CreateStreamingTable):
            raise AssertionError("a streaming table was made by its statement")
        own = spec.levels().get(Level.PROPERTY, {})
        with jvm.names_as_in(session):
            plan = self._plan(session, statement, own)
            request, _, _ = self._request(session, statement, plan, own, spec.text)
        request = renewed(session, spec, request)
        return self._flows.create(session, request, self._flows.options_of(spec), canceled)

    def _explain(self, spark: SparkSession, statement: Statement, spark_parse: SparkParse) -> Answer:
        if (job := _as_job(spark, statement)) is not None:
            return bounded_statements.explain(spark, job, self._batches(), spark_parse)
        if isinstance(statement, (statements.CreateStreamingTable, statements.Insert)):
            given = _own_options(spark, statement)
            plan = self._plan(spark, statement, given)
            if (wrong := _query_that_spark_refuses(spark, statement.query, plan)) is not None:
                return SparkStatement(wrong)
            request, options, of_streams = self._request(spark, statement, plan, given, "")
            makes_table = isinstance(statement, statements.CreateStreamingTable)
            own = jvm.clone_session(spark)
            if makes_table:  # what CREATE refuses, EXPLAIN does too; whether there is a table of that name, it does not look at
                rocksdb_because = no_delta_state(options, _may_be_in_backlog(plan, of_streams))
                frames = checked(own, request, self._flows.records(), options, rocksdb_because).analysis.streams
            else:
                frames = queries.analyse(own, plan).streams
            memory, states = _memory_and_states(plan, frames, options, of_streams, makes_table)
            lines = explain_flow(plan, options, ".".join(request.table), memory, of_streams, states)
            return Table({"plan": "STRING"}, [{"plan": tuple(lines)}])
        answer = self._answer(spark, statement, "", spark_parse)
        name = answer.name if isinstance(answer, DeferredCommand) else type(statement).__name__
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


def _memory_and_states(
    plan: FlowPlan, frames: Sequence[DataFrame], options: Options, of_streams: Mapping[str, Options], makes_table: bool
) -> tuple[str | None, list[str]]:
    """What EXPLAIN says of the buffer in memory, and of the state of each aggregate."""
    may_be_in_backlog = _may_be_in_backlog(plan, of_streams)
    rocksdb_because = no_delta_state(options, may_be_in_backlog)
    for frame in filter(is_by_session, frames):
        check_sessions(frame, options)
    if options[STATE_BACKEND] == StateBackend.DELTA:
        check_state(frames, plan.output_mode, rocksdb_because)
    found = [state_of(frame, plan.output_mode, rocksdb_because) for frame in frames]
    states = [
        f"{query.name or 'aggregate'}: {where}"
        for query, frame, state in zip(plan.queries, frames, found, strict=True)
        if (where := state_shown(frame, *state, not query.writes_target or makes_table))
    ]
    backends = [backend_of(aggregate) for aggregate, _ in found]
    durable = next(filter(None, (queries.durable_because(frame, plan.output_mode) for frame in frames)), None)
    pace = other_pace(backends, options, may_be_in_backlog)
    return explain_memory(plan, options, pace, durable, StateBackend.DELTA in backends), states


def _may_be_in_backlog(plan: FlowPlan, of_streams: Mapping[str, Options]) -> bool:
    return bool(plan.hybrids) or any(each[CHECKPOINT_INTERVAL_DURING_BACKLOG] is not None for each in of_streams.values())


def _change(spark: SparkSession, name: str, change: Callable[[threading.Event], str]) -> DeferredCommand:
    """A command that is not left half done when its client takes it back."""
    return DeferredCommand(name, lambda: [cancellation.to_its_end(spark, name, change)])


def _as_job(spark: SparkSession, statement: Statement) -> statements.BoundedStatement | None:
    """A statement that ends: by END OF STREAM, or since its flow is to run in BATCH mode; None for all others."""
    if isinstance(statement, statements.BoundedStatement):
        return statement
    if not isinstance(statement, (statements.CreateStreamingTable, statements.Insert)):
        return None
    given = {Level.PROPERTY: _own_options(spark, statement), **session_levels(spark)}
    return bounded_statements.job_of(statement) if resolve_levels(spark, given)[RUNTIME_MODE] == "BATCH" else None


def _query_that_spark_refuses(spark: SparkSession, query: Query, plan: FlowPlan) -> str | None:
    """A form of the query that Spark cannot analyse, if it cannot: Spark then says so itself, with its own type and place.

    The query as written comes first, for the places in its messages; what only our rules make sense of fails there too.
    """
    own = jvm.clone_session(spark) if plan.above or plan.prerequisites else spark  # it gets views
    try:
        queries.analyse(own, plan)
    except AnalysisException:
        prerequisites = [each.sql for each in plan.prerequisites if not each.after]
        alone = (
            prerequisites if plan.prerequisites else [each.sql for each in plan.queries]
        )  # all else reads what only `own` knows
        texts = [bounded_statements.without_clauses(query.source), *alone]
        return next((text for text in texts if _is_refused(own, text)), None)
    stands_alone = plan.is_sparks_own and not plan.prerequisites and not plan.hybrids  # those are views that only `own` knows
    return plan.written if stands_alone and queries.is_wrong_as_written(own, plan) else None


def _is_refused(spark: SparkSession, text: str) -> bool:
    try:
        spark.sql(text)
    except AnalysisException:
        return True
    return False


# Options.


def _own_options(spark: SparkSession, statement: statements.CreateStreamingTable | statements.Insert) -> dict[str, ValueText]:
    """Our options among the table's properties."""
    if isinstance(statement, statements.CreateStreamingTable):
        properties = statement.definition.properties.items()
        return {option_of(key, given.position).key: given for key, given in properties if is_option_key(key)}
    return {key: ValueText(value) for key, value in _table_properties(spark, statement.target).items() if is_option_key(key)}


def _table_properties(spark: SparkSession, name: tuple[str, ...]) -> Mapping[str, str]:
    full = target.qualified(spark, name)
    return target.describe(spark, full).properties if target.exists(spark, full) else {}


def _check_setting(spark: SparkSession, setting: statements.SetOption) -> SparkStatement:
    key = setting.key
    if key.lower() == CONNECTORS_KEY:
        raise OptionError(f"`{key}` says what is on Spark's class path, and so is set before Spark starts.", setting.position)
    if key.lower().startswith(CONF_PREFIX):
        key = key[len(CONF_PREFIX) :]
        if not is_option_key(key):
            known = [HOME_KEY, *(CONF_PREFIX + each for each in OPTIONS)]
            raise OptionError(f"There is no setting `{setting.key}`.{did_you_mean(setting.key, known)}", setting.position)
    option = option_of(key, setting.position)
    if setting.value is not None:
        parse_option(option, ValueText(setting.value, setting.position), lambda text: jvm.parse_duration(spark, text))
    value = "" if setting.value is None else f" = {setting.value}"
    return SparkStatement(f"SET {quote(setting.key)}{value}")  # Spark takes a key with dashes only in backticks
