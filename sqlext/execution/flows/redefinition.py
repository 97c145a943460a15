"""Another query for the flow of a streaming table: what of its aggregate is kept, what is added, and what cannot be changed.

A query may get other columns. What decides the groups, and which rows are in them, stays: sources, WHERE, watermark and GROUP BY.
So partial results that are stored remain right, and a function that is new needs those of the rows that the flow has read
already: its history, which `flows/history.py` computes. Nothing is touched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import delta_log
from sqlext.execution.delta.target import Target
from sqlext.execution.flows.creation import FlowRequest, check_definition
from sqlext.execution.state.aggregate_shape import has_state
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.execution.streaming import queries
from sqlext.execution.streaming.streams import SourceKind, StreamLeaf, leaves_of
from sqlext.options import STATE_BACKEND, STATE_TTL
from sqlext.plan.flow_spec import FlowSpec, StateBackend, StreamSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.quoting import quote_parts
from sqlext.spark import delta_tables
from sqlext.spark.aggregate_change import AggregateCall, AnalysedAggregate, differing_clauses, have_same_sets, place_in
from sqlext.sql.tokens import normal_text

_PACE = ("path", "maxfilespertrigger", "maxbytespertrigger", "serialization.format")
"""Options of a stream of a Delta table that do not change which rows it reads."""
_CAN_BE_ADDED = "streams can be added to a UNION ALL in which each stream has a name, by IDENTIFIED BY"
_SKIPPING = ("skipchangecommits", "ignorechanges", "ignoredeletes")


def refusal(spec: FlowSpec, reason: UnsupportedError) -> UnsupportedError:
    """Return the error of ALTER FLOW .. AS for a change that cannot be made in place."""
    return UnsupportedError(
        f"The query of flow `{spec.name}` cannot be changed in place: {reason.message} CREATE OR REPLACE STREAMING TABLE "
        f"{'.'.join(spec.target)} AS .. takes the new query, and recomputes the table from all that its streams still hold."
    )


@dataclass(frozen=True)
class ColumnChange:
    """What becomes of a column of the table, or of HAVING, whose column is `QUALIFIES`.

    Attributes:
        name: the column.
        how: "kept", "removed", "renamed from `c`", or "added" and from what.
    """

    name: str
    how: str

    def __str__(self) -> str:
        return f"{'HAVING' if self.name == QUALIFIES else f'`{self.name}`'} {self.how}"


@dataclass(frozen=True)
class Redefinition:
    """What another query makes of a flow's aggregate.

    Attributes:
        aggregate: the aggregate of the new query.
        old: that of the old one.
        stored: the columns of its partial results that are stored, each with the column of the old ones that has it.
        history: the query whose partial results are those that are not stored; None: all are.
        computed: the columns of partial results of `history`, by those of `aggregate` that they are.
        checked: the columns of partial results of `history` that are stored, too: both must be the same.
        columns: what becomes of each column of the table, first those of the new query in their order.
        shown: if each column of the new query is one of the table, the old column of each; else None.
        copied: the same, but None also if constraints have to look at other values under the names that they have.
    """

    aggregate: MergeableAggregate
    old: MergeableAggregate
    stored: Mapping[str, str]
    history: MergeableAggregate | None
    computed: Mapping[str, str]
    checked: Mapping[str, str]
    columns: tuple[ColumnChange, ...]
    shown: Mapping[str, str] | None
    copied: Mapping[str, str] | None

    @property
    def changes(self) -> tuple[ColumnChange, ...]:
        """What does not stay as it is."""
        return tuple(each for each in self.columns if each.how != "kept")


def redefined(spec: FlowSpec, request: FlowRequest, table: Target) -> Redefinition:
    """Return what another query makes of a flow.

    Args:
        spec: the flow.
        request: the flow with the new query, analysed in a session like the flow's.
        table: the flow's target as it is.

    Raises:
        UnsupportedError: the change cannot be made in place; the message is the reason.
    """
    stream = _check_flow(spec, request)
    check_definition(request)
    session, query = request.session, request.flow.queries[0]
    old_frame = queries.with_unique_names(session.sql(stream.sql))
    old, aggregate = MergeableAggregate(old_frame), query.aggregate
    if aggregate is None or old.fingerprint != stream.state_fingerprint:
        raise UnsupportedError("what is stored of its aggregate cannot be read any more: Spark or a source has changed.")
    before, now = AnalysedAggregate(old_frame, old.sets), AnalysedAggregate(query.frame, aggregate.sets)
    if differing := differing_clauses(before, now):
        raise UnsupportedError(_because(differing))
    if has_state(now.input):
        raise UnsupportedError("it joins streams, and Spark keeps rows of these in a state whose columns it cannot change.")
    if aggregate.sets is not None and not have_same_sets(before, now):
        raise UnsupportedError("the DISTINCT values of its functions are others, and they are rows of a table of their own.")
    if aggregate.results_vary:
        raise UnsupportedError("its results contain the current time, which would be a new one in all rows.")
    stored, added = _stored(before, now, old, aggregate)
    if any(each.is_over_new for each in added):
        raise UnsupportedError(
            "it has one more function over the same DISTINCT values, which are rows of a table of their own: a function gets "
            "each of them when it is new, and those of the history are not new any more."
        )
    over_history = {each.id for each in now.calls if any(each.meaning.equals(call.meaning) for call in added)}
    columns, shown = _columns(before, now, over_history)
    if added:
        _check_history(spec, request, now, added, aggregate)
    history = MergeableAggregate(now.only([*added, *_rows_counted(now, aggregate, added)])) if added else None
    computed, checked = _computed(history, aggregate, stored) if history is not None else ({}, {})
    if history is not None and history.is_ordered:
        texts = ", ".join(each.text for each in added)
        raise UnsupportedError(f"{texts}: a result depends on the order in which rows arrived, and the history does not have it.")
    is_checked_again = bool(spec.constraints) and any(old != new for new, old in (shown or {}).items())
    copied = None if is_checked_again else shown
    if copied is None and old.event_time is not None:
        raise UnsupportedError(
            "a watermark has let groups leave the state, so other results of theirs than those in the table are not known"
            f"{', and a constraint would look at another column by its name' if is_checked_again else ''}."
        )
    _check_table(spec, request, table, columns)
    return Redefinition(aggregate, old, stored, history, computed, checked, columns, shown, copied)


def _check_flow(spec: FlowSpec, request: FlowRequest) -> StreamSpec:
    """Return the one streaming query of a flow whose query may change."""
    plan = request.plan
    if " auto cdc " in normal_text(spec.text, folds_case=True).lower():
        raise UnsupportedError("it applies changes (AUTO CDC).")
    if not spec.owns_target:
        raise UnsupportedError(f"it writes into {'.'.join(spec.target)}, which it has not made. DROP FLOW it and make it again.")
    if spec.appends != plan.appends or spec.appends:
        kinds = {True: "appends rows", False: "keeps an aggregate"}
        same = f"both append rows, and those that are there have no key by which they could get other columns ({_CAN_BE_ADDED})."
        raise UnsupportedError(
            same if plan.appends == spec.appends else f"it {kinds[spec.appends]}, and the new query {kinds[plan.appends]}."
        )
    for has, what in (
        (spec.above or plan.above, "it has operators above its aggregate, or a key that is not in the select list."),
        (spec.prerequisites or plan.prerequisites, "it has a bounded stage (GLOBAL WINDOW END OF STREAM)."),
        (spec.hybrids or plan.hybrids, "it reads a hybrid source."),
        (spec.listed or request.listed, "its table has a column list."),
    ):
        if has:
            raise UnsupportedError(what)
    (stream,), (query,) = spec.streams, request.flow.queries  # there are no operators above
    if StateBackend.ROCKSDB in (stream.state_backend, query.state_backend):
        because = stream.rocksdb_because or query.rocksdb_because or ""
        raise UnsupportedError(
            f"its state is in RocksDB, whose columns Spark cannot change ({because.rstrip('.')}). With {STATE_BACKEND.key} = "
            "delta it would be in a Delta table, where the aggregate can be there."
        )
    if stream.has_sessions:
        raise UnsupportedError("its aggregate is by session windows.")
    if stream.ttl is not None or query.ttl is not None:
        raise UnsupportedError(f"the state of its groups ends ({STATE_TTL.key}), so not all of their history counts.")
    return stream


def _because(differing: Sequence[str]) -> str:
    listed = " and ".join(differing)
    verb = "differs" if len(differing) == 1 else "differ"
    reasons = {
        "WHERE": "rows that only one of the two conditions lets through are in the results, or missing there",
        "GROUP BY": "the groups would be others",
        "WATERMARK": "it decides which rows were late",
        "FROM": f"the results are made of the rows of the old one ({_CAN_BE_ADDED})",
    }
    why = reasons.get(differing[0], "the results are made of the rows of the old one")
    return f"{listed} {verb}, and {why}."


def _stored(
    before: AnalysedAggregate, now: AnalysedAggregate, old: MergeableAggregate, aggregate: MergeableAggregate
) -> tuple[dict[str, str], list[AggregateCall]]:
    """Return where the partial results are stored, and the calls whose partial results are not."""
    stored: dict[str, str] = {}
    is_in_order = len(before.keys) == len(now.keys) and all(a.equals(b) for a, b in zip(before.keys, now.keys, strict=True))
    if is_in_order and len(old.key) == len(aggregate.key):
        stored |= zip(aggregate.key, old.key, strict=True)
    elif len(old.key) == len(before.keys) and len(aggregate.key) == len(now.keys):
        stored |= {name: old.key[place_in(before.keys, key) or 0] for name, key in zip(aggregate.key, now.keys, strict=True)}
    else:
        raise UnsupportedError("GROUP BY has its expressions in another order, and a constant among them.")
    old_columns, new_columns = old.columns_of_functions(), aggregate.columns_of_functions()
    added = []
    for call in now.calls:
        columns = new_columns.get(call.id)
        if columns is None:
            continue  # Spark computes it as another one
        found = next((old_columns[each.id] for each in before.calls if each.id in old_columns and call.is_same_as(each)), None)
        kinds = [aggregate.schema[name].dataType for name in columns]
        if found is not None and [old.schema[name].dataType for name in found] == kinds:
            stored |= zip(columns, found, strict=True)
        else:
            added.append(call)
    missing = {*aggregate.schema.names} - {*stored} - {name for call in added for name in new_columns[call.id]}
    if missing:
        raise UnsupportedError("it is not known which of its functions has a part of the state.")
    return stored, added


def _rows_counted(now: AnalysedAggregate, aggregate: MergeableAggregate, added: Sequence[AggregateCall]) -> list[AggregateCall]:
    """Return a call that counts the rows of each group and is stored, if there is one: the history must have as many."""
    ids = {*aggregate.columns_of_functions()} - {each.id for each in added}
    return [each for each in now.calls if each.id in ids and each.text.lower() == "count(1)"][:1]


def _computed(
    history: MergeableAggregate, aggregate: MergeableAggregate, stored: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns of the history by those of the aggregate that they are, and those that are stored as well."""
    there, here = history.columns_of_functions(), aggregate.columns_of_functions()
    pairs = {mine: its for call, columns in there.items() for mine, its in zip(here[call], columns, strict=True)}
    missing = {*aggregate.schema.names} - {*stored} - {*pairs}
    if missing or any(aggregate.schema[a].dataType != history.schema[b].dataType for a, b in pairs.items()):
        raise UnsupportedError("Spark would compute what is added in another way over the history than over new rows.")
    computed = {mine: its for mine, its in pairs.items() if mine not in stored}
    return computed, {stored[mine]: its for mine, its in pairs.items() if mine in stored}


def _columns(
    before: AnalysedAggregate, now: AnalysedAggregate, over_history: set[int]
) -> tuple[tuple[ColumnChange, ...], dict[str, str] | None]:
    """Return what becomes of each column; and which old column each new one is, if each is one.

    Args:
        before, now: the two queries.
        over_history: the ids of the calls that are computed over the history.
    """
    changes, shown, old = [], dict[str, str](), before.columns
    for name, meaning in now.columns.items():
        same = [each for each, its in old.items() if its.equals(meaning)]
        source = name if name in same else next((each for each in same if each not in now.columns), next(iter(same), None))
        over = " over the history" if over_history & now.calls_in(name) else " from what is stored"
        if source is not None:
            shown[name] = source
            how = (
                "kept" if source == name else f"renamed from `{source}`" if source not in now.columns else f"a copy of `{source}`"
            )
        else:
            how = f"{'changed' if name in old else 'added'}, computed{over}"
        if name != QUALIFIES or source is None:
            changes.append(ColumnChange(name, how))
    gone = [name for name in old if name not in now.columns and name not in shown.values()]
    changes += [ColumnChange(name, "removed") for name in gone]
    is_whole = bool(now.columns) and len(shown) == len(now.columns) and (QUALIFIES in old) == (QUALIFIES in now.columns)
    return tuple(changes), shown if is_whole else None


def _check_table(spec: FlowSpec, request: FlowRequest, table: Target, columns: Sequence[ColumnChange]) -> None:
    """See that the table is as the flow has made it, and can have other columns."""
    name = ".".join(spec.target)
    known = [column.target for column in spec.streams[0].columns]
    if others := [column for column in table.columns if column not in known]:
        raise UnsupportedError(
            f"{name} has the column `{others[0]}`, which the flow does not write. ALTER TABLE .. DROP COLUMN it."
        )
    detail = request.session.sql(f"DESCRIBE DETAIL {quote_parts(('delta', table.location))}").collect()[0]
    layout = [*detail.partitionColumns, *detail.clusteringColumns]
    left = [each.name for each in columns if each.how == "kept"]
    if gone := [column for column in layout if column not in left]:
        raise UnsupportedError(f"{name} is stored by its column `{gone[0]}`, which would change.")
    if checks := [key for key in table.properties if key.startswith("delta.constraints.")]:
        raise UnsupportedError(
            f"{name} has the CHECK constraint `{checks[0].removeprefix('delta.constraints.')}`. Drop it first."
        )
    names = [column.lower() for column in request.flow.output.columns]
    if doubled := next((each for each in names if names.count(each) > 1), None):
        raise UnsupportedError(f"two of its columns are called `{doubled}`.")


# The history.


def _check_history(
    spec: FlowSpec, request: FlowRequest, now: AnalysedAggregate, added: Sequence[AggregateCall], aggregate: MergeableAggregate
) -> None:
    """See that what is added can be computed over the rows that the flow has read."""
    what = f"{', '.join(dict.fromkeys(each.text for each in added))}: its history cannot be computed, since"
    if aggregate.event_time is not None:
        raise UnsupportedError(f"{what} a watermark has left late rows out of the other results, and the history has them.")
    if any(each.is_by_moment or not each.is_repeatable for each in added):
        raise UnsupportedError(f"{what} its value depends on when a row is read.")
    if not now.is_repeatable:
        raise UnsupportedError(f"{what} a condition or a key depends on when a row is read.")
    tables = [".".join(each.name) for each in request.flow.inputs if not each.is_stream]
    if tables:
        raise UnsupportedError(f"{what} {tables[0]} is not read as a stream, and may have had other rows before.")
    for leaf in leaves_of(request.flow.queries[0].frame, [source.alias for source in spec.sources]):
        _check_leaf(request.session, leaf, what)


def _check_leaf(session: SparkSession, leaf: StreamLeaf, what: str) -> None:
    if leaf.kind is not SourceKind.DELTA:
        kind = {SourceKind.KAFKA: "a topic of Kafka", SourceKind.FILES: "a folder of files"}.get(leaf.kind, "no Delta table")
        raise UnsupportedError(f"{what} the stream `{leaf.alias}` is {kind}, which may not hold all of it any more.")
    skipping = [key for key in leaf.options if key in _SKIPPING and leaf.options[key].lower() == "true"]
    if skipping and (version := _first_change(session, leaf.location)) is not None:
        raise UnsupportedError(f"{what} {skipping[0]} has left out changes of `{leaf.alias}`, {version}.")
    if others := [key for key in leaf.options if key not in (*_PACE, *_SKIPPING)]:
        raise UnsupportedError(f"{what} the stream `{leaf.alias}` has the option {others[0]}.")


def _first_change(session: SparkSession, location: str) -> str | None:
    """Return which commit of a table has removed rows, or that this is not known; None: none has."""
    for version in range(delta_tables.version(session, location), -1, -1):
        actions = delta_log.actions(session, location, version)
        if actions is None:
            return f"if there are any before version {version + 1}, where its log begins"
        if any(each["remove"].get("dataChange") for each in actions if "remove" in each):
            return f"in version {version}"
    return None
