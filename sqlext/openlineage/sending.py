"""Sends the events of runs to where OpenLineage's client is configured to, on one thread.

What works never waits for it: it only puts an event into a short queue. What does not fit in, and what cannot be sent, is
dropped, counted and logged.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from pyspark.sql import SparkSession

from sqlext.clock import Clock, SystemClock
from sqlext.execution.coordination import runs
from sqlext.execution.coordination.runs import RunEvent, Runnable, RunState
from sqlext.openlineage.analysis import Analysis, Datasets
from sqlext.plan.lineage import shown
from sqlext.redaction import Redaction
from sqlext.spark import jvm

logger = logging.getLogger(__name__)

_MOST_WAITING = 1_000
_RUNNING_SECONDS = 60.0
"""The least time between two RUNNING events of a run."""
_KEPT_SECONDS = 60.0
"""How long the datasets of a run are those of the next run of the same view: a source gets a new column seldom."""
_LOG_SECONDS = 60.0
_CLOSE_SECONDS = 10.0


def sender_of(spark: SparkSession) -> Sender | None:
    """Return a sender that hears of all runs from now on; None: OpenLineage's client is not installed or not configured.

    The client is configured by its own means: `OPENLINEAGE_URL` and other variables, or `openlineage.yml`.
    """
    if find_spec("openlineage") is None or find_spec("openlineage.client") is None:
        if os.environ.get("OPENLINEAGE_URL"):
            logger.warning("OPENLINEAGE_URL is set, but the client is not installed: pip install 'sqlext[openlineage]'.")
        return None
    try:
        client = _client()
    except Exception:
        logger.exception("OpenLineage: no events are sent, since its client cannot be configured")
        return None
    if client is None:
        return None
    sender = Sender(Analysis(spark, jvm.redaction(spark)), client, jvm.redaction(spark))
    runs.listen(sender.hear)
    logger.info("OpenLineage: events are sent by the transport `%s`", client.transport.kind)
    return sender


def _client() -> Any:
    """Return OpenLineage's client; None: nothing says where it sends events to, or that it sends none."""
    from openlineage.client import OpenLineageClient  # an extra
    from openlineage.client.transport.noop import NoopConfig, NoopTransport  # an extra

    known = OpenLineageClient(transport=NoopTransport(NoopConfig()))  # which only reads the configuration
    is_configured = bool((known.config.transport or {}).get("type") or os.environ.get("OPENLINEAGE_URL"))
    is_disabled = os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true"
    return OpenLineageClient() if is_configured and not is_disabled else None


class Sender:
    """See the module's docstring. Any thread may call `hear`, which returns at once; the condition's lock guards the queue.

    Args:
        analysis: finds the datasets of runs.
        client: OpenLineage's.
        show: redacts secrets.
        clock: measures the time between events.
    """

    def __init__(self, analysis: Analysis, client: Any, show: Redaction, clock: Clock | None = None) -> None:
        from sqlext.openlineage import events  # needs the extra

        self._events = events
        self._analysis = analysis
        self._client = client
        self._show = show
        self._clock = clock or SystemClock()
        self._namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
        self._condition = threading.Condition()
        self._waiting: deque[RunEvent] = deque()
        self._rows: dict[str, int] = {}  # which no event has told yet, by the ids of flows
        self._told: dict[str, float] = {}  # when the last event of a flow was put into the queue
        self._dropped = 0
        self._reason = ""
        self._logged = float("-inf")
        self._is_closed = False
        self._open: dict[str, events.OpenRun] = {}  # this and the next: used by the thread only
        self._analysed: dict[str, tuple[Runnable, float, Datasets]] = {}
        self._thread = threading.Thread(target=self._run, name="sqlext-openlineage", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """The number of events that were not sent, since the log last had it."""
        with self._condition:
            return self._dropped

    def hear(self, event: RunEvent) -> None:
        """Take an event, to be sent soon; of flushes, one a minute."""
        with self._condition:
            now = self._clock.monotonic()
            if event.state is RunState.BEGUN:
                self._rows.pop(event.id, None)
            elif event.id in self._told:
                rows = self._rows.pop(event.id, None)
                event = event if rows is None else replace(event, rows=rows + (event.rows or 0))
                if event.state is RunState.FLUSHED and now - self._told[event.id] < _RUNNING_SECONDS:
                    self._rows[event.id] = event.rows or 0
                    return
            else:
                return  # of a run whose begin was not heard, or that has ended
            if event.state in (RunState.BEGUN, RunState.FLUSHED):
                self._told[event.id] = now
            else:
                del self._told[event.id]
            if len(self._waiting) >= _MOST_WAITING or self._is_closed:
                self._dropped += 1
                self._reason = "too many wait"
                return
            self._waiting.append(event)
            self._condition.notify_all()

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Send what waits, and an ABORT for each run that has not ended; at the deadline, the rest is given up.

        Args:
            seconds: how long to wait.
        """
        runs.unlisten(self.hear)
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        self._thread.join(seconds)
        if self._thread.is_alive():
            with self._condition:
                self._dropped += len(self._waiting)
                self._waiting.clear()
                logger.warning("OpenLineage: %d events were not sent: the collector does not answer", self._dropped)

    # The thread.

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    break
                event = self._waiting.popleft()
            self._guarded(event)
        for key in [*self._open]:
            self._guarded(RunEvent(key, RunState.STOPPED))
        try:
            self._client.close(timeout=_CLOSE_SECONDS)
        except Exception:
            logger.debug("OpenLineage's client was not closed", exc_info=True)

    def _guarded(self, event: RunEvent) -> None:
        try:
            self._send(event)
        except Exception as error:  # noqa: BLE001  # whatever a transport raises: lineage must not disturb anything
            with self._condition:
                self._dropped += 1
                self._reason = f"{type(error).__name__}: {error}"
        with self._condition:
            now, dropped = self._clock.monotonic(), self._dropped
            is_due = dropped > 0 and now - self._logged >= _LOG_SECONDS
            if is_due:
                self._dropped, self._logged = 0, now
        if is_due:
            logger.warning("OpenLineage: %d events were not sent: %s", dropped, self._show.message(self._reason))

    def _send(self, event: RunEvent) -> None:
        if event.runs is not None:
            if event.id in self._open:  # it has begun anew without an end: with other options, or after a fault
                self._emit(self._open.pop(event.id), RunEvent(event.id, RunState.STOPPED, at=event.at))
            run = self._events.OpenRun(self._events.new_id(event.at), event.runs, self._datasets(event.runs))
            self._open[event.id] = run
        elif (found := self._open.get(event.id)) is not None:
            run = found
        else:
            logger.debug("an event of %s has no run", event.id)
            return
        if event.rows is not None:
            run.rows = (run.rows or 0) + event.rows
        if event.state not in (RunState.BEGUN, RunState.FLUSHED):
            self._open.pop(event.id, None)
            if run.datasets.output is None:  # a job has made it meanwhile
                run.datasets = self._datasets(run.runs)
        self._emit(run, event)

    def _datasets(self, what: Runnable) -> Datasets:
        """Return the datasets of a run; those of a view that is refreshed often are not looked for at each refresh."""
        now = self._clock.monotonic()
        self._analysed = {key: kept for key, kept in self._analysed.items() if now - kept[1] < _KEPT_SECONDS}
        known = self._analysed.get(what.id)
        if known is not None and known[0] == what and known[2].output is not None:
            return known[2]
        found = self._analysis.datasets(what)
        self._analysed[what.id] = (what, now, found)
        return found

    def _emit(self, run: Any, event: RunEvent) -> None:
        self._client.emit(self._events.event_of(run, event, self._namespace, self._show))
        logger.debug("OpenLineage: %s of %s", event.state.value, shown(run.runs.name))
