"""The registry of jobs: what each one is, and what became of it, as a log of events."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlext.errors import JobError, NotFoundError, did_you_mean
from sqlext.execution.coordination.event_log import EventLog, Folder, Registry, RegistryEvent
from sqlext.execution.jobs.pins import Pin

logger = logging.getLogger(__name__)

SPEC_VERSION = 1


@dataclass(frozen=True)
class JobSpec:
    """A job: all that a driver needs to run it, or to go on with it.

    Attributes:
        id: names its folder and its transaction; never used twice.
        text: of the statement, as the user wrote it.
        head: what stands before the query, for Spark: `INSERT INTO t (a)`, `CREATE TABLE t USING delta AS`.
        query: for Spark, rules applied; without END OF STREAM.
        target: catalog, database and table that it fills.
        target_version: of the target when the job was submitted; -1 when there was no table.
        target_location: of a table that the job makes, where nothing lay when it was submitted; empty when it makes none, or
            Spark does not tell.
        is_sorted: whether its aggregates sort.
        buckets: into how many an exchange divides.
        pins: its inputs.
        time: what current_timestamp() gives, in milliseconds since 1970; 0: of each driver its own.
        fingerprint: of its plan.
        functions: a fingerprint of the code of each Python function that it calls.
        catalog, database, settings: of the session that submitted it.
        variables: the session variables it names: type and value, as DECLARE VARIABLE takes them.
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

    @property
    def makes_table(self) -> bool:
        """Whether its table is new."""
        return self.target_version < 0

    def to_json(self) -> str:
        data = asdict(self)
        data["statement"] = data.pop("text")  # what records call it
        return json.dumps({"version": SPEC_VERSION, **data}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read a spec back.

        Raises:
            JobError: it is torn, or another version of sqlext wrote it.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("version")
            if version != SPEC_VERSION:
                raise JobError(f"A job was recorded in version {version} of the registry; this sqlext reads {SPEC_VERSION}.")
            pins = tuple(Pin(**{**pin, "files": tuple((p, s, t) for p, s, t in pin["files"])}) for pin in data.pop("pins"))
            data["text"] = data.pop("statement")
            return cls(**{**data, "target": tuple(data["target"]), "pins": pins})
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"The record of a job is torn: {error}.") from None


class JobEventKind(StrEnum):
    """What happened to a job as a whole."""

    SUBMITTED = "submitted"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


class JobState(StrEnum):
    """RUNNING is also the state of a job whose driver died."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


@dataclass(frozen=True)
class RegisteredEvent(RegistryEvent):
    """One event of the registry, as written.

    Attributes:
        epoch: of the driver that runs the job; one with an older epoch is fenced.
        host: its process.
        detail: an error's message, or what a finished job counted.
    """

    job_id: str
    kind: JobEventKind
    epoch: int = 0
    host: str = ""
    spec: str = ""
    detail: str = ""


@dataclass(frozen=True)
class JobRecord:
    """A job as its events tell it."""

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


def fold(events: Iterable[RegisteredEvent]) -> dict[str, JobRecord]:
    """The jobs, by id, after `events` in order; a torn record is left out and logged."""
    records: dict[str, JobRecord] = {}
    for event in events:
        if event.kind is JobEventKind.SUBMITTED:
            try:
                spec = JobSpec.from_json(event.spec)
            except JobError as error:
                logger.error("job %s is left out: %s", event.job_id, error)
                continue
            records[event.job_id] = JobRecord(spec, JobState.RUNNING, 0, event.host, event.at)
        record = records.get(event.job_id)
        if record is None or event.kind is JobEventKind.SUBMITTED or 0 < event.epoch < record.epoch:
            continue  # a driver that another has replaced says so; the job goes on elsewhere
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


def find(records: Records, job_id: str) -> JobRecord:
    """The job of an id, or of its beginning when that is of one job only.

    Raises:
        NotFoundError: with the nearest id.
    """
    found = [record for key, record in records.items() if key.startswith(job_id.lower())]
    if len(found) == 1 and job_id:
        return found[0]
    what = f"There are {len(found)} jobs" if found else "There is no job"
    raise NotFoundError(f"{what} `{job_id}`.{did_you_mean(job_id, list(records))} SHOW JOBS lists them.")


class JobRegistry(Registry[RegisteredEvent, JobRecord]):
    """The jobs of one home.

    Args:
        home: the folder under which the files lie.
    """

    def __init__(self, home: Folder) -> None:
        super().__init__(EventLog(home.child("jobs", "registry")), JobEventKind, RegisteredEvent("", JobEventKind.CANCELED), fold)
