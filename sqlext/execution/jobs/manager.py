"""The manager of this process's recoverable jobs: it submits, resumes, cancels and lists them.

A job runs on the thread that submits or resumes it. The job's folder under the home holds its events and the results of its
vertices; the registry holds its definition and its state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from sqlext.clock import Deadline
from sqlext.errors import JobError, NameTakenError, SqlextError, StatementCanceledError
from sqlext.execution.coordination.event_log import EventLog
from sqlext.execution.coordination.fence import Fence, FencedError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.delta import target
from sqlext.execution.jobs import runs, sink
from sqlext.execution.jobs.cost import JobCost, filled, sentence
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
from sqlext.execution.jobs.submission import JobRequest, PlannedJob, check_references, difference, is_same, planned, planned_again
from sqlext.logs import about
from sqlext.options import (
    JOB_EVENT_FLUSH_INTERVAL,
    JOB_EVENT_WRITE_BUFFER,
    JOB_RETENTION,
    PREVIOUS_WORKER_TIMEOUT,
    SNAPSHOT_MIN_PAUSE,
    Options,
)
from sqlext.spark import cancellation, failures, sessions
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

Fingerprints = Callable[[Iterable[str]], Mapping[str, str]]
"""Returns the fingerprints of registered functions, by name."""

_LOST = "LOST"
_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 60.0
_STOPS = "its driver in another process stops soon, and SHOW JOBS shows FINISHED if it fills the table before"


@dataclass(frozen=True)
class JobView:
    """A job as SHOW JOBS displays it.

    Attributes:
        record: its record in the registry.
        status: its state, or `LOST` if its driver is gone.
        progress: its progress if it runs in this process, else None.
    """

    record: JobRecord
    status: str
    progress: Progress | None


class JobManager:
    """The manager of this process's jobs. Statements call it from any thread; every change of a job goes through the registry.

    Args:
        spark: any session of the application.
        home: the folder of the registry and of the jobs' folders.
        lease: the lease by which this process shows that it is alive.
    """

    def __init__(self, spark: SparkSession, home: HadoopPath, lease: Lease) -> None:
        self._spark = spark
        self._home = home
        self._lease = lease
        self._registry = JobRegistry(home, runs.written)
        self.resumed: tuple[str, ...] = ()  # the ids of the jobs of dead drivers that this process resumes
        self.not_resumed: dict[str, str] = {}  # the errors of those that failed, by id; written by the thread that resumes them
        self._closing = False
        self._thread: threading.Thread | None = None
        self._runs: dict[str, tuple[JobSpec, JobRun]] = {}  # by id; each is added and removed by the thread that runs it
        self._claimed: set[str] = set()  # the ids of the jobs that a thread of this process runs
        self._claims = threading.Condition()  # guards `_claimed`, and is notified when it changes

    def submit(self, session: SparkSession, request: JobRequest, options: Options) -> str:
        """Run a statement as a job, to its end, or resume its job.

        If a job was creating a new table or replacing rows when its driver died, running the statement again resumes that job,
        unless its table was changed since.

        Returns:
            A sentence with the job's id, parts and time.

        Raises:
            NameTakenError: the table that the statement creates exists, or another job is creating it.
            JobError: a job of the same statement appends rows, and its driver died.
            SqlextError, PySparkException: the job failed; its finished parts are kept for RESUME JOB.
        """
        check_references(session, request.references)
        name = target.qualified(session, request.target)
        if (earlier := self._earlier(session, request, name)) is not None:
            return self._resume_earlier(session, earlier, request, options)
        there = sink.target_state(session, request.head, name)
        if there.is_done:
            return f"there is a table {'.'.join(name)} already; no job was submitted"
        job = planned(sessions.session_for(session, request.references), request, name, there)
        self._lease.beat()
        self._home.child("jobs").make_private()
        self._registry.append(
            RegisteredEvent(job.spec.id, JobEventKind.SUBMITTED, host=self._lease.host_id, spec=job.spec.to_json())
        )
        return self._run(job.spec, lambda: job, options)

    def resume(self, job_id: str, functions: Fingerprints, options: Options) -> str:
        """Resume a job that failed or whose driver died.

        Args:
            job_id: the job's id, or the beginning of it.
            functions: returns the current fingerprints of registered functions.

        Raises:
            NotFoundError: there is no such job.
            JobError: the job has ended or is running, or its functions, inputs or target were changed.
        """
        record = find(self._registry.read(), job_id)
        if record.state in (JobState.FINISHED, JobState.CANCELED):
            raise JobError(f"Job {record.spec.id} is {record.state}: there is nothing to resume.")
        self._wait_for_previous(record, options[PREVIOUS_WORKER_TIMEOUT])
        known = functions(record.spec.functions)
        changed = {name for name, text in record.spec.functions.items() if known.get(name) != text}
        if changed:
            raise JobError(
                f"Job {record.spec.id} cannot be resumed, because its functions were changed or are not registered: "
                f"{', '.join(sorted(changed))}. Register the original ones, or run CANCEL JOB {record.spec.id} and then the "
                "statement again."
            )
        return self._run(record.spec, partial(planned_again, self._spark, record.spec), options)

    def cancel(self, job_id: str) -> str:
        """Cancel a job that has not finished, in whichever process it runs, and delete its folder.

        A job whose driver ended after it had filled the table cannot be canceled: it counts as finished. A driver in another
        process that fills the table before it stops records that itself.

        Raises:
            NotFoundError: there is no such job.
            JobError: the job has finished or was canceled before.
        """
        record = find(self._registry.read(), job_id)
        if record.state in (JobState.FINISHED, JobState.CANCELED):
            raise JobError(f"Job {record.spec.id} is {record.state} already: there is nothing to cancel.")
        spec, epoch = record.spec, record.epoch + 1
        is_elsewhere = self._lease.is_elsewhere(record.host)
        self._fence(spec, epoch).take()
        is_filled = sink.is_filled(self._spark, spec)
        if not is_filled:
            record = self._registry.append(RegisteredEvent(spec.id, JobEventKind.CANCELED, epoch=epoch))[spec.id]
            self._stop(spec)
            is_filled = self._finish_if_filled(record)
        else:
            self._registry.append(filled(spec, epoch))
        self._folder(spec).delete()
        if is_filled:
            return f"job {spec.id} was not canceled: its table {'.'.join(spec.target)} was already filled, so the job is FINISHED"
        later = f"; {_STOPS}" if is_elsewhere else ""
        return f"job {spec.id} canceled{later}"

    def _stop(self, spec: JobSpec) -> None:
        """Cancel the parts of a job that runs in this process, and wait until it has ended, for a while."""
        if (running := self._runs.get(spec.id)) is None:
            return
        running[1].cancel()
        with self._claims:
            self._claims.wait_for(lambda: spec.id not in self._claimed, _CLOSE_SECONDS)

    def _finish_if_filled(self, record: JobRecord) -> bool:
        """Return whether a job was canceled only after it had filled its table, and record then that it has finished."""
        is_late = record.state is JobState.CANCELED and sink.is_filled(self._spark, record.spec)
        if is_late:
            self._registry.append(filled(record.spec, record.epoch))
        return is_late

    def views(self) -> list[JobView]:
        """Return all jobs, the newest first."""
        return [self._view(record) for record in reversed(self._registry.read().values())]

    def unfinished(self) -> list[str]:
        """Return the ids of the running jobs whose driver is gone."""
        records = self._registry.read().values()
        return [r.spec.id for r in records if r.state is JobState.RUNNING and not self._lease.is_alive(r.host)]

    def running(self) -> list[tuple[JobSpec, Progress]]:
        """Return the jobs that run in this process, with their progress, without reading from storage."""
        return [(spec, run.progress) for spec, run in list(self._runs.values())]

    def events(self, job_id: str) -> list[JobEvent]:
        """Return all stored events of a job, each vertex followed by its finished parts."""
        folder = self._folder(find(self._registry.read(), job_id).spec)
        events: list[JobEvent] = []
        for event in read_events(EventLog(folder.child("events")).read_new()):
            events.append(event)
            if isinstance(event, ExecutionJobVertexInitialized):
                events += finished_events(folder.child(event.table))
        return events

    def resume_all(self, functions: Fingerprints, options: Options) -> tuple[str, ...]:
        """Resume all jobs whose driver is gone, one after the other, on a thread of this process, unless it has tried before.

        Returns:
            The ids of these jobs.
        """
        found = () if self.is_resuming else tuple(job for job in self.unfinished() if job not in self.not_resumed)
        if found:
            self.resumed = found
            self._thread = threading.Thread(target=self._resume_each, args=(functions, options), name="sqlext-jobs", daemon=True)
            self._thread.start()
        return self.resumed

    @property
    def is_resuming(self) -> bool:
        """Whether `resume_all` is still resuming jobs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Stop the jobs that run in this process; they stay `RUNNING` in the registry, so that the next host resumes them."""
        self._closing = True
        for _, run in list(self._runs.values()):
            run.cancel()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _resume_each(self, functions: Fingerprints, options: Options) -> None:
        for job in self.resumed:
            if self._closing:
                return
            try:
                if job in self.unfinished():  # else its statement was run again in the meantime
                    logger.info("resumed: %s", self.resume(job, functions, options))
            except (SqlextError, *failures.SPARK_ERRORS) as error:
                self.not_resumed[job] = failures.reason_of(error)
                logger.error("job %s cannot be resumed: %s", job, failures.reason_of(error))

    # A run.

    def _earlier(self, session: SparkSession, request: JobRequest, name: tuple[str, ...]) -> JobRecord | None:
        """Return the unfinished job that a statement resumes.

        It is creating the same table, or its driver is gone and it was to replace rows by the same statement with the same
        settings. A job whose target was changed since cannot be resumed, and is not in the way.

        Args:
            name: the qualified name of the statement's target.

        Raises:
            JobError: a lost job of the same statement appends rows, which may be wanted once or twice.
        """
        unfinished = [each for each in self._registry.read().values() if each.state is JobState.RUNNING]
        for record in (each for each in unfinished if each.spec.target == name):
            spec = record.spec
            if spec.makes_table and sink.makes_table(session, request.head):
                if sink.changed_since(self._spark, spec) is None:
                    return record
            elif not spec.makes_table and self._is_left(record) and is_same(session, spec, request):
                if sink.appends(session, spec.head):
                    raise JobError(
                        f"Job {spec.id} of the same statement has not finished, and both would add their rows. Run RESUME JOB "
                        f"{spec.id} for the rows of then, or CANCEL JOB {spec.id} and then the statement again."
                    )
                if sink.changed_since(self._spark, spec) is None and difference(session, spec, request) is None:
                    return record
        return None

    def _is_left(self, record: JobRecord) -> bool:
        """Return whether the first driver of an unfinished job is gone: nobody runs the job, or somebody has resumed it."""
        return record.epoch > 1 or self._view(record).status == _LOST

    def _resume_earlier(self, session: SparkSession, earlier: JobRecord, request: JobRequest, options: Options) -> str:
        """Run the job that is filling a statement's table to its end, if it is the statement's own."""
        spec = earlier.spec
        if (other := difference(session, spec, request)) is not None:
            raise NameTakenError(
                f"Job {spec.id} is already creating {'.'.join(spec.target)} for {other}. First run RESUME JOB {spec.id} or "
                f"CANCEL JOB {spec.id}."
            )
        with self._claims:
            while spec.id in self._claimed and not self._closing:
                self._claims.wait(_POLL_SECONDS)
                cancellation.raise_if_canceled(self._spark)
        record = find(self._registry.read(), spec.id)
        if record.state is JobState.FINISHED:
            return sentence(spec, JobCost.from_json(record.detail))
        return self.resume(spec.id, lambda _: request.functions, options)

    @contextmanager
    def _claim(self, job_id: str) -> Iterator[None]:
        with self._claims:
            if job_id in self._claimed:
                raise JobError(f"Job {job_id} is already running in this process.")
            self._claimed.add(job_id)
        try:
            yield
        finally:
            with self._claims:
                self._claimed.remove(job_id)
                self._claims.notify_all()

    def _run(self, spec: JobSpec, plan: Callable[[], PlannedJob], options: Options) -> str:
        """Run a job to its end, unless its table is already filled.

        Args:
            plan: plans the job; called only if the job has to run.
        """
        started = time.monotonic()
        with self._claim(spec.id), about(job=spec.id):
            epoch = self._take(spec)
            fence = self._fence(spec, epoch)
            fence.take()
            try:
                cost = JobCost()
                if not sink.is_filled(self._spark, spec):
                    sink.check_unchanged(self._spark, spec)
                    cost = self._run_missing(plan(), epoch, fence, options)
            except FencedError:
                self._finish_if_filled(find(self._registry.read(), spec.id))
                raise
            except (SqlextError, *failures.SPARK_ERRORS) as error:
                is_canceled = cancellation.is_canceled(self._spark)  # clears an interrupt, so the registry can be written
                if not self._closing:  # else the next host resumes it
                    self._registry.append(RegisteredEvent(spec.id, JobEventKind.FAILED, epoch, detail=failures.reason_of(error)))
                if is_canceled:  # Spark's own message does not mention the job
                    raise StatementCanceledError(f"The statement was canceled.{_left(spec)}") from None
                raise
            cost = replace(cost, seconds=round(time.monotonic() - started, 1))
            records = self._registry.append(RegisteredEvent(spec.id, JobEventKind.FINISHED, epoch, detail=cost.to_json()))
            self._finish_if_filled(records[spec.id])
            self._delete_old(options[JOB_RETENTION])
        return sentence(spec, cost)

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
        write_sink = partial(sink.fill, own, spec, epoch)
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
        """Delete the folders of jobs that finished longer ago than the retention."""
        until = datetime.now(UTC) - retention
        records = self._registry.read()
        for record in (records[name] for name in self._home.child("jobs").names() if name in records):
            if record.state is JobState.FINISHED and datetime.fromisoformat(record.ended) <= until:
                self._folder(record.spec).delete()

    # Records.

    def _take(self, spec: JobSpec) -> int:
        """Record that this process runs a job from now on.

        Returns:
            The epoch of this run.

        Raises:
            JobError: another driver runs the job, or the job has ended.
        """

        def started(records: Records) -> RegisteredEvent:
            record = find(records, spec.id)
            is_elsewhere = record.epoch > 0 and self._lease.is_elsewhere(record.host)
            if record.state is JobState.RUNNING and is_elsewhere:
                raise JobError(f"Job {spec.id} is running in another process. Wait until it ends, or run CANCEL JOB {spec.id}.")
            if record.state in (JobState.FINISHED, JobState.CANCELED):
                raise JobError(f"Job {spec.id} is {record.state}: there is nothing to resume.")
            return RegisteredEvent(spec.id, JobEventKind.STARTED, record.epoch + 1, self._lease.host_id)

        return self._registry.append(started)[spec.id].epoch

    def _wait_for_previous(self, record: JobRecord, timeout: timedelta) -> None:
        """Wait until the previous driver of a job is known to be gone.

        Raises:
            JobError: it is still alive after the timeout.
        """
        deadline = Deadline(timeout.total_seconds())
        while record.state is JobState.RUNNING and self._lease.is_elsewhere(record.host):
            if deadline.has_passed:
                raise JobError(
                    f"Job {record.spec.id} is running in another process, which was still alive after "
                    f"{timeout.total_seconds():g} s ({PREVIOUS_WORKER_TIMEOUT.key}). Wait until the job ends, or run CANCEL JOB "
                    f"{record.spec.id}."
                )
            time.sleep(_POLL_SECONDS)
            cancellation.raise_if_canceled(self._spark)
            record = find(self._registry.read(), record.spec.id)

    def _view(self, record: JobRecord) -> JobView:
        running = self._runs.get(record.spec.id)
        is_lost = record.state is JobState.RUNNING and running is None and not self._lease.is_alive(record.host)
        return JobView(record, _LOST if is_lost else str(record.state), running[1].progress if running is not None else None)

    def _fence(self, spec: JobSpec, epoch: int) -> Fence:
        return Fence(self._folder(spec), f"job {spec.id}", epoch)

    def _folder(self, spec: JobSpec) -> HadoopPath:
        return self._home.child("jobs", spec.id)


def _left(spec: JobSpec) -> str:
    """Return what the user can do with the job of a canceled statement."""
    return f" RESUME JOB {spec.id} resumes its job, CANCEL JOB {spec.id} discards it."
