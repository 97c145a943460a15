"""The recoverable jobs of this process: submitted, gone on with, canceled, shown.

A job runs on the thread of whoever submits or resumes it. Its folder under the home holds its events and the results of its
vertices; the registry says what it is and what became of it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.errors import JobError, NameTakenError, SqlextError, StatementCanceledError
from sqlext.execution.coordination.event_log import EventLog
from sqlext.execution.coordination.fence import Fence, FencedError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import target
from sqlext.execution.jobs import sink
from sqlext.execution.jobs.events import ExecutionJobVertexInitialized, JobEvent
from sqlext.execution.jobs.execution_graph import Progress
from sqlext.execution.jobs.outputs import finished_events
from sqlext.execution.jobs.registry import (
    JobEventKind,
    JobRecord,
    JobRegistry,
    JobSpec,
    JobState,
    Records,
    RegisteredEvent,
    find,
)
from sqlext.execution.jobs.run import JobRun, RunSettings
from sqlext.execution.jobs.store import JobEventStore, read_events
from sqlext.execution.jobs.submission import JobRequest, PlannedJob, check_references, planned, planned_again
from sqlext.options import (
    JOB_EVENT_FLUSH_INTERVAL,
    JOB_EVENT_WRITE_BUFFER,
    JOB_RETENTION,
    PREVIOUS_WORKER_TIMEOUT,
    SNAPSHOT_MIN_PAUSE,
    Options,
)
from sqlext.spark import cancellation, jvm, sessions
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

Fingerprints = Callable[[Iterable[str]], Mapping[str, str]]
"""Gives the fingerprints of registered functions, by name."""

_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class JobCost:
    """What a job has cost this driver.

    Attributes:
        parts: that it ran.
        skipped: that earlier drivers had finished.
        event_bytes: written to the store.
    """

    parts: int = 0
    skipped: int = 0
    seconds: float = 0.0
    event_bytes: int = 0


@dataclass(frozen=True)
class JobView:
    """A job as SHOW JOBS tells it; progress is there only for those that run in this process."""

    record: JobRecord
    status: str
    progress: Progress | None


class JobManager:
    """See the module's docstring. Statements call it from any thread; what changes a job goes through the registry.

    Args:
        spark: any session of the application.
        home: where the registry and the jobs' folders lie.
        lease: this process's sign of life.
    """

    def __init__(self, spark: SparkSession, home: HadoopPath, lease: Lease) -> None:
        self._spark = spark
        self._home = home
        self._lease = lease
        self._registry = JobRegistry(home)
        self.resumed: tuple[str, ...] = ()  # the ids of the jobs of dead drivers that this process resumes
        self.not_resumed: dict[str, str] = {}  # those of them that failed, and why; written by the thread that runs them
        self._closing = False
        self._thread: threading.Thread | None = None
        self._runs: dict[str, tuple[JobSpec, JobRun]] = {}  # by id; each is put in and taken out by the thread that runs it
        self._claimed: set[str] = set()  # the ids of the jobs that a thread of this process has
        self._claims = threading.Condition()  # guards `_claimed`, and tells when it has changed

    def submit(self, session: SparkSession, request: JobRequest, options: Options) -> str:
        """Run a statement as a job, to its end. The statement of a job that was making a new table when its driver died goes
        on with that job.

        Returns:
            A sentence with its id, parts and time.

        Raises:
            NameTakenError: the table that it is to make is there, or another job makes it.
            SqlextError, PySparkException: it failed; what has finished of it stays, for RESUME JOB.
        """
        check_references(session, request.references)
        name = target.qualified(session, request.target)
        if (earlier := self._maker_of(name)) is not None and sink.makes_table(session, request.head):
            return self._resume_earlier(earlier, request, options)
        there = sink.target_state(session, request.head, name)
        if there.is_done:
            return f"there is a table {'.'.join(name)} already; no job was made"
        job = planned(sessions.session_for(session, request.references), request, name, there)
        self._lease.beat()
        self._home.child("jobs").make_private()
        self._registry.append(
            RegisteredEvent(job.spec.id, JobEventKind.SUBMITTED, host=self._lease.host_id, spec=job.spec.to_json())
        )
        return self._run(job.spec, lambda: job, options)

    def resume(self, job_id: str, functions: Fingerprints, options: Options) -> str:
        """Go on with a job whose driver died, or which failed.

        Raises:
            NotFoundError, JobError: there is no such job, it has ended, or it runs; or its functions or inputs were changed.
        """
        record = find(self._registry.read(), job_id)
        if record.state in (JobState.FINISHED, JobState.CANCELED):
            raise JobError(f"Job {record.spec.id} is {record.state}: there is nothing to resume.")
        self._wait_for_previous(record, options[PREVIOUS_WORKER_TIMEOUT])
        known = functions(record.spec.functions)
        changed = {name for name, text in record.spec.functions.items() if known.get(name) != text}
        if changed:
            raise JobError(
                f"Job {record.spec.id} cannot go on: {', '.join(sorted(changed))} is not the function it began with. Register "
                "that one, or CANCEL JOB it and run the statement again."
            )
        return self._run(record.spec, partial(planned_again, self._spark, record.spec), options)

    def cancel(self, job_id: str) -> str:
        """End a job that is not finished, wherever it runs, and take its folder away."""
        record = find(self._registry.read(), job_id)
        if record.state in (JobState.FINISHED, JobState.CANCELED):
            raise JobError(f"Job {record.spec.id} is {record.state} already.")
        epoch = record.epoch + 1
        self._fence(record.spec, epoch).take()
        self._registry.append(RegisteredEvent(record.spec.id, JobEventKind.CANCELED, epoch=epoch))
        if (running := self._runs.get(record.spec.id)) is not None:
            running[1].cancel()
        self._folder(record.spec).delete()
        return f"job {record.spec.id} canceled"

    def views(self) -> list[JobView]:
        """All jobs, the newest first."""
        return [self._view(record) for record in reversed(self._registry.read().values())]

    def unfinished(self) -> list[str]:
        """The ids of the jobs whose driver is gone."""
        records = self._registry.read().values()
        return [r.spec.id for r in records if r.state is JobState.RUNNING and not self._lease.is_alive(r.host)]

    def running(self) -> list[tuple[JobSpec, Progress]]:
        """The jobs that run in this process, as they are now; asks no storage."""
        return [(spec, run.progress) for spec, run in list(self._runs.values())]

    def events(self, job_id: str) -> list[JobEvent]:
        """All events of a job that are kept: what the store has, each vertex followed by its finished parts."""
        folder = self._folder(find(self._registry.read(), job_id).spec)
        events: list[JobEvent] = []
        for event in read_events(EventLog(folder.child("events")).read_new()):
            events.append(event)
            if isinstance(event, ExecutionJobVertexInitialized):
                events += finished_events(folder.child(event.table))
        return events

    def resume_all(self, functions: Fingerprints, options: Options) -> tuple[str, ...]:
        """Resume all jobs whose driver is gone, one after the other, on a thread of this host's.

        Returns:
            Their ids.
        """
        self.resumed = tuple(self.unfinished())
        if self.resumed:
            self._thread = threading.Thread(target=self._resume_each, args=(functions, options), name="sqlext-jobs", daemon=True)
            self._thread.start()
        return self.resumed

    @property
    def is_resuming(self) -> bool:
        """Whether a job that was resumed still runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Stop what runs in this process; the registry keeps it as running, for the next host."""
        self._closing = True
        for _, run in list(self._runs.values()):
            run.cancel()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _resume_each(self, functions: Fingerprints, options: Options) -> None:
        for job in self.resumed:
            if self._closing:
                return
            if job not in self.unfinished():
                continue  # its statement was run again meanwhile
            try:
                logger.info("taken up again: %s", self.resume(job, functions, options))
            except (SqlextError, *target.SPARK_ERRORS) as error:
                self.not_resumed[job] = jvm.reason_of(error)
                logger.error("job %s cannot be taken up: %s", job, jvm.reason_of(error))

    # A run.

    def _maker_of(self, name: tuple[str, ...]) -> JobRecord | None:
        """The job that makes a table, or was making it when its driver died."""
        records = self._registry.read().values()
        made = (record for record in records if record.spec.makes_table and record.spec.target == name)
        return next((record for record in made if record.state is JobState.RUNNING), None)

    def _resume_earlier(self, earlier: JobRecord, request: JobRequest, options: Options) -> str:
        """End the job that makes a statement's table, if it is the statement's own."""
        spec = earlier.spec
        if spec.text != request.text:
            raise NameTakenError(
                f"Job {spec.id} makes {'.'.join(spec.target)} already, by another statement. RESUME JOB or CANCEL JOB it first."
            )
        with self._claims:
            while spec.id in self._claimed and not self._closing:
                self._claims.wait(_POLL_SECONDS)
                cancellation.raise_if_canceled(self._spark)
        record = find(self._registry.read(), spec.id)
        if record.state is JobState.FINISHED:
            return _sentence(spec, JobCost(**json.loads(record.detail)))
        return self.resume(spec.id, lambda _: request.functions, options)

    @contextmanager
    def _claim(self, job_id: str) -> Iterator[None]:
        with self._claims:
            if job_id in self._claimed:
                raise JobError(f"Job {job_id} runs in this process.")
            self._claimed.add(job_id)
        try:
            yield
        finally:
            with self._claims:
                self._claimed.remove(job_id)
                self._claims.notify_all()

    def _run(self, spec: JobSpec, plan: Callable[[], PlannedJob], options: Options) -> str:
        """Run a job to its end, unless its table is filled already.

        Args:
            plan: gives the job that can run; asked only when it has to.
        """
        started = time.monotonic()
        with self._claim(spec.id):
            epoch = self._take(spec)
            fence = self._fence(spec, epoch)
            fence.take()
            try:
                cost = JobCost() if sink.is_filled(self._spark, spec) else self._run_missing(plan(), epoch, fence, options)
            except FencedError:
                raise
            except (SqlextError, *target.SPARK_ERRORS) as error:
                is_canceled = cancellation.is_canceled(self._spark)  # an interrupt must not reach what is still to be noted
                if not self._closing:  # else the next host resumes it
                    self._registry.append(RegisteredEvent(spec.id, JobEventKind.FAILED, epoch, detail=jvm.reason_of(error)))
                if is_canceled:  # Spark's own word for it says nothing of the job
                    raise StatementCanceledError(f"The statement was canceled.{_left(spec)}") from None
                raise
            cost = replace(cost, seconds=round(time.monotonic() - started, 1))
            self._registry.append(RegisteredEvent(spec.id, JobEventKind.FINISHED, epoch, detail=json.dumps(asdict(cost))))
            self._delete_old(options[JOB_RETENTION])
        return _sentence(spec, cost)

    def _run_missing(self, planned: PlannedJob, epoch: int, fence: Fence, options: Options) -> JobCost:
        spec, own = planned.spec, planned.session
        log = EventLog(self._folder(spec).child("events"))
        events = read_events(log.read_new())
        slots = int(own.sparkContext.defaultParallelism)
        settings = RunSettings(spec.id, epoch, self._folder(spec), planned.columns, slots, options[SNAPSHOT_MIN_PAUSE])

        def tick() -> None:
            cancellation.raise_if_canceled(self._spark, _left(spec))
            self._lease.beat()
            fence.check()

        interval = options[JOB_EVENT_FLUSH_INTERVAL]
        store = JobEventStore(spec.id, log, options[JOB_EVENT_WRITE_BUFFER], interval, fence.check, lambda _: run.cancel())
        write_sink = partial(sink.fill, own, spec)
        run = JobRun(own, planned.pieces, settings, events, store.write, store.flush, write_sink, tick, fence.check)
        self._runs[spec.id] = (spec, run)
        try:
            run.run()
        finally:
            self._runs.pop(spec.id, None)
            store.close()
        skipped = len(run.progress.skipped)
        return JobCost(len(run.progress.finished) - skipped, skipped, event_bytes=store.bytes_written)

    def _delete_old(self, retention: timedelta) -> None:
        """Take away the folders of jobs that have finished before the retention."""
        until = datetime.now(UTC) - retention
        records = self._registry.read()
        for record in (records[name] for name in self._home.child("jobs").names() if name in records):
            if record.state is JobState.FINISHED and datetime.fromisoformat(record.ended) <= until:
                self._folder(record.spec).delete()

    # Records.

    def _take(self, spec: JobSpec) -> int:
        """Note that this process runs the job from here on.

        Returns:
            This run's epoch.

        Raises:
            JobError: another driver has it, or it has ended.
        """

        def started(records: Records) -> RegisteredEvent:
            record = find(records, spec.id)
            is_elsewhere = record.epoch > 0 and record.host != self._lease.host_id and self._lease.is_alive(record.host)
            if record.state is JobState.RUNNING and is_elsewhere:
                raise JobError(f"Job {spec.id} runs in another process. CANCEL JOB it, or let it end there.")
            if record.state in (JobState.FINISHED, JobState.CANCELED):
                raise JobError(f"Job {spec.id} is {record.state}: there is nothing to resume.")
            return RegisteredEvent(spec.id, JobEventKind.STARTED, record.epoch + 1, self._lease.host_id)

        return self._registry.append(started)[spec.id].epoch

    def _wait_for_previous(self, record: JobRecord, timeout: timedelta) -> None:
        """Wait until the driver before this one is known to be gone."""
        deadline = Deadline(timeout.total_seconds())
        while record.state is JobState.RUNNING and record.host != self._lease.host_id and self._lease.is_alive(record.host):
            if deadline.has_passed:
                raise JobError(
                    f"Job {record.spec.id} runs in another process, which still gave signs of life after "
                    f"{timeout.total_seconds():g} s ({PREVIOUS_WORKER_TIMEOUT.key})."
                )
            time.sleep(_POLL_SECONDS)
            cancellation.raise_if_canceled(self._spark)
            record = find(self._registry.read(), record.spec.id)

    def _view(self, record: JobRecord) -> JobView:
        running = self._runs.get(record.spec.id)
        is_lost = record.state is JobState.RUNNING and running is None and not self._lease.is_alive(record.host)
        return JobView(record, "LOST" if is_lost else str(record.state), running[1].progress if running is not None else None)

    def _fence(self, spec: JobSpec, epoch: int) -> Fence:
        return Fence(self._folder(spec), f"job {spec.id}", epoch)

    def _folder(self, spec: JobSpec) -> HadoopPath:
        return self._home.child("jobs", spec.id)


def _sentence(spec: JobSpec, cost: JobCost) -> str:
    """What the user is told of a finished job."""
    what = f"{cost.parts} parts" if cost.parts else "its table was filled before"
    again = f", {cost.skipped} had finished before" if cost.skipped else ""
    return f"job {spec.id} finished into {'.'.join(spec.target)}, {what}{again}, {cost.seconds:.1f} s"


def _left(spec: JobSpec) -> str:
    """What can be done about a job whose statement was canceled."""
    return f" RESUME JOB {spec.id} goes on with what its job had begun, CANCEL JOB {spec.id} takes that away."
