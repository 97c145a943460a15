"""A user's Python functions, in a module of their own, which executors get by `spark.submit.pyFiles`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any


def doubled(value: int) -> int:
    return 2 * value


def totals(rows: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Each row of a key, with the key's total; it takes its time, so that kills find a job unfinished."""
    known = list(rows)
    time.sleep(0.2)
    for row in known:
        yield row.k, row.v, sum(each.v for each in known)


def places(rows: Iterable[Any]) -> Iterator[str]:
    """Where this worker has sqlext from, and which packages of a driver it has."""
    import importlib.util

    import sqlext

    there = [name for name in ("delta", "sqlglot", "click") if importlib.util.find_spec(name)]
    for _ in rows:
        yield f"{sqlext.__file__} {sys.executable} {there}"
