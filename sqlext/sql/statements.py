"""Our statements as values. Positions always refer to the text as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from sqlext.errors import Position
from sqlext.options import ValueText
from sqlext.plan.change_capture import ChangeCapture
from sqlext.plan.job_graph import TableDefinition
from sqlext.plan.view_spec import RefreshPolicy
from sqlext.sql.savepoint_statements import SavepointStatement

Name = tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """A query and the text it was parsed from.

    Attributes:
        tree: sqlglot's tree; rules work on copies of it.
        source: the statement, with everything but the query blanked out.
        capture: the AUTO CDC that it stands for; None: it is the user's own.
    """

    tree: exp.Query
    source: str
    capture: ChangeCapture | None = None

    @property
    def text(self) -> str:
        """The query as the user wrote it."""
        return self.source.strip()


@dataclass(frozen=True)
class CreateStreamingTable:
    """CREATE [OR REFRESH | OR REPLACE] STREAMING TABLE .. AS.

    Attributes:
        flow, comment: of CREATE FLOW .. AS AUTO CDC INTO a declared table, which the flow then makes: its name and comment.
    """

    name: Name
    query: Query
    definition: TableDefinition
    refresh: bool = False
    replace: bool = False
    if_not_exists: bool = False
    position: Position | None = None
    flow: Name = ()
    comment: str = ""


@dataclass(frozen=True)
class DeclareStreamingTable:
    """CREATE [OR REFRESH | OR REPLACE] STREAMING TABLE without a query: a table for a flow that comes later."""

    name: Name
    definition: TableDefinition
    refresh: bool = False
    replace: bool = False
    if_not_exists: bool = False
    position: Position | None = None


@dataclass(frozen=True)
class Insert:
    """INSERT INTO an existing table, or CREATE FLOW with one; then `flow` is the flow's name and `comment` its comment.

    Attributes:
        once: whether it is INSERT INTO ONCE, of a flow that reads tables once.
    """

    target: Name
    query: Query
    columns: Name = ()
    by_name: bool = False
    flow: Name = ()
    if_not_exists: bool = False
    comment: str = ""
    position: Position | None = None
    once: bool = False


@dataclass(frozen=True)
class AutoCdc:
    """AUTO CDC in CREATE FLOW or CREATE STREAMING TABLE: changes from a database, applied to a table.

    Attributes:
        capture: which changes, and how they are applied.
        into: the statement that it stands in. Its query is the source's rows, in whose place comes what `capture` stands for.
    """

    capture: ChangeCapture
    into: CreateStreamingTable | Insert


@dataclass(frozen=True)
class CreateTableAs:
    """CREATE TABLE .. AS over a stream that does not end."""

    query: Query
    position: Position | None = None


@dataclass(frozen=True)
class Select:
    """A query over a stream that does not end, with our hints or a bounded part, and no target."""

    query: Query
    position: Position | None = None


@dataclass(frozen=True)
class BoundedStatement:
    """A Spark statement whose query holds GLOBAL WINDOW END OF STREAM and reads no stream outside of that clause.

    Attributes:
        head: the text before the query, as written: `INSERT INTO t (a)`, `CREATE TABLE t USING delta AS`, or nothing.
        target: the table that the rows are written to; empty when there is none.
        query: the query.
        properties: the properties of the table that it makes, as written.
    """

    head: str
    target: Name
    query: Query
    properties: Mapping[str, ValueText] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionQuery:
    """A Spark statement that calls partition operators.

    Attributes:
        text: the statement in Spark's own form.
        calls: the operator of each call, and the call as written.
        is_explain: whether it is EXPLAIN of such a statement.
    """

    text: str
    calls: tuple[tuple[str, str], ...]
    is_explain: bool = False


@dataclass(frozen=True)
class ShowFlows:
    """SHOW FLOWS."""


@dataclass(frozen=True)
class ShowPartitionFunctions:
    """SHOW PARTITION FUNCTIONS."""


@dataclass(frozen=True)
class DescribeFlow:
    """DESCRIBE FLOW name."""

    name: Name


@dataclass(frozen=True)
class FlowCommand:
    """START, STOP, FLUSH, WAIT or DROP FLOW.

    Attributes:
        timeout: that of WAIT, as written.
        cascade: of STOP: whether what reads the flow's table is stopped, too.
    """

    verb: str
    name: Name
    if_exists: bool = False
    timeout: ValueText | None = None
    cascade: bool = False


@dataclass(frozen=True)
class RefreshStreamingTable:
    """REFRESH STREAMING TABLE, which brings a streaming table up to date.

    Attributes:
        is_full: whether the table is recomputed from all data that its streams still hold.
        waits: whether the statement returns only when all data that had arrived is in the table.
    """

    name: Name
    is_full: bool = False
    waits: bool = True
    position: Position | None = None


@dataclass(frozen=True)
class AlterFlow:
    """ALTER FLOW name SET (..)."""

    name: Name
    settings: Mapping[str, ValueText]


@dataclass(frozen=True)
class AlterFlowQuery:
    """ALTER FLOW name AS query, which gives the flow of a streaming table another query, and keeps what it has read."""

    name: Name
    query: Query
    position: Position | None = None


@dataclass(frozen=True)
class DropStreamingTable:
    """DROP STREAMING TABLE, which drops the table and the flow that keeps it up to date; CASCADE: and what reads it."""

    name: Name
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class AlterStreamingTable:
    """ALTER STREAMING TABLE.

    Attributes:
        settings: the properties of SET TBLPROPERTIES; empty for other changes.
        text: the statement as ALTER TABLE, with all positions unchanged.
    """

    name: Name
    settings: Mapping[str, ValueText]
    text: str
    position: Position | None = None


@dataclass(frozen=True)
class AlterConstraint:
    """ALTER STREAMING TABLE .. ADD CONSTRAINT c EXPECT (..) or DROP CONSTRAINT [IF EXISTS] c.

    Attributes:
        constraint: its name.
        text: what is said after EXPECT; None: it is dropped.
    """

    name: Name
    constraint: str
    text: ValueText | None
    if_exists: bool = False
    position: Position | None = None


@dataclass(frozen=True)
class ReplayQuarantine:
    """REPLAY QUARANTINE table [WHERE condition], which brings quarantined rows back through their flows.

    Attributes:
        condition: over the columns of the quarantine table, as written; None: all rows.
    """

    name: Name
    condition: ValueText | None = None
    position: Position | None = None


@dataclass(frozen=True)
class ScheduleClause:
    """SCHEDULE [REFRESH] EVERY duration, or TRIGGER ON UPDATE [AT MOST EVERY duration]; without either: by hand.

    Attributes:
        every: the duration, as written.
        on_update: whether it is TRIGGER ON UPDATE.
        at_most_every: its duration, as written.
    """

    every: ValueText | None = None
    on_update: bool = False
    at_most_every: ValueText | None = None


@dataclass(frozen=True)
class CreateMaterializedView:
    """CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] .. AS.

    Attributes:
        source: the statement, with everything but the query blanked out; Spark executes the query as it is.
        definition: the table that holds the rows.
    """

    name: Name
    source: str
    definition: TableDefinition
    schedule: ScheduleClause = ScheduleClause()
    policy: RefreshPolicy = RefreshPolicy.AUTO
    replace: bool = False
    if_not_exists: bool = False
    position: Position | None = None

    @property
    def text(self) -> str:
        """The query, without what stands around it."""
        return self.source.strip()


@dataclass(frozen=True)
class RefreshMaterializedView:
    """REFRESH MATERIALIZED VIEW name [FULL] [CASCADE] [SYNC | ASYNC].

    Attributes:
        is_full: whether it is computed in full.
        waits: whether the statement returns only when the view is up to date.
        cascade: whether the views that it reads, and those that read it, are refreshed with it.
    """

    name: Name
    is_full: bool = False
    waits: bool = True
    position: Position | None = None
    cascade: bool = False


@dataclass(frozen=True)
class DropMaterializedView:
    """DROP MATERIALIZED VIEW, which drops the table too; CASCADE: and what reads it."""

    name: Name
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class AlterMaterializedView:
    """ALTER MATERIALIZED VIEW.

    Attributes:
        schedule: the new schedule, of ADD and ALTER SCHEDULE or TRIGGER; by hand, of DROP SCHEDULE; None: as it was.
        policy: the new policy, of SET REFRESH POLICY; None: as it was.
        text: of all other changes, the statement as ALTER TABLE, with all positions unchanged; empty: there are none.
        settings: the properties of SET TBLPROPERTIES among these.
    """

    name: Name
    schedule: ScheduleClause | None = None
    policy: RefreshPolicy | None = None
    text: str = ""
    position: Position | None = None
    settings: Mapping[str, ValueText] = field(default_factory=dict)


@dataclass(frozen=True)
class ShowMaterializedViews:
    """SHOW MATERIALIZED VIEWS."""


@dataclass(frozen=True)
class ShowLineage:
    """SHOW LINEAGE [OF table]; without a name, of all tables."""

    name: Name = ()


@dataclass(frozen=True)
class JobCommand:
    """SHOW JOBS, SHOW JOB EVENTS id, RESUME JOB id, CANCEL JOB id."""

    verb: str
    name: Name = ()


@dataclass(frozen=True)
class SetOption:
    """SET of one of our options; sqlext checks it, Spark executes it."""

    key: str
    value: str | None
    position: Position


@dataclass(frozen=True)
class Explain:
    """EXPLAIN [EXTENDED] of one of our statements."""

    statement: Statement
    extended: bool = False


Writing = CreateStreamingTable | Insert | CreateTableAs | Select
Statement = (
    Writing
    | AutoCdc
    | DeclareStreamingTable
    | BoundedStatement
    | PartitionQuery
    | ShowFlows
    | ShowPartitionFunctions
    | DescribeFlow
    | FlowCommand
    | RefreshStreamingTable
    | AlterFlow
    | AlterFlowQuery
    | DropStreamingTable
    | AlterStreamingTable
    | AlterConstraint
    | ReplayQuarantine
    | SavepointStatement
    | CreateMaterializedView
    | RefreshMaterializedView
    | DropMaterializedView
    | AlterMaterializedView
    | ShowMaterializedViews
    | ShowLineage
    | JobCommand
    | SetOption
    | Explain
)
