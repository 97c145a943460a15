"""The results of statements as text: tables with a limited number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

ROW_LIMIT = 100
_RIGHT = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True)
class Result:
    """The rows of a statement as text.

    Attributes:
        columns: the columns' names.
        is_number: for each column, whether it is numeric; numbers are right-aligned.
        rows: the values as text; None is NULL.
        has_more: whether Spark has rows that were not fetched.
        left_out: the number of rows that were fetched and are not among `rows`.
    """

    columns: Sequence[str]
    is_number: Sequence[bool]
    rows: Sequence[Sequence[str | None]]
    has_more: bool = False
    left_out: int = 0

    @property
    def text(self) -> str | None:
        """The result's single text, for a command or EXPLAIN; None for a table."""
        if len(self.columns) == 1 and len(self.rows) == 1 and not self.is_number[0]:
            only = self.rows[0][0]
            if only is not None and ("\n" in only or self.columns[0] == "command_output"):
                return only
        return None

    def first(self, number: int) -> Result:
        """Return the result cut to a number of rows."""
        return replace(self, rows=self.rows[:number], left_out=self.left_out + max(len(self.rows) - number, 0))


@dataclass(frozen=True)
class LiveBatch:
    """The rows of one micro-batch of a live query.

    Attributes:
        number: the number of the micro-batch, from 0.
        what: a phrase that describes its rows.
        result: the first of its rows.
    """

    number: int
    what: str
    result: Result


def fetch(frame: DataFrame, limit: int = ROW_LIMIT) -> Result:
    """Return the first rows of a frame, at most `limit`; Spark itself formats the values, here or at a host (Spark Connect)."""
    kinds = [kind.split("(")[0] for _, kind in frame.dtypes]
    names = [f"c{i}" for i in range(len(frame.columns))]  # a result may have the same name twice
    named = frame.toDF(*names)
    text = named.select(*(named[name].cast("string") for name in names))
    rows = [tuple(row) for row in text.take(limit + 1)]
    return Result(frame.columns, [kind in _RIGHT for kind in kinds], rows[:limit], len(rows) > limit)
