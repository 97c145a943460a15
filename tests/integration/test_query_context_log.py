"""Spark's errors in statements that are not sqlext's are logged as often as without it: once, by the client."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The first lines of what PySpark's loggers of errors in queries write."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage().partition("]")[0] + "]")

    handler = Kept()
    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    for logger in loggers:
        logger.addHandler(handler)
    yield found
    for logger in loggers:
        logger.removeHandler(handler)


def test_a_parse_error_is_logged_once(spark: SparkSession, logged: list[str]) -> None:
    with pytest.raises(ParseException):
        spark.sql("SELECT CAST(1 AS nothing)")
    assert logged == ["[UNSUPPORTED_DATATYPE]"]


def test_so_is_one_of_an_expression_and_of_a_query_that_is_analysed(spark: SparkSession, logged: list[str]) -> None:
    with pytest.raises(ParseException):
        spark.range(1).select(F.expr("CAST(id AS nothing)"))
    assert logged == ["[UNSUPPORTED_DATATYPE]"]
    with pytest.raises(AnalysisException):
        spark.sql("SELECT nothing FROM range(1)")
    assert logged[1:] == ["[UNRESOLVED_COLUMN.WITH_SUGGESTION]"]


def test_so_is_one_in_a_query_of_ours(spark: SparkSession, logged: list[str]) -> None:
    spark.sql("CREATE TABLE ev (k STRING) USING delta")
    with pytest.raises(AnalysisException):
        spark.sql("CREATE STREAMING TABLE t AS SELECT nothing, count(*) AS n FROM STREAM ev GROUP BY nothing")
    assert logged == ["[UNRESOLVED_COLUMN.WITH_SUGGESTION]"]


def test_what_spark_tries_and_gives_up_is_not_logged(spark: SparkSession, logged: list[str]) -> None:
    spark.sql("SET execution.batch.job-recovery.enabled = false")
    assert logged == []
