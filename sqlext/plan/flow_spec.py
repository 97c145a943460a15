"""The record of a flow: everything that a host needs to run it again, as one JSON text in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlext.errors import FlowError
from sqlext.options import EXPIRED_ROWS, STATE_BACKEND, TOMBSTONE_RETENTION, Level, LevelTexts, ValueText
from sqlext.plan.constraints import Constraint, constraint_from, quarantines
from sqlext.plan.job_graph import HybridRelation, HybridSource, Key, OutputMode
from sqlext.plan.lineage import Input, inputs_from
from sqlext.plan.records import from_record, to_record
from sqlext.quoting import zoned

SPEC_VERSION = 5
RESTORED = "restored-"
"""The beginning of the names of folders of restored flows."""
ROCKSDB_ASKED_FOR = f"{STATE_BACKEND.key} is rocksdb."
"""The reason why state is not in a Delta table when the option is the only one."""


class StateBackend(StrEnum):
    """The place where the state of a streaming aggregate lives: Spark's state store, or a Delta table."""

    ROCKSDB = "rocksdb"
    DELTA = "delta"


@dataclass(frozen=True)
class Column:
    """An output column of the query and the target column that it is written to.

    Attributes:
        output: the name in the query's output.
        target: the name in the target.
        type: the type of the target column, as DDL.
    """

    output: str
    target: str
    type: str


@dataclass(frozen=True)
class StateTtl:
    """The time to live of an aggregate's groups.

    Attributes:
        text: the duration, as the user wrote it.
        seconds: the duration. A group that no micro-batch has a row for so long leaves the state.
        keeps_rows: whether its row in the query's table stays, and later rows of its key are dropped; otherwise its row is
            deleted, and a later row of its key begins a new group.
        only_deletions: whether only groups end that have no row in the query's table: the deletions of AUTO CDC.
    """

    text: str
    seconds: float
    keeps_rows: bool
    only_deletions: bool = False

    def __str__(self) -> str:
        if self.only_deletions:
            return f"a deletion leaves the state {self.text} after the last change of its key ({TOMBSTONE_RETENTION.key})"
        becomes = (
            "the rows of ended groups stay as they are, and later rows of their keys are dropped and counted"
            if self.keeps_rows
            else "the rows of ended groups are deleted, and a later row of a key begins a new group"
        )
        return f"a group's state ends {self.text} after its last row: {becomes} ({EXPIRED_ROWS.key} = {self.expired_rows})"

    @property
    def expired_rows(self) -> str:
        """The value of the option that says what becomes of the rows."""
        return "keep" if self.keeps_rows else "delete"


@dataclass(frozen=True)
class StreamSpec:
    """A streaming query of a flow, and the table that its rows are written to.

    Attributes:
        relation: the table's name in the query above; empty when the table is the flow's target.
        sql: the query for Spark, rules applied.
        output_mode: see `OutputMode`.
        key: the columns of the table that identify a row, in UPDATE mode.
        columns: the columns, in the table's order.
        has_qualifies: whether the query has the HAVING column.
        durable_because: why its buffer is durable even when a buffer in memory was requested; empty: it need not be.
        state_backend: where its aggregate's state lives.
        rocksdb_because: why the state is not in a Delta table; empty when it is, or there is no aggregate.
        state_fingerprint: the fingerprint of the state that a Delta table stores for it (`MergeableAggregate`).
        state_columns: the table's columns that hold that state, one for one; empty when the state has a table of its own.
        has_sessions: whether it groups by session windows, which may merge as rows arrive.
        has_distinct_values: whether the distinct values that it counts are rows of a table of their own.
        revision: how often its query was changed in place: each query has a state of its own.
        ttl: when the state of its groups ends; None: never.
    """

    relation: str
    sql: str
    output_mode: OutputMode
    key: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    has_qualifies: bool = False
    durable_because: str = ""
    state_backend: StateBackend = StateBackend.ROCKSDB
    rocksdb_because: str = ""
    state_fingerprint: str = ""
    state_columns: tuple[str, ...] = ()
    has_sessions: bool = False
    has_distinct_values: bool = False
    revision: int = 0
    ttl: StateTtl | None = None

    @property
    def writes_target(self) -> bool:
        """Whether its table is the flow's target; otherwise it is a maintained aggregate's."""
        return not self.relation

    @property
    def repeats_flushes(self) -> bool:
        """Whether a flush that a crash has interrupted must be repeated with the very rows that it had.

        Spark may compute a micro-batch anew, of tables that have changed meanwhile. Other states in Delta tables know by
        themselves which groups the interrupted flush has changed (`StateBeside`), or have one commit.
        """
        return self.has_sessions or self.has_distinct_values or self.ttl is not None


@dataclass(frozen=True)
class PrerequisiteSpec:
    """A bounded query of a flow, which ends before the streaming ones start; see `job_graph.Prerequisite`."""

    name: str
    sql: str
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorSpec:
    """A recorded node of the flow's graph; see `job_graph.Operator`.

    Attributes:
        kind: as in `Operator`.
        detail: as in `Operator`.
        inputs: the indices of the operators that it reads.
        stream: the alias of the stream that it reads, folded (`quoting.fold`); empty if it reads none.
    """

    kind: str
    detail: str
    inputs: tuple[int, ...] = ()
    stream: str = ""


@dataclass(frozen=True)
class SourceSpec:
    """A stream that a flow reads.

    Attributes:
        alias: its name in the query, folded (`quoting.fold`).
        name: the relation's name, as written.
        given: the options of this stream alone, by level and key.
    """

    alias: str
    name: tuple[str, ...]
    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def delta_state_shown(
    is_in_table: bool,
    is_ours: bool,
    has_qualifies: bool,
    has_sessions: bool,
    is_checked: bool,
    has_distinct_values: bool,
    ttl: StateTtl | None = None,
) -> str:
    """Return where an aggregate's state lives if it is in a Delta table, and why there, for EXPLAIN and DESCRIBE FLOW.

    Args:
        is_in_table: whether the query's table is the state.
        is_ours: whether only the flow writes that table.
        has_qualifies: whether groups may be missing in that table.
        has_sessions: whether the aggregate groups by session windows.
        is_checked: whether constraints check the rows of that table.
        has_distinct_values: whether distinct values are rows of a table of their own.
        ttl: when the state of groups ends; None: never.
    """
    values = "; distinct values are rows of a table of the flow's own" if has_distinct_values else ""
    ends = "" if ttl is None else f"; {ttl}"
    has_ttl = ttl is not None
    return _place_of_partials(is_in_table, is_ours, has_qualifies, has_sessions, is_checked, has_ttl) + values + ends


def _place_of_partials(
    is_in_table: bool, is_ours: bool, has_qualifies: bool, has_sessions: bool, is_checked: bool, has_ttl: bool
) -> str:
    if is_in_table:
        return "delta: the aggregate can be continued from its results, so the table holds its state"
    because = "the aggregate cannot be continued from its results"
    if is_checked:
        because = "constraints check the table's rows"
    if has_qualifies:
        because = "the table does not have all groups"
    if not is_ours:
        because = "others may write the table"
    if has_ttl:
        because = "groups leave it"
    if has_sessions:
        because = "a row may merge two sessions, however late it is"
    return f"delta: partial results are kept in a table of the flow's own, since {because}"


@dataclass(frozen=True)
class FlowSpec:
    """The record of a flow.

    Attributes:
        id: the id in the names of its home and its transactions; never reused.
        name: its name for users, without its schema.
        target: the target's catalog, database and table.
        target_location: the folder of the target's files.
        target_id: Delta's id of the target table.
        text: the text of the statement, as the user wrote it.
        streams: its streaming queries: one that writes the target, or those that maintain the aggregates below `above`.
        above: the query over maintained aggregates whose result is the target; empty when there is none.
        above_by: columns of the aggregates by whose values it is evaluated in parts (`FlowPlan.above_by`); empty: it never is.
        prerequisites: its bounded queries, each after the ones that it reads.
        operators: its graph, inputs before their readers; the last one feeds the target.
        sources: the streams that the operators read.
        hybrids: the hybrid sources among the sources.
        reads: all relations that it reads, as streams or not.
        owns_target: whether the flow made its target.
        replaces_table: whether a table of that name existed when the flow was made; then sqlext must not drop it.
        columns: the target's columns, in its order, when there is a query above.
        not_idempotent_because: why the newest row of each key is not all that a flush needs; empty when it is.
        given: the options as given, by level and key; those of SET and SparkConf are kept, so that a restart changes nothing.
        catalog: the current catalog of the session that made it.
        database: the current database of the session that made it.
        settings: the settings of the session that made it.
        variables: the session variables that it names: type and value, as DECLARE VARIABLE takes them.
        session_bound: the temporary views and functions that it reads; with any, the flow lives only as long as its host.
        comment: the comment in CREATE FLOW.
        full_name: the catalog, database and name by which statements find it; empty in records of earlier versions.
        query: the statement's query, as `tokens.normal_text` returns it; empty in records of earlier versions.
        clauses: the clauses of the statement's table, in the same form.
        replaces: the id of the flow that it replaces; empty: none.
        listed: the statement's column list, as `definition.listed` returns it; None in records of earlier versions.
        constraints: on each row of the target, with the qualified names of quarantine tables.
        runs_once: whether it reads tables once, and is done then; its one query is no streaming one.
        generation: how often it was restored to a savepoint; each generation has transactions and a folder of its own.
        restored: the name of the savepoint that it was restored to last; empty: it was not restored.
        restoring: the id of the savepoint that its table is to be set back to before it runs again; empty: it is.
        former_quarantines: the tables where it has quarantined rows by constraints that it has no more, qualified.
    """

    id: str
    name: str
    target: tuple[str, ...]
    target_location: str
    target_id: str
    text: str
    streams: tuple[StreamSpec, ...]
    above: str = ""
    above_by: tuple[Column, ...] = ()
    prerequisites: tuple[PrerequisiteSpec, ...] = ()
    operators: tuple[OperatorSpec, ...] = ()
    sources: tuple[SourceSpec, ...] = ()
    hybrids: tuple[HybridSource, ...] = ()
    reads: tuple[Input, ...] = ()
    owns_target: bool = False
    replaces_table: bool = False
    columns: tuple[Column, ...] = ()
    not_idempotent_because: str = ""
    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    catalog: str = "spark_catalog"
    database: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    session_bound: tuple[str, ...] = ()
    comment: str = ""
    full_name: tuple[str, ...] = ()
    query: str = ""
    clauses: tuple[str, ...] = ()
    replaces: str = ""
    listed: tuple[str, ...] | None = None
    constraints: tuple[Constraint, ...] = ()
    runs_once: bool = False
    generation: int = 0
    restored: str = ""
    restoring: str = ""
    former_quarantines: tuple[tuple[str, ...], ...] = ()

    @property
    def application(self) -> str:
        """The application of its transactions on Delta tables.

        A restored flow reads micro-batches again under numbers that its tables have seen: to Delta, that must be another one.
        """
        return f"{self.id}/{self.generation}" if self.generation else self.id

    @property
    def folder(self) -> str:
        """The folder of its checkpoints, buffers and tables below that of the flow; empty: that one itself."""
        return f"{RESTORED}{self.generation}" if self.generation else ""

    @property
    def qualified_name(self) -> tuple[str, ...]:
        """The catalog, database and name; for an earlier version's record, from its target or the session that made it."""
        if self.full_name:
            return self.full_name
        parts = tuple(self.name.split("."))
        if tuple(part.lower() for part in self.target[-len(parts) :]) == tuple(part.lower() for part in parts):
            return self.target
        return (self.catalog, self.database, self.name)

    @property
    def texts(self) -> list[str]:
        """The texts of all its queries."""
        texts = [self.above, *(each.sql for each in self.streams), *(each.sql for each in self.prerequisites)]
        return [*texts, *(relation.sql for hybrid in self.hybrids for relation in hybrid.relations)]

    @property
    def kind(self) -> str:
        """What SHOW FLOWS calls the flow, by whether it has made its table."""
        if self.runs_once:
            return "insert into once"
        return "streaming table" if self.owns_target else "insert into"

    @property
    def changes_rows(self) -> bool:
        """Whether rows of the target are replaced or removed, so that it cannot be read as a stream."""
        return bool(self.above) or any(stream.output_mode is OutputMode.UPDATE for stream in self.streams)

    @property
    def appends(self) -> bool:
        """Whether rows are appended to the target and never change."""
        return not self.changes_rows

    @property
    def one_commit_a_batch_because(self) -> str:
        """Why a flush interval has no effect; empty when it has an effect."""
        return "" if self.appends else self.not_idempotent_because

    @property
    def rocksdb_because(self) -> str:
        """Why the state of aggregates lives in RocksDB although that was not requested; empty when no state does."""
        reasons = dict.fromkeys(stream.rocksdb_because for stream in self.streams)
        return " ".join(reason for reason in reasons if reason not in ("", ROCKSDB_ASKED_FOR))

    @property
    def quarantine_tables(self) -> tuple[tuple[str, ...], ...]:
        """The tables in which rows may be that it has quarantined, by its constraints of now or earlier ones."""
        return tuple(dict.fromkeys((*quarantines(self.constraints), *self.former_quarantines)))

    def with_constraints(self, constraints: tuple[Constraint, ...]) -> FlowSpec:
        """Return the record with other constraints on the rows of the target."""
        former = tuple(each for each in self.quarantine_tables if each not in quarantines(constraints))
        return replace(self, constraints=constraints, former_quarantines=former)

    def with_properties(self, properties: Mapping[str, str]) -> FlowSpec:
        """Return the record after ALTER FLOW .. SET, which overrides hints and WITH clauses for the same options."""
        level = Level.PROPERTY.name
        kept = _without(self.given, properties)
        sources = tuple(replace(source, given=_without(source.given, properties)) for source in self.sources)
        return replace(self, given={**kept, level: {**kept.get(level, {}), **properties}}, sources=sources)

    def to_json(self) -> str:
        """Return the record as JSON text."""
        data = asdict(self)
        data["stages"], data["statement"] = data.pop("prerequisites"), data.pop("text")  # their names in records
        return to_record(data, SPEC_VERSION)

    @classmethod
    def from_json(cls, text: str) -> FlowSpec:
        """Read a record.

        Raises:
            FlowError: the record is torn, or another version of sqlext wrote it.
        """
        return from_record(text, "flow", SPEC_VERSION, _made, FlowError)


def _made(data: dict[str, Any]) -> FlowSpec:
    data["text"] = data.pop("statement")
    data["streams"] = tuple(_stream(stream) for stream in data["streams"])
    data["prerequisites"] = tuple(PrerequisiteSpec(**{**each, "after": tuple(each["after"])}) for each in data.pop("stages", ()))
    data["operators"] = tuple(OperatorSpec(**{**each, "inputs": tuple(each["inputs"])}) for each in data["operators"])
    data["sources"] = tuple(SourceSpec(**{**each, "name": tuple(each["name"])}) for each in data["sources"])
    data["hybrids"] = tuple(_hybrid(each) for each in data["hybrids"])
    data["reads"] = inputs_from(data["reads"])
    for name in ("columns", "above_by"):
        data[name] = tuple(map(_column, data.get(name, ())))
    for name in ("target", "session_bound", "full_name", "clauses"):
        data[name] = tuple(data.get(name, ()))
    data["former_quarantines"] = tuple(map(tuple, data.get("former_quarantines", ())))
    data["constraints"] = tuple(map(constraint_from, data.get("constraints", ())))
    data["listed"] = None if data.get("listed") is None else tuple(data["listed"])
    return FlowSpec(**data)


def levels_of(given: Mapping[str, Mapping[str, str]]) -> LevelTexts:
    """Return recorded options as `options.resolve` takes them."""
    return {Level[level]: {key: ValueText(value) for key, value in values.items()} for level, values in given.items()}


def _without(given: Mapping[str, Mapping[str, str]], keys: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return options without some keys; the level of table properties keeps them."""
    return {
        level: {key: value for key, value in values.items() if level == Level.PROPERTY.name or key not in keys}
        for level, values in given.items()
    }


def _hybrid(data: Mapping[str, Any]) -> HybridSource:
    relations = tuple(HybridRelation(each["sql"], tuple(each["name"])) for each in data["relations"])
    return HybridSource(**{**data, "relations": relations})


def _column(data: Mapping[str, str]) -> Column:
    return Column(data["output"], data["target"], zoned(data["type"]))  # earlier versions have recorded TIMESTAMP


def _stream(data: Mapping[str, Any]) -> StreamSpec:
    columns = tuple(map(_column, data["columns"]))
    mode = OutputMode(data["output_mode"])
    made = {name: tuple(data[name]) for name in ("key", "state_columns")} | {
        "ttl": None if data.get("ttl") is None else StateTtl(**data["ttl"])
    }
    return StreamSpec(
        **{**data, **made, "output_mode": mode, "columns": columns, "state_backend": StateBackend(data["state_backend"])}
    )


def key_columns(key: Key, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Return the table's columns that hold a key of the query's output."""
    named = set(key.resolve([column.output for column in columns]))
    return tuple(column.target for column in columns if column.output in named)
