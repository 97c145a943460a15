"""Rows that a refresh reads several times, computed once and kept on the executors until it ends."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame

from sqlext.execution.delta import commit
from sqlext.spark.plans import Plans, output_of
from sqlext.spark.settings import session_settings


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
        fill(frame)
        held = self._plans.held(frame)
        return self._plans.renamed(held, output_of(held), output_of(plan))


def fill(rows: DataFrame) -> int:
    """Compute the rows of a persisted frame, and return their number.

    Adaptive execution is for the rows, which were planned when they were persisted; the count would take it two jobs more.
    """
    with session_settings(rows.sparkSession, commit.FEW_ROWS):
        return rows.count()
