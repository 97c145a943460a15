"""What a flow has done since it started here, counted: its flushes, and what its streaming queries have taken in."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from sqlext.clock import Clock
from sqlext.execution.coordination.runs import RunEvent, RunState, tell
from sqlext.execution.flows.flush import FlushReason
from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.status import EndedGroups, FlowProgress
from sqlext.execution.state.row_checks import Violations, total
from sqlext.plan.flow_spec import StateBackend
from sqlext.spark import state_size

logger = logging.getLogger(__name__)


class FlowMeter:
    """See the module's docstring. Any thread may use it; the lock guards the counts.

    Args:
        flow: its id.
        name: the flow's.
        clock: measures flushes.
    """

    def __init__(self, flow: str, name: str, clock: Clock) -> None:
        self._flow = flow
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._counted = FlowProgress()

    @property
    def last_flush_seconds(self) -> float:
        with self._lock:
            return self._counted.last_flush_seconds

    def note_flush(
        self, reason: FlushReason, rows: int, batches: int, started: float, violations: Violations, ended: EndedGroups
    ) -> None:
        """Count a flush that has just ended.

        Args:
            started: when, by the clock's monotonic seconds.
            violations: how many of its rows violated each constraint.
            ended: the groups that it has ended.
        """
        seconds = self._clock.monotonic() - started
        with self._lock:
            counted = self._counted
            self._counted = replace(
                counted,
                flushes=counted.flushes + 1,
                rows_flushed=counted.rows_flushed + rows,
                batches_flushed=counted.batches_flushed + batches,
                reasons=Counter(counted.reasons) + Counter([reason.value]),
                last_flush=self._clock.now(),
                last_reason=reason.value,
                last_flush_seconds=seconds,
                violations=total([counted.violations, violations]),
                flush_durations=counted.flush_durations.with_one(seconds),
                ended=counted.ended + ended,
            )
        tell(RunEvent(self._flow, RunState.FLUSHED, rows=rows))
        logger.info("flow %s: flushed %d rows in %.1f s (%s)", self._name, rows, seconds, reason.value)

    def progress(self, intakes: Sequence[Intake]) -> FlowProgress:
        """All that is counted, by now."""
        taken = [intake.progress() for intake in intakes]
        oldest = min((each.oldest_arrival for each in taken if each.oldest_arrival is not None), default=None)
        waited = timedelta(seconds=self._clock.monotonic() - oldest) if oldest is not None else None
        stored = [each.state for each in taken if each.state is not None]
        with self._lock:
            counted = self._counted
        return replace(
            counted,
            micro_batches=sum(each.micro_batches for each in taken),
            rows_in=sum(each.rows_in for each in taken),
            buffered_batches=sum(each.buffered_batches for each in taken),
            buffered_rows=sum(each.buffered_rows for each in taken),
            oldest_arrival=self._clock.now() - waited if waited is not None else None,
            state={StateBackend.ROCKSDB: state_size.total(stored)} if stored else {},
            watermark=min((each.watermark for each in taken if each.watermark), default=None),
        )
