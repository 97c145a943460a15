"""Numbers of the rows for which conditions hold, counted while Spark computes the rows.

Spark's `observe` leaves the generated code for each row; this counts within it, with the expression by which Delta counts the
rows that UPDATE and DELETE touch. A row counts again if the stage that computes it is repeated, as with `observe`.

Relies on Delta's and Spark's private side: ConditionalIncrementMetric, SQLMetric. Checked with Delta 4.4 and Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame

from sqlext.spark.java import java_of, scala_object


class RowCounts:
    """Rows, and the counts that are taken when they are computed. Thread-safe: no state is kept here.

    Args:
        rows: the rows.
        conditions: on them, by name; a row counts where its condition is true.

    Attributes:
        rows: the same rows. They must be computed once: each time adds to the counts. Where a query spells its rows out (VALUES),
            the optimizer computes them.
    """

    def __init__(self, rows: DataFrame, conditions: Mapping[str, Column]) -> None:
        spark, jvm = rows.sparkSession, java_of(rows.sparkSession)
        metrics = scala_object(spark, "org.apache.spark.sql.execution.metric.SQLMetrics")
        columns = jvm.org.apache.spark.sql.classic.ExpressionUtils
        true = jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()
        self._metrics = {name: metrics.createMetric(spark.sparkContext._jsc.sc(), name) for name in conditions}
        counting = [
            Column(columns.column(jvm.org.apache.spark.sql.delta.metric.ConditionalIncrementMetric(true, counted, metric)))
            for counted, metric in ((columns.expression(conditions[name]._jc), each) for name, each in self._metrics.items())
        ]
        self.rows = rows.where(reduce(Column.__and__, counting)) if counting else rows  # all true: it is there to be evaluated

    def values(self) -> dict[str, int]:
        """Return the counts, by name, after the rows have been computed."""
        return {name: int(metric.value()) for name, metric in self._metrics.items()}
