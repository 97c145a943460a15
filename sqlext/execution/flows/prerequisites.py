"""The prerequisites of a flow, its bounded stages (FLIP-331): each ends in a Delta table before the streaming queries start.

A prerequisite runs on a thread of its own as soon as those that it reads have finished, so independent ones run side by side. Its
table is made by one commit: either the whole result is there or nothing is. So the commit is all the record there is of a
finished prerequisite, and a flow that is resumed reads the table instead of running the query. Files that a killed process left
without a commit are no part of the table; they go with the flow's folder.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from sqlext.errors import FlowError
from sqlext.execution.delta import delta_log
from sqlext.execution.flows.status import PrerequisiteState, PrerequisiteStatus
from sqlext.logs import carried
from sqlext.plan.flow_spec import PrerequisiteSpec
from sqlext.spark import failures, jvm
from sqlext.spark.cancellation import end_jobs_of
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)


class Prerequisites:
    """Runs the prerequisites of one flow. Its own threads, statements and the ticker meet here; the lock guards the statuses.

    Args:
        flow: its name.
        tag: marks its Spark jobs.
        specs: each behind those that it reads.
        home: the flow's folder.
        session: the flow's own; it gets a view of each result.
        check: raises when another driver has the flow.
        finished: called when all prerequisites have, on the thread of the last one.
        failed: called when one has failed, or `finished` has, on its thread.
    """

    def __init__(
        self,
        flow: str,
        tag: str,
        specs: Sequence[PrerequisiteSpec],
        home: HadoopPath,
        session: SparkSession,
        check: Callable[[], None],
        finished: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._flow = flow
        self._specs = {spec.name: spec for spec in specs}
        self._home = home
        self._session = session
        self._check = check
        self._on_finished = finished
        self._on_failed = failed
        self._tag = tag
        self._lock = threading.Lock()
        self._statuses: Mapping[str, PrerequisiteStatus] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def open(self) -> bool:
        """Find the results that are there already, and show them to the flow's session.

        Returns:
            Whether that are all.
        """
        self._statuses = {name: recorded(self._session, self._home, name) for name in self._specs}
        for name, status in self._statuses.items():
            if status.state is PrerequisiteState.FINISHED:
                self._show(self._session, name)
        return self._are_all_finished()

    def start(self) -> None:
        """Run what is missing."""
        with self._lock:
            self._start_ready()

    def stop(self, timeout: float) -> bool:
        """Cancel what runs; finished prerequisites keep their results.

        Returns:
            Whether all threads ended within `timeout` seconds.
        """
        self._stopping = True
        return end_jobs_of(self._session, self._tag, self._threads, timeout)

    def statuses(self) -> tuple[PrerequisiteStatus, ...]:
        with self._lock:
            return tuple(self._statuses.values())

    def show(self, session: SparkSession) -> None:
        """Give another session of the flow a view of each result."""
        for name in self._specs:
            self._show(session, name)

    def _show(self, session: SparkSession, name: str) -> None:
        session.read.format("delta").load(table_of(self._home, name).location).createOrReplaceTempView(name)

    def _start_ready(self) -> None:
        """Start every prerequisite whose inputs are there. The lock is held."""
        for name, status in self._statuses.items():
            inputs = [self._statuses[other].state for other in self._specs[name].after]
            if status.state is PrerequisiteState.CREATED and all(state is PrerequisiteState.FINISHED for state in inputs):
                self._note(name, state=PrerequisiteState.RUNNING, started=datetime.now(UTC))
                thread = threading.Thread(
                    target=carried(self._run), args=(name,), name=f"sqlext-stage-{self._flow}-{name}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _run(self, name: str) -> None:
        try:
            self._write(self._specs[name])
            self._show(self._session, name)
            with self._lock:
                self._statuses = {**self._statuses, name: recorded(self._session, self._home, name)}
                if self._stopping:
                    return
                self._start_ready()
                is_last = self._are_all_finished()
            logger.info("flow %s: stage %s finished, %s rows", self._flow, name, self._statuses[name].rows)
            if is_last:
                self._on_finished()
        except Exception as error:  # noqa: BLE001  # the flow reports it, even a bug of ours; or it would wait for ever
            with self._lock:
                if self._statuses[name].state is PrerequisiteState.RUNNING:
                    self._note(name, state=PrerequisiteState.CANCELED if self._stopping else PrerequisiteState.FAILED)
            if not self._stopping:
                self._stopping = True
                self._session.sparkContext.cancelJobsWithTag(self._tag)  # the flow has failed; nobody reads the others
                self._on_failed(error)

    def _write(self, spec: PrerequisiteSpec) -> None:
        self._check()
        own = jvm.clone_session(self._session)
        location = table_of(self._home, spec.name).location
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        metadata = {"sqlext": {"flow": self._flow, "stage": spec.name, "started": started}}
        own.sparkContext.addJobTag(self._tag)
        try:
            with jvm.described(own, f"flow {self._flow}: bounded stage {spec.name}", self._tag):
                own.sql(spec.sql).write.format("delta").option("userMetadata", json.dumps(metadata)).mode("error").save(location)
        except SPARK_ERRORS as error:
            if not delta_log.exists(own, location):
                raise FlowError(f"The bounded stage {spec.name} failed: {failures.reason_of(error)}") from error
            logger.info("flow %s: another driver has finished stage %s first", self._flow, spec.name)
        finally:
            own.sparkContext.removeJobTag(self._tag)

    def _note(self, name: str, state: PrerequisiteState, started: datetime | None = None) -> None:
        status = self._statuses[name]
        self._statuses = {**self._statuses, name: replace(status, state=state, started=started or status.started)}

    def _are_all_finished(self) -> bool:
        return all(status.state is PrerequisiteState.FINISHED for status in self._statuses.values())


def table_of(home: HadoopPath, name: str) -> HadoopPath:
    """Where a prerequisite's result lies."""
    return home.child("stages", name)


def recorded(spark: SparkSession, home: HadoopPath, name: str) -> PrerequisiteStatus:
    """Return the status of a flow's prerequisite, as storage records it."""
    location = table_of(home, name).location
    if not delta_log.exists(spark, location):
        return PrerequisiteStatus(name, PrerequisiteState.CREATED)
    info = delta_log.commit_info(spark, location, 0)
    started = datetime.fromisoformat(json.loads(info["userMetadata"])["sqlext"]["started"])
    ended = datetime.fromtimestamp(info["timestamp"] / 1000, UTC)
    return PrerequisiteStatus(
        name, PrerequisiteState.FINISHED, started, ended - started, int(info["operationMetrics"]["numOutputRows"])
    )
