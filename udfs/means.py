"""Means that Spark lacks, as aggregates for batch queries and streams."""

from __future__ import annotations

import statistics

from sqlext.functions.scalar import PythonFunction


def geometric_mean(values: list[float]) -> float | None:
    """Return the n-th root of the product of n values; None for no values, or when a value is not above 0.

    >>> geometric_mean([2.0, 8.0])
    4.0
    """
    if not values or min(values) <= 0:
        return None
    return float(f"{statistics.geometric_mean(values):.14g}")  # what the logarithms below it add to the last digits is noise


def harmonic_mean(values: list[float]) -> float | None:
    """Return the reciprocal of the mean of the reciprocals; None for no values, or when a value is below 0.

    >>> harmonic_mean([40.0, 60.0])
    48.0
    """
    if not values or min(values) < 0:
        return None
    return float(statistics.harmonic_mean(values))


FUNCTIONS = (
    PythonFunction("geometric_mean", geometric_mean, "DOUBLE", is_aggregate=True),
    PythonFunction("harmonic_mean", harmonic_mean, "DOUBLE", is_aggregate=True),
)
