"""The run of a bounded job, from the state that its events record to its end.

In the driver's loop, a vertex whose inputs have finished is initialized: its division into parts is decided. Its missing parts
run concurrently, each as a Spark job on a thread of the pool. The loop's own thread commits a finished part with its event, so
the threads share nothing but the futures.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from sqlext.errors import JobError
from sqlext.execution.jobs import division, parts
from sqlext.execution.jobs.division import Division
from sqlext.execution.jobs.events import CoordinatorSnapshot, ExecutionJobVertexInitialized, ExecutionVertexFinished, JobEvent
from sqlext.execution.jobs.execution_graph import ExecutionVertex, JobVertex, Progress, VertexKind
from sqlext.execution.jobs.fragments import Fragment, FragmentedPlan
from sqlext.execution.jobs.outputs import OutputFile, VertexTable, finished
from sqlext.execution.jobs.slices import Slices
from sqlext.logs import carried
from sqlext.spark import jvm
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""The interval, in seconds, at which the driver renews its lease and checks that the job is still its own."""
_CANCEL_AGAIN_SECONDS = 0.5

WriteEvent = Callable[[JobEvent], None]
WriteSink = Callable[[DataFrame], None]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        job: the job's id.
        epoch: the epoch of this driver.
        home: the job's folder.
        columns: the query's columns.
        slots: the number of tasks that run at once.
        snapshot_pause: the minimum time between two snapshots of the driver's state.
    """

    job: str
    epoch: int
    home: HadoopPath
    columns: tuple[StructField, ...]
    slots: int
    snapshot_pause: timedelta = timedelta(minutes=3)

    @property
    def tag(self) -> str:
        """The tag of this driver's Spark jobs, so that a driver that has lost the job cancels only its own."""
        return f"{self.job}-{self.epoch}"


class JobRun:
    """One driver's run of one job. One thread calls `run`; any thread may call `cancel`.

    Args:
        session: a session of the run's own.
        pieces: the fragments of the query.
        settings: the settings of the run.
        events: the events that earlier drivers have written.
        write_event: passes an event to the event store.
        flush_events: returns once the event store has written all its events.
        write_sink: fills the job's table with the query's rows, exactly once.
        tick: called every `TICK_SECONDS`; raises if the job must end.
        check: called before each commit; raises if another driver has taken over the job.

    Attributes:
        progress: the parts that have finished.
    """

    def __init__(
        self,
        session: SparkSession,
        pieces: FragmentedPlan,
        settings: RunSettings,
        events: Sequence[JobEvent],
        write_event: WriteEvent,
        flush_events: Callable[[], None],
        write_sink: WriteSink,
        tick: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._session = session
        self._pieces = pieces
        self._settings = settings
        self._write_event = write_event
        self._flush_events = flush_events
        self._write_sink = write_sink
        self._tick = tick
        self._check = check
        self._fragments: Mapping[int, Fragment] = {fragment.vertex.id: fragment for fragment in pieces.fragments}
        initialized = [event for event in events if isinstance(event, ExecutionJobVertexInitialized)]
        self._initialized = {
            event.vertex: event for event in sorted(initialized, key=lambda event: event.epoch)
        }  # the latest counts
        self._tables: dict[int, VertexTable] = {}
        self._slices: dict[int, Slices] = {}
        self._submitted: list[Future[Any]] = []
        self.progress = Progress(pieces.graph)
        self._snapshot_at = time.monotonic()
        self._ticked_at = time.monotonic()

    def run(self) -> None:
        """Run the missing parts, up to the sink.

        Raises:
            SqlextError, PySparkException: a part or the event store failed; finished parts stay finished.
        """
        self._replay()
        # Twice as many threads as slots: a part is planned, and its files are read, while tasks of other parts use the slots.
        pool = ThreadPoolExecutor(2 * self._settings.slots, thread_name_prefix=f"sqlext-job-{self._settings.job}")
        try:
            self._loop(pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._end_submitted()

    def cancel(self) -> None:
        """Cancel the running parts; `run` then raises an error."""
        self._session.sparkContext.cancelJobsWithTag(self._settings.tag)

    def _end_submitted(self) -> None:
        """Cancel until no thread of the pool works: one that still plans its part starts its Spark job only later."""
        left = {future for future in self._submitted if not future.done()}
        while left:
            self.cancel()
            _, left = wait(left, _CANCEL_AGAIN_SECONDS)

    def _replay(self) -> None:
        """Take over the parts that earlier drivers have finished and whose files are intact."""
        for vertex, event in self._initialized.items():
            self.progress.parallelism[vertex] = event.parts
            if vertex not in self._fragments or vertex == self._pieces.graph.sink.id:
                continue
            table = self._table(event)
            table.reconcile()
            self.progress.finished |= {ExecutionVertex(vertex, part) for part in table.parts}
        while outdated := self._outdated():
            for part in outdated:
                logger.warning("job %s: %s has read a result that was lost, and is run again", self._settings.job, part)
                self._tables[part.vertex].drop(part.part)
            self.progress.finished -= outdated
        self.progress.skipped = frozenset(self.progress.finished)
        if self.progress.skipped:
            logger.info("job %s: %d parts finished by earlier drivers", self._settings.job, len(self.progress.skipped))

    def _outdated(self) -> set[ExecutionVertex]:
        """Return the finished parts that have read another result than the one there is, or is to be when it has run again.

        It need not be the same: the rows of some queries depend on the order in which others come. A part runs when all that it
        reads has finished, so an earlier driver than that of its input has run it on what was there before.
        """
        graph = self._pieces.graph
        needed = graph.needed({vertex.id: self.progress.is_finished(vertex.id) for vertex in graph.vertices})
        found = set[ExecutionVertex]()
        for vertex, table in self._tables.items():
            inputs = graph.vertices[vertex].inputs
            read = [self._tables[below] for below in inputs if below in self._tables]
            newest = max((part.event.epoch for below in read for part in below.parts.values()), default=0)
            is_read_again = any(below in needed for below in inputs)
            found |= {ExecutionVertex(vertex, n) for n, part in table.parts.items() if is_read_again or part.event.epoch < newest}
        return found

    def _loop(self, pool: ThreadPoolExecutor) -> None:
        started: set[int] = set()
        running: dict[Future[tuple[OutputFile, ...]], tuple[ExecutionVertex, float]] = {}
        while True:
            for vertex in self.progress.ready(started):
                if vertex.kind is VertexKind.SINK or self._is_left_to_sink(vertex):
                    self._flush_events()
                    writing = pool.submit(carried(self._sink), vertex)
                    self._submitted.append(writing)
                    self._wait_for_sink(writing, vertex)
                    return
                started.add(vertex.id)
                self._initialize(vertex)
                for part in self._largest_first(vertex):
                    future = pool.submit(carried(self._run_part), part)
                    self._submitted.append(future)
                    running[future] = (part, time.monotonic())
            done, _ = wait(running, TICK_SECONDS, return_when=FIRST_COMPLETED)
            self._tick_if_due()
            self._snapshot()
            for future in done:
                part, began = running.pop(future)
                self._finish(part, future.result(), time.monotonic() - began)

    def _tick_if_due(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            self._tick()

    def _is_left_to_sink(self, vertex: JobVertex) -> bool:
        """Return whether the sink itself runs the last vertex, whose result is then written only once, into the job's table."""
        sink = self._pieces.graph.sink
        if vertex.kind is not VertexKind.BUCKETS or vertex.id in self._initialized or vertex.id not in sink.inputs:
            return False
        return sum(self._bytes_of_buckets(vertex)) < division.KEPT_BYTES * self._settings.slots

    def _wait_for_sink(self, writing: Future[None], vertex: JobVertex) -> None:
        last = self._pieces.graph.sink.id
        self.progress.parallelism |= {vertex.id: len(self._division(vertex)), last: 1}
        while not writing.done():
            wait([writing], TICK_SECONDS)
            self._tick()
        writing.result()
        self.progress.finished |= {*self.progress.missing(vertex.id), ExecutionVertex(last, 0)}

    def _snapshot(self) -> None:
        """Write a snapshot if one is due: FLIP-383's snapshot of the operator coordinators, here the progress of each vertex."""
        now = time.monotonic()
        if now - self._snapshot_at < self._settings.snapshot_pause.total_seconds():
            return
        self._snapshot_at = now
        counts = Counter(str(part.vertex) for part in self.progress.finished)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._write_event(CoordinatorSnapshot(self._settings.epoch, dict(counts), at))

    def _initialize(self, vertex: JobVertex) -> None:
        """Decide how a vertex is divided into parts, unless an earlier driver has decided it."""
        if vertex.kind is VertexKind.SOURCE:
            self._slices[vertex.id] = Slices(self._session, self._fragments[vertex.id].scan)
        if (event := self._initialized.get(vertex.id)) is not None:
            self._check_files(event)
            return
        divided = self._division(vertex)
        table = f"vertex-{vertex.id}-{self._settings.epoch}"
        event = ExecutionJobVertexInitialized(
            vertex.id, len(divided), divided, table, self._settings.epoch, vertex.name, vertex.inputs
        )
        self._initialized[vertex.id] = event
        self.progress.parallelism[vertex.id] = len(divided)
        self._write_event(event)
        self._table(event)

    def _largest_first(self, vertex: JobVertex) -> list[ExecutionVertex]:
        """Return the missing parts of a vertex, the largest first, so that no slot is idle for long before the last part ends."""
        divided, sizes = self._initialized[vertex.id].division, [0]
        if vertex.kind is VertexKind.SOURCE:
            sizes = self._slices[vertex.id].bytes
        elif vertex.kind is VertexKind.BUCKETS:
            sizes = self._bytes_of_buckets(vertex)
        missing = self.progress.missing(vertex.id)
        return sorted(missing, key=lambda part: -sum(sizes[number] for number in divided[part.part]))

    def _check_files(self, event: ExecutionJobVertexInitialized) -> None:
        """Raise JobError unless the pinned input has as many files as were divided."""
        if (slices := self._slices.get(event.vertex)) is not None:
            divided = sum(len(part) for part in event.division)
            if divided != len(slices.bytes):
                raise JobError(
                    f"An input of job {self._settings.job} had {divided} files when the job was submitted, and has "
                    f"{len(slices.bytes)} now. Run CANCEL JOB {self._settings.job} and then the statement again."
                )

    def _division(self, vertex: JobVertex) -> Division:
        if vertex.kind is VertexKind.SOURCE:
            return division.slices(self._slices[vertex.id].bytes)
        if vertex.kind is VertexKind.BUCKETS:
            return division.groups(self._bytes_of_buckets(vertex), self._settings.slots)
        return ((),)

    def _bytes_of_buckets(self, vertex: JobVertex) -> list[int]:
        """Return the measured size of each bucket that a vertex reads, in bytes, summed over its inputs."""
        read = [each.vertex for each in self._fragments[vertex.id].inputs if not each.is_whole]
        buckets = self._pieces.graph.vertices[read[0]].buckets
        sizes = [self._tables[each].bytes_by_bucket(buckets) for each in read]
        return [sum(of_bucket) for of_bucket in zip(*sizes, strict=True)]

    def _table(self, event: ExecutionJobVertexInitialized) -> VertexTable:
        fragment = self._fragments[event.vertex]
        folder = self._settings.home.child(event.table)
        table = VertexTable(self._session, folder, parts.schema_of(self._session, fragment))
        table.open()
        self._tables[event.vertex] = table
        return table

    def _run_part(self, part: ExecutionVertex) -> tuple[OutputFile, ...]:
        """Run a part and write its files, on a thread of the pool."""
        with jvm.active(self._session):
            return self._written(part)

    def _written(self, part: ExecutionVertex) -> tuple[OutputFile, ...]:
        context, fragment = self._session.sparkContext, self._fragments[part.vertex]
        context.addJobTag(self._settings.tag)
        context.setLocalProperty("spark.scheduler.pool", self._settings.job)  # so that in FAIR mode jobs share the cluster
        kind, chosen = fragment.vertex.kind, self._initialized[part.vertex].division[part.part]
        tables = [self._tables[each.vertex] for each in fragment.inputs]
        scan = self._slices[part.vertex].scan(chosen) if kind is VertexKind.SOURCE else None
        buckets = chosen if kind is VertexKind.BUCKETS else None
        with jvm.described(self._session, f"sqlext job {self._settings.job}: {fragment.vertex.name} {part}", self._settings.job):
            rows = parts.rows_of_part(self._session, fragment, tables, buckets, scan)
            return self._tables[part.vertex].write(rows, part.part, self._settings.epoch)

    def _finish(self, part: ExecutionVertex, files: tuple[OutputFile, ...], seconds: float) -> None:
        self._check()
        event = ExecutionVertexFinished(part.vertex, part.part, self._settings.epoch, round(seconds, 3))
        self._tables[part.vertex].commit(finished(files, event))
        self.progress.finished.add(part)
        logger.info("job %s: %s finished in %.1f s", self._settings.job, part, seconds)

    def _sink(self, vertex: JobVertex) -> None:
        """Fill the job's table, on a thread of the pool."""
        fragment = self._fragments.get(vertex.id)
        context = self._session.sparkContext
        context.addJobTag(self._settings.tag)
        job = self._settings.job
        with jvm.active(self._session), jvm.described(self._session, f"sqlext job {job}: {vertex.name}", job):
            if fragment is None:
                rows = parts.result(self._session, self._tables[vertex.inputs[0]], self._settings.columns)
            else:
                tables = [self._tables[each.vertex] for each in fragment.inputs]
                divided = self._division(vertex) if vertex.kind is VertexKind.BUCKETS else None
                rows = parts.rows_of_sink(self._session, fragment, tables, self._settings.columns, divided)
            self._write_sink(rows)


def prepare(session: SparkSession, buckets: int) -> None:
    """Set a session up for planning and running a job.

    Args:
        session: the job's own session.
        buckets: the number of buckets of an exchange.
    """
    slots = int(session.sparkContext.defaultParallelism)
    settings = {
        "spark.sql.shuffle.partitions": buckets,
        # Parts run concurrently, so few tasks per part suffice, and fewer are better: each one emits a partial aggregate per key.
        "spark.sql.files.minPartitionNum": max(1, slots // division.LEAST_SLICES),
        "spark.sql.unionOutputPartitioning": "false",  # else the groups of buckets that the sink reads would be one partition
        "spark.sql.maxConcurrentOutputFileWriters": buckets,  # no sort by bucket before the files are written
        "spark.sql.sources.bucketing.enabled": "false",  # a bucketed scan needs no exchange, so the plan could not be cut there
        "spark.sql.sources.parallelPartitionDiscovery.threshold": 1_000_000,  # no Spark job to list files that are known
        "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",  # it would prune one piece by another's rows
    }
    for key, value in settings.items():
        session.conf.set(key, str(value))
