"""A flow's plan with all that Spark's analysis and the options decide about it: found out once, and passed down.

A statement analyses its queries here, before anything is touched. EXPLAIN shows what was found, CREATE makes tables of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import SchemaError, UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.flows import state_ttl
from sqlext.execution.flows.state_choice import state_of
from sqlext.execution.state.aggregate_shape import is_by_session
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.execution.streaming import queries
from sqlext.execution.streaming.queries import QueryAnalysis
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import StateBackend, StateTtl
from sqlext.plan.job_graph import INTERNAL_PREFIX, FlowPlan, OutputMode
from sqlext.plan.lineage import Input
from sqlext.quoting import fold
from sqlext.spark import jvm
from sqlext.spark.grouping_columns import grouping_columns
from sqlext.spark.inputs import inputs_of
from sqlext.spark.plans import analysed as analysed_plan
from sqlext.spark.plans import nodes_of, output_of

_WAY_OUT = "Over tables, CREATE MATERIALIZED VIEW keeps such a query, without STREAM."


@dataclass(frozen=True)
class AnalysedQuery:
    """A streaming query of a flow.

    Attributes:
        name: the maintained aggregate's that it keeps; empty: it writes the target.
        sql: the query for Spark.
        frame: the query, analysed; not run.
        key: the output columns that identify a row, by Spark's analysis; none in APPEND mode.
        aggregate: its aggregate, if a Delta table is to hold its state.
        rocksdb_because: why Spark's state store holds it instead; None when it does not.
        durable_because: why its buffer cannot be in memory only; None when it can.
        ttl: when the state of its groups ends; None: never.
    """

    name: str
    sql: str
    frame: DataFrame
    key: tuple[str, ...]
    aggregate: MergeableAggregate | None
    rocksdb_because: str | None
    durable_because: str | None
    ttl: StateTtl | None = None

    @property
    def writes_target(self) -> bool:
        """Whether its table is the flow's target; else it is a maintained aggregate's."""
        return not self.name

    @property
    def state_backend(self) -> StateBackend:
        """Where the state of its aggregate lives."""
        return StateBackend.ROCKSDB if self.aggregate is None else StateBackend.DELTA


@dataclass(frozen=True)
class AnalysedFlow:
    """A flow that can run.

    Attributes:
        session: the flow's own.
        options: in force for it.
        queries: its streaming queries, in the plan's order.
        output: the query that makes the target's rows; where they go into a table that is there, each column has a name of its
            own.
        inputs: the relations that its queries read.
    """

    session: SparkSession
    plan: FlowPlan
    options: FlowOptions
    queries: tuple[AnalysedQuery, ...]
    output: DataFrame
    inputs: tuple[Input, ...]


def analyse_flow(
    session: SparkSession, plan: FlowPlan, options: FlowOptions, found: QueryAnalysis, makes_table: bool
) -> AnalysedFlow:
    """See whether a flow can run, and how.

    Args:
        session: the flow's own, in which `found` was analysed.
        makes_table: whether its target is made of the query; else the columns go into a table that is there.

    Raises:
        UnsupportedError: Spark or sqlext cannot keep the query up to date.
        SchemaError: it is not clear which of the columns is the key.
        OptionError: the state cannot be where it is asked for.
    """
    streams = found.streams
    if not makes_table:
        _refuse_doubled_keys(plan, found.output)
        streams = tuple(queries.with_unique_names(frame) for frame in streams)
    ttl = state_ttl.ttl_of(plan, options)
    each = zip(plan.queries, streams, strict=True)
    analysed = tuple(
        AnalysedQuery(query.name, query.sql, frame, (), None, None, None)
        if plan.runs_once
        else _analysed(query.name, query.sql, frame, plan, options, ttl)
        for query, frame in each
    )
    queries.check_types(found)
    _refuse_qualify(plan, streams)
    output = analysed[0].frame if found.above is None else found.above
    return AnalysedFlow(session, plan, options, analysed, output, _inputs(session, plan, found))


def _refuse_qualify(plan: FlowPlan, streams: Sequence[DataFrame]) -> None:
    """Refuse an alias in QUALIFY that a table has as a column: Spark filters by that one (`ResolveQualify`)."""
    nodes = [node for frame in streams if plan.qualified_by for node in nodes_of(analysed_plan(frame))]
    columns = {fold(str(each.name())) for node in nodes if node.children().isEmpty() for each in output_of(node)}
    taken = next((name for name in plan.qualified_by if name in columns), None)
    if taken is not None:
        raise UnsupportedError(
            f"QUALIFY names `{taken}`, which is an alias of the select list and a column of a table, and Spark takes it for the "
            "column. Give the alias another name, or write the window function in QUALIFY."
        )


def _inputs(session: SparkSession, plan: FlowPlan, found: QueryAnalysis) -> tuple[Input, ...]:
    """Return all relations that a plan reads; of a hybrid source, those that are read later are known by name only."""
    frames = [*found.prerequisites, *found.streams, *([] if found.above is None else [found.above])]
    later = [each.name for hybrid in plan.hybrids for each in hybrid.relations[1:] if each.name]
    named = [Input(target.qualified(session, name), is_stream=True) for name in later]
    return tuple(dict.fromkeys((*inputs_of(session, *map(analysed_plan, frames)), *named)))


def _analysed(name: str, sql: str, frame: DataFrame, plan: FlowPlan, options: FlowOptions, ttl: StateTtl | None) -> AnalysedQuery:
    mode = plan.output_mode
    if not frame.isStreaming:
        raise UnsupportedError("The query reads no stream. Write FROM STREAM t to read t as one.")
    if not is_by_session(frame):  # those Spark cannot run, and sqlext can where partial results can be put together
        jvm.check_streaming(frame, mode, _WAY_OUT)
        jvm.check_subqueries(frame)
    key = grouping_columns(frame) if mode is OutputMode.UPDATE else ()
    _refuse_key_by_which_no_row_is_found(frame, key)
    aggregate, rocksdb_because = state_of(frame, mode, options, ttl)
    state_ttl.check(plan, options, frame, aggregate, rocksdb_because)
    return AnalysedQuery(name, sql, frame, key, aggregate, rocksdb_because, queries.durable_because(frame, mode), ttl)


def _refuse_doubled_keys(plan: FlowPlan, output: DataFrame) -> None:
    """Refuse a key whose name several columns have: columns go into an existing table by position, but a key is found by name."""
    names = [fold(name) for name in output.columns]
    doubled = {name for name in names if names.count(name) > 1}
    found = doubled if plan.key.all_but else doubled & {fold(name) for name in plan.key.columns}
    if found and plan.output_mode is OutputMode.UPDATE:
        raise SchemaError(
            f"Several columns of the query are called `{min(found)}`, so it is not clear which is the key. Give each a name of "
            "its own: .. AS name."
        )


def _refuse_key_by_which_no_row_is_found(frame: DataFrame, key: tuple[str, ...]) -> None:
    """Refuse maps and collations in a key: a flush finds the row of a group by its key.

    Spark groups by maps but cannot compare them; it groups by collations, but neither its state store nor Delta has them.
    """
    for name in key:
        kind = frame.schema[name].dataType
        shown = "A key of the query" if name.startswith(INTERNAL_PREFIX) else f"The key `{name}` of the query"
        text = ".." if name.startswith(INTERNAL_PREFIX) else name
        if "MAP<" in target.ddl_of(kind):
            raise UnsupportedError(
                f"{shown} is {target.ddl_of(kind)}, and Spark cannot compare maps, so no row of the table could be found by it. "
                f"Group by array_sort(map_entries({text})) instead."
            )
        if (collation := jvm.collation_in(kind)) is not None:
            raise UnsupportedError(
                f"{shown} has the collation {collation}, which neither Spark's state store nor a Delta table can have in a key. "
                f"Group by collate({text}, 'UTF8_BINARY'), or by lower(..) of that."
            )
