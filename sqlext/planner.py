"""From a query's tree to a `FlowPlan`: options read from hints and WITH, rules applied, shape checked, graph built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from sqlext import grouping
from sqlext.dialect import HintCall, Stream, position_of, to_sql
from sqlext.errors import OptionError, UnsupportedError, did_you_mean
from sqlext.functions import FUNCTIONS
from sqlext.graph import GraphBuilder
from sqlext.options import HINTS, Given, is_option_key
from sqlext.options import option as option_of
from sqlext.plan import Firing, FlowPlan, JobGraph, Key, OutputMode
from sqlext.rewriter import Batch, rewrite
from sqlext.shape import (
    function_name,
    is_aggregate_call,
    is_aggregation,
    is_end_of_stream,
    our_hints,
    references_of,
    selects_of,
    streaming_selects,
)
from sqlext.statements import Query

SPARK_HINTS = frozenset(
    """
    BROADCAST BROADCASTJOIN MAPJOIN MERGE SHUFFLE_MERGE MERGEJOIN SHUFFLE_HASH SHUFFLE_REPLICATE_NL COALESCE
    REPARTITION REPARTITION_BY_RANGE REBALANCE
    """.split()
)


def plan_flow(query: Query, batches: Sequence[Batch]) -> FlowPlan:
    """Plan a streaming query that keeps a table up to date.

    Raises:
        OptionError: a hint or a WITH option is unknown, misspelt, or on a relation that is no stream.
        UnsupportedError: the query's result cannot be kept up to date; says which part, and what to do.
        RuleError: a rule failed.
    """
    hints, source_options = read_options(query)
    tree, firings = rewrite(query.tree, query.source, batches)
    _check_supported(query)
    is_update = any(is_aggregation(select) for select in selects_of(tree))
    graph = GraphBuilder(query.source, source_options).build(tree)
    return FlowPlan(
        sql=to_sql(tree, query.source).strip(),
        graph=graph,
        output_mode=OutputMode.UPDATE if is_update else OutputMode.APPEND,
        key=grouping.key_of(tree, query.source) if is_update and isinstance(tree, exp.Select) else Key(),
        firings=firings,
        hints=hints,
        references=references_of(tree),
        not_idempotent_because=_why_not_idempotent(query.tree, is_update),
    )


def plan_bounded(query: Query, batches: Sequence[Batch]) -> tuple[JobGraph, tuple[Firing, ...]]:
    """The graph of a query with GLOBAL WINDOW END OF STREAM, and the rules that fired: what EXPLAIN shows of it."""
    _, source_options = read_options(query)
    tree, firings = rewrite(query.tree, query.source, batches)
    return GraphBuilder(query.source, source_options).build(tree), firings


def is_bounded(query: Query) -> bool:
    """Whether GLOBAL WINDOW END OF STREAM stands anywhere in it."""
    return any(is_end_of_stream(each) for each in query.tree.find_all(exp.Query))


def read_options(query: Query) -> tuple[dict[str, Given], dict[str, dict[str, Given]]]:
    """Our hints and WITH options.

    Returns:
        The flow-wide options by key, and those of each stream by its alias in lower case.
    """
    streams = {_alias(stream).lower(): stream for stream in query.tree.find_all(Stream)}
    by_source: dict[str, dict[str, Given]] = {alias: _with_options(stream, query) for alias, stream in streams.items()}
    flow_wide: dict[str, Given] = {}
    seen: set[tuple[str, str]] = set()
    for hint in query.tree.find_all(HintCall):
        if hint.name not in HINTS and hint.name not in SPARK_HINTS:
            known = sorted({*HINTS, *SPARK_HINTS})
            raise OptionError(
                f"There is no hint `{hint.name}`.{did_you_mean(hint.name, known)} Ours are {', '.join(sorted(HINTS))}.",
                position_of(hint, query.source),
            )
    for hint in our_hints(query.tree):
        spec = HINTS[hint.name]
        arguments = hint.args.get("arguments") or []
        usage = f"{hint.name}({'alias, ' if spec.per_source else ''}'2 minutes')"
        position = position_of(hint, query.source)
        if len(arguments) != 1 + spec.per_source:
            raise OptionError(f"The hint {hint.args['source']} is not well formed. Write {usage}.", position)
        options = flow_wide
        if spec.per_source:
            alias = arguments[0].lower()
            if alias not in by_source:
                raise OptionError(
                    f"The hint {hint.args['source']} names `{arguments[0]}`, which is not a stream of this query. Its "
                    f"streams are {', '.join(sorted(by_source)) or 'none'}.",
                    position,
                )
            options = by_source[alias]
        target = (hint.name, arguments[0].lower() if spec.per_source else "")
        if target in seen:
            raise OptionError(f"The hint {hint.name} is given twice. Give it once.", position)
        seen.add(target)
        options[spec.option.key] = Given(arguments[-1], position)
    return flow_wide, by_source


def _alias(stream: Stream) -> str:
    return stream.alias or stream.this.name


def _with_options(stream: Stream, query: Query) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for written in stream.args.get("options") or []:
        position = position_of(written, query.source)
        if is_option_key(written.name):
            key = option_of(written.name, position).key
            if key in found:
                raise OptionError(f"The option `{key}` is given twice. Give it once.", position)
            found[key] = Given(written.args["value"], position)
    return found


def _check_supported(query: Query) -> None:
    """What sits above a streaming aggregate, and clauses that need all rows at once, cannot be kept by one query."""
    for select in query.tree.find_all(exp.Query):
        if is_end_of_stream(select):
            raise UnsupportedError(
                "GLOBAL WINDOW END OF STREAM needs bounded stages, which this version does not run.",
                position_of(select, query.source),
            )
    top = [id(select) for select in selects_of(query.tree)]
    for select in streaming_selects(query.tree):
        if id(select) not in top and is_aggregation(select):
            raise _above_the_aggregate("this aggregate feeds an outer query", select, query)
    if any(is_aggregation(select) for select in selects_of(query.tree)) and not isinstance(query.tree, exp.Select):
        raise _above_the_aggregate("a set operation combines aggregates", query.tree, query)
    is_set = isinstance(query.tree, (exp.Except, exp.Intersect))
    if is_set or (isinstance(query.tree, exp.Union) and query.tree.args.get("distinct")):
        raise UnsupportedError(
            "UNION, EXCEPT and INTERSECT of streams need all rows at once. UNION ALL is possible.",
            position_of(query.tree, query.source),
        )
    for clause, name in (
        ("order", "ORDER BY"),
        ("limit", "LIMIT"),
        ("offset", "OFFSET"),
        ("sort", "SORT BY"),
        ("cluster", "CLUSTER BY"),
        ("qualify", "QUALIFY"),
    ):
        node = query.tree.args.get(clause)
        if node is not None:
            raise _above_the_aggregate(f"{name} needs all rows at once", node, query)
    for select in streaming_selects(query.tree):
        window = next((w for item in select.expressions for w in item.find_all(exp.Window)), None)
        if window is not None:
            raise _above_the_aggregate("a window function needs all rows at once", window, query)


def _above_the_aggregate(what: str, node: exp.Expr, query: Query) -> UnsupportedError:
    return UnsupportedError(
        f"A flow cannot keep this up to date: {what}. Keep the aggregate itself in a streaming table, and put the rest in a "
        "view over that table.",
        position_of(node, query.source) or position_of(query.tree, query.source),
    )


def _why_not_idempotent(tree: exp.Query, is_update: bool) -> str:
    if not is_update:
        return "the query has no aggregate, so each row counts and none replaces another"
    for select in selects_of(tree):
        for call in select.find_all(exp.Func):
            python = FUNCTIONS.get(function_name(call))
            if is_aggregate_call(call) and python is not None and not python.is_output_idempotent:
                return f"the function {python.name} is registered as not output-idempotent"
    return ""


def source_options_of(plan: FlowPlan) -> Mapping[str, Mapping[str, Given]]:
    """Our options of each stream, by alias."""
    return {source.alias: source.options for source in plan.graph.streams}
