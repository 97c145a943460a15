"""From a query's tree to a plan: read options from hints and WITH, apply the rules, check the shape, build the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlext.errors import OptionError, UnsupportedError, did_you_mean
from sqlext.functions.scalar import FUNCTIONS
from sqlext.options import HINTS, STATE_TTL, Level, ValueText, is_option_key
from sqlext.options import option as option_of
from sqlext.plan.change_capture import ChangeCapture
from sqlext.plan.job_graph import BoundedPlan, Firing, FlowPlan, Key, MaintainedAggregate, OutputMode, Prerequisite, References
from sqlext.planner import grouping
from sqlext.planner.above import Split, split
from sqlext.planner.graph_builder import GraphBuilder
from sqlext.planner.hybrid_sources import cut_hybrids
from sqlext.quoting import fold
from sqlext.sql.dialect import to_sql, without_brackets
from sqlext.sql.end_of_stream import PrerequisiteQuery, called, cut_prerequisites, with_bounded_streams, without_clauses
from sqlext.sql.grouping_sets import check_grouping_sets
from sqlext.sql.nodes import HintCall, Stream, function_of
from sqlext.sql.recursion import deep_recursion
from sqlext.sql.rewriter import Batch, Scope, rewrite
from sqlext.sql.source_text import position_of
from sqlext.sql.statements import Query
from sqlext.sql.trees import function_name, is_aggregate_call, is_aggregation, our_hints, references_of, selects_of

SourceOptions = dict[Level, dict[str, ValueText]]

_NO_AGGREGATE = "the query has no aggregate, so each row counts and none replaces another"

_RULES_OF_SPARKS_SQL = frozenset(
    """
    distinct_to_group_by_all remove_idle_distinct count_distinct_to_set collect_distinct_to_set aggregate_distinct_to_set
    listagg_distinct_to_set having_to_column pivot_to_filter top_n_to_max_by
    """.split()
)
"""The rules whose input Spark can analyze too; others, including the user's, may rewrite parts that only sqlext reads."""

SPARK_HINTS = frozenset(
    """
    BROADCAST BROADCASTJOIN MAPJOIN MERGE SHUFFLE_MERGE MERGEJOIN SHUFFLE_HASH SHUFFLE_REPLICATE_NL COALESCE
    REPARTITION REPARTITION_BY_RANGE REBALANCE
    """.split()
)


@deep_recursion()
def plan_flow(query: Query, batches: Sequence[Batch], is_sorted: bool = True) -> FlowPlan:
    """Plan a streaming query that keeps a table up to date.

    Args:
        query: the query.
        batches: the rules to apply.
        is_sorted: whether the aggregates of its prerequisites sort their input.

    Raises:
        OptionError: a hint or a WITH option is unknown, malformed, or on a relation that is not a stream.
        UnsupportedError: the query's result cannot be kept up to date; the message says which part, and what to do.
        RuleError: a rule failed.
    """
    check_grouping_sets(query)
    capture = query.capture
    hints, source_options = read_options(query)
    tree, hybrids = cut_hybrids(query.tree, query.source)
    tree, cut = cut_prerequisites(with_bounded_streams(Query(tree, query.source)).tree, query.source)
    query = Query(tree, query.source)
    _check_stream_names(query, bool(hybrids))
    builder = GraphBuilder(query.source, source_options)
    prerequisites, of_prerequisites = _plan_prerequisites(cut, query.source, batches, is_sorted, builder)
    of_query, of_relations, of_aggregates = ([each for each in batches if each.scope is scope] for scope in Scope)
    tree, firings = rewrite(tree, query.source, of_query)
    written = to_sql(tree, query.source).strip()
    tree, of_tree = rewrite(tree, query.source, of_relations)
    parts = split(tree, query.source)
    plan = (
        _plan_one_query(query, tree, of_aggregates, builder)
        if parts is None
        else _plan_above(query, tree, parts, of_aggregates, builder)
    )
    streams = {fold(stream.alias) for stream in plan.graph.streams}
    of_bounded = {alias: levels for alias, levels in source_options.items() if alias not in streams}
    _refuse_ttl(of_bounded)
    _refuse_hints(of_bounded)
    names = [relation.name for hybrid in hybrids for relation in hybrid.relations]
    of_hybrids = References(relations=tuple(fold(name[0]) for name in names if len(name) == 1))
    references = _all_references([plan.references, of_hybrids, *(references_of(each.tree) for each in cut)])
    return replace(
        plan,
        hints=hints,
        firings=(*of_prerequisites, *firings, *of_tree, *plan.firings),
        references=references,
        prerequisites=prerequisites,
        hybrids=hybrids,
        qualified_by=_qualified_by(query.tree),
        written=written,
        is_sparks_own={firing.rule for firing in (*of_tree, *plan.firings)} <= _RULES_OF_SPARKS_SQL,
        capture=capture,
        above_by=_parts_by_key(capture, plan.aggregates),
    )


def _qualified_by(tree: exp.Query) -> tuple[str, ...]:
    """Return the aliases of row numbers over streams that QUALIFY names; above an aggregate, Spark itself evaluates QUALIFY."""
    found: dict[str, None] = {}
    for select in tree.find_all(exp.Select):
        qualify = select.args.get("qualify")
        if qualify is not None and not qualify.find(exp.Window) and not is_aggregation(select):
            windows = {fold(item.alias) for item in select.expressions if item.find(exp.Window)}
            found |= {name: None for each in qualify.find_all(exp.Column) if (name := fold(each.name)) in windows}
    return tuple(found)


def _check_stream_names(query: Query, has_hybrid: bool) -> None:
    """See that all streams have a name of their own (IDENTIFIED BY), or none."""
    streams = list(query.tree.find_all(Stream))
    named = [stream for stream in streams if stream.args.get("identified") is not None]
    if named and has_hybrid:
        raise UnsupportedError(
            f"`{named[0].args['identified'].this}` cannot stand in a query with a hybrid source, which names its streams itself. "
            "Leave it out.",
            position_of(named[0], query.source),
        )
    if named and (without := next((stream for stream in streams if stream not in named), None)) is not None:
        raise UnsupportedError(
            "This stream has no name, and others of the query have one, by IDENTIFIED BY. Give each a name, or none.",
            position_of(without, query.source),
        )


def plan_once(query: Query, batches: Sequence[Batch], is_sorted: bool) -> FlowPlan:
    """Plan a query for INSERT INTO ONCE, which reads what its tables hold, once.

    Raises:
        UnsupportedError: it reads a stream that does not end.
    """
    bounded = plan_bounded(query, batches, is_sorted)
    streams = with_bounded_streams(query).tree.find_all(Stream)
    endless = next((stream for stream in streams if not stream.args.get("is_bounded")), None)
    if endless is not None:
        raise UnsupportedError(
            "INSERT INTO ONCE reads tables as they are, and a stream has no end. Leave out STREAM, or ONCE.",
            position_of(endless, query.source),
        )
    return FlowPlan(
        sql=bounded.sql,
        graph=bounded.graph,
        output_mode=OutputMode.APPEND,
        firings=bounded.firings,
        references=bounded.references,
        written=query.text,
        is_sparks_own=not bounded.firings,
        runs_once=True,
    )


@deep_recursion()
def plan_bounded(query: Query, batches: Sequence[Batch], is_sorted: bool) -> BoundedPlan:
    """Plan a query that has GLOBAL WINDOW END OF STREAM, and no stream outside of that clause.

    Raises:
        OptionError: a hint is one of ours, or unknown; or a WITH option is unknown, or on a relation that is not a stream.
        UnsupportedError: a stream's options have no meaning in a bounded query.
    """
    check_grouping_sets(query)
    _, source_options = read_options(query)
    _refuse_ttl(source_options)
    for hint in our_hints(query.tree):
        raise OptionError(
            f"The hint {hint.args['source']} is for a flow, and this query ends. Leave it out.", position_of(hint, query.source)
        )
    cut_hybrids(query.tree, query.source)  # refuses any hybrid source: none has a meaning here
    tree, firings = rewrite(with_bounded_streams(query).tree, query.source, batches)
    graph = GraphBuilder(query.source, source_options).build(tree)
    return BoundedPlan(
        sql=to_sql(called(tree, is_sorted, query.source), query.source).strip(),
        graph=graph,
        firings=firings,
        plain_sql=to_sql(without_clauses(tree), query.source).strip(),
        references=references_of(tree),
        texts=frozenset(literal.name for literal in tree.find_all(exp.Literal) if literal.is_string),
    )


def _plan_prerequisites(
    cut: Sequence[PrerequisiteQuery], source: str, batches: Sequence[Batch], is_sorted: bool, builder: GraphBuilder
) -> tuple[tuple[Prerequisite, ...], tuple[Firing, ...]]:
    prerequisites: list[Prerequisite] = []
    firings: list[Firing] = []
    for each in cut:
        tree, fired = rewrite(each.tree, source, batches)
        builder.add_prerequisite(each.name, tree)
        prerequisites.append(Prerequisite(each.name, to_sql(called(tree, is_sorted, source), source).strip(), each.after))
        firings += fired
    return tuple(prerequisites), tuple(firings)


def _plan_one_query(query: Query, tree: exp.Query, batches: Sequence[Batch], builder: GraphBuilder) -> FlowPlan:
    """Plan a query whose rows are the target's."""
    written = without_brackets(tree)
    tree, firings = rewrite(tree, query.source, batches)
    top = without_brackets(tree)
    having = written.args.get("having")
    _keep_names(written, top, query.source)
    key = grouping.key_of(top, query.source) if isinstance(top, exp.Select) and is_aggregation(top) else None
    return FlowPlan(
        sql=to_sql(tree, query.source).strip(),
        graph=builder.build(tree),
        output_mode=OutputMode.APPEND if key is None else OutputMode.UPDATE,
        key=key or Key(),
        firings=firings,
        references=references_of(tree),
        not_idempotent_because=_NO_AGGREGATE if key is None else _why_not_idempotent(query.tree)[0],
        having="" if having is None else to_sql(having.this, query.source).strip(),
    )


def _keep_names(written: exp.Query, query: exp.Query, source: str) -> None:
    """Name each column that a rule has changed and that has no alias after the user's own text."""
    for before, after in zip(written.selects, query.selects, strict=False):  # a rule may have appended the condition of HAVING
        if after != before and not isinstance(after, exp.Alias):
            after.replace(exp.alias_(after.copy(), to_sql(before, source), quoted=True))


def _plan_above(query: Query, tree: exp.Query, parts: Split, batches: Sequence[Batch], builder: GraphBuilder) -> FlowPlan:
    """Plan each aggregate as a streaming query of its own, and the rest as a batch query over their rows."""
    firings: list[Firing] = []
    inner: dict[str, exp.Query] = {}
    for aggregate in parts.aggregates:
        reason, call = _why_not_idempotent(aggregate.select)
        if call is not None:
            raise UnsupportedError(
                f"No query can be evaluated above this aggregate: {reason}. Keep it in a streaming table of its own, and read "
                "that table in a view.",
                position_of(call, query.source),
            )
        inner[aggregate.name], fired = rewrite(aggregate.select, query.source, batches)
        firings += fired
    outer, fired = rewrite(parts.outer, query.source, batches)
    return FlowPlan(
        sql="",
        graph=builder.build_above(outer, inner),
        output_mode=OutputMode.UPDATE,
        firings=(*firings, *fired),
        references=_all_references([references_of(each) for each in (tree, *inner.values())]),
        aggregates=tuple(
            MaintainedAggregate(each.name, to_sql(inner[each.name], query.source).strip(), each.key) for each in parts.aggregates
        ),
        above=to_sql(outer, query.source).strip(),
    )


def _parts_by_key(capture: ChangeCapture | None, aggregates: Sequence[MaintainedAggregate]) -> Mapping[str, str]:
    """Return `FlowPlan.above_by` of an AUTO CDC: a key's versions depend on its changes, and on truncations if there are any."""
    if capture is None or not capture.keeps_history or len(aggregates) != 1:
        return {}
    names = [key.text for key in capture.keys]
    return dict(zip(names, aggregates[0].key.columns, strict=False))  # the keys are what it groups by first; then the sequence


def read_options(query: Query) -> tuple[dict[str, ValueText], dict[str, SourceOptions]]:
    """Read our hints and WITH options.

    Returns:
        The flow-wide options by key, and those of each stream by its folded alias.

    Raises:
        OptionError: a hint or a WITH option is unknown, malformed, given twice, on a relation that is not a stream, or on one of
            several streams of one alias.
    """
    by_source, shared = _options_by_alias(query)
    flow_wide: dict[str, ValueText] = {}
    seen: set[tuple[str, str]] = set()
    for hint in query.tree.find_all(HintCall):
        if hint.name not in HINTS and hint.name not in SPARK_HINTS:
            known = sorted({*HINTS, *SPARK_HINTS})
            raise OptionError(
                f"There is no hint `{hint.name}`.{did_you_mean(hint.name, known)} sqlext's hints are {', '.join(sorted(HINTS))}.",
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
            alias = fold(arguments[0])
            if alias not in by_source:
                raise OptionError(
                    f"The hint {hint.args['source']} names `{arguments[0]}`, which is not a stream of this query. Its "
                    f"streams are {', '.join(sorted(by_source)) or 'none'}.",
                    position,
                )
            if alias in shared:
                raise OptionError(
                    f"The hint {hint.args['source']} names `{arguments[0]}`, and several streams have that name. Give each an "
                    "alias of its own.",
                    position,
                )
            options = by_source[alias][Level.HINT]
        target = (hint.name, fold(arguments[0]) if spec.per_source else "")
        if target in seen:
            raise OptionError(f"The hint {hint.name} is given twice. Give it once.", position)
        seen.add(target)
        options[spec.option.key] = ValueText(arguments[-1], position)
    return flow_wide, by_source


def _options_by_alias(query: Query) -> tuple[dict[str, SourceOptions], set[str]]:
    """Return the WITH options of each stream by its folded alias, and the aliases that several streams have.

    Raises:
        OptionError: an option is unknown or given twice, or streams of one alias have different ones.
    """
    found: dict[str, SourceOptions] = {}
    shared: set[str] = set()
    for stream in query.tree.find_all(Stream):
        alias, options = fold(_alias(stream)), _with_options(stream, query)
        if alias not in found:
            found[alias] = {Level.HINT: {}, Level.WITH: options}
            continue
        shared.add(alias)
        others = found[alias][Level.WITH]
        for key in sorted(options.keys() | others.keys()):
            one, other = options.get(key), others.get(key)
            given = one or other
            if given is not None and (one is None or other is None or one.value != other.value):
                raise OptionError(
                    f"`{key}` is `{given.value}` for one of several streams named `{_alias(stream)}`, and not for all. Give each "
                    "an alias of its own, or all of them the same options.",
                    given.position,
                )
    return found, shared


def _refuse_ttl(source_options: Mapping[str, SourceOptions]) -> None:
    """Refuse a time to live of state for relations that queries read which end."""
    for alias, levels in source_options.items():
        for given in (each[STATE_TTL.key] for each in levels.values() if STATE_TTL.key in each):
            raise UnsupportedError(
                f"`{STATE_TTL.key}` is `{given.value}` for `{alias}`, and the query that reads it ends: it has no state that "
                "could. Leave it out.",
                given.position,
            )


def _refuse_hints(source_options: Mapping[str, SourceOptions]) -> None:
    """Refuse hints for relations that queries read which end."""
    for alias, levels in source_options.items():
        for key, given in levels[Level.HINT].items():
            raise OptionError(
                f"`{key}` is `{given.value}` for `{alias}`, and the query that reads it ends: it has no backlog. Leave it out.",
                given.position,
            )


def _alias(stream: Stream) -> str:
    return stream.alias or stream.this.name


def _with_options(stream: Stream, query: Query) -> dict[str, ValueText]:
    found: dict[str, ValueText] = {}
    relations: list[exp.Expr] = [stream, *(stream.this.args.get("parts") or [])]
    for relation, written in [(each, option) for each in relations for option in each.args.get("options") or []]:
        position = position_of(written, query.source)
        if (function := function_of(relation.this)) and not is_option_key(written.name):
            raise OptionError(
                f"`{written.name}` is an option of the source. Give it to {function} as an argument: {written.name} => ..",
                position,
            )
        if is_option_key(written.name):
            key = option_of(written.name, position).key
            if key in found:
                raise OptionError(f"The option `{key}` is given twice. Give it once.", position)
            found[key] = ValueText(written.args["value"], position)
    return found


def _why_not_idempotent(tree: exp.Query) -> tuple[str | None, exp.Expr | None]:
    """Return why an aggregate call makes the query's output not idempotent, and that call; None and None if none does."""
    for select in selects_of(tree):
        for call in select.find_all(exp.Func):
            python = FUNCTIONS.find(function_name(call))
            if is_aggregate_call(call) and python is not None and not python.is_output_idempotent:
                return f"the function {python.name} is registered as not output-idempotent", call
    return None, None


def _all_references(found: Sequence[References]) -> References:

    def names(kind: Callable[[References], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(sorted({name for each in found for name in kind(each)}))

    names_streams = any(each.names_streams for each in found)
    return References(names(lambda r: r.relations), names(lambda r: r.functions), names(lambda r: r.columns), names_streams)
