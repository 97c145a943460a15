"""Our statements as values. Positions always refer to the statement as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from sqlext.errors import Position
from sqlext.options import ValueText
from sqlext.plan.job_graph import TableDefinition

Name = tuple[str, ...]


@dataclass(frozen=True)
class Query:
    """A query and the text it was parsed from.

    Attributes:
        tree: sqlglot's tree; rules work on copies of it.
        source: the statement, with all but the query blanked out.
    """

    tree: exp.Query
    source: str

    @property
    def text(self) -> str:
        return self.source.strip()


@dataclass(frozen=True)
class CreateStreamingTable:
    name: Name
    query: Query
    definition: TableDefinition
    refresh: bool = False
    replace: bool = False
    if_not_exists: bool = False
    position: Position | None = None


@dataclass(frozen=True)
class Insert:
    """INSERT INTO an existing table; `flow` is its name when it stands in CREATE FLOW, `comment` what that says of it."""

    target: Name
    query: Query
    columns: Name = ()
    by_name: bool = False
    flow: Name = ()
    if_not_exists: bool = False
    comment: str = ""
    position: Position | None = None


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
    """A statement of Spark's whose query holds GLOBAL WINDOW END OF STREAM and reads no stream beyond it.

    Attributes:
        head: what stands before the query, as written: `INSERT INTO t (a)`, `CREATE TABLE t USING delta AS`, or nothing.
        target: the table that the rows go into; empty when they go nowhere.
        query: its source is the statement with all but the query blanked out.
        properties: of the table that it makes, as written.
    """

    head: str
    target: Name
    query: Query
    properties: Mapping[str, ValueText] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionQuery:
    """A statement of Spark's in which partition operators are called.

    Attributes:
        text: in Spark's own form.
        calls: operator, and call as written, of each.
        is_explain: whether it is EXPLAIN of such a statement.
    """

    text: str
    calls: tuple[tuple[str, str], ...]
    is_explain: bool = False


@dataclass(frozen=True)
class ShowFlows:
    pass


@dataclass(frozen=True)
class ShowPartitionFunctions:
    pass


@dataclass(frozen=True)
class DescribeFlow:
    name: Name


@dataclass(frozen=True)
class FlowCommand:
    """START, STOP, FLUSH, WAIT or DROP FLOW; `timeout` is WAIT's, as written."""

    verb: str
    name: Name
    if_exists: bool = False
    timeout: ValueText | None = None


@dataclass(frozen=True)
class RefreshStreamingTable:
    """Bring a streaming table up to date.

    Attributes:
        is_full: compute it anew, from all that its streams still hold.
        waits: return when all that had arrived is in the table.
    """

    name: Name
    is_full: bool = False
    waits: bool = True
    position: Position | None = None


@dataclass(frozen=True)
class AlterFlow:
    name: Name
    settings: Mapping[str, ValueText]


@dataclass(frozen=True)
class DropStreamingTable:
    """Drop a streaming table and the flow that keeps it up to date."""

    name: Name
    if_exists: bool = False


@dataclass(frozen=True)
class AlterStreamingTable:
    """ALTER STREAMING TABLE.

    Attributes:
        settings: what SET TBLPROPERTIES gives; empty for all else.
        text: the same as ALTER TABLE, with its places in the text.
    """

    name: Name
    settings: Mapping[str, ValueText]
    text: str
    position: Position | None = None


@dataclass(frozen=True)
class JobCommand:
    """SHOW JOBS, SHOW JOB EVENTS id, RESUME JOB id, CANCEL JOB id."""

    verb: str
    name: Name = ()


@dataclass(frozen=True)
class SetOption:
    """SET of one of our options: checked here, carried out by Spark."""

    key: str
    value: str | None
    position: Position


@dataclass(frozen=True)
class Explain:
    statement: Statement
    extended: bool = False


Writing = CreateStreamingTable | Insert | CreateTableAs | Select
Statement = (
    Writing
    | BoundedStatement
    | PartitionQuery
    | ShowFlows
    | ShowPartitionFunctions
    | DescribeFlow
    | FlowCommand
    | RefreshStreamingTable
    | AlterFlow
    | DropStreamingTable
    | AlterStreamingTable
    | JobCommand
    | SetOption
    | Explain
)
