"""When a buffer is flushed, and the thread that does it, beside the stream (FLIP-365)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlext.logs import carried
from sqlext.spark import failures

logger = logging.getLogger(__name__)

_MIN_QUIET = timedelta(seconds=1)
_MAX_QUIET = timedelta(seconds=10)


class FlushReason(StrEnum):
    """Why a flush was made; stands in its commit's metadata."""

    INTERVAL = "interval"
    CACHE_FULL = "cache full"
    MICRO_BATCH = "micro-batch"
    IDLE = "idle"
    BACKLOG_END = "backlog end"
    COMMAND = "command"
    STOP = "stop"
    RECOVERY = "recovery"
    ONCE = "once"


@dataclass(frozen=True)
class FlushPolicy:
    """The wall-clock side of flushing.

    Attributes:
        max_interval: when a row that arrives in the buffer is in the table at the latest; None: every micro-batch is flushed on
            its own.
    """

    max_interval: timedelta | None

    @property
    def quiet(self) -> timedelta:
        """How long no input must have been available before the flow counts as idle.

        A tenth of the interval, within 1 and 10 seconds: a stream that trickles is not idle between two arrivals, and the
        table of one that has paused is never stale for long.
        """
        tenth = (self.max_interval or timedelta()) / 10
        return min(max(tenth, _MIN_QUIET), _MAX_QUIET)

    def due(
        self,
        now: float,
        oldest_arrival: float | None,
        quiet_since: float | None,
        is_backlog: bool = False,
        flush_seconds: float = 0.0,
    ) -> FlushReason | None:
        """Why to flush now, if at all. All times are the clock's monotonic seconds.

        Args:
            flush_seconds: what the last flush took. The next one begins as much before the interval is over, but waits for half
                of it.
            is_backlog: what comes to the sink is; no row of it needs to be seen before the backlog ends (FLIP-309).
        """
        if oldest_arrival is None or self.max_interval is None or is_backlog:
            return None
        interval = self.max_interval.total_seconds()
        if now - oldest_arrival >= max(interval - flush_seconds, interval / 2):
            return FlushReason.INTERVAL
        if quiet_since is not None and now - quiet_since >= self.quiet.total_seconds():
            return FlushReason.IDLE
        return None


class Flusher:
    """One thread that flushes, one flush at a time. Any thread may ask for a flush.

    The condition's lock guards the wish and the two counters. A flush that fails is kept as `error`, and none follows it.

    Args:
        name: the flow's, for the thread's.
        flush: does it; called on the flush thread only.
        failed: told once, on the flush thread, when a flush fails.
        afterwards: called when nobody waits for the flush any more; what it could not do, it does after the next one.
    """

    def __init__(
        self,
        name: str,
        flush: Callable[[FlushReason], None],
        failed: Callable[[Exception], None],
        afterwards: Callable[[], None],
    ) -> None:
        self._name = name
        self._flush = flush
        self._afterwards = afterwards
        self._failed = failed
        self._condition = threading.Condition()
        self._wish: FlushReason | None = None
        self._asked = 0
        self._done = 0
        self._closed = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=carried(self._run), name=f"sqlext-flush-{name}", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        with self._condition:
            return self._asked > self._done

    def ask(self, reason: FlushReason) -> int:
        """Ask for a flush of all that is buffered by now.

        Returns:
            A ticket for `wait`. A flush that has begun does not serve it; one that only waits does.
        """
        with self._condition:
            if self._wish is None:
                self._wish = reason
                self._asked += 1
                self._condition.notify_all()
            return self._asked

    def wait(self, ticket: int, timeout: float) -> bool:
        """Wait until the flush of a ticket is done, or flushing has failed or ended; False at the deadline (seconds)."""
        with self._condition:
            over = self._condition.wait_for(lambda: self._done >= ticket or self.error or self._closed, timeout)
            return bool(over)

    def close(self, timeout: float) -> bool:
        """End the thread after the flush in flight; False when it still runs at the deadline (seconds)."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._flush_until_closed()
        except Exception as error:  # whatever ends this thread ends the flow, with its cause
            logger.debug("flush failed", exc_info=True)
            try:
                self._failed(error)  # first: whoever waits asks the flow whether it has failed
            finally:
                with self._condition:
                    self.error = error
                    self._condition.notify_all()

    def _flush_until_closed(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._wish is not None or self._closed)
                if self._wish is None:
                    return
                reason, self._wish, ticket = self._wish, None, self._asked
            self._flush(reason)
            with self._condition:
                self._done = ticket
                self._condition.notify_all()
            try:
                self._afterwards()
            except Exception as error:  # noqa: BLE001  # the flush is done: nothing that follows it ends the flow
                logger.warning("flow %s: what follows a flush is left to the next one: %s", self._name, failures.reason_of(error))
