"""A partition four times as large as a Python worker's memory limit passes each operator on whole partitions.

The limit is Spark's own (`spark.executor.pyspark.memory`), which the kernel enforces: a worker that took more would fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_MB = 768
ROWS = 4 * LIMIT_MB * 1024  # of 1 KB each, and 16 bytes more
PROGRAM = """
import json, resource, sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import sqlext
from pyspark.sql import Row
from sqlext.app.embedded import embedded_session


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def by_id(batch: pa.RecordBatch) -> pa.Array:
    return pc.negate(batch.column("id"))


class Summary(sqlext.AggregateFunction):
    def create_accumulator(self):
        return 0, 0, 0

    def add(self, accumulator, value: pa.RecordBatch):
        rows, total, length = accumulator
        length += pc.sum(pc.binary_length(value.column("payload"))).as_py()
        return rows + value.num_rows, total + pc.sum(value.column("id")).as_py(), length

    def get_result(self, accumulator):
        return *accumulator, resource.getrlimit(resource.RLIMIT_AS)[0] // 2**20


def later(one: Row, other: Row) -> Row:
    return one if one.id > other.id else other


folder, limit, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = {
    "spark.executor.pyspark.memory": f"{limit}m",
    "spark.executor.cores": "1",
    "spark.python.worker.tracebackDumpIntervalSeconds": "240",  # longer than all of it takes: a worker that hangs says where
}
with embedded_session(folder / "warehouse", settings) as spark:
    payload = "repeat(md5(CAST(id AS STRING)), 32) AS payload"
    frame = spark.range(0, rows, 1, 1).selectExpr("id", payload)
    summary = "n BIGINT, total BIGINT, length BIGINT, limit BIGINT"
    window = sqlext.full_window_partition
    found = {
        "map_partition": window(window(frame).map_partition(identity, frame.schema)).aggregate(Summary(), summary).first(),
        "aggregate": window(frame).aggregate(Summary(), summary).first(),
        "reduce": window(frame).reduce(later).selectExpr("id", "length(payload)").first(),
        "sort_partition": window(frame).sort_partition(by_id, key_type="BIGINT").selectExpr("id", "length(payload)").first(),
    }
    (folder / "found.json").write_text(json.dumps({name: list(row) for name, row in found.items()}))
"""


@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="Spark limits its workers' memory on Linux")
def test_a_partition_may_be_larger_than_a_worker(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(LIMIT_MB), str(ROWS)]
    log = tmp_path / "out.log"
    with log.open("wb") as output:
        try:
            done = subprocess.run(command, stdout=output, stderr=output, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs:\n{log.read_text()[-20_000:]}") from None
    assert done.returncode == 0, log.read_text()[-3000:]
    total = ROWS * (ROWS - 1) // 2
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "map_partition": [ROWS, total, ROWS * 1024, LIMIT_MB],
        "aggregate": [ROWS, total, ROWS * 1024, LIMIT_MB],
        "reduce": [ROWS - 1, 1024],
        "sort_partition": [ROWS - 1, 1024],
    }
