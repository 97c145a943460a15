"""The runs of flows, refreshes and jobs, for those who want to hear of them: begun, getting on, ended.

A flow runs from its start to its stop or failure, a view for the time of a refresh, a job for that of a driver. Who tells does
not wait for those who hear, and knows nothing of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from sqlext.plan.lineage import Input
from sqlext.plan.view_spec import RefreshReport
from sqlext.spark.sessions import SessionRecord

logger = logging.getLogger(__name__)


class RunKind(StrEnum):
    """What runs."""

    FLOW = "flow"
    VIEW = "materialized view"
    JOB = "job"


class RunState(StrEnum):
    """What has become of a run: STOPPED is an end that is no failure and leaves something undone."""

    BEGUN = "begun"
    FLUSHED = "flushed"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Query:
    """A query whose rows go into the table as they are.

    Attributes:
        sql: the query for Spark.
        columns: the name of each column that is used, and that of the table's column; empty: all are, by their places.
        names: the names of the table's columns, in the order of the query's; empty: they have the query's names.
        gives_columns: whether it is known which column of the table each one goes into.
    """

    sql: str
    columns: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    gives_columns: bool = True


@dataclass(frozen=True)
class Runnable:
    """What runs.

    Attributes:
        id: of the flow, view or job.
        kind: what it is.
        name: its qualified name.
        text: its statement.
        target: the table that it writes.
        columns: name and type of the table's columns, as far as they are on record.
        reads: what it reads, as far as that is on record.
        query: what reads; None: several queries do, or one that only its own session knows.
        session: the record of the session that created it.
    """

    id: str
    kind: RunKind
    name: tuple[str, ...]
    text: str
    target: Input
    columns: tuple[tuple[str, str], ...]
    reads: tuple[Input, ...]
    query: Query | None
    session: SessionRecord


@dataclass(frozen=True)
class RunEvent:
    """An event of a run.

    Attributes:
        id: of the flow, view or job.
        state: what has become of the run.
        runs: what runs; None unless it has begun.
        rows: the number of rows that were written since the event before; None: not known.
        error: the message of a failure.
        report: of a refresh that has completed.
        at: when.
    """

    id: str
    state: RunState
    runs: Runnable | None = None
    rows: int | None = None
    error: str = ""
    report: RefreshReport | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


Listener = Callable[[RunEvent], None]
"""Called on the thread that works, so it must return at once."""

_listeners: tuple[Listener, ...] = ()


def tell(event: RunEvent) -> None:
    """Tell all listeners; what one of them raises is logged, and disturbs nobody."""
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            logger.exception("%s of %s could not be told", event.state.value, event.id)


def listen(listener: Listener) -> None:
    """Have a listener called with each event of this process from now on."""
    global _listeners
    _listeners = (*_listeners, listener)


def unlisten(listener: Listener) -> None:
    """Have a listener called no more."""
    global _listeners
    _listeners = tuple(each for each in _listeners if each != listener)  # a method is another object each time


@contextmanager
def listened(listener: Listener) -> Iterator[None]:
    """Have a listener called in the `with` block."""
    listen(listener)
    try:
        yield
    finally:
        unlisten(listener)
