"""From a statement to its answer: plans queries, gathers options, and asks the host of flows to act."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import NoReturn

from pyspark.sql import SparkSession

from sqlext.commands import (
    bounded_statements,
    chain_statements,
    change_statements,
    constraint_statements,
    flow_statements,
    flow_tables,
    job_statements,
    kept_columns,
    partition_statements,
    savepoint_statements,
    streaming_tables,
    view_statements,
)
from sqlext.commands.answers import Answer, DeferredCommand, SparkStatement, Table, whole_command
from sqlext.commands.bounded_statements import SparkParse
from sqlext.commands.option_levels import resolve_levels, session_levels
from sqlext.errors import OptionError, UnreadableQuery, UnsupportedError, did_you_mean
from sqlext.execution.delta import target
from sqlext.execution.flows.manager import FlowManager
from sqlext.execution.host import Host
from sqlext.execution.views.manager import ViewManager
from sqlext.options import (
    CONF_PREFIX,
    CONNECTORS_KEY,
    HOME_KEY,
    LOG_FORMAT_KEY,
    OF_JOBS,
    OPTIONS,
    STATE_TTL,
    Level,
    LevelTexts,
    ValueText,
    is_option_key,
    option_named,
)
from sqlext.options import option as option_of
from sqlext.options import parse as parse_option
from sqlext.planner import planner
from sqlext.planner.statement_plans import (
    FlowStatement,
    PlannedFlow,
    PlannedJob,
    options_among,
    plan_statement,
    properties_in,
)
from sqlext.quoting import quote
from sqlext.spark import cancellation, jvm
from sqlext.sql import grammar, statements
from sqlext.sql.rewriter import Batch
from sqlext.sql.savepoint_statements import DropSavepoint, MakeSavepoint, RestoreFlow, ShowSavepoints
from sqlext.sql.statements import BoundedStatement, Statement

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

    @property
    def _views(self) -> ViewManager:
        """Made on first use, with its host."""
        return self._host().views

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
        match statement:
            case statements.CreateStreamingTable() | statements.Insert() | statements.BoundedStatement():
                return self._run(spark, statement, text, spark_parse)
            case statements.AutoCdc():
                return self._of_changes(spark, statement, text, lambda made: self._run(spark, made, text, spark_parse))
            case statements.DeclareStreamingTable():
                return streaming_tables.declare(spark, statement, text, self._host)
            case statements.CreateTableAs() | statements.Select():
                self._refuse(statement)
            case statements.Explain(statement=explained):
                return self._explain(spark, explained, text, spark_parse)
            case statements.ShowFlows():
                return chain_statements.flows(self._host())
            case statements.ShowPartitionFunctions():
                return partition_statements.functions_table()
            case statements.DescribeFlow(name=name) if self._views.has(target.qualified(spark, name)):
                return view_statements.described(target.qualified(spark, name), self._views)
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
                return whole_command(spark, "ALTER FLOW", lambda _: self._flows.alter(full_name, values))
            case statements.AlterFlowQuery():
                return flow_statements.alter(spark, statement, self._flows, self._batches(), self._views.lineage)
            case statements.AlterStreamingTable():
                return streaming_tables.answer(spark, statement, self._host)
            case statements.AlterConstraint():
                return constraint_statements.alter(spark, statement, self._host)
            case statements.ReplayQuarantine():
                return constraint_statements.answer_replay(spark, statement, self._host)
            case MakeSavepoint() | RestoreFlow() | DropSavepoint() | ShowSavepoints():
                return savepoint_statements.answer(spark, statement, self._flows, self._views)
            case statements.DropStreamingTable() | statements.DropMaterializedView():
                kind = "STREAMING TABLE" if isinstance(statement, statements.DropStreamingTable) else "MATERIALIZED VIEW"
                return whole_command(spark, f"DROP {kind}", lambda _: chain_statements.drop(spark, self._host(), statement))
            case statements.ShowLineage(name=name):
                return chain_statements.show(self._host(), target.qualified(spark, name) if name else ())
            case statements.CreateMaterializedView():
                return view_statements.create(spark, statement, text, spark_parse, self._views)
            case statements.RefreshMaterializedView() | statements.AlterMaterializedView() | statements.ShowMaterializedViews():
                return view_statements.answer(spark, statement, self._views)
            case statements.SetOption():
                return _check_setting(spark, statement)
            case statements.JobCommand():
                return job_statements.answer(spark, statement, self._host().jobs)
        raise AssertionError(f"no answer for {statement!r}")

    def _run(
        self, spark: SparkSession, statement: FlowStatement | BoundedStatement, text: str, spark_parse: SparkParse
    ) -> Answer:
        planned = self._planned(spark, statement)
        if isinstance(planned, PlannedFlow):
            found = flow_statements.create(spark, planned, text, self._flows, self._views.lineage)
        else:
            found = bounded_statements.answer(spark, planned, text, spark_parse, lambda: self._host().jobs)
            if isinstance(statement, statements.CreateStreamingTable) and isinstance(found, DeferredCommand):
                found = streaming_tables.unless_kept(spark, statement, found, self._host)
        written = statement.name if isinstance(statement, statements.CreateStreamingTable) else statement.target
        flow = () if isinstance(statement, statements.BoundedStatement) else statement.flow
        return view_statements.unless_kept(spark, written, flow, found, lambda: self._views)

    def _of_changes(
        self, spark: SparkSession, statement: statements.AutoCdc, text: str, answer: Callable[[FlowStatement], Answer]
    ) -> Answer:
        """Answer AUTO CDC as the flow's statement that it stands for."""

        def kept() -> Mapping[str, str]:
            return kept_columns.of_table(spark, statement.into, self._flows.records())

        made = change_statements.flow_statement(spark, statement, text, self._batches(), kept)
        if isinstance(made, SparkStatement):
            return made
        with change_statements.placed(statement):
            return answer(made)

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
        if command.verb == "STOP":
            return whole_command(
                spark, "STOP FLOW", lambda canceled: chain_statements.stop(self._host(), name, command.cascade, canceled)
            )
        if command.verb == "WAIT":
            return self._wait(spark, name, timeout)
        if self._views.has(name):
            return view_statements.flow_command(spark, command, name, self._views)
        if command.verb == "FLUSH":
            return DeferredCommand("FLUSH FLOW", lambda: [self._flows.flush(name)])
        changes: dict[str, Callable[[threading.Event], str]] = {
            "START": lambda _: self._flows.start(name),
            "DROP": lambda _: self._flows.drop(name, command.if_exists),
        }
        return whole_command(spark, f"{command.verb} FLOW", changes[command.verb])

    def _wait(self, spark: SparkSession, name: tuple[str, ...], timeout: timedelta) -> Answer:
        """Wait for a flow, or refresh a view; only what refreshes views must be brought to its end when the client cancels it."""

        def wait(canceled: threading.Event) -> str:
            return chain_statements.wait(self._host(), name, timeout, canceled)

        if self._views.has(name):
            return whole_command(spark, "WAIT FLOW", wait)
        return DeferredCommand("WAIT FLOW", lambda: [wait(threading.Event())])

    def _refresh(self, spark: SparkSession, command: statements.RefreshStreamingTable) -> Answer:
        """Bring a streaming table up to date; FULL: recreate it by its own statement, in a session like its flow's."""
        name = target.qualified(spark, command.name)

        def refresh(canceled: threading.Event) -> str:
            if command.is_full:
                return flow_statements.make_anew(self._flows, name, self._batches(), canceled)
            return self._flows.refresh(name)

        def run() -> list[str]:
            said = cancellation.to_its_end(spark, "REFRESH STREAMING TABLE", refresh)
            if command.waits:
                said = f"{said}; {self._flows.wait(self._flows.record_of_table(name).spec.qualified_name, _DEFAULT_WAIT)}"
            return [said]

        return DeferredCommand("REFRESH STREAMING TABLE", run)

    def _explain(self, spark: SparkSession, statement: Statement, text: str, spark_parse: SparkParse) -> Answer:
        match statement:
            case statements.AutoCdc():
                return self._of_changes(spark, statement, text, lambda made: self._explain(spark, made, text, spark_parse))
            case statements.CreateTableAs() | statements.Select():
                self._refuse(statement)
            case statements.CreateStreamingTable() | statements.Insert() | statements.BoundedStatement():
                pass
            case statements.AlterFlowQuery():
                return flow_statements.explain_alter(spark, statement, self._flows, self._batches(), self._views.lineage)
            case statements.CreateMaterializedView():
                return view_statements.explain(spark, statement, spark_parse, self._views)
            case _:
                raise UnsupportedError("EXPLAIN shows how a query runs, and this statement has none. Send it without EXPLAIN.")
        planned = self._planned(spark, statement)
        if isinstance(planned, PlannedJob):
            return bounded_statements.explain(spark, planned, spark_parse)
        return flow_statements.explain(spark, planned, self._flows, self._views.lineage)

    def _planned(self, spark: SparkSession, statement: FlowStatement | BoundedStatement) -> PlannedFlow | PlannedJob:
        given: LevelTexts = {Level.PROPERTY: _own_options(spark, statement), **session_levels(spark)}
        return plan_statement(statement, given, self._batches(), partial(jvm.parse_duration, spark))

    def _refuse(self, statement: statements.CreateTableAs | statements.Select) -> NoReturn:
        """Refuse a query over streams that no statement of ours stands around."""
        if isinstance(statement, statements.CreateTableAs):
            raise UnsupportedError(_TABLE_AS, statement.position)
        hints, of_streams = planner.read_options(statement.query)
        planner.plan_flow(statement.query, self._batches())
        has_ttl = any(STATE_TTL.key in each[Level.HINT] for each in of_streams.values())
        named = ", ".join([*hints, *([STATE_TTL.key] if has_ttl else [])]) or "a backlog hint"
        raise UnsupportedError(
            f"A query with {named} needs a table to keep up to date: write INSERT INTO t SELECT .. or CREATE STREAMING TABLE t "
            "AS SELECT ..",
            statement.position,
        )


# Options.


def _own_options(spark: SparkSession, statement: FlowStatement | BoundedStatement) -> dict[str, ValueText]:
    """Return our options among the table's properties; INSERT INTO finds them on the table that is there.

    A job that inserts takes only those for jobs: others on the table are for its flow.
    """
    if isinstance(statement, statements.BoundedStatement) and statement.head.upper().startswith("INSERT"):
        there = target.delta_properties_of(spark, statement.target)
        named = {key: found for key in there if (found := option_named(key)) is not None}
        return {key: ValueText(there[key]) for key, found in named.items() if found.key in OF_JOBS}
    if isinstance(statement, statements.Insert):
        there = target.properties_of(spark, target.qualified(spark, statement.target))
        return {key: ValueText(value) for key, value in there.items() if is_option_key(key)}
    return options_among(properties_in(statement))


def _check_setting(spark: SparkSession, setting: statements.SetOption) -> SparkStatement:
    key = setting.key
    if key.lower() == CONNECTORS_KEY:
        raise OptionError(f"`{key}` says what is on Spark's class path, and so is set before Spark starts.", setting.position)
    if key.lower() == LOG_FORMAT_KEY:
        raise OptionError(f"`{key}` is for a log that begins before Spark starts: give it by --conf.", setting.position)
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
