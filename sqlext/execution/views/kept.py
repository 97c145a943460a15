"""Rows that a refresh reads several times, computed once and kept on the executors until it ends."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, DecimalType, IntegralType, StringType

from sqlext.execution.delta import commit
from sqlext.execution.views.near import Range, Values
from sqlext.spark.plans import Plans, output_of
from sqlext.spark.settings import session_settings

_WITH_RANGE = (IntegralType, DecimalType, DateType)
"""Types whose values have one order everywhere, and a text from which Spark makes the same value."""


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

    def values(self, plan: Any) -> Values:
        """Compute the different rows of a plan, values of keys."""
        attributes = output_of(plan)
        names = [f"k{at}" for at in range(len(attributes))]
        frame = self._plans.frame(self._plans.grouped(plan, attributes, attributes)).toDF(*names).persist()
        self._frames.append(frame)
        found = _ranges_of(frame)
        return Values(self._plans.held(frame), found)

    def ranges(self, plan: Any) -> Values:
        """Return the rows of a plan, values of keys that may be there several times, of which only the ranges are computed."""
        frame = self._plans.frame(plan)
        return Values(plan, _ranges_of(frame.toDF(*(f"k{at}" for at in range(len(frame.columns))))))

    def keep(self, plan: Any) -> Any:
        """Compute a plan's rows; return a plan that reads them, with the same attributes."""
        frame = self._plans.frame(plan).persist()
        self._frames.append(frame)
        fill(frame)
        held = self._plans.held(frame)
        return self._plans.renamed(held, output_of(held), output_of(plan))


def _ranges_of(values: DataFrame) -> tuple[Range, ...]:
    """Compute a frame with values of keys, and return their ranges."""
    metrics: list[str] = []
    for name, data_type in ((field.name, field.dataType) for field in values.schema):
        has_range = isinstance(data_type, _WITH_RANGE) or data_type == StringType()  # not with a collation
        bounds = (f"min({name})", f"max({name})") if has_range else ("NULL", "NULL")
        metrics += [f"count({name})", *(f"CAST({each} AS STRING)" for each in bounds)]
    number, *found = fill(values, *metrics)
    return tuple(Range(least, greatest, count < number) for count, least, greatest in zip(*[iter(found)] * 3, strict=True))


def fill(rows: DataFrame, *metrics: str) -> tuple[Any, ...]:
    """Compute the rows of a persisted frame, and return their number, and aggregates of them that are given in SQL.

    Adaptive execution is for the rows, which were planned when they were persisted; the count would take it two jobs more.
    """
    with session_settings(rows.sparkSession, commit.FEW_ROWS):
        return tuple(rows.agg(F.expr("count(*)"), *map(F.expr, metrics)).collect()[0])
