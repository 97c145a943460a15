"""The job-event store (FLIP-383): events that are not stored with an output, written in order by a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta

from sqlext.errors import JobError, SqlextError
from sqlext.execution.coordination.event_log import EventLog
from sqlext.execution.jobs.events import JobEvent, TornEventError, from_json, to_json
from sqlext.logs import carried
from sqlext.plan.records import lines_of

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 60.0
"""The time, in seconds, that `flush` and `close` wait for the last write."""


class JobEventStore:
    """Writes the events of one job. Any thread may call any method; the lock guards the buffer and the failure.

    Args:
        job: the job's id, for messages and the thread's name.
        log: the log that the events are written to; only the store's thread uses it.
        buffer_bytes: the size of the buffer, in bytes, at which the store writes it.
        interval: the time after the first buffered event at which the store writes the buffer at the latest.
        check: raises if another driver has taken over the job.
        failed: called on the store's thread if an event cannot be written; the job must end then.

    Attributes:
        bytes_written: the bytes written so far.
    """

    def __init__(
        self,
        job: str,
        log: EventLog,
        buffer_bytes: int,
        interval: timedelta,
        check: Callable[[], None],
        failed: Callable[[SqlextError], None],
    ) -> None:
        self._job = job
        self._log = log
        self._buffer_bytes = buffer_bytes
        self._interval = interval.total_seconds()
        self._check = check
        self._on_failed = failed
        self._lock = threading.Condition()
        self._lines: list[str] = []
        self._taken = 0
        self._written = 0
        self._flushing = False
        self._held = 0
        self._closing = False
        self._failure: SqlextError | None = None
        self.bytes_written = 0
        self._thread = threading.Thread(target=carried(self._run), name=f"sqlext-job-events-{job}", daemon=True)
        self._thread.start()

    def write(self, event: JobEvent) -> None:
        """Buffer an event, to be written later.

        Raises:
            SqlextError: the store has failed, or was closed.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise JobError(f"The event store of job {self._job} is closed.")
            line = to_json(event)
            self._lines.append(line)
            self._taken += 1
            self._held += len(line)
            self._lock.notify()

    def flush(self) -> None:
        """Write the buffered events, and return once they are written.

        Raises:
            SqlextError: they cannot be written, or not within `CLOSE_SECONDS`.
        """
        with self._lock:
            until, self._flushing = self._taken, True
            self._lock.notify()
            if not self._lock.wait_for(lambda: self._written >= until or self._failure is not None, CLOSE_SECONDS):
                raise JobError(f"The events of job {self._job} were not written within {CLOSE_SECONDS:.0f} s.")
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Write the buffered events, and end the store's thread.

        Raises:
            SqlextError: they cannot be written, or not within `CLOSE_SECONDS`.
        """
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            raise JobError(f"The event store of job {self._job} did not close within {CLOSE_SECONDS:.0f} s.")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (lines := self._due()) is not None:
            try:
                self._append(lines)
            except Exception as error:  # noqa: BLE001  # it would otherwise be lost with this thread, and the job would not end
                failure = error if isinstance(error, SqlextError) else JobError(f"The events of job {self._job}: {error}")
                logger.error("job %s: its events cannot be written: %s", self._job, failure)
                with self._lock:
                    self._failure = failure
                    self._lock.notify_all()
                self._on_failed(failure)
                return

    def _due(self) -> list[str] | None:
        """Wait until the buffered events must be written, and take them from the buffer; None: the store is closed."""
        with self._lock:
            self._lock.wait_for(lambda: self._lines or self._closing)
            is_due = lambda: self._held >= self._buffer_bytes or self._closing or self._flushing  # noqa: E731
            self._lock.wait_for(is_due, self._interval)
            lines, self._lines, self._held, self._flushing = self._lines, [], 0, False
            return lines or None

    def _append(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        self._check()
        while not self._log.append(text):  # a driver that was taken for dead wrote first; the check shows whose job it is
            self._log.read_new()
            self._check()
        with self._lock:
            self.bytes_written += len(text)
            self._written += len(lines)
            self._lock.notify_all()


def read_events(texts: Iterable[str]) -> list[JobEvent]:
    """Read the events of a log, in order; torn ones are ignored and logged.

    Args:
        texts: the entries of the log, each with an event per line.

    Raises:
        JobError: another version of sqlext wrote an event.
    """
    events: list[JobEvent] = []
    for text in texts:
        for line in lines_of(text):
            try:
                events.append(from_json(line))
            except TornEventError as error:
                logger.warning("ignored: %s", error)
    return events
