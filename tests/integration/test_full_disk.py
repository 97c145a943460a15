"""A full disk under the home: the flow says so and stops; with room again it goes on, and nothing is lost or doubled."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.extension import session as sqlext_session
from sqlext.options import HOME_KEY
from tests.support import commits, eventually, rows

DEADLINE = 180.0
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM {} GROUP BY k"
BUFFERED = "TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", tmp_path], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


@pytest.fixture
def home(small_disk: Path, spark: SparkSession) -> Iterator[Path]:
    """The application's home, on the small disk while the test runs."""
    installed = sqlext_session.installation_of(spark)
    installed.close()
    spark.conf.set(HOME_KEY, str(small_disk / "home"))
    yield small_disk / "home"
    installed.close()
    spark.conf.unset(HOME_KEY)


def fill(disk: Path) -> Path:
    """Take all of a file system's room; deleting the file gives it back."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as full:
            if full.errno != errno.ENOSPC:
                raise
    return path


def test_a_flow_fails_with_the_disk_and_catches_up(spark: SparkSession, home: Path) -> None:
    spark.sql("CREATE TABLE ev (k STRING, v INT) USING delta")
    spark.sql("INSERT INTO ev VALUES ('a', 1), ('b', 2)")
    spark.sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')}")
    spark.sql("WAIT FLOW t")
    before = rows(spark.table("t"))
    assert before == rows(spark.sql(COUNTS.format("ev")))

    filler = fill(home.parent)
    spark.sql("INSERT INTO ev VALUES ('a', 10), ('c', 30)")
    with pytest.raises(PySparkException, match=r"^Flow `t` has failed: .*No space left on device"):
        spark.sql("WAIT FLOW t TIMEOUT 3 minutes")

    def shown() -> tuple[str, str | None]:
        row = spark.sql("SHOW FLOWS").collect()[0]
        return row.status, row.error

    eventually(lambda: shown()[0] == "RETRYING", DEADLINE)
    _, error = shown()
    assert error is not None
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert rows(spark.table("t")) == before

    filler.unlink()
    spark.sql("INSERT INTO ev VALUES ('b', NULL), ('d', 40)")
    spark.sql("START FLOW t")
    spark.sql("WAIT FLOW t")
    assert rows(spark.table("t")) == rows(spark.sql(COUNTS.format("ev")))
    found = commits(spark.sql("DESCRIBE DETAIL t").collect()[0].location)
    assert [each["first_batch"] for each in found] == [0, *(each["last_batch"] + 1 for each in found[:-1])]
    assert shown() == ("RUNNING", None)
