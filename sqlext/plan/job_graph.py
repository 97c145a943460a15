"""The job graph: the plan of a statement, as values. Rules and planner build it; execution and EXPLAIN read it.

Sources: FLIP-331 and FLIP-365 for the operator attributes; Flink's JobGraph for the name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum

from sqlext.options import Level, ValueText
from sqlext.plan.change_capture import ChangeCapture
from sqlext.quoting import fold

logger = logging.getLogger(__name__)

QUALIFIES = "__sqlext_qualifies"
"""The column with whether a group still satisfies HAVING; the flush reads it, the target never has it."""

INTERNAL_PREFIX = "__sqlext_"

AGGREGATE_PREFIX = "__sqlext_aggregate_"
"""The prefix of a maintained aggregate's name in the query above it, before its number; numbers start at 1."""

PREREQUISITE_PREFIX = "__sqlext_stage_"
"""The prefix of a prerequisite's name in the query that reads its result, before its number; numbers start at 1."""


HYBRID_PREFIX = "__sqlext_hybrid_"
"""The prefix of a hybrid source's name in the query that reads it, before its number; numbers start at 1."""


class OutputMode(StrEnum):
    """The rows of a micro-batch that Spark passes on: changed groups, new rows, or (to recover lost rows) all groups."""

    UPDATE = "update"
    APPEND = "append"
    COMPLETE = "complete"


@dataclass(frozen=True)
class OperatorAttributes:
    """The properties of an operator that the engine may rely on (FLIP-331, FLIP-365).

    Attributes:
        is_output_idempotent: whether only the last of several rows of a key matters.
        is_output_only_after_end_of_stream: whether there is no output before all input has been read (a full dam).
    """

    is_output_idempotent: bool = False
    is_output_only_after_end_of_stream: bool = False

    def __str__(self) -> str:
        held = [attribute.name for attribute in fields(self) if getattr(self, attribute.name)]
        return ", ".join(held) if held else "no attributes"


class OperatorAttributesBuilder:
    """A builder of one operator's attributes; an attribute that is never set is false, and is logged at DEBUG."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._set: dict[str, bool] = {}

    def set_output_idempotent(self, value: bool) -> OperatorAttributesBuilder:
        """Set `is_output_idempotent`."""
        self._set["is_output_idempotent"] = value
        return self

    def set_output_only_after_end_of_stream(self, value: bool) -> OperatorAttributesBuilder:
        """Set `is_output_only_after_end_of_stream`."""
        self._set["is_output_only_after_end_of_stream"] = value
        return self

    def build(self) -> OperatorAttributes:
        """Return the attributes."""
        for attribute in fields(OperatorAttributes):
            if attribute.name not in self._set:
                logger.debug("operator %s: %s is not set; it defaults to false", self._operator, attribute.name)
        return OperatorAttributes(**self._set)


@dataclass(frozen=True)
class Source:
    """A relation that the query reads.

    Attributes:
        name: the parts of the table's name.
        alias: its name in the query.
        is_stream: whether it is read with STREAM, without an end.
        options: our options in its hints and WITH clause, by level and key.
    """

    name: tuple[str, ...]
    alias: str
    is_stream: bool
    options: Mapping[Level, Mapping[str, ValueText]] = field(default_factory=dict)


@dataclass(frozen=True)
class Operator:
    """A node of the graph.

    Attributes:
        id: its index in `JobGraph.operators`.
        kind: Source, Filter, Join, Aggregate, Project, Union, Sort, Limit, Window.
        detail: its work, in SQL.
        inputs: the ids of the operators that it reads.
        attributes: its attributes.
        source: the relation that it reads; None: it is not a source.
    """

    id: int
    kind: str
    detail: str
    inputs: tuple[int, ...]
    attributes: OperatorAttributes
    source: Source | None = None


@dataclass(frozen=True)
class Key:
    """The columns that identify a row of the target.

    Attributes:
        columns: their names; with `all_but`, the names of the columns that are *not* in the key.
        all_but: whether the select list holds `*`, so that only the columns outside of the key are known by name.
    """

    columns: tuple[str, ...] = ()
    all_but: bool = False

    def resolve(self, output: Sequence[str]) -> tuple[str, ...]:
        """Return the key's columns among the query's output columns, in the output's spelling and order."""
        named = {fold(column) for column in self.columns}
        return tuple(c for c in output if (fold(c) in named) != self.all_but and c != QUALIFIES)


@dataclass(frozen=True)
class Stage:
    """Operators that run together; a blocking stage must end before those that read it start (FLIP-331)."""

    id: int
    operators: tuple[int, ...]
    is_blocking: bool


@dataclass(frozen=True)
class JobGraph:
    """Operators in topological order; the last one feeds the sink."""

    operators: tuple[Operator, ...]

    @property
    def last(self) -> Operator:
        """The operator that feeds the sink."""
        return self.operators[-1]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The relations that the query reads."""
        return tuple(operator.source for operator in self.operators if operator.source)

    @property
    def streams(self) -> tuple[Source, ...]:
        """The sources that are streams."""
        return tuple(source for source in self.sources if source.is_stream)

    def stages(self) -> tuple[Stage, ...]:
        """Cut the graph after every full-dam operator that has a reader which is not itself a full dam."""
        stage_of: dict[int, int] = {}
        dams: set[int] = set()
        for operator in reversed(self.operators):
            readers = [other for other in self.operators if operator.id in other.inputs]
            is_cut = operator.attributes.is_output_only_after_end_of_stream and any(
                not reader.attributes.is_output_only_after_end_of_stream for reader in readers
            )
            if is_cut or not readers:
                dams |= {operator.id} if is_cut else set()
                stage_of[operator.id] = operator.id
            else:
                stage_of[operator.id] = stage_of[readers[0].id]
        heads = sorted(set(stage_of.values()))
        return tuple(
            Stage(number, tuple(sorted(i for i, head in stage_of.items() if head == stage_head)), stage_head in dams)
            for number, stage_head in enumerate(heads, 1)
        )


@dataclass(frozen=True)
class Firing:
    """A rule that changed the query, with the SQL before and after."""

    batch: str
    rule: str
    before: str
    after: str


@dataclass(frozen=True)
class References:
    """The unqualified names that a query uses, folded: a session may give them a meaning of its own.

    Attributes:
        relations: the names of tables and views.
        functions: the names of all functions that are called.
        columns: the names of columns or session variables.
        names_streams: whether a stream has a name of its own (IDENTIFIED BY), which Spark takes in such sessions only.
    """

    relations: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    names_streams: bool = False


@dataclass(frozen=True)
class MaintainedAggregate:
    """A streaming aggregate that is kept in a table of its own, so that a query above it can be evaluated at each flush.

    Attributes:
        name: the relation's name in `FlowPlan.above`, `__sqlext_aggregate_1`, ..
        sql: the streaming query for Spark, all rules applied.
        key: the key of its rows; no columns: it holds one row.
    """

    name: str
    sql: str
    key: Key

    @property
    def writes_target(self) -> bool:
        """Whether its rows are the target's, with no query above it; then it has no name."""
        return not self.name


@dataclass(frozen=True)
class Prerequisite:
    """A bounded query inside a flow's query: its result is a table before the streaming queries start (FLIP-331).

    Attributes:
        name: the relation's name in the queries that read it, `__sqlext_stage_1`, ..
        sql: the query for Spark, all rules applied.
        after: the names of the prerequisites that it reads.
    """

    name: str
    sql: str
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class HybridRelation:
    """A relation of a hybrid source.

    Attributes:
        sql: the streaming query that reads it.
        name: the parts of the table's name; empty for a call.
    """

    sql: str
    name: tuple[str, ...]


@dataclass(frozen=True)
class HybridSource:
    """Relations that are read one after the other; the last one is the live stream (FLIP-309).

    Attributes:
        name: the name of the view that the query reads, `__sqlext_hybrid_1`, ..
        alias: its name in the query, folded (`quoting.fold`).
        relations: the relations, in the order in which they are read.
        on: a column; a row of a later relation counts only if its value is greater than all earlier ones. Empty: all rows count.
    """

    name: str
    alias: str
    relations: tuple[HybridRelation, ...]
    on: str = ""


@dataclass(frozen=True)
class FlowPlan:
    """A streaming query, ready to run.

    Attributes:
        sql: the query for Spark, all rules applied; empty when `above` is not.
        graph: its operators.
        output_mode: UPDATE for an aggregate (rows replace rows of the same key), otherwise APPEND.
        key: the target's key in UPDATE mode; no columns: the target holds one row. Not used when `above` is not empty.
        firings: the rules that changed the query.
        hints: the flow-wide options given by hint.
        references: the names that may have a meaning of the session's own.
        not_idempotent_because: why rows are appended, or why a flush interval has no effect; None when it has an effect.
        aggregates: the streaming queries that `above` reads.
        above: the batch query over the relations of `aggregates` and over tables that produces all rows of the target; empty
            when `sql` produces them.
        above_by: columns of `above`, each with the column of all aggregates that it is: the rows with some values of these
            depend on the aggregates' rows with these values alone. Empty: nothing is known about it.
        prerequisites: the bounded queries that end before the streaming ones start, each after the ones that it reads.
        hybrids: the hybrid sources.
        having: the condition of HAVING, as the user wrote it, where it is a column of `sql`.
        qualified_by: the aliases, folded, by which QUALIFY names window functions of streams' rows. Where the rows have a column
            of such a name, Spark takes that one.
        written: the query as the user wrote it, without the parts that only sqlext reads; Spark decides its columns' types.
        is_sparks_own: whether Spark can analyze `written`, unless the query is wrong.
        runs_once: whether it reads tables once, and no stream.
        capture: the AUTO CDC that it stands for; None: it is the user's own.
    """

    sql: str
    graph: JobGraph
    output_mode: OutputMode
    key: Key = Key()
    firings: tuple[Firing, ...] = ()
    hints: Mapping[str, ValueText] = field(default_factory=dict)
    references: References = References()
    not_idempotent_because: str | None = None
    aggregates: tuple[MaintainedAggregate, ...] = ()
    above: str = ""
    above_by: Mapping[str, str] = field(default_factory=dict)
    prerequisites: tuple[Prerequisite, ...] = ()
    hybrids: tuple[HybridSource, ...] = ()
    having: str = ""
    qualified_by: tuple[str, ...] = ()
    written: str = ""
    is_sparks_own: bool = False
    runs_once: bool = False
    capture: ChangeCapture | None = None

    @property
    def appends(self) -> bool:
        """Whether rows are appended to the target and never change."""
        return self.output_mode is OutputMode.APPEND and not self.above

    @property
    def queries(self) -> tuple[MaintainedAggregate, ...]:
        """The streaming queries to run; a query that writes the target itself has no name."""
        return self.aggregates if self.above else (MaintainedAggregate("", self.sql, self.key),)


@dataclass(frozen=True)
class BoundedPlan:
    """A query that ends, ready to run.

    Attributes:
        sql: the query for Spark, all rules applied; its parts with END OF STREAM are calls of a table function.
        graph: its operators.
        firings: the rules that changed the query.
        plain_sql: the query with those parts as plain queries: a job that survives its driver plans them itself.
        references: the names that the query uses.
        texts: the string literals in it; some may be names of functions.
    """

    sql: str
    graph: JobGraph
    firings: tuple[Firing, ...] = ()
    plain_sql: str = ""
    references: References = References()
    texts: frozenset[str] = frozenset()


FLOW_PROPERTY = "sqlext.flow"
"""The table property that names the flow that made a streaming table; only sqlext sets it."""
SHARED_PROPERTY = "sqlext.shared"
"""The table property of a streaming table to which another flow appends, too, or did; only sqlext sets it."""
DECLARED_PROPERTY = "sqlext.declared"
"""The table property that holds the CREATE STREAMING TABLE, without a query, that made a table; only sqlext sets it."""


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of a streaming table's column list.

    Attributes:
        name: the table's name for the query's column at the same position.
        type: the type as written; empty: the type of the query's column.
        is_required: whether it is NOT NULL.
        comment: its comment; None: it has none.
    """

    name: str
    type: str = ""
    is_required: bool = False
    comment: str | None = None


@dataclass(frozen=True)
class TableDefinition:
    """The definition of the table in CREATE STREAMING TABLE.

    Attributes:
        clauses: the clauses, as written.
        properties: the table properties.
        columns: the column list, one for each column of the query; empty: the columns are the query's.
        comments: comments of columns and nested fields, by path in lower case; they override the comments in `columns`.
    """

    clauses: tuple[str, ...] = ()
    properties: Mapping[str, ValueText] = field(default_factory=dict)
    columns: tuple[ColumnDefinition, ...] = ()
    comments: Mapping[tuple[str, ...], str] = field(default_factory=dict)
