"""Session windows: sessions are put together as rows come, and the table is what a batch query gives of all of them."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from sqlext.execution import commit
from sqlext.execution.session_state import SessionState
from sqlext.execution.table_writer import TableWriter
from tests.integration.workshop import BUFFERED, Workshop, are_contiguous

STREAM = "STREAM ev WITH ('maxFilesPerTrigger' = '1')"
WATERMARKED = f"{STREAM} WATERMARK at DELAY OF INTERVAL 1 MINUTE"
WINDOW = "session_window(at, '10 minutes')"
QUERY = f"SELECT {WINDOW} AS w, k, count(*) AS n, sum(v) AS total FROM {{}} GROUP BY {WINDOW}, k"


def source(sql: Workshop) -> None:
    sql("CREATE TABLE ev (k STRING, at TIMESTAMP, v INT) USING delta")


def insert(sql: Workshop, *rows: tuple[str | None, int | None, int | None]) -> None:
    """One commit of rows: a key, minutes after midnight, a value."""
    start = datetime(2026, 1, 1)
    values = [Row(k=k, at=None if minute is None else start + timedelta(minutes=minute), v=v) for k, minute, v in rows]
    frame = sql.spark.createDataFrame(values, "k STRING, at TIMESTAMP, v INT")
    frame.coalesce(1).write.format("delta").mode("append").saveAsTable("ev")


def check(sql: Workshop, query: str) -> None:
    sql("WAIT FLOW t")
    assert sql.batch("SELECT * FROM t") == sql.batch(query.format("ev"))


STEPS = (
    [("a", 0, 1), ("a", 5, 2), ("b", 0, 3), (None, 3, 4), ("a", None, 5)],
    [("a", 30, 6), ("a", 60, 7), ("b", 100, 8)],
    [("a", 20, 9)],  # joins what ends at 15 with what starts at 30? no: 20 to 30 touches 30, and 15 is before 20
    [("a", 14, 10), ("b", 50, 11), (None, None, 12)],  # bridges: 0 to 24, 20 to 40
    [("a", 45, 13), ("a", 52, 14), ("c", 1, None)],  # 45 to 55, 52 to 62: one session with 60
    [("a", -5, 15), ("b", 91, 16), ("b", -200, 17)],
)


@pytest.mark.parametrize("relation", [STREAM, WATERMARKED], ids=["plain", "watermark"])
@pytest.mark.parametrize("properties", ["", BUFFERED], ids=["unbuffered", "buffered"])
def test_late_rows_make_one_session_of_two(sql: Workshop, properties: str, relation: str) -> None:
    source(sql)
    insert(sql, *STEPS[0])
    sql(f"CREATE STREAMING TABLE t {properties} AS {QUERY.format(relation)}")
    check(sql, QUERY)
    for step in STEPS[1:]:
        insert(sql, *step)
        check(sql, QUERY)
    assert are_contiguous(sql.commits("t"))
