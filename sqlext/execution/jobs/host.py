"""The recoverable jobs of this process: submitted, gone on with, cancelled, shown.

A job runs on the thread of whoever submits or resumes it. Its folder under the home holds its events and the results of its
vertices; the registry says what it is and what became of it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from sqlext import jvm
from sqlext.errors import JobError, SqlextError, UnsupportedError
from sqlext.execution import delta_log, sessions, target
from sqlext.execution.commit import TXN_APP_ID, TXN_VERSION, USER_METADATA, session_settings
from sqlext.execution.event_log import EventLog
from sqlext.execution.fence import Fence, FencedError
from sqlext.execution.jobs.events import ExecutionJobVertexInitialized, JobEvent
from sqlext.execution.jobs.fragments import Cut, cut
from sqlext.execution.jobs.graph import Progress
from sqlext.execution.jobs.outputs import finished_events
from sqlext.execution.jobs.pins import pinned, pins_of
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
from sqlext.execution.jobs.run import JobRun, RunSettings, prepare
from sqlext.execution.jobs.store import JobEventStore, read_events
from sqlext.execution.lease import Lease
from sqlext.execution.to_its_end import read_to_its_end
from sqlext.options import (
    JOB_EVENT_FLUSH_INTERVAL,
    JOB_EVENT_WRITE_BUFFER,
    PREVIOUS_WORKER_TIMEOUT,
    SNAPSHOT_MIN_PAUSE,
    Options,
)
from sqlext.plan import References
from sqlext.storage import HadoopPath

logger = logging.getLogger(__name__)

Fingerprints = Callable[[Iterable[str]], Mapping[str, str]]
"""Gives the fingerprints of registered functions, by name."""

_RESULT = "__sqlext_job_result"
_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class JobRequest:
    """A statement to run as a job; see `JobSpec`."""

    statement: str
    head: str
    query: str
    target: tuple[str, ...]
    is_sorted: bool
    references: References
    functions: Mapping[str, str]


@dataclass(frozen=True)
class JobView:
    """A job as SHOW JOBS tells it; progress is there only for those that run in this process."""

    record: JobRecord
    status: str
    progress: Progress | None


class JobHost:
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
        self._closing = False
        self._thread: threading.Thread | None = None
        self._runs: dict[str, JobRun] = {}  # by id; each is put in and taken out by the thread that runs it

    def submit(self, session: SparkSession, request: JobRequest, options: Options) -> str:
        """Run a statement as a job, to its end.

        Returns:
            A sentence with its id, parts and time.

        Raises:
            SqlextError, PySparkException: it failed; what has finished of it stays, for RESUME JOB.
        """
        own = sessions.session_for(session, request.references)
        if bound := sessions.bound_to(own, request.references):
            raise UnsupportedError(
                f"A job that is to survive its driver cannot read {', '.join(bound)}, which ends with this session. Make it a "
                "view or a table of a catalog, or set execution.batch.job-recovery.enabled to false."
            )
        spec = self._spec(own, request)
        self._lease.beat()
        self._registry.append(RegisteredEvent(spec.id, JobEventKind.SUBMITTED, host=self._lease.host_id, spec=spec.to_json()))
        return self._run(spec, own, options)

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
        return self._run(record.spec, sessions.restored_session(self._spark, record.spec), options)

    def cancel(self, job_id: str) -> str:
        """End a job that is not finished, wherever it runs, and take its folder away."""
        record = find(self._registry.read(), job_id)
        if record.state in (JobState.FINISHED, JobState.CANCELED):
            raise JobError(f"Job {record.spec.id} is {record.state} already.")
        epoch = record.epoch + 1
        self._fence(record.spec, epoch).take()
        self._registry.append(RegisteredEvent(record.spec.id, JobEventKind.CANCELED, epoch=epoch))
        if (run := self._runs.get(record.spec.id)) is not None:
            run.cancel()
        self._folder(record.spec).delete()
        return f"job {record.spec.id} canceled"

    def views(self) -> list[JobView]:
        """All jobs, the newest first."""
        return [self._view(record) for record in reversed(self._registry.read().values())]

    def unfinished(self) -> list[str]:
        """The ids of the jobs whose driver is gone."""
        records = self._registry.read().values()
        return [r.spec.id for r in records if r.state is JobState.RUNNING and not self._lease.is_alive(r.host)]

    def events(self, job_id: str) -> list[JobEvent]:
        """All events of a job that are kept: what the store has, each vertex followed by its finished parts."""
        folder = self._folder(find(self._registry.read(), job_id).spec)
        events: list[JobEvent] = []
        for event in read_events(EventLog(folder.child("events")).read_new()):
            events.append(event)
            if isinstance(event, ExecutionJobVertexInitialized):
                events += finished_events(folder.child(event.table))
        return events

    def take_up(self, functions: Fingerprints, options: Options) -> list[str]:
        """Go on with all jobs whose driver is gone, one after the other, on a thread of this host's.

        Returns:
            Their ids.
        """
        lost = self.unfinished()
        if lost:
            self._thread = threading.Thread(
                target=self._resume_all, args=(lost, functions, options), name="sqlext-jobs", daemon=True
            )
            self._thread.start()
        return lost

    def close(self) -> None:
        """Stop what runs in this process; the registry keeps it as running, for the next host."""
        self._closing = True
        for run in list(self._runs.values()):
            run.cancel()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _resume_all(self, ids: list[str], functions: Fingerprints, options: Options) -> None:
        for job in ids:
            if self._closing:
                return
            try:
                logger.info("taken up again: %s", self.resume(job, functions, options))
            except (SqlextError, *target.SPARK_ERRORS) as error:
                logger.error("job %s cannot be taken up: %s", job, jvm.reason_of(error))

    # A run.

    def _run(self, spec: JobSpec, own: SparkSession, options: Options) -> str:
        started = time.monotonic()
        epoch = self._take(spec)
        fence = self._fence(spec, epoch)
        fence.take()
        try:
            run, store = self._prepared(spec, own, epoch, fence, options)
            self._runs[spec.id] = run
            try:
                run.run()
            finally:
                self._runs.pop(spec.id, None)
                store.close()
        except FencedError:
            raise
        except (SqlextError, *target.SPARK_ERRORS) as error:
            if self._closing:
                raise  # the next host goes on with it
            self._registry.append(RegisteredEvent(spec.id, JobEventKind.FAILED, epoch, detail=jvm.reason_of(error)))
            raise
        return self._finished(spec, epoch, run.progress, store, time.monotonic() - started)

    def _prepared(
        self, spec: JobSpec, own: SparkSession, epoch: int, fence: Fence, options: Options
    ) -> tuple[JobRun, JobEventStore]:
        pieces, columns = self._cut(spec, own)
        if pieces.fingerprint != spec.fingerprint:
            raise JobError(
                f"Job {spec.id} cannot go on: Spark plans its query otherwise than when it began. CANCEL JOB it, and run the "
                "statement again."
            )
        log = EventLog(self._folder(spec).child("events"))
        events = read_events(log.read_new())
        slots = int(own.sparkContext.defaultParallelism)
        settings = RunSettings(spec.id, epoch, self._folder(spec), columns, slots, options[SNAPSHOT_MIN_PAUSE])

        def tick() -> None:
            self._lease.beat()
            fence.check()

        interval = options[JOB_EVENT_FLUSH_INTERVAL]
        store = JobEventStore(spec.id, log, options[JOB_EVENT_WRITE_BUFFER], interval, fence.check, lambda _: run.cancel())
        run = JobRun(own, pieces, settings, events, store.write, store.flush, partial(self._write, spec, own), tick)
        return run, store

    def _cut(self, spec: JobSpec, own: SparkSession) -> tuple[Cut, tuple[str, ...]]:
        """The query's pieces over the pinned inputs, and its columns."""
        prepare(own, spec.buckets)
        frame = own.sql(spec.query)
        plan = pinned(own, read_to_its_end(own, frame._jdf.queryExecution().analyzed()), spec.pins)
        return cut(own, plan, spec.is_sorted), tuple(frame.columns)

    def _write(self, spec: JobSpec, own: SparkSession, rows: DataFrame) -> None:
        """Fill the target, in one transaction of the job's: a driver that repeats it changes nothing."""
        if self._is_written(spec):
            logger.info("job %s: its table was filled before", spec.id)
            return
        rows.createOrReplaceTempView(_RESULT)
        metadata = json.dumps({"sqlext": {"job": spec.id}})
        with session_settings(own, {USER_METADATA: metadata, TXN_APP_ID: spec.id, TXN_VERSION: "0"}):
            own.sql(f"{spec.head} SELECT * FROM {_RESULT}")  # noqa: S608  # the head is Spark's, as the user wrote it

    def _is_written(self, spec: JobSpec) -> bool:
        """Whether a commit of the target since the submission is the job's."""
        if not target.exists(self._spark, spec.target):
            return False
        location = target.describe(self._spark, spec.target).location
        versions = range(spec.target_version + 1, jvm.table_version(self._spark, location) + 1)
        return any(spec.id in str(delta_log.commit_info(self._spark, location, v).get("userMetadata")) for v in versions)

    def _finished(self, spec: JobSpec, epoch: int, progress: Progress, store: JobEventStore, seconds: float) -> str:
        ran, skipped = len(progress.finished) - len(progress.skipped), len(progress.skipped)
        counted = {"parts": ran, "skipped": skipped, "seconds": round(seconds, 1), "event_bytes": store.bytes_written}
        self._registry.append(RegisteredEvent(spec.id, JobEventKind.FINISHED, epoch, detail=json.dumps(counted)))
        self._folder(spec).delete()
        again = f", {skipped} had finished before" if skipped else ""
        return f"job {spec.id} finished into {'.'.join(spec.target)}, {ran} parts{again}, {seconds:.1f} s"

    # Records.

    def _spec(self, own: SparkSession, request: JobRequest) -> JobSpec:
        name = target.qualified(own, request.target)
        version = -1
        if target.exists(own, name):
            version = jvm.table_version(own, target.describe(own, name).location)
        settings = jvm.session_settings(own)
        buckets = self._buckets(own)
        draft = JobSpec(
            id=f"j{uuid.uuid4().hex}",  # so that SQL takes it for a name
            statement=request.statement,
            head=request.head,
            query=request.query,
            target=name,
            target_version=version,
            is_sorted=request.is_sorted,
            buckets=buckets,
            pins=(),
            fingerprint="",
            functions=request.functions,
            catalog=own.catalog.currentCatalog(),
            database=own.catalog.currentDatabase(),
            settings=settings,
            variables=sessions.variables_of(own, request.references),
        )
        prepare(own, buckets)
        plan = read_to_its_end(own, own.sql(request.query)._jdf.queryExecution().analyzed())
        pins = pins_of(own, plan)
        pieces = cut(own, pinned(own, plan, pins), request.is_sorted)
        return replace(draft, pins=pins, fingerprint=pieces.fingerprint)

    def _buckets(self, own: SparkSession) -> int:
        """Enough for all slots twice, and no more than Spark's own number of shuffle partitions."""
        asked = int(own.conf.get("spark.sql.shuffle.partitions") or 1)
        return max(1, min(asked, 4 * int(own.sparkContext.defaultParallelism)))

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
        if record.spec.id in self._runs:
            raise JobError(f"Job {record.spec.id} runs in this process.")
        deadline = time.monotonic() + timeout.total_seconds()
        while record.state is JobState.RUNNING and record.host != self._lease.host_id and self._lease.is_alive(record.host):
            if time.monotonic() > deadline:
                raise JobError(
                    f"Job {record.spec.id} runs in another process, which still gave signs of life after "
                    f"{timeout.total_seconds():g} s ({PREVIOUS_WORKER_TIMEOUT.key})."
                )
            time.sleep(_POLL_SECONDS)
            record = find(self._registry.read(), record.spec.id)

    def _view(self, record: JobRecord) -> JobView:
        run = self._runs.get(record.spec.id)
        is_lost = record.state is JobState.RUNNING and run is None and not self._lease.is_alive(record.host)
        return JobView(record, "LOST" if is_lost else str(record.state), run.progress if run is not None else None)

    def _fence(self, spec: JobSpec, epoch: int) -> Fence:
        return Fence(self._folder(spec), f"job {spec.id}", epoch)

    def _folder(self, spec: JobSpec) -> HadoopPath:
        return self._home.child("jobs", spec.id)
