"""A materialized view as it is recorded: what a process needs to refresh it. Knows no sqlglot and no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from sqlext.errors import ViewError
from sqlext.plan.constraints import Constraint, constraint_from
from sqlext.plan.lineage import Input, inputs_from, place
from sqlext.plan.records import from_record, to_record

SPEC_VERSION = 2
VIEW_PROPERTY = "sqlext.view"
"""The table property with the id of the materialized view whose rows the table holds."""


class RefreshPolicy(StrEnum):
    """The ways in which a view may be refreshed, as REFRESH POLICY names them."""

    AUTO = "AUTO"
    """Incrementally, or in full where that is not possible or costs less."""
    INCREMENTAL = "INCREMENTAL"
    """Incrementally wherever that is possible, whatever it costs."""
    STRICT = "INCREMENTAL STRICT"
    """Incrementally; a query that cannot be is refused when the view is created."""
    FULL = "FULL"
    """Always in full."""


@dataclass(frozen=True)
class Schedule:
    """When a view is refreshed by itself; without a time, only REFRESH does it.

    Attributes:
        every: seconds between two refreshes (SCHEDULE EVERY); None: none.
        on_update: whether a change of a source causes a refresh (TRIGGER ON UPDATE).
        at_most_every: seconds that pass at least between two refreshes caused by changes.
        is_stopped: whether STOP FLOW has suspended it, until START FLOW.
        target_lag: how old the view's content may be, against its first sources, in seconds; None: nobody has said.
        is_downstream: whether it is brought up to date when a target lag above it asks for that (DOWNSTREAM).
    """

    every: float | None = None
    on_update: bool = False
    at_most_every: float = 60.0
    is_stopped: bool = False
    target_lag: float | None = None
    is_downstream: bool = False

    @property
    def has_pace(self) -> bool:
        """Whether it has an interval of its own, which holds whatever others need."""
        return self.every is not None or self.on_update

    @property
    def is_by_hand(self) -> bool:
        """Whether only REFRESH refreshes the view, unless a target lag above it asks for that."""
        return self.is_stopped or not (self.has_pace or self.is_downstream or self.target_lag is not None)


@dataclass(frozen=True)
class ViewSpec:
    """The definition of a materialized view.

    Attributes:
        id: its id, never reused; its commits carry it as their transaction's application.
        name: catalog, database and name of its table.
        location: the folder of the table's files.
        table_id: Delta's id of the table.
        text: the statement, as the user wrote it, without secrets.
        query: the query of the statement.
        columns: the names of the table's columns, in the order of the query's.
        written: the query as the user wrote it, if `query` leaves out the rows that constraints drop; otherwise empty.
        written_columns: the names of its columns when the view was made: `*` may mean others later.
        reads: the relations that the query reads.
        has_own_types: whether the statement's column list gives types, into which the query's values are cast.
        policy: how it may be refreshed.
        schedule: when it is refreshed.
        catalog, database, settings: those of the session that created it.
        variables: the session variables that it uses: type and value, as DECLARE VARIABLE takes them, by name.
        session_bound: the temporary views and functions that it reads; with any, it can be refreshed only while its host lives.
        comment: the table's comment.
        constraints: on its rows; `query` leaves out the rows that they drop.
    """

    id: str
    name: tuple[str, ...]
    location: str
    table_id: str
    text: str
    query: str
    columns: tuple[str, ...]
    written: str = ""
    written_columns: tuple[str, ...] = ()
    reads: tuple[Input, ...] = ()
    has_own_types: bool = False
    policy: RefreshPolicy = RefreshPolicy.AUTO
    schedule: Schedule = Schedule()
    catalog: str = "spark_catalog"
    database: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    session_bound: tuple[str, ...] = ()
    comment: str = ""
    constraints: tuple[Constraint, ...] = ()

    def to_json(self) -> str:
        """Return the record as JSON text."""
        return to_record(asdict(self), SPEC_VERSION)

    @classmethod
    def from_json(cls, text: str) -> ViewSpec:
        """Read a record.

        Raises:
            ViewError: the record is torn, or another version of sqlext wrote it.
        """
        return from_record(text, "materialized view", SPEC_VERSION, _made, ViewError)


def _made(data: dict[str, Any]) -> ViewSpec:
    for name in ("name", "columns", "session_bound"):
        data[name] = tuple(data[name])
    data["reads"] = inputs_from(data["reads"])
    data["written_columns"] = tuple(data.get("written_columns", ()))
    data["constraints"] = tuple(map(constraint_from, data.get("constraints", ())))
    return ViewSpec(**{**data, "policy": RefreshPolicy(data["policy"]), "schedule": Schedule(**data["schedule"])})


@dataclass(frozen=True)
class SourceVersion:
    """A version of a table that a view reads.

    Attributes:
        id: Delta's id of the table.
        version: the version.
        location: the folder of the table's files; empty: not recorded. The same version may be found at another location.
    """

    id: str
    version: int
    location: str = field(default="", compare=False)


@dataclass(frozen=True)
class RefreshReport:
    """What one refresh did; the commit's metadata holds it.

    Attributes:
        version: the view's version after it; that of before if nothing was committed.
        number: the number of the refresh, from 1; it is the version of the commit's transaction.
        done: `no change`, `append`, `changed rows`, `merge groups`, `touched groups`, `touched partitions` or `full`.
        because: why it was done so.
        sources: the version of each source, by the name of its table.
        rows_in: the number of changed rows of the sources; -1 in full.
        rows_deleted, rows_inserted: rows of the view; -1: not counted.
        seconds: how long it took.
        query: a hash of the query and of the SQL views that it reads.
        full_seconds: how long the newest refresh in full took; 0: there was none.
        incremental_seconds: how long the newest incremental one took, halved at each refresh in full since, so that it is tried
            again; 0: there was none.
        partials: the version of the table of partial results beside the view (`execution/views/partials.py`); -1: it has none;
            -2: its results cannot be computed exactly from partial ones.
        read: the number of changed rows of each source that was read, by name; none in full.
        cut: the versions of the first sources, which no flow or view keeps, that the rows are made of, by name (`plan/cut.py`).
        violations: how many of the inserted rows violate each constraint that leaves them in the view.
        mixed: the first sources of which they are made of several versions, or of some that are not known.
    """

    version: int
    number: int
    done: str
    because: str
    sources: Mapping[str, SourceVersion]
    rows_in: int = -1
    rows_deleted: int = -1
    rows_inserted: int = -1
    seconds: float = 0.0
    query: str = ""
    full_seconds: float = 0.0
    incremental_seconds: float = 0.0
    partials: int = -1
    read: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, SourceVersion] = field(default_factory=dict)
    mixed: tuple[str, ...] = ()
    violations: Mapping[str, int] = field(default_factory=dict)

    def moved(self, after: Mapping[str, SourceVersion]) -> list[str]:
        """Return the sources whose files lie elsewhere now: a copy has the same id and versions, and may have other rows."""
        before = {name: place(version.location) for name, version in self.sources.items()}
        return [name for name, version in after.items() if before.get(name) and before[name] != place(version.location)]

    def is_other(self, query: str, after: Mapping[str, SourceVersion]) -> bool:
        """Return whether a query means something else now: by its hash, and the tables that it reads."""
        ids = ({name: version.id for name, version in each.items()} for each in (self.sources, after))
        return self.query != query or next(ids) != next(ids) or bool(self.moved(after))
