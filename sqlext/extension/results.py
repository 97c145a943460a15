"""What a statement answers, as text: a table of at most so many rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, functions

ROW_LIMIT = 100
_RIGHT = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


@dataclass(frozen=True)
class Result:
    """The rows of a statement as text.

    Attributes:
        columns: names.
        is_number: by column; numbers are aligned on the right.
        rows: None is NULL.
        has_more: whether Spark has rows that were not fetched.
        left_out: how many rows were fetched and are not among `rows`.
    """

    columns: Sequence[str]
    is_number: Sequence[bool]
    rows: Sequence[Sequence[str | None]]
    has_more: bool = False
    left_out: int = 0

    @property
    def text(self) -> str | None:
        """The one text that the result is, of a command or EXPLAIN; None for a table."""
        if len(self.columns) == 1 and len(self.rows) == 1 and not self.is_number[0]:
            only = self.rows[0][0]
            if only is not None and ("\n" in only or self.columns[0] == "command_output"):
                return only
        return None

    def first(self, number: int) -> Result:
        """The result without the rows behind the first ones."""
        return replace(self, rows=self.rows[:number], left_out=self.left_out + max(len(self.rows) - number, 0))


@dataclass(frozen=True)
class LiveBatch:
    """What a micro-batch of a live query brought.

    Attributes:
        number: of the micro-batch, from 0.
        what: its rows are, as a phrase.
        result: the first of them.
    """

    number: int
    what: str
    result: Result


def fetch(frame: DataFrame, limit: int = ROW_LIMIT) -> Result:
    """The first rows of a frame, at most `limit`; Spark itself writes the values."""
    kinds = [kind.split("(")[0] for _, kind in frame.dtypes]
    names = [f"c{i}" for i in range(len(frame.columns))]  # a result may have the same name twice
    text = frame.toDF(*names).select(*(functions.col(name).cast("string") for name in names))
    rows = [tuple(row) for row in text.take(limit + 1)]
    return Result(frame.columns, [kind in _RIGHT for kind in kinds], rows[:limit], len(rows) > limit)
