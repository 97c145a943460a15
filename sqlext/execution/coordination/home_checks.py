"""Checks of the storage under a home: what fences, leases and registries take for granted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from pyspark.sql import SparkSession

from sqlext.errors import SetupError
from sqlext.execution.coordination.lease import DEAD_AFTER_SECONDS, beats
from sqlext.spark.storage import HadoopPath

_WRITERS = 8
_ROUNDS = 3
_BARRIER_SECONDS = 60.0


def writers_told(home: HadoopPath) -> Sequence[int]:
    """Let several writers create one file at once, a few times; return how many were told each time that theirs it is.

    It must be one each time: otherwise two drivers may both believe that a flow is theirs.

    Raises:
        SetupError: the folder cannot be written.
    """
    return [_writers_told(home.child(f".doctor-{uuid.uuid4().hex}")) for _ in range(_ROUNDS)]


def _writers_told(file: HadoopPath) -> int:
    together = Barrier(_WRITERS)

    def write(number: int) -> bool:
        together.wait(_BARRIER_SECONDS)
        return file.create_text(f"writer {number}")

    try:
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="sqlext-doctor") as pool:
            told = [number for number, is_mine in enumerate(pool.map(write, range(_WRITERS))) if is_mine]
        is_whole = len(told) != 1 or file.read_text().strip() == f"writer {told[0]}"
        return len(told) if is_whole else 0
    finally:
        file.delete()


def check_is_shared(spark: SparkSession, home: HadoopPath) -> None:
    """Check that files which executors write below the home are there for this process.

    On disks that are not shared, executors write where nobody reads, and Spark takes a folder without their files for one
    without rows.

    Raises:
        SetupError: some of them are not there.
    """
    folder, files = home.child(f".doctor-{uuid.uuid4().hex}"), 2 * max(spark.sparkContext.defaultParallelism, 1)
    try:
        spark.range(0, files, 1, files).write.parquet(folder.location)
        seen = sum(name.startswith("part-") for name in folder.names())
    finally:
        folder.delete()
    if seen != files:
        raise SetupError(
            f"The home `{home.location}` is not shared: executors of {spark.sparkContext.master} wrote {files} files there, "
            f"and this process sees {seen}. Set `spark.sqlext.home` to storage that the driver and all executors reach by that "
            "name: HDFS, S3, or a folder that all machines mount."
        )


def clock_difference(home: HadoopPath) -> float | None:
    """Return by how many seconds the storage's clock is ahead of this machine's; None: the storage does not say."""
    file = home.child(f".doctor-{uuid.uuid4().hex}")
    before = time.time()
    try:
        file.create_text("what time is it?")
        after, status = time.time(), file.status()
        written = 0.0 if status is None else int(status.getModificationTime()) / 1000
    finally:
        file.delete()
    if not written:
        return None
    return max(before - 1 - written, 0.0) * -1 or max(written - after, 0.0)  # a file system may keep whole seconds only


def hosts_ahead(home: HadoopPath) -> dict[str, float]:
    """Return the other machines whose signs of life are from the future, and by how many seconds."""
    now = time.time()
    return {host: at - now for host, at in beats(home.child("hosts")) if at - now > 1}


MOST_DIFFERENCE = DEAD_AFTER_SECONDS / 2
"""The difference of clocks, in seconds, from which on a living host may be taken for dead."""
