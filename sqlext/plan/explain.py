"""EXPLAIN of our statements: the graph, its attributes and stages, the rules that fired, and why rows are buffered or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlext.options import (
    BACKLOG_LAG_THRESHOLD,
    CACHE_MAX_ENTRIES,
    CHECKPOINT_INTERVAL_DURING_BACKLOG,
    FLUSH_MAX_INTERVAL,
    FLUSH_MEMORY_BUFFER_ONLY,
    Option,
    Options,
)
from sqlext.plan.constraints import Constraint
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.job_graph import BoundedPlan, Firing, FlowPlan, HybridSource, JobGraph, Key, Operator, OutputMode
from sqlext.quoting import fold
from sqlext.redaction import SqlText


@dataclass(frozen=True)
class Section:
    """A part of EXPLAIN: its heading, and its lines, those of SQL as `SqlText`."""

    title: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its lines as one text."""
        return "\n".join(self.lines)


def lines_of(sections: Sequence[Section]) -> list[str]:
    """Return the lines that EXPLAIN prints: the sections with their headings, a blank line between two."""
    lines = list[str]()
    for section in sections:
        lines += [*([""] if lines else []), f"== {section.title} ==", *section.lines]
    return lines


def explain_flow(
    plan: FlowPlan,
    options: FlowOptions,
    target: str,
    memory: str | None = None,
    states: Sequence[str] = (),
    constraints: Sequence[Constraint] = (),
) -> list[Section]:
    """Return the sections that EXPLAIN shows for a flow.

    Args:
        plan: the flow's plan.
        options: the options in force for the flow.
        target: the target's name.
        memory: the line that `explain_memory` returns.
        states: where the state of each aggregate lives, a line each.
        constraints: on the rows of the target.
    """
    found = [
        Section("Job graph", (f"Sink {target} [{_sink(plan)}]", *_tree(plan.graph, plan.graph.last, "", True))),
        Section("Stages", tuple(_stages(plan.graph))),
        Section("Buffering", tuple(filter(None, (_buffering(plan, options.flow), memory)))),
        *(Section("Hybrid source", tuple(_hybrid(hybrid))) for hybrid in plan.hybrids),
        Section("Backlog", tuple(_backlog(plan, options))),
        Section("State", tuple(states)),
        Section("Constraints", tuple(SqlText(f"{each.name}: {each.wanted}") for each in constraints)),
        Section("Options", tuple(_options(options.flow))),
        Section("Rules fired", tuple(_rules(plan.firings))),
        Section("Query for Spark", tuple(_queries(plan))),
    ]
    return [section for section in found if section.lines]


def explain_memory(
    plan: FlowPlan, options: Options, other_pace: str | None, durable_because: str | None, has_partial_results: bool
) -> str | None:
    """Return the effect of `execution.flush.memory-buffer-only`; None when it is not set, or there is no buffer.

    Args:
        plan: the flow's plan.
        options: the options in force for the flow.
        other_pace: why micro-batches do not follow the flush interval alone; None: they do.
        durable_because: why lost rows could not be recovered from Spark's state; None: they could.
        has_partial_results: whether an aggregate's state is in a Delta table.
    """
    is_buffered = not plan.not_idempotent_because and options[FLUSH_MAX_INTERVAL] is not None
    if not (is_buffered and options[FLUSH_MEMORY_BUFFER_ONLY]):
        return None
    if not other_pace:
        return "Nothing is buffered: new rows wait in their source, and each flush reads all of them as one micro-batch."
    if has_partial_results:
        return f"Partial results are still buffered in files: {other_pace}."
    if durable_because:
        return f"The buffer is still durable: {durable_because}."
    return f"The buffer is in memory only, and full at {options[CACHE_MAX_ENTRIES]} groups."


def explain_bounded(plan: BoundedPlan, target: str) -> list[Section]:
    """Return the sections that EXPLAIN shows for a query with GLOBAL WINDOW END OF STREAM, before Spark's own plan.

    Args:
        plan: the query's plan.
        target: the table that the rows are written to; empty for a query without one.
    """
    sink = (f"Sink {target}",) if target else ()
    return [
        Section("Job graph", (*sink, *_tree(plan.graph, plan.graph.last, "", True))),
        Section("Stages", tuple(_stages(plan.graph))),
        Section("Rules fired", tuple(_rules(plan.firings))),
        Section("Query for Spark", (SqlText(plan.sql),)),
    ]


def _sink(plan: FlowPlan) -> str:
    if plan.above:
        by = f", by {', '.join(plan.above_by)}" if plan.above_by else ""
        return f"replaced at each flush{by}"
    return "append" if plan.output_mode is OutputMode.APPEND else _upsert(plan.key)


def _upsert(key: Key) -> str:
    if key.all_but:
        return f"upsert by all columns but {', '.join(key.columns)}" if key.columns else "upsert by all columns"
    return f"upsert by {', '.join(key.columns)}" if key.columns else "one row"


def _queries(plan: FlowPlan) -> Iterator[str]:
    if not plan.above:
        yield SqlText(plan.sql)
        return
    for aggregate in plan.aggregates:
        yield f"{aggregate.name} [{_upsert(aggregate.key)}]:"
        yield SqlText(aggregate.sql)
    by = f" of the keys ({', '.join(plan.above_by)}) that a flush changes" if plan.above_by else ""
    yield f"above, replacing the target's rows{by}:"
    yield SqlText(plan.above)


def _tree(graph: JobGraph, operator: Operator, indent: str, is_last: bool) -> Iterator[str]:
    stream = "stream " if operator.source and operator.source.is_stream else ""
    yield SqlText(f"{indent}{'+- ' if is_last else '|- '}{operator.kind} {stream}{operator.detail} [{operator.attributes}]")
    below = indent + ("   " if is_last else "|  ")
    for number, child in enumerate(operator.inputs, 1):
        yield from _tree(graph, graph.operators[child], below, number == len(operator.inputs))


def _stages(graph: JobGraph) -> Iterator[str]:
    for stage in graph.stages():
        kinds = ", ".join(graph.operators[i].kind for i in stage.operators)
        yield f"{stage.id}: {kinds} ({'blocking' if stage.is_blocking else 'pipelined'})"


def _buffering(plan: FlowPlan, options: Options) -> str:
    interval = options[FLUSH_MAX_INTERVAL]
    if plan.runs_once:
        return "Read once: its rows come in one commit, and then the flow is done."
    if plan.above:
        return _buffering_above(plan, options)
    if plan.output_mode is OutputMode.APPEND and interval is not None:
        return (
            f"Written as they come, committed together: {FLUSH_MAX_INTERVAL.key} is {options.raw(FLUSH_MAX_INTERVAL)} "
            f"({options.level(FLUSH_MAX_INTERVAL).value}). Each row counts and none replaces another, so micro-batches write "
            "files of the table, and a flush adds them in one commit."
        )
    if plan.not_idempotent_because:
        return f"Not buffered, one commit per micro-batch: {plan.not_idempotent_because}."
    if interval is None:
        return f"Not buffered, one commit per micro-batch: {FLUSH_MAX_INTERVAL.key} is not set."
    return (
        f"Buffered: {plan.graph.last.kind} is output-idempotent and {FLUSH_MAX_INTERVAL.key} is "
        f"{options.raw(FLUSH_MAX_INTERVAL)} ({options.level(FLUSH_MAX_INTERVAL).value}). One commit per flush."
    )


def _buffering_above(plan: FlowPlan, options: Options) -> str:
    names = " and ".join(aggregate.name for aggregate in plan.aggregates)
    verb, tables = ("is", "the maintained aggregate") if len(plan.aggregates) == 1 else ("are", "the maintained aggregates")
    if options[FLUSH_MAX_INTERVAL] is None:
        return (
            f"Not buffered, one commit per micro-batch: {FLUSH_MAX_INTERVAL.key} is not set. The rest is evaluated at every "
            f"micro-batch, over {tables}."
        )
    return (
        f"Buffered: {names} {verb} output-idempotent and {FLUSH_MAX_INTERVAL.key} is {options.raw(FLUSH_MAX_INTERVAL)} "
        f"({options.level(FLUSH_MAX_INTERVAL).value}). The rest is evaluated at each flush, over {tables}: one commit there, and "
        "one on the target."
    )


def _hybrid(hybrid: HybridSource) -> Iterator[str]:
    yield f"{hybrid.alias}, as {hybrid.name}, read in this order" + (f", by increasing {hybrid.on}:" if hybrid.on else ":")
    yield from (SqlText(_one_line(relation.sql)) for relation in hybrid.relations)


def _backlog(plan: FlowPlan, options: FlowOptions) -> Iterator[str]:
    """Yield how each stream catches up; nothing when no stream has an interval during backlog."""
    if not any(each[CHECKPOINT_INTERVAL_DURING_BACKLOG] is not None for each in options.streams.values()):
        return
    for source in plan.graph.streams:
        own = options.streams[fold(source.alias)]
        interval, threshold = own[CHECKPOINT_INTERVAL_DURING_BACKLOG], own[BACKLOG_LAG_THRESHOLD]
        if interval is None:
            yield f"{source.alias}: never"
            continue
        when = "while it reads its history"
        when += f", or lags by more than {_said(own, BACKLOG_LAG_THRESHOLD)}" if threshold is not None else ""
        size = f"of about {_said(own, CHECKPOINT_INTERVAL_DURING_BACKLOG)}" if interval else "with all available data"
        yield f"{source.alias}: {when}; then micro-batches {size}, back to back, and no flush until the backlog ends"


def _said(options: Options, option: Option[Any]) -> str:
    return f"{options.raw(option)} ({options.level(option).value})"


def _options(options: Options) -> list[str]:
    rows = [f"{key} = {value} ({level})" for key, value, level in options.as_rows()]
    return [*(rows or ["all defaults"]), *(f"warning: {warning}" for warning in options.warnings())]


def _rules(firings: tuple[Firing, ...]) -> list[str]:
    lines = list[str]()
    for firing in firings:
        before, after = SqlText(f"  {_one_line(firing.before)}"), SqlText(f"  -> {_one_line(firing.after)}")
        lines += [f"{firing.batch} / {firing.rule}:", before, after]
    return lines or ["none"]


def _one_line(text: str) -> str:
    return " ".join(text.split())
