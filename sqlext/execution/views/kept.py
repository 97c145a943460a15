"""Rows that a refresh reads several times, computed once and kept on the executors until it ends."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame

from sqlext.spark.plans import Plans, output_of


class Kept:
    """The kept rows of one refresh; a context manager, which frees them."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._frames: list[DataFrame] = []

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for frame in self._frames:
            frame.unpersist()

    def keep(self, plan: Any) -> Any:
        """Compute a plan's rows; return a plan that reads them, with the same attributes."""
        frame = self._plans.frame(plan).persist()
        self._frames.append(frame)
        frame.count()
        held = self._plans.held(frame)
        return self._plans.renamed(held, output_of(held), output_of(plan))
