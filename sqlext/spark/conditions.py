"""Conditions on the rows of a query, as Spark's analysis sees them.

Relies on Spark's private side: reads Catalyst expressions. Checked with Spark 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.spark.java import java_of
from sqlext.spark.plans import analysed


@dataclass(frozen=True)
class Condition:
    """An analysed condition.

    Attributes:
        is_deterministic: whether a row always gives the same result; the current time is the same within a query.
        has_subquery: whether it reads other rows than the one it is about.
    """

    is_deterministic: bool
    has_subquery: bool


def analyse(spark: SparkSession, columns: StructType, text: str) -> Condition:
    """Analyse a condition.

    Args:
        spark: the session in which it is evaluated.
        columns: of the rows that it is about.
        text: an expression over these columns.

    Raises:
        PySparkException: Spark refuses it: its syntax, its columns, its functions, its type, aggregates in it.
    """
    rows = spark.createDataFrame([], columns)  # a query's rows would let it name columns that the query has left out
    found = analysed(rows.where(F.expr(text))).condition()
    subqueries = java_of(spark).org.apache.spark.sql.catalyst.expressions.SubqueryExpression
    return Condition(bool(found.deterministic()), bool(subqueries.hasSubquery(found)))
