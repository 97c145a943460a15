"""The registry of jobs: the definition and state of each job, as a log of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from sqlext.errors import JobError, NotFoundError, did_you_mean
from sqlext.execution.coordination.event_log import Folder
from sqlext.execution.coordination.registry import Registry, RegistryEvent
from sqlext.execution.coordination.snapshot_log import SnapshotLog
from sqlext.execution.jobs.pins import Pin
from sqlext.plan.records import from_record, to_record

SPEC_VERSION = 1


@dataclass(frozen=True)
class JobSpec:
    """The definition of a job: all that a driver needs to run or resume it.

    Attributes:
        id: its id, never reused; its folder and its transaction are named after it.
        text: the statement, as the user wrote it.
        head: the statement up to the query, for Spark: `INSERT INTO t (a)`, `CREATE TABLE t USING delta AS`.
        query: the query for Spark, with rules applied and without END OF STREAM.
        target: catalog, database and name of the table that it fills.
        target_version: the target's version when the job was submitted; -1: there was no table.
        target_id: Delta's id of the target when the job was submitted; "": there was no table, or an older sqlext submitted it.
        target_location: the location, empty on submission, of a table that the job creates; "" if it creates none, or the
            location is not known.
        is_sorted: whether its aggregates sort.
        buckets: the number of buckets of an exchange.
        pins: its pinned inputs.
        time: the value of current_timestamp(), in milliseconds since 1970; 0: each driver has its own.
        seeds: the seeds of rand(), uuid() and the like, in the order of `repetition.with_seeds`.
        fingerprint: a hash of its plan.
        functions: a fingerprint of each Python function that it calls, by name.
        catalog, database, settings: those of the session that submitted it.
        variables: the session variables that it uses: type and value, as DECLARE VARIABLE takes them, by name.
    """

    id: str
    text: str
    head: str
    query: str
    target: tuple[str, ...]
    target_version: int
    target_location: str
    is_sorted: bool
    buckets: int
    pins: tuple[Pin, ...]
    fingerprint: str
    functions: Mapping[str, str] = field(default_factory=dict)
    catalog: str = "spark_catalog"
    database: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    time: int = 0
    target_id: str = ""
    seeds: tuple[int, ...] = ()

    @property
    def session_bound(self) -> tuple[str, ...]:
        """The temporary views and functions that it reads: none, a statement that reads such is no recoverable job."""
        return ()

    @property
    def makes_table(self) -> bool:
        """Whether the job creates its table."""
        return self.target_version < 0

    def to_json(self) -> str:
        """Write the spec as JSON, for the registry."""
        data = asdict(self)
        data["statement"] = data.pop("text")  # the name in stored records
        return to_record(data, SPEC_VERSION)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read a spec back.

        Raises:
            JobError: the spec is torn, or another version of sqlext wrote it.
        """
        return from_record(text, "job", SPEC_VERSION, _made, JobError)


def _made(data: dict[str, Any]) -> JobSpec:
    pins = tuple(Pin(**{**pin, "files": tuple((p, s, t) for p, s, t in pin["files"])}) for pin in data.pop("pins"))
    data["text"] = data.pop("statement")
    return JobSpec(**{**data, "target": tuple(data["target"]), "pins": pins, "seeds": tuple(data.get("seeds", ()))})


class JobEventKind(StrEnum):
    """The kind of an event of a job as a whole."""

    SUBMITTED = "submitted"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


class JobState(StrEnum):
    """The state of a job; RUNNING is also that of a job whose driver died."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


@dataclass(frozen=True)
class RegisteredEvent(RegistryEvent):
    """One event of the registry, as written.

    Attributes:
        job_id: the job's id.
        kind: the kind of the event.
        epoch: the epoch of the driver that runs the job; a driver with an older epoch is fenced.
        host: the id of the driver's process.
        spec: the job's definition as JSON, in a SUBMITTED event.
        detail: an error's message, or the cost of a finished job as JSON.
    """

    id_field = "job_id"

    job_id: str
    kind: JobEventKind
    epoch: int = 0
    host: str = ""
    spec: str = ""
    detail: str = ""


@dataclass(frozen=True)
class JobRecord:
    """A job in its current state, as recorded by its events."""

    spec: JobSpec
    state: JobState
    epoch: int
    host: str
    submitted: str
    ended: str = ""
    detail: str = ""


Records = Mapping[str, JobRecord]

_STATES = {
    JobEventKind.STARTED: JobState.RUNNING,
    JobEventKind.FINISHED: JobState.FINISHED,
    JobEventKind.FAILED: JobState.FAILED,
    JobEventKind.CANCELED: JobState.CANCELED,
}


def fold(events: Iterable[RegisteredEvent], before: Records = MappingProxyType({})) -> dict[str, JobRecord]:
    """Return the jobs after `events`, by id, in order of submission.

    Args:
        before: the jobs before them.

    Raises:
        JobError: a record cannot be read.
    """
    records = dict(before)
    for event in events:
        if event.kind is JobEventKind.SUBMITTED:
            spec = JobSpec.from_json(event.spec)
            records[event.job_id] = JobRecord(spec, JobState.RUNNING, 0, event.host, event.at)
        record = records.get(event.job_id)
        if record is None or event.kind is JobEventKind.SUBMITTED or 0 < event.epoch < record.epoch:
            continue  # a fenced driver wrote it; the job runs elsewhere
        is_over = event.kind is not JobEventKind.STARTED
        records[event.job_id] = replace(
            record,
            state=_STATES[event.kind],
            epoch=max(event.epoch, record.epoch),
            host=event.host or record.host,
            ended=event.at if is_over else "",
            detail=event.detail,
        )
    return records


def events_of(record: JobRecord) -> list[RegisteredEvent]:
    """Return events that add up to a job."""
    spec = record.spec
    events = [RegisteredEvent(spec.id, JobEventKind.SUBMITTED, host=record.host, spec=spec.to_json(), at=record.submitted)]
    if record.epoch or record.state is not JobState.RUNNING or record.detail:
        kind = next(kind for kind, state in _STATES.items() if state is record.state)
        events.append(RegisteredEvent(spec.id, kind, record.epoch, record.host, detail=record.detail, at=record.ended))
    return events


def find(records: Records, job_id: str) -> JobRecord:
    """Return the job with an id, or with an id that begins with the text given, if there is only one such job.

    Raises:
        NotFoundError: there is no such job, or there are several; the message names the nearest id.
    """
    found = [record for key, record in records.items() if key.startswith(job_id.lower())]
    if len(found) == 1 and job_id:
        return found[0]
    what = f"There are {len(found)} jobs whose ids begin with" if found else "There is no job"
    raise NotFoundError(f"{what} `{job_id}`.{did_you_mean(job_id, list(records))} SHOW JOBS lists them.")


class JobRegistry(Registry[RegisteredEvent, JobRecord]):
    """The registry of the jobs of one home.

    Args:
        home: the folder that holds the registry's files.
        written: called with each event that this process has written, and the records after it.
    """

    def __init__(self, home: Folder, written: Callable[[RegisteredEvent, Records], None] = lambda event, records: None) -> None:
        log = SnapshotLog(home.child("jobs", "registry"))
        super().__init__(log, JobEventKind, RegisteredEvent, JobSpec.from_json, fold, events_of, written)
