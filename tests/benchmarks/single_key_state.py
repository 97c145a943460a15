"""FLIP-140's microbenchmark of state (Flink's `ValueStateBenchmark`) on the single-key backend, and rows through its worker.

python -m tests.benchmarks.single_key_state
python -m tests.benchmarks.single_key_state --operations 100000 --rows 100000 --runs 1

It needs no Spark: one Python thread, and no input but what lies in memory. The fastest run counts, with the loop that makes the
calls in it. valueAdd changes the key each time, so that each value is the first of its key; the others stay within a key.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, Row, StructType

from sqlext.execution.keyed.keyed_worker import KeyedTask
from sqlext.execution.keyed.single_key_state import SingleKeyStateBackend
from sqlext.functions.keyed import KeyedContext, KeyedProcessFunction, RuntimeContext

ROWS_IN_A_BATCH = 10_000
"""As Spark's `spark.sql.execution.arrow.maxRecordsPerBatch` has it."""
A_KEY = 1000
"""Entries of a key's list and map."""
ROWS_A_KEY = (1, 10, 1_000_000)
"""FLIP-140's word count has 10: 40 million rows of 4 million keys."""


def operations() -> dict[str, Callable[[range], None]]:
    """Loops over numbers, by name; each does one operation with each number."""
    backend_of_one = SingleKeyStateBackend()
    value = backend_of_one.get_value_state("value", "n BIGINT")
    backend_of_one.end_open()
    backend_of_one.start_key()
    backend = SingleKeyStateBackend()
    pair = backend.get_value_state("pair", "n BIGINT, s STRING")
    items = backend.get_list_state("items", "n BIGINT")
    entries = backend.get_map_state("entries", "k BIGINT", "n BIGINT")
    backend.end_open()
    backend.start_key()

    def value_add(numbers: range) -> None:
        for number in numbers:
            backend_of_one.start_key()
            value.update(number)

    def value_get(numbers: range) -> None:
        for _ in numbers:
            value.value()

    def value_update(numbers: range) -> None:
        for number in numbers:
            value.update(number)

    def pair_update(numbers: range) -> None:
        for number in numbers:
            pair.update((number, "s"))

    def list_append(numbers: range) -> None:
        for _ in range(0, len(numbers), A_KEY):
            backend.start_key()
            for number in range(A_KEY):
                items.append(number)

    def map_put(numbers: range) -> None:
        for _ in range(0, len(numbers), A_KEY):
            backend.start_key()
            for number in range(A_KEY):
                entries.put(number, number)

    def map_get(numbers: range) -> None:
        for number in numbers:
            entries.get_value(number % A_KEY)

    return {
        "valueAdd": value_add,
        "valueGet": value_get,
        "valueUpdate": value_update,
        "valueUpdate of two columns": pair_update,
        "listAppend": list_append,
        "mapPut": map_put,
        "mapGet": map_get,
    }


class Count(KeyedProcessFunction):
    """Counts the rows of a key, and gives the count in a timer at its end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_value_state("count", "n BIGINT")

    def process_element(self, row: Row, context: KeyedContext) -> None:
        count = self.count.value()
        if count is None:
            context.register_event_time_timer(0)
            count = 0
        self.count.update(count + 1)

    def on_timer(self, timestamp: int, context: KeyedContext) -> Iterator[tuple[Any, ...]]:
        yield (*context.key, self.count.value())


def through_worker(rows: int, rows_a_key: int) -> None:
    """Count the rows of each key."""
    schema = StructType().add("k", LongType()).add("v", LongType())
    returns = StructType().add("k", LongType()).add("n", LongType())
    task = KeyedTask("count", Count(), schema, StructType().add("k", LongType()), returns)
    keys = np.arange(rows) // rows_a_key

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, rows, ROWS_IN_A_BATCH):
            part = pa.array(keys[begin : begin + ROWS_IN_A_BATCH])
            yield pa.RecordBatch.from_arrays([part, part, part], names=["k", "v", "key"])

    counted = sum(batch.num_rows for batch in task.run(batches()))
    assert counted == -(-rows // rows_a_key), "a key is missing"


def fastest(run: Callable[[], None], runs: int) -> float:
    """Seconds of the fastest run."""
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--result", type=Path, help="where the figures go as JSON, too")
    given = parser.parse_args()
    numbers = range(given.operations)
    found: dict[str, dict[str, float]] = {"million operations a second": {}, "rows a second through the worker": {}}
    for name, loop in operations().items():
        taken = fastest(lambda loop=loop: loop(numbers), given.runs)  # type: ignore[misc]
        found["million operations a second"][name] = round(given.operations / taken / 1e6, 1)
    for rows_a_key in ROWS_A_KEY:
        taken = fastest(lambda count=rows_a_key: through_worker(given.rows, count), given.runs)  # type: ignore[misc]
        found["rows a second through the worker"][f"{rows_a_key} rows a key"] = round(given.rows / taken)
    text = json.dumps(found, indent=2)
    print(text)
    if given.result is not None:
        given.result.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
