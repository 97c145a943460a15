"""What a job has cost, as the registry records it and as its statement reports it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sqlext.execution.jobs.registry import JobEventKind, JobSpec, RegisteredEvent


@dataclass(frozen=True)
class JobCost:
    """The cost of a job for this driver.

    Attributes:
        parts: the number of parts that this driver ran.
        skipped: the number of parts that earlier drivers had finished.
        seconds: the time that the job took.
        event_bytes: the bytes written to the event store.
    """

    parts: int = 0
    skipped: int = 0
    seconds: float = 0.0
    event_bytes: int = 0

    def to_json(self) -> str:
        """Write the cost as the detail of a FINISHED event."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobCost:
        """Read it back."""
        return cls(**json.loads(text))


def sentence(spec: JobSpec, cost: JobCost) -> str:
    """Return the sentence that reports a finished job to the user."""
    what = f"{cost.parts} parts run" if cost.parts else "its table was already filled"
    again = f", {cost.skipped} finished by an earlier driver" if cost.skipped else ""
    return f"job {spec.id} finished into {'.'.join(spec.target)}, {what}{again}, {cost.seconds:.1f} s"


def filled(spec: JobSpec, epoch: int) -> RegisteredEvent:
    """Return the event of a job whose table turns out to be filled already."""
    return RegisteredEvent(spec.id, JobEventKind.FINISHED, epoch, detail=JobCost().to_json())
