"""The registry: every flow of a home, as events in one Delta table.

The table only grows; a flow's state is the fold of its events. An event's number is the version of a Delta transaction, so
two drivers that write at once cannot both take the same number: the later one reads again, checks again and tries again.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.errors import FlowError, NotFoundError, did_you_mean
from sqlext.execution.spec import FlowSpec
from sqlext.jvm import HadoopPath, reason_of, table_version

logger = logging.getLogger(__name__)

_APP_ID = "sqlext-registry"
_ATTEMPTS = 20
_SCHEMA = (
    "seq BIGINT, at STRING, flow_id STRING, kind STRING, epoch BIGINT, host STRING, spec STRING, detail STRING, token STRING"
)


class EventKind(StrEnum):
    """What happened to a flow."""

    RESERVED = "reserved"
    STARTED = "started"
    STOPPED = "stopped"
    FAILED = "failed"
    ALTERED = "altered"
    DROPPED = "dropped"


class FlowState(StrEnum):
    """What a flow is meant to be; RUNNING is also the state of one whose host died, RESERVED of one that is being made."""

    RESERVED = "RESERVED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class FlowEvent:
    """One event, as written.

    Attributes:
        epoch: of the driver that runs the flow; a driver with an older one is fenced.
        host: the process that runs it.
        detail: an error's message.
    """

    flow_id: str
    kind: EventKind
    epoch: int = 0
    host: str = ""
    spec: str = ""
    detail: str = ""
    at: str = ""


@dataclass(frozen=True)
class FlowRecord:
    """A flow as its events tell it."""

    spec: FlowSpec
    state: FlowState
    epoch: int
    host: str
    error: str
    since: str


@dataclass(frozen=True)
class _Numbered:
    """An event in the table; `token` tells whose write it was."""

    seq: int
    token: str
    event: FlowEvent


Records = Mapping[str, FlowRecord]


def fold(events: Iterable[FlowEvent]) -> dict[str, FlowRecord]:
    """The flows that exist, by id, after `events` in order; a torn record is left out and logged."""
    records: dict[str, FlowRecord] = {}
    states = {
        EventKind.STARTED: FlowState.RUNNING,
        EventKind.STOPPED: FlowState.STOPPED,
        EventKind.FAILED: FlowState.FAILED,
    }
    for event in events:
        try:
            spec = FlowSpec.from_json(event.spec) if event.spec else None
        except FlowError as error:
            logger.error("flow %s is left out: %s", event.flow_id, error)
            records.pop(event.flow_id, None)
            continue
        if event.kind is EventKind.RESERVED and spec is not None:
            records[event.flow_id] = FlowRecord(spec, FlowState.RESERVED, 0, event.host, "", event.at)
        record = records.get(event.flow_id)
        if record is None:
            continue
        if event.kind in (EventKind.FAILED, EventKind.STOPPED) and 0 < event.epoch < record.epoch:
            continue  # a driver that another has replaced says so; the flow goes on elsewhere
        if event.kind is EventKind.DROPPED:
            del records[event.flow_id]
        elif event.kind is EventKind.ALTERED:
            records[event.flow_id] = replace(record, spec=spec or record.spec)
        elif event.kind in states:
            records[event.flow_id] = replace(
                record,
                spec=spec or record.spec,
                state=states[event.kind],
                epoch=max(event.epoch, record.epoch),
                host=event.host,
                error=event.detail if event.kind is EventKind.FAILED else "",
                since=event.at,
            )
    return records


def find(records: Records, name: str) -> FlowRecord:
    """The flow called `name`; case does not matter.

    Raises:
        NotFoundError: with the nearest name.
    """
    for record in records.values():
        if record.spec.name.lower() == name.lower():
            return record
    names = [record.spec.name for record in records.values()]
    raise NotFoundError(f"There is no flow `{name}`.{did_you_mean(name, names)} SHOW FLOWS lists them.")


class FlowRegistry:
    """Reads and writes the registry of one home. Any thread may call any method; the lock makes writes take turns.

    Args:
        spark: a session of its own; settings on it are the registry's.
        home: the folder under which the table lies.
    """

    def __init__(self, spark: SparkSession, home: HadoopPath) -> None:
        self._spark = spark
        self._path = home.child("registry")
        self._lock = threading.Lock()
        self._cache: tuple[int, list[_Numbered]] = (-1, [])

    def read(self) -> dict[str, FlowRecord]:
        """All flows, by id."""
        return fold(each.event for each in self._events())

    def append(self, event: FlowEvent | Callable[[Records], FlowEvent]) -> dict[str, FlowRecord]:
        """Write an event.

        Args:
            event: what happened; a function sees the flows as they are just before, and raises when nothing must be written.

        Returns:
            The flows after it.

        Raises:
            FlowError: other drivers kept writing at the same moment, or the table cannot be written.
        """
        token = uuid.uuid4().hex
        with self._lock:
            for _ in range(_ATTEMPTS):
                events = self._events()
                seq = max((each.seq for each in events), default=0) + 1
                now = event(fold(each.event for each in events)) if callable(event) else event
                self._write(seq, replace(now, at=datetime.now(UTC).isoformat(timespec="milliseconds")), token)
                events = self._events()
                if any(each.token == token for each in events):
                    return fold(each.event for each in events)
        raise FlowError(f"The registry {self._path.location} is busy: other drivers keep writing to it. Try again.")

    def _events(self) -> list[_Numbered]:
        """All events in order, read again only when the table has a new version."""
        if not self._path.child("_delta_log").exists():
            return []
        version = table_version(self._spark, self._path.location)
        if self._cache[0] != version:
            rows = self._spark.read.format("delta").option("versionAsOf", version).load(self._path.location).collect()
            events = [
                _Numbered(
                    row.seq,
                    row.token,
                    FlowEvent(row.flow_id, EventKind(row.kind), row.epoch, row.host, row.spec, row.detail, row.at),
                )
                for row in rows
            ]
            self._cache = (version, sorted(events, key=lambda each: each.seq))
        return self._cache[1]

    def _write(self, seq: int, event: FlowEvent, token: str) -> None:
        """Try to make this event number `seq`; another driver may have taken the number."""
        values = {
            "seq": seq,
            "at": event.at,
            "flow_id": event.flow_id,
            "kind": event.kind.value,
            "epoch": event.epoch,
            "host": event.host,
            "spec": event.spec,
            "detail": event.detail,
            "token": token,
        }
        columns = ", ".join(f"CAST(:{name} AS {kind}) AS {name}" for name, kind in (c.split() for c in _SCHEMA.split(", ")))
        try:
            (
                self._spark.sql(f"SELECT {columns}", values)  # names from _SCHEMA, values as parameters
                .coalesce(1)
                .write.format("delta")
                .mode("append")
                .option("txnAppId", _APP_ID)
                .option("txnVersion", seq)
                .save(self._path.location)
            )
        except (PySparkException, Py4JJavaError) as error:
            if "Concurrent" not in str(error) and "ProtocolChanged" not in str(error):
                raise FlowError(f"The registry {self._path.location} cannot be written: {reason_of(error)}") from None
