"""What comes into a flow: its streaming queries, started, looked at and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.work import Work
from sqlext.execution.streaming.pace import Pace
from sqlext.execution.streaming.running_query import RunningQuery
from sqlext.plan.flow_spec import StreamSpec

_PROGRESS_SECONDS = 0.5  # it is a large JSON


class Intakes(Sequence[Intake]):
    """The intakes of one flow, in the order of its streaming queries. Any thread may call it, as it may its intakes."""

    def __init__(self, intakes: Iterable[Intake]) -> None:
        self._intakes = tuple(intakes)
        self._progress_read = float("-inf")  # only the ticker's

    @overload
    def __getitem__(self, index: int) -> Intake: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Intake]: ...
    def __getitem__(self, index: int | slice) -> Intake | Sequence[Intake]:
        return self._intakes[index]

    def __len__(self) -> int:
        return len(self._intakes)

    def open(self, committed: Callable[[StreamSpec], int | None], stored: Callable[[StreamSpec], int | None]) -> None:
        """Analyse the queries, and find what an earlier driver left in their buffers.

        Args:
            committed: returns the last micro-batch of a streaming query that is in its table.
            stored: returns the last one that is in a state beside its table.
        """
        for intake in self:
            intake.open(committed(intake.stream), stored(intake.stream))

    def rewind(self, work: Work) -> None:
        """Bring back the rows that memory-only buffers have lost; see `Intake.rewind`."""
        for intake in self:
            intake.rewind(work)

    def start(self, pace: Pace) -> None:
        """Start the queries."""
        for intake in self:
            intake.start(pace)

    def stop(self) -> None:
        """Stop the queries. A micro-batch in progress is repeated on the next start."""
        for intake in self:
            intake.stopping = True
        for intake in self:
            intake.stop_query()

    def note_all_flushed(self) -> None:
        """After a clean stop, note that the next start has nothing to bring back."""
        for intake in self:
            intake.note_all_flushed()

    def release(self) -> None:
        """Let go of the queries, which have ended."""
        for intake in self:
            intake.release()

    @property
    def failed(self) -> Intake | None:
        """The first of those whose query has failed."""
        return next((intake for intake in self if intake.has_failed), None)

    def running(self) -> list[RunningQuery]:
        """Return the queries that were started and not released."""
        return [running for intake in self if (running := intake.started) is not None]

    @property
    def are_at_rest(self) -> bool:
        """Whether all queries have read all there was, and look for nothing until a table has a new version."""
        return all((running := intake.started) is not None and running.is_at_rest for intake in self)

    @property
    def is_quiet(self) -> bool:
        """Whether no query has input available."""
        return all(intake.is_quiet for intake in self)

    @property
    def has_buffered(self) -> bool:
        """Whether there is anything to flush."""
        return any(intake.buffer.has_any for intake in self)

    def oldest_arrival(self, is_waiting: bool = False) -> float | None:
        """Return when the oldest buffered row arrived, by the clock's monotonic seconds.

        Args:
            is_waiting: whether rows that a flush in flight has taken are left out.
        """
        arrivals = (intake.buffer.oldest_arrival(is_waiting) for intake in self)
        return min((arrival for arrival in arrivals if arrival is not None), default=None)

    def read_progress_at_times(self, now: float) -> None:
        """Ask Spark what the queries have done, from time to time, and when all have just come to rest; for the host's ticker."""
        if self.are_at_rest or now - self._progress_read >= _PROGRESS_SECONDS:
            self._progress_read = now
            for intake in self:
                intake.read_progress()

    def job_groups(self) -> list[str]:
        """Return the job groups of the micro-batches that run."""
        return [str(query.runId) for intake in self if (query := intake.query) is not None]
