"""The flows of a host that this process is connected to, from SHOW FLOWS."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyspark.sql import Row

from sqlext.app.progress import status_line
from sqlext.app.statement_run import Task
from sqlext.clock import Clock, SystemClock
from sqlext.execution.flows.status import FlowPhase

logger = logging.getLogger(__name__)

SHOW_FLOWS = "SHOW FLOWS"
_VIEW = "materialized view"
_LOOK_SECONDS = 10.0
"""The least time, in seconds, from one look at the host to the next."""
_LOOK_SHARE = 20
"""A look that takes a second is followed by so many seconds without one, so that the host has little work with it."""
_SILENT_SECONDS = 15.0
"""The time, in seconds, after which a look that has no answer is told."""


@dataclass(frozen=True)
class HostFlow:
    """A flow at a host.

    Attributes:
        name: the name for messages.
        full_name: the name for statements, quoted where necessary.
        is_there: whether the flow runs in the host's own process.
    """

    name: str
    full_name: str
    status: str
    rows_in: int
    buffered_rows: int
    error: str
    is_there: bool

    @property
    def has_failed(self) -> bool:
        """Whether the flow has failed, though it may be tried again."""
        return self.status in (FlowPhase.FAILED, FlowPhase.FENCED, FlowPhase.RETRYING)

    @property
    def can_be_waited_for(self) -> bool:
        """Whether the flow runs or starts in the host's process."""
        return self.is_there and self.status in (FlowPhase.STARTING, FlowPhase.PREREQUISITES, FlowPhase.RUNNING)


def flows_of(rows: Iterable[Row]) -> list[HostFlow]:
    """Return the flows in the rows of SHOW FLOWS, which has materialized views, too."""
    return [
        HostFlow(
            str(row["name"]),
            str(row["full_name"]),
            str(row["status"]),
            int(row["rows_in"] or 0),
            int(row["buffered"] or 0),
            str(row["error"] or ""),
            row["rows_in"] is not None,
        )
        for row in rows
        if row["kind"] != _VIEW
    ]


def line_of(rows: Iterable[Row]) -> str:
    """Describe the flows of SHOW FLOWS in one line; empty if there are none."""
    flows = flows_of(rows)
    return status_line([flow.status for flow in flows], sum(flow.buffered_rows for flow in flows), 0)


class HostLooks:
    """What runs at the host: asked for now and then on another thread, so that the prompt never waits. One thread uses it.

    Args:
        look: asks the host and returns a line; it may take long, or fail.
    """

    def __init__(self, look: Callable[[], str], clock: Clock | None = None) -> None:
        self._look = look
        self._clock = clock or SystemClock()
        self._task: Task[tuple[str, float]] | None = None
        self._began = 0.0
        self._due = self._clock.monotonic()
        self._line = ""

    def line(self) -> str:
        """Return the newest line, and look again if that is due."""
        now = self._clock.monotonic()
        if self._task is not None and not self._task.thread.is_alive():
            self._take(self._task, now)
            self._task = None
        if self._task is None and now >= self._due:
            self._began, self._task = now, Task(self._timed)
        if self._task is not None and now - self._began > _SILENT_SECONDS:
            return "no answer"
        return self._line

    def _timed(self) -> tuple[str, float]:
        began = time.monotonic()
        line = self._look()
        return line, time.monotonic() - began

    def _take(self, task: Task[tuple[str, float]], now: float) -> None:
        try:
            self._line, seconds = task.result()
        except Exception as error:  # noqa: BLE001  # the prompt must not end with it
            logger.info("the host's flows are not known: %s", error)
            self._line, seconds = "no answer", 0.0
        self._due = now + max(_LOOK_SECONDS, _LOOK_SHARE * seconds)
