"""The event time among the keys of an aggregate: by it, a watermark decides which rows are late and which groups are complete.

It is a window over the column that has the watermark, or this column itself. Spark compares the end of the window, or the
value of the column, with the watermark: what is not after it is late, and null never is (`WatermarkSupport.watermarkExpression`).
Keys that are computed from the column otherwise, such as its date, have no watermark any more: no row is late for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sqlext.quoting import quote


@dataclass(frozen=True)
class EventTime:
    """See the module's docstring.

    Attributes:
        name: the column of partial results that has it.
        is_window: whether it is a window, with the times of its start and its end.
    """

    name: str
    is_window: bool

    def has_passed(self, watermark: int) -> Column:
        """Return the condition that a watermark has passed the event time; null where that is null.

        Args:
            watermark: the watermark, in milliseconds since 1970.
        """
        return self._column <= F.timestamp_millis(F.lit(watermark))

    def on_time(self, rows: DataFrame, watermark: int) -> DataFrame:
        """Return the partial results that are not late against a watermark, in milliseconds since 1970."""
        # of all numbers, only decimals are no part of generated code: others would be compiled anew for each watermark
        after = F.unix_micros(self._column) - F.lit(Decimal(watermark * 1000)) > 0
        return rows.where(F.coalesce(after, F.lit(True)))

    @property
    def _column(self) -> Column:
        return F.col(f"{quote(self.name)}.end" if self.is_window else quote(self.name))
