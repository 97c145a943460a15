"""Durations, counted by their length: what a histogram is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, math.inf)
"""The upper bounds of the classes, in seconds."""


@dataclass(frozen=True)
class Durations:
    """Some durations.

    Attributes:
        counts: the number of durations in each class: longer than the bound before, and at most as long as its own.
        seconds: their sum.
    """

    counts: tuple[int, ...] = (0,) * len(BOUNDS)
    seconds: float = 0.0

    def with_one(self, seconds: float) -> Durations:
        """Return these and one more.

        >>> Durations().with_one(0.2).with_one(7).buckets[:4]
        [('0.1', 0), ('0.25', 1), ('0.5', 1), ('1.0', 1)]
        """
        longest = next(at for at, bound in enumerate(BOUNDS) if seconds <= bound)
        counts = tuple(count + (at == longest) for at, count in enumerate(self.counts))
        return Durations(counts, self.seconds + seconds)

    @property
    def buckets(self) -> Sequence[tuple[str, float]]:
        """The number of durations up to each bound, as Prometheus wants it."""
        bounds = ("+Inf" if math.isinf(bound) else str(bound) for bound in BOUNDS)
        return [(bound, sum(self.counts[: at + 1])) for at, bound in enumerate(bounds)]
