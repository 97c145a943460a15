"""Small helpers for tests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlglot import exp

from sqlext.errors import NotFoundError
from sqlext.sql.dialect import parse_query, to_sql

T = TypeVar("T")

_POLL_SECONDS = 0.1


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TableVersions:
    """The newest versions of tables by their locations, in the place of `TableLogs`; a table without one is gone."""

    def __init__(self, **versions: int) -> None:
        self.versions = versions

    def newest(self, location: str, max_age: float = 0.0) -> int:
        """Return the newest version of a table."""
        if location not in self.versions:
            raise NotFoundError(location)
        return self.versions[location]


class UncombinedTable:
    """Rows in a table of Arrow that no batch holds, as those with more than 2 GiB of text in a column.

    It takes the place of `LocalDataToArrowConversion.convert`.
    """

    def __init__(self, rows: Iterable[tuple[Any, ...]], schema: StructType, *_: Any) -> None:
        named = [dict(zip(schema.names, row, strict=True)) for row in rows]
        self._table = pa.Table.from_pylist(named, to_arrow_schema(schema, timezone="UTC"))

    def combine_chunks(self) -> UncombinedTable:
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return list(self._table.to_batches(max_chunksize=1))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a DataFrame as plain tuples, in an order that depends on nothing but their values."""
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def commits(location: str | Path) -> list[dict[str, Any]]:
    """What sqlext says of its commits on a Delta table, oldest first, read from the log's own files.

    Args:
        location: the table's folder, as a path or `file:` URI.
    """
    path = Path(unquote(urlsplit(str(location)).path)) if str(location).startswith("file:") else Path(location)
    found: list[dict[str, Any]] = []
    for file in sorted((path / "_delta_log").glob("*.json")):
        for action in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            metadata = action.get("commitInfo", {}).get("userMetadata")
            if metadata is not None:
                found.append(json.loads(metadata)["sqlext"])
    return found


def eventually(predicate: Callable[[], T], timeout: float, otherwise: Callable[[], str] = lambda: "it never came true") -> T:
    """Ask until the answer is true, and return it.

    Args:
        predicate: asked again and again.
        timeout: seconds until AssertionError.
        otherwise: what the error says.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{otherwise()} ({timeout:.0f} s)")
        time.sleep(_POLL_SECONDS)
    return answer


def side_by_side(step: Callable[[T], object], cases: Iterable[T]) -> None:
    """Run a step of a test for each of its cases, three at once, and tell what is wrong with any of them.

    Args:
        step: makes, or checks, what a case needs beside the others.
        cases: each is called in an error by what `str` gives.

    Raises:
        BaseExceptionGroup: each case that has failed, with its name, what was found and where.
    """

    def failure(case: T) -> BaseException | None:
        try:
            step(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # whatever it is, it is told
            error.add_note(f"in the case {case}")
            return error
        return None

    cases = list(cases)
    with ThreadPoolExecutor(3) as pool:
        failures = list(pool.map(failure, cases))
    failed = [str(case) for case, error in zip(cases, failures, strict=True) if error is not None]
    if failed:
        raise BaseExceptionGroup(f"failed: {'; '.join(failed)}", [error for error in failures if error is not None])


def written_anew(query: str) -> str:
    """A query as the generator writes it where a rule has changed something of every select."""
    tree = parse_query(query)
    for each in tree.find_all(exp.Query, exp.CTE):
        each.meta.clear()  # without its origin
    return to_sql(tree, query)
